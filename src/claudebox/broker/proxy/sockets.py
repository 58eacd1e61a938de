"""Sockets of the proxy: peeking at what was sent, closing politely, and the log of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from claudebox.broker.proxy.dial import NoConnection
from claudebox.broker.proxy.names import Denied
from claudebox.network.relay import carry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.log import Verdict
    from claudebox.broker.proxy.names import Admission, Record
    from claudebox.broker.reception import Visitor

LOOK = 64 << 10
_CLOSING = 1.0  # seconds in which the other side can read our last words


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


class Passage:
    """A permitted connection to one server, and its lines in the log: one when bytes can pass, one at the end."""

    def __init__(self, record: Record, admitted: Admission) -> None:
        self._record, self.admitted = record, admitted
        self.name, self.port = admitted.name, admitted.port
        self.far: socket.socket | None = None
        self.up = self.down = 0  # bytes
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

    async def carry(self, caller: Visitor) -> None:
        """Carry a caller's connection until it ends."""
        assert self.far is not None  # noqa: S101 - for the type checker
        self.begin()
        caller.heard()
        try:
            await carry(caller.channel, self.far, self._count)
        finally:
            self.end()

    def _count(self, up: int, down: int) -> None:
        self.up += up
        self.down += down

    def end(self) -> None:
        """Close it, and log how much passed."""
        if self.far is None or self.ended:
            return
        self.far.close()
        self.begin()
        self.ended = True
        self._write("allowed", self.admitted.rule, self.up, self.down)

    def drop(self) -> None:
        """Close it; log nothing if nothing passed."""
        if self.begun:
            self.end()
        elif self.far is not None:
            self.far.close()
        self.ended = True

    def refuse(self, rule: str) -> None:
        """Close it, and log why."""
        self.drop()
        self._write("denied", rule)

    def _write(self, verdict: Verdict, rule: str, up: int = 0, down: int = 0) -> None:
        self._record(host=self.name, port=self.port, verdict=verdict, rule=rule, up=up, down=down)
