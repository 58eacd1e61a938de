"""Snapshots of a project.

A directory is one record, so that an unchanged one is compared, taken over and written as a whole.
"""

from __future__ import annotations

import os
import stat
import struct

from claudebox.base import syscalls
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator
    from typing import Any, Literal

    # Why something is not kept; `text` of it is for the user alone.
    LeftKind = Literal["excluded", "size", "kind", "place", "late", "unreadable", "outside", "time"]


DIGEST = 32  # bytes of a SHA-256
NO_DIGEST = bytes(DIGEST)
FIELDS = 7  # mode, owner, group, size, mtime, ctime, inode
SIZE, MTIME, CTIME = 3, 4, 5
NO_ROW = (0,) * FIELDS  # of a name that changed before it was read, except for its inode
TICK = 20_000_000  # nanoseconds: the kernel's clock for files lags by less
ROW = struct.Struct(f"={FIELDS}q")
_KINDS = {
    stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFSOCK: "s", stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
}  # fmt: skip
TYPES = {letter: mode for mode, letter in _KINDS.items()}
_bytes_by_own = [1 << 20]  # hashed by Python's own SHA-256 before OpenSSL is loaded
INODES = NEVER = (1 << 63) - 1

Attributes = tuple[tuple[str, bytes], ...]  # extended ones
Row = tuple[int, ...]


class KeptEntry:
    """One entry: `d` directory, `f` file, `l` link, `p` FIFO, `s` socket, `c` and `b` devices, `?` not read in time.

    Plain, because an agent can make a million of them.
    """

    __slots__ = ("attributes", "content", "ctime", "inode", "kind", "mode", "mtime", "owner", "size")

    def __init__(self, kind: str, row: Row, content: str, attributes: Attributes) -> None:
        # The content is the SHA-256 of a file, empty if it is not kept, or the target of a link.
        self.kind = kind
        mode, owner, group, self.size, self.mtime, self.ctime, self.inode = row
        self.mode = stat.S_IMODE(mode)
        self.owner = (owner, group)
        self.content, self.attributes = content, attributes

    @property
    def is_kept(self) -> bool:
        """Return whether it can be restored."""
        return bool(self.content) if self.kind == "f" else self.kind in "dlp"

    def is_like(self, other: KeptEntry) -> bool:
        """Return whether both are the same except for times; of a file that is not kept `lstat` has to agree."""
        if (self.kind, self.mode, self.owner) != (other.kind, other.mode, other.owner):
            return False
        if self.kind == "f" and not (self.content and other.content):
            return (self.size, self.mtime, self.ctime, self.inode) == (
                other.size, other.mtime, other.ctime, other.inode
            )  # fmt: skip
        return (self.content, self.attributes) == (other.content, other.attributes)

    def is_moved(self, other: KeptEntry) -> bool:
        """Return whether this is the same file under another name; inodes of deleted files are reused."""
        if (self.kind, self.inode) != (other.kind, other.inode) or self.kind == "d":
            return False
        known = bool(self.content and other.content)
        same = self.content == other.content if known else self.size == other.size
        return same and (self.mtime == other.mtime or (known and self.kind == "f"))


class KeptFolder(Value):
    """A directory; the digest of a file that is not kept is zeros."""

    own: Row
    names: str  # separated by NUL
    rows: bytes
    digests: bytes  # empty: nothing in it is read
    targets: dict[str, str]  # of links
    attributes: dict[str, Attributes]  # only if there are some; "" is the directory itself
    latest: int  # newest ctime of its files; NEVER if one of them is not kept

    def rows_by_name(self) -> dict[str, tuple[Row, bytes]]:
        """Return what `lstat` said of each name, and its digest."""
        names = self.names.split("\0") if self.names else []
        stored = self.digests or bytes(DIGEST * len(names))
        digests = (stored[start : start + DIGEST] for start in range(0, len(stored), DIGEST))
        return dict(zip(names, zip(ROW.iter_unpack(self.rows), digests, strict=True), strict=True))

    def is_like(self, other: KeptFolder) -> bool:
        return (self.rows, self.names, self.digests, self.targets, self.attributes, self.own[:CTIME], self.own[-1]) == (
            other.rows, other.names, other.digests, other.targets, other.attributes, other.own[:CTIME], other.own[-1]
        )  # fmt: skip


def pack_rows(flat: list[int]) -> bytes:
    """Pack rows by `struct`: importing `array` takes 3 ms."""
    return struct.pack(f"={len(flat)}q", *flat)


class FolderDraft:
    """A directory while it is read; with `kept` False only `lstat` counts."""

    def __init__(self, path: str, own: Row, names: list[str], flat: list[int], *, kept: bool = True) -> None:
        self.path, self.own, self.names, self.flat, self.kept = path, own, names, flat, kept
        times = flat[MTIME::FIELDS]
        if times and (max(times) > NEVER or min(times) < -NEVER):
            flat[MTIME::FIELDS] = map(_within, times)
        self.digests = bytearray(DIGEST * len(names) if kept else 0)
        self.targets: dict[str, str] = {}
        self.attributes: dict[str, Attributes] = {}

    def is_like(self, known: KeptFolder) -> bool:
        return known.names == "\0".join(self.names) and known.rows == pack_rows(self.flat)

    def row(self, number: int) -> Row:
        return tuple(self.flat[number * FIELDS : (number + 1) * FIELDS])

    def digest(self, number: int) -> bytes:
        return bytes(self.digests[number * DIGEST : (number + 1) * DIGEST])

    def set(self, number: int, row: Row, digest: bytes, attributes: Attributes) -> None:
        self.flat[number * FIELDS : (number + 1) * FIELDS] = row
        if self.kept:
            self.digests[number * DIGEST : (number + 1) * DIGEST] = digest
        if attributes:
            self.attributes[self.names[number]] = attributes

    def keep(self) -> KeptFolder:
        whole = not self.kept or all(
            kind & 0o170000 != stat.S_IFREG or self.digest(number) != NO_DIGEST
            for number, kind in enumerate(self.flat[::FIELDS])
        )
        latest = max(self.flat[CTIME::FIELDS], default=0) if whole else NEVER
        rows = pack_rows(self.flat)
        return KeptFolder(self.own, "\0".join(self.names), rows, bytes(self.digests), self.targets, self.attributes,
                          latest)  # fmt: skip


class KeptRefs(Value):
    """What a session can change in a git directory of the host: branches, tags, HEAD and the index."""

    private: str
    real: str
    head: str
    refs: dict[str, str]
    index: str = ""  # a digest
    index_mtime: int = 0
    staged: str = ""  # a digest without the times, which `git status` renews


class LeftOut(Value):
    """Why something is not kept."""

    kind: LeftKind
    text: str


class Snapshot(Value):
    """A project at one moment."""

    root: str
    began: int  # nanoseconds
    folders: dict[str, KeptFolder]
    left_out: dict[str, LeftOut]
    late: tuple[str, ...] = ()  # directories that the agent changed before they were read
    repositories: tuple[KeptRefs, ...] = ()
    most: int = 64 << 20  # bytes of a file that is kept
    excluded: tuple[str, ...] = ()  # names and patterns

    def entries(self) -> dict[str, KeptEntry]:
        """Return all entries by path; the project itself is `.`."""
        return dict(entry for path, folder in self.folders.items() for entry in expand_folder(path, folder))

    def contents(self) -> set[bytes]:
        """Return the digests of all contents."""
        found = {bytes.fromhex(row.index) for row in self.repositories if row.index}
        for folder in self.folders.values():
            found |= {folder.digests[start : start + DIGEST] for start in range(0, len(folder.digests), DIGEST)}
        return found - {NO_DIGEST}


def expand_folder(path: str, folder: KeptFolder) -> Iterator[tuple[str, KeptEntry]]:
    """Yield a directory and what is in it, except directories, with their paths."""
    yield path or ".", KeptEntry("d", folder.own, "", folder.attributes.get("", ()))
    prefix = f"{path}/" if path else ""
    for name, (row, digest) in folder.rows_by_name().items():
        kind = _KINDS.get(stat.S_IFMT(row[0]), "?")
        if kind == "d":
            continue
        content = folder.targets.get(name, "") if kind == "l" else "" if digest == NO_DIGEST else digest.hex()
        yield prefix + name, KeptEntry(kind, row, content, folder.attributes.get(name, ()))


def row_of(status: os.stat_result) -> Row:
    return (status.st_mode, status.st_uid, status.st_gid, status.st_size, _within(status.st_mtime_ns),
            status.st_ctime_ns, status.st_ino & INODES)  # fmt: skip


def _within(time: int) -> int:
    """Clamp a time to 64 bits: a file can have one in the year 2400."""
    return max(-NEVER, min(NEVER, time))


def read_attributes(descriptor: int) -> Attributes:
    """Return the extended attributes of the user namespace."""
    try:
        names = os.listxattr(descriptor)
        return tuple((name, os.getxattr(descriptor, name)) for name in sorted(names) if name.startswith("user."))
    except OSError:  # not every file system has them
        return ()


def new_digest(length: int) -> hashlib._Hash:
    """Return a SHA-256 hash for so many bytes; loading OpenSSL takes as long as Python's own needs for a megabyte."""
    if _bytes_by_own[0] < length:
        import hashlib

        return hashlib.sha256()
    _bytes_by_own[0] -= length
    return syscalls.new_sha256()


def pack(snapshot: Snapshot) -> tuple[Any, ...]:
    folders = {path: folder.as_tuple() for path, folder in snapshot.folders.items()}
    left_out = {path: row.as_tuple() for path, row in snapshot.left_out.items()}
    return (snapshot.root, snapshot.began, folders, left_out, snapshot.late,
            tuple(row.as_tuple() for row in snapshot.repositories), snapshot.most, snapshot.excluded)  # fmt: skip


def unpack(plain: tuple[Any, ...]) -> Snapshot:
    root, began, folders, left_out, late, repositories, *rest = plain
    return Snapshot(
        root, began, {path: KeptFolder(*row) for path, row in folders.items()},
        {path: LeftOut(*row) for path, row in left_out.items()}, late, tuple(KeptRefs(*row) for row in repositories),
        *rest,
    )  # fmt: skip
