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

from claudebox import syscalls
from claudebox.launch import process
from claudebox.network import redirect
from claudebox.network.address_watch import AddressWatch, SetupFailed
from claudebox.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.network_model import Link, Served

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
        if not link.program and (problem := redirect.see_isolation()):
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
        redirect.install(listener.getsockname()[1])
        redirect.try_out(listener)
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
