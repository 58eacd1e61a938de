"""Policy + Host → the network of a plan: resolver, uplink, listeners, proxies, variables, and what is shown of them."""

from __future__ import annotations

from claudebox.base.console import clean, list_some
from claudebox.base.errors import ClaudeboxError
from claudebox.network.records import AllowedDomain, Barred, Link, OpenedAddress, ProxyConfig, Ranges, Served
from claudebox.plan.records import ENTRANCE, Deferred, Variable
from claudebox.tables import environment as tables_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host
    from claudebox.network.facts import HostProxy
    from claudebox.plan.records import Plan
    from claudebox.settings.records import AddressRequest, Policy


# The addresses at which both uplinks forward DNS.
_FORWARDER4, _FORWARDER6 = "10.0.2.3", "fd00::3"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Never socks5h: httpx, and with it the SDKs of Anthropic and OpenAI, fails at once where it is set.
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
_BYPASS = ("NO_PROXY", "no_proxy")
PROXY_VARIABLES = (*PROXIES, *_BYPASS)
# Listeners in the sandbox's own network that the broker answers: the proxy, connections redirected to it, and DNS.
_PROXY = Served("proxy", "stream", tables_environment.PROXY_PORT)
_REDIRECTED = Served("redirected", "stream", tables_environment.REDIRECTED_PORT, redirected=True)
_NAMES = Served("names", "datagram", tables_environment.NAMES_PORT, redirected=True)
_OTHER_PROXY_PORTS = (3130, 3131, 3132)
_SHOWN = 8  # domains in the audit


# Names.


def resolv_conf(policy: Policy, host: Host) -> bytes:
    """Return resolv.conf of the sandbox: in tier `full`, servers and search rules of the host's and nothing else of it.

    In tier `inet` it is the forwarder alone: the host's server is in the LAN, and its search list tells where we are.
    """
    if policy.tier.listed:
        return b"nameserver 127.0.0.1\n"
    if policy.tier.uplink:
        return f"nameserver {_forwarder(host)}\n".encode()
    if not policy.tier.shared:
        return b""
    kept = [
        line.strip()
        for line in host.network.resolv_conf.split(b"\n")
        if line.split()[:1] in ([b"nameserver"], [b"search"], [b"domain"], [b"options"])
    ]
    return b"".join(line + b"\n" for line in kept)


def _forwarder(host: Host) -> str:
    """Return the forwarder of the family that the host's servers have: uplinks do not translate between the two."""
    lines = (line.split() for line in host.network.resolv_conf.split(b"\n"))
    servers = [words[1] for words in lines if words[:1] == [b"nameserver"] and len(words) > 1]
    return _FORWARDER6 if servers and all(b":" in server for server in servers) else _FORWARDER4


def aliases(host: Host) -> dict[str, str]:
    """Return the loopback address, in /etc/hosts, at which the broker answers inside for each host of a secret."""
    names = dict.fromkeys(name for secret in host.secrets.held for name, _ in secret.hosts)
    return {name: f"127.67.{66 + index // 250}.{1 + index % 250}" for index, name in enumerate(names)}


# What connects a sandbox that has a network of its own.


def plan_link(policy: Policy, host: Host) -> Link | None:
    """Return what must be connected before the payload starts; raise if it cannot be."""
    link = Link(host_ports=policy.host_ports, published=policy.published)
    if policy.tier.listed:
        return link.replace(served=(_PROXY, _REDIRECTED, _NAMES), redirect=_REDIRECTED.name)
    if not policy.tier.uplink:
        return link if link != Link() else None
    uplinks = host.network.uplinks
    usable = [candidate for candidate in uplinks if not candidate.problem]
    if not usable:
        problems = "; ".join(dict.fromkeys(candidate.problem for candidate in uplinks)) or "not examined"
        remedies = dict.fromkeys(candidate.remedy for candidate in uplinks if candidate.remedy)
        raise ClaudeboxError(
            f"there is no usable uplink for `--network {policy.network}`: {problems}", hint="; ".join(remedies)
        )
    proxy, _ = usable_proxy(host.environ)
    return link.replace(
        program=usable[0].name,
        path=usable[0].path,
        forwarder=_forwarder(host),
        ranges=closed_ranges(policy.addresses),
        served=(_entrance(policy),) if proxy is not None else (),
    )


def closed_ranges(requests: tuple[AddressRequest, ...] = ()) -> Ranges:
    """Return the ranges that are closed in the tiers `inet` and `allow`, and what the user opened in them."""
    from claudebox.tables.network import ALWAYS_BARRED, BARRED, OPEN6

    barred = (
        *(Barred(prefix, reason, always=True) for prefix, reason in ALWAYS_BARRED),
        *(Barred(prefix, reason) for prefix, reason in BARRED),
    )
    opened = tuple(OpenedAddress(row.prefix, row.port, row.origin) for row in requests)
    return Ranges(barred, OPEN6, opened)


# The proxy of the host.
#
# In tier `inet` it is mostly in the LAN, and a password of it never enters. So the broker listens inside (in tier
# `full`: on the host's loopback, where a password is to be kept) and asks the real one. In tier `allow` the broker's
# proxy is the only way out anyway, and goes through that of the host.


def has_proxy(environ: dict[str, str]) -> bool:
    return any(environ.get(name, "").strip() for name in PROXIES)


def usable_proxy(environ: dict[str, str]) -> tuple[HostProxy | None, str]:
    """Return the proxy that the broker can ask for connections, and what is wrong with the one that is named."""
    if not has_proxy(environ):
        return None, ""
    from claudebox.network.facts import find_proxy

    problem = ""
    for scheme in ("https", "http"):
        proxy, complaint = find_proxy(environ, scheme)
        if proxy is not None and not proxy.tls:
            return proxy, ""
        secure = "HTTPS_PROXY of this machine is an https:// proxy, and is not used: only http:// ones are supported"
        problem = problem or (secure if proxy is not None else complaint)
    return None, problem


def plan_proxy(policy: Policy, host: Host) -> ProxyConfig | None:
    """Return the configuration of the broker's proxy, where the sandbox needs one."""
    proxy, _ = usable_proxy(host.environ)
    if policy.tier.listed:
        domains = tuple(AllowedDomain(row.name, row.origin) for row in policy.domains)
        return ProxyConfig(domains, closed_ranges(policy.addresses), proxy)
    if proxy is not None and policy.tier.uplink:
        return ProxyConfig((), closed_ranges(policy.addresses), proxy, reach="internet")
    if proxy is not None and policy.tier.shared and _with_login(host):
        return ProxyConfig((), proxy=proxy, reach="everything")
    return None


def _entrance(policy: Policy) -> Served:
    """Return the listener inside that leads to the host's proxy, on a port that the user has not given away."""
    taken = (*policy.host_ports, *(row.inside for row in policy.published))
    return _PROXY.replace(port=next(port for port in (_PROXY.port, *_OTHER_PROXY_PORTS) if port not in taken))


def _with_login(host: Host) -> list[str]:
    """Return the variables whose proxy has a login in it."""
    if not has_proxy(host.environ):
        return []
    from claudebox.network.facts import has_login

    return [name for name in PROXIES if has_login(host.environ.get(name, ""))]


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to a proxy."""
    environ = host.environ
    proxy, _ = usable_proxy(environ)
    # The broker is not reached through the proxy: at its socket by Claude Code before 2.1.295, on loopback by others.
    broker = policy.agent.upstream.nowhere.partition("://")[2] or (_LOOPBACK[1] if policy.agent.upstreams else "")
    direct = tuple(dict.fromkeys((*_LOOPBACK, *filter(None, (broker,)))))
    if policy.tier.listed:
        yield from _lead_to(_PROXY.port, direct, "the way out, to the domains that are listed")
    elif policy.tier.uplink and proxy is not None:
        bypass = tuple(dict.fromkeys((*proxy.bypass, *direct)))
        yield from _lead_to(_entrance(policy).port, bypass, "the proxy of this machine")
    elif policy.tier.shared and has_proxy(environ):
        for name in [name for name in _BYPASS if environ.get(name)] or (_BYPASS[:1] if broker else ()):
            named = environ.get(name, "")
            value = named if named == "*" else ",".join(filter(None, (named, broker)))
            yield Variable(name, value, "host" if named else "claudebox", "not reached through the proxy")
        hidden = _with_login(host)
        for name in PROXIES:
            if name not in hidden and environ.get(name):
                yield Variable(name, environ[name], "host", "the proxy of this machine")
            elif name in hidden and proxy is not None:
                reason = "the proxy of this machine; its password stays outside"
                yield Variable(name, "the entrance of the broker", "claudebox", reason, deferred=Deferred(ENTRANCE))


def _lead_to(port: int, bypass: tuple[str, ...], reason: str) -> Iterator[Variable]:
    for name in PROXIES:
        yield Variable(name, f"http://127.0.0.1:{port}", "claudebox", reason)
    for name in _BYPASS:
        yield Variable(name, ",".join(bypass), "claudebox", "not reached through the proxy")


def git_proxy(policy: Policy, host: Host) -> str:
    """Return the proxy that git alone is configured to use."""
    company = host.network.company
    if company is None or not policy.tier.shared:
        return ""
    from claudebox.network.facts import has_login

    return "" if has_login(company.git_proxy) else company.git_proxy


def warnings(policy: Policy, host: Host, *, needed: str = "") -> Iterator[str]:
    """Yield what is unusual about the network; the client needs the host `needed` to log in."""
    if not policy.tier.isolated:
        yield from _proxy_warnings(policy, host)
    if policy.tier.listed and needed:
        from claudebox.settings.domains import Permission, parse_domain

        if not Permission(parse_domain(row.name, row.origin) for row in policy.domains).rule(needed, 443):
            yield f"{needed} is not listed, so that the client cannot log in: add --allow-domain anthropic"


def _proxy_warnings(policy: Policy, host: Host) -> Iterator[str]:
    company = host.network.company
    if company is not None:
        yield from company.problems
        unused = company.git_proxy and not git_proxy(policy, host)
        if unused and not any(map(host.environ.get, PROXIES)):
            yield "git's http.proxy is not used inside: set HTTPS_PROXY on the host, which counts in every tier"
    proxy, problem = usable_proxy(host.environ)
    if not policy.tier.shared:
        if problem:
            yield problem
    elif _with_login(host) and proxy is None:
        yield problem or "the proxy of this machine has a password, and is not used inside"


# What is shown of the network: the very values that the netns holder and the broker are handed.


def _proxy_of(plan: Plan) -> ProxyConfig | None:
    return plan.broker.proxy if plan.broker is not None else None


def _ranges(plan: Plan) -> Ranges:
    """Return the ranges in force: the proxy's in tier `allow`, else those of the netns holder."""
    enforcer = _proxy_of(plan) or plan.link
    return enforcer.ranges if enforcer is not None else Ranges()


def spell_address(row: OpenedAddress | AddressRequest) -> str:
    """Return an opened address as a user would write it."""
    prefix = row.prefix.removesuffix("/128" if ":" in row.prefix else "/32")
    if not row.port:
        return prefix
    return f"[{prefix}]:{row.port}" if ":" in prefix else f"{prefix}:{row.port}"


def described(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about the network of a plan."""
    link, proxy = plan.link, _proxy_of(plan)
    by = f", through {link.program}" if link is not None and link.program else ""
    yield f"{plan.policy.network}: {plan.policy.tier.meaning}{by}"
    if proxy is not None:
        names = [row.name for row in proxy.domains]
        if proxy.reach == "listed":
            yield f"domains: {list_some(names, _SHOWN) or 'none'}"
        if proxy.proxy is not None:
            kept = "; its password stays outside" if proxy.proxy.login else ""
            yield f"through the proxy of this machine, {proxy.proxy}, which resolves the names{kept}"
    opened = list(map(spell_address, _ranges(plan).opened))
    if opened:
        yield f"opened by allow_addresses: {list_some(opened, _SHOWN)}"
    if link is not None and link.host_ports:
        yield f"reachable inside: localhost of this machine, port {', '.join(map(str, link.host_ports))}"
    if link is not None and link.published:
        ports = ", ".join(f"{row.inside} of the sandbox at localhost:{row.host}" for row in link.published)
        yield f"reachable from this machine: port {ports}"


def opened(plan: Plan) -> Iterator[str]:
    """Yield what was opened one by one: domains, addresses, ports of the host, ports of the sandbox."""
    proxy, link = _proxy_of(plan), plan.link
    yield from (row.name for row in proxy.domains) if proxy is not None else ()
    yield from map(spell_address, _ranges(plan).opened)
    if link is not None:
        yield from (f"port {port} of this machine" for port in link.host_ports)
        yield from (f"port {port} of the sandbox from outside" for port in link.published)


def reachability(plan: Plan) -> Iterator[str]:
    """Yield what is closed and what is open, row by row."""
    proxy, ranges = _proxy_of(plan), _ranges(plan)
    for row in ranges.barred:
        yield f"not reachable: {row.prefix}, {row.reason}"
    for address in ranges.opened:
        yield f"reachable: {spell_address(address)}, because of {clean(address.origin)}"
    if ranges.open6:
        yield f"reachable over IPv6: nothing but {', '.join(ranges.open6)}"
    for domain in proxy.domains if proxy is not None else ():
        yield f"reachable: {domain.name}, because of {clean(domain.origin)}"


def as_document(plan: Plan) -> dict[str, object] | None:
    """Return the link for `--json`."""
    link, proxy, ranges = plan.link, _proxy_of(plan), _ranges(plan)
    if link is None:
        return None
    return {
        "program": link.program,
        "path": link.path,
        "forwarder": link.forwarder,
        "barred": [{"prefix": row.prefix, "reason": row.reason} for row in ranges.barred],
        "open6": ranges.open6,
        "opened": [{"prefix": row.prefix, "port": row.port, "origin": row.origin} for row in ranges.opened],
        "host_ports": link.host_ports,
        "published": [{"host": row.host, "inside": row.inside} for row in link.published],
        "served": [{"name": row.name, "address": row.address, "port": row.port} for row in link.served],
        "domains": [{"name": row.name, "origin": row.origin} for row in (proxy.domains if proxy is not None else ())],
        "through": str(proxy.proxy) if proxy is not None and proxy.proxy is not None else "",
    }
