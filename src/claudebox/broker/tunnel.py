"""The bodies of connections: bytes that go from one socket to another inside the kernel, in a thread of their own.

Python decides who may talk to whom; once that is decided it only says "more". A thread of its own, because a download
must not hold up the events of a model that answers, which the main thread passes on.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING

from claudebox.uplink.relay import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    Done = Callable[[int, int], None]  # bytes up, bytes down

_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_TURNS = 8  # how many pieces one connection may move before others have their turn
_LINGER = (1).to_bytes(4, "little") + bytes(4)


class _Tunnel:
    """Two sockets, and the bytes between them."""

    def __init__(self, near: socket.socket, far: socket.socket, done: Done) -> None:
        self.ends, self._done = (near, far), done
        up = Way(near, far)
        try:
            self.ways = (up, Way(far, near))
        except OSError:
            up.close()
            raise
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def advance(self) -> bool:
        """Go as far as possible within one turn; tell whether there is more to do at once."""
        for _ in range(_TURNS):
            if not any([way.move() for way in self.ways]):  # noqa: C419 - both must move
                if all(way.closed for way in self.ways):
                    raise EOFError
                return False
        return True

    def close(self, *, abruptly: bool) -> None:
        """End both sides alike: the one shall see a reset where the other was reset."""
        up, down = self.ways
        for end in self.ends:
            if abruptly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            end.close()
        for way in self.ways:
            way.close()
        self._done(up.moved, down.moved)


class Pump:
    """Carries connections; every method but `carry` and `stop` belongs to its thread."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN)
        self._waiting: deque[_Tunnel] = deque()
        self._ends: dict[int, _Tunnel] = {}
        self._ending = False
        self._thread: threading.Thread | None = None

    def carry(self, near: socket.socket, far: socket.socket, done: Done) -> None:
        """Take two connected sockets over; `done` is called when both directions have ended, by the pump's thread."""
        try:
            tunnel = _Tunnel(near, far, done)
        except OSError:  # no descriptors left, or the caller has gone
            near.close()
            far.close()
            done(0, 0)
            return
        try:
            tunnel.advance()  # what is there already need not wait for another thread
        except (OSError, EOFError) as reason:
            tunnel.close(abruptly=isinstance(reason, OSError))
            return
        self._waiting.append(tunnel)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
            self._thread.start()
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        """End everything that is still open."""
        self._ending = True
        if self._thread is not None:
            os.eventfd_write(self._bell, 1)
            self._thread.join()
        self._poll.close()
        os.close(self._bell)

    def _run(self) -> None:
        unfinished: list[_Tunnel] = []
        while not self._ending:
            events = self._poll.poll(0 if unfinished else -1)
            ready = dict.fromkeys(unfinished)
            for number, _ in events:
                if number == self._bell:
                    os.eventfd_read(self._bell)
                    ready |= dict.fromkeys(self._begin())
                elif number in self._ends:
                    ready[self._ends[number]] = None
            unfinished = [tunnel for tunnel in ready if self._turn(tunnel)]
        self._begin()
        for tunnel in set(self._ends.values()):
            self._end(tunnel, abruptly=True)

    def _begin(self) -> list[_Tunnel]:
        begun = []
        while self._waiting:
            tunnel = self._waiting.popleft()
            for end in tunnel.ends:
                self._ends[end.fileno()] = tunnel
                self._poll.register(end.fileno(), _EVENTS)
            begun.append(tunnel)
        return begun

    def _turn(self, tunnel: _Tunnel) -> bool:
        try:
            return tunnel.advance()
        except EOFError:
            self._end(tunnel, abruptly=False)
        except OSError:
            self._end(tunnel, abruptly=True)
        return False

    def _end(self, tunnel: _Tunnel, *, abruptly: bool) -> None:
        for end in tunnel.ends:
            del self._ends[end.fileno()]
        tunnel.close(abruptly=abruptly)
