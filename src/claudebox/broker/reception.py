"""Admission of callers: every listener of the broker accepts here, and only when there is room.

Room is counted in callers of each kind and in descriptors for all kinds, and reserved before a caller is accepted; the
others wait in the kernel's queue. When there is no room, the caller that has been silent for longest is evicted: one
that has not sent its request yet, or is idle between two. If the kernel has no descriptors or memory left, a listener
pauses; nothing ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    Attend = Callable[["Visitor"], Coroutine[None, None, None]]


_SPARE = 512  # descriptors that no caller gets: logs, resolvers, idle upstream connections, the user's own socket
_SILENCE = 0.5  # seconds that a caller may be silent while others wait
_PAUSE = 0.2  # seconds before accepting again after the kernel had no room


class Room:
    """One kind of callers: how many are admitted at a time, and how many descriptors each takes."""

    def __init__(self, most: int, descriptors: int) -> None:
        """Limit it to half of all descriptors."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = max(1, min(most, limit // 2 // descriptors)) if descriptors else most
        self.descriptors, self.count = descriptors, 0


_NOWHERE = Room(0, 0)


class Visitor:
    """An admitted caller; it holds its room until `leave`."""

    def __init__(self, reception: Reception, room: Room, channel: socket.socket) -> None:
        self.channel, self.room = channel, room
        self.stays = False  # when its handler returns: something else calls `leave`
        self.task: asyncio.Task[None] | None = None
        self._reception = reception
        self.expect()

    def expect(self) -> None:
        """Mark it as silent: it may be evicted until it speaks."""
        self._reception.silent[self] = time.monotonic()
        self._reception.freed.set()

    def heard(self) -> None:
        """Mark it as having sent its request: it cannot be evicted now."""
        self._reception.silent.pop(self, None)

    async def move(self, room: Room) -> None:
        """Wait for room of another kind, and release its own."""
        self.heard()
        await self._reception.enter(room)
        self._reception.release(self.room)
        self.room = room

    def leave(self) -> None:
        """Release its room."""
        self.heard()
        if self.room is not _NOWHERE:
            self._reception.release(self.room)
            self.room = _NOWHERE

    def dismiss(self) -> None:
        """Cancel its handler."""
        self.heard()
        if self.task is not None:
            self.task.cancel()


class Reception:
    """Admits callers for all listeners of one broker."""

    def __init__(self, descriptors: int = 0) -> None:
        """Share these descriptors, by default all that the process may open but a few."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._left = descriptors or limit - min(_SPARE, limit // 4)
        self.silent: dict[Visitor, float] = {}  # since when, the longest first
        self._tasks: set[asyncio.Task[None]] = set()
        self.freed = asyncio.Event()

    def listen(self, listener: socket.socket, room: Room, attend: Attend) -> None:
        """Accept callers; the listener is closed with the reception."""
        listener.setblocking(False)  # noqa: FBT003
        self._start(self._serve(listener, room, attend)).add_done_callback(lambda _: listener.close())

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, listener: socket.socket, room: Room, attend: Attend) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._fits(room):
                await _readable(listener)  # no eviction before a caller waits
                await self._vacate(room)
            self._take(room)
            try:
                channel, _ = await loop.sock_accept(listener)
            except OSError:  # disconnected again, or EMFILE, ENFILE, ENOBUFS, ENOMEM
                self.release(room)
                await asyncio.sleep(_PAUSE)
                continue
            except BaseException:
                self.release(room)
                raise
            visitor = Visitor(self, room, channel)
            visitor.task = self._start(self._attend(visitor, attend))
            await asyncio.sleep(0)  # a full queue must not starve the others

    @staticmethod
    async def _attend(visitor: Visitor, attend: Attend) -> None:
        try:
            await attend(visitor)
        except (OSError, EOFError, ValueError):  # concerns this caller only
            pass
        finally:
            if not visitor.stays:
                visitor.leave()
                visitor.channel.close()

    async def enter(self, room: Room) -> None:
        """Wait for room, and take it, for a caller that was admitted already."""
        await self._vacate(room)
        self._take(room)

    async def _vacate(self, room: Room) -> None:
        """Wait until there is room; evict callers that have been silent for too long."""
        while not self._fits(room):
            crowded = room.count >= room.most
            longest = next((one for one in self.silent if one.room is room or not crowded), None)
            patience = None
            if longest is not None:
                patience = self.silent[longest] + _SILENCE - time.monotonic()
                if patience <= 0:
                    longest.dismiss()
                    patience = None
            self.freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.freed.wait(), patience)

    def _fits(self, room: Room) -> bool:
        return room.count < room.most and room.descriptors <= self._left

    def _take(self, room: Room) -> None:
        room.count += 1
        self._left -= room.descriptors

    def release(self, room: Room) -> None:
        room.count -= 1
        self._left += room.descriptors
        self.freed.set()

    def close(self) -> None:
        """Cancel all listeners and handlers."""
        for task in self._tasks:
            task.cancel()


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(channel.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel.fileno())
