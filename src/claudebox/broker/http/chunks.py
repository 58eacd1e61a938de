"""Chunked bodies of HTTP/1.1: not parsed but followed, so that they pass as they come."""

from __future__ import annotations

import re

from claudebox.broker.http.messages import MalformedHttp

_LINE = 1 << 12  # between chunks
_TRAILERS = 1 << 13
_KNOWN, _SMALL, _OFTEN = 4096, 4096, 4
_HEX = frozenset(b"0123456789abcdefABCDEF")


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
            raise MalformedHttp("a chunk is longer than it says")
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
                raise MalformedHttp("too many trailers")
            data = data[end + 2 :]
        self._line = _unfinished(data)
        return b""

    def _check_end(self, data: bytes | bytearray, at: int, step: int) -> None:
        """See that a chunk is followed by an end of line, as far as it has come."""
        for index in (self._left - 2, self._left - 1):
            if 0 <= index < step and data[at + index] != b"\r\n"[index - self._left + 2]:
                raise MalformedHttp("a chunk is longer than it says")

    def _length(self, line: bytes) -> int:
        if line[-1:] != b"\r":
            raise MalformedHttp("a line between chunks does not end with CR LF")
        line = line[:-1]
        digits = line if self._strict else line.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise MalformedHttp("the size of a chunk is not a number")
        return int(digits, 16)


def _unfinished(line: bytes) -> bytes:
    if len(line) > _LINE:
        raise MalformedHttp("a line between chunks is too long")
    return line
