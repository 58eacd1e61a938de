"""HTTP that two programs could understand differently is refused before anybody else sees it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from pathlib import Path

import pytest
from tests.broker.conftest import KEY, Caller, Visit, running
from tests.conftest import PATIENCE

from claudebox.agent.claude import UPSTREAM
from claudebox.broker.http import messages
from claudebox.broker.http import stream as streams
from claudebox.broker.http.messages import ChunkDecoder, MalformedHttp
from claudebox.broker.http.stream import Stream

AUTH = f"x-api-key: {UPSTREAM.placeholder}\r\n".encode()
START = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + AUTH
HIDDEN = b"GET /api/hello HTTP/1.1\r\nhost: x\r\n\r\n"
CASES = {
    "a length and chunks": START + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and a length": START + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": START + b"content-length: 4\r\ncontent-length: 40\r\n\r\nabcd" + HIDDEN,
    "a list of lengths": START + b"content-length: 4, 40\r\n\r\nabcd" + HIDDEN,
    "a signed length": START + b"content-length: +4\r\n\r\nabcd",
    "a length in hexadecimal": START + b"content-length: 0x4\r\n\r\nabcd",
    "an endless length": START + b"content-length: " + b"9" * 40 + b"\r\n\r\n",
    "another coding": START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": START + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, misspelled": START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked after a tab": START + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": START.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": START + b"x-a: 1\r\n content-length: 4\r\n\r\n",
    "a line folded with a tab": START + b"x-a: 1\r\n\tx: 4\r\n\r\n",
    "a bare line feed": START + b"x-a: 1\ncontent-length: 4\r\n\r\nabcd",
    "only line feeds": START.replace(b"\r\n", b"\n") + b"\n",
    "a bare carriage return": START + b"x-a: 1\rcontent-length: 4\r\n\r\nabcd",
    "a blank before the colon": START + b"content-length : 4\r\n\r\nabcd",
    "a name with a control character": START + b"content\x01length: 4\r\n\r\n",
    "a value with a zero": START + b"x-a: 1\x002\r\n\r\n",
    "a header without a name": START + b": 4\r\n\r\n",
    "a blank in the target": START.replace(b"/v1/messages", b"/v1/ messages") + b"\r\n",
    "no host": b"POST /v1/messages HTTP/1.1\r\n" + AUTH + b"\r\n",
    "two hosts": START + b"host: y\r\n\r\n",
    "another version": START.replace(b"HTTP/1.1", b"HTTP/3.9") + b"\r\n",
    "a huge head": START + b"x-a: " + b"a" * 70_000 + b"\r\n\r\n",
    "very many headers": START + b"x-a: b\r\n" * 9_000 + b"\r\n",
    "not HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n",
    "a negative chunk": START + b"transfer-encoding: chunked\r\n\r\n-1\r\nabcd\r\n0\r\n\r\n",
    "a chunk in another notation": START + b"transfer-encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
    "a chunk with an underscore": START + b"transfer-encoding: chunked\r\n\r\n1_0\r\nabcd\r\n0\r\n\r\n",
    "a chunk with an extension": START + b"transfer-encoding: chunked\r\n\r\n4;a=\n\r\nabcd\r\n0\r\n\r\n",
    "a chunk that is longer than it says": START + b"transfer-encoding: chunked\r\n\r\n4\r\nabcdefgh\r\n0\r\n\r\n",
    "a chunk with a bare line feed": START + b"transfer-encoding: chunked\r\n\r\n4\nabcd\r\n0\r\n\r\n",
    "an endless line between chunks": START + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 5_000,
    "too many trailers": START + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 3_000,
}


def test_what_is_ambiguous_is_refused_and_the_connection_ends(upstream, broker):
    served = upstream(lambda visit: (visit.body(), visit.reply()))
    connect = broker(served)
    for name, text in CASES.items():
        caller = connect()
        caller.say(text)
        status, headers = caller.head()
        caller.take(int(headers["content-length"]))

        assert status == 400, name
        assert caller.ended(), name
    assert not [row for row in served.requests if row[0] == "GET"]  # what was hidden in a body is no request
    control = connect()
    control.ask(body=b"abcd")
    assert control.answer() == (200, b"ok")


def test_requests_that_come_together_are_answered_in_their_order(upstream, broker):
    served = upstream(lambda visit: visit.reply(visit.path.encode()))
    caller = broker(served)()
    ask = START.replace(b"/v1/messages", b"/v1/messages?beta=%d") + b"content-length: 2\r\n\r\nab"

    caller.say(b"".join(ask % number for number in range(50)))

    assert [caller.answer()[1] for _ in range(50)] == [b"/v1/messages?beta=%d" % number for number in range(50)]
    assert {row[2]["x-api-key"] for row in served.requests} == {KEY}


def test_a_head_may_come_byte_by_byte_and_blank_lines_before_it(upstream, broker):
    caller = broker(upstream(lambda visit: visit.reply(visit.body())))()
    for byte in START + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
        caller.say(bytes([byte]))

    assert caller.answer() == (200, b"abc")


def test_hop_by_hop_headers_end_here(upstream, broker):
    served = upstream(lambda visit: visit.reply(headers="connection: x-secret\r\nx-secret: 1\r\nkeep-alive: 5\r\n"))
    caller = broker(served)()

    caller.ask(headers="connection: keep-alive, x-private\r\nx-private: 1\r\nte: trailers\r\nx-stainless-lang: js\r\n")
    _, found = caller.head()

    sent = served.requests[0][2]
    assert sent["x-stainless-lang"] == "js"
    assert not {"x-private", "te", "connection"} & set(sent)
    assert not {"x-secret", "keep-alive"} & set(found)


def test_connection_cannot_name_away_what_frames_a_body(upstream, broker):
    served = upstream(lambda visit: visit.reply(visit.body()))
    caller = broker(served)()

    caller.ask(body=b"abcd", headers="connection: content-length, host, x-api-key\r\n")
    status, _ = caller.answer()

    assert served.requests[0][2]["content-length"] == "4"
    assert "x-api-key" not in served.requests[0][2]
    assert status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\ncontent-length: 3\r\n\r\nabc", b"nonsense\r\n\r\n", b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)  # fmt: skip
def test_a_malformed_answer_is_not_passed_on(upstream, broker, answer):
    caller = broker(upstream(lambda visit: visit.say(answer)))()
    caller.ask()

    assert caller.answer()[0] == 502


def test_an_upstream_that_says_too_much_is_not_asked_again(upstream, broker):
    """What comes after an answer would be taken for the next one."""
    smuggled = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    said = threading.Event()

    def answer(visit):
        visit.body()
        visit.reply()
        if visit.path.endswith("=first"):
            visit.say(smuggled)
            said.set()

    served = upstream(answer)
    caller = broker(served)()
    caller.ask(path="/v1/messages?beta=first")
    assert caller.answer() == (200, b"ok")
    assert said.wait(PATIENCE)  # what it has not said yet could only be told from an answer by asking nothing
    caller.ask(path="/v1/messages?beta=second")

    assert caller.answer() == (200, b"ok")
    assert served.connections == 2


def test_chunks_are_decoded_wherever_they_are_cut():
    body = b"5\r\nhello\r\n10\r\n0123456789abcdef\r\n5\r\nworld\r\n0\r\nx: y\r\nz: w\r\n\r\nNEXT"
    numbers = random.Random(8)
    for _ in range(500):
        chunks, content, at, after = ChunkDecoder(strict=True), b"", 0, b""
        while not chunks.ended:
            step = numbers.randint(1, 20)
            piece, after = chunks.feed(body[at : at + step])
            at += step
            content += piece
        assert (content, after + body[at:]) == (b"hello0123456789abcdefworld", b"NEXT")


@pytest.mark.parametrize("place", [0, 3, 50, 199])
@pytest.mark.parametrize("most", [1, 3, 518, 519, 520, 4000, 1 << 17])
def test_a_chunk_that_is_broken_among_many_of_its_like_is_noticed(place, most):
    parts = [b"200\r\n" + bytes(512) + b"\r\n"] * 200
    parts[place] = b"200\r\n" + bytes(513) + b"\n"
    body = b"".join((*parts, b"0\r\n\r\n"))
    chunks = ChunkDecoder(strict=False)

    def feed() -> None:
        for at in range(0, len(body), most):
            chunks.feed(body[at : at + most])

    with pytest.raises(MalformedHttp):
        feed()


@pytest.mark.parametrize("cuts", [1, 2, 3, 7, 1000])
def test_a_broken_chunk_is_noticed_wherever_it_is_cut(cuts):
    body = b"5\r\nhello\r\n5\r\nhello\r\n5\r\nhelloX\n0\r\n\r\n"
    chunks = ChunkDecoder(strict=False)

    def feed() -> None:
        for at in range(0, len(body), cuts):
            chunks.feed(body[at : at + cuts])

    with pytest.raises(MalformedHttp):
        feed()


def test_heads_are_read_as_they_are_written():
    request = messages.parse_request(b"POST /a?b HTTP/1.1\r\nHost: x\r\nX-Thing:  two  words \r\n\r\n")
    assert request.headers == ((b"host", b"x"), (b"x-thing", b"two  words"))
    assert messages.render_request(request) == b"POST /a?b HTTP/1.1\r\nhost: x\r\nx-thing: two  words\r\n\r\n"
    response = messages.parse_response(b"HTTP/1.1 200 Fine\r\nA: b\r\n\r\n")
    assert (response.status, response.headers) == (200, ((b"a", b"b"),))


def test_a_stream_that_ends_within_a_head_says_so():
    async def read(content: bytes) -> bytes:
        stream = Stream()
        stream.unread(content)
        stream.eof_received()
        return await stream.read_head()

    assert asyncio.run(read(b"")) == b""
    with pytest.raises(MalformedHttp):
        asyncio.run(read(b"GET / HTTP/1.1\r\nhos"))


@pytest.mark.parametrize("way", ["up", "down"])
def test_who_does_not_read_takes_no_more_memory_than_is_stated(upstream, tmp_path, way):
    """Four hundred callers, of whom as many are let in as may be, each with more than fits anywhere."""
    # proves BROKER-01, NEW-N2
    stay = threading.Event()

    def answer(visit: Visit) -> bool:
        if way == "down":
            visit.channel.settimeout(60)
            visit.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(100):
                    visit.say(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        stay.wait(60)
        return False

    with running(upstream(answer).port) as sidecar, contextlib.ExitStack() as stack:
        path = sidecar.sockets["model_api"]
        callers = []
        for _ in range(400):
            caller = stack.enter_context(Caller(path))
            caller.channel.settimeout(1)
            callers.append(caller)
            if way == "down":
                caller.ask(path="/v1/messages/count_tokens", body=b"{}")
                continue
            length = f"content-length: {8 << 20}\r\n"
            head = f"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: x\r\n{AUTH.decode()}{length}\r\n"
            caller.say(head.encode())
        if way == "up":
            for caller in callers:
                caller.channel.setblocking(False)  # noqa: FBT003
            for _ in range(60):
                for caller in callers:
                    with contextlib.suppress(OSError):
                        caller.channel.send(bytes(1 << 16))
        else:
            time.sleep(3)
        lines = Path(f"/proc/{sidecar._process}/status").read_text().splitlines()
        most = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))
        stay.set()

    assert most < 256  # MiB: the figure of docs/design.md


@pytest.mark.parametrize("drip", [b"x", b"\r\n"])
def test_a_head_that_comes_drop_by_drop_has_an_end(monkeypatch, drip):
    # proves BROKER-01
    monkeypatch.setattr(streams, "_HEAD_TIME", 0.3)

    async def read() -> None:
        stream = Stream()

        async def feed() -> None:
            for _ in range(100):
                stream.unread(drip)
                if stream._reader is not None and not stream._reader.done():
                    stream._reader.set_result(None)
                await asyncio.sleep(0.05)

        feeding = asyncio.ensure_future(feed())
        with pytest.raises(TimeoutError):
            await stream.read_head(limited=True)
        assert not feeding.done()
        feeding.cancel()

    asyncio.run(read())
