"""Streaming, back-pressure, large bodies, many connections: through a real broker, as a process of its own."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from claudebox.agent.claude import UPSTREAM

MEGABYTE = 1 << 20


@pytest.mark.parametrize("secure", [False, True])
def test_the_first_byte_and_every_event_pass_at_once(upstream, broker, secure):
    step = threading.Semaphore(0)

    def stream(visit):
        visit.body()
        visit.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(5):
            step.acquire(timeout=20)
            visit.say(b"9\r\ndata: %d\n\n\r\n" % number)
        step.acquire(timeout=20)
        visit.say(b"0\r\n\r\n")

    caller = broker(upstream(stream, secure=secure))()
    caller.ask(body=b"{}")
    assert caller.head()[0] == 200  # before there is any event
    for number in range(5):
        step.release()
        assert caller.take(14) == b"9\r\ndata: %d\n\n\r\n" % number  # before the next one is sent
    step.release()
    assert caller.take(5) == b"0\r\n\r\n"


def test_a_request_streams_too_and_the_answer_may_come_before_its_end(upstream, broker):
    def answer_early(visit):
        first = visit.take(5)
        visit.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n" + first + b"\r\n")
        visit.say(b"5\r\n" + visit.take(5) + b"\r\n0\r\n\r\n")

    caller = broker(upstream(answer_early))()
    caller.say(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n".encode())
    caller.say(b"content-length: 10\r\n\r\nline\n")
    assert caller.head()[0] == 200
    assert caller.take(10) == b"5\r\nline\n\r\n"
    caller.say(b"after")
    assert caller.take(15) == b"5\r\nafter\r\n0\r\n\r\n"


@pytest.mark.parametrize("secure", [False, True])
def test_large_bodies_pass_both_ways_and_are_what_they_were(upstream, broker, secure):
    digests = []

    def echo(visit):
        taken, whole = hashlib.sha256(), int(visit.headers["content-length"])
        left = whole
        while left:
            piece = visit.take(min(left, MEGABYTE))
            taken.update(piece)
            left -= len(piece)
        digests.append(taken.hexdigest())
        visit.say(f"HTTP/1.1 200 OK\r\ncontent-length: {whole}\r\n\r\n".encode())
        for number in range(24):
            visit.say(block(number))

    connect = broker(upstream(echo, secure=secure))
    caller = connect()
    wanted = hashlib.sha256()
    caller.say(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n".encode())
    caller.say(f"content-length: {24 * MEGABYTE}\r\n\r\n".encode())
    for number in range(24):
        wanted.update(block(number))
        caller.say(block(number))
    assert caller.head()[0] == 200
    found = hashlib.sha256()
    for _ in range(24):
        found.update(caller.take(MEGABYTE))

    assert digests == [wanted.hexdigest()]
    assert found.hexdigest() == wanted.hexdigest()


def block(number: int) -> bytes:
    """Return a megabyte that no other is like."""
    return bytes([number, 255 - number, 13, 10]) * (MEGABYTE // 4)


def test_whoever_does_not_read_stops_the_upstream_and_not_the_memory(upstream, broker):
    sent = [0]

    def flood(visit):
        visit.say(f"HTTP/1.1 200 OK\r\ncontent-length: {80 * MEGABYTE}\r\n\r\n".encode())
        for number in range(80):
            visit.say(block(number))
            sent[0] += 1

    connect = broker(upstream(flood))
    caller = connect()
    process = newest_broker()
    caller.ask()
    caller.head()
    stopped = settled(lambda: sent[0])

    assert stopped < 32  # what socket buffers hold, and no more
    assert resident(process) < 60
    for number in range(80):  # and nothing is lost
        assert caller.take(MEGABYTE) == block(number)
    assert sent[0] == 80


def test_an_upstream_that_does_not_read_stops_the_sender(upstream, broker):
    go_on = threading.Event()

    def wait(visit):
        go_on.wait(30)
        visit.body()
        visit.reply()

    caller = broker(upstream(wait))()
    process = newest_broker()
    caller.say(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n".encode())
    caller.say(f"content-length: {64 * MEGABYTE}\r\n\r\n".encode())
    sent = [0]

    def send():
        for _ in range(64):
            caller.say(bytes(MEGABYTE))
            sent[0] += 1

    sender = threading.Thread(target=send)
    sender.start()
    stopped = settled(lambda: sent[0])
    assert stopped < 32
    assert resident(process) < 60
    go_on.set()
    sender.join(30)
    assert caller.answer() == (200, b"ok")


def settled(count) -> int:
    """Return a number once it does not grow any more."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        if count() != last:
            last, since = count(), time.monotonic()
        time.sleep(0.02)
    return last


def newest_broker() -> int:
    """Return the process of the broker that was started last by this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return int(children[-1])


def resident(process: int) -> float:
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def test_connections_are_used_again_on_both_sides(upstream, broker):
    served = upstream(lambda visit: visit.reply(visit.body()), secure=True)
    connect = broker(served)
    caller = connect()
    for number in range(20):
        caller.ask(body=b"%d" % number)
        assert caller.answer() == (200, b"%d" % number)
    other = connect()
    other.ask(body=b"other")
    assert other.answer() == (200, b"other")

    assert served.connections == 1


def test_an_upstream_that_closes_is_asked_anew(upstream, broker):
    def once(visit):
        visit.reply(headers="connection: close\r\n")
        return False

    served = upstream(once)
    caller = broker(served)()
    for _ in range(3):
        caller.ask()
        assert caller.answer() == (200, b"ok")

    assert served.connections == 3


def test_a_broken_answer_is_seen_as_broken(upstream, broker):
    def break_off(visit):
        visit.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal")
        return False

    def shorten(visit):
        visit.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        return False

    def say_nothing(_visit):
        return False

    for handler in (break_off, shorten):
        caller = broker(upstream(handler))()
        caller.ask()
        assert caller.head()[0] == 200
        caller.take(8)
        assert caller.ended()
    silent = broker(upstream(say_nothing))()
    silent.ask()
    assert silent.answer()[0] == 502


def test_whoever_gives_up_ends_the_question_at_the_upstream(upstream, broker):
    """A user presses Escape: the upstream must not go on thinking at their expense."""
    asked, gone = threading.Event(), threading.Event()

    def think(visit):
        visit.body()
        asked.set()
        if visit.channel.recv(1) == b"":
            gone.set()
        return False

    caller = broker(upstream(think))()
    caller.ask(body=b"{}")
    assert asked.wait(30)
    time.sleep(0.1)
    assert not gone.is_set()
    caller.channel.close()

    assert gone.wait(10)


def test_two_hundred_streams_hold_side_by_side(upstream, broker):
    def stream(visit):
        visit.body()
        visit.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(10):
            visit.say(b"8\r\nevent %d\n\r\n" % number)
            time.sleep(0.02)
        visit.say(b"0\r\n\r\n")

    connect = broker(upstream(stream, secure=True))
    whole = b"".join(b"event %d\n" % number for number in range(10))
    callers = [connect() for _ in range(200)]
    for caller in callers:
        caller.ask(body=b"x" * 50_000)

    for caller in callers:
        assert caller.head()[0] == 200
        assert caller.content() == whole


def test_bodies_end_where_they_end(upstream, broker):
    """HEAD, 204 and 304 have none, whatever their headers say; without a length it is the end of the connection."""

    def answer(visit):
        kind = visit.path.partition("=")[2]
        visit.body()
        if kind == "close":
            visit.say(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
            return False
        if kind == "204":
            visit.say(b"HTTP/1.1 204 No Content\r\n\r\n")
        else:
            visit.say(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        return True

    served = upstream(answer)
    caller = broker(served)()
    caller.ask("HEAD", "/api/hello")
    assert caller.head()[0] == 200
    caller.ask("POST", "/v1/messages?beta=204")
    assert caller.head()[0] == 204
    caller.ask("POST", "/v1/messages?beta=close")
    assert caller.head()[0] == 200
    assert caller.content() == b"until the end"


def test_a_client_that_waits_for_permission_gets_it(upstream, broker):
    served = upstream(lambda visit: visit.reply(visit.body()))
    caller = broker(served)()
    caller.say(
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\nexpect: 100-continue\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    assert caller.head()[0] == 100
    caller.say(b"3\r\nabc\r\n0\r\nignored: trailer\r\n\r\n")

    assert caller.answer() == (200, b"abc")
    assert "expect" not in served.requests[0][2]
