"""The host's addresses and neighbourhood, followed from the host's network and barred in the sandbox's.

What the rules of nf_tables are is said in `nftables`; here they are put in force, read back, and added to for as long
as the sandbox runs.
"""

from __future__ import annotations

import os

from claudebox.files import Closing
from claudebox.network import addresses, netlink, nftables, prefixes
from claudebox.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.network.prefixes import Prefix
    from claudebox.plan.network_model import Link

SETTINGS = (
    # From here to the uplink is a way through memory; the real path is the business of the host's own sockets. pasta
    # loses what its socket does not take at once, and a sender that probes for bandwidth (bbr) or has too much in
    # flight then waits for seconds. What is lost is sent again after 10 ms instead of 200 (Linux 6.11).
    ("ipv4/tcp_congestion_control", "reno"),
    ("ipv4/tcp_rto_min_us", "10000"),
    # Nobody else is on this link: an address needs no second of doubt, a router no second of patience.
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitation_delay", "0"),
)
# Bytes in flight: what pasta takes without loss; slirp4netns loses nothing, and a long way wants more.
IN_FLIGHT = {"pasta": 524288, "slirp4netns": 1048576}


class SetupFailed(Exception):  # noqa: N818 - it is reported as a word of the protocol
    """Something that a user has to put right."""


class AddressWatch:
    """The host's addresses, followed from the host's network, barred in the sandbox's."""

    def __init__(self, link: Link) -> None:
        self._ranges = link.ranges
        self._in_flight = IN_FLIGHT[link.program]
        # A socket stays in the network where it was made, wherever its process goes.
        self.changes = netlink.connect(netlink.ROUTE, netlink.CHANGES)
        self._tables = netlink.connect(netlink.ROUTE)
        self._known: dict[str, set[Prefix]] = {nftables.MACHINE: set(), nftables.NEAR: set()}
        self._own: set[Prefix] = set()  # every address of the host, also where a range bars it anyway
        messages = self._read()
        self.ipv6 = addresses.leads_out(messages, socket.AF_INET6)
        # A kernel without IPv6 has no rules for it, nor needs them.
        self._families = nftables.FAMILIES if os.path.exists("/proc/self/net/if_inet6") else (socket.AF_INET,)
        self._rules = [*nftables.fixed(link.ranges, link.forwarder, self._families), *self._appeared(messages)]
        self._chains = nftables.chains(self._families)
        self._recording = True
        self._tried: set[tuple[bytes, int]] = set()
        self._filter: socket.socket | None = None

    def _appeared(self, messages: list[tuple[int, bytes]]) -> list[nftables.Rule]:
        """Return the rules against what is new of the host's addresses and its neighbourhood."""
        rules: list[nftables.Rule] = []
        surroundings = addresses.surroundings(messages)
        self._own |= surroundings[0]
        for chain, found in zip(self._known, surroundings, strict=True):
            new = prefixes.wanting(found, self._known[chain], self._ranges, own=chain == nftables.MACHINE)
            self._known[chain].update(new)
            rules += nftables.machine(new, self._families, chain)
        return rules

    def _read(self) -> list[tuple[int, bytes]]:
        return [
            *netlink.dump(self._tables, addresses.GET_ADDRESSES, addresses.ADDRESS_QUESTION),
            *netlink.dump(self._tables, addresses.GET_ROUTES, addresses.ROUTE_QUESTION),
        ]

    def install(self) -> None:
        """Put every rule in force and read it back; from here on we are in the sandbox's network."""
        for name, value in SETTINGS:
            _set(name, value)
        _set("ipv4/tcp_wmem", f"4096 16384 {self._in_flight}")
        _set("ipv4/ping_group_range", f"{os.getgid()} {os.getgid()}")  # the rules hold for ping too
        try:
            self._filter = netlink.connect(netlink.NETFILTER)
            try:
                recording = [*nftables.recording(self._families), *self._rules]
                batch = nftables.batch(self._families, self._chains, recording, self._families)
                netlink.transact(self._filter, *batch)
                self._rules = recording
            except OSError:  # a kernel without dynamic sets refuses as well, and keeps nothing
                self._recording = False
                self._filter = netlink.connect(netlink.NETFILTER)
                netlink.transact(self._filter, *nftables.batch(self._families, self._chains, self._rules))
        except OSError as error:
            raise SetupFailed(f"the kernel did not take the rules of nf_tables: {error.strerror or error}") from None
        self._verify(self._filter)

    def _verify(self, channel: socket.socket) -> None:
        for family in self._families:
            found_chains, found_rules = netlink.installed(channel, family)
            hooked = [chain for chain in self._chains if chain.family == family]
            sent = [rule for rule in self._rules if rule.family == family]
            for name in (nftables.REFUSE, nftables.MACHINE, nftables.NEAR, nftables.OUT):
                ours = [nftables.expressions(rule) for rule in sent if rule.chain == name]
                theirs = [body for body in found_rules if nftables.chain_of(body) == name]
                if len(ours) != len(theirs) or not all(map(nftables.holds, ours, theirs)):
                    raise SetupFailed(f"the kernel does not hold the rules that it was given (chain `{name}`)")
            if not all(
                any(nftables.holds(nftables.described(chain), body) for body in found_chains) for chain in hooked
            ):
                raise SetupFailed("the kernel does not hold the chains that it was given")

    def follow(self) -> None:
        """Bar what has appeared since the last look."""
        netlink.drain(self.changes)
        new = self._appeared(self._read())
        if new:
            assert self._filter is not None  # noqa: S101
            netlink.transact(self._filter, *nftables.batch((), (), new))

    def begin(self) -> None:
        """Leave out what was refused until now: nothing inside has run yet, those were our own trials."""
        self._tried = set(self._kept())

    def _kept(self) -> Iterator[tuple[bytes, int]]:
        if self._filter is not None and self._recording:
            for family in self._families:
                yield from nftables.refused(netlink.elements(self._filter, family))

    def refused(self) -> Iterator[str]:
        """Yield what the sandbox was refused: address, port, and whether a user could open it."""
        always = [prefixes.parse_prefix(row.prefix) for row in self._ranges.barred if row.always]
        for packed, port in set(self._kept()) - self._tried:
            whole = packed, len(packed) * 8
            own = any(prefixes.covers(one, whole) for one in self._own)
            never = any(prefixes.covers(one, whole) for one in always)
            kind = "never" if never else "machine" if own else "lan"
            yield f"{prefixes.show(whole).partition('/')[0]} {port} {kind}"


def _set(name: str, value: str) -> None:
    try:
        with Closing(os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, value.encode())
    except OSError:  # comfort, not protection
        return
