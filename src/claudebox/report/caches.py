"""Keeping caches within their limit: what was not used for longest goes, one program's cache at a time.

Half of a cache is of no use to most programs, and some take it for damaged; so each goes as a whole, and only while no
session uses it.
"""

from __future__ import annotations

import fcntl
import os
import time

from claudebox.console import list_some
from claudebox.files import list_names
from claudebox.report import tree
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 10.0  # seconds for looking at them
_SHOWN = 20


class Usage(Value):
    """What one program keeps."""

    name: str
    size: int
    used: float


def measure(directory: str, deadline: float) -> Iterator[Usage]:
    """Yield what is in a directory of caches, as far as time permits."""
    for name in list_names(directory):
        path = f"{directory}/{name}"
        try:
            rows = [os.lstat(path)]
        except OSError:
            continue
        if rows[0].st_mode & tree.KIND == tree.IS_DIRECTORY:
            rows += (status for _, status in tree.walk(path, [], deadline, tree.Closed(0.0)))
        used = max(max(status.st_mtime, status.st_atime) for status in rows)
        yield Usage(name, sum(status.st_blocks * 512 for status in rows), used)


def prune(directory: str, limit: int) -> Iterator[str]:
    """Remove what was not used for longest until the rest is within the limit; yield what a user should know."""
    lock = os.open(f"{directory}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(lock)
        yield from _prune(directory, limit)
    except BlockingIOError:  # another session uses them
        return
    finally:
        os.close(lock)


def _prune(directory: str, limit: int) -> Iterator[str]:
    found = sorted(measure(directory, time.monotonic() + _PATIENCE), key=lambda usage: usage.used)
    total = sum(usage.size for usage in found)
    gone = []
    for usage in found:
        if total <= limit:
            break
        try:
            _remove(directory, usage.name)
        except OSError as error:
            yield f"`{directory}/{usage.name}` could not be removed: {error.strerror}"
            continue
        total -= usage.size
        gone.append(usage.name)
    if gone:
        yield f"caches were larger than {limit >> 30} GiB (`cache_size`): removed {list_some(gone, _SHOWN)}"


def _remove(directory: str, name: str) -> None:
    try:
        os.unlink(f"{directory}/{name}")
    except IsADirectoryError:
        tree.remove(directory, name)
