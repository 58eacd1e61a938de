"""Looking at a project: every name in an open directory, through no link, whatever races with it; then the contents.

What an earlier look says of a file is taken over if all that `lstat` says is the same: an agent can set every time but
that of the last change (ctime). Nothing in the project is run or changed.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox.base import trees
from claudebox.base.files import open_beneath, open_known
from claudebox.undo.manifest import (
    CTIME,
    FIELDS,
    INODES,
    NO_DIGEST,
    NO_ROW,
    SIZE,
    TICK,
    FolderDraft,
    LeftOut,
    Snapshot,
    new_digest,
    read_attributes,
    row_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.undo.manifest import KeptFolder, KeptRefs, LeftKind, Row
    from claudebox.undo.store import SnapshotStore

    KnownRows = dict[str, tuple[Row, bytes]]
    Place = tuple[str, int, int, bool]  # a directory, its device and inode, and whether what is in it is kept


LATE = "it was changed before the snapshot reached it"
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a look could have changed after it unseen
_FOLDER = (stat.S_IFDIR, 0, 0, 0, 0, 0, 0)  # its own record says more
_SEVERAL = frozenset("*?[/")  # what makes a name a pattern
_UNKNOWN = ((), NO_DIGEST)
_EXCLUDED = "excluded by its name"
_EVERY = 512  # names between two looks at the clock
_MOST_NEW = 4 << 30  # bytes that one snapshot adds


class Look:
    """What a project is like, by names and `lstat`; what has to be read is put off.

    Directories that are excluded by name, or on another file system, come last, and nothing in them is read.
    With `closed` set, directories that deny us reading are opened.
    """

    def __init__(
        self, root: str, known: Snapshot | None, *, most: int = 0, names: Iterable[str] = (),
        skipped: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Take over what is `known`; of a file at `most` so many bytes are read."""
        self._root, self._most = root, most
        self.deadline = float("inf")
        self.largest = 0  # names, beyond which the look is given up; 0: however many there are
        self.closed: trees.Closed | None = None
        self.identity: tuple[int, int] | None = None  # of the root, where no other will do
        self._known = known.folders if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        patterns = [name for name in self._names if _SEVERAL & set(name)]
        self._patterns = _compile(patterns) if patterns else None
        self._skipped: dict[str, set[str]] = {}
        for path in filter(None, skipped):
            above, _, name = os.path.relpath(path, root).rpartition("/")
            self._skipped.setdefault(above, set()).add(name)
        self._top = -1
        self._device = self.size = 0
        self._began = time.time_ns()
        self._late: list[str] = []
        self._later: list[Place] = []  # what is not kept
        self._folders: dict[str, KeptFolder] = {}
        self._open: dict[str, FolderDraft] = {}  # in which something has changed
        self._unread: list[tuple[FolderDraft, int]] = []
        self._left_out: dict[str, LeftOut] = {}

    def look_at_names(self) -> bool:
        """Look at all that is kept; return False if it was given up."""
        if self.closed is not None and os.path.lexists(self._root) and not os.access(self._root, os.R_OK | os.X_OK):
            known = self._known.get("")
            inode = known.own[-1] if known is not None else os.lstat(self._root).st_ino
            self.closed.open(None, self._root, self.identity or (None, inode))
            self.closed.opened[:] = [("", mode) for _, mode in self.closed.opened]
        try:
            self._top = open_known(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, self.identity)
        except OSError as error:
            self._leave_out(".", "unreadable", error.strerror)
            return True
        status = os.fstat(self._top)
        self._device = status.st_dev
        return self._walk([("", status.st_dev, status.st_ino, True)])

    def look_at_rest(self) -> bool:
        """Look at what is not kept; return False if it was given up. Nothing can be looked at afterwards."""
        later, self._later = self._later, []
        try:
            return self._top < 0 or self._walk(later)
        finally:
            if self.closed is not None:
                self.closed.close()
            if self._top >= 0:
                os.close(self._top)
            self._top = -1

    def snapshot(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Return what was seen."""
        folders = {**self._folders, **{path: folder.keep() for path, folder in self._open.items()}}
        return Snapshot(self._root, self._began, folders, self._left_out, tuple(self._late), tuple(repositories),
                        self._most, tuple(sorted(self._names)))  # fmt: skip

    def _walk(self, waiting: list[Place]) -> bool:
        """Look at directories and those in them."""
        number = 0
        while number < len(waiting):
            if time.monotonic() > self.deadline:
                for path, *_ in waiting[number:]:
                    self._leave_out(path or ".", "time", trees.OUT_OF_TIME)
                return True
            if self.largest and self.size > self.largest:
                return False
            place = waiting[number]
            waiting[number] = _DONE  # there may be a million of them
            number += 1
            waiting += self._enter(*place)
        return True

    def _enter(self, path: str, device: int, inode: int, kept: bool) -> list[Place]:  # noqa: FBT001 - a Place
        """Look at what is in a directory; return the directories in it."""
        if len(path) > trees.LONGEST // 4 and len(os.fsencode(path)) > trees.LONGEST:
            self._leave_out(path, "place", "its path is too long")
            return []
        try:
            directory = self._open_directory(path, (device, inode))
        except FileNotFoundError:  # since its name was read
            self._leave_out(path, "late", LATE)
            return []
        except OSError as error:
            self._leave_out(path or ".", "unreadable" if error.errno else "late", error.strerror or str(error))
            return []
        try:
            return self._list(directory, path, kept=kept)
        except OSError as error:
            self._leave_out(path or ".", "unreadable", error.strerror)
            return []
        finally:
            os.close(directory)

    def _open_directory(self, path: str, identity: tuple[int, int]) -> int:
        try:
            directory = os.open(path or ".", trees.DIRECTORY, dir_fd=self._top)
        except PermissionError:
            if self.closed is None or not self.closed.open(self._top, path, identity):
                raise
            directory = os.open(path or ".", trees.DIRECTORY, dir_fd=self._top)
        status = os.fstat(directory)
        if (status.st_dev, status.st_ino) != identity:  # a link on the way, or another directory
            os.close(directory)
            raise OSError("it was replaced while it was looked at")
        if self.closed is not None and not status.st_mode & stat.S_IXUSR and os.getuid():
            self.closed.open(self._top, path, identity)  # names can be read, and nothing else
        return directory

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
                except FileNotFoundError:  # it went while we looked: its directory has changed
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
        """Take over what is known of a file, if it is as it was."""
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
        """Read files later, when all names are known."""
        sizes = folder.flat[SIZE::FIELDS]
        for number in numbers if max(sizes) > self._most else ():
            if sizes[number] > self._most:
                text = f"{sizes[number] >> 20} MiB, more than {self._most >> 20} MiB"
                self._leave_out(join(folder.path, folder.names[number]), "size", text)
        numbers = [number for number in numbers if sizes[number] <= self._most]
        if self._patterns is not None:
            numbers = [row for row in numbers if join(folder.path, folder.names[row]) not in self._left_out]
        self._unread += [(folder, number) for number in numbers]


class Scan(Look):
    """One reading of a project; `store` keeps contents, without it they are only named."""

    def __init__(
        self, root: str, store: SnapshotStore | None, known: Snapshot | None, *, most: int, names: Iterable[str] = (),
        skipped: Iterable[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(root, known, most=most, names=names, skipped=skipped)
        self._store = store
        self._new = 0
        self.told: Callable[[int, int], None] | None = None  # called about once a second: how much is read, of how much

    def look(self, released: Callable[[], int] | None = None) -> None:
        """Look at everything; `released` returns since when the agent has been running, 0 if it has not begun."""
        self.look_at_names()
        self._read_all(self._unread, released)
        self.look_at_rest()
        since = released() if released is not None else 0
        if since:
            self._drop_late(since - TICK)

    def run(self, repositories: Iterable[KeptRefs] = (), *, patience: float = float("inf")) -> Snapshot:
        """Read everything at once; what is not read after so many seconds is known by `lstat` alone."""
        limit = time.monotonic() + patience
        self.look_at_names()
        self.look_at_rest()
        self._read_all(self._unread, None, limit)
        return self.snapshot(repositories)

    def _read_all(
        self, files: list[tuple[FolderDraft, int]], released: Callable[[], int] | None, limit: float = float("inf")
    ) -> None:
        """Read files; once the agent runs, only those that are as they were."""
        if not files:
            return
        told = time.monotonic()
        root = open_known(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, self.identity)
        directory = -1
        current: FolderDraft | None = None
        try:
            for done, (folder, number) in enumerate(files):
                strict = released is not None and released() > 0
                if time.monotonic() > limit:
                    return
                if self.told is not None and time.monotonic() > told + 1:
                    told = time.monotonic()
                    self.told(done, len(files))
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
            if not stat.S_ISREG(before[0]) or before[3] > self._most or (strict and before != folder.row(number)):
                raise OSError(LATE)
            if self._store is None:
                digest = _digest(descriptor, before[3])
            else:
                self._new += before[3]
                if self._new > _MOST_NEW:
                    raise OSError(f"more than {_MOST_NEW >> 30} GiB of new contents at once")
                digest = self._store.keep(descriptor, before[3])
            attributes = read_attributes(descriptor)
            if row_of(os.fstat(descriptor)) != before:
                raise OSError("it changed while it was read")
        finally:
            os.close(descriptor)
        folder.set(number, before, digest, attributes)

    def _drop_late(self, since: int) -> None:
        """Do not believe what has changed since the agent runs."""
        for path, folder in self._open.items():
            for number, name in enumerate(folder.names):
                row = folder.row(number)
                if row[CTIME] >= since and row != _FOLDER:
                    folder.set(number, (*NO_ROW[:-1], row[-1]), NO_DIGEST, ())
                    self._leave_out(join(path, name), "late", LATE)
        owns = {path: folder.own for path, folder in self._open.items()}
        owns |= {path: folder.own for path, folder in self._folders.items()}
        self._late = [path or "." for path, own in owns.items() if own[CTIME] >= since]


_DONE: Place = ("", 0, 0, False)


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
