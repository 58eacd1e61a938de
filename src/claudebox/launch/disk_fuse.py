"""A fuse for the disk: measures the project now and then, and ends the session when it has grown too large (LIMIT-03).

It is no limit: between two looks more can be written. The kernel has none that an ordinary user could set.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.launch import process
from claudebox.syscalls import signal

_PAUSE, _SHARE = 2.0, 20  # seconds between two looks, and how many times as long as a look took
_BLOWN = 3


class DiskFuse:
    """The process that measures."""

    def __init__(self, directory: str, most: int) -> None:
        self._directory, self._most = directory, most
        self._child, self._blown = 0, False

    def open(self) -> None:
        """Make nothing that bwrap binds."""

    def begin(self, files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start nothing before the sandbox stands."""

    def attach(self, payload: int) -> None:  # noqa: ARG002 - a sidecar is told; this one has nothing to do with it
        """Start to measure."""
        self._child = process.fork(lambda: _watch(self._directory, self._most), ())

    def tend(self) -> None:
        """End the session politely if the fuse has blown."""
        code = process.poll(self._child) if self._child else None
        if code is None:
            return
        self._child = 0
        if code == _BLOWN:
            self._blown = True
            os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> tuple[str, ...]:
        """Stop measuring, and say whether it was too much."""
        if self._child:
            process.end(self._child)
            self._child = 0
        size = f"{self._most >> 20} MiB"
        return (f"`{self._directory}` holds more than {size} (`--disk`): the session was ended",) if self._blown else ()


def _watch(directory: str, most: int) -> None:
    while True:
        begun = time.monotonic()
        if measure_directory(directory, most) > most:
            os._exit(_BLOWN)
        time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - begun)))


def measure_directory(directory: str, most: int) -> int:
    """Return how much a directory takes, or more than `most` as soon as that is sure; no link is followed."""
    total, waiting, seen = 0, [directory], set()
    while waiting and total <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
        except OSError:
            continue
    return total
