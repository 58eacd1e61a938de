"""The caches of programs inside: measured, and evicted where they are larger than the user lets them be."""

from __future__ import annotations

import fcntl
import os
import time

from claudebox.base import trees
from claudebox.base.console import list_some
from claudebox.base.files import list_names
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_PATIENCE = 10.0  # seconds for measuring caches
_SHOWN = 20


class Usage(Value):
    """The cache of one program."""

    name: str
    size: int
    used: float


def measure(directory: str, deadline: float) -> Iterator[Usage]:
    """Yield the caches in a directory, measured until the deadline."""
    for name in list_names(directory):
        path = f"{directory}/{name}"
        try:
            rows = [os.lstat(path)]
        except OSError:
            continue
        if rows[0].st_mode & trees.KIND == trees.IS_DIRECTORY:
            rows += (status for _, status in trees.walk(path, [], deadline, trees.Opener(0.0)))
        used = max(max(status.st_mtime, status.st_atime) for status in rows)
        yield Usage(name, sum(status.st_blocks * 512 for status in rows), used)


def prune(directory: str, limit: int) -> Iterator[str]:
    """Evict the least recently used caches until the rest is within the limit; yield what the user should know.

    Each is evicted as a whole, since a program may take half of its cache for damaged, and only while no session uses
    them.
    """
    lock = os.open(f"{directory}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(lock)
        yield from _prune(directory, limit)
    except BlockingIOError:  # a session uses them
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
        trees.remove(directory, name)
