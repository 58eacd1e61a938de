"""Netlink: messages and attributes, and sockets to send them by."""

from __future__ import annotations

import errno
import os
from sys import byteorder

from claudebox.base.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


ROUTE, SOCKETS, NETFILTER = 0, 4, 12  # protocols
REQUEST, ACK, EXCLUSIVE, CREATE, APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
_ERROR, _DONE = 2, 3
_DUMP = 0x300
_INTERRUPTED = 0x10
_NESTED = 0x8000
_BUFFER = 1 << 18
_PATIENCE = 5.0
_ATTEMPTS = 20


def header(kind: int, flags: int, body: bytes) -> bytes:
    """Return a message."""
    length = (16 + len(body)).to_bytes(4, byteorder)
    return length + kind.to_bytes(2, byteorder) + flags.to_bytes(2, byteorder) + bytes(8) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded."""
    head = (4 + len(value)).to_bytes(2, byteorder) + kind.to_bytes(2, byteorder)
    return head + value + bytes(-len(value) % 4)


def nest(kind: int, *parts: bytes) -> bytes:
    """Return an attribute that contains others."""
    return attribute(kind | _NESTED, b"".join(parts))


def attributes(data: bytes) -> Iterator[tuple[int, bool, bytes]]:
    """Yield type, whether it contains others, and value of each attribute."""
    while len(data) >= 4:
        length = int.from_bytes(data[:2], byteorder)
        kind = int.from_bytes(data[2:4], byteorder)
        if length < 4:
            return
        yield kind & 0x3FFF, bool(kind & _NESTED), data[4:length]
        data = data[(length + 3) & ~3 :]


def connect(protocol: int, groups: int = 0) -> socket.socket:
    """Return a netlink socket of the network namespace in which this process is now."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    if groups:
        made.bind((0, groups))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    made.settimeout(_PATIENCE)
    return made


def transact(channel: socket.socket, batch: bytes, expected: int) -> None:
    """Send one transaction and wait for this many acknowledgements; raise OSError if the kernel refuses it."""
    channel.sendto(batch, (0, 0))
    while expected > 0:
        for kind, _, body in _receive(channel):
            if kind == _ERROR:
                _raise(body)
                expected -= 1


def dump(channel: socket.socket, kind: int, body: bytes) -> list[tuple[int, bytes]]:
    """Return every message that answers a request, asking again if the answer changed while it was given."""
    for _ in range(_ATTEMPTS):
        channel.sendto(header(kind, REQUEST | _DUMP, body), (0, 0))
        answer: list[tuple[int, bytes]] = []
        torn = done = False
        while not done:
            for found, flags, part in _receive(channel):
                torn = torn or bool(flags & _INTERRUPTED)
                if found == _ERROR:
                    _raise(part)
                if found in (_ERROR, _DONE):
                    done = True
                else:
                    answer.append((found, part))
        if not torn:
            return answer
    raise OSError("the kernel's tables change faster than they can be read")


def drain(channel: socket.socket) -> None:
    """Discard all notices of changes: after one, everything is read again."""
    channel.setblocking(False)  # noqa: FBT003
    try:
        while channel.recv(1 << 16):
            continue
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno != errno.ENOBUFS:  # more happened than fits
            raise


def _receive(channel: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    data, sender = channel.recvfrom(_BUFFER)
    if sender[0] != 0:  # not from the kernel
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
