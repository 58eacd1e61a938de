"""Bodies of answers arrive as their heads say, however the upstream frames and compresses them."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.broker.conftest import Caller

PATHS = {  # a body that is counted on its way, one that is cleaned, one that passes as it is
    "POST /v1/messages": ("200 OK", "application/json"),
    "POST /v1/messages?beta=true": ("200 OK", "text/event-stream"),
    "POST /v1/messages/count_tokens": ("400 Bad Request", "application/json"),
    "GET /api/claude_code/policy_limits": ("200 OK", "application/json"),
    "GET /v1/models": ("200 OK", "text/plain"),
}
TEXT = json.dumps({"type": "message", "text": "word " * 40_000}).encode()


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress, "identity": bytes}


def decoded(caller: Caller) -> tuple[dict[str, str], bytes]:
    """Return the next answer as a program sees it, which believes its head."""
    _, headers = caller.head()
    if headers.get("transfer-encoding") == "chunked":
        assert "content-length" not in headers
        content = caller.content()
    else:
        content = caller.take(int(headers["content-length"]))
    coding = headers.get("content-encoding", "identity")
    return headers, UNPACK[coding](content)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
def test_an_answer_is_what_its_head_says(upstream, broker, path, coding, framing):
    # proves NEW-N5
    status, kind = PATHS[path]
    packed = PACK[coding](TEXT)

    def reply(visit):
        visit.body()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\n"
        if framing == "length":
            visit.say(f"{head}content-length: {len(packed)}\r\n\r\n".encode() + packed)
        elif framing == "close":
            visit.say(f"{head}\r\n".encode() + packed)
            return False
        else:
            visit.say(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for at in range(0, len(packed), 999):
                piece = packed[at : at + 999]
                visit.say(b"%x;x=y\r\n%s\r\n" % (len(piece), piece))
            visit.say(b"0\r\nx: y\r\n\r\n")
        return True

    caller = broker(upstream(reply))()
    for _ in range(2):  # the connection can be used again: nothing too much and nothing too little came
        caller.ask(*path.split(), headers="accept-encoding: gzip, deflate\r\n")
        headers, content = decoded(caller)
        assert content == TEXT
        assert headers["content-type"] == kind


@pytest.mark.parametrize("cut", [1, 9, 200])
def test_a_compressed_answer_that_breaks_off_is_seen_as_broken(upstream, broker, cut):
    # proves NEW-N11
    packed = gzip.compress(TEXT)[:-cut]
    headers = "content-encoding: gzip\r\ncontent-type: application/json\r\n"
    caller = broker(upstream(lambda visit: (visit.body(), visit.reply(packed, headers=headers))))()
    caller.ask()
    assert caller.head()[0] == 200
    rest = caller.rest
    while piece := recv(caller):
        rest += piece
    assert not rest.endswith(b"0\r\n\r\n")


def recv(caller: Caller) -> bytes:
    try:
        return caller.channel.recv(1 << 16)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("body", [b"", b"{}", bytes(100_000)])
def test_a_connection_that_went_stale_is_tried_once_more_on_a_fresh_one(upstream, broker, body):
    # proves NEW-N11
    seen: list[tuple[object, bytes]] = []

    def reply(visit):
        if any(other is visit for other, _ in seen):  # one request for a connection, and the next is not heard
            return False
        seen.append((visit, visit.body()))
        visit.reply()
        return True

    served = upstream(reply)
    caller = broker(served)()
    for number in range(4):
        caller.ask(body=body)
        assert caller.answer() == (200, b"ok"), number
    assert [content for _, content in seen] == [body] * 4
    assert served.connections == 4


def test_a_fresh_connection_that_ends_is_not_tried_again(upstream, broker):
    # proves NEW-N11
    served = upstream(lambda _visit: False)
    caller = broker(served)()
    caller.ask(body=b"{}")
    assert caller.answer()[0] == 502
    time.sleep(0.1)
    assert len(served.requests) == 1
