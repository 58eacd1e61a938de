"""The snapshots of a project: one manifest per session, and contents by their SHA-256, in the project's state.

Nothing of it is mounted in a sandbox of an agent. A manifest appears complete or not at all; contents that no manifest
names are swept away with the oldest manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small, replace_file
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = 1
_SUFFIX = ".snapshot"
_BLOBS, _LOCK = "contents", "lock"
_PIECE = 1 << 20
_MOST = 1 << 30  # bytes of a manifest
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class KeptEntry(Value):
    """One thing in the project: `d` directory, `f` file, `l` link, `p` FIFO."""

    kind: str
    mode: int
    mtime: int
    size: int = 0
    ctime: int = 0
    inode: int = 0
    content: str = ""  # SHA-256 of a file, target of a link

    def is_like(self, other: KeptEntry) -> bool:
        """Return whether both are the same but for times."""
        return (self.kind, self.mode, self.content) == (other.kind, other.mode, other.content)


class KeptRefs(Value):
    """What claudebox itself can change in a git directory of the host: branches, tags, HEAD and the index."""

    private: str
    real: str
    head: str
    refs: dict[str, str]
    index: str = ""  # its content
    index_mtime: int = 0


class Snapshot(Value):
    """A project as it was."""

    root: str
    began: int  # nanoseconds
    entries: dict[str, KeptEntry]
    left_out: dict[str, str]  # what is not kept, and why
    late: tuple[str, ...] = ()  # directories that the session changed before they were read
    repositories: tuple[KeptRefs, ...] = ()


class SnapshotStore:
    """The directory of a project's snapshots."""

    def __init__(self, directory: str, *, writing: bool = True) -> None:
        self.directory = directory
        self._lock = -1
        if writing:
            os.makedirs(f"{directory}/{_BLOBS}", mode=0o700, exist_ok=True)
            self._lock = os.open(f"{directory}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # what we write is not swept away meanwhile

    def names(self) -> list[str]:
        """Return the names of the snapshots, oldest first."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def read_snapshot(self, name: str) -> Snapshot:
        """Return a snapshot."""
        try:
            packed = read_small(f"{self.directory}/{name}{_SUFFIX}", limit=_MOST)
            found = json.loads(zlib.decompress(packed or b""))
            if found["version"] != VERSION:
                raise ValueError
            found["entries"] = {row[0]: KeptEntry(*row[1:]) for row in found["entries"]}
            found["repositories"] = tuple(KeptRefs(**row) for row in found["repositories"])
            found["late"] = tuple(found["late"])
            return Snapshot(**{key: found[key] for key in Snapshot._fields})
        except (ValueError, KeyError, TypeError, zlib.error):
            raise ClaudeboxError(f"the snapshot `{name}` in `{self.directory}` cannot be read") from None

    def write_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Keep a snapshot, whose contents are here already."""
        rows = [
            [path, *(getattr(entry, field) for field in KeptEntry._fields)] for path, entry in snapshot.entries.items()
        ]
        document: dict[str, Any] = {field: getattr(snapshot, field) for field in Snapshot._fields}
        document |= {"version": VERSION, "entries": rows}
        document["repositories"] = [{field: getattr(row, field) for field in KeptRefs._fields} for row in
                                    snapshot.repositories]  # fmt: skip
        directory = os.open(self.directory, _DIRECTORY)
        try:
            replace_file(directory, name + _SUFFIX, zlib.compress(json.dumps(document).encode("ascii"), 1))
        finally:
            os.close(directory)

    def newest_like(self, root: str) -> Snapshot | None:
        """Return the newest snapshot of a project directory, which saves reading what has not changed since."""
        for name in reversed(self.names()):
            try:
                found = self.read_snapshot(name)
            except ClaudeboxError:
                continue
            if found.root == root:
                return found
        return None

    def keep_content(self, descriptor: int) -> str:
        """Keep all that can be read from a descriptor; return its SHA-256."""
        digest, packer = hashlib.sha256(), zlib.compressobj(1)
        piece = os.read(descriptor, _PIECE)
        if (
            len(piece) < _PIECE
        ):  # nearly all are small: what is here already, also from a cut-off snapshot, is not written
            name = hashlib.sha256(piece).hexdigest()
            if not os.read(descriptor, 1) and os.path.exists(self._path(name)):
                return name
            os.lseek(descriptor, len(piece), os.SEEK_SET)
        temporary = f"{self.directory}/{_BLOBS}/.{os.getpid()}.tmp"
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while piece:
                digest.update(piece)
                _write(target, packer.compress(piece))
                piece = os.read(descriptor, _PIECE)
            _write(target, packer.flush())
        finally:
            os.close(target)
        name = digest.hexdigest()
        try:
            os.rename(temporary, self._path(name))
        except FileNotFoundError:
            os.makedirs(f"{self.directory}/{_BLOBS}/{name[:2]}", mode=0o700, exist_ok=True)
            os.rename(temporary, self._path(name))
        return name

    def read_content(self, name: str) -> Iterator[bytes]:
        """Yield the pieces of a content; raise if it is not what it was."""
        digest, unpacker = hashlib.sha256(), zlib.decompressobj()
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while piece := os.read(descriptor, _PIECE):
                while piece:
                    plain = unpacker.decompress(piece, _PIECE)
                    digest.update(plain)
                    yield plain
                    piece = unpacker.unconsumed_tail
        except zlib.error:
            raise OSError("its content in the snapshot is damaged") from None
        finally:
            os.close(descriptor)
        if not unpacker.eof or digest.hexdigest() != name:
            raise OSError("its content in the snapshot is damaged")

    def remove_snapshot(self, name: str) -> None:
        """Forget a snapshot; its contents go with the next sweep."""
        os.unlink(f"{self.directory}/{name}{_SUFFIX}")

    def prune(self, keep: int) -> None:
        """Forget all but the newest snapshots, and sweep, unless somebody else writes."""
        old = self.names()[:-keep]
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            for name in old:
                self.remove_snapshot(name)
            if old:
                self._sweep()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _sweep(self) -> None:
        used: set[str] = set()
        for name in self.names():
            found = self.read_snapshot(name)  # one that cannot be read stops the sweep, not the session
            used |= {entry.content for entry in found.entries.values() if entry.kind == "f"}
            used |= {row.index for row in found.repositories}
        blobs = f"{self.directory}/{_BLOBS}"
        for part in os.listdir(blobs):
            if part.endswith(".tmp"):
                os.unlink(f"{blobs}/{part}")
                continue
            for rest in os.listdir(f"{blobs}/{part}"):
                if part + rest not in used:
                    os.unlink(f"{blobs}/{part}/{rest}")

    def _path(self, name: str) -> str:
        return f"{self.directory}/{_BLOBS}/{name[:2]}/{name[2:]}"


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
