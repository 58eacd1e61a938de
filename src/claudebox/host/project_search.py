"""One search of the project at the start of a launch: for files named like secrets, and for nested repositories.

By name and through no link, nearest to the top first. What cannot be searched is named, because a file that is not
found is a file that is shown.
"""

from __future__ import annotations

import errno
import os
import time

from claudebox.base.records import Value
from claudebox.tables.secret_files import ENVIRONMENTS, ORDINARY, PLACES, find_kind, find_kind_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host.records import Identity
    from claudebox.tables.secret_files import FileKind


MOST_ENTRIES, MOST_SECONDS, MOST_PATIENT = 2_000_000, 2.0, 20.0
_EVERY = 1024  # entries between two looks at the clock
_GIT = ".git"
_BARE = frozenset(("objects", "refs"))
# Nothing of the user's own lies in these, and often more than in all the rest.
_PASSED_OVER = frozenset((_GIT, "node_modules", ".venv", "venv", "target", "__pycache__", ".tox", ".mypy_cache"))
_COPIED = ("target/classes", "target/test-classes")  # where Maven puts the settings of a program


class Found(Value):
    """What a search has found."""

    suspects: tuple[tuple[str, FileKind], ...] = ()
    repositories: tuple[str, ...] = ()  # git directories below the tops
    unsearched: str = ""  # the first thing that was not searched, and can be read inside


def search(tops: Iterable[str], *, most: int = MOST_ENTRIES, seconds: float = MOST_SECONDS) -> Found:
    """Search these directories; one that lies in another is searched once."""
    search = _Search(frozenset(top.rstrip("/") or "/" for top in tops), most, time.monotonic() + seconds)
    unsearched = ""
    for directory in search.waiting:  # it grows in the loop
        try:
            if not search.enter(directory):
                unsearched = f"`{directory}` and what lies deeper"
                break
        except OSError as error:
            if not unsearched and not _is_gone_or_closed(directory, error):
                unsearched = f"`{directory}` ({error.strerror})"
    return Found(tuple(search.suspects), tuple(search.repositories), unsearched)


class _Search:
    """What a search has found so far."""

    def __init__(self, roots: frozenset[str], most: int, limit: float) -> None:
        self.waiting = sorted(roots, key=len, reverse=True)
        self.suspects: list[tuple[str, FileKind]] = []
        self.repositories: list[str] = []
        self._roots, self._left, self._limit = roots, most, limit

    def enter(self, directory: str) -> bool:
        """Look at what is in a directory; return whether there was time for all of it."""
        is_root, parts, place = directory in self._roots, 0, directory[directory.rfind("/") + 1 :]
        if f"/{ENVIRONMENTS}/" in directory:
            place = ENVIRONMENTS
        tells = place in PLACES
        below: list[str] = []
        left = self._left
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    parts += name in _BARE
                    below += self._choose(directory, name, entry.path)
                elif name[name.rfind(".") + 1 :] in ORDINARY and name[0] != ".":
                    pass  # most of them, without a call
                elif kind := find_kind_in(place, name) if tells else find_kind(name, top=is_root):
                    self.suspects.append((entry.path, kind))
                left -= 1
                if not left % _EVERY and (left <= 0 or time.monotonic() > self._limit):
                    return False
        self._left = left
        if parts == len(_BARE) and not is_root and os.path.lexists(f"{directory}/HEAD"):
            self.repositories.append(directory)  # a bare one
        else:
            self.waiting += below
        return True

    def _choose(self, directory: str, name: str, path: str) -> tuple[str, ...]:
        """Return what is to be searched of a directory in another one."""
        if name not in _PASSED_OVER:
            return (path,) if path not in self._roots else ()
        if name == _GIT and directory not in self._roots:
            self.repositories.append(path)
        return tuple(f"{directory}/{place}" for place in _COPIED) if name == "target" else ()


def find_known(top: str, known: set[Identity], *, seconds: float) -> tuple[list[tuple[str, Identity]], str]:
    """Return the files with these identities, wherever they lie, and what was not searched."""
    from claudebox.base.trees import Walk

    inodes = {inode for _, inode in known}
    walk = Walk(top, most=MOST_ENTRIES, seconds=seconds)
    found: list[tuple[str, Identity]] = []
    for path, entry in walk.entries():
        if entry.inode() in inodes and entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            found.append((path, (status.st_dev, status.st_ino)))
    return [row for row in found if row[1] in known], walk.unfinished


def _is_gone_or_closed(directory: str, error: OSError) -> bool:
    """Return whether a directory cannot be read inside either; what another user closed is closed there, too."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return True
    try:
        return error.errno == errno.EACCES and os.lstat(directory).st_uid != os.getuid()
    except OSError:
        return False
