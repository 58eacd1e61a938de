"""Bodies of answers arrive as their heads say, however the upstream frames them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.broker.conftest import Caller

PATHS = {  # a body that is counted on its way, one that is cleaned, one that passes as it is
    "POST /v1/messages": ("200 OK", "application/json"),
    "POST /v1/messages?beta=true": ("200 OK", "text/event-stream"),
    "POST /v1/messages/count_tokens": ("400 Bad Request", "application/json"),
    "GET /api/claude_code/policy_limits": ("200 OK", "application/json"),
    "GET /v1/models": ("200 OK", "text/plain"),
}
TEXT = json.dumps({"type": "message", "text": "word " * 40_000}).encode()


def decoded(caller: Caller) -> tuple[dict[str, str], bytes]:
    """Return the next answer as a program sees it, which believes its head."""
    _, headers = caller.head()
    if headers.get("transfer-encoding") == "chunked":
        assert "content-length" not in headers
        content = caller.content()
    else:
        content = caller.take(int(headers["content-length"]))
    return headers, content


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
def test_an_answer_is_what_its_head_says(upstream, broker, path, framing):
    # proves NEW-N5
    status, kind = PATHS[path]

    def reply(visit):
        visit.body()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n"
        if framing == "length":
            visit.say(f"{head}content-length: {len(TEXT)}\r\n\r\n".encode() + TEXT)
        elif framing == "close":
            visit.say(f"{head}\r\n".encode() + TEXT)
            return False
        else:
            visit.say(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for at in range(0, len(TEXT), 999):
                piece = TEXT[at : at + 999]
                visit.say(b"%x;x=y\r\n%s\r\n" % (len(piece), piece))
            visit.say(b"0\r\nx: y\r\n\r\n")
        return True

    served = upstream(reply)
    caller = broker(served)()
    for _ in range(2):  # the connection can be used again: nothing too much and nothing too little came
        caller.ask(*path.split(), headers="accept-encoding: gzip, deflate\r\n")
        headers, content = decoded(caller)
        assert content == TEXT
        assert headers["content-type"] == kind
        assert served.requests[-1][2]["accept-encoding"] == "identity"


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
