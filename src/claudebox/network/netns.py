"""The netns holder: a process in the sandbox's network, and outside of everything else of the sandbox.

It puts the packet filter in force, opens the sockets that must belong to that network, and bars the host's new
addresses for as long as the sandbox runs. Uplink and relays end with it, so that no packet leaves without the filter.
Nothing inside can reach it: it has no address and no pid there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from sys import byteorder

from claudebox.base import addresses, netlink, process, syscalls
from claudebox.base.files import Closing
from claudebox.base.syscalls import socket
from claudebox.network import nftables, routes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.addresses import Prefix
    from claudebox.network.records import Link, Served


# The words between launcher and holder, in this order; the holder may answer each with "failed" and the reason.
READY, ATTACHED, BARRED, END, FAILED = b"ready", b"attached", b"barred", b"end", b"failed"
NO_REDIRECT = b" no-redirect"  # after "ready": the kernel cannot redirect programs that know no proxy
_NS_GET_USERNS = 0xB701
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_PAUSE = 0.02  # seconds between two readings of tables that keep changing
_BACKLOG = 128
# Addresses that no packet may reach: benchmark and discard prefixes.
_UNREACHABLE = ((socket.AF_INET, "198.18.0.1"), (socket.AF_INET6, "100::1"))
_REFUSED = (errno.EPERM, errno.EACCES, errno.ECONNREFUSED, errno.EHOSTUNREACH)


_NOISE = ("224.", "239.", "255.", "ff0")  # multicast and broadcast: discovery of printers and the like


class SetupFailed(Exception):  # noqa: N818 - it is reported as a word of the protocol
    """The network cannot be set up; the message is for the user."""


def run_holder(link: Link, control: socket.socket, published: list[tuple[int, int]], log: int) -> None:
    """Set the network of the sandbox up, and stay until it ends; `published` are listeners of the host's."""
    parent = os.getppid()
    try:
        watch = AddressWatch(link) if link.program else None  # while bwrap is still at work
        payload = int(control.recv(32))
        target = os.pidfd_open(payload)
        join(payload, target)
        process.end_with(parent)  # joining a user namespace may have made the kernel forget
        if watch is not None:
            watch.install()
        relayed, served = _listen(link)
        listeners = [*relayed, *served.values()]
        if not link.program and (problem := find_way_out()):
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
            _check_filter()
        if watch is not None:
            watch.ignore_refused()
    except (OSError, SetupFailed) as error:
        control.send(FAILED + f" {error}".encode())
        return
    control.send(BARRED)
    watched = [control.fileno(), target] + ([watch.changes.fileno()] if watch is not None else [])
    while not {control.fileno(), target} & {*select.select(watched, [], [])[0]}:
        assert watch is not None  # noqa: S101 - only its socket is left
        watch.follow()
        time.sleep(_PAUSE)
    if watch is not None and log >= 0:  # a rehearsal has none
        watch.log_refused(log)


def join(payload: int, target: int) -> None:
    """Enter the network of the sandbox, by the user namespace that owns it; that is not always the payload's (F20)."""
    network = os.open(f"/proc/{payload}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if select.select([target], [], [], 0)[0]:
        raise SetupFailed("the sandbox ended while its network was being set up")
    if os.fstat(network).st_ino == os.stat("/proc/self/ns/net").st_ino:
        raise SetupFailed("the sandbox has no network of its own")  # the filter would bar the host from itself
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    for descriptor, kind in ((owner, _NEW_USER), (network, _NEW_NET)):
        if syscalls.call("setns", descriptor, kind) != 0:
            raise SetupFailed("the network of the sandbox cannot be entered")
        os.close(descriptor)


def listen_on_loopback(port: int) -> list[socket.socket]:
    """Return listeners on a port of the loopback, in both families where there are both."""
    made: list[socket.socket] = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        except OSError:  # a kernel without this family
            continue
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            if made and error.errno == errno.EADDRNOTAVAIL:  # a loopback without IPv6
                continue
            raise
        made.append(listener)
    return made


def _listen(link: Link) -> tuple[list[socket.socket], dict[str, socket.socket]]:
    """Open the listeners in this network: those of the relay to the host, and by name those of the broker."""
    relayed: list[socket.socket] = []
    served: dict[str, socket.socket] = {}
    port = 0
    try:
        for port in link.host_ports:
            relayed += listen_on_loopback(port)
        for row in link.served:
            port = row.port
            served[row.name] = _serve(row)
    except OSError as error:
        raise SetupFailed(f"port {port} of the sandbox's loopback: {error.strerror}") from None
    return relayed, served


def _serve(served: Served) -> socket.socket:
    kind = socket.SOCK_STREAM if served.kind == "stream" else socket.SOCK_DGRAM
    listener = socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    listener.bind((served.address, served.port))
    if served.kind == "stream":
        listener.listen(_BACKLOG)
    return listener


def _publish(published: list[tuple[int, int]]) -> None:
    """Start the relay from the host's loopback to that of the sandbox, which is ours."""

    def body() -> None:
        from claudebox.network import relay

        process.drop_capabilities()
        relay.serve(published)

    process.fork(body, [listener for listener, _ in published])
    for listener, _ in published:
        os.close(listener)


def _check_filter() -> None:
    """Try to send where the filter must refuse it, now that packets could flow (F09)."""
    errors = set(_try_to_send(_UNREACHABLE))
    if 0 in errors:
        raise SetupFailed("the rules are in the kernel, but do not hold")
    if errors.isdisjoint(_REFUSED):
        raise SetupFailed("the uplink says that it is ready, but there is no way out of the sandbox")


def _try_to_send(targets: Iterable[tuple[int, str]]) -> Iterator[int]:
    """Send an empty packet to each address, and yield the error; 0 if it was sent."""
    for family, address in targets:
        try:
            probe = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:  # a kernel without this family
            continue
        try:
            probe.sendto(b"", (address, 9))
        except OSError as error:
            yield error.errno or -1
        else:
            yield 0
        finally:
            probe.close()


# The packet filter of tier `inet`, and the host's addresses in it.


SETTINGS = (
    # The uplink is reached through memory; the host's own sockets deal with the real path. pasta drops what its socket
    # does not take at once, and a sender that probes for bandwidth (bbr) or has too much in flight then waits for
    # seconds. What is lost is sent again after 10 ms instead of 200 (Linux 6.11).
    ("ipv4/tcp_congestion_control", "reno"),
    ("ipv4/tcp_rto_min_us", "10000"),
    # Nobody else is on this link: skip duplicate address detection and the delay before router solicitations.
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitation_delay", "0"),
)
# Bytes in flight: what pasta takes without loss; slirp4netns loses nothing, and long distances need more.
IN_FLIGHT = {"pasta": 524288, "slirp4netns": 1048576}


class AddressWatch:
    """The filter, with the host's addresses, followed from the host's network and barred in the sandbox's."""

    def __init__(self, link: Link) -> None:
        self._ranges = link.ranges
        self._in_flight = IN_FLIGHT[link.program]
        # A socket stays in the network where it was made, wherever its process goes.
        self.changes = netlink.connect(netlink.ROUTE, routes.CHANGES)
        self._tables = netlink.connect(netlink.ROUTE)
        self._known: dict[str, set[Prefix]] = {nftables.MACHINE: set(), nftables.NEAR: set()}
        self._own: set[Prefix] = set()  # every address of the host, also those that a range bars anyway
        messages = routes.read_tables(self._tables)
        self.ipv6 = routes.has_default_route(messages, socket.AF_INET6)
        # A kernel without IPv6 has no rules for it, and needs none.
        self._families = nftables.FAMILIES if os.path.exists("/proc/self/net/if_inet6") else (socket.AF_INET,)
        self._rules = [*nftables.fixed(link.ranges, link.forwarder, self._families), *self._new_rules(messages)]
        self._filter: socket.socket | None = None
        self._recorded: tuple[int, ...] = ()  # families whose refused addresses are kept
        self._ignored: set[tuple[bytes, int]] = set()

    def _new_rules(self, messages: list[tuple[int, bytes]]) -> list[nftables.Rule]:
        """Return the rules against what is new of the host's addresses and its neighbourhood."""
        rules: list[nftables.Rule] = []
        surroundings = routes.surroundings(messages)
        self._own |= surroundings[0]
        for chain, found in zip(self._known, surroundings, strict=True):
            new = nftables.find_unbarred(found, self._known[chain], self._ranges, own=chain == nftables.MACHINE)
            self._known[chain].update(new)
            rules += nftables.machine(new, self._families, chain)
        return rules

    def install(self) -> None:
        """Put the filter in force in this network."""
        for name, value in SETTINGS:
            _set(name, value)
        _set("ipv4/tcp_wmem", f"4096 16384 {self._in_flight}")
        _set("ipv4/ping_group_range", f"{os.getgid()} {os.getgid()}")  # the rules hold for ping too
        try:
            self._filter = netlink.connect(netlink.NETFILTER)
            nftables.install(self._filter, nftables.chains(self._families), self._rules)
        except OSError as error:
            raise SetupFailed(f"the rules of nf_tables are not in force: {error.strerror or error}") from None
        try:
            nftables.record(self._filter, self._families)
            self._recorded = self._families
        except OSError:  # a kernel without dynamic sets
            self._filter = netlink.connect(netlink.NETFILTER)

    def follow(self) -> None:
        """Bar the host's new addresses."""
        netlink.drain(self.changes)
        new = self._new_rules(routes.read_tables(self._tables))
        if new:
            assert self._filter is not None  # noqa: S101
            nftables.add(self._filter, new)

    def _kept(self) -> set[tuple[bytes, int]]:
        return set(nftables.refused(self._filter, self._recorded)) if self._filter is not None else set()

    def ignore_refused(self) -> None:
        """Ignore the refusals so far, which are our own trials."""
        self._ignored = self._kept()

    def log_refused(self, log: int) -> None:
        """Write what the sandbox was refused, as the broker writes its decisions, and whether a user can open it."""
        always = [addresses.parse_prefix(row.prefix) for row in self._ranges.barred if row.always]
        for packed, port in sorted(self._kept() - self._ignored):
            whole = packed, len(packed) * 8
            own = any(addresses.covers(one, whole) for one in self._own)
            never = any(addresses.covers(one, whole) for one in always)
            host = addresses.show(whole).partition("/")[0]
            if not host.startswith(_NOISE):
                line = (
                    f'{{"time": {time.time():.3f}, "kind": "decision", "service": "filter", "host": "{host}", "port": '
                    f'{port}, "verdict": "denied", "rule": "{"never" if never else "machine" if own else "lan"}"}}\n'
                )
                os.write(log, line.encode("ascii"))


def _set(name: str, value: str) -> None:
    try:
        with Closing(os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, value.encode())
    except OSError:  # comfort, not protection
        return


# Tier `allow`, for programs without proxy support.
#
# The broker answers every permitted name with an address of a range that the internet does not use (RFC 2544).
# A route makes that range local, and one rule redirects every TCP connection there to the broker's second listener.
# What is not TCP meets a closed port.


_PREFIX = (b"\xc6\x12\x00\x00", 15)  # 198.18.0.0/15
_TRIAL = ("198.18.0.1", 7)
_CHAIN = "names"
_DESTINATION, _DEVICE = 1, 4
_NEW_LINK, _GET_LINKS = 16, 18
_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL = 255, 4, 254, 2
_LOOPBACK = 1  # index of `lo` in every network namespace
_NO_WAY = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH)
# Addresses on the internet; whether they exist does not matter.
_ELSEWHERE = ((socket.AF_INET, "192.88.99.1"), (socket.AF_INET6, "2000::1"))


def _redirect_works(listener: socket.socket) -> bool:
    """Redirect connections to the range to this listener, and return whether the kernel does so."""
    try:
        _install_redirect(listener.getsockname()[1])
        _try_redirect(listener)
    except OSError:  # no nft_redir, or no connection tracking
        return False
    return True


def _install_redirect(port: int) -> None:
    chain = nftables.Chain(socket.AF_INET, _CHAIN, redirecting=True)
    rule = nftables.redirect(_PREFIX, port, _CHAIN)
    nftables.install(netlink.connect(netlink.NETFILTER), (chain,), (rule,))
    body = bytes((socket.AF_INET, _PREFIX[1], 0, 0, _LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL)) + bytes(4)
    body += netlink.attribute(_DESTINATION, _PREFIX[0])
    body += netlink.attribute(_DEVICE, _LOOPBACK.to_bytes(4, byteorder))
    flags = netlink.REQUEST | netlink.ACK | netlink.CREATE | netlink.EXCLUSIVE
    netlink.transact(netlink.connect(netlink.ROUTE), netlink.header(routes.NEW_ROUTE, flags, body), 1)


def _try_redirect(listener: socket.socket) -> None:
    """Connect to an address of the range, and check that the listener gets it and sees the original destination."""
    address, port = _TRIAL
    caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        caller.settimeout(1.0)
        caller.connect((address, port))
        listener.settimeout(1.0)
        descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C module's
        accepted = socket.socket(fileno=descriptor)
        original = accepted.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
        accepted.close()
    finally:
        listener.setblocking(False)  # noqa: FBT003
        caller.close()
    if original[2:8] != port.to_bytes(2, "big") + socket.inet_aton(address):
        raise OSError("the kernel redirects connections, but does not tell where they were going")


def find_way_out() -> str:
    """Return what is wrong if there is any way out of this network, which is to have none."""
    links = netlink.dump(netlink.connect(netlink.ROUTE), _GET_LINKS, bytes(16))
    devices = [int.from_bytes(body[4:8], byteorder) for kind, body in links if kind == _NEW_LINK]
    up = [body for kind, body in links if kind == _NEW_LINK and int.from_bytes(body[8:12], byteorder) & 1]
    if any(int.from_bytes(body[4:8], byteorder) != _LOOPBACK for body in up) or _LOOPBACK not in devices:
        return "the network of the sandbox has a way out that was not planned"
    for error in _try_to_send(_ELSEWHERE):
        if not error:
            return "the network of the sandbox has a way of its own to the internet"
        if error not in _NO_WAY:
            return f"the network of the sandbox answers strangely: {os.strerror(error)}"
    return ""
