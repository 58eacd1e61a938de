"""A walk through a hostile directory: it follows no link, does not recurse, and says if it was cut short."""

from __future__ import annotations

import errno
import os
import time

from claudebox.files import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
