"""Policy + Host → the network part of the plan: namespaces, names, the link to elsewhere, and what to say about it."""

from __future__ import annotations

from claudebox.console import clean
from claudebox.environment import named
from claudebox.errors import ClaudeboxError
from claudebox.model import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host import Host
    from claudebox.model import Plan, Policy, Tier

MEANING: dict[Tier, str] = {
    "full": "the host's network: its loopback services, the LAN and the internet are reachable",
    "inet": "the internet and names; not the LAN, not VPNs, not metadata services, not this machine",
    "none": "loopback of the sandbox only",
}
# Where both uplinks forward questions for names. Inside nothing else is at these addresses.
_FORWARDER4, _FORWARDER6 = "10.0.2.3", "fd00::3"


def own_namespace(policy: Policy) -> bool:
    """Tell whether the sandbox gets a network of its own."""
    return policy.network != "full"


def resolv_conf(policy: Policy, host: Host) -> bytes:
    """Return resolv.conf of the sandbox: the servers and search rules of the host, and nothing else of the file.

    In tier `inet` it is the forwarder alone: the host's server is in the LAN, and its search list tells where we are.
    """
    if policy.network == "none":
        return b""
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
    usable = [candidate for candidate in host.uplinks if not candidate.problem]
    if not usable:
        problems = "; ".join(dict.fromkeys(candidate.problem for candidate in host.uplinks)) or "none was looked for"
        remedies = dict.fromkeys(candidate.remedy for candidate in host.uplinks if candidate.remedy)
        raise ClaudeboxError(f"there is no usable uplink for `--network inet`: {problems}", hint="; ".join(remedies))
    from claudebox.destinations import TABLE  # noqa: PLC0415 - other tiers need nothing of it

    return Link(
        program=usable[0].name,  # type: ignore[arg-type]  # candidates knows only these
        path=usable[0].path,
        forwarder=_forwarder(host),
        barred=TABLE,
        host_ports=policy.host_ports,
        published=policy.published,
    )


def described(plan: Plan) -> Iterator[str]:
    """Yield what a person should know about the network of a plan."""
    link = plan.link
    by = f", through {link.program}" if link is not None and link.program else ""
    yield f"{plan.network}: {MEANING[plan.network]}{by}"
    if link is not None and link.host_ports:
        yield f"reachable inside: localhost of this machine, port {_listed(link.host_ports)}"
    if link is not None and link.published:
        yield f"reachable from this machine: port {_listed(link.published)} of the sandbox, at localhost"


def _listed(ports: tuple[int, ...]) -> str:
    return ", ".join(map(str, ports))


def as_document(link: Link) -> dict[str, object]:
    """Return the link for machines."""
    return {
        "program": link.program,
        "path": link.path,
        "forwarder": link.forwarder,
        "barred": [{"prefix": row.prefix, "reason": row.reason} for row in link.barred],
        "host_ports": link.host_ports,
        "published": link.published,
    }


def advice(policy: Policy) -> Iterator[str]:
    """Yield what the agent should know, in sentences for SANDBOX.md."""
    if policy.network == "full":
        yield "You have the network of the host: internet, LAN and the host's loopback services."
    elif policy.network == "none":
        yield (
            "There is no network, only loopback inside the sandbox. Do not retry downloads; say what you would need."
        )
    else:
        yield (
            "You have the internet and names. Private networks (the LAN, VPNs), metadata services of clouds and the "
            "host itself are out of reach, under every address and name: connections there are refused at once. That "
            "is intended and cannot be changed from inside; say what you would need instead of trying other ways."
        )
    if policy.network != "none":
        for secret in policy.secrets:
            hosts = ", ".join(clean(named(place)) for place in secret.hosts)
            yield (
                f"{secret.env} is a placeholder. Use it as you would use the value: in a header or as a password of a "
                f"request to {hosts} over HTTPS, it is replaced by the value on the way. Anywhere else, in an address "
                "or a body, for another host, it stays what it is; the value itself is not in the sandbox."
            )
    for port in policy.host_ports:
        yield f"Port {port} at 127.0.0.1 and ::1 is the host's: a service that the person opened for you."
    for port in policy.published:
        yield f"A server that you start on port {port} of 127.0.0.1 can be seen by the person at localhost:{port}."
