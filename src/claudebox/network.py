"""Policy + Host → the network part of the plan: namespaces, names, and what to say about it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.host import Host
    from claudebox.model import Policy, Tier

MEANING: dict[Tier, str] = {
    "full": "the host's network: its loopback services, the LAN and the internet are reachable",
    "none": "loopback of the sandbox only",
}


def own_namespace(policy: Policy) -> bool:
    """Tell whether the sandbox gets a network of its own."""
    return policy.network != "full"


def resolv_conf(policy: Policy, host: Host) -> bytes:
    """Return resolv.conf of the sandbox: the servers and search rules of the host, and nothing else of the file."""
    if policy.network == "none":
        return b""
    kept = [
        line.strip()
        for line in host.resolv_conf.split(b"\n")
        if line.split()[:1] in ([b"nameserver"], [b"search"], [b"domain"], [b"options"])
    ]
    return b"".join(line + b"\n" for line in kept)
