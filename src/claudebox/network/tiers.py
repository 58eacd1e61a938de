"""The network tiers: what differs between them is a field here, and what a row does not grant is refused."""

from __future__ import annotations

from claudebox.base.records import Value


class Tier(Value):
    """What programs inside may reach. At most one of three grants is set; without any there is only loopback."""

    name: str
    meaning: str  # in the audit
    for_agent: str  # in SANDBOX.md, a point per line; `{domains}` are the listed ones
    shared: bool = False  # the host's network namespace
    uplink: bool = False  # a namespace of its own; a program carries packets to the internet
    listed: bool = False  # a namespace of its own; the broker's proxy reaches the listed domains
    unrecorded: str = ""  # what the receipt cannot show
    question: str = ""  # how the first launch offers it
    closed: str = "nothing is reachable there"  # why `allow_addresses` has no effect

    @property
    def routed(self) -> bool:
        return self.shared or self.uplink

    @property
    def isolated(self) -> bool:
        return not (self.shared or self.uplink or self.listed)


_TIERS = (  # the widest first: a project file may move down, and asks before it moves up
    Tier(
        "full",
        "the host's network: its loopback services, the LAN and the internet are reachable",
        "You have the network of the host: internet, LAN and the host's loopback services.",
        shared=True,
        unrecorded="connections are not logged in tier full",
        question="everything that this machine reaches, as without a sandbox",
        closed="everything is reachable there",
    ),
    Tier(
        "inet",
        "the internet; not the LAN, VPNs, cloud metadata or this machine",
        "You have the internet and names. Private networks (the LAN, VPNs), metadata services of clouds and the host "
        "itself are out of reach, under every address and name: connections there are refused at once. That is "
        "intended and cannot be changed from inside; say what you would need instead of trying other ways.",
        uplink=True,
        unrecorded="internet connections are not logged in tier inet",
        question="the internet, but neither your LAN nor this machine",
    ),
    Tier(
        "allow",
        "only the domains that are listed; no addresses, not the LAN, not this machine",
        "You reach these domains and nothing else: {domains} (without a port: 443 and 80). HTTP_PROXY and HTTPS_PROXY "
        "are set; where the kernel allows it, programs that ignore them reach the same names. Everything else is "
        "refused at once, with the reason. That is intended and cannot be changed from inside; if you need another "
        "domain, say which: the user can permit it at once with `claudebox allow NAME`.\n"
        "Inside, names resolve to addresses in 198.18.0.0/15. Do not write such addresses into files.",
        listed=True,
        question="only domains that you name in the file, besides the model",
    ),
    Tier(
        "none",
        "loopback of the sandbox only",
        "There is no network, only loopback inside the sandbox. Do not retry downloads; say what you would need.",
    ),
)
TIERS = {tier.name: tier for tier in _TIERS}
