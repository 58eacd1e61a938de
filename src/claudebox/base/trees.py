"""Directory trees that an agent made: read and removed by descriptor, without recursion, no link followed."""

from __future__ import annotations

import errno
import os
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
LONGEST = 3800  # bytes of a path below the top: with what is above it, the kernel takes 4096
OUT_OF_TIME = "out of time"
_EVERY = 512  # entries between two looks at the clock
_SEARCH = 0o100  # the right of the owner
_MOST_OPENED = 64  # directories that are closed again after a look


def nearest_in(table: Mapping[str, T]) -> Callable[[str], T | None]:
    """Return what gives for a path, however deep, the row of the nearest directory around it, or its own."""
    lengths = sorted({len(path) for path in table if path}, reverse=True)

    def find(path: str) -> T | None:
        for length in lengths:
            if path[length : length + 1] in ("", "/") and path[:length] in table:
                return table[path[:length]]
        return None

    return find


class Closed:
    """Directories of ours that deny us reading: opened for a look, by descriptor and through no link.

    One that was changed since a moment stays open, and is noted: somebody closed it, or made it so, in the meantime.
    """

    def __init__(self, since: float, reopened: Iterable[tuple[int, int]] = ()) -> None:
        self.since, self.reopened = since, frozenset(reopened)  # those changed because we looked before
        self._again: list[tuple[int, int]] = []  # descriptor and mode
        self.opened: list[tuple[str, int]] = []  # path and mode of those that stay open

    def open(self, top: int | None, path: str, identity: tuple[int | None, int]) -> bool:
        """Open the directory that is known by its device and inode; return whether anything was changed."""
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
        """Put the other modes back."""
        for descriptor, mode in reversed(self._again):
            try:
                close_again(descriptor, mode)
            except OSError:  # it is gone, or no longer ours
                pass
            os.close(descriptor)
        self._again = []


def read_directory(
    top: int, path: str, deadline: float, identity: tuple[int, int] | None = None, closed: Closed | None = None
) -> tuple[list[Row], str]:
    """Return name and status of what stands in a directory below `top`, and why that is not all; empty if it is.

    With `closed`, a directory that is known by its identity is opened if it denies us reading.
    """
    if len(path) > LONGEST // 4 and len(os.fsencode(path)) > LONGEST:
        return [], "its path is too long"
    rows: list[Row] = []
    failed = 0
    problem = ""
    try:
        try:
            descriptor = os.open(path or ".", DIRECTORY, dir_fd=top)
        except PermissionError:
            if closed is None or identity is None or not closed.open(top, path, identity):
                raise
            descriptor = os.open(path or ".", DIRECTORY, dir_fd=top)
    except OSError as error:
        return rows, error.strerror or str(error)
    try:
        status = os.fstat(descriptor)
        if not status.st_mode & _SEARCH and closed is not None and identity is not None and os.getuid():
            closed.open(top, path, identity)  # names can be read, and nothing else
        if identity is not None and (status.st_dev, status.st_ino) != identity:
            return rows, "it was replaced while it was looked at"
        with os.scandir(descriptor) as entries:
            for entry in entries:
                try:
                    rows.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:  # another session is at work
                    continue
                except OSError as error:
                    failed += 1
                    problem = f"{failed} entries: {error.strerror or error}"
                if not len(rows) % _EVERY and time.monotonic() > deadline:
                    return rows, OUT_OF_TIME
    except OSError as error:
        return rows, error.strerror or str(error)
    finally:
        os.close(descriptor)
    return rows, problem


def walk(
    root: str, unseen: list[tuple[str, str]], deadline: float = float("inf"), closed: Closed | None = None
) -> Iterator[Row]:
    """Yield path and status of everything below a directory; what could not be looked at is added to `unseen`."""
    try:
        if closed is not None:
            closed.open(None, root, (None, os.lstat(root).st_ino))
        top = os.open(root, DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        unseen.append((root, error.strerror or str(error)))
        return
    with Closing(top):
        waiting: list[tuple[str, tuple[int, int] | None]] = [("", None)]
        while waiting:
            path, identity = waiting.pop()
            if time.monotonic() > deadline:
                unseen.append((f"{root}/{path}", OUT_OF_TIME))
                continue
            rows, problem = read_directory(top, path, deadline, identity if closed is not None else None, closed)
            if problem:
                unseen.append((f"{root}/{path}", problem))
            for name, status in rows:
                where = f"{path}/{name}" if path else name
                if status.st_mode & KIND == IS_DIRECTORY:
                    waiting.append((where, (status.st_dev, status.st_ino)))
                yield f"{root}/{where}", status


def remove(parent: str, name: str) -> None:
    """Remove a directory with all that is in it; what is deeper first moves to its top, so depth does not matter."""
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
    """Remove the files of a directory and move its directories to the top; return the names that they have there."""
    with os.scandir(directory) as entries:
        rows = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    moved: list[str] = []
    for name, is_directory in rows:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
        elif directory == top:
            moved.append(name)
        else:
            free = f".{os.urandom(16).hex()}"  # a name that nobody could have taken
            os.close(_enter(directory, name))
            os.rename(name, free, src_dir_fd=directory, dst_dir_fd=top)
            moved.append(free)
    return moved


# A walk through a hostile directory: it follows no link, does not recurse, and says if it was cut short.


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)  # it is no directory any more


class Walk:
    """One walk, level by level: what lies near the top is seen even if the budget ends."""

    def __init__(self, top: str, *, most: int, seconds: float) -> None:
        """Set the budget: so many entries, so many seconds."""
        self.unfinished = ""  # what was not looked at
        self._waiting = [top]
        self._left, self._limit = most, time.monotonic() + seconds

    def entries(self, entered: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the path and entry of everything that is not a directory; `entered` says of a name whether to go in."""
        for directory in self._waiting:  # it grows meanwhile
            if self.unfinished:
                return
            try:
                descriptor = os.open(directory, _DIRECTORY)
            except OSError as error:
                self._missed(directory, error)
                continue
            with Closing(descriptor):
                try:
                    with os.scandir(descriptor) as found:
                        yield from self._list(directory, found, entered)
                except OSError as error:  # /proc has directories that can be opened and not listed
                    self._missed(directory, error)

    def _list(
        self, directory: str, found: Iterator[os.DirEntry[str]], entered: Callable[[str], bool]
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        for entry in found:
            self._left -= 1
            if self._left < 0 or (not self._left & 255 and time.monotonic() > self._limit):
                self.unfinished = f"`{directory}` and what lies deeper"
                return
            path = f"{directory}/{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                yield path, entry
            elif entered(entry.name):
                self._waiting.append(path)

    def _missed(self, directory: str, error: OSError) -> None:
        """Note a directory that whoever is inside could open up; others' directories stay closed inside as well."""
        if error.errno in _GONE:
            return
        try:
            ours = error.errno != errno.EACCES or os.lstat(directory).st_uid == os.getuid()
        except OSError:
            ours = True
        if ours:
            self.unfinished = f"`{directory}` ({error.strerror})"
