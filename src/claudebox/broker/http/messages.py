"""Heads of HTTP/1.1, read more strictly than programs read them to one another.

Everything is refused that two programs could understand differently: bare line feeds, folded lines, control characters,
blanks around names, two ways to tell a length.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Literal

from claudebox.values import Value

if TYPE_CHECKING:
    from claudebox.broker.http.stream import Stream

Headers = tuple[tuple[bytes, bytes], ...]
Framing = Literal["none", "length", "chunked", "close"]

HEAD_LIMIT = 1 << 16
_HEAD_TIME = 30.0  # seconds for a head that has begun
_IDLE_TIME = 600.0  # seconds between two requests on one connection
_HOPS = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
))  # fmt: skip
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%s) ([!-~]+) HTTP/(1\.[01])" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_FIELD = re.compile(rb"(%s):[\t ]*((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[\t ]*" % _TOKEN)


class MalformedHttp(Exception):  # noqa: N818 - it becomes an answer
    """What came is not the HTTP/1.1 that everybody understands in the same way."""


class Request(Value):
    """The head of a request; names of headers are in lower case."""

    method: bytes
    target: bytes
    headers: Headers
    version: bytes = b"1.1"

    def header(self, name: bytes) -> bytes | None:
        """Return the first of this name."""
        return _first(self.headers, name)

    def with_headers(self, headers: Headers) -> Request:
        """Return the same request with other headers."""
        return self.replace(headers=headers)


class Response(Value):
    """The head of an answer; without its reason phrase, which means nothing and could carry anything."""

    status: int
    headers: Headers
    version: bytes = b"1.1"

    def header(self, name: bytes) -> bytes | None:
        """Return the first of this name."""
        return _first(self.headers, name)

    def with_headers(self, headers: Headers) -> Response:
        """Return the same answer with other headers."""
        return self.replace(headers=headers)


def _first(headers: Headers, name: bytes) -> bytes | None:
    return next((value for found, value in headers if found == name), None)


def cut(buffer: bytes, limit: int = HEAD_LIMIT) -> int:
    """Return where the head ends in what came so far, 0 if it has not come; refuse what is ambiguous."""
    end = buffer.find(b"\r\n\r\n", 0, limit)
    if end < 0 and len(buffer) >= limit:
        raise MalformedHttp(f"the head is longer than {limit} bytes")
    head = buffer[: end + 4 if end >= 0 else limit]
    lines = head.count(b"\n")
    if lines != head.count(b"\r\n") or head.count(b"\r") > lines + head.endswith(b"\r"):
        raise MalformedHttp("a line of the head does not end with CR LF")
    if b"\n " in head or b"\n\t" in head:
        raise MalformedHttp("a line of the head is folded")
    return end + 4 if end >= 0 else 0


def parse_request(head: bytes, *, any_host: bool = False) -> Request:
    """Read the whole head of a request; it has one `Host`, unless it is for a proxy."""
    first, headers = _parse_fields(head)
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise MalformedHttp("the first line is not that of a request of HTTP/1")
    hosts = sum(name == b"host" for name, _ in headers)
    if not any_host and (hosts > 1 or (hosts == 0 and found[3] == b"1.1")):
        raise MalformedHttp("there is not one `Host`")
    return Request(found[1], found[2], headers, found[3])


def parse_response(head: bytes) -> Response:
    """Read the whole head of an answer."""
    first, headers = _parse_fields(head)
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise MalformedHttp("the first line is not that of an answer of HTTP/1")
    return Response(int(found[2]), headers, found[1])


def _parse_fields(head: bytes) -> tuple[bytes, Headers]:
    """Return the first line and the fields of a head that `cut` has found to be whole and unambiguous."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise MalformedHttp("a field of the head has no proper name or value")
        headers.append((found[1].lower(), found[2]))
    return first, tuple(headers)


def render_request(request: Request) -> bytes:
    """Return the bytes of a head."""
    return b"%s %s HTTP/%s\r\n%s\r\n" % (request.method, request.target, request.version, _lines(request.headers))


def render_response(response: Response) -> bytes:
    """Return the bytes of a head."""
    return b"HTTP/1.1 %d \r\n%s\r\n" % (response.status, _lines(response.headers))


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%s: %s\r\n" % pair for pair in headers)


def end_to_end(headers: Headers) -> Headers:
    """Return the headers that are not for the next hop alone."""
    named = {word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")} - {
        b"content-length",
        b"host",
    }
    return tuple(pair for pair in headers if pair[0] not in _HOPS and pair[0] not in named)


def keeps_alive(message: Request | Response) -> bool:
    """Return whether the connection can be used again after this message."""
    words = {word.strip().lower() for n, value in message.headers if n == b"connection" for word in value.split(b",")}
    return message.version == b"1.1" and b"close" not in words


def request_framing(request: Request) -> tuple[Framing, int]:
    """Tell how the end of the body is found."""
    return _framing(request.headers, request.version, "none")


def response_framing(response: Response, method: bytes) -> tuple[Framing, int]:
    """Tell how the end of the body is found."""
    if method == b"HEAD" or response.status in (204, 304) or response.status < 200:
        return "none", 0
    return _framing(response.headers, response.version, "close")


def _framing(headers: Headers, version: bytes, otherwise: Framing) -> tuple[Framing, int]:
    coding = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = {value.strip() for name, value in headers if name == b"content-length"}
    if coding and lengths:
        raise MalformedHttp("both a length and a transfer coding are given")
    if coding:
        if coding != [b"chunked"] or version == b"1.0":
            raise MalformedHttp("a transfer coding other than `chunked`")
        return "chunked", 0
    if not lengths:
        return otherwise, 0
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > 18:
        raise MalformedHttp("the length is not a number")
    return "length", int(length)


async def read_head(stream: Stream, *, limited: bool = False) -> bytes:
    """Return the next head; nothing if the stream ends before it."""
    buffer, begun = b"", False
    if stream.caller is not None:
        stream.caller.expect()
    async with asyncio.timeout(_IDLE_TIME if limited else None) as limit:
        while True:
            piece = await stream.read()
            if not piece:
                if buffer.strip(b"\r\n"):
                    raise MalformedHttp("the head breaks off")
                return b""
            if limited and not begun:
                begun = True
                limit.reschedule(asyncio.get_running_loop().time() + _HEAD_TIME)
            buffer = (buffer + piece).lstrip(b"\r\n") if buffer[:1] in b"\r\n" else buffer + piece
            end = cut(buffer)
            if end:
                if stream.caller is not None:
                    stream.caller.heard()
                stream.unread(buffer[end:])
                return buffer[:end]
