"""Netlink: messages and attributes, sockets to send them by, and the addresses and routes of the host."""

from __future__ import annotations

import errno
import os
from sys import byteorder

from claudebox.base import addresses
from claudebox.base.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.addresses import Prefix


ROUTE, NETFILTER = 0, 12
# Multicast groups: addresses and routes of both families.
CHANGES = 0x10 | 0x40 | 0x100 | 0x400
NEW_LINK, GET_LINKS, NEW_ADDRESS, GET_ADDRESSES, NEW_ROUTE, GET_ROUTES = 16, 18, 20, 22, 24, 26
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


# The host's addresses and routes: what is the host itself, and what is its neighbourhood.


_PEER, _LOCAL = 1, 2
_DESTINATION, _GATEWAY, _MULTIPATH, _VIA = 1, 5, 9, 18
_HOP_HEAD = 8
_UNICAST, _LOCAL_ROUTE = 1, 2
_CLONED = 0x200
_SIZES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}


def read_tables(channel: socket.socket) -> list[tuple[int, bytes]]:
    """Return the kernel's messages about every address and route, of both families."""
    return [*dump(channel, GET_ADDRESSES, bytes(8)), *dump(channel, GET_ROUTES, bytes(12))]


def surroundings(messages: Iterable[tuple[int, bytes]]) -> tuple[set[Prefix], set[Prefix]]:
    """Return every address of the host, and every prefix that it reaches without a gateway (F04)."""
    own: set[Prefix] = set()
    near: set[Prefix] = set()
    for kind, body in messages:
        size = _SIZES.get(body[0] if body else 0)
        if size is None:
            continue
        if kind == NEW_ADDRESS:
            length = body[1]
            fields = {name: value for name, _, value in attributes(body[8:])}
            for value in (fields.get(_PEER), fields.get(_LOCAL)):
                if value is not None and len(value) == size:
                    near |= {(value, size * 8), addresses.network(value, length)}
            value = fields.get(_LOCAL, fields.get(_PEER, b""))  # with both, the first is the other end of a link
            own |= {(value, size * 8)} if len(value) == size else set()
        elif kind == NEW_ROUTE:
            length, route = body[1], body[7]
            flags = int.from_bytes(body[8:12], byteorder)
            fields = {name: value for name, _, value in attributes(body[12:])}
            routed = _has_gateway(fields) and all(map(_has_gateway, _next_hops(fields.get(_MULTIPATH, b""))))
            destination = fields.get(_DESTINATION, bytes(size))
            if route in (_UNICAST, _LOCAL_ROUTE) and not routed and not flags & _CLONED and len(destination) == size:
                (own if route == _LOCAL_ROUTE else near).add(addresses.network(destination, length))
    near -= own
    return set(filter(addresses.neighbourhood, own)), set(filter(addresses.neighbourhood, near))


def _has_gateway(kinds: Iterable[int]) -> bool:
    """Return whether a route, or one of its next hops, leads to a gateway."""
    return not {_GATEWAY, _MULTIPATH, _VIA}.isdisjoint(kinds)


def _next_hops(data: bytes) -> Iterator[set[int]]:
    """Yield the attributes of each next hop of a multipath route; none for one that is cut short."""
    while data:
        length = int.from_bytes(data[:2], byteorder)
        if length < _HOP_HEAD or length > len(data):
            yield set()
            return
        yield {name for name, _, _ in attributes(data[_HOP_HEAD:length])}
        data = data[(length + 3) & ~3 :]


def has_default_route(messages: Iterable[tuple[int, bytes]], family: int) -> bool:
    return any(
        kind == NEW_ROUTE and body[0] == family and body[1] == 0 and body[7] == _UNICAST for kind, body in messages
    )
