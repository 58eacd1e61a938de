"""Connections with back-pressure in both directions, and those to one upstream that can be used again."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_HIGH = 1 << 18  # bytes that wait to be read before the other side is made to wait
_IDLE = 30.0  # seconds that an unused connection to an upstream is kept; servers close theirs later
_KEPT = 16  # of them


class Stream(asyncio.Protocol):
    """One connection. `read` returns what came, as it came; `b""` is its end."""

    def __init__(self, accepted: Callable[[Stream], Awaitable[None]] | None = None) -> None:
        self._accepted = accepted
        self._task: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._blocked = False
        self.lost = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; whoever accepts connections gets a task for each."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        if self._accepted is not None:
            self._task = asyncio.ensure_future(self._accepted(self))
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled():
            task.exception()  # nobody else asks for it, and it must not be printed
        self.close()

    def data_received(self, data: bytes) -> None:
        """Keep what came until it is read."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _HIGH and not self._paused and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True
        _wake(self._reader)

    def eof_received(self) -> bool:
        """Go on writing to somebody who has said everything."""
        self._ended = True
        _wake(self._reader)
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        """Wake everybody who waits, and give up what was being done for this connection."""
        self._ended = self.lost = True
        _wake(self._reader)
        _wake(self._writer)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Make writers wait."""
        self._blocked = True

    def resume_writing(self) -> None:
        """Let them go on."""
        self._blocked = False
        _wake(self._writer)

    # What its users call.

    async def read(self) -> bytes:
        """Return the next bytes, at once when there are some; nothing is the end."""
        while not self._pieces:
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        piece = self._pieces.popleft()
        self._size -= len(piece)
        if self._paused and self._size <= _HIGH // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def unread(self, data: bytes) -> None:
        """Put back what belongs to the next reader."""
        if data:
            self._pieces.appendleft(data)
            self._size += len(data)

    def write(self, data: bytes) -> None:
        """Send; `drain` afterwards, or it is kept in memory."""
        if self._transport is None or self.lost:
            raise ConnectionResetError
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the other side has taken enough of it."""
        while self._blocked and not self.lost:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self.lost:
            raise ConnectionResetError

    @property
    def silent(self) -> bool:
        """Tell whether it is open, and nothing came that nobody asked for."""
        return not (self.lost or self._ended or self._pieces)

    @property
    def transport(self) -> asyncio.Transport | None:
        """Return what carries it, for those who put TLS on it."""
        return self._transport

    def close(self) -> None:
        """End it, after what was written has gone."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Pool:
    """Connections to one upstream; those that are free are used again."""

    def __init__(self, connect: Callable[[], Awaitable[Stream]]) -> None:
        self._connect = connect
        self._free: list[tuple[float, Stream]] = []

    async def acquire(self) -> tuple[Stream, bool]:
        """Return a connection, and whether it has been used before."""
        now = asyncio.get_running_loop().time()
        while self._free:
            since, stream = self._free.pop()
            if stream.silent and now - since < _IDLE:
                return stream, True
            stream.abort()
        return await self._connect(), False

    def release(self, stream: Stream) -> None:
        """Keep a connection whose last answer is complete."""
        if not stream.silent or len(self._free) >= _KEPT:
            stream.close()
            return
        self._free.append((asyncio.get_running_loop().time(), stream))

    def close(self) -> None:
        """End those that nobody uses."""
        for _, stream in self._free:
            stream.abort()
        self._free.clear()
