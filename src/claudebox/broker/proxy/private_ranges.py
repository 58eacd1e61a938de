"""Which addresses are nobody's but the internet's: not private, not special, not this machine, not its neighbours.

The same table as in tier `inet`, asked before a connection is made. Addresses of this machine are followed for as long
as the broker runs, and never forgotten: whatever was a neighbour once is not trusted to be a stranger now (F04).
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from claudebox.network import addresses, netlink, prefixes
from claudebox.plan.network_model import Ranges
from claudebox.tables.barred_ranges import NAT64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.network.prefixes import Prefix

_MAPPED = bytes(10) + b"\xff\xff"
_NAT64 = prefixes.parse_prefix(NAT64)
_MOST_JUDGED = 1024
_OWN, _NEAR = "this machine", "the neighbourhood of this machine"
STALE = "the addresses of this machine cannot be read at the moment"
_PAUSE = 0.5  # seconds before they are tried again


class PrivateRanges:
    """What is too near."""

    def __init__(self, ranges: Ranges, own: Iterable[Prefix] = (), near: Iterable[Prefix] = ()) -> None:
        rows = [(row.always, prefixes.parse_prefix(row.prefix), row.reason) for row in ranges.barred]
        self._always, self._barred = ([row[1:] for row in rows if row[0] is always] for always in (True, False))
        self._open6 = tuple(prefixes.parse_prefix(text) for text in ranges.open6)
        self._opened = tuple((prefixes.parse_prefix(row.prefix), row.port) for row in ranges.opened)
        self._own, self._near = set(own), set(near)
        self.stale = False  # this machine's addresses could not be read: nothing is known to be public
        self._judged: dict[tuple[str, int], str] = {}

    def problem(self, address: str, port: int = 0) -> str:
        """Return why an address may not be reached on a port, or nothing if it is public, or opened by the user."""
        if self.stale:
            return STALE
        if (address, port) not in self._judged:
            if len(self._judged) >= _MOST_JUDGED:
                self._judged.clear()
            self._judged[address, port] = self._judge(address, port)
        return self._judged[address, port]

    def _judge(self, address: str, port: int) -> str:
        try:
            packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
        except OSError:
            return "no address"
        if packed[:12] == _MAPPED or (len(packed) == 16 and prefixes.covers(_NAT64, (packed, 128))):
            packed = packed[12:]
        whole = (packed, len(packed) * 8)
        for prefix, reason in self._always:
            if prefixes.covers(prefix, whole):
                return reason
        if any(prefixes.covers(prefix, whole) for prefix in self._own):
            return _OWN
        if any(prefixes.covers(prefix, whole) and only in (0, port) for prefix, only in self._opened):
            return ""
        for prefix, reason in self._barred:
            if prefixes.covers(prefix, whole):
                return reason
        if len(packed) == 16 and not any(prefixes.covers(prefix, whole) for prefix in self._open6):
            return "not an address of the internet"
        return _NEAR if any(prefixes.covers(prefix, whole) for prefix in self._near) else ""

    def add(self, own: Iterable[Prefix], near: Iterable[Prefix] = ()) -> None:
        """Learn of more."""
        self.stale = False
        self._own.update(own)
        self._near.update(near)
        self._judged.clear()


class NothingBarred(PrivateRanges):
    """Tier `full`: whatever the host reaches."""

    def __init__(self) -> None:
        super().__init__(Ranges())

    def problem(self, _address: str, _port: int = 0) -> str:
        """Return nothing."""
        return ""


class RangeWatch:
    """Keeps them true to the kernel's tables, for as long as the loop runs."""

    def __init__(self, ranges: Ranges) -> None:
        self._again: asyncio.TimerHandle | None = None
        self._open()
        self.ranges = PrivateRanges(ranges, *self._read())

    def _open(self) -> None:
        self._changes = netlink.connect(netlink.ROUTE, netlink.CHANGES)
        self._changes.setblocking(False)  # noqa: FBT003
        self._tables = netlink.connect(netlink.ROUTE)

    def _read(self) -> tuple[set[Prefix], set[Prefix]]:
        return addresses.surroundings(
            [
                *netlink.dump(self._tables, addresses.GET_ADDRESSES, addresses.ADDRESS_QUESTION),
                *netlink.dump(self._tables, addresses.GET_ROUTES, addresses.ROUTE_QUESTION),
            ]
        )

    def start(self) -> None:
        """Look again whenever the kernel tells of a change."""
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self.follow)

    def follow(self) -> None:
        """Learn what has appeared since the last look; where that fails, nothing is public until it succeeds."""
        try:
            netlink.drain(self._changes)
            self.ranges.add(*self._read())
        except Exception:  # noqa: BLE001 - whatever it was, what we know may be out of date
            self.ranges.stale = True
            self.close()
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)

    def _retry(self) -> None:
        """Begin again with new sockets: half an answer may be left in the old ones."""
        try:
            self._open()
            self.start()
        except OSError:
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)
            return
        self.follow()

    def close(self) -> None:
        """Close the sockets."""
        if self._again is not None:
            self._again.cancel()
        if self._changes.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        self._tables.close()
