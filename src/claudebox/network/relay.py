"""Bytes from one socket to another and back: for the broker's tunnels, and the relay for single ports.

The relay leads from the loopback of the host to that of the sandbox or back. Its listeners belong to one network and it
runs in the other, so it needs no privilege and opens nothing but those ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))  # many servers listen on one of them only
_PIECE = 1 << 18  # bytes
_LINGER = (1).to_bytes(4, "little") + bytes(4)
_MOST = 1024  # connections, of two descriptors each
_SPARE = 64  # descriptors
_PAUSE = 0.02  # seconds


async def carry(near: socket.socket, far: socket.socket, count: Callable[[int, int], None] = lambda *_: None) -> None:
    """Pass bytes until both sides have ended, and `count` them; a reset of one side is a reset of the other."""
    loop = asyncio.get_running_loop()

    async def pass_on(source: socket.socket, sink: socket.socket) -> None:
        while piece := await loop.sock_recv(source, _PIECE):
            count(*((len(piece), 0) if source is near else (0, len(piece))))
            await loop.sock_sendall(sink, piece)
            await asyncio.sleep(0)  # neither call lets others run while there is something to read and room to send
        sink.shutdown(socket.SHUT_WR)

    finished = False
    try:
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.TaskGroup() as ways:
            ways.create_task(pass_on(near, far))
            ways.create_task(pass_on(far, near))
        finished = True
    except* OSError:
        pass
    finally:
        if not finished:
            reset(near)
            reset(far)


def reset(channel: socket.socket) -> None:
    """Close with RST, so that the other side sees a failure and not an end of data."""
    with contextlib.suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    channel.close()


def serve(listeners: list[tuple[int, int]], until: int = -1) -> None:
    """Relay these listeners, each to a port of our own loopback, until we are killed or `until` becomes readable."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * _MOST + _SPARE if hard == resource.RLIM_INFINITY else min(hard, 2 * _MOST + _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    asyncio.run(_serve(listeners, until, (limit - _SPARE) // 2))


async def _serve(listeners: list[tuple[int, int]], until: int, most: int) -> None:
    ended = asyncio.Event()
    if until >= 0:
        asyncio.get_running_loop().add_reader(until, ended.set)
    room = asyncio.Semaphore(most)
    tasks = [asyncio.create_task(_accept(socket.socket(fileno=number), port, room)) for number, port in listeners]
    await ended.wait()
    for task in tasks:
        task.cancel()


async def _accept(listener: socket.socket, port: int, room: asyncio.Semaphore) -> NoReturn:
    listener.setblocking(False)  # noqa: FBT003
    callers: set[asyncio.Task[None]] = set()
    while True:
        await room.acquire()  # until there is room, callers wait in the kernel's queue
        try:
            caller, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError:  # the caller has gone, or there are no descriptors
            room.release()
            await asyncio.sleep(_PAUSE)
            continue
        task = asyncio.create_task(_lead(caller, port))
        callers.add(task)
        task.add_done_callback(callers.discard)
        task.add_done_callback(lambda _: room.release())


async def _lead(caller: socket.socket, port: int) -> None:
    """Connect a caller to the first loopback that accepts it."""
    for family, address in _LOOPBACKS:
        with socket.socket(family) as callee:
            callee.setblocking(False)  # noqa: FBT003
            try:
                await asyncio.get_running_loop().sock_connect(callee, (address, port))
            except OSError:
                continue
            for end in (caller, callee):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await carry(caller, callee)
            return caller.close()
    return reset(caller)
