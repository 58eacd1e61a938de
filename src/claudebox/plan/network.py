"""Policy + Host → the network part of the plan: namespaces, names, the link to elsewhere, and what to say about it."""

from __future__ import annotations

from claudebox.console import clean, list_some
from claudebox.errors import ClaudeboxError
from claudebox.plan.model import Variable
from claudebox.plan.network_model import AllowedDomain, Barred, Link, OpenedAddress, ProxyConfig, Ranges, Served
from claudebox.tables import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import AddressRequest, Policy, Tier
    from claudebox.facts.host import Host
    from claudebox.host_proxy import HostProxy
    from claudebox.plan.model import Plan

MEANING: dict[Tier, str] = {
    "full": "the host's network: its loopback services, the LAN and the internet are reachable",
    "inet": "the internet and names; not the LAN, not VPNs, not metadata services, not this machine",
    "allow": "only the domains that are listed; no addresses, not the LAN, not this machine",
    "none": "loopback of the sandbox only",
}
# Where both uplinks forward questions for names. Inside nothing else is at these addresses.
_FORWARDER4, _FORWARDER6 = "10.0.2.3", "fd00::3"
# Listeners in the sandbox's own network that the broker answers: the proxy, names, and those whom names have led here.
PROXY = Served("proxy", "stream", inside.PROXY_PORT)
NAMED = (
    Served("redirected", "stream", inside.REDIRECTED_PORT, redirected=True),
    Served("names", "datagram", inside.NAMES_PORT, redirected=True),
    Served("names-stream", "stream", inside.NAMES_PORT, redirected=True),
)
_HTTP = f"http://127.0.0.1:{PROXY.port}"
# Never socks5h: httpx, and with it the SDKs of Anthropic and OpenAI, fails at once where it is set.
PROXY_VARIABLES = {
    name: value
    for upper, value in (
        ("HTTP_PROXY", _HTTP), ("HTTPS_PROXY", _HTTP), ("ALL_PROXY", _HTTP), ("NO_PROXY", "localhost,127.0.0.1,::1"),
    )
    for name in (upper, upper.lower())
}  # fmt: skip
_SHOWN = 8  # domains in the audit


def own_namespace(policy: Policy) -> bool:
    """Return whether the sandbox gets a network of its own."""
    return policy.network != "full"


def resolv_conf(policy: Policy, host: Host) -> bytes:
    """Return resolv.conf of the sandbox: the servers and search rules of the host, and nothing else of the file.

    In tier `inet` it is the forwarder alone: the host's server is in the LAN, and its search list tells where we are.
    """
    if policy.network == "none":
        return b""
    if policy.network == "allow":
        return b"nameserver 127.0.0.1\n"
    if policy.network == "inet":
        return f"nameserver {_forwarder(host)}\n".encode()
    kept = [
        line.strip()
        for line in host.resolv_conf.split(b"\n")
        if line.split()[:1] in ([b"nameserver"], [b"search"], [b"domain"], [b"options"])
    ]
    return b"".join(line + b"\n" for line in kept)


def _forwarder(host: Host) -> str:
    """Return the forwarder of the family in which the host asks: uplinks do not translate between the two."""
    lines = (line.split() for line in host.resolv_conf.split(b"\n"))
    servers = [words[1] for words in lines if words[:1] == [b"nameserver"] and len(words) > 1]
    return _FORWARDER6 if servers and all(b":" in server for server in servers) else _FORWARDER4


def aliases(host: Host) -> dict[str, str]:
    """Return the loopback address inside at which the broker answers for each host of a secret.

    Programs find it in /etc/hosts, so that none of them has to know of a proxy.
    """
    names = dict.fromkeys(name for secret in host.held_secrets for name, _ in secret.hosts)
    return {name: f"127.67.{66 + index // 250}.{1 + index % 250}" for index, name in enumerate(names)}


def plan_link(policy: Policy, host: Host) -> Link | None:
    """Return what must be connected before the payload starts, or say why that is impossible."""
    if policy.network == "full":
        return None
    if policy.network == "none":
        if not policy.host_ports and not policy.published:
            return None
        return Link(host_ports=policy.host_ports, published=policy.published)
    if policy.network == "allow":
        return Link(
            host_ports=policy.host_ports,
            published=policy.published,
            served=(PROXY, *NAMED),
            redirect=NAMED[0].name,
        )
    usable = [candidate for candidate in host.uplinks if not candidate.problem]
    if not usable:
        problems = "; ".join(dict.fromkeys(candidate.problem for candidate in host.uplinks)) or "none was looked for"
        remedies = dict.fromkeys(candidate.remedy for candidate in host.uplinks if candidate.remedy)
        raise ClaudeboxError(f"there is no usable uplink for `--network inet`: {problems}", hint="; ".join(remedies))
    return Link(
        program=usable[0].name,  # type: ignore[arg-type]  # candidates knows only these
        path=usable[0].path,
        forwarder=_forwarder(host),
        ranges=closed_ranges(policy.addresses),
        host_ports=policy.host_ports,
        published=policy.published,
        served=_entrance(policy, host),
    )


def _entrance(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listener inside that leads to the proxy of this machine, where it has one."""
    if not has_proxy(host.environ):
        return ()
    from claudebox.plan import host_proxies  # noqa: PLC0415 - most machines have none

    return (host_proxies.served(policy),) if host_proxies.usable_proxy(host.environ)[0] is not None else ()


def has_proxy(environ: dict[str, str]) -> bool:
    """Return whether the variables of the host name a proxy."""
    return any(environ.get(name, "").strip() for name in PROXY_VARIABLES if name.upper() != "NO_PROXY")


def _speaks_of_proxies(host: Host) -> bool:
    return has_proxy(host.environ) or (host.company is not None and not host.company.is_silent)


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to the proxy."""
    if policy.network == "allow":
        for name, value in PROXY_VARIABLES.items():
            yield Variable(name, value, "claudebox", "the way out, to the domains that are listed")
    elif policy.network != "none" and _speaks_of_proxies(host):
        from claudebox.plan import host_proxies  # noqa: PLC0415 - most machines have none

        yield from host_proxies.plan_variables(policy, host)


def closed_ranges(requests: tuple[AddressRequest, ...] = ()) -> Ranges:
    """Return the ranges of addresses that nobody inside reaches, and what the user opened in them."""
    from claudebox.tables.barred_ranges import ALWAYS_BARRED, BARRED, OPEN6  # noqa: PLC0415 - other tiers need none

    barred = (
        *(Barred(prefix, reason, always=True) for prefix, reason in ALWAYS_BARRED),
        *(Barred(prefix, reason) for prefix, reason in BARRED),
    )
    opened = tuple(OpenedAddress(row.prefix, row.port, row.origin) for row in requests)
    return Ranges(barred, OPEN6, opened)


def plan_proxy(policy: Policy, host: Host) -> ProxyConfig | None:
    """Return what the broker does for the network."""
    if policy.network != "allow":
        if not has_proxy(host.environ):
            return None
        from claudebox.plan import host_proxies  # noqa: PLC0415 - most machines have none

        return host_proxies.plan_entrance(policy, host, closed_ranges(policy.addresses))
    domains = tuple(AllowedDomain(row.name, row.origin) for row in policy.domains)
    return ProxyConfig(domains, closed_ranges(policy.addresses), tunnel_proxy(host.environ))


def tunnel_proxy(environ: dict[str, str]) -> HostProxy | None:
    """Return the proxy of this machine that connections of programs go through."""
    if not has_proxy(environ):
        return None
    from claudebox.plan import host_proxies  # noqa: PLC0415 - most machines have none

    return host_proxies.usable_proxy(environ)[0]


def warnings(policy: Policy, host: Host, *, needed: str = "") -> Iterator[str]:
    """Yield what is unusual about the network; `needed` is the host without which the client is lost."""
    if _speaks_of_proxies(host):
        from claudebox.plan import host_proxies  # noqa: PLC0415 - most machines have none

        yield from host_proxies.warnings(policy, host)
    if policy.network != "allow":
        return
    from claudebox.config import domains  # noqa: PLC0415 - other tiers need nothing of it

    listed = domains.Permission([domains.parse_domain(row.name, row.origin) for row in policy.domains])
    if needed and not listed.rule(needed, 443):
        yield f"{needed} is not listed, so that the client cannot log in: add --allow-domain anthropic"


def described(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about the network of a plan."""
    link = plan.link
    by = f", through {link.program}" if link is not None and link.program else ""
    yield f"{plan.network}: {MEANING[plan.network]}{by}"
    proxy = _proxy(plan)
    if proxy is not None:
        names = [row.name for row in proxy.domains]
        if proxy.reach == "listed":
            yield f"domains: {list_some(names, _SHOWN) or 'none'}"
        if proxy.proxy is not None:
            kept = "; its password stays outside" if proxy.proxy.login else ""
            yield f"through the proxy of this machine, {proxy.proxy}, which resolves the names{kept}"
    opened = [place(row) for row in _ranges(plan).opened]
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
    yield from map(place, _ranges(plan).opened)
    if link is not None:
        yield from (f"port {port} of this machine" for port in link.host_ports)
        yield from (f"port {port} of the sandbox from outside" for port in link.published)


def _proxy(plan: Plan) -> ProxyConfig | None:
    return plan.broker.proxy if plan.broker is not None else None


def _ranges(plan: Plan) -> Ranges:
    """Return the ranges that are in force: the proxy's in tier `allow`, else those of the netns holder."""
    proxy = _proxy(plan)
    return proxy.ranges if proxy is not None else plan.link.ranges if plan.link is not None else Ranges()


def place(row: OpenedAddress | AddressRequest) -> str:
    """Return an opened address as a user would write it."""
    prefix = row.prefix.removesuffix("/128" if ":" in row.prefix else "/32")
    if not row.port:
        return prefix
    return f"[{prefix}]:{row.port}" if ":" in prefix else f"{prefix}:{row.port}"


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


def _listed(ports: tuple[int, ...]) -> str:
    return ", ".join(map(str, ports))


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
