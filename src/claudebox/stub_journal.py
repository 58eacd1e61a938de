"""The journal of stubs in a project: each is written down before it is made, and found there by whoever comes later.

A stub also has a time that nothing else has, by which it is known if the journal is lost.
"""

from __future__ import annotations

import os
import stat

from claudebox.files import read_small
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.state import Instance

STUBS, STUBS_LIMIT = "stubs", 4 << 20  # its name in the project's state, and its size
MARK = 10**18  # nanoseconds: when stubs were changed last, as every file system can say it


class StubEntry(Value):
    """A line of the journal of stubs."""

    kind: str
    root: str  # the directory of the user that it is made in: the project, or its git directory
    identity: str  # of that directory, device and inode
    relative: str

    @property
    def path(self) -> str:
        """Return the whole path."""
        return f"{self.root.rstrip('/')}/{self.relative}"


def recorded_stubs(instance: Instance) -> frozenset[tuple[str, str]]:
    """Return kind and path of every stub that some session may have made."""
    content = read_small(f"{instance.directory}/{STUBS}", limit=STUBS_LIMIT) or b""
    return frozenset((entry.kind, entry.path) for entry in parse_stubs(content))


def is_marked(path: str) -> bool:
    """Return whether a path is a stub of ours by its time: empty, or a directory with nothing but stubs in it."""
    try:
        status = os.lstat(path)
        if status.st_mtime_ns != MARK or not stat.S_ISDIR(status.st_mode):
            return status.st_mtime_ns == MARK and stat.S_ISREG(status.st_mode) and not status.st_size
        return all(is_marked(f"{path}/{name}") for name in os.listdir(path))
    except OSError:
        return False


def parse_stubs(content: bytes) -> Iterator[StubEntry]:
    """Yield the entries of the journal of stubs."""
    words = [os.fsdecode(word) for word in content.split(b"\0")]
    # Four words and an empty one in front: what a killed writer left incomplete is passed over.
    for start in [number for number, word in enumerate(words) if not word]:
        row = words[start + 1 : start + 5]
        if len(row) == 4 and all(row):
            yield StubEntry(*row)
