"""Which files are pictures that a page can show: by their first bytes, never by their names, and within limits.

The browser alone decodes them. Only what its decoder will allocate is read here, so that a few bytes cannot ask for
gigabytes; a format that can hold scripts or addresses (SVG) is none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST = 1 << 20  # bytes of one
MOST = 8 << 20  # bytes of all in one page
_PIXELS = 24_000_000
_THUMBNAIL = 480  # pixels on the page, of the longer side
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG's markers that say how large a picture is


@dataclass(frozen=True)
class Picture:
    """A picture and how large it is."""

    kind: str  # as in `image/KIND`
    width: int
    height: int
    content: bytes

    @property
    def shown_size(self) -> tuple[int, int]:
        scale = min(1.0, _THUMBNAIL / max(self.width, self.height))
        return max(1, round(self.width * scale)), max(1, round(self.height * scale))


def read_picture(content: bytes) -> Picture | None:
    """Return the picture that these bytes are; None for anything else, and for what is too large to be shown."""
    for mark, kind, measure in _KINDS:
        if content.startswith(mark) and len(content) <= LARGEST:
            width, height = measure(content)
            if width > 0 and height > 0 and width * height <= _PIXELS:
                return Picture(kind, width, height, content)
    return None


def _measure_png(content: bytes) -> tuple[int, int]:
    if content[12:16] != b"IHDR":
        return 0, 0
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _measure_gif(content: bytes) -> tuple[int, int]:
    return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")


def _measure_jpeg(content: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        marker, size = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if marker in _FRAMES:
            return int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(content[at + 5 : at + 7], "big")
        at += 1 if marker == 0xFF else 2 + max(size, 2)
    return 0, 0


def _measure_webp(content: bytes) -> tuple[int, int]:
    chunk = content[12:16]
    if content[8:12] != b"WEBP" or len(content) < 30:
        return 0, 0
    if chunk == b"VP8X":
        return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        return int.from_bytes(content[26:28], "little") & 0x3FFF, int.from_bytes(content[28:30], "little") & 0x3FFF
    return 0, 0


_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "png", _measure_png), (b"\xff\xd8\xff", "jpeg", _measure_jpeg),
    (b"GIF87a", "gif", _measure_gif), (b"GIF89a", "gif", _measure_gif), (b"RIFF", "webp", _measure_webp),
)  # fmt: skip
