"""Which program is calling, for the log: found in /proc by the socket at its end, or not at all.

Never needed for a decision. A name is what the process calls itself, so that it is worth as much as its word.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from sys import byteorder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.broker.proxy.acl import Record

_WAITING = 8  # lookups at a time; more callers than that stay nameless
_PATIENCE = 0.2
_DELAY = 0.02  # seconds: a connection comes about first, who made it is found out then
_RECENT = 16
_LONGEST = 32
_ADDRESS, _INODE = 1, 9  # columns of /proc/net/tcp


class _Search:
    """One caller, and what is found out about it."""

    def __init__(self, callers: Callers, caller: socket.socket) -> None:
        self._callers = callers
        self._end: tuple[str, int] = caller.getpeername()[:2]
        self.begun: asyncio.Task[str] | None = None
        self.timer = asyncio.get_running_loop().call_later(_DELAY, self.start)

    def start(self) -> asyncio.Task[str]:
        """Look now, if nobody does already."""
        if self.begun is None:
            self.begun = asyncio.get_running_loop().create_task(self._callers.program(*self._end))
        return self.begun


_current: ContextVar[_Search | None] = ContextVar("caller", default=None)


class Attributed:
    """Writes decisions down with the program in whose name they were made, as soon as that is known."""

    def __init__(self, record: Record, callers: Callers) -> None:
        self._record, self._callers = record, callers

    def begin(self, caller: socket.socket) -> None:
        """Look for the program of this caller; what this task writes down from now on is about it."""
        _current.set(_Search(self._callers, caller))

    async def known(self) -> None:
        """Wait until the program is known or cannot be found: it is only found while it waits for an answer."""
        search = _current.get()
        if search is not None:
            await asyncio.wait({search.start()})

    def __call__(
        self, *, host: str, port: int, verdict: str, rule: str, up: int = 0, down: int = 0, program: str = ""
    ) -> None:
        """Write one down."""

        def write(looked: asyncio.Task[str] | None) -> None:
            known = looked is not None and not looked.cancelled() and looked.exception() is None
            found = looked.result() if known and looked is not None else program
            self._record(host=host, port=port, verdict=verdict, rule=rule, up=up, down=down, program=found)

        search = _current.get()
        if search is not None and verdict == "allowed":  # it is over: nobody is there to be found any more
            search.timer.cancel()
            looking = search.begun
        else:
            looking = search.start() if search is not None else None
        if looking is None or looking.done():
            write(looking)
        else:
            looking.add_done_callback(write)


class Callers:
    """Finds programs among the descendants of a process."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(1, "callers")
        self._waiting = 0
        self._recent: OrderedDict[int, None] = OrderedDict()  # who called last is likely to call again

    def close(self) -> None:
        """Look no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def program(self, address: str, port: int) -> str:
        """Return the name of the program at this end of a connection, if it is found soon."""
        if self._waiting >= _WAITING:
            return ""
        self._waiting += 1
        try:
            looking = asyncio.get_running_loop().run_in_executor(self._thread, self.find, address, port)
            return await asyncio.wait_for(looking, _PATIENCE)
        except (OSError, ValueError, TimeoutError, RuntimeError):
            return ""
        finally:
            self._waiting -= 1

    def find(self, address: str, port: int) -> str:
        """Return the program that has a socket with this local address."""
        end = f"{int.from_bytes(socket.inet_aton(address), byteorder):08X}:{port:04X}"
        tables: dict[str, str] = {}  # by network namespace
        for process in dict.fromkeys((*reversed(self._recent), *self._descendants())):
            try:
                network = os.readlink(f"/proc/{process}/ns/net")
                if network not in tables:
                    tables[network] = _socket_at(process, end)
                if tables[network] and _has(process, tables[network]):
                    self._recent[process] = None
                    self._recent.move_to_end(process)
                    if len(self._recent) > _RECENT:
                        self._recent.popitem(last=False)
                    return _name(process)
            except OSError:  # it has ended, or is not ours to look at
                self._recent.pop(process, None)
        return ""

    def _descendants(self) -> Iterator[int]:
        waiting = [self._root]
        while waiting:
            process = waiting.pop()
            try:
                for task in os.listdir(f"/proc/{process}/task"):
                    with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as file:
                        waiting += map(int, file.read().split())
            except OSError:
                continue
            yield process


def _socket_at(process: int, end: str) -> str:
    """Return the socket with this local address in the network of a process, as it is called in /proc."""
    with open(f"/proc/{process}/net/tcp", encoding="ascii") as file:
        for line in file:
            if end in line:
                words = line.split()
                if words[_ADDRESS] == end and words[_INODE] != "0":
                    return f"socket:[{words[_INODE]}]"
    return ""


def _has(process: int, wanted: str) -> bool:
    with os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            try:
                if os.readlink(entry.path) == wanted:
                    return True
            except OSError:  # closed by now
                continue
    return False


def _name(process: int) -> str:
    with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
        name = file.read().strip()
    return "".join(char if " " <= char <= "~" else "?" for char in name)[:_LONGEST]
