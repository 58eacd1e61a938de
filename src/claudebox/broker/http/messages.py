"""Heads of HTTP/1.1, read more strictly than programs read them to one another.

Everything is refused that two programs could understand differently: bare line feeds, folded lines, control characters,
blanks around names, two ways to tell a length.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import Literal, Protocol

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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


# Bodies of HTTP/1.1: taken out of their framing and their compression, looked at, and framed again.
#
# What becomes of `content-length`, `transfer-encoding` and `content-encoding` is decided here and nowhere else.


LAST_CHUNK = b"0\r\n\r\n"
_LINE = 1 << 12  # bytes between chunks
_TRAILERS = 1 << 13
_ASCII = "".join(map(chr, range(0x20, 0x7F)))
_HEX = frozenset(b"0123456789abcdefABCDEF")
_BLOCK = 1 << 16
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib
_COMPRESSED = frozenset((b"gzip", b"x-gzip", b"deflate"))
_FRAMES = frozenset((b"content-length", b"expect", b"transfer-encoding"))
_BUSY = frozenset((b"POST", b"PUT", b"PATCH", b"DELETE"))


class BodyFilter(Protocol):
    """What the text of a body goes through; as many bytes come out as went in."""

    def feed(self, piece: bytes) -> bytes:
        """Return what can go on."""

    def end(self) -> bytes:
        """Return the rest."""


class ChunkDecoder:
    """Takes the framing off a chunked body, and refuses framing that could be understood in two ways."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._left = 0  # of a chunk
        self._after = False  # a chunk has ended, and its end of line is to come
        self._last = False  # the chunk of no length has come
        self._line = b""  # an incomplete line
        self._trailers = 0
        self.ended = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content of what came, and what comes after the end."""
        if self._line:
            data, self._line = self._line + data, b""
        at, size, found = 0, len(data), []
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", at) + 1
            if not end:
                if size - at > _LINE:
                    raise MalformedHttp("a line between chunks is too long")
                self._line = data[at:]
                break
            self._take(data[at:end])
            at = end
            if self.ended:
                break
        return b"".join(found), data[at:] if self.ended else b""

    def _take(self, line: bytes) -> None:
        """Read a line between chunks."""
        if self._after:
            if line != b"\r\n":
                raise MalformedHttp("a chunk is longer than it says")
            self._after = False
            return
        if line[-2:] != b"\r\n":
            raise MalformedHttp("a line between chunks does not end with CR LF")
        if self._last:
            self._trailers += len(line)
            if self._trailers > _TRAILERS:
                raise MalformedHttp("too many trailers")
            self.ended = line == b"\r\n"
            return
        digits = line[:-2] if self._strict else line[:-2].partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise MalformedHttp("the size of a chunk is not a number")
        self._left = int(digits, 16)
        self._after, self._last = self._left > 0, self._left == 0


class BodyReader:
    """The content of one body, piece by piece; whoever waits for one can be cancelled, and nothing is lost."""

    def __init__(self, stream: Stream, framing: Framing, length: int, *, strict: bool) -> None:
        self._stream = stream
        self._framing: Framing = framing
        self._left = length
        self._chunks = ChunkDecoder(strict=strict)

    async def read(self) -> bytes:
        """Return the next piece; nothing is the end. EOFError: it breaks off."""
        if self._framing == "close":
            return await self._stream.read()
        while self._left if self._framing == "length" else self._framing == "chunked" and not self._chunks.ended:
            piece = await self._next()
            if not piece:
                raise EOFError
            if self._framing == "length":
                piece, after = piece[: self._left], piece[self._left :]
                self._left -= len(piece)
            else:
                piece, after = self._chunks.feed(piece)
            self._stream.unread(after)
            if piece:
                return piece
        return b""

    async def _next(self) -> bytes:
        """Return what comes next; a program that keeps us waiting in a body is as silent as one before its request."""
        caller = self._stream.caller
        if caller is None or not self._stream.silent:
            return await self._stream.read()
        caller.expect()
        try:
            return await self._stream.read()
        finally:
            caller.heard()


class Decompressed:
    """Takes the compression off a body, and lets it go through another filter.

    It goes on in blocks of one size: how far a compressed piece reaches tells how well it was compressed, and that
    tells whether a guess beside a value was right.
    """

    def __init__(self, inner: BodyFilter) -> None:
        self._inner = inner
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._begun = False
        self._waiting = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield whole blocks, however much it swells."""
        while piece:
            if self._stream.eof:
                self._stream = zlib.decompressobj(_ANY_HEADER)
            try:
                text = self._stream.decompress(piece, _BLOCK)
            except zlib.error:
                raise MalformedHttp("the answer is not compressed as it says") from None
            self._begun = True
            self._waiting += self._inner.feed(text)
            while len(self._waiting) >= _BLOCK:
                yield self._waiting[:_BLOCK]
                self._waiting = self._waiting[_BLOCK:]
            piece = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def end(self) -> bytes:
        """Return the rest."""
        if self._begun and not self._stream.eof:
            raise MalformedHttp("the compressed answer breaks off")
        return self._waiting + self._inner.end()


class AnswerBody:
    """The body of an answer on its way to a program: how it comes, how it goes on, and what it goes through."""

    def __init__(self, request: Request, response: Response, own: BodyFilter | None) -> None:
        """Decide it all. MalformedHttp: it cannot be told where the body ends."""
        self.framing, self.length = response_framing(response, request.method)
        self._own = own if self.framing != "none" else None
        self._unpacked = Decompressed(own) if self._own and own and _codings(response) else None
        self.frame: Framing = self.framing
        if self.framing != "none" and (self.framing != "length" or self._unpacked):
            self.frame = "chunked" if request.version == b"1.1" else "close"

    def headers(self, headers: Headers) -> Headers:
        """Return the fields of the head that goes with it."""
        headers = end_to_end(headers)
        if self.framing == "none":  # of what a body would be like
            return headers
        dropped = (b"content-length", *((b"content-encoding",) if self._unpacked else ()))
        return (*(pair for pair in headers if pair[0] not in dropped), *_frame_field(self.frame, self.length))

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what can go on of the content that came, framed."""
        parts = self._unpacked.feed(piece) if self._unpacked else (self._own.feed(piece) if self._own else piece,)
        for part in parts:
            if part:
                yield framed(part, self.frame)

    def end(self) -> bytes:
        """Return the rest."""
        last = self._unpacked or self._own
        rest = last.end() if last else b""
        return (framed(rest, self.frame) if rest else b"") + (LAST_CHUNK if self.frame == "chunked" else b"")


def framed(piece: bytes, framing: Framing) -> bytes:
    """Return a piece of a body as it goes out."""
    return b"%x\r\n%s\r\n" % (len(piece), piece) if framing == "chunked" else piece


def _frame_field(framing: Framing, length: int) -> Headers:
    if framing == "chunked":
        return ((b"transfer-encoding", b"chunked"),)
    return ((b"content-length", b"%d" % length),) if framing == "length" else ()


def framed_request(request: Request, framing: Framing, length: int) -> Request:
    """Return a request as it goes out, with our own word on the length of its body."""
    headers = tuple(pair for pair in request.headers if pair[0] not in _FRAMES)
    said: Framing = "length" if framing == "none" and request.method in _BUSY else framing
    return request.with_headers((*headers, *_frame_field(said, length)))


def is_readable(response: Response) -> bool:
    """Return whether the body can be looked into: whole, with at most one coding, a known one, and in usual letters."""
    codings = _codings(response)
    kinds = [value.lower() for name, value in response.headers if name == b"content-type"]
    whole = response.status != 206 and not any(b"byteranges" in kind for kind in kinds)
    known = not codings or (len(codings) == 1 and codings[0] in _COMPRESSED)
    return whole and known and all(map(_has_usual_letters, kinds))


def _has_usual_letters(kind: bytes) -> bool:
    """Return whether a text of this type has ASCII in it as it is, or with NULs between: not in EBCDIC or UTF-7."""
    charset = kind.partition(b"charset=")[2].partition(b";")[0].strip(b" \t\"'").decode("latin-1")
    try:
        return charset in ("", "binary") or _ASCII.encode(charset).replace(b"\0", b"").endswith(_ASCII.encode())
    except (LookupError, ValueError):
        return False


def _codings(response: Response) -> list[bytes]:
    """Return the codings that lie one upon the other."""
    fields = (value for name, value in response.headers if name == b"content-encoding")
    words = (word.strip().lower() for value in fields for word in value.split(b","))
    return [word for word in words if word not in (b"", b"identity")]
