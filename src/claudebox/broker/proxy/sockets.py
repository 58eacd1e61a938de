"""Sockets in the main loop: looking at what came without taking it, and ending politely.

What is only looked at can still be handed to somebody else, whole: to the kernel, or to one who terminates TLS.
"""

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

    from claudebox.broker.proxy.names import Admission, Record
    from claudebox.broker.reception import Visitor

    Done = Callable[[int, int], None]  # bytes up, bytes down


LOOK = 64 << 10
_CLOSING = 1.0  # seconds in which the other side may read what we said last
_LINGER = (1).to_bytes(4, "little") + bytes(4)


async def first_to_speak(*channels: socket.socket) -> socket.socket:
    """Wait until one of them has something to say, or ends."""
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
    """Return whether the other side has said its last word, which must be the next thing to be heard."""
    try:
        return not channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


async def peek(channel: socket.socket, missing: Callable[[bytes], int]) -> bytes:
    """Return what has come, when `missing` says that it is enough; it returns how many bytes it wants, or nothing."""
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
            # The kernel wakes us when so much is there, and not at every byte of somebody who sends them one by one.
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            await first_to_speak(channel)
    finally:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def peek_all(channel: socket.socket, missing: Callable[[bytes], int]) -> bytes:
    """Return the same, or everything that came if the other side ended before it was enough."""
    try:
        return await peek(channel, missing)
    except EOFError:
        data = channel.recv(LOOK, socket.MSG_PEEK)
        if not data:
            raise
        return data


async def take(channel: socket.socket, count: int) -> None:
    """Take what was looked at."""
    while count > 0:
        piece = await asyncio.get_running_loop().sock_recv(channel, count)
        if not piece:
            raise EOFError
        count -= len(piece)


async def say(channel: socket.socket, data: bytes) -> None:
    """Send; usually the kernel takes it at once."""
    try:
        sent = channel.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        await asyncio.get_running_loop().sock_sendall(channel, data[sent:])


async def part(channel: socket.socket, last: bytes = b"") -> None:
    """Say something last, and see that it arrives: closing over unread bytes would take it back."""
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
    """End at once, so that the other side sees a refusal and not an end of what was said."""
    with contextlib.suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    channel.close()


# The bodies of connections: bytes that go from one socket to another inside the kernel.
#
# Python decides who may talk to whom; once that is decided it only says "more". What moves much does so in a thread
# of its own, because a download must not hold up the events of a model that answers, which the main thread passes on.


_MUCH = 1 << 20  # bytes


class _Connection(Tunnel):
    """A tunnel, and who is told when it has ended."""

    def __init__(self, near: socket.socket, far: socket.socket, done: Done, limit: int | None) -> None:
        super().__init__(near, far, limit)
        self.done = done
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Passage:
    """The way to one permitted server, as the log tells of it: a line before bytes pass, and one at the end."""

    def __init__(self, record: Record, admitted: Admission) -> None:
        self._record = record
        self.name, self.port, self._rule = admitted.name, admitted.port, admitted.rule
        self.far: socket.socket | None = None
        self.up = self.down = 0  # bytes that passed before the kernel carried it
        self.begun = self.ended = False

    async def dial(self, dialling: Awaitable[socket.socket]) -> None:
        """Wait for the connection, and write it down if none comes about."""
        try:
            self.far = await dialling
        except Denied as refusal:
            self._write("denied", refusal.rule)
            raise
        except (NoConnection, OSError) as error:
            self._write("failed", self._rule)
            raise error if isinstance(error, NoConnection) else NoConnection(str(error)) from None

    async def say(self, data: bytes) -> None:
        """Send something to the server, and count it."""
        assert self.far is not None  # noqa: S101 - for the type checker
        await say(self.far, data)
        self.up += len(data)

    def begin(self) -> None:
        """Write down that bytes may pass now."""
        if not self.begun:
            self.begun = True
            self._write("opened", self._rule)

    def end(self, up: int = 0, down: int = 0) -> None:
        """Write down how much has passed, if there was a connection."""
        if self.far is None or self.ended:
            return
        self.far.close()
        self.begin()
        self.ended = True
        self._record(
            host=self.name, port=self.port, verdict="allowed", rule=self._rule, up=self.up + up, down=self.down + down
        )

    def drop(self) -> None:
        """End it; nothing is written down of one on which nothing passed."""
        if self.begun:
            self.end()
        elif self.far is not None:
            self.far.close()
        self.ended = True

    def refuse(self, rule: str) -> None:
        """End it, because of what was said on it."""
        self.drop()
        self._write("denied", rule)

    def _write(self, verdict: str, rule: str) -> None:
        self._record(host=self.name, port=self.port, verdict=verdict, rule=rule)


class Pump:
    """Carries connections: at first in the loop of the main thread, and in a thread of its own once they move much.

    Most connections are short, and handing them to another thread would take longer than they do.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._near = SpliceLoop(self._told)
        self._loop.add_reader(self._near.poll.fileno(), self._step)
        self._stepping = False
        self._far = SpliceLoop(lambda tunnel: self._call(self._loop.call_soon_threadsafe, tunnel))
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._far.poll.register(self._bell, select.EPOLLIN)
        self._promoted: deque[Tunnel] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None

    def carry(self, near: socket.socket, far: socket.socket, done: Done, limit: int | None = None) -> None:
        """Take two connected sockets over; `done` is called by the loop when both directions have ended.

        Of what the near one says, no more than `limit` passes.
        """
        try:
            tunnel = _Connection(near, far, done, limit)
        except OSError:  # no descriptors left, or the caller has gone
            near.close()
            far.close()
            self._loop.call_soon(done, 0, 0)
            return
        self._near.adopt(tunnel)
        self._near.unfinished.append(tunnel)  # what is there already need not wait
        self._step()

    def lead(self, caller: Visitor, passage: Passage, limit: int | None = None) -> None:
        """Carry a caller to where its passage leads; at the end it leaves, and what passed is written down."""
        assert passage.far is not None  # noqa: S101 - for the type checker

        def ended(up: int, down: int) -> None:
            caller.leave()
            passage.end(up, down)

        passage.begin()
        caller.heard()
        caller.stays = True
        self.carry(caller.channel, passage.far, ended, limit)

    def stop(self) -> None:
        """End everything that is still open."""
        self._ending = True
        if self._thread is not None:
            os.eventfd_write(self._bell, 1)
            self._thread.join()
        self._loop.remove_reader(self._near.poll.fileno())
        self._near.close()
        self._far.close()
        os.close(self._bell)

    def _told(self, tunnel: Tunnel) -> None:
        self._call(self._loop.call_soon, tunnel)

    @staticmethod
    def _call(how: Callable[..., object], tunnel: Tunnel) -> None:
        assert isinstance(tunnel, _Connection)  # noqa: S101 - for the type checker
        up, down = tunnel.ways
        with contextlib.suppress(RuntimeError):  # the loop has ended
            how(tunnel.done, up.moved, down.moved)

    def _step(self) -> None:
        """Move what can be moved in the main thread, a little; who has moved much goes to the other one."""
        self._stepping = False
        if self._ending:
            return
        for tunnel in self._near.step(self._near.poll.poll(0)):
            if tunnel.moved >= _MUCH:
                self._promote(tunnel)
        self._near.unfinished = [tunnel for tunnel in self._near.unfinished if tunnel.moved < _MUCH]
        if self._near.unfinished and not self._stepping:
            self._stepping = True
            self._loop.call_soon(self._step)

    def _promote(self, tunnel: Tunnel) -> None:
        self._near.release(tunnel)
        self._promoted.append(tunnel)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
            self._thread.start()
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._ending:
            events = self._far.poll.poll(0 if self._far.unfinished else -1)
            if any(number == self._bell for number, _ in events):
                os.eventfd_read(self._bell)
            while self._promoted:
                tunnel = self._promoted.popleft()
                self._far.adopt(tunnel)
                self._far.unfinished.append(tunnel)
            self._far.step(events)
        while self._promoted:
            self._far.adopt(self._promoted.popleft())
