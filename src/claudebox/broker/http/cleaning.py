"""Removes secret values from responses, in every usual encoding, without changing the length.

An agent that can choose the text of a response must not be able to guess a value piece by piece. So what is held back
at the end of a piece depends on public facts alone: which bytes are printable, and how long the placeholder is. The
search looks up eight bytes at a time in a set, so its time reveals no single character; the slow search runs only where
eight bytes of a value stand. A guess is confirmed by nothing less than the whole value, or twelve characters in a row
of its random part.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property

from claudebox.broker.secrets import public_prefix
from claudebox.tables.secrets import all_in_base64, encodings, in_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.broker.http.messages import Response

    Span = tuple[int, int, bytes]  # start, end, replacement


_PLAIN = re.compile(rb"[0-9A-Za-z]")
_WORD = 8  # bytes looked up at once
_REGION = {15: (0,), 11: (0, 4), 9: (0, 2, 4, 6), 8: tuple(range(8))}  # length of a region → offsets to look at
_LINE, _SHORTEST_LINE = 60, 48  # characters: lines of wrapped base64 are longer, except the first
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
_BREAK = rb"(?:\r?\n|(?:\\{1,3}r)?\\{1,3}n|(?:%0[dD])?%0[aA])?"
_WIDEST = 4  # bytes of one character, in UTF-32
_RUN = 12  # letters and digits in a row of a value that are removed too
_FIELD = re.compile(rb"[0-9A-Za-z]+")
_MIXED = re.compile(rb"[0-9][A-Za-z]|[A-Za-z][0-9]|[a-z][A-Z].*[A-Z][a-z]")  # neither a word nor a number
_NAMED = {ord("&"): b"amp", ord("<"): b"lt", ord(">"): b"gt", ord('"'): b"quot", ord("'"): b"apos", ord(" "): b"nbsp"}


def longest(length: int) -> int:
    """Return how many bytes any encoding of a value of this length has at most."""
    return 2 * length + 64


class Recognizer:
    """Finds values in every usual encoding, and replaces them."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Take values with their placeholders; asterisks replace other encodings, and values without a placeholder."""
        self._placeholders: dict[bytes, bytes] = {}
        self._names: set[bytes] = set()
        patterns: list[tuple[int, bytes]] = []
        regions: list[bytes] = []
        self._always = False  # some form has no eight letters or digits in a row: search always
        known = list(dict.fromkeys(pairs))
        runs: dict[bytes, None] = {}  # parts of values, encoded
        for value, placeholder in known:
            runs |= {form: None for run in _runs(value) for form in (run, *all_in_base64(run))}
            if len(placeholder) == len(value):
                self._placeholders[value] = placeholder
            self._names |= {form.lower() for form in encodings(value) if len(form) >= len(value) // 2}
            for text, pattern, count in _forms(value):
                patterns.append((len(text), pattern))
                found = _regions(text, count)
                regions += found
                self._always = self._always or not found
        self._runs = [run for run in runs if len(run) >= _RUN]
        regions += self._runs
        self._patterns = sorted(patterns, key=lambda row: -row[0])  # the longest first: a value may begin with another
        self._words = {
            int.from_bytes(region[at : at + _WORD], sys.byteorder)
            for region in regions
            for at in range(len(region) - _WORD + 1)
        }
        shortest = min(map(len, regions), default=15)
        self._offsets = _REGION[next(length for length in _REGION if length <= shortest)]
        self._values = [value for value, _ in known]
        self._any = bool(known)
        length = max((len(value) for value, _ in known), default=0)
        self._most = longest(length) - 1 if known else 0
        blank = any(b" " in placeholder for _, placeholder in known)
        self._printable = bytes(range(0x20 if blank else 0x21, 0x7F))

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(dict.fromkeys(pattern for _, pattern in self._patterns)))

    def prepare(self) -> None:
        """Compile now, so that the first match takes no longer than others."""
        assert self._pattern is not None  # noqa: S101 - a cached property

    def clean(self, text: bytes) -> bytes:
        return replace_spans(text, self.spans(text))

    def stands_in(self, text: bytes) -> bool:
        """Return whether a value stands there as it is."""
        return any(value in text for value in self._values)

    def spans(self, text: bytes) -> list[Span]:
        """Return where values and longer parts of them stand, also in UTF-16 and UTF-32, and what replaces them."""
        if b"\0" not in text:
            return self._spans(text)
        spans = self._spans(text.replace(b"\0", b""))
        return _widened(text, spans) if spans else []

    def _spans(self, text: bytes) -> list[Span]:
        if not self._suspects(text):
            return []
        found = [(match.start(), match.end(), self._replaced(match)) for match in self._pattern.finditer(text)]
        rest = replace_spans(text, [(start, end, bytes(end - start)) for start, end, _ in found])
        places: set[int] = set()
        for run in self._runs:
            at = rest.find(run)
            while at >= 0:
                places.update(range(at, at + len(run)))
                at = rest.find(run, at + 1)
        firsts = sorted(at for at in places if at - 1 not in places)
        lasts = sorted(at + 1 for at in places if at + 1 not in places)
        hidden = ((first, last, b"*" * (last - first)) for first, last in zip(firsts, lasts, strict=True))
        return sorted((*found, *hidden))

    def clean_head(self, response: Response) -> Response:
        """Return a head without any value; fields with one in their name are dropped."""
        fields = (pair for pair in response.headers if not any(form in pair[0] for form in self._names))
        return response.replace(headers=tuple((name, self.clean(value)) for name, value in fields))

    def unfinished(self, data: bytes) -> int:
        """Return how many bytes at the end could begin a value, judged by public facts alone."""
        if not self._any:
            return 0
        end = data[-_WIDEST * (self._most + 2 * _LINE) :]
        count = self._open(end.replace(b"\0", b"")[-self._most - 2 * _LINE :])
        return len(end) - _places(end)[-count] if count and b"\0" in end else count

    def _open(self, end: bytes) -> int:
        left = end.rstrip(self._printable)
        while (line := left.removesuffix(b"\n").removesuffix(b"\r")) != left:  # base64 may go on after a line break
            before = line.rstrip(_BASE64)
            if len(line) - len(before) < _SHORTEST_LINE:
                break
            left = before
        return min(len(end) - len(left), self._most)

    def _suspects(self, data: bytes) -> bool:
        if self._always:
            return self._any
        view, words = memoryview(data), self._words
        ends = ((at, at + (len(data) - at) // _WORD * _WORD) for at in self._offsets)
        return any(not words.isdisjoint(view[at:end].cast("Q")) for at, end in ends if end > at)

    def _replaced(self, found: re.Match[bytes]) -> bytes:
        return self._placeholders.get(found[0]) or b"*" * len(found[0])


class Cleaner:
    """Cleans a body piece by piece."""

    def __init__(self, recognizer: Callable[[], Recognizer], *, quick: bool = False) -> None:
        """Take a function: values can change while a body is being sent.

        A `quick` one searches where a value stands as it is: that costs a long body nothing.
        """
        self._recognizer, self._quick = recognizer, quick
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what can be passed on.

        What is held back stays raw, since more of a value may follow, except the rest of a value that is cut.
        """
        data, recognizer = self._held + piece, self._recognizer()
        end = len(data) - recognizer.unfinished(data)
        spans = recognizer.spans(data) if not self._quick or recognizer.stands_in(data) else []
        cleaned = replace_spans(data, spans)
        cut = max((last for first, last, _ in spans if first < end), default=end)
        self._held = cleaned[end:cut] + data[max(end, cut) :]
        return cleaned[:end]

    def end(self) -> bytes:
        data, self._held = self._held, b""
        return self._recognizer().clean(data)


def _places(text: bytes) -> list[int]:
    """Return the positions of bytes other than NUL."""
    return [at for at, byte in enumerate(text) if byte]


def _widened(text: bytes, spans: list[Span]) -> list[Span]:
    """Map spans found in a text without its NULs to the text itself."""
    places = _places(text)
    wide: list[Span] = []
    for start, end, stand in spans:
        first, last = places[start], places[end - 1] + 1
        piece = bytearray(text[first:last])
        for at, byte in zip(places[start:end], stand, strict=True):
            piece[at - first] = byte
        wide.append((first, last, bytes(piece)))
    return wide


def replace_spans(text: bytes, spans: list[Span]) -> bytes:
    if not spans:
        return text
    changed = bytearray(text)
    for start, end, stand in spans:
        changed[start:end] = stand
    return bytes(changed)


def _runs(value: bytes) -> Iterator[bytes]:
    """Yield the parts of a value that are removed on their own: twelve random letters and digits.

    Guessable parts are left out: prefixes, words, the claims of a JWT. Otherwise, with eleven characters known, an
    agent that chooses the text of a response could try out the next one, and the next.
    """
    start = len(public_prefix(value.decode("latin-1")))
    if value.startswith(b"eyJ") and value.count(b".") == 2:
        start = value.rindex(b".")
    fields = [(found.start(), found.end(), found[0]) for found in _FIELD.finditer(value, start)]
    chance = [_MIXED.search(field) is not None for _, _, field in fields]
    first = next((index for index, random in enumerate(chance) if random), len(fields))
    last = len(fields) - next((index for index, random in enumerate(reversed(chance)) if random), len(fields))
    stretch: list[int] = []
    for index, (begin, end, field) in enumerate(fields):
        if first <= index < last and (chance[index] or len(field) < _WORD):
            stretch += range(begin, end)
        else:
            stretch = []
        yield from (
            value[stretch[at] : stretch[at + _RUN - 1] + 1]
            for at in range(max(0, len(stretch) - len(field) - _RUN + 1), len(stretch) - _RUN + 1)
        )


def _forms(value: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield encodings of a value, a pattern for the spellings of each, and how many regions it needs.

    A line break can cut one region of wrapped base64, but not two that are closer than a line is long.
    """
    yield value, b"".join(map(_spelled, value)), 1
    for case in (value.hex(), value.hex().upper()):
        yield case.encode(), case.encode(), 1
    for offset in range(3):
        text = in_base64(value, offset)
        if text:  # `+` and `/` differ in URLs; regions have neither
            yield text, _BREAK.join(_URL_SAFE.get(byte) or _spelled(byte) for byte in text), 2


def _spelled(byte: int) -> bytes:
    """Return a pattern for one character as URLs, JSON, HTML and source code write it."""
    plain = re.escape(bytes((byte,)))
    if _PLAIN.match(bytes((byte,))):
        return plain
    code = b"".join(b"[%c%c]" % (digit, digit ^ 32) if digit > 57 else b"%c" % digit for digit in b"%02x" % byte)
    ways = [
        plain, rb"\\{1,3}%s" % plain, b"%%(?:25){0,2}%s" % code, rb"\\{1,2}u00%s" % code, rb"\\{1,2}x%s" % code,
        b"=%s" % code, b"&(?:amp;)?#0?%d;" % byte, b"&(?:amp;)?#[xX]%s;" % code,
    ]  # fmt: skip
    if byte in _NAMED:
        ways.append(b"&(?:amp;)?%s;" % _NAMED[byte])
    if byte == ord(" "):
        ways.append(rb"\+")
    return b"(?:%s)" % b"|".join(ways)


_URL_SAFE = {ord("+"): b"(?:%s|-)" % _spelled(ord("+")), ord("/"): b"(?:%s|_)" % _spelled(ord("/"))}


def _regions(text: bytes, count: int) -> list[bytes]:
    """Return parts of a text that every spelling leaves unchanged, from its end: prefixes can be guessed."""
    for length in _REGION:
        starts = [found.start() for found in re.finditer(rb"(?=[0-9A-Za-z]{%d})" % length, text)]
        if not starts:
            continue
        chosen = [starts[-1]]
        if count > 1:
            chosen += [at for at in starts if at + length <= chosen[0] and chosen[0] + length - at <= _LINE][-1:]
        if len(chosen) == count:
            return [text[at : at + length] for at in chosen]
    return _regions(text, count - 1) if count > 1 else []
