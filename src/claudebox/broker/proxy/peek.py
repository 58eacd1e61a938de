"""Sockets in the main loop: looking at what came without taking it, and ending politely.

What is only looked at can still be handed to somebody else, whole: to the kernel, or to one who terminates TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
