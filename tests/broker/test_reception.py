"""The one way into the broker, over loopback: who is let in, who makes room, what a kernel without room does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time

import pytest

from claudebox.broker import reception as module
from claudebox.broker.reception import Reception, Room

pytestmark = pytest.mark.process


@contextlib.asynccontextmanager
async def opened(room: Room, attend, descriptors: int = 0):
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        reception = Reception(descriptors)
        reception.listen(listener, room, attend)
        try:
            yield reception, listener.getsockname()
        finally:
            reception.close()
            await asyncio.sleep(0.05)


async def call(address) -> socket.socket:
    channel = socket.socket()
    channel.setblocking(False)  # noqa: FBT003
    await asyncio.get_running_loop().sock_connect(channel, address)
    return channel


async def heard(channel: socket.socket) -> bytes:
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(channel, 100), 10)
    except ConnectionResetError:
        return b""


async def greet(visitor) -> None:
    """Serve whoever says a word, for as long as they stay."""
    loop = asyncio.get_running_loop()
    word = await loop.sock_recv(visitor.channel, 100)
    visitor.heard()
    await loop.sock_sendall(visitor.channel, word)
    await loop.sock_recv(visitor.channel, 100)


async def test_the_silent_make_room_for_those_who_speak(monkeypatch):
    # proves NEW-N7, BROKER-01
    monkeypatch.setattr(module, "_SILENCE", 0.1)
    async with opened(Room(3, 2), greet) as (_, address):
        silent = [await call(address) for _ in range(50)]
        caller = await call(address)
        caller.send(b"word")
        assert await heard(caller) == b"word"
        assert await heard(silent[0]) == b""  # it was sent away
        more = [await call(address) for _ in range(20)]
        await asyncio.sleep(0.5)
        caller.setblocking(False)  # noqa: FBT003
        with pytest.raises(BlockingIOError):
            caller.recv(1)  # who has said what they want stays
        for channel in (*silent, *more, caller):
            channel.close()


async def test_nobody_is_taken_in_without_room_and_all_kinds_share_the_descriptors(monkeypatch):
    # proves NEW-N2, BROKER-01
    monkeypatch.setattr(module, "_SILENCE", 60.0)
    present = {"one": 0, "other": 0}

    def attend(kind: str):
        async def serve(visitor) -> None:
            visitor.heard()
            present[kind] += 1
            try:
                await asyncio.get_running_loop().sock_recv(visitor.channel, 1)
            finally:
                present[kind] -= 1

        return serve

    with socket.create_server(("127.0.0.1", 0)) as second:
        async with opened(Room(5, 2), attend("one"), descriptors=14) as (reception, address):
            reception.listen(second, Room(5, 2), attend("other"))
            first = [await call(address) for _ in range(9)]
            await asyncio.sleep(0.1)
            assert present == {"one": 5, "other": 0}  # as many as of one kind may be
            others = [await call(second.getsockname()) for _ in range(9)]
            await asyncio.sleep(0.1)
            assert present == {"one": 5, "other": 2}  # and of all together
            for channel in first:
                channel.close()
            await asyncio.sleep(0.1)
            assert present["other"] == 5
            for channel in others:
                channel.close()


async def test_a_process_without_descriptors_pauses_and_goes_on(monkeypatch):
    # proves NEW-N2, NEW-N11
    monkeypatch.setattr(module, "_PAUSE", 0.05)
    tries = 0

    async def serve(visitor) -> None:
        visitor.channel.send(b"here")

    async with opened(Room(100, 1), serve, descriptors=1000) as (_, address):
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def counted(listener):
            nonlocal tries
            tries += 1
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", counted)
        before = await call(address)
        assert await heard(before) == b"here"
        caller = socket.socket()
        caller.setblocking(False)  # noqa: FBT003
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open("/", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
        try:
            await loop.sock_connect(caller, address)
            tries = 0
            used = time.process_time()
            await asyncio.sleep(0.6)
            assert 2 <= tries <= 30
            assert time.process_time() - used < 0.4
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert await heard(caller) == b"here"
        for channel in (before, caller):
            channel.close()


def test_no_kind_of_caller_takes_more_than_half_of_the_descriptors():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit[1]))
        assert Room(1024, 6).most == 21
        assert Room(4, 0).most == 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
