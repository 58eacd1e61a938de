"""Policy + Host → the network part of the plan: namespaces, names, variables, and what to say about it."""

from __future__ import annotations

from claudebox.console import list_some
from claudebox.plan.model import Variable
from claudebox.tables import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import AddressRequest, Policy
    from claudebox.facts.host import Host
    from claudebox.plan.model import Plan
    from claudebox.plan.network_model import OpenedAddress, ProxyConfig

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
        for line in host.resolv_conf.split(b"\n")
        if line.split()[:1] in ([b"nameserver"], [b"search"], [b"domain"], [b"options"])
    ]
    return b"".join(line + b"\n" for line in kept)


def forwarder(host: Host) -> str:
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


def has_proxy(environ: dict[str, str]) -> bool:
    """Return whether the variables of the host name a proxy."""
    return any(environ.get(name, "").strip() for name in PROXY_VARIABLES if name.upper() != "NO_PROXY")


def _speaks_of_proxies(host: Host) -> bool:
    return has_proxy(host.environ) or (host.company is not None and not host.company.is_silent)


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to the proxy."""
    if policy.tier.listed:
        for name, value in PROXY_VARIABLES.items():
            yield Variable(name, value, "claudebox", "the way out, to the domains that are listed")
    elif policy.tier.routed and _speaks_of_proxies(host):
        from claudebox.plan import host_proxies

        yield from host_proxies.plan_variables(policy, host)


def warnings(policy: Policy, host: Host, *, needed: str = "") -> Iterator[str]:
    """Yield what is unusual about the network; `needed` is the host without which the client is lost."""
    if _speaks_of_proxies(host):
        from claudebox.plan import host_proxies

        yield from host_proxies.warnings(policy, host)
    if not policy.tier.listed:
        return
    from claudebox.config import domains

    listed = domains.Permission([domains.parse_domain(row.name, row.origin) for row in policy.domains])
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
