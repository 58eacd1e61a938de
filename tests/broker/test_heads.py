"""Heads of HTTP/1.1: whatever we understand, another strict reader understands in the same way."""

from __future__ import annotations

import contextlib

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp

WORDS = (
    b"GET", b"POST", b" ", b"\t", b"/a?b", b"*", b"http://x/",
    b" HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\r\n", b"\n", b"\r",
    b"Host: x\r\n", b"Content-Length: 3\r\n", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", b": ", b":",
    b"X-A: b \r\n", b"\0", b"\x7f", b"\x80\xff", b" 200", b" OK", b"HTTP/1.1", b" 99", b" 600", b"\x0b", b"\x0c",
)  # fmt: skip
PARTS = st.one_of(st.sampled_from(WORDS), st.binary(max_size=4))
REQUESTS = st.lists(PARTS, max_size=14).map(b"".join) | st.lists(PARTS, max_size=6).map(
    lambda parts: b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(parts)
)
RESPONSES = st.lists(PARTS, max_size=10).map(lambda parts: b"HTTP/1.1 200 OK\r\n" + b"".join(parts)) | REQUESTS


def without_repetition(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return headers as h11 gives them, which folds lengths that are the same into one."""
    return tuple(row for place, row in enumerate(headers) if row[0] != b"content-length" or row not in headers[:place])


@given(REQUESTS)
@example(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3")
@example(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\xa0")
def test_a_request_that_is_understood_is_understood_alike(start):
    head = start + b"\r\n\r\n"
    with contextlib.suppress(MalformedHttp):
        size = messages.cut(head)
        request = messages.parse_request(head[:size])
        messages.request_framing(request)
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(head[:size])
        event = connection.next_event()
        assert isinstance(event, h11.Request)
        assert (event.method, event.target) == (request.method, request.target)
        assert tuple(event.headers) == without_repetition(request.headers)
        again = messages.parse_request(messages.render_request(request))
        assert again == request


@given(RESPONSES)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3")
def test_an_answer_that_is_understood_is_understood_alike(start):
    head = start + b"\r\n\r\n"
    with contextlib.suppress(MalformedHttp):
        size = messages.cut(head)
        response = messages.parse_response(head[:size])
        messages.response_framing(response, b"GET")
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="GET", target="/", headers=[("host", "-")]))
        connection.receive_data(head[:size])
        event = connection.next_event()
        assert isinstance(event, h11.Response | h11.InformationalResponse)
        assert (event.status_code, tuple(event.headers)) == (response.status, without_repetition(response.headers))
        assert messages.parse_response(messages.render_response(response)).headers == response.headers
