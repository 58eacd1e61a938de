"""Bodies of answers that are looked at on their way: taken out of their framing, filtered, framed again."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

from claudebox.broker.http.messages import MalformedHttp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

_PIECE = _BLOCK = 1 << 16
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib
COMPRESSED = frozenset((b"gzip", b"x-gzip", b"deflate"))


class BodyFilter(Protocol):
    """What a body goes through."""

    sized: bool  # as much comes out as went in

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what can go on."""

    def end(self) -> bytes:
        """Return the rest."""


class Payload:
    """Takes the framing off a chunked body whose framing somebody else has checked."""

    def __init__(self) -> None:
        self._left = -1  # of a chunk and its end of line; -1: the line with its size comes next
        self._line = b""
        self._last = False

    def feed(self, data: bytes) -> bytes:
        """Return the content of what came."""
        found = []
        while data and not self._last:
            if self._left < 0:
                line, end, data = data.partition(b"\n")
                self._line += line
                if end:
                    size = int(self._line.partition(b";")[0].strip(), 16)
                    self._line, self._left, self._last = b"", size + 2, not size
                continue
            piece, data = data[: self._left], data[self._left :]
            found.append(piece[: max(0, self._left - 2)])
            self._left -= len(piece)
            if not self._left:
                self._left = -1
        return b"".join(found)


class Decompressed:
    """Takes the compression off a body, and lets it go through another filter.

    It goes on in blocks of one size: how far a compressed piece reaches tells how well it was compressed, and that
    tells whether a guess beside a value was right.
    """

    sized = False

    def __init__(self, inner: BodyFilter) -> None:
        self._inner = inner
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._waiting = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield whole blocks, however much it swells."""
        while piece:
            try:
                text = self._stream.decompress(piece, _PIECE)
            except zlib.error:
                raise MalformedHttp("the answer is not compressed as it says") from None
            self._waiting += b"".join(self._inner.feed(text))
            while len(self._waiting) >= _BLOCK:
                yield self._waiting[:_BLOCK]
                self._waiting = self._waiting[_BLOCK:]
            piece = self._stream.unconsumed_tail
            if self._stream.eof:
                piece = self._stream.unused_data
                self._stream = zlib.decompressobj(_ANY_HEADER)

    def end(self) -> bytes:
        """Return the rest."""
        return self._waiting + self._inner.end()


async def filtered(
    body: AsyncIterator[bytes], own: BodyFilter, *, chunked: bool, chunks: bool
) -> AsyncGenerator[bytes, None]:
    """Yield a body after its filter; `chunked` is how it comes, `chunks` is how it goes on."""
    payload = Payload() if chunked else None
    try:
        async for piece in body:
            for part in own.feed(payload.feed(piece) if payload is not None else piece):
                if part:
                    yield b"%x\r\n%s\r\n" % (len(part), part) if chunks else part
    finally:  # also where it broke off, or nobody wants the rest
        rest = own.end()
    if chunks:
        yield (b"%x\r\n%s\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n"
    elif rest:
        yield rest
