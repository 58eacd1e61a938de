"""Policy + Host → what connects a sandbox whose network is its own, or whose proxy is ours: `Link`, `ProxyConfig`."""

from __future__ import annotations

from claudebox.console import clean
from claudebox.errors import ClaudeboxError
from claudebox.plan import network
from claudebox.plan.network_model import AllowedDomain, Barred, Link, OpenedAddress, ProxyConfig, Ranges, Served
from claudebox.tables import inside
from claudebox.tables.barred_ranges import ALWAYS_BARRED, BARRED, OPEN6

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import AddressRequest, Policy
    from claudebox.facts.host import Host
    from claudebox.host_proxy import HostProxy
    from claudebox.plan.model import Plan

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
    usable = [candidate for candidate in host.uplinks if not candidate.problem]
    if not usable:
        problems = "; ".join(dict.fromkeys(candidate.problem for candidate in host.uplinks)) or "none was looked for"
        remedies = dict.fromkeys(candidate.remedy for candidate in host.uplinks if candidate.remedy)
        raise ClaudeboxError(
            f"there is no usable uplink for `--network {policy.network}`: {problems}", hint="; ".join(remedies)
        )
    return link.replace(
        program=usable[0].name,
        path=usable[0].path,
        forwarder=network.forwarder(host),
        ranges=closed_ranges(policy.addresses),
        served=_entrance(policy, host),
    )


def _entrance(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listener inside that leads to the proxy of this machine, where it has one."""
    if not network.has_proxy(host.environ):
        return ()
    from claudebox.plan import host_proxies

    return (host_proxies.served(policy),) if host_proxies.usable_proxy(host.environ)[0] is not None else ()


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
        if not network.has_proxy(host.environ):
            return None
        from claudebox.plan import host_proxies

        return host_proxies.plan_entrance(policy, host, closed_ranges(policy.addresses))
    domains = tuple(AllowedDomain(row.name, row.origin) for row in policy.domains)
    return ProxyConfig(domains, closed_ranges(policy.addresses), tunnel_proxy(host.environ))


def tunnel_proxy(environ: dict[str, str]) -> HostProxy | None:
    """Return the proxy of this machine that connections of programs go through."""
    if not network.has_proxy(environ):
        return None
    from claudebox.plan import host_proxies

    return host_proxies.usable_proxy(environ)[0]


def _proxy(plan: Plan) -> ProxyConfig | None:
    return plan.broker.proxy if plan.broker is not None else None


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
        yield f"reachable: {network.place(opened)}, because of {clean(opened.origin)}"
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
