"""Talking to the kernel over netlink: sending rules, reading them back, asking for the addresses of the host."""

from __future__ import annotations

import errno
import os
from sys import byteorder

from claudebox.base.syscalls import socket
from claudebox.network import nftables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


ROUTE, NETFILTER = 0, 12
# Addresses and routes of both families. What the kernel says about them while we look is not lost: the socket keeps it.
CHANGES = 0x10 | 0x40 | 0x100 | 0x400
_ERROR, _DONE = 2, 3
_DUMP = 0x301
_INTERRUPTED = 0x10
_BUFFER = 1 << 18
_PATIENCE = 5.0
_ATTEMPTS = 20


def connect(protocol: int, groups: int = 0) -> socket.socket:
    """Return a netlink socket of the network namespace in which this process is now."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    made.bind((0, groups))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    made.settimeout(_PATIENCE)
    return made


def transact(channel: socket.socket, batch: bytes, expected: int) -> None:
    """Send one transaction and wait until the kernel has taken all of it."""
    channel.sendto(batch, (0, 0))
    while expected > 0:
        for kind, _, body in _receive(channel):
            if kind == _ERROR:
                _raise(body)
                expected -= 1


def dump(channel: socket.socket, kind: int, body: bytes) -> list[tuple[int, bytes]]:
    """Return every message that answers a request, asking again if the answer changed while it was given."""
    for _ in range(_ATTEMPTS):
        channel.sendto(nftables.header(kind, _DUMP, body), (0, 0))
        answer: list[tuple[int, bytes]] = []
        torn = done = False
        while not done:
            for found, flags, part in _receive(channel):
                torn = torn or bool(flags & _INTERRUPTED)
                if found == _ERROR:
                    _raise(part)
                done = done or found in (_ERROR, _DONE)
                if found not in (_ERROR, _DONE):
                    answer.append((found, part))
        if not torn:
            return answer
    raise OSError("the kernel's tables change faster than they can be read")


def installed(channel: socket.socket, family: int) -> tuple[list[bytes], list[bytes]]:
    """Return the chains and the rules of our table in one family, as attributes."""
    question = bytes([family, 0, 0, 0])
    own = nftables.attribute(1, nftables.TABLE.encode() + b"\0")
    found = []
    for kind in (nftables.GET_CHAIN, nftables.GET_RULE):
        answer = dump(channel, nftables.SUBSYSTEM << 8 | kind, question + (own if kind == nftables.GET_RULE else b""))
        found.append([body[4:] for _, body in answer])
    return found[0], found[1]


def elements(channel: socket.socket, family: int) -> list[bytes]:
    """Return what was refused in one family, as attributes."""
    own = nftables.attribute(1, nftables.TABLE.encode() + b"\0")
    own += nftables.attribute(2, nftables.REFUSED.encode() + b"\0")
    answer = dump(channel, nftables.SUBSYSTEM << 8 | nftables.GET_ELEMENTS, bytes([family, 0, 0, 0]) + own)
    return [body[4:] for _, body in answer]


def _receive(channel: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    data, sender = channel.recvfrom(_BUFFER)
    if sender[0] != 0:  # only the kernel is believed
        return
    while len(data) >= 16:
        length = int.from_bytes(data[:4], byteorder)
        if length < 16:
            return
        yield int.from_bytes(data[4:6], byteorder), int.from_bytes(data[6:8], byteorder), data[16:length]
        data = data[(length + 3) & ~3 :]


def _raise(body: bytes) -> None:
    number = -int.from_bytes(body[:4], byteorder, signed=True)
    if number:
        raise OSError(number, os.strerror(number))


def drain(channel: socket.socket) -> None:
    """Take all notices of changes up; whoever hears of one reads everything again, so what they say does not matter."""
    channel.setblocking(False)  # noqa: FBT003
    try:
        while channel.recv(1 << 16):
            continue
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno != errno.ENOBUFS:  # more happened than fits
            raise
