"""Tier `allow` for programs that know nothing of a proxy: addresses that stand for names, and what the kernel does.

A route makes the whole range local, and one rule leads every TCP connection there to the gateway's second listener. The
range is that of test laboratories (RFC 2544), which nobody on the internet has. What is not TCP meets a closed port.
"""

from __future__ import annotations

import errno
from sys import byteorder

from claudebox.network import netlink, nftables
from claudebox.syscalls import socket

PREFIX = (b"\xc6\x12\x00\x00", 15)  # 198.18.0.0/15
FIRST = b"\xc6\x12\x00\x02"  # the two in front of it are for our own trial
POOL = (1 << 17) - 4
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
