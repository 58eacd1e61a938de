"""The relay: carries the connections of single ports between the loopbacks of host and sandbox.

Its listeners belong to one network and it runs in the other, so that it needs no privilege and opens nothing but those
ports. Bytes go through pipes inside the kernel and are never looked at.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select

from claudebox.syscalls import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_CHUNK = 1 << 19
# Who moves much gets a wider pipe, which halves the work; few at a time, since the kernel allows a person only so many
# pages of pipes, and gives narrow ones to everything else of theirs beyond that.
_BUSY, _WIDE_AT_MOST = 1 << 20, 16
_SET_PIPE_SIZE = 1031
_TURNS = 8  # how many pieces one connection may move before others have their turn
_DESCRIPTORS_EACH = 6
_SPARE = 32
_MOST = 1024
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_NONBLOCKING = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_SPLICE = 1 | 2  # move, do not block


def serve(listeners: list[tuple[int, int]]) -> None:
    """Serve these listeners, each with the port of our own loopback that it stands for, until somebody kills us."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _Relay(listeners).run()


class Way:
    """One direction of a connection."""

    _wide_now = 0

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.exit, self.entry = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = self.moved = 0
        self.ended = self.closed = self._wide = False

    def move(self) -> bool:
        """Move one piece if possible; tell whether anything happened."""
        happened = False
        if not self.ended and self.held < _CHUNK:
            count = _splice(self.source.fileno(), self.entry, _CHUNK)
            if count == 0:
                self.ended = happened = True
            elif count is not None:
                self.held += count
                happened = True
        if self.held:
            count = _splice(self.exit, self.sink.fileno(), self.held)
            if count:
                self.held -= count
                self.moved += count
                happened = True
                if self.moved >= _BUSY and not self._wide and Way._wide_now < _WIDE_AT_MOST:
                    self._widen()
        if self.ended and not self.held and not self.closed:
            self.closed = True
            self.sink.shutdown(socket.SHUT_WR)
        return happened

    def _widen(self) -> None:
        self._wide = True
        Way._wide_now += 1
        try:
            fcntl.fcntl(self.entry, _SET_PIPE_SIZE, _CHUNK)
        except OSError:  # not more than it has
            pass

    def close(self) -> None:
        """Give the pipe back."""
        Way._wide_now -= self._wide
        os.close(self.exit)
        os.close(self.entry)


def _splice(source: int, sink: int, count: int) -> int | None:
    try:
        return os.splice(source, sink, count, flags=_SPLICE)
    except BlockingIOError:
        return None


class _Connection:
    """A caller, the port that it wants, and the bytes between them."""

    def __init__(self, caller: socket.socket, port: int, watch: Callable[[socket.socket, _Connection], None]) -> None:
        self.caller, self._port, self._watch = caller, port, watch
        self._left = list(_LOOPBACKS)
        self.callee: socket.socket | None = None
        self.ways: tuple[Way, ...] = ()
        self._dial()

    def _dial(self) -> None:
        """Try the next loopback: many servers listen on one of the two only."""
        if self.callee is not None:
            self.callee.close()
        family, address = self._left.pop(0)
        self.callee = socket.socket(family, socket.SOCK_STREAM | _NONBLOCKING)
        for end in (self.caller, self.callee):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.callee.connect_ex((address, self._port))
        self._watch(self.callee, self)

    def advance(self) -> bool:
        """Go as far as possible within one turn; tell whether there is more to do at once."""
        if self.callee is None:
            return False
        if not self.ways:
            problem = self.callee.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem and self._left:
                self._dial()
                return False
            if problem:
                raise OSError(problem, os.strerror(problem))
            try:
                self.callee.getpeername()
            except OSError as error:
                if error.errno == errno.ENOTCONN:  # not yet
                    return False
                raise
            self.ways = (Way(self.caller, self.callee), Way(self.callee, self.caller))
            self._watch(self.caller, self)
        for _ in range(_TURNS):
            if not any([way.move() for way in self.ways]):  # noqa: C419 - both must move
                if all(way.closed for way in self.ways):
                    raise EOFError
                return False
        return True

    def close(self, *, abruptly: bool) -> None:
        for end in (self.caller, self.callee):
            if end is None:
                continue
            if abruptly:  # the other side shall see a reset, not a polite end
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
            end.close()
        for way in self.ways:
            way.close()


class _Relay:
    def __init__(self, listeners: list[tuple[int, int]]) -> None:
        self._poll = select.epoll()
        self._listeners = {number: (_adopt(number), port) for number, port in listeners}
        for listener, _ in self._listeners.values():
            listener.setblocking(False)  # noqa: FBT003
        self._ends: dict[int, _Connection] = {}
        self._count = 0
        self._most = _room()
        self._listening = False

    def run(self) -> None:
        unfinished: list[_Connection] = []
        while True:
            self._listen(self._count < self._most)
            events = self._poll.poll(0 if unfinished else -1)
            ready = dict.fromkeys(unfinished)
            for number, _ in events:
                if number in self._listeners:
                    self._accept(number)
                elif number in self._ends:
                    ready[self._ends[number]] = None
            unfinished = [connection for connection in ready if self._turn(connection)]

    def _listen(self, wanted: bool) -> None:  # noqa: FBT001
        """Leave callers in the queue of the kernel while there is no room for them."""
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
        except OSError:  # gone again
            return
        caller = _adopt(descriptor)
        caller.setblocking(False)  # noqa: FBT003
        self._count += 1
        try:
            _Connection(caller, port, self._watch)
        except OSError:
            self._count -= 1
            caller.close()

    def _watch(self, end: socket.socket, connection: _Connection) -> None:
        self._ends[end.fileno()] = connection
        self._poll.register(end.fileno(), _EVENTS)

    def _turn(self, connection: _Connection) -> bool:
        try:
            return connection.advance()
        except (OSError, EOFError) as reason:
            for number in [number for number, other in self._ends.items() if other is connection]:
                del self._ends[number]
            connection.close(abruptly=isinstance(reason, OSError))
            self._count -= 1
            return False


def _adopt(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def _room() -> int:
    """Return how many connections fit, after asking for all the descriptors that we may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST * _DESCRIPTORS_EACH + _SPARE if hard == resource.RLIM_INFINITY else hard
    limit = min(limit, _MOST * _DESCRIPTORS_EACH + _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, (limit - _SPARE) // _DESCRIPTORS_EACH)
