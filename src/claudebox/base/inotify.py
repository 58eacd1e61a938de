"""Watching directories with inotify, by its system calls.

An event means "look again" and nothing more: what is made and filled at once is missed, and the owner of a directory
can fake events.
"""

from __future__ import annotations

import os

from claudebox.base import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_NONBLOCK, _CLOEXEC = 0o4000, 0o2000000
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_ONLY_DIRECTORY, _NO_FOLLOW = 0x01000000, 0x02000000
_IS_DIRECTORY = 0x40000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY | _NO_FOLLOW
_HEADER = 16


class Watcher:
    """A set of watched directories; `descriptor` becomes readable when something happened."""

    def __init__(self) -> None:
        self.descriptor = syscalls.call("inotify_init1", _NONBLOCK | _CLOEXEC)
        self._watched: dict[str, int] = {}

    def watch(self, path: str) -> bool:
        """Watch a directory, but no link to one; return whether that worked."""
        return self._add(path, _NAMES | _CLOSE_WRITE)

    def watch_names(self, path: str) -> bool:
        """Watch a directory for names that come and go, but not for writes."""
        return self._add(path, _NAMES)

    def _add(self, path: str, mask: int) -> bool:
        if self.descriptor < 0:
            return False
        number = syscalls.call("inotify_add_watch", self.descriptor, os.fsencode(path) + b"\0", mask)
        if number >= 0:
            self._watched[path] = number
        return number >= 0

    def watch_below(self, path: str, most: int) -> bool:
        """Watch a directory and those in it, up to `most`; return whether that is all of them."""
        waiting, count = [path], 0
        while waiting:
            directory = waiting.pop()
            count += 1
            if count > most or not self.watch(directory):
                return False
            try:
                with os.scandir(directory) as entries:
                    waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
        return True

    def events(self) -> Iterator[tuple[str, str, bool]]:
        """Yield what has happened: the directory, the name in it, and whether that is a directory itself."""
        names = {number: path for path, number in self._watched.items()}
        while True:
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                return
            while len(data) >= _HEADER:
                number, mask, size = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 12))
                name = os.fsdecode(data[_HEADER : _HEADER + size].rstrip(b"\0"))
                data = data[_HEADER + size :]
                yield names.get(number, ""), name, bool(mask & _IS_DIRECTORY)
