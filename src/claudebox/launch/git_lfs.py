"""Bring large files back: what Git LFS keeps in the agent's git directory, into the real one, each checked by its name.

The name of such a file is the SHA-256 of its content. It is copied first and examined then, so that nobody can change
what was examined; commits would be useless without them, since git itself holds only their names.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from claudebox.files import write_all
from claudebox.launch.git_adopt import open_below
from claudebox.launch.git_names import HEX
from claudebox.launch.git_sandbox import GitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 1 << 20
_MOST = 100_000  # files in one import
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def bring_back(own: str, common: str, *, size: int, seconds: float) -> int:
    """Copy what is missing; return how many files came. More than `size` bytes or `seconds` are refused."""
    limit, came = time.monotonic() + seconds, 0
    for directory, first, second, name in _files(own):
        target = f"{common}/lfs/objects/{first}/{second}"
        if os.path.lexists(f"{target}/{name}"):
            continue
        if os.path.islink(f"{common}/lfs"):
            raise GitError(f"`{common}/lfs` is a link: large files stay inside")
        os.makedirs(target, exist_ok=True)
        length = _take(directory, name, target, size, limit)
        if length is not None:
            size -= length
            came += 1
    return came


def _files(own: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the files of the agent's store: an open directory, its two names, and the name in it."""
    count = 0
    for first in _names(own, "lfs/objects", 2):
        for second in _names(own, f"lfs/objects/{first}", 2):
            for name in _names(own, f"lfs/objects/{first}/{second}", 64):
                count += 1
                if count > _MOST:
                    raise GitError(f"there are more than {_MOST} large files inside")
                directory = open_below(own, f"lfs/objects/{first}/{second}")
                try:
                    yield directory, first, second, name
                finally:
                    os.close(directory)


def _names(own: str, path: str, length: int) -> list[str]:
    try:
        directory = open_below(own, path)
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(directory) if len(name) == length and HEX.issuperset(name))
    finally:
        os.close(directory)


def _take(directory: int, name: str, target: str, size: int, limit: float) -> int | None:
    """Copy a file and keep the copy if it is what its name says; return its length."""
    try:
        source = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    temporary = f"{target}/.{name}.claudebox"
    copy = -1
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return None
        if os.path.lexists(temporary):
            os.unlink(temporary)
        copy = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        digest, length = hashlib.sha256(), 0
        while piece := os.read(source, _PIECE):
            length += len(piece)
            if length > size or time.monotonic() > limit:
                raise GitError("large files inside are more than can be brought back at once")
            digest.update(piece)
            write_all(copy, piece)
        if digest.hexdigest() != name:
            return None
        os.rename(temporary, f"{target}/{name}")
        return length
    finally:
        os.close(source)
        if copy >= 0:
            os.close(copy)
        if os.path.lexists(temporary):
            os.unlink(temporary)
