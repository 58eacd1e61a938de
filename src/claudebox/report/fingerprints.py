"""Finding secrets in data without holding them: salted digests, in memory only.

Of each form of a value four bytes are kept as they are, so that the search runs at the speed of `bytes.find`; where
they stand, the digest of the whole decides. The salt is new each time, and nothing of this is ever written down.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from typing import TYPE_CHECKING, NamedTuple

from claudebox.broker.http.recognition import encodings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHORTEST = 8
_FEWEST_KINDS = 5  # of characters
_SHORTEST_NUMBER = 12
_PHRASE = 4  # words that together are rare
_DIVIDED = re.compile(r"[-_. ]")
_ANCHOR = 4


class Fingerprint(NamedTuple):
    """One form of a value."""

    name: str
    encoded: bool
    length: int
    offset: int  # of the anchor
    digest: bytes


class Match(NamedTuple):
    """A value that stands in some data."""

    position: int
    name: str
    encoded: bool


class Fingerprints:
    """The fingerprints of several values."""

    def __init__(self, values: Iterable[tuple[str, str]]) -> None:
        """Take names and values; what could stand anywhere by chance is left out."""
        self._salt = os.urandom(16)
        self._anchors: dict[bytes, list[Fingerprint]] = {}
        self.longest = 0
        self.names: set[str] = set()
        known: set[bytes] = set()
        for name, value in values:
            for part in _parts(value):
                for form, _ in encodings(part, part):
                    if form not in known and len(form) >= _SHORTEST:
                        known.add(form)
                        self._add(name, form, encoded=form != part)

    def _add(self, name: str, form: bytes, *, encoded: bool) -> None:
        offset = _rarest(form)
        mark = Fingerprint(name, encoded, len(form), offset, self._digest(form))
        self._anchors.setdefault(form[offset : offset + _ANCHOR], []).append(mark)
        self.longest = max(self.longest, len(form))
        self.names.add(name)

    def _digest(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._salt, digest_size=16).digest()

    def search(self, data: bytes) -> Iterator[Match]:
        """Yield where values stand in the data."""
        for anchor, marks in self._anchors.items():
            at = data.find(anchor)
            while at >= 0:
                for mark in marks:
                    start = at - mark.offset
                    text = data[start : start + mark.length] if start >= 0 else b""
                    if len(text) == mark.length and self._digest(text) == mark.digest:
                        yield Match(start, mark.name, mark.encoded)
                at = data.find(anchor, at + 1)


def is_telling(value: str) -> bool:
    """Tell whether a value is worth looking for: not a path, a word or a number that stands anywhere."""
    if len(value) < _SHORTEST or len(set(value)) < _FEWEST_KINDS:
        return False
    if value.startswith(("/", "~/", "unix:")) or (value.isdigit() and len(value) < _SHORTEST_NUMBER):
        return False
    words = _DIVIDED.split(value)
    plain = all(word.isalpha() and (word.islower() or word.isupper() or word.istitle()) for word in words)
    return not plain or len(words) >= _PHRASE or len(value) >= 2 * _SHORTEST * len(words)


def _parts(value: str) -> Iterator[bytes]:
    """Yield what to look for: the value, and of an address also the password in it."""
    if is_telling(value):
        yield os.fsencode(value)
    if "://" in value and "@" in value:
        try:
            password = urllib.parse.urlsplit(value).password
        except ValueError:
            return
        if password and is_telling(password):
            yield os.fsencode(password)


def _rarest(form: bytes) -> int:
    """Return where the four bytes begin that ordinary text has least: digits and letters of both kinds, mixed."""

    def score(offset: int) -> tuple[int, int]:
        piece = form[offset : offset + _ANCHOR]
        digits = sum(48 <= byte <= 57 for byte in piece)
        upper = sum(65 <= byte <= 90 for byte in piece)
        lower = sum(97 <= byte <= 122 for byte in piece)
        kinds = (digits > 0) + (upper > 0) + (lower > 0)
        return kinds, len(set(piece))

    return max(range(len(form) - _ANCHOR + 1), key=score)
