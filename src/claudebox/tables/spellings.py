"""How common formats spell the bytes of a value: what to look for in a text that may hold it.

Without `json`, `html` and `urllib`, which would cost the end of every session, and the start of the broker, 18 ms.
"""

from __future__ import annotations

import binascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_JSON = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_HTML = {34: b"&quot;", 38: b"&amp;", 39: b"&#x27;", 60: b"&lt;", 62: b"&gt;"}


URL_SAFE = bytes.maketrans(b"+/", b"-_")


def in_url(value: bytes) -> bytes:
    """Return it as part of a URL."""
    return b"".join(b"%c" % byte if byte in _UNRESERVED else b"%%%02X" % byte for byte in value)


def in_url_lower(value: bytes) -> bytes:
    """Return it as part of a URL, as some write it."""
    return b"".join(b"%c" % byte if byte in _UNRESERVED else b"%%%02x" % byte for byte in value)


def in_json(value: bytes) -> bytes:
    """Return it as part of a string of JSON, of which each byte is a character."""
    return b"".join(_JSON.get(byte) or (b"%c" if 32 <= byte < 127 else b"\\u%04x") % byte for byte in value)


def in_html(value: bytes) -> bytes:
    """Return it as text of HTML."""
    return b"".join(_HTML.get(byte) or b"%c" % byte for byte in value)


def in_base64(value: bytes, offset: int) -> bytes:
    """Return the part of a base64 text that the value alone decides, if it begins at this offset of three bytes."""
    whole = binascii.b2a_base64(b"\0" * offset + value, newline=False)
    return whole[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


def all_in_base64(value: bytes) -> Iterator[bytes]:
    """Yield it at every offset, in both alphabets."""
    for offset in range(3):
        text = in_base64(value, offset)
        yield text
        yield text.translate(URL_SAFE)


def encodings(value: bytes) -> Iterator[bytes]:
    """Yield every usual form of a value, itself first; in the same order for every value."""
    yield value
    for spell in (in_url, in_url_lower, in_json, in_html):
        yield spell(value)
    hexadecimal = binascii.hexlify(value)
    yield hexadecimal
    yield hexadecimal.upper()
    yield from all_in_base64(value)
