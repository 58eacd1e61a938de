"""Pictures as PNG, from their pixels."""

from __future__ import annotations

import struct
import zlib


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def write_png(width: int, pixels: bytes, palette: bytes = b"", level: int = 9) -> bytes:
    """Return a picture of three bytes for each pixel, or of one with a palette."""
    row = width * (1 if palette else 3)
    rows = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    head = struct.pack(">IIBBBBB", width, len(pixels) // row, 8, 3 if palette else 2, 0, 0, 0)
    colours = chunk(b"PLTE", palette) if palette else b""
    picture = chunk(b"IDAT", zlib.compress(rows, level)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + colours + picture
