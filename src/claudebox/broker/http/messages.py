"""HTTP/1.1 messages, parsed more strictly than usual. Pure.

Anything that two programs could read differently is refused: bare line feeds, folded lines, control characters, blanks
around field names, conflicting lengths.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol

from claudebox.base.records import Value

Headers = tuple[tuple[bytes, bytes], ...]
Framing = Literal["none", "length", "chunked", "close"]

HEAD_LIMIT = 1 << 16
_HOP_BY_HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
))  # fmt: skip
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%s) ([!-~]+) HTTP/(1\.[01])" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_FIELD = re.compile(rb"(%s):[\t ]*((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[\t ]*" % _TOKEN)


class MalformedHttp(Exception):  # noqa: N818 - becomes a 400 answer
    """Not HTTP/1.1 that every program reads the same way."""


class Request(Value):
    """The head of a request; field names are in lower case."""

    method: bytes
    target: bytes
    headers: Headers
    version: bytes = b"1.1"


class Response(Value):
    """The head of a response, without its reason phrase."""

    status: int
    headers: Headers
    version: bytes = b"1.1"


def header(message: Request | Response, name: bytes) -> bytes | None:
    """Return the first field of this name."""
    return next((value for found, value in message.headers if found == name), None)


def _words(headers: Headers, name: bytes) -> list[bytes]:
    """Return the comma-separated words of all fields of this name, in lower case."""
    return [word.strip().lower() for found, value in headers if found == name for word in value.split(b",")]


def cut(buffer: bytes, limit: int = HEAD_LIMIT) -> int:
    """Return where the head ends, 0 if it is not complete yet."""
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
    """Parse a complete head; exactly one `Host` is required unless `any_host`."""
    first, headers = _parse_fields(head)
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise MalformedHttp("the first line is not an HTTP/1 request line")
    hosts = sum(name == b"host" for name, _ in headers)
    if not any_host and (hosts > 1 or (hosts == 0 and found[3] == b"1.1")):
        raise MalformedHttp("exactly one `Host` is required")
    return Request(found[1], found[2], headers, found[3])


def parse_response(head: bytes) -> Response:
    first, headers = _parse_fields(head)
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise MalformedHttp("the first line is not an HTTP/1 status line")
    return Response(int(found[2]), headers, found[1])


def _parse_fields(head: bytes) -> tuple[bytes, Headers]:
    """Return the first line and the fields of a head that `cut` accepted."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise MalformedHttp("a field of the head has an invalid name or value")
        headers.append((found[1].lower(), found[2]))
    return first, tuple(headers)


def render_request(request: Request) -> bytes:
    return b"%s %s HTTP/%s\r\n%s\r\n" % (request.method, request.target, request.version, _lines(request.headers))


def render_response(response: Response) -> bytes:
    return b"HTTP/1.1 %d \r\n%s\r\n" % (response.status, _lines(response.headers))


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%s: %s\r\n" % pair for pair in headers)


def end_to_end(headers: Headers) -> Headers:
    """Return the headers without those for the next hop alone."""
    dropped = _HOP_BY_HOP.union(_words(headers, b"connection")) - {b"content-length", b"host"}
    return tuple(pair for pair in headers if pair[0] not in dropped)


def keeps_alive(message: Request | Response) -> bool:
    return message.version == b"1.1" and b"close" not in _words(message.headers, b"connection")


def request_framing(request: Request) -> tuple[Framing, int]:
    """Return how the end of the body is found, and its length."""
    return _framing(request.headers, request.version, "none")


def response_framing(response: Response, method: bytes) -> tuple[Framing, int]:
    """Return how the end of the body is found, and its length."""
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


# Bodies. Only this section decides about `content-length`, `transfer-encoding` and `content-encoding`.

LAST_CHUNK = b"0\r\n\r\n"
_LINE_LIMIT = 1 << 12  # bytes between chunks
_TRAILER_LIMIT = 1 << 13
_ASCII = "".join(map(chr, range(0x20, 0x7F)))
_HEX = frozenset(b"0123456789abcdefABCDEF")
_FRAMING_FIELDS = frozenset((b"content-length", b"expect", b"transfer-encoding"))
_BODY_METHODS = frozenset((b"POST", b"PUT", b"PATCH", b"DELETE"))


class BodyFilter(Protocol):
    """Rewrites the text of a body, byte for byte."""

    def feed(self, piece: bytes) -> bytes:
        """Return what can be passed on."""

    def end(self) -> bytes:
        """Return the rest."""


class ChunkDecoder:
    """Removes chunked framing; refuses framing that is ambiguous."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._left = 0  # bytes of the current chunk
        self._expects_crlf = False  # after a chunk
        self._in_trailers = False
        self._line = b""  # an incomplete line
        self._trailers = 0
        self.ended = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content, and whatever follows the end of the body."""
        if self._line:
            data, self._line = self._line + data, b""
        at, size, found = 0, len(data), []
        while at < size and not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", at) + 1
            if not end:
                if size - at > _LINE_LIMIT:
                    raise MalformedHttp("a line between chunks is too long")
                self._line, at = data[at:], size
                break
            self._take(data[at:end])
            at = end
        return b"".join(found), data[at:]

    def _take(self, line: bytes) -> None:
        """Interpret a line between chunks."""
        if self._expects_crlf:
            if line != b"\r\n":
                raise MalformedHttp("a chunk is longer than it says")
            self._expects_crlf = False
            return
        if line[-2:] != b"\r\n":
            raise MalformedHttp("a line between chunks does not end with CR LF")
        if self._in_trailers:
            self._trailers += len(line)
            if self._trailers > _TRAILER_LIMIT:
                raise MalformedHttp("too many trailers")
            self.ended = line == b"\r\n"
            return
        digits = line[:-2] if self._strict else line[:-2].partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise MalformedHttp("the size of a chunk is not a number")
        self._left = int(digits, 16)
        self._expects_crlf, self._in_trailers = self._left > 0, self._left == 0


class AnswerBody:
    """The body of a response on its way to a program: filtered, and framed again."""

    def __init__(self, request: Request, response: Response, own: BodyFilter | None) -> None:
        self.framing, self.length = response_framing(response, request.method)
        self._filter = own if self.framing != "none" else None
        self.frame: Framing = self.framing  # towards the program
        if self.framing in ("chunked", "close"):
            self.frame = "chunked" if request.version == b"1.1" else "close"

    def headers(self, headers: Headers) -> Headers:
        """Return the fields of the head for the program."""
        headers = end_to_end(headers)
        if self.framing == "none":  # HEAD: they describe the body of a GET
            return headers
        kept = (pair for pair in headers if pair[0] != b"content-length")
        return (*kept, *_frame_field(self.frame, self.length))

    def feed(self, piece: bytes) -> bytes:
        passed = self._filter.feed(piece) if self._filter else piece
        return framed(passed, self.frame) if passed else b""

    def end(self) -> bytes:
        rest = self._filter.end() if self._filter else b""
        return (framed(rest, self.frame) if rest else b"") + (LAST_CHUNK if self.frame == "chunked" else b"")


def framed(piece: bytes, framing: Framing) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece) if framing == "chunked" else piece


def _frame_field(framing: Framing, length: int) -> Headers:
    if framing == "chunked":
        return ((b"transfer-encoding", b"chunked"),)
    return ((b"content-length", b"%d" % length),) if framing == "length" else ()


def framed_request(request: Request, framing: Framing, length: int) -> Request:
    """Return the request with framing fields of our own."""
    headers = tuple(pair for pair in request.headers if pair[0] not in _FRAMING_FIELDS)
    said: Framing = "length" if framing == "none" and request.method in _BODY_METHODS else framing
    return request.replace(headers=(*headers, *_frame_field(said, length)))


def is_readable(response: Response) -> bool:
    """Return whether a filter can read the body: complete, not compressed, and in an ASCII-based charset."""
    codings = [word for word in _words(response.headers, b"content-encoding") if word not in (b"", b"identity")]
    kinds = [value.lower() for name, value in response.headers if name == b"content-type"]
    whole = response.status != 206 and not any(b"byteranges" in kind for kind in kinds)
    return whole and not codings and all(map(_is_ascii_based, kinds))


def _is_ascii_based(kind: bytes) -> bool:
    """Return whether ASCII stands in text of this type as it is, or with NULs between: not in EBCDIC or UTF-7."""
    charset = kind.partition(b"charset=")[2].partition(b";")[0].strip(b" \t\"'").decode("latin-1")
    try:
        return charset in ("", "binary") or _ASCII.encode(charset).replace(b"\0", b"").endswith(_ASCII.encode())
    except (LookupError, ValueError):
        return False
