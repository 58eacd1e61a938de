"""Policy + Host → the network part of the plan: namespaces, names, variables, and what to say about it."""

from __future__ import annotations

from claudebox.base.console import clean, list_some
from claudebox.base.errors import ClaudeboxError
from claudebox.network.facts import find_proxy, has_login
from claudebox.network.records import AllowedDomain, Barred, Link, OpenedAddress, ProxyConfig, Ranges, Served
from claudebox.plan.records import ENTRANCE, Fetched, Variable
from claudebox.tables import inside
from claudebox.tables.inside import PROXY_PORT
from claudebox.tables.network import ALWAYS_BARRED, BARRED, OPEN6

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host
    from claudebox.network.facts import HostProxy
    from claudebox.plan.records import Plan
    from claudebox.settings.records import AddressRequest, Policy


# Where both uplinks forward questions for names. Inside nothing else is at these addresses.
_FORWARDER4, _FORWARDER6 = "10.0.2.3", "fd00::3"
_HTTP = f"http://127.0.0.1:{inside.PROXY_PORT}"
# Never socks5h: httpx, and with it the SDKs of Anthropic and OpenAI, fails at once where it is set.
PROXY_VARIABLES = {
    name: value
    for upper, value in (
        ("HTTP_PROXY", _HTTP), ("HTTPS_PROXY", _HTTP), ("ALL_PROXY", _HTTP), ("NO_PROXY", "localhost,127.0.0.1,::1"),
    )
    for name in (upper, upper.lower())
}  # fmt: skip
_SHOWN = 8  # domains in the audit


def resolv_conf(policy: Policy, host: Host) -> bytes:
    """Return resolv.conf of the sandbox: the servers and search rules of the host, and nothing else of the file.

    In tier `inet` it is the forwarder alone: the host's server is in the LAN, and its search list tells where we are.
    """
    if policy.tier.listed:
        return b"nameserver 127.0.0.1\n"
    if policy.tier.uplink:
        return f"nameserver {forwarder(host)}\n".encode()
    if not policy.tier.shared:
        return b""
    kept = [
        line.strip()
        for line in host.network.resolv_conf.split(b"\n")
        if line.split()[:1] in ([b"nameserver"], [b"search"], [b"domain"], [b"options"])
    ]
    return b"".join(line + b"\n" for line in kept)


def forwarder(host: Host) -> str:
    """Return the forwarder of the family in which the host asks: uplinks do not translate between the two."""
    lines = (line.split() for line in host.network.resolv_conf.split(b"\n"))
    servers = [words[1] for words in lines if words[:1] == [b"nameserver"] and len(words) > 1]
    return _FORWARDER6 if servers and all(b":" in server for server in servers) else _FORWARDER4


def aliases(host: Host) -> dict[str, str]:
    """Return the loopback address inside at which the broker answers for each host of a secret.

    Programs find it in /etc/hosts, so that none of them has to know of a proxy.
    """
    names = dict.fromkeys(name for secret in host.secrets.held for name, _ in secret.hosts)
    return {name: f"127.67.{66 + index // 250}.{1 + index % 250}" for index, name in enumerate(names)}


def has_proxy(environ: dict[str, str]) -> bool:
    """Return whether the variables of the host name a proxy."""
    return any(environ.get(name, "").strip() for name in PROXY_VARIABLES if name.upper() != "NO_PROXY")


def _speaks_of_proxies(host: Host) -> bool:
    return has_proxy(host.environ) or (host.network.company is not None and not host.network.company.is_silent)


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to the proxy."""
    if policy.tier.listed:
        for name, value in PROXY_VARIABLES.items():
            yield Variable(name, value, "claudebox", "the way out, to the domains that are listed")
    elif policy.tier.routed and _speaks_of_proxies(host):
        yield from plan_proxy_variables(policy, host)


def warnings(policy: Policy, host: Host, *, needed: str = "") -> Iterator[str]:
    """Yield what is unusual about the network; `needed` is the host without which the client is lost."""
    if _speaks_of_proxies(host):
        yield from proxy_warnings(policy, host)
    if not policy.tier.listed:
        return
    from claudebox.settings import domains as settings_domains

    listed = settings_domains.Permission(
        [settings_domains.parse_domain(row.name, row.origin) for row in policy.domains]
    )
    if needed and not listed.rule(needed, 443):
        yield f"{needed} is not listed, so that the client cannot log in: add --allow-domain anthropic"


def described(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about the network of a plan."""
    link = plan.link
    by = f", through {link.program}" if link is not None and link.program else ""
    yield f"{plan.policy.network}: {plan.policy.tier.meaning}{by}"
    proxy = _proxy(plan)
    if proxy is not None:
        names = [row.name for row in proxy.domains]
        if proxy.reach == "listed":
            yield f"domains: {list_some(names, _SHOWN) or 'none'}"
        if proxy.proxy is not None:
            kept = "; its password stays outside" if proxy.proxy.login else ""
            yield f"through the proxy of this machine, {proxy.proxy}, which resolves the names{kept}"
    opened = [place(row) for row in _opened(plan)]
    if opened:
        yield f"opened by --allow-address: {list_some(opened, _SHOWN)}"
    if link is not None and link.host_ports:
        yield f"reachable inside: localhost of this machine, port {_listed(link.host_ports)}"
    if link is not None and link.published:
        yield f"reachable from this machine: port {_listed(link.published)} of the sandbox, at localhost"


def opened(plan: Plan) -> Iterator[str]:
    """Yield what was opened one by one: domains, addresses, ports of the host, ports of the sandbox."""
    proxy, link = _proxy(plan), plan.link
    yield from (row.name for row in proxy.domains) if proxy is not None else ()
    yield from map(place, _opened(plan))
    if link is not None:
        yield from (f"port {port} of this machine" for port in link.host_ports)
        yield from (f"port {port} of the sandbox from outside" for port in link.published)


def _opened(plan: Plan) -> tuple[OpenedAddress, ...]:
    """Return what is open in the ranges that are in force: the proxy's in tier `allow`, else the netns holder's."""
    holder = _proxy(plan) or plan.link
    return holder.ranges.opened if holder is not None else ()


def _proxy(plan: Plan) -> ProxyConfig | None:
    return plan.broker.proxy if plan.broker is not None else None


def place(row: OpenedAddress | AddressRequest) -> str:
    """Return an opened address as a user would write it."""
    prefix = row.prefix.removesuffix("/128" if ":" in row.prefix else "/32")
    if not row.port:
        return prefix
    return f"[{prefix}]:{row.port}" if ":" in prefix else f"{prefix}:{row.port}"


def _listed(ports: tuple[int, ...]) -> str:
    return ", ".join(map(str, ports))


# Policy + Host → what connects a sandbox whose network is its own, or whose proxy is ours: `Link`, `ProxyConfig`.


# Listeners in the sandbox's own network that the broker answers: the proxy, names, and those whom names have led here.
PROXY = Served("proxy", "stream", inside.PROXY_PORT)
NAMED = (
    Served("redirected", "stream", inside.REDIRECTED_PORT, redirected=True),
    Served("names", "datagram", inside.NAMES_PORT, redirected=True),
)


def plan_link(policy: Policy, host: Host) -> Link | None:
    """Return what must be connected before the payload starts, or say why that is impossible."""
    link = Link(host_ports=policy.host_ports, published=policy.published)
    if policy.tier.listed:
        return link.replace(served=(PROXY, *NAMED), redirect=NAMED[0].name)
    if not policy.tier.uplink:
        return link if link != Link() else None
    usable = [candidate for candidate in host.network.uplinks if not candidate.problem]
    if not usable:
        problems = (
            "; ".join(dict.fromkeys(candidate.problem for candidate in host.network.uplinks)) or "none was looked for"
        )
        remedies = dict.fromkeys(candidate.remedy for candidate in host.network.uplinks if candidate.remedy)
        raise ClaudeboxError(
            f"there is no usable uplink for `--network {policy.network}`: {problems}", hint="; ".join(remedies)
        )
    return link.replace(
        program=usable[0].name,
        path=usable[0].path,
        forwarder=forwarder(host),
        ranges=closed_ranges(policy.addresses),
        served=_entrance(policy, host),
    )


def _entrance(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listener inside that leads to the proxy of this machine, where it has one."""
    if not has_proxy(host.environ):
        return ()

    return (served(policy),) if usable_proxy(host.environ)[0] is not None else ()


def closed_ranges(requests: tuple[AddressRequest, ...] = ()) -> Ranges:
    """Return the ranges of addresses that nobody inside reaches, and what the user opened in them."""
    barred = (
        *(Barred(prefix, reason, always=True) for prefix, reason in ALWAYS_BARRED),
        *(Barred(prefix, reason) for prefix, reason in BARRED),
    )
    opened = tuple(OpenedAddress(row.prefix, row.port, row.origin) for row in requests)
    return Ranges(barred, OPEN6, opened)


def plan_proxy(policy: Policy, host: Host) -> ProxyConfig | None:
    """Return what the broker does for the network."""
    if not policy.tier.listed:
        if not has_proxy(host.environ):
            return None

        return plan_entrance(policy, host, closed_ranges(policy.addresses))
    domains = tuple(AllowedDomain(row.name, row.origin) for row in policy.domains)
    return ProxyConfig(domains, closed_ranges(policy.addresses), tunnel_proxy(host.environ))


def tunnel_proxy(environ: dict[str, str]) -> HostProxy | None:
    """Return the proxy of this machine that connections of programs go through."""
    if not has_proxy(environ):
        return None

    return usable_proxy(environ)[0]


def _ranges(plan: Plan) -> Ranges:
    """Return the ranges that are in force: the proxy's in tier `allow`, else those of the netns holder."""
    proxy = _proxy(plan)
    return proxy.ranges if proxy is not None else plan.link.ranges if plan.link is not None else Ranges()


def limits(plan: Plan) -> Iterator[str]:
    """Yield what is closed and what is open, row by row: the values that the netns holder and the proxy are handed."""
    proxy, ranges = _proxy(plan), _ranges(plan)
    for row in ranges.barred:
        yield f"not reachable: {row.prefix}, {row.reason}"
    for opened in ranges.opened:
        yield f"reachable: {place(opened)}, because of {clean(opened.origin)}"
    if ranges.open6:
        yield f"reachable over IPv6: nothing but {', '.join(ranges.open6)}"
    for domain in proxy.domains if proxy is not None else ():
        yield f"reachable: {domain.name}, because of {clean(domain.origin)}"


def as_document(plan: Plan) -> dict[str, object] | None:
    """Return the link for machines."""
    link, proxy = plan.link, _proxy(plan)
    if link is None:
        return None
    ranges = _ranges(plan)
    return {
        "program": link.program,
        "path": link.path,
        "forwarder": link.forwarder,
        "barred": [{"prefix": row.prefix, "reason": row.reason} for row in ranges.barred],
        "open6": ranges.open6,
        "opened": [{"prefix": row.prefix, "port": row.port, "origin": row.origin} for row in ranges.opened],
        "host_ports": link.host_ports,
        "published": link.published,
        "served": [{"name": row.name, "address": row.address, "port": row.port} for row in link.served],
        "domains": [{"name": row.name, "origin": row.origin} for row in (proxy.domains if proxy is not None else ())],
        "through": str(proxy.proxy) if proxy is not None and proxy.proxy is not None else "",
    }


# How programs inside use the proxy of this machine: as on the host, or by an entrance that holds its password.
#
# In tier `inet` the proxy is mostly in the LAN, and a password of it never enters: then the broker listens inside, or
# on this machine's loopback in tier `full`, and asks the real one. In tier `allow` that is the only way out anyway.


PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
_HERE = ("localhost", "127.0.0.1", "::1")
_OTHER_PORTS = (3130, 3131, 3132)
_REASON = "the proxy of this machine"


def usable_proxy(environ: dict[str, str]) -> tuple[HostProxy | None, str]:
    """Return the proxy that the broker can ask for connections, and what is wrong with the one that is named."""
    problem = ""
    for scheme in ("https", "http"):
        proxy, said = find_proxy(environ, scheme)
        if proxy is not None and not proxy.tls:
            return proxy, ""
        secure = "HTTPS_PROXY of this machine is a https proxy, and is not used: connections take http alone"
        problem = problem or (secure if proxy is not None else said)
    return None, problem


def plan_entrance(policy: Policy, host: Host, ranges: Ranges) -> ProxyConfig | None:
    """Return what the broker does to lead programs to the proxy of this machine, where it must."""
    proxy, _ = usable_proxy(host.environ)
    if proxy is not None and policy.tier.uplink:
        return ProxyConfig((), ranges, proxy, reach="internet")
    if proxy is not None and policy.tier.shared and _hidden(host):
        return ProxyConfig((), proxy=proxy, reach="everything")
    return None


def served(policy: Policy) -> Served:
    """Return the listener of the entrance in the sandbox's own network, on a port that the user has not given away."""
    taken = (*policy.host_ports, *policy.published)
    return Served("proxy", "stream", next(port for port in (PROXY_PORT, *_OTHER_PORTS) if port not in taken))


def _hidden(host: Host) -> list[str]:
    """Return the variables whose proxy has a login in it."""
    return [name for name in PROXIES if has_login(host.environ.get(name, ""))]


def plan_proxy_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to the proxy."""
    environ = host.environ
    proxy, _ = usable_proxy(environ)
    if policy.tier.uplink:
        if proxy is None:
            return
        bypass = ",".join(dict.fromkeys((*proxy.bypass, *_HERE)))
        for name in PROXIES:
            yield Variable(name, f"http://127.0.0.1:{served(policy).port}", "claudebox", _REASON)
        for name in ("NO_PROXY", "no_proxy"):
            yield Variable(name, bypass, "claudebox", "what is not reached by the proxy")
        return
    hidden = _hidden(host)
    for name in PROXIES:
        if name in hidden and proxy is not None:
            reason = f"{_REASON}; its password stays outside"
            yield Variable(name, "the entrance of the broker", "claudebox", reason, fetched=Fetched(ENTRANCE))
        elif environ.get(name) and name not in hidden:
            yield Variable(name, environ[name], "host", _REASON)
    for name in ("NO_PROXY", "no_proxy"):
        if environ.get(name):
            yield Variable(name, environ[name], "host", "what is not reached by the proxy")


def git_proxy(policy: Policy, host: Host) -> str:
    """Return the proxy that git alone is told of."""
    value = host.network.company.git_proxy if host.network.company is not None else ""
    return value if policy.tier.shared and not has_login(value) else ""


def proxy_warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Say what of the proxies is not used inside."""
    if policy.tier.isolated:
        return
    if host.network.company is not None:
        yield from host.network.company.problems
        unused = host.network.company.git_proxy and not git_proxy(policy, host)
        if unused and not any(map(host.environ.get, PROXIES)):
            yield "git's http.proxy is not used inside: set HTTPS_PROXY on the host, which counts in every tier"
    proxy, problem = usable_proxy(host.environ)
    if policy.tier.shared:
        if _hidden(host) and proxy is None:
            yield problem or "the proxy of this machine has a password, and is not used inside"
    elif problem:
        yield problem
