"""What a pack of git holds: whole objects, and of those that are kept as differences what is new in them."""

from __future__ import annotations

import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = 12
_OFFSET, _BASE = 6, 7  # kinds of objects that are kept as a difference to another
_ID = 20
_STEP = 4096  # bytes that are unpacked at once, to a thousand times as many at the most


def objects(pack: bytes, largest: int) -> Iterator[bytes | None]:
    """Yield the contents in a pack; None and no more where one is larger than so many bytes, or damaged."""
    position = _HEAD
    for _ in range(int.from_bytes(pack[8:_HEAD], "big")):
        kind = pack[position] >> 4 & 7 if position < len(pack) else 0
        position = _after_number(pack, position)
        if kind == _OFFSET:
            position = _after_number(pack, position)
        elif kind == _BASE:
            position += _ID
        inflater, parts, size = zlib.decompressobj(), [], 0
        while not inflater.eof:
            piece = pack[position : position + _STEP]
            try:
                parts.append(inflater.decompress(piece))
            except zlib.error:
                piece = b""
            size += len(parts[-1]) if parts else 0
            if not piece or size > largest:
                yield None
                return
            position += len(piece)
        position -= len(inflater.unused_data)
        data = b"".join(parts)
        yield _inserted(data) if kind in (_OFFSET, _BASE) else data


def _after_number(data: bytes, position: int) -> int:
    """Return where a number of variable length ends."""
    while position < len(data) and data[position] & 0x80:
        position += 1
    return position + 1


def _inserted(difference: bytes) -> bytes:
    """Return what a difference does not copy from elsewhere."""
    position = _after_number(difference, _after_number(difference, 0))
    parts: list[bytes] = []
    while position < len(difference):
        step = difference[position]
        position += 1
        if step & 0x80:
            position += (step & 0x7F).bit_count()
            parts.append(b"\0")
        else:
            parts.append(difference[position : position + step])
            position += step
    return b"".join(parts)
