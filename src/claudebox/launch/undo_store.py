"""The snapshots of a project: one manifest per session, and their contents in packs, in the project's state.

Nothing of it is mounted in a sandbox of an agent. A manifest appears complete or not at all; contents that no manifest
names are swept away after the oldest manifests.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import zlib

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small, replace_file
from claudebox.launch import undo_manifest
from claudebox.launch.undo_contents import FORMAT, Contents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.launch.undo_manifest import Snapshot

VERSION = 2
_SUFFIX, _PARTIAL = ".snapshot", "partial"
_CONTENTS, _LOCK = "contents", "lock"
_LONGEST = 1 << 30  # bytes of a manifest
_PACKS = 4  # contents are swept when there are so many more packs than snapshots
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotStore:
    """The directory of a project's snapshots."""

    def __init__(self, directory: str, *, writing: bool = True) -> None:
        self.directory = directory
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        if writing:
            os.makedirs(f"{directory}/{_CONTENTS}", mode=0o700, exist_ok=True)
            flags |= os.O_CREAT
        try:
            self._lock = os.open(f"{directory}/{_LOCK}", flags, 0o600)
        except FileNotFoundError:  # nothing was ever written
            self._lock = -1
        else:
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # nothing is swept away meanwhile
        self.contents = Contents(f"{directory}/{_CONTENTS}")

    def names(self) -> list[str]:
        """Return the names of the snapshots, oldest first."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def read_snapshot(self, name: str) -> Snapshot:
        """Return a snapshot."""
        return self._read(f"{name}{_SUFFIX}")

    def _read(self, name: str) -> Snapshot:
        try:
            packed = read_small(f"{self.directory}/{name}", limit=_LONGEST)
            version, plain = marshal.loads(zlib.decompress(packed or b""))  # noqa: S302 - nobody else writes it
            if version != VERSION:
                raise ValueError
            return undo_manifest.unpack(plain)
        except (EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            raise ClaudeboxError(f"the snapshot `{name}` in `{self.directory}` cannot be read") from None

    def write_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Keep a snapshot, with the contents that were added for it."""
        self._write(name + _SUFFIX, snapshot)
        try:
            os.unlink(f"{self.directory}/{_PARTIAL}")
        except FileNotFoundError:
            pass

    def write_partial(self, snapshot: Snapshot) -> None:
        """Keep what a snapshot has that was cut off, for the next one to begin with."""
        self._write(_PARTIAL, snapshot)

    def _write(self, name: str, snapshot: Snapshot) -> None:
        self.contents.save()
        packed = zlib.compress(marshal.dumps((VERSION, undo_manifest.pack(snapshot)), FORMAT), 1)
        directory = os.open(self.directory, _DIRECTORY)
        try:
            replace_file(directory, name, packed)
        finally:
            os.close(directory)

    def newest_like(self, root: str) -> Snapshot | None:
        """Return the newest snapshot of a project directory, which saves reading what has not changed since."""
        for name in (_PARTIAL, *(f"{name}{_SUFFIX}" for name in reversed(self.names()))):
            try:
                found = self._read(name)
            except ClaudeboxError:
                continue
            if found.root == root:
                return found
        return None

    def read_content(self, name: str) -> Iterator[bytes]:
        """Yield the pieces of a content; raise if it is not what it was."""
        return self.contents.read(bytes.fromhex(name))

    def remove_snapshot(self, name: str) -> None:
        """Forget a snapshot; its contents go with the next sweep."""
        os.unlink(f"{self.directory}/{name}{_SUFFIX}")

    def prune(self, keep: int) -> None:
        """Forget all but the newest snapshots, and sweep from time to time, unless somebody else writes."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            for name in self.names()[:-keep]:
                self.remove_snapshot(name)
            names = self.names()
            self.contents.tidy()
            if len(self.contents.packs()) > len(names) + _PACKS:
                self.contents.sweep(set().union(*(self.read_snapshot(name).contents() for name in names)))
        except ClaudeboxError:  # one that cannot be read stops the sweep, not the session
            return
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
