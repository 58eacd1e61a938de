"""Placeholders become values in the headers of a request, and values become placeholders in what comes back.

Only in header fields, also within Basic authentication; never in a body, in an address, or in fields that servers keep
and show to others. What stands in for a value has the same length in every encoding, so that a response keeps its size
and passes through as it comes: held back is only an end of a piece that may be the beginning of a value.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Headers = list[tuple[bytes, bytes]]

# Servers store these with what they keep, log them or hand them to others: no credential belongs there.
_NEVER = frozenset((
    b"accept", b"connection", b"date", b"destination", b"etag", b"expect", b"from", b"host", b"keep-alive", b"link",
    b"location", b"origin", b"range", b"referer", b"server", b"slug", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"user-agent", b"via", b"warning",
))  # fmt: skip
_NEVER_PREFIXES = (b"accept-", b"access-control-", b"content-", b"if-", b"sec-", b"x-forwarded-", b"x-amz-meta-")
_WITHIN = (b"-meta-", b"-metadata-")
_ESCAPE = re.compile(b"%[0-9A-F]{2}")


class Secret(NamedTuple):
    """A value, what stands for it inside, and where it may go."""

    name: str
    value: bytes
    placeholder: bytes
    hosts: frozenset[tuple[str, int]]


def may_carry(field: bytes) -> bool:
    """Tell whether a header field may get a value."""
    name = field.lower()
    return name not in _NEVER and not name.startswith(_NEVER_PREFIXES) and not any(part in name for part in _WITHIN)


class Substitution:
    """What is put in and taken out again on the way to one host."""

    def __init__(self, secrets: Iterable[Secret], host: str, port: int) -> None:
        self._secrets = [secret for secret in secrets if (host, port) in secret.hosts]
        self._pairs = [pair for secret in self._secrets for pair in encodings(secret.value, secret.placeholder)]

    def insert(self, headers: Headers) -> tuple[Headers, set[str]]:
        """Return the headers with values in them, and the names of the secrets that were used."""
        used: set[str] = set()
        made = [(name, self._inserted(value, used) if may_carry(name) else value) for name, value in headers]
        return made, used

    def _inserted(self, text: bytes, used: set[str]) -> bytes:
        scheme, _, rest = text.partition(b" ")
        if scheme.lower() == b"basic":
            inner = _decoded(rest)
            if inner is not None:
                put = self._replaced(inner, used)
                return text if put == inner else scheme + b" " + base64.b64encode(put)
        return self._replaced(text, used)

    def _replaced(self, text: bytes, used: set[str]) -> bytes:
        for secret in self._secrets:
            if secret.placeholder in text:
                text = text.replace(secret.placeholder, secret.value)
                used.add(secret.name)
        return text

    def clean(self, text: bytes) -> bytes:
        """Return a text of a response without any value."""
        for real, stand in self._pairs:
            if real in text:
                text = text.replace(real, stand)
        return text

    def cleaner(self) -> Cleaner:
        """Return what cleans one body."""
        return Cleaner(self._pairs)


def _decoded(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return None


class Cleaner:
    """Cleans a body piece by piece."""

    sized = True

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self._held = b""
        self.found = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what can go on."""
        data = self._held + piece
        for real, stand in self._pairs:
            if real in data:
                data = data.replace(real, stand)
                self.found = True
        keep = max((_overlap(data, real) for real, _ in self._pairs), default=0)
        self._held = data[len(data) - keep :]
        yield data[: len(data) - keep]

    def end(self) -> bytes:
        """Return what was held back."""
        data, self._held = self._held, b""
        return data


def _overlap(data: bytes, pattern: bytes) -> int:
    """Return how many bytes at the end may be the beginning of a pattern."""
    tail = data[-(len(pattern) - 1) :]
    start = tail.find(pattern[:1])
    while start >= 0:
        if pattern.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(pattern[:1], start + 1)
    return 0


def encodings(value: bytes, placeholder: bytes) -> list[tuple[bytes, bytes]]:
    """Return the forms in which a value may come back, each with what replaces it, of the same length."""
    pairs: dict[bytes, bytes] = {}
    for real, stand in _forms(value, placeholder):
        if len(real) >= len(value) // 2 and real not in pairs:
            pairs[real] = stand if len(stand) == len(real) else b"*" * len(real)
    return sorted(pairs.items(), key=lambda pair: -len(pair[0]))


def _forms(value: bytes, placeholder: bytes) -> Iterator[tuple[bytes, bytes]]:
    for encode in _ENCODINGS:
        yield encode(value), encode(placeholder)
    for offset in range(3):
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            yield _inner(value, offset, alphabet), _inner(placeholder, offset, alphabet)


def _inner(value: bytes, offset: int, encode: Callable[[bytes], bytes]) -> bytes:
    """Return the part of a base64 text that the value alone decides, if it begins at this offset of three bytes."""
    whole = encode(b"\0" * offset + value)
    return whole[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


_ENCODINGS: tuple[Callable[[bytes], bytes], ...] = (
    lambda text: text,
    lambda text: urllib.parse.quote_from_bytes(text, safe="").encode(),
    lambda text: _ESCAPE.sub(lambda found: found[0].lower(), urllib.parse.quote_from_bytes(text, safe="").encode()),
    lambda text: json.dumps(text.decode("latin-1"))[1:-1].encode(),
    lambda text: html.escape(text.decode("latin-1")).encode("latin-1"),
    lambda text: text.hex().encode(),
    lambda text: text.hex().upper().encode(),
)
