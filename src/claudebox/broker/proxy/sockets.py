"""Sockets of the proxy: peeking at what was sent, closing politely, and the connections that the kernel carries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections import deque

from claudebox.broker.proxy.dial import NoConnection
from claudebox.broker.proxy.names import Denied
from claudebox.network.splice import SpliceLoop, Tunnel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.log import Verdict
    from claudebox.broker.proxy.names import Admission, Record
    from claudebox.broker.reception import Visitor

    Done = Callable[[int, int], None]  # bytes up, bytes down


LOOK = 64 << 10
_CLOSING = 1.0  # seconds in which the other side can read our last words
_LINGER = (1).to_bytes(4, "little") + bytes(4)


async def first_to_speak(*channels: socket.socket) -> socket.socket:
    """Wait until one of the sockets is readable."""
    loop = asyncio.get_running_loop()
    spoken: asyncio.Future[socket.socket] = loop.create_future()

    def heard(channel: socket.socket) -> None:
        if not spoken.done():
            spoken.set_result(channel)

    try:
        for channel in channels:
            loop.add_reader(channel.fileno(), heard, channel)
        return await spoken
    finally:
        for channel in channels:
            loop.remove_reader(channel.fileno())


def has_ended(channel: socket.socket) -> bool:
    """Return whether the next thing to read is the end of the stream."""
    try:
        return not channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


async def peek(channel: socket.socket, missing: Callable[[bytes], int]) -> bytes:
    """Return what has arrived, without consuming it, once `missing(data)` is 0; else it is the length to wait for."""
    wanted = 1
    try:
        while True:
            try:
                data = channel.recv(LOOK, socket.MSG_PEEK)
                if len(data) < wanted:
                    raise EOFError
                wanted = missing(data)
                if not wanted:
                    return data
                if wanted > LOOK:
                    raise ValueError("too long")
            except BlockingIOError:
                pass
            # Wake up when enough has arrived, not for every single byte of a slow sender.
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            await first_to_speak(channel)
    finally:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def peek_all(channel: socket.socket, missing: Callable[[bytes], int]) -> bytes:
    """Like `peek`, but a stream that ends early returns what it had."""
    try:
        return await peek(channel, missing)
    except EOFError:
        data = channel.recv(LOOK, socket.MSG_PEEK)
        if not data:
            raise
        return data


async def take(channel: socket.socket, count: int) -> None:
    """Consume bytes that were peeked at."""
    while count > 0:
        piece = await asyncio.get_running_loop().sock_recv(channel, count)
        if not piece:
            raise EOFError
        count -= len(piece)


async def say(channel: socket.socket, data: bytes) -> None:
    """Send; usually the kernel takes it immediately."""
    try:
        sent = channel.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        await asyncio.get_running_loop().sock_sendall(channel, data[sent:])


async def part(channel: socket.socket, last: bytes = b"") -> None:
    """Send last words and close; drains first, because closing with unread input would discard what was sent."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await say(channel, last)
            channel.shutdown(socket.SHUT_WR)
            for _ in range(LOOK):
                if not await loop.sock_recv(channel, LOOK):
                    break
    channel.close()


def reset(channel: socket.socket) -> None:
    """Close with RST, so that the other side sees a failure and not an end of data."""
    with contextlib.suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    channel.close()


class Passage:
    """A permitted connection to one server, and its lines in the log: one when bytes can pass, one at the end."""

    def __init__(self, record: Record, admitted: Admission) -> None:
        self._record, self.admitted = record, admitted
        self.name, self.port = admitted.name, admitted.port
        self.far: socket.socket | None = None
        self.up = self.down = 0  # bytes before the pump carries it
        self.begun = self.ended = False

    async def dial(self, dialling: Awaitable[socket.socket]) -> None:
        """Wait for the connection; log a failure."""
        try:
            self.far = await dialling
        except Denied as refusal:
            self._write("denied", refusal.rule)
            raise
        except (NoConnection, OSError) as error:
            self._write("failed", self.admitted.rule)
            raise error if isinstance(error, NoConnection) else NoConnection(str(error)) from None

    def begin(self) -> None:
        """Log that bytes can pass."""
        if not self.begun:
            self.begun = True
            self._write("opened", self.admitted.rule)

    def end(self, up: int = 0, down: int = 0) -> None:
        """Close it, and log how much passed."""
        if self.far is None or self.ended:
            return
        self.far.close()
        self.begin()
        self.ended = True
        self._write("allowed", self.admitted.rule, self.up + up, self.down + down)

    def drop(self) -> None:
        """Close it; log nothing if nothing passed."""
        if self.begun:
            self.end()
        elif self.far is not None:
            self.far.close()
        self.ended = True

    def refuse(self, rule: str) -> None:
        """Close it, because of what was said on it."""
        self.drop()
        self._write("denied", rule)

    def _write(self, verdict: Verdict, rule: str, up: int = 0, down: int = 0) -> None:
        self._record(host=self.name, port=self.port, verdict=verdict, rule=rule, up=up, down=down)


class _Carried(Tunnel):
    def __init__(self, near: socket.socket, far: socket.socket, done: Done) -> None:
        super().__init__(near, far)
        self.done = done
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Pump:
    """Carries established connections with splice(2) in a thread, so that downloads do not delay the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._splices = SpliceLoop(self._ended)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._splices.poll.register(self._bell, select.EPOLLIN)
        self._new: deque[Tunnel] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
        self._thread.start()

    def lead(self, caller: Visitor, passage: Passage) -> None:
        """Carry a caller's connection until it ends."""
        assert passage.far is not None  # noqa: S101 - for the type checker

        def done(up: int, down: int) -> None:
            caller.leave()
            passage.end(up, down)

        passage.begin()
        caller.heard()
        caller.stays = True
        try:
            self._new.append(_Carried(caller.channel, passage.far, done))
        except OSError:  # no descriptors left, or the caller has disconnected
            caller.channel.close()
            passage.far.close()
            self._loop.call_soon(done, 0, 0)
            return
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        """Close all connections; the callbacks run in the next turn of the loop."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._adopt()
        self._splices.close()
        os.close(self._bell)

    def _ended(self, tunnel: Tunnel) -> None:
        assert isinstance(tunnel, _Carried)  # noqa: S101 - for the type checker
        up, down = tunnel.ways
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tunnel.done, up.moved, down.moved)

    def _adopt(self) -> None:
        while self._new:
            tunnel = self._new.popleft()
            if self._splices.adopt(tunnel):
                self._splices.unfinished.append(tunnel)

    def _run(self) -> None:
        while not self._stopping:
            events = self._splices.poll.poll(0 if self._splices.unfinished else -1)
            if any(number == self._bell for number, _ in events):
                os.eventfd_read(self._bell)
            self._adopt()
            self._splices.step(events)
