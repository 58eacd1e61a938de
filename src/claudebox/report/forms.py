"""The forms in which a value may stand in a file: as it is, and as common tools encode it."""

from __future__ import annotations

import binascii
import os

from claudebox.tables.spellings import SPELLINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORTEST = 8
_FEWEST_KINDS = 5  # of characters
_SHORTEST_NUMBER = 12
_PHRASE = 4  # words that together are rare
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def find_forms(values: Iterable[tuple[str, str]]) -> list[tuple[bytes, str, bool]]:
    """Return what to look for: a form, the name of its value, whether it is encoded."""
    known: dict[bytes, tuple[bytes, str, bool]] = {}
    for name, value in values:
        for part in _parts(value):
            for form in encode(part):
                if len(form) >= SHORTEST:
                    known.setdefault(form, (form, name, form != part))
    return list(known.values())


def encode(value: bytes) -> list[bytes]:
    """Return the forms of a value, itself first."""
    forms = [value]
    forms += (spell(value) for spell in SPELLINGS)
    hexadecimal = binascii.hexlify(value)
    forms += (hexadecimal, hexadecimal.upper())
    for offset in range(3):
        inner = _base64(value, offset)
        forms += (inner, inner.translate(_URL_SAFE))
    return list(dict.fromkeys(form for form in forms if len(form) >= len(value) // 2))


def _base64(value: bytes, offset: int) -> bytes:
    """Return the part of a base64 text that the value alone decides, if it begins at this offset of three bytes."""
    whole = binascii.b2a_base64(b"\0" * offset + value, newline=False)
    return whole[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


def is_telling(value: str) -> bool:
    """Return whether a value is worth looking for: not a path, a word or a number that stands anywhere."""
    if len(value) < SHORTEST or len(set(value)) < _FEWEST_KINDS:
        return False
    if value.startswith(("/", "~/", "unix:")) or (value.isdigit() and len(value) < _SHORTEST_NUMBER):
        return False
    words = value.translate({ord(mark): " " for mark in "-_."}).split(" ")
    plain = all(word.isalpha() and (word.islower() or word.isupper() or word.istitle()) for word in words)
    return not plain or len(words) >= _PHRASE or len(value) >= 2 * SHORTEST * len(words)


def _parts(value: str) -> Iterator[bytes]:
    """Yield what to look for: the value, and of an address also the password in it."""
    if is_telling(value):
        yield os.fsencode(value)
    _, scheme, rest = value.partition("://")
    for end in "/?#":
        rest = rest.partition(end)[0]
    password = rest.rpartition("@")[0].partition(":")[2]
    if scheme and is_telling(password):
        yield os.fsencode(password)
