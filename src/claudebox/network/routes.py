"""The host's addresses and routes: what is the host itself, and what is its neighbourhood."""

from __future__ import annotations

from sys import byteorder

from claudebox.base import addresses, netlink
from claudebox.base.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.addresses import Prefix


# Multicast groups: addresses and routes of both families.
CHANGES = 0x10 | 0x40 | 0x100 | 0x400
NEW_ADDRESS, GET_ADDRESSES, NEW_ROUTE, GET_ROUTES = 20, 22, 24, 26
_PEER, _LOCAL = 1, 2
_DESTINATION, _GATEWAY, _MULTIPATH, _VIA = 1, 5, 9, 18
_HOP_HEAD = 8
_UNICAST, _LOCAL_ROUTE = 1, 2
_CLONED = 0x200
_SIZES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}


def read_tables(channel: socket.socket) -> list[tuple[int, bytes]]:
    """Return the kernel's messages about every address and route, of both families."""
    return [*netlink.dump(channel, GET_ADDRESSES, bytes(8)), *netlink.dump(channel, GET_ROUTES, bytes(12))]


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
            fields = {name: value for name, _, value in netlink.attributes(body[8:])}
            for value in (fields.get(_PEER), fields.get(_LOCAL)):
                if value is not None and len(value) == size:
                    near |= {(value, size * 8), addresses.network(value, length)}
            value = fields.get(_LOCAL, fields.get(_PEER, b""))  # with both, the first is the other end of a link
            own |= {(value, size * 8)} if len(value) == size else set()
        elif kind == NEW_ROUTE:
            length, route = body[1], body[7]
            flags = int.from_bytes(body[8:12], byteorder)
            fields = {name: value for name, _, value in netlink.attributes(body[12:])}
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
        yield {name for name, _, _ in netlink.attributes(data[_HOP_HEAD:length])}
        data = data[(length + 3) & ~3 :]


def has_default_route(messages: Iterable[tuple[int, bytes]], family: int) -> bool:
    return any(
        kind == NEW_ROUTE and body[0] == family and body[1] == 0 and body[7] == _UNICAST for kind, body in messages
    )
