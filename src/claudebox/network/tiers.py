"""The network tiers. All that is decided by tier is a field here; what a row does not grant is refused."""

from __future__ import annotations

from claudebox.base.records import Value


class Tier(Value):
    """What programs inside may reach. The three grants exclude one another; without any there is only loopback."""

    name: str
    meaning: str  # in the audit
    for_agent: str  # in SANDBOX.md, a point per line; `{domains}` are those that the user listed
    shared: bool = False  # the host's network namespace
    uplink: bool = False  # a namespace of its own; a program carries packets to the internet
    listed: bool = False  # a namespace of its own; the broker's proxy leads to the domains that the user listed
    unrecorded: str = ""  # what the receipt cannot tell
    question: str = ""  # how the first launch offers it
    closed: str = "nothing is reachable there"  # why `--allow-address` means nothing

    @property
    def routed(self) -> bool:
        """Return whether packets reach the internet."""
        return self.shared or self.uplink

    @property
    def isolated(self) -> bool:
        """Return whether nothing outside is reached."""
        return not (self.shared or self.uplink or self.listed)


_TIERS = (  # the widest first: a project file may move down, and asks before it moves up
    Tier(
        "full",
        "the host's network: its loopback services, the LAN and the internet are reachable",
        "You have the network of the host: internet, LAN and the host's loopback services.",
        shared=True,
        unrecorded="whom programs reached by the host's network is not recorded",
        question="everything that this machine reaches, as without a sandbox",
        closed="everything is reachable there",
    ),
    Tier(
        "inet",
        "the internet and names; not the LAN, not VPNs, not metadata services, not this machine",
        "You have the internet and names. Private networks (the LAN, VPNs), metadata services of clouds and the host "
        "itself are out of reach, under every address and name: connections there are refused at once. That is "
        "intended and cannot be changed from inside; say what you would need instead of trying other ways.",
        uplink=True,
        unrecorded="whom programs reached in the internet is not recorded",
        question="the internet, but neither your LAN nor this machine",
    ),
    Tier(
        "allow",
        "only the domains that are listed; no addresses, not the LAN, not this machine",
        "You reach these domains and nothing else: {domains} (without a port: 443 and 80). Programs go there by "
        "HTTP_PROXY and HTTPS_PROXY, which are set; where the kernel allows it, programs that know no proxy reach the "
        "same names by themselves. Everything else is refused at once, with the reason. That is intended and cannot be "
        "changed from inside; if you need another domain, say which: the user can permit it with "
        "`claudebox --allow-domain NAME`.\n"
        "Names stand for addresses of 198.18.0.0/15 inside. Do not write such addresses into files.",
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
