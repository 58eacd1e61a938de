"""Bytes from one socket to another inside the kernel (splice): the broker's tunnels, and the relay for single ports.

The relay leads from the loopback of the host to that of the sandbox or back. Its listeners belong to one network and it
runs in the other, so it needs no privilege and opens nothing but those ports.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import time

from claudebox.base.syscalls import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_CHUNK = 1 << 19
_TURNS = 8  # pieces that one connection moves before others have their turn
_DESCRIPTORS_EACH = 6
_SPARE = 32
_PAUSE = 0.02  # seconds
_MOST = 1024
EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_NONBLOCKING = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_SPLICE = 1 | 2  # move, do not block
_LINGER = (1).to_bytes(4, "little") + bytes(4)


def serve(listeners: list[tuple[int, int]], until: int = -1) -> None:
    """Relay these listeners, each to a port of our own loopback, until we are killed or `until` becomes readable."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _Relay(listeners).run(until)


class Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.exit, self.entry = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = self.moved = 0
        self.ended = self.closed = False

    def move(self) -> bool:
        """Move one piece if possible; return whether anything happened."""
        happened = False
        if not self.ended and self.held < _CHUNK:
            count = _splice(self.source.fileno(), self.entry, _CHUNK)
            if count is not None:
                self.held += count
                self.ended, happened = not count, True
        if self.held and (count := _splice(self.exit, self.sink.fileno(), self.held)):
            self.held -= count
            self.moved += count
            happened = True
        if self.ended and not self.held and not self.closed:
            self.closed = True
            self.sink.shutdown(socket.SHUT_WR)
        return happened

    def close(self) -> None:
        os.close(self.exit)
        os.close(self.entry)


def _splice(source: int, sink: int, count: int) -> int | None:
    try:
        return os.splice(source, sink, count, flags=_SPLICE)
    except BlockingIOError:
        return None


class Tunnel:
    """Two connected sockets, and the bytes between them."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        up = Way(near, far)
        try:
            self.ways = (up, Way(far, near))
        except OSError:
            up.close()
            raise

    def advance(self) -> bool:
        """Move what is possible within one turn; return whether there is more to do at once."""
        for _ in range(_TURNS):
            if not any([way.move() for way in self.ways]):  # noqa: C419 - both must move
                if all(way.closed for way in self.ways):
                    raise EOFError
                return False
        return True

    def close(self, *, abruptly: bool) -> None:
        """Close both sides; `abruptly` passes the reset of one side on to the other."""
        for end in self.ends:
            if abruptly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            end.close()
        for way in self.ways:
            way.close()


class SpliceLoop:
    """Moves the bytes of any number of tunnels; belongs to one thread."""

    def __init__(self, ended: Callable[[Tunnel], None]) -> None:
        self.poll = select.epoll()
        self._ended = ended
        self._ends: dict[int, Tunnel] = {}
        self.unfinished: list[Tunnel] = []

    def adopt(self, tunnel: Tunnel) -> bool:
        """Add a tunnel; epoll reports at once if it is ready. Where epoll has no room for it, close it."""
        for end in tunnel.ends:
            self._ends[end.fileno()] = tunnel
        try:
            for end in tunnel.ends:
                self.poll.register(end.fileno(), EVENTS)
        except OSError:  # ENOSPC: a sandbox can use up the user's watches
            self.end(tunnel, abruptly=True)
            return False
        return True

    def step(self, events: list[tuple[int, int]]) -> None:
        """Give every tunnel a turn that has something to do."""
        ready = dict.fromkeys(self.unfinished)
        for number, _ in events:
            if number in self._ends:
                ready[self._ends[number]] = None
        self.unfinished = [tunnel for tunnel in ready if self._turn(tunnel)]

    def _turn(self, tunnel: Tunnel) -> bool:
        try:
            return tunnel.advance()
        except (OSError, EOFError) as reason:
            self.end(tunnel, abruptly=isinstance(reason, OSError))
        return False

    def end(self, tunnel: Tunnel, *, abruptly: bool) -> None:
        for one in tunnel.ends:
            del self._ends[one.fileno()]
            try:
                self.poll.unregister(one.fileno())
            except OSError:  # it was never registered
                pass
        tunnel.close(abruptly=abruptly)
        self._ended(tunnel)

    def close(self) -> None:
        for tunnel in set(self._ends.values()):
            self.end(tunnel, abruptly=True)
        self.poll.close()


class _Call:
    """A caller, and the connection to the port that it wants: many servers listen on one of the two loopbacks only."""

    def __init__(self, caller: socket.socket, port: int) -> None:
        self.caller, self._port = caller, port
        self._left = list(_LOOPBACKS)
        self.callee = self._dial()

    def _dial(self) -> socket.socket:
        family, address = self._left.pop(0)
        callee = socket.socket(family, socket.SOCK_STREAM | _NONBLOCKING)
        for end in (self.caller, callee):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callee.connect_ex((address, self._port))
        return callee

    def is_answered(self) -> bool:
        """Return whether the connection is made; raise OSError if no address accepts it."""
        while problem := self.callee.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.callee.close()
            if not self._left:
                raise OSError(problem, os.strerror(problem))
            self.callee = self._dial()
        try:
            self.callee.getpeername()
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # not yet
                return False
            raise
        return True


class _Relay:
    def __init__(self, listeners: list[tuple[int, int]]) -> None:
        self._carrier = SpliceLoop(self._ended)
        self._poll = self._carrier.poll
        self._listeners = {number: (_adopt(number), port) for number, port in listeners}
        for listener, _ in self._listeners.values():
            listener.setblocking(False)  # noqa: FBT003
        self._calls: dict[int, _Call] = {}
        self._count = 0
        self._most = _room()
        self._listening = False

    def run(self, until: int) -> None:
        if until >= 0:
            self._poll.register(until, select.EPOLLIN)
        while True:
            self._listen(self._count < self._most)
            events = self._poll.poll(0 if self._carrier.unfinished else -1)
            for number, _ in events:
                if number == until:
                    return
                if number in self._listeners:
                    self._accept(number)
                elif number in self._calls:
                    self._answered(self._calls.pop(number))
            self._carrier.step(events)

    def _listen(self, wanted: bool) -> None:  # noqa: FBT001
        """Leave callers in the kernel's queue while there is no room for them."""
        if wanted == self._listening:
            return
        self._listening = wanted
        for number in self._listeners:
            if wanted:
                self._poll.register(number, select.EPOLLIN)
            else:
                self._poll.unregister(number)

    def _accept(self, number: int) -> None:
        listener, port = self._listeners[number]
        try:
            descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C module's
        except OSError as error:  # the caller has gone, or there are no descriptors
            time.sleep(0 if error.errno == errno.ECONNABORTED else _PAUSE)
            return
        caller = _adopt(descriptor)
        caller.setblocking(False)  # noqa: FBT003
        self._count += 1
        try:
            call = _Call(caller, port)
        except OSError:
            self._count -= 1
            caller.close()
            return
        self._wait(call)

    def _wait(self, call: _Call) -> None:
        self._calls[call.callee.fileno()] = call
        self._poll.register(call.callee.fileno(), EVENTS)

    def _answered(self, call: _Call) -> None:
        """Make a tunnel of a call that was answered."""
        self._poll.unregister(call.callee.fileno())
        try:
            if not call.is_answered():
                self._wait(call)
                return
            tunnel = Tunnel(call.caller, call.callee)
        except OSError:
            self._count -= 1
            call.callee.close()
            call.caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)  # the caller sees a reset
            call.caller.close()
            return
        if self._carrier.adopt(tunnel):
            self._carrier.unfinished.append(tunnel)

    def _ended(self, _tunnel: Tunnel) -> None:
        self._count -= 1


def _adopt(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def _room() -> int:
    """Return how many connections fit, after raising the limit of descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST * _DESCRIPTORS_EACH + _SPARE if hard == resource.RLIM_INFINITY else hard
    limit = min(limit, _MOST * _DESCRIPTORS_EACH + _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, (limit - _SPARE) // _DESCRIPTORS_EACH)
