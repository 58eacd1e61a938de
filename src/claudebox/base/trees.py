"""Walk and remove directory trees that an agent made: by descriptor, without recursion, through no link."""

from __future__ import annotations

import errno
import os
import sys
import time

from claudebox.base.files import Closing, close_again, open_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    Row = tuple[str, os.stat_result]
    T = TypeVar("T")


DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
KIND, IS_DIRECTORY, IS_LINK, IS_FILE = 0o170000, 0o040000, 0o120000, 0o100000
LONGEST = 3800  # bytes of a path below the top; the kernel's limit for all of it is 4096
OUT_OF_TIME = "out of time"
_SEARCH = 0o100  # the owner's right
_MOST_OPENED = 64  # directories that are closed again
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)  # no directory any more


def nearest_in(table: Mapping[str, T]) -> Callable[[str], T | None]:
    """Return a function that finds the row of a path, or of the nearest directory around it."""
    lengths = sorted({len(path) for path in table if path}, reverse=True)

    def find(path: str) -> T | None:
        for length in lengths:
            if path[length : length + 1] in ("", "/") and path[:length] in table:
                return table[path[:length]]
        return None

    return find


class Opener:
    """Opens directories of ours that deny us reading, by descriptor and through no link.

    Those changed since a moment stay open and are noted: the session closed them. The others are closed again.
    """

    def __init__(self, since: float, reopened: Iterable[tuple[int, int]] = ()) -> None:
        self.since, self.reopened = since, frozenset(reopened)  # changed by an earlier look of ours
        self._again: list[tuple[int, int]] = []  # descriptor and mode
        self.opened: list[tuple[str, int]] = []  # path and former mode of those that stay open

    def open(self, top: int | None, path: str, identity: tuple[int | None, int]) -> bool:
        """Open the directory with this device and inode up; return whether that was necessary and possible."""
        try:
            found = os.open(path or ".", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        except OSError:
            return False
        kept = False
        try:
            status = os.fstat(found)
            changed = status.st_ctime >= self.since and (status.st_dev, status.st_ino) not in self.reopened
            if identity not in ((status.st_dev, status.st_ino), (None, status.st_ino)):
                return False
            if not changed and len(self._again) >= _MOST_OPENED:
                return False
            mode = open_up(found)
            if mode is None:
                return False
            if changed:
                self.opened.append((path, mode))
            else:
                self._again.append((found, mode))
                kept = True
            return True
        except OSError:
            return False
        finally:
            if not kept:
                os.close(found)

    def close(self) -> None:
        """Restore the other modes."""
        for descriptor, mode in reversed(self._again):
            try:
                close_again(descriptor, mode)
            except OSError:  # it is gone, or no longer ours
                pass
            os.close(descriptor)
        self._again = []


def open_directory(top: int, path: str, identity: tuple[int, int] | None = None, opener: Opener | None = None) -> int:
    """Open a directory below `top`; with an identity, fail where another one has taken its place.

    With `opener`, one that denies its owner reading is opened up, if its identity is known.
    """
    if len(path) > LONGEST // 4 and len(os.fsencode(path)) > LONGEST:
        raise OSError(errno.ENAMETOOLONG, "its path is too long")
    try:
        directory = os.open(path or ".", DIRECTORY, dir_fd=top)
    except PermissionError:
        if opener is None or identity is None or not opener.open(top, path, identity):
            raise
        directory = os.open(path or ".", DIRECTORY, dir_fd=top)
    status = os.fstat(directory)
    if identity not in (None, (status.st_dev, status.st_ino)):
        os.close(directory)
        raise OSError("it was replaced meanwhile")
    if opener is not None and identity is not None and not status.st_mode & _SEARCH and os.getuid():
        opener.open(top, path, identity)  # its names could be read, but not what they stand for
    return directory


class Walk:
    """A walk within a budget, breadth first: what lies near the top is seen even if the budget ends."""

    def __init__(
        self, top: str, *, most: int = sys.maxsize, seconds: float = float("inf"), opener: Opener | None = None
    ) -> None:
        self.unseen: list[tuple[str, str]] = []  # path and reason
        self.unfinished = ""  # what was not seen and could be seen inside the sandbox
        self._top, self._opener = top, opener
        self._left, self._limit = most, time.monotonic() + seconds

    def entries(self, entered: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield everything with its path; `entered` decides by its name whether a directory is searched."""
        waiting: list[tuple[str, tuple[int, int] | None]] = [("", None)]
        try:
            if self._opener is not None:
                self._opener.open(None, self._top, (None, os.lstat(self._top).st_ino))
            top = os.open(self._top, DIRECTORY)
        except OSError as error:
            self._miss(self._top, error)
            return
        with Closing(top):
            for path, identity in waiting:  # grows meanwhile
                where = f"{self._top}/{path}" if path else self._top
                try:
                    with (
                        Closing(open_directory(top, path, identity, self._opener)) as opened,
                        os.scandir(opened) as rows,
                    ):
                        for entry in rows:
                            self._left -= 1
                            if self._left < 0 or (not self._left & 255 and time.monotonic() > self._limit):
                                self.unseen.append((where, OUT_OF_TIME))
                                self.unfinished = f"`{where}` and what lies deeper"
                                return
                            if entry.is_dir(follow_symlinks=False) and entered(entry.name):
                                waiting.append((f"{path}/{entry.name}" if path else entry.name, self._identify(entry)))
                            yield f"{where}/{entry.name}", entry
                except OSError as error:  # some directories in /proc can be opened but not listed
                    self._miss(where, error)

    def _identify(self, entry: os.DirEntry[str]) -> tuple[int, int] | None:
        if self._opener is None:
            return None
        status = entry.stat(follow_symlinks=False)
        return status.st_dev, status.st_ino

    def _miss(self, directory: str, error: OSError) -> None:
        if error.errno in _GONE:
            return
        self.unseen.append((directory, error.strerror or str(error)))
        try:  # what another user closed is closed inside, too
            ours = error.errno != errno.EACCES or os.lstat(directory).st_uid == os.getuid()
        except OSError:
            ours = True
        if ours and not self.unfinished:
            self.unfinished = f"`{directory}` ({error.strerror or error})"


def walk(
    root: str, unseen: list[tuple[str, str]], deadline: float = float("inf"), opener: Opener | None = None
) -> Iterator[Row]:
    """Yield path and status of everything below a directory; add to `unseen` what could not be looked at."""
    found = Walk(root, seconds=deadline - time.monotonic(), opener=opener)
    for path, entry in found.entries():
        try:
            yield path, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            unseen.append((path, error.strerror or str(error)))
    unseen += found.unseen


def remove(parent: str, name: str) -> None:
    """Remove a directory with everything in it; deeper ones first move to its top, so depth does not matter."""
    base = os.open(parent, DIRECTORY)
    opened = [base]
    try:
        top = _enter(base, name)
        opened.append(top)
        waiting = _empty(top, top)
        while waiting:
            inner = waiting.pop()
            with Closing(_enter(top, inner)) as descriptor:
                waiting += _empty(descriptor, top)
            os.rmdir(inner, dir_fd=top)
        os.rmdir(name, dir_fd=base)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _enter(parent: int, name: str) -> int:
    """Open a directory whose owner may have no rights in it; no link is followed."""
    with Closing(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as found:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _empty(directory: int, top: int) -> list[str]:
    """Remove the files of a directory and move its directories to the top; return their names there."""
    with os.scandir(directory) as entries:
        rows = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    moved: list[str] = []
    for name, is_directory in rows:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
        elif directory == top:
            moved.append(name)
        else:
            free = f".{os.urandom(16).hex()}"  # cannot be taken
            os.close(_enter(directory, name))
            os.rename(name, free, src_dir_fd=directory, dst_dir_fd=top)
            moved.append(free)
    return moved
