"""The submodules of an index: which entries are commits of other repositories."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 512 << 20
_MODE = b"\0\0\xe0\0"  # of such an entry, at offset 24
_HEADER = 12
_STAT = 40  # size, owner, times, ... in front of the object's name
_EXTENDED = 0x4000
_MOST = 256


def find_submodules(path: str, digest: int) -> tuple[str, ...]:
    """Return the paths of submodules in an index; `digest` is the length of the names of objects."""
    content = _content(path)
    if content[:4] != b"DIRC" or content.find(_MODE, _HEADER) < 0:
        return ()
    version = content[7]
    names = _compressed(content, digest) if version == 4 else _plain(content, digest)
    found: list[str] = []
    for name in names:
        if name and not name.startswith(b"/") and b".." not in name.split(b"/"):
            found.append(os.fsdecode(name))
        if len(found) >= _MOST:
            break
    return tuple(dict.fromkeys(found))


def _content(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _LIMIT:
            return b""
        return os.read(descriptor, status.st_size)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _plain(content: bytes, digest: int) -> Iterator[bytes]:
    """Yield what may be such entries, found by their mode alone: the caller looks whether there is such a directory."""
    position = content.find(_MODE, _HEADER)
    while position >= 0:
        start = position - 24 + _STAT + digest
        flags = int.from_bytes(content[start : start + 2], "big")
        start += 4 if flags & _EXTENDED else 2
        end = content.find(b"\0", start, start + 4096)
        if end > start and (flags & 0xFFF == end - start or flags & 0xFFF == 0xFFF):
            yield content[start:end]
        position = content.find(_MODE, position + 1)


def _compressed(content: bytes, digest: int) -> Iterator[bytes]:
    """Read entries one after the other: in version 4 each name builds upon the one before."""
    position, name = _HEADER, b""
    for _ in range(int.from_bytes(content[8:12], "big")):
        after = position + _STAT + digest
        flags = int.from_bytes(content[after : after + 2], "big")
        after += 4 if flags & _EXTENDED else 2
        cut, after = _varint(content, after)
        end = content.find(b"\0", after)
        if end < 0:
            return
        name = name[: len(name) - cut] + content[after:end]
        if content[position + 24 : position + 28] == _MODE:
            yield name
        position = end + 1


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = -1
    while position < len(content):
        byte = content[position]
        position += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
        if byte < 0x80:
            break
    return value, position
