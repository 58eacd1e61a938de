"""Snapshots of a project, and reading one: every name by descriptor and through no link, whatever changes meanwhile.

A file is not read again if `lstat` says the same as in an earlier snapshot: an agent can set every time except ctime.
Nothing in the project is run or changed.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from claudebox.base import syscalls, trees
from claudebox.base.files import Closing, open_beneath, open_known
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal

    from claudebox.undo.store import SnapshotStore

    # Why something is not kept; `text` of it is for the user alone.
    LeftKind = Literal["excluded", "size", "kind", "place", "late", "unreadable", "outside", "time"]
    Place = tuple[str, tuple[int, int], bool]  # a directory, its device and inode, and whether its files are read


TICK = 20_000_000  # nanoseconds: the kernel's clock for files lags by less
_KINDS = {
    stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFSOCK: "s", stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
}  # fmt: skip
TYPES = {letter: mode for mode, letter in _KINDS.items()}
_ROW = struct.Struct("=7q")  # what `lstat` says: mode, owner, group, size, mtime, ctime, inode
_WIDEST = (1 << 63) - 1  # in a row; a time can be in the year 2400


def pack_row(status: os.stat_result) -> bytes:
    mtime = max(-_WIDEST, min(_WIDEST, status.st_mtime_ns))
    return _ROW.pack(status.st_mode, status.st_uid, status.st_gid, status.st_size, mtime, status.st_ctime_ns,
                     status.st_ino & _WIDEST)  # fmt: skip


class KeptEntry:
    """One entry: `d` directory, `f` file, `l` link, `p` FIFO, `s` socket, `c` and `b` devices, `?` not read in time.

    Plain and packed, because an agent can make millions of them.
    """

    __slots__ = ("content", "kind", "row")

    def __init__(self, row: bytes, content: bytes = b"") -> None:
        """`content` is the SHA-256 of a file, empty if it is not kept, or the target of a link."""
        self.kind = _KINDS.get(stat.S_IFMT(_ROW.unpack(row)[0]), "?")
        self.row, self.content = row, content

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self._field(0))

    @property
    def owner(self) -> tuple[int, int]:
        return self._field(1), self._field(2)

    @property
    def size(self) -> int:
        return self._field(3)

    @property
    def mtime(self) -> int:
        return self._field(4)

    @property
    def ctime(self) -> int:
        return self._field(5)

    @property
    def inode(self) -> int:
        return self._field(6)

    def _field(self, number: int) -> int:
        return int(_ROW.unpack(self.row)[number])

    @property
    def is_kept(self) -> bool:
        """Return whether it can be restored."""
        return bool(self.content) if self.kind == "f" else self.kind in "dl"

    def is_like(self, other: KeptEntry) -> bool:
        """Return whether both are the same except for times; of a file that is not kept `lstat` has to agree."""
        if self.row == other.row and self.content == other.content:  # nearly always
            return True
        if self.kind == other.kind == "f" and not (self.content and other.content):
            return self.row == other.row
        return (self.kind, self.mode, self.owner, self.content) == (other.kind, other.mode, other.owner, other.content)

    def is_moved(self, other: KeptEntry) -> bool:
        """Return whether this is the same file under another name; inodes of deleted files are reused."""
        if (self.kind, self.inode) != (other.kind, other.inode) or self.kind == "d":
            return False
        known = bool(self.content and other.content)
        same = self.content == other.content if known else self.size == other.size
        return same and (self.mtime == other.mtime or (known and self.kind == "f"))


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
    entries: dict[str, KeptEntry]  # by path; the project itself is `.`
    left_out: dict[str, LeftOut]
    late: tuple[str, ...] = ()  # directories that the agent changed before they were read
    repositories: tuple[KeptRefs, ...] = ()
    most: int = 64 << 20  # bytes of a file that is kept
    excluded: tuple[str, ...] = ()  # names and patterns

    def contents(self) -> set[bytes]:
        """Return the digests of all contents."""
        files = {entry.content for entry in self.entries.values() if entry.kind == "f"}
        return (files | {bytes.fromhex(row.index) for row in self.repositories}) - {b""}


def pack(snapshot: Snapshot) -> tuple[Any, ...]:
    """Return a snapshot as plain data, for `marshal`."""
    entries = {path: (entry.row, entry.content) for path, entry in snapshot.entries.items()}
    left_out = {path: row.as_tuple() for path, row in snapshot.left_out.items()}
    return (snapshot.root, snapshot.began, entries, left_out, snapshot.late,
            tuple(row.as_tuple() for row in snapshot.repositories), snapshot.most, snapshot.excluded)  # fmt: skip


def unpack(plain: tuple[Any, ...]) -> Snapshot:
    root, began, entries, left_out, late, repositories, *rest = plain
    return Snapshot(
        root, began, {path: KeptEntry(*row) for path, row in entries.items()},
        {path: LeftOut(*row) for path, row in left_out.items()}, late, tuple(KeptRefs(*row) for row in repositories),
        *rest,
    )  # fmt: skip


_bytes_by_own = [1 << 20]  # hashed by Python's own SHA-256 before OpenSSL is loaded


def find_digest(content: bytes) -> bytes:
    """Return the SHA-256; loading OpenSSL takes as long as Python's own needs for a megabyte."""
    if _bytes_by_own[0] < len(content):
        import hashlib

        return hashlib.sha256(content).digest()
    _bytes_by_own[0] -= len(content)
    return syscalls.new_sha256(content).digest()


LATE = "it was changed before the snapshot reached it"
_OPEN_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a scan could change again with the same ctime
_WILD = frozenset("*?[/")  # what makes a name a pattern
_EVERY = 512  # names between two looks at the clock
_MOST_ENTRIES = 4_000_000  # they take two gigabytes
_MOST_NEW = 4 << 30  # bytes that one snapshot adds
_LARGEST = 512 << 20  # bytes of a file, whatever the setting says: it is read into memory


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
        self._root, self._store, self._most = root, store, min(most, _LARGEST)
        self.deadline = float("inf")
        self.opener: trees.Opener | None = None  # opens directories that deny us reading
        self.identity: tuple[int, int] | None = None  # device and inode that the root must have
        self.told: Callable[[int, int], None] | None = None  # called every second: files read, of how many
        self._known = known.entries if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        patterns = [name for name in self._names if _WILD & set(name)]
        self._patterns = _compile(patterns) if patterns else None
        self._skipped = {os.path.relpath(path, root) for path in skipped if path}
        self._top = -1
        self._device = self._new = 0
        self.size = 0  # names
        self._began = time.time_ns()
        self._entries: dict[str, KeptEntry] = {}
        self._unread: list[str] = []  # files
        self._later: list[Place] = []  # directories in which nothing is read
        self._late: list[str] = []
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
        left_out = self._left_out | {path: LeftOut("time", trees.OUT_OF_TIME) for path, *_ in self._later}
        return Snapshot(self._root, self._began, self._entries, left_out, tuple(self._late), tuple(repositories),
                        self._most, tuple(sorted(self._names)))  # fmt: skip

    def _look_at_names(self) -> None:
        if self.opener is not None and os.path.lexists(self._root) and not os.access(self._root, os.R_OK | os.X_OK):
            known = self._known.get(".")
            inode = known.inode if known is not None else os.lstat(self._root).st_ino
            self.opener.open(None, self._root, self.identity or (None, inode))
            self.opener.opened[:] = [("", mode) for _, mode in self.opener.opened]
        try:
            self._top = open_known(self._root, _OPEN_TOP, self.identity)
        except OSError as error:
            self._leave_out("", "unreadable", error.strerror)
            return
        status = os.fstat(self._top)
        self._device = status.st_dev
        self._walk([("", (status.st_dev, status.st_ino), self._most > 0)])

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
        while waiting:
            following: list[Place] = []
            for number, place in enumerate(waiting):
                if self._is_over():
                    for path, *_ in (*waiting[number:], *following):
                        self._leave_out(path, "time", trees.OUT_OF_TIME)
                    return
                following += self._enter(*place)
            waiting = following

    def _enter(self, path: str, identity: tuple[int, int], kept: bool) -> list[Place]:  # noqa: FBT001 - a Place
        """Look at what is in a directory; return the directories in it."""
        try:
            directory = self._open_directory(path, identity)
        except OSError as error:
            kind: LeftKind = "late" if error.errno in (None, errno.ENOENT) else "unreadable"
            kind = "place" if error.errno == errno.ENAMETOOLONG else kind
            self._leave_out(path, kind, LATE if error.errno == errno.ENOENT else error.strerror or str(error))
            return []
        with Closing(directory):
            try:
                return self._list(directory, path, kept=kept)
            except OSError as error:
                self._leave_out(path, "unreadable", error.strerror)
                return []

    def _open_directory(self, path: str, identity: tuple[int, int]) -> int:
        return trees.open_directory(self._top, path, identity, self.opener)

    def _list(self, directory: int, path: str, *, kept: bool) -> list[Place]:
        below: list[Place] = []
        prefix = f"{path}/" if path else ""
        with os.scandir(directory) as found:
            for entry in found:
                name = entry.name
                where = prefix + name
                if where in self._skipped:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # its directory has changed since
                    continue
                except OSError as error:
                    self._leave_out(where, "unreadable", error.strerror)
                    continue
                self.size += 1
                inner = kept and self._is_kept(where, name, status)
                if stat.S_ISDIR(status.st_mode):
                    place = (where, (status.st_dev, status.st_ino), inner)
                    (below if inner or not kept else self._later).append(place)
                else:
                    self._entries[where] = self._take(directory, where, name, status, kept=inner)
                if not self.size % _EVERY and self._is_over():
                    self._leave_out(path, "time", trees.OUT_OF_TIME)
                    break
        # After all names, so that it shows every change to them.
        self._entries[path or "."] = KeptEntry(pack_row(os.fstat(directory)))
        self.size += 1
        return below

    def _is_over(self) -> bool:
        return time.monotonic() > self.deadline or len(self._entries) > _MOST_ENTRIES

    def _is_kept(self, where: str, name: str, status: os.stat_result) -> bool:
        if self._patterns is not None and (self._patterns(name) or self._patterns(where)):
            self._leave_out(where, "excluded", "excluded by its name")
        elif not stat.S_ISDIR(status.st_mode):
            return True
        elif name in self._names:
            self._leave_out(where, "excluded", "excluded by its name")
        elif status.st_dev != self._device:
            self._leave_out(where, "place", "another file system")
        else:
            return True
        return False

    def _take(self, directory: int, where: str, name: str, status: os.stat_result, *, kept: bool) -> KeptEntry:
        """Return the entry for a name that is no directory; the content of a file may be read later."""
        row, known = pack_row(status), self._known.get(where)
        is_old = status.st_ctime_ns < self._settled
        if kept and is_old and known and known.row == row and known.kind == "f" and known.content:
            return known
        entry = KeptEntry(row)
        if entry.kind == "l":
            try:
                entry.content = os.fsencode(os.readlink(name, dir_fd=directory))
            except OSError:
                self._leave_out(where, "late", LATE)
        elif kept and entry.kind != "f":
            self._leave_out(where, "kind", "a pipe, a socket or a device")
        elif kept and status.st_size > self._most:
            self._leave_out(where, "size", f"{status.st_size >> 20} MiB, more than {self._most >> 20} MiB")
        elif kept:
            self._unread.append(where)
        return entry

    def _leave_out(self, path: str, kind: LeftKind, text: str | None) -> None:
        self._left_out[path or "."] = LeftOut(kind, text or "it cannot be read")

    def _read_all(self, released: Callable[[], int] | None, limit: float = float("inf")) -> None:
        """Read files; once the agent runs, only those that are as they were."""
        if not self._unread:
            return
        told = time.monotonic()
        directory, opened = -1, None
        root = open_known(self._root, _OPEN_TOP, self.identity)
        try:
            for done, path in enumerate(self._unread):
                strict = released is not None and released() > 0
                if time.monotonic() > limit:
                    return
                if self.told is not None and time.monotonic() > told + 1:
                    told = time.monotonic()
                    self.told(done, len(self._unread))
                above, _, name = path.rpartition("/")
                try:
                    if above != opened:
                        below = open_beneath(root, above)
                        if directory >= 0:
                            os.close(directory)
                        directory, opened = below, above
                    self._entries[path] = self._read_file(directory, name, path, strict=strict)
                except OSError as error:
                    kind: LeftKind = "unreadable" if error.errno not in (None, errno.ENOENT) else "late"
                    self._leave_out(path, kind, error.strerror or str(error))
        finally:
            os.close(root)
            if directory >= 0:
                os.close(directory)

    def _read_file(self, directory: int, name: str, path: str, *, strict: bool) -> KeptEntry:
        with Closing(os.open(name, _OPEN_FILE, dir_fd=directory)) as descriptor:
            status = os.fstat(descriptor)
            row, length = pack_row(status), status.st_size
            if not stat.S_ISREG(status.st_mode) or length > self._most or (strict and row != self._entries[path].row):
                raise OSError(LATE)
            self._new += length if self._store is not None else 0
            if self._new > _MOST_NEW:
                raise OSError(f"more than {_MOST_NEW >> 30} GiB of new contents at once")
            content = os.read(descriptor, length + 1)
            if len(content) != length or pack_row(os.fstat(descriptor)) != row:
                raise OSError("it changed while it was read")
            digest = self._store.keep(content) if self._store is not None else find_digest(content)
            return KeptEntry(row, digest)

    def drop_late(self, released: int) -> None:
        """Discard what changed after the agent started; 0 if it has not."""
        since = released - TICK
        for path, entry in self._entries.items() if released else ():
            if entry.ctime < since:
                continue
            if entry.kind == "d":
                self._late.append(path)
            else:  # only its inode is known
                self._entries[path] = KeptEntry(_ROW.pack(*(0,) * 6, entry.inode))
                self._leave_out(path, "late", LATE)


def _compile(patterns: list[str]) -> Callable[[str], object]:
    import fnmatch
    import re

    return re.compile("|".join(map(fnmatch.translate, patterns))).match
