"""The netns holder: one process in the sandbox's network, outside of everything else of the sandbox.

It installs the rules and sees that they are there, opens the sockets that must belong to that network, and adds the
host's new addresses for as long as the sandbox runs. Uplink and relays end with it, so that no packet ever leaves
without somebody who watches over the rules. Nothing inside can reach it: it has no address and no number there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from sys import byteorder

from claudebox.base import addresses as base_addresses
from claudebox.base import process, syscalls
from claudebox.base.files import Closing
from claudebox.base.syscalls import socket
from claudebox.network import addresses, netlink, nftables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.addresses import Prefix
    from claudebox.network.records import Link, Served


# The host's addresses and neighbourhood, followed from the host's network and barred in the sandbox's.
#
# What the rules of nf_tables are is said in `nftables`; here they are put in force, read back, and added to for as
# long as the sandbox runs.


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
            new = base_addresses.wanting(found, self._known[chain], self._ranges, own=chain == nftables.MACHINE)
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
        always = [base_addresses.parse_prefix(row.prefix) for row in self._ranges.barred if row.always]
        for packed, port in set(self._kept()) - self._tried:
            whole = packed, len(packed) * 8
            own = any(base_addresses.covers(one, whole) for one in self._own)
            never = any(base_addresses.covers(one, whole) for one in always)
            kind = "never" if never else "machine" if own else "lan"
            yield f"{base_addresses.show(whole).partition('/')[0]} {port} {kind}"


def _set(name: str, value: str) -> None:
    try:
        with Closing(os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, value.encode())
    except OSError:  # comfort, not protection
        return


# Tier `allow` for programs that know nothing of a proxy: addresses that stand for names, and what the kernel does.
#
# A route makes the whole range local, and one rule leads every TCP connection there to the gateway's second listener.
# The range is that of test laboratories (RFC 2544), which nobody on the internet has. What is not TCP meets a closed
# port.


PREFIX = (b"\xc6\x12\x00\x00", 15)  # 198.18.0.0/15
_TRIAL = ("198.18.0.1", 7)
_CHAIN = "names"
_NEW_ROUTE, _GET_LINKS, _NEW_LINK = 24, 18, 16
_DESTINATION, _DEVICE = 1, 4
_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL = 255, 4, 254, 2
_MAKE = 0x1 | 0x4 | 0x200 | 0x400  # a request that is acknowledged and makes something that was not there
_LOOPBACK = 1  # index of `lo` in every network namespace
_NO_WAY = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH)
# Anybody on the internet; whether they exist does not matter.
_ELSEWHERE = ((socket.AF_INET, "192.88.99.1"), (socket.AF_INET6, "2000::1"))


def install(port: int) -> None:
    """Make the route and the rule to a port, in the network where this process is, and read the rule back."""
    chain = nftables.Chain(socket.AF_INET, _CHAIN, leading=True)
    rule = nftables.leading_to_port(PREFIX, port, _CHAIN)
    netfilter = netlink.connect(netlink.NETFILTER)
    netlink.transact(netfilter, *nftables.batch((socket.AF_INET,), (chain,), (rule,)))
    chains, found = netlink.installed(netfilter, socket.AF_INET)
    if len(found) != 1 or not nftables.holds(nftables.expressions(rule), found[0]):
        raise OSError("the kernel does not hold the rule that it was given")
    if not any(nftables.holds(nftables.described(chain), body) for body in chains):
        raise OSError("the kernel does not hold the chain that it was given")
    body = bytes((socket.AF_INET, PREFIX[1], 0, 0, _LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL)) + bytes(4)
    body += nftables.attribute(_DESTINATION, PREFIX[0])
    body += nftables.attribute(_DEVICE, _LOOPBACK.to_bytes(4, byteorder))
    netlink.transact(netlink.connect(netlink.ROUTE), nftables.header(_NEW_ROUTE, _MAKE, body), 1)


def try_out(listener: socket.socket) -> None:
    """Connect to an address of the range, and see that the listener gets it and can tell what was meant."""
    address, port = _TRIAL
    with_us = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with_us.settimeout(1.0)
        with_us.connect((address, port))
        listener.settimeout(1.0)
        descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C module's
        accepted = socket.socket(fileno=descriptor)
        meant = accepted.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
        accepted.close()
    finally:
        listener.setblocking(False)  # noqa: FBT003
        with_us.close()
    if meant[2:8] != port.to_bytes(2, "big") + socket.inet_aton(address):
        raise OSError("the kernel leads connections here, but does not tell where they wanted to go")


def see_isolation() -> str:
    """Return what is wrong if there is any way out of the network where this process is."""
    links = netlink.dump(netlink.connect(netlink.ROUTE), _GET_LINKS, bytes(16))
    devices = [int.from_bytes(body[4:8], byteorder) for kind, body in links if kind == _NEW_LINK]
    up = [body for kind, body in links if kind == _NEW_LINK and int.from_bytes(body[8:12], byteorder) & 1]
    if any(int.from_bytes(body[4:8], byteorder) != _LOOPBACK for body in up) or _LOOPBACK not in devices:
        return "the network of the sandbox has a way out that was not planned"
    for family, address in _ELSEWHERE:
        try:
            probe = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:  # a kernel without this family
            continue
        try:
            probe.connect((address, 9))
        except OSError as error:
            if error.errno not in _NO_WAY:
                return f"the network of the sandbox answers strangely: {error.strerror}"
        else:
            return "the network of the sandbox leads to the internet by itself"
        finally:
            probe.close()
    return ""


READY, ATTACHED, BARRED, FAILED, REFUSED = b"ready", b"attached", b"barred", b"failed", b"refused "
NO_REDIRECT = b" no-redirect"  # after "ready": the kernel does not lead programs to the broker that know no proxy
_NS_GET_USERNS = 0xB701
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_PAUSE = 0.02  # between two looks at tables that keep changing
_BACKLOG = 128
# Nobody lives there, and packets to there must not even leave.
_NOBODY = ((socket.AF_INET, "198.18.0.1"), (socket.AF_INET6, "100::1"))
_REFUSED = (errno.EPERM, errno.EACCES, errno.ECONNREFUSED, errno.EHOSTUNREACH)


def watch_over(link: Link, control: socket.socket, published: list[tuple[int, int]]) -> None:
    """Set the network of the sandbox up, and stay until it ends; `published` are listeners of the host's."""
    parent = os.getppid()
    try:
        watch = AddressWatch(link) if link.program else None  # while bwrap is still at work
        payload = int(control.recv(32))
        target = os.pidfd_open(payload)
        _join(payload, target)
        process.end_with(parent)  # joining a user namespace may have made the kernel forget
        if watch is not None:
            watch.install()
        listeners = [listener for port in link.host_ports for listener in _listen(port)]
        served = {row.name: _serve(row) for row in link.served}
        listeners += served.values()
        if not link.program and (problem := see_isolation()):
            raise SetupFailed(problem)
        no_redirect = bool(link.redirect) and not _redirect_works(served[link.redirect])
    except (OSError, ValueError, SetupFailed) as error:
        control.send(FAILED + f" {error}".encode())
        return
    descriptors = b"".join(listener.fileno().to_bytes(4, "little") for listener in listeners)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if listeners else []
    family = b" 6" if watch is not None and watch.ipv6 else b" 4"
    control.sendmsg([READY + (NO_REDIRECT if no_redirect else family)], ancillary)
    for listener in listeners:
        listener.close()
    if published:
        _publish(published)
    if control.recv(16) != ATTACHED:
        return
    try:
        if link.program:
            _see_refusal()
        if watch is not None:
            watch.begin()
    except (OSError, SetupFailed) as error:
        control.send(FAILED + f" {error}".encode())
        return
    control.send(BARRED)
    _stay(control, target, watch)


def _join(payload: int, target: int) -> None:
    """Enter the network of the sandbox, by the user namespace that owns it; that is not always the payload's (F20)."""
    network = os.open(f"/proc/{payload}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if _ended(target):
        raise SetupFailed("the sandbox ended while its network was being set up")
    if os.fstat(network).st_ino == os.stat("/proc/self/ns/net").st_ino:
        raise SetupFailed("the sandbox has no network of its own")  # rules would bar the host from itself
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    for descriptor, kind in ((owner, _NEW_USER), (network, _NEW_NET)):
        if syscalls.call("setns", descriptor, kind) != 0:
            raise SetupFailed("the network of the sandbox cannot be entered")
        os.close(descriptor)


def _ended(target: int) -> bool:
    return bool(select.select([target], [], [], 0)[0])


def _listen(port: int) -> list[socket.socket]:
    made = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            if family == socket.AF_INET:
                raise SetupFailed(f"port {port} of the sandbox's loopback: {error.strerror}") from None
            continue
        made.append(listener)
    return made


def _serve(served: Served) -> socket.socket:
    """Open a listener for the broker; it belongs to this network, whoever answers it."""
    kind = socket.SOCK_STREAM if served.kind == "stream" else socket.SOCK_DGRAM
    listener = socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind((served.address, served.port))
        if served.kind == "stream":
            listener.listen(_BACKLOG)
    except OSError as error:
        raise SetupFailed(f"port {served.port} of the sandbox's loopback: {error.strerror}") from None
    return listener


def _redirect_works(listener: socket.socket) -> bool:
    """Let the kernel lead programs here that know no proxy; tell whether it does."""
    try:
        install(listener.getsockname()[1])
        try_out(listener)
    except OSError:  # no nft_redir, no connection tracking: the proxy alone has to do
        return False
    return True


def _publish(published: list[tuple[int, int]]) -> None:
    """Start the relay whose connections end inside: it was born in the right network."""

    def body() -> None:
        from claudebox.network import splice

        process.renounce()
        splice.serve(published)

    process.fork(body, [listener for listener, _ in published])
    for listener, _ in published:
        os.close(listener)


def _see_refusal() -> None:
    """Try what must not be possible, now that packets could flow (F09)."""
    refused = False
    for family, address in _NOBODY:
        try:
            probe = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:  # a kernel without this family
            continue
        try:
            probe.sendto(b"", (address, 9))
        except OSError as error:
            refused = refused or error.errno in _REFUSED
        else:
            raise SetupFailed("the rules are in the kernel, but do not hold")
        finally:
            probe.close()
    if not refused:
        raise SetupFailed("the uplink says that it is ready, but there is no way out of the sandbox")


def _stay(control: socket.socket, target: int, watch: AddressWatch | None) -> None:
    watched = [control.fileno(), target] + ([watch.changes.fileno()] if watch is not None else [])
    while True:
        ready = select.select(watched, [], [])[0]
        if control.fileno() in ready or target in ready:  # the launcher or the sandbox has gone
            if watch is not None:
                control.send(REFUSED + "\n".join(watch.refused()).encode())
            return
        if watch is not None:
            watch.follow()
            time.sleep(_PAUSE)
