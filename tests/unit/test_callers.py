"""Which program is calling."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from claudebox.broker.proxy.callers import Attributed, Callers

CALL = """
import socket, sys
from pathlib import Path
Path("/proc/self/comm").write_text("my\\ttool")
channel = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
channel.send(b"x")
channel.recv(1)
"""


@pytest.fixture
def calling():
    """Return a connection of another program, and the program."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", CALL, str(server.getsockname()[1])]
        with subprocess.Popen(words) as process:
            channel, _ = server.accept()
            with channel:
                channel.recv(1)
                yield channel, process
            process.wait(5)


def test_the_program_of_a_connection_is_found_and_cleaned(calling):
    channel, _ = calling
    callers = Callers(os.getpid())
    for _ in range(2):  # the second time it is remembered
        assert callers.find(*channel.getpeername()) == "my?tool"
    callers.close()


def test_strangers_and_those_who_have_gone_stay_nameless(calling):
    channel, process = calling
    where = channel.getpeername()
    assert Callers(process.pid).find(*where) == "my?tool"
    stranger = Callers(1 << 30)
    assert stranger.find(*where) == ""
    known = Callers(os.getpid())
    assert known.find(where[0], 1) == ""
    assert known.find(*where)
    process.kill()
    process.wait()
    assert known.find(*where) == ""


def test_a_decision_is_written_down_with_the_program_even_if_that_comes_later(calling):
    channel, _ = calling
    written: list[dict[str, object]] = []
    callers = Callers(os.getpid())

    async def body() -> None:
        record = Attributed(lambda **decision: written.append(decision), callers)
        record(host="a.example", port=1, verdict="denied", rule="x")
        record.begin(channel)
        record(host="b.example", port=2, verdict="denied", rule="x")
        await record.known()
        await asyncio.sleep(0)
        record(host="c.example", port=3, verdict="allowed", rule="x", up=1)

    asyncio.run(body())
    callers.close()
    assert [(row["host"], row["program"]) for row in written] == [
        ("a.example", ""), ("b.example", "my?tool"), ("c.example", "my?tool"),
    ]  # fmt: skip
