"""Snapshots of a project, and reading one: every name by descriptor and through no link, whatever changes meanwhile.

A directory is one record, so that an unchanged one is compared, taken over and written as a whole. A file is not read
again if `lstat` says the same as in an earlier snapshot: an agent can set every time except ctime. Nothing in the
project is run or changed.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from claudebox.base import syscalls, trees
from claudebox.base.files import open_beneath, open_known
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Literal

    from claudebox.undo.store import SnapshotStore

    # Why something is not kept; `text` of it is for the user alone.
    LeftKind = Literal["excluded", "size", "kind", "place", "late", "unreadable", "outside", "time"]
    Place = tuple[str, int, int, bool]  # a directory, its device and inode, and whether its files are read


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
KnownRows = dict[str, tuple[Row, bytes]]


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


LATE = "it was changed before the snapshot reached it"
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a scan could change again with the same ctime
_FOLDER = (stat.S_IFDIR, 0, 0, 0, 0, 0, 0)  # a directory has a record of its own
_WILD = frozenset("*?[/")  # what makes a name a pattern
_UNKNOWN = ((), NO_DIGEST)
_EXCLUDED = "excluded by its name"
_EVERY = 512  # names between two looks at the clock
_MOST_NEW = 4 << 30  # bytes that one snapshot adds
_DONE: Place = ("", 0, 0, False)


class Scan:
    """One reading of a project: names and `lstat` first, then the contents of files of up to `most` bytes.

    `store` keeps contents; without it they are only hashed, and with `most` 0 nothing is read. Directories that are
    excluded by name or on another file system come last, and nothing in them is read.
    """

    def __init__(
        self, root: str, store: SnapshotStore | None, known: Snapshot | None, *, most: int = 0,
        names: Iterable[str] = (), skipped: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """`known` is an earlier snapshot, `names` are excluded names and patterns, `skipped` paths are left out."""
        self._root, self._store, self._most = root, store, most
        self.deadline = float("inf")
        self.opener: trees.Opener | None = None  # opens directories that deny us reading
        self.identity: tuple[int, int] | None = None  # device and inode that the root must have
        self.told: Callable[[int, int], None] | None = None  # called every second: files read, of how many
        self._known = known.folders if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        patterns = [name for name in self._names if _WILD & set(name)]
        self._patterns = _compile(patterns) if patterns else None
        self._skipped: dict[str, set[str]] = {}
        for path in filter(None, skipped):
            above, _, name = os.path.relpath(path, root).rpartition("/")
            self._skipped.setdefault(above, set()).add(name)
        self._top = -1
        self._device = self._new = 0
        self.size = 0  # names
        self._began = time.time_ns()
        self._late: list[str] = []
        self._later: list[Place] = []  # directories in which nothing is read
        self._folders: dict[str, KeptFolder] = {}  # unchanged since the known snapshot
        self._open: dict[str, FolderDraft] = {}  # the others
        self._unread: list[tuple[FolderDraft, int]] = []
        self._left_out: dict[str, LeftOut] = {}

    def look(self, released: Callable[[], int] | None = None) -> None:
        """Read everything; `released` returns since when the agent has been running, 0 if it has not begun."""
        self._look_at_names()
        self._read_all(released)
        self._look_at_rest()
        self.drop_late(released() if released is not None else 0)

    def run(self, repositories: Iterable[KeptRefs] = (), *, patience: float = float("inf")) -> Snapshot:
        """Return a snapshot; files not read within so many seconds are known by `lstat` alone."""
        limit = time.monotonic() + patience
        self._look_at_names()
        self._look_at_rest()
        self._read_all(None, limit)
        return self.snapshot(repositories)

    def snapshot(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Return what has been read so far."""
        folders = {**self._folders, **{path: folder.keep() for path, folder in self._open.items()}}
        left_out = self._left_out | {path: LeftOut("time", trees.OUT_OF_TIME) for path, *_ in self._later}
        return Snapshot(self._root, self._began, folders, left_out, tuple(self._late), tuple(repositories),
                        self._most, tuple(sorted(self._names)))  # fmt: skip

    def _look_at_names(self) -> None:
        if self.opener is not None and os.path.lexists(self._root) and not os.access(self._root, os.R_OK | os.X_OK):
            known = self._known.get("")
            inode = known.own[-1] if known is not None else os.lstat(self._root).st_ino
            self.opener.open(None, self._root, self.identity or (None, inode))
            self.opener.opened[:] = [("", mode) for _, mode in self.opener.opened]
        try:
            self._top = open_known(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, self.identity)
        except OSError as error:
            self._leave_out(".", "unreadable", error.strerror)
            return
        status = os.fstat(self._top)
        self._device = status.st_dev
        self._walk([("", status.st_dev, status.st_ino, self._most > 0)])

    def _look_at_rest(self) -> None:
        """Look at the directories in which nothing is read; the last look."""
        later, self._later = self._later, []
        try:
            if self._top >= 0:
                self._walk(later)
        finally:
            if self.opener is not None:
                self.opener.close()
            if self._top >= 0:
                os.close(self._top)
            self._top = -1

    def _walk(self, waiting: list[Place]) -> None:
        number = 0
        while number < len(waiting):
            if time.monotonic() > self.deadline:
                for path, *_ in waiting[number:]:
                    self._leave_out(path or ".", "time", trees.OUT_OF_TIME)
                return
            place = waiting[number]
            waiting[number] = _DONE  # there may be a million of them
            number += 1
            waiting += self._enter(*place)

    def _enter(self, path: str, device: int, inode: int, kept: bool) -> list[Place]:  # noqa: FBT001 - a Place
        """Look at what is in a directory; return the directories in it."""
        try:
            directory = self._open_directory(path, (device, inode))
        except OSError as error:
            kind: LeftKind = "late" if error.errno in (None, errno.ENOENT) else "unreadable"
            kind = "place" if error.errno == errno.ENAMETOOLONG else kind
            text = LATE if error.errno == errno.ENOENT else error.strerror or str(error)
            self._leave_out(path or ".", kind, text)
            return []
        try:
            return self._list(directory, path, kept=kept)
        except OSError as error:
            self._leave_out(path or ".", "unreadable", error.strerror)
            return []
        finally:
            os.close(directory)

    def _open_directory(self, path: str, identity: tuple[int, int]) -> int:
        return trees.open_directory(self._top, path, identity, self.opener)

    def _list(self, directory: int, path: str, *, kept: bool) -> list[Place]:
        names: list[str] = []
        flat: list[int] = []
        below: list[Place] = []
        skipped, patterns = self._skipped.get(path, ()), self._patterns
        with os.scandir(directory) as found:
            for entry in found:
                name = entry.name
                if name in skipped:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # its directory has changed since
                    continue
                except OSError as error:
                    self._leave_out(join(path, name), "unreadable", error.strerror)
                    continue
                names.append(name)
                mode = status.st_mode
                if mode & 0o170000 == stat.S_IFDIR:
                    flat += _FOLDER
                    inner = kept and self._is_kept(name, path, status)
                    place = (join(path, name), status.st_dev, status.st_ino, inner)
                    (below if inner or not kept else self._later).append(place)
                    continue
                flat += (mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
                         status.st_ino & INODES)  # fmt: skip
                if not kept:
                    pass
                elif patterns is not None and (patterns(name) or patterns(join(path, name))):
                    self._leave_out(join(path, name), "excluded", _EXCLUDED)
                elif mode & 0o170000 not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO):
                    self._leave_out(join(path, name), "kind", "a socket or a device")
                if not len(names) % _EVERY and time.monotonic() > self.deadline:
                    self._leave_out(path or ".", "time", trees.OUT_OF_TIME)
                    break
        self.size += len(names) + 1
        # After all names, so that it shows every change to them.
        self._take(directory, FolderDraft(path, row_of(os.fstat(directory)), names, flat, kept=kept))
        return below

    def _is_kept(self, name: str, path: str, status: os.stat_result) -> bool:
        where = join(path, name)
        if name in self._names or (self._patterns is not None and (self._patterns(name) or self._patterns(where))):
            self._leave_out(where, "excluded", _EXCLUDED)
        elif status.st_dev != self._device:
            self._leave_out(where, "place", "another file system")
        else:
            return True
        return False

    def _leave_out(self, path: str, kind: LeftKind, text: str | None) -> None:
        self._left_out[path] = LeftOut(kind, text or "it cannot be read")

    def _take(self, directory: int, folder: FolderDraft) -> None:
        """Take over what is known of a directory as a whole, or name by name."""
        known, own = self._known.get(folder.path), read_attributes(directory)
        if known is not None and (known.latest < self._settled or not folder.kept) and folder.is_like(known):
            attributes = {name: row for name, row in known.attributes.items() if name} | ({"": own} if own else {})
            self._folders[folder.path] = known.replace(own=folder.own, attributes=attributes)
            return
        if own:
            folder.attributes[""] = own
        self._open[folder.path] = folder
        rows = known.rows_by_name() if known is not None else {}
        unknown = []
        for number, mode in enumerate(folder.flat[::FIELDS]):
            kind = mode & 0o170000
            if kind == stat.S_IFLNK:
                self._read_link(directory, folder, folder.names[number])
            elif kind != stat.S_IFREG or not folder.kept:
                continue
            elif known is None or not self._take_file(folder, number, known, rows):
                unknown.append(number)
        if unknown:
            self._put_off(folder, unknown)

    def _take_file(self, folder: FolderDraft, number: int, known: KeptFolder, rows: KnownRows) -> bool:
        """Take over what is known of a file that has not changed."""
        name = folder.names[number]
        row, digest = rows.get(name, _UNKNOWN)
        if digest == NO_DIGEST or row[CTIME] >= self._settled or row != folder.row(number):
            return False
        folder.set(number, row, digest, known.attributes.get(name, ()))
        return True

    def _read_link(self, directory: int, folder: FolderDraft, name: str) -> None:
        try:
            folder.targets[name] = os.readlink(name, dir_fd=directory)
        except OSError:
            self._leave_out(join(folder.path, name), "late", LATE)

    def _put_off(self, folder: FolderDraft, numbers: list[int]) -> None:
        """Note files to be read when all names are known."""
        sizes = folder.flat[SIZE::FIELDS]
        for number in numbers if max(sizes) > self._most else ():
            if sizes[number] > self._most:
                text = f"{sizes[number] >> 20} MiB, more than {self._most >> 20} MiB"
                self._leave_out(join(folder.path, folder.names[number]), "size", text)
        numbers = [number for number in numbers if sizes[number] <= self._most]
        if self._patterns is not None:
            numbers = [row for row in numbers if join(folder.path, folder.names[row]) not in self._left_out]
        self._unread += [(folder, number) for number in numbers]

    def _read_all(self, released: Callable[[], int] | None, limit: float = float("inf")) -> None:
        """Read files; once the agent runs, only those that are as they were."""
        if not self._unread:
            return
        told = time.monotonic()
        root = open_known(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, self.identity)
        directory = -1
        current: FolderDraft | None = None
        try:
            for done, (folder, number) in enumerate(self._unread):
                strict = released is not None and released() > 0
                if time.monotonic() > limit:
                    return
                if self.told is not None and time.monotonic() > told + 1:
                    told = time.monotonic()
                    self.told(done, len(self._unread))
                try:
                    if folder is not current:
                        if directory >= 0:
                            os.close(directory)
                        directory, current = -1, folder
                        directory = open_beneath(root, folder.path)
                    if directory < 0:
                        raise OSError(LATE)  # it could not be opened for the file before
                    self._read_file(directory, folder, number, strict=strict)
                except OSError as error:
                    kind: LeftKind = "unreadable" if error.errno not in (None, errno.ENOENT) else "late"
                    self._leave_out(join(folder.path, folder.names[number]), kind, error.strerror or str(error))
        finally:
            os.close(root)
            if directory >= 0:
                os.close(directory)

    def _read_file(self, directory: int, folder: FolderDraft, number: int, *, strict: bool) -> None:
        descriptor = os.open(folder.names[number], _OPEN_FILE, dir_fd=directory)
        try:
            before = row_of(os.fstat(descriptor))
            if not stat.S_ISREG(before[0]) or before[SIZE] > self._most or (strict and before != folder.row(number)):
                raise OSError(LATE)
            if self._store is None:
                digest = _digest(descriptor, before[SIZE])
            else:
                self._new += before[SIZE]
                if self._new > _MOST_NEW:
                    raise OSError(f"more than {_MOST_NEW >> 30} GiB of new contents at once")
                digest = self._store.keep(descriptor, before[SIZE])
            attributes = read_attributes(descriptor)
            if row_of(os.fstat(descriptor)) != before:
                raise OSError("it changed while it was read")
        finally:
            os.close(descriptor)
        folder.set(number, before, digest, attributes)

    def drop_late(self, released: int) -> None:
        """Discard what changed after the agent started; 0 if it has not."""
        if not released:
            return
        since = released - TICK
        for path, folder in self._open.items():
            for number, name in enumerate(folder.names):
                row = folder.row(number)
                if row[CTIME] >= since and row != _FOLDER:
                    folder.set(number, (*NO_ROW[:-1], row[-1]), NO_DIGEST, ())
                    self._leave_out(join(path, name), "late", LATE)
        owns = {path: folder.own for path, folder in self._open.items()}
        owns |= {path: folder.own for path, folder in self._folders.items()}
        self._late = [path or "." for path, own in owns.items() if own[CTIME] >= since]


def _digest(descriptor: int, length: int) -> bytes:
    digest = new_digest(length)
    while piece := os.read(descriptor, 1 << 20):
        digest.update(piece)
    return digest.digest()


def _compile(patterns: list[str]) -> Callable[[str], object]:
    import fnmatch
    import re

    return re.compile("|".join(map(fnmatch.translate, patterns))).match


def join(path: str, name: str) -> str:
    """Return the path of a name in a directory of the project."""
    return f"{path}/{name}" if path else name
