"""Reading files that somebody hostile may have put there.

A FIFO must not block the launcher, a link must not lead it away, a huge file must not fill its memory (C18).
"""

from __future__ import annotations

import os
import stat

from claudebox.facts.model import PathFact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import Identity

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFSOCK: "socket"}


def read_small(path: str, *, limit: int = 65536, follow: bool = False) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes, or None for anything else."""
    try:
        return _read(os.open(path, _READ | (0 if follow else os.O_NOFOLLOW)), limit)
    except (OSError, ValueError):
        return None


def read_at(directory: int, name: str, *, limit: int = 65536) -> bytes | None:
    """Return the content of a regular file in an open directory, or None for anything else."""
    try:
        return _read(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=directory), limit)
    except OSError:
        return None


def _read(descriptor: int, limit: int) -> bytes | None:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        content = b""
        while len(content) <= limit:
            piece = os.read(descriptor, limit + 1 - len(content))
            if not piece:
                return content
            content += piece
        return None
    finally:
        os.close(descriptor)


class Examiner:
    """Tells what paths are, looking at each directory once."""

    def __init__(self) -> None:
        self._lineages: dict[str, tuple[Identity, ...]] = {}
        self._reals: dict[str, str] = {}

    def fact(self, path: str, *, alone: bool = False) -> PathFact:
        """Return what is at a path, with the identities of all directories above it unless wanted `alone`."""
        try:
            status = os.lstat(path)
            link = stat.S_ISLNK(status.st_mode)
            if link:
                status = os.stat(path)
            real = path if alone else self._real(path, link=link)
        except (OSError, ValueError):
            return PathFact(path, path)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        above = () if alone else self._above(real)
        lineage = ((status.st_dev, status.st_ino), *above)
        return PathFact(path, real, kind, lineage, status.st_uid)  # type: ignore[arg-type]

    def _real(self, path: str, *, link: bool) -> str:
        parent, name = os.path.split(path)
        if link or name in ("", ".", ".."):
            return os.path.realpath(path)
        if parent not in self._reals:
            self._reals[parent] = os.path.realpath(parent)
        return os.path.join(self._reals[parent], name)

    def _above(self, real: str) -> tuple[Identity, ...]:
        if real == "/":
            return ()
        parent = os.path.dirname(real)
        known = self._lineages.get(parent)
        if known is None:
            try:
                status = os.stat(parent)
            except OSError:
                return ()
            known = self._lineages[parent] = ((status.st_dev, status.st_ino), *self._above(parent))
        return known
