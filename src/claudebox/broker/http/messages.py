"""Heads and bodies of HTTP/1.1, read more strictly than programs read them to one another.

The grammar is h11's. Before it sees a head, everything is refused that two programs could understand differently: bare
line feeds, folded lines, two ways to tell a length. Bodies are not parsed but followed, so that they pass as they come.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

import h11

if TYPE_CHECKING:
    from claudebox.broker.http.stream import Stream

Headers = tuple[tuple[bytes, bytes], ...]
Framing = Literal["none", "length", "chunked", "close"]

HEAD_LIMIT = 1 << 16
_HEAD_TIME = 30.0  # seconds for a head that has begun
_IDLE_TIME = 600.0  # seconds between two requests on one connection
_LINE = 1 << 12  # between chunks
_TRAILERS = 1 << 13
_KNOWN, _SMALL, _OFTEN = 4096, 4096, 4
_HOPS = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
))  # fmt: skip
_VERSIONS = (b"1.0", b"1.1")
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_HEX = frozenset(b"0123456789abcdefABCDEF")


class Malformed(Exception):  # noqa: N818 - it becomes an answer
    """What came is not the HTTP/1.1 that everybody understands in the same way."""


@dataclass(frozen=True)
class Request:
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
        return replace(self, headers=headers)


@dataclass(frozen=True)
class Response:
    """The head of an answer; without its reason phrase, which means nothing and could carry anything."""

    status: int
    headers: Headers
    version: bytes = b"1.1"

    def header(self, name: bytes) -> bytes | None:
        """Return the first of this name."""
        return _first(self.headers, name)

    def with_headers(self, headers: Headers) -> Response:
        """Return the same answer with other headers."""
        return replace(self, headers=headers)


def _first(headers: Headers, name: bytes) -> bytes | None:
    return next((value for found, value in headers if found == name), None)


def cut(buffer: bytes, limit: int = HEAD_LIMIT) -> int:
    """Return where the head ends in what came so far, 0 if it has not come; refuse what is ambiguous."""
    end = buffer.find(b"\r\n\r\n", 0, limit)
    if end < 0 and len(buffer) >= limit:
        raise Malformed(f"the head is longer than {limit} bytes")
    head = buffer[: end + 4 if end >= 0 else limit]
    lines = head.count(b"\n")
    if lines != head.count(b"\r\n") or head.count(b"\r") > lines + head.endswith(b"\r"):
        raise Malformed("a line of the head does not end with CR LF")
    if b"\n " in head or b"\n\t" in head:
        raise Malformed("a line of the head is folded")
    return end + 4 if end >= 0 else 0


def parse_request(head: bytes) -> Request:
    """Read the whole head of a request."""
    try:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        connection.receive_data(head)
        event = connection.next_event()
    except h11.RemoteProtocolError:
        raise Malformed("the head is not that of a request of HTTP/1.1") from None
    if not isinstance(event, h11.Request) or event.http_version not in _VERSIONS:
        raise Malformed("this is not a request of HTTP/1.1")
    return Request(event.method, event.target, tuple(event.headers), event.http_version)


def parse_response(head: bytes, method: bytes) -> Response:
    """Read the whole head of an answer."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
    try:
        connection.send(h11.Request(method=method, target="/", headers=[("host", "-")]))
        connection.receive_data(head)
        event = connection.next_event()
    except h11.ProtocolError:
        raise Malformed("the head is not that of an answer of HTTP/1.1") from None
    if not isinstance(event, h11.Response | h11.InformationalResponse) or event.http_version not in _VERSIONS:
        raise Malformed("this is not an answer of HTTP/1.1")
    return Response(event.status_code, tuple(event.headers), event.http_version)


def render_request(request: Request) -> bytes:
    """Return the bytes of a head."""
    return b"%s %s HTTP/%s\r\n%s\r\n" % (request.method, request.target, request.version, _lines(request.headers))


def render_response(response: Response) -> bytes:
    """Return the bytes of a head."""
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (response.status, _PHRASES.get(response.status, b""), _lines(response.headers))


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
    """Tell whether the connection can be used again after this message."""
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
        raise Malformed("both a length and a transfer coding are given")
    if coding:
        if coding != [b"chunked"] or version == b"1.0":
            raise Malformed("a transfer coding other than `chunked`")
        return "chunked", 0
    if not lengths:
        return otherwise, 0
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > 18:
        raise Malformed("the length is not a number")
    return "length", int(length)


async def read_head(stream: Stream, *, limited: bool = False) -> bytes:
    """Return the next head; nothing if the stream ends before it."""
    buffer = b""
    async with asyncio.timeout(_IDLE_TIME if limited else None) as limit:
        while True:
            piece = await stream.read()
            if not piece:
                if buffer.strip(b"\r\n"):
                    raise Malformed("the head breaks off")
                return b""
            buffer += piece
            if limited:
                limit.reschedule(asyncio.get_running_loop().time() + _HEAD_TIME)
            end = cut(buffer)
            if end:
                stream.unread(buffer[end:])
                return buffer[:end]


class Chunks:
    """Follows a chunked body without holding it."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._left = 0  # of the chunk and its end of line
        self._line = b""  # an incomplete line
        self._known: dict[bytes, int] = {}  # lines that told a length, and how far the next one is
        self.last = False  # the chunk of no length has come
        self._small = False  # the last chunk was
        self._same = (b"", 0)  # the last line, and how often in a row
        self._run: re.Pattern[bytes] | None = None  # chunks like that, one after the other
        self._trailers = 0
        self.ended = False

    def scan(self, data: bytes | bytearray, size: int) -> int:
        """Return how many of these bytes pass on; it is less than all when the last chunk is among them."""
        at = 0
        while not self.last:
            if self._left:
                step = min(self._left, size - at)
                if self._left - step < 2:
                    self._check_end(data, at, step)
                self._left -= step
                at += step
                if self._left:
                    return size
            if self._small and not self._line:
                at = self._skip(data, at, size)
            end = data.find(b"\n", at, size)
            if end < 0:
                self._line = _unfinished(self._line + data[at:size])
                return size
            line, self._line = self._line + data[at:end], b""
            at = end + 1
            length = self._length(line)
            self._left = length + 2 if length else 0
            self.last = not length
            self._small = 0 < length < _SMALL
            if self._small:
                self._remember(bytes(line[:-1]), length)
        return at

    def _remember(self, line: bytes, length: int) -> None:
        """Know a line again; where the same comes again and again, know many chunks at once."""
        if len(self._known) < _KNOWN:
            self._known[b"\r\n" + line] = length + 4
        times = self._same[1] + 1 if line == self._same[0] else 0
        self._same = line, times
        if times == _OFTEN:
            self._run = re.compile(b"(?s)(?:%s\r\n.{%d}\r\n)+" % (re.escape(line), length))

    def _skip(self, data: bytes | bytearray, at: int, size: int) -> int:
        """Pass over whole chunks of lengths that came before; events are small, and there are many.

        What is looked up is the end of the chunk before and the line after it, at once.
        """
        if self._run is not None and (run := self._run.match(data, at, size)):
            return run.end()
        if at < 2:
            return at
        whole = data if isinstance(data, bytes) else bytes(memoryview(data)[:size])
        known, find, start = self._known, whole.find, at
        while (end := find(b"\r\n", at, size)) >= 0:
            after = known.get(whole[at - 2 : end], size) + end
            if after > size:
                break
            at = after
        if at > start and whole[at - 2 : at] != b"\r\n":
            raise Malformed("a chunk is longer than it says")
        return at

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what passes on, without trailers, and what comes after the end."""
        begun = self.last
        at = 0 if begun else self.scan(data, len(data))
        if not self.last:
            return data, b""
        return (b"" if begun else data[:at] + b"\r\n"), self._skip_trailers(data, at)

    def _skip_trailers(self, data: bytes, at: int) -> bytes:
        """Leave them out, and return what comes after them."""
        data, self._line = self._line + data[at:], b""
        while (end := data.find(b"\r\n")) >= 0:
            self._trailers += end + 2
            if end == 0:
                self.ended = True
                return data[2:]
            if self._trailers > _TRAILERS:
                raise Malformed("too many trailers")
            data = data[end + 2 :]
        self._line = _unfinished(data)
        return b""

    def _check_end(self, data: bytes | bytearray, at: int, step: int) -> None:
        """See that a chunk is followed by an end of line, as far as it has come."""
        for index in (self._left - 2, self._left - 1):
            if 0 <= index < step and data[at + index] != b"\r\n"[index - self._left + 2]:
                raise Malformed("a chunk is longer than it says")

    def _length(self, line: bytes) -> int:
        if line[-1:] != b"\r":
            raise Malformed("a line between chunks does not end with CR LF")
        line = line[:-1]
        digits = line if self._strict else line.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise Malformed("the size of a chunk is not a number")
        return int(digits, 16)


def _unfinished(line: bytes) -> bytes:
    if len(line) > _LINE:
        raise Malformed("a line between chunks is too long")
    return line
