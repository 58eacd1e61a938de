"""Bodies of HTTP/1.1: taken out of their framing and their compression, looked at, and framed again.

What becomes of `content-length`, `transfer-encoding` and `content-encoding` is decided here and nowhere else.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.broker.http.messages import Framing, Headers, Request, Response
    from claudebox.broker.http.stream import Stream

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
        self.framing, self.length = messages.response_framing(response, request.method)
        self._own = own if self.framing != "none" else None
        self._unpacked = Decompressed(own) if self._own and own and _codings(response) else None
        self.frame: Framing = self.framing
        if self.framing != "none" and (self.framing != "length" or self._unpacked):
            self.frame = "chunked" if request.version == b"1.1" else "close"

    def headers(self, headers: Headers) -> Headers:
        """Return the fields of the head that goes with it."""
        headers = messages.end_to_end(headers)
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
