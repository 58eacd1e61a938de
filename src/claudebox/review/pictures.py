"""Pictures that a page can show, recognised by their bytes, never by their names.

Only the browser decodes them. Here their parts are walked, to know how much a decoder will allocate, and to leave out
what one still picture does not need: text, animation, anything behind its end. SVG is not among them: it can hold
scripts and addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Still: TypeAlias = tuple[int, int, bytes]  # width, height, what is needed of it


LARGEST = 1 << 20  # bytes of one
_PIXELS = 24_000_000
_THUMBNAIL = 480  # pixels on the page, of the longer side
_PNG_PARTS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"IDAT", b"IEND"))
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers that say how large a picture is
_JPEG_BEFORE = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))  # markers that may come before
_MOST_SCANS = 100  # of a JPEG: each costs a decoder the time of the whole picture


@dataclass(frozen=True)
class Picture:
    """A picture and how large it is."""

    kind: str  # as in `image/KIND`
    width: int
    height: int
    content: bytes

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def shown_size(self) -> tuple[int, int]:
        scale = min(1.0, _THUMBNAIL / max(self.width, self.height))
        return max(1, round(self.width * scale)), max(1, round(self.height * scale))


def read_picture(content: bytes) -> Picture | None:
    """Return the picture that these bytes are; None for anything else, and for what is too large to be shown."""
    for mark, kind, read in _KINDS:
        if content.startswith(mark) and len(content) <= LARGEST:
            try:
                found = read(content)
            except IndexError:  # it ends too early
                return None
            picture = Picture(kind, *found) if found else None
            return picture if picture and 0 < picture.pixels <= _PIXELS else None
    return None


def _number(content: bytes, at: int, size: int = 2, order: Literal["little", "big"] = "little") -> int:
    return int.from_bytes(content[at : at + size], order)


def _read_png(content: bytes) -> Still | None:
    at, kept = 8, [content[:8]]
    while (end := at + 12 + _number(content, at, 4, "big")) <= len(content):
        kind = content[at + 4 : at + 8]
        if (kind == b"IHDR") != (at == 8):
            return None
        kept += [content[at:end]] if kind in _PNG_PARTS else []
        if kind == b"IEND":
            return _number(content, 16, 4, "big"), _number(content, 20, 4, "big"), b"".join(kept)
        at = end
    return None


def _read_gif(content: bytes) -> Still | None:
    """Keep the first frame."""
    width, height = _number(content, 6), _number(content, 8)
    at = 13 + _gif_colours(content[10])
    head, transparent = content[:at], b""
    while content[at] == 0x21:
        end = _end_of_blocks(content, at + 2)
        transparent = content[at:end] if content[at + 1] == 0xF9 else transparent
        at = end
    left, top, wide, high = (_number(content, at + 1 + place) for place in (0, 2, 4, 6))
    if content[at] != 0x2C or left + wide > width or top + high > height:  # decoders enlarge a picture for its frame
        return None
    end = _end_of_blocks(content, at + 11 + _gif_colours(content[at + 9]))
    return width, height, head + transparent + content[at:end] + b";"


def _gif_colours(flags: int) -> int:
    """Return the size of a table of colours."""
    return 6 << (flags & 7) if flags & 0x80 else 0


def _end_of_blocks(content: bytes, at: int) -> int:
    while content[at]:
        at += content[at] + 1
    return at + 1


def _read_jpeg(content: bytes) -> Still | None:
    at = 2
    while content[at] == 0xFF and (content[at + 1] in _JPEG_BEFORE or content[at + 1] in _JPEG_SIZES):
        if content[at + 1] in _JPEG_SIZES:
            if content.count(b"\xff\xda") > _MOST_SCANS:
                return None
            return _number(content, at + 7, 2, "big"), _number(content, at + 5, 2, "big"), content
        at += 2 + max(2, _number(content, at + 2, 2, "big"))
    return None


def _read_webp(content: bytes) -> Still | None:
    chunk = content[12:16]
    if content[8:12] != b"WEBP" or len(content) < 30 or (chunk == b"VP8X" and content[20] & 2):  # it is animated
        return None
    if chunk == b"VP8X":
        return _number(content, 24, 3) + 1, _number(content, 27, 3) + 1, content
    if chunk == b"VP8L":
        bits = _number(content, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, content
    return (_number(content, 26) & 0x3FFF, _number(content, 28) & 0x3FFF, content) if chunk == b"VP8 " else None


_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "png", _read_png), (b"\xff\xd8\xff", "jpeg", _read_jpeg), (b"GIF87a", "gif", _read_gif),
    (b"GIF89a", "gif", _read_gif), (b"RIFF", "webp", _read_webp),
)  # fmt: skip
