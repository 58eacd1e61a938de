"""Reading a project for a snapshot: every name in an open directory, through no link, whatever races with it.

First everything is looked at, which is quick; then what nobody else knows is read. A file is not read again if all that
`lstat` says of it is what an earlier snapshot says: an agent can set every time but that of the last change (ctime).
What git knows is read last, while the agent runs already: if the agent was quicker, git has the content.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import time

from claudebox.files import open_beneath, read_at
from claudebox.launch.undo_manifest import (
    CTIME,
    FIELDS,
    INODES,
    NO_DIGEST,
    NO_ROW,
    FolderDraft,
    LeftOut,
    Snapshot,
    read_attributes,
    row_of,
)
from claudebox.launch.undo_seed import is_converting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.launch.undo_contents import Contents
    from claudebox.launch.undo_manifest import KeptFolder, KeptRefs, LeftKind
    from claudebox.launch.undo_seed import Seed

    Fetch = Callable[[Seed, list[tuple[str, int]]], Iterable[bytes | None]]

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a snapshot could have changed after it unseen
_TICK = 20_000_000  # the kernel's clock for files lags behind by less
_DEEPEST = 400
_MOST_NEW = 4 << 30  # bytes that one snapshot adds
_FOLDER = (stat.S_IFDIR, 0, 0, 0, 0, 0, 0)  # its own record says more
_SEVERAL = frozenset("*?[/")  # what makes a name a pattern
_ATTRIBUTES = ".gitattributes"
_KEPT = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)
_UNKNOWN = ((), NO_DIGEST)
_EXCLUDED = "excluded by its name"
_LATE = "it was changed before the snapshot reached it"


class Scan:
    """One reading of a project; `store` keeps contents, without it they are only named."""

    def __init__(
        self, root: str, store: Contents | None, known: Snapshot | None, *, most: int, names: Iterable[str] = (),
        skipped: Iterable[str] = (), seeds: Iterable[Seed] = (),
    ) -> None:  # fmt: skip
        self._root, self._store, self._most = root, store, most
        self._known = known.folders if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        patterns = [fnmatch.translate(name) for name in self._names if _SEVERAL & set(name)]
        self._patterns = re.compile("|".join(patterns)).match if patterns else None
        self._skipped: dict[str, set[str]] = {}
        for path in skipped:
            above, _, name = os.path.relpath(path, root).rpartition("/")
            self._skipped.setdefault(above, set()).add(name)
        self._seeds = tuple(seeds)
        self._converting = False  # attributes name a conversion: what git has is not what stands in the files
        self._folders: dict[str, KeptFolder] = {}
        self._open: dict[str, FolderDraft] = {}  # in which something has changed
        self._unread: list[tuple[FolderDraft, int]] = []
        self._seeded: list[tuple[FolderDraft, int, Seed, str]] = []
        self._left_out: dict[str, LeftOut] = {}
        self._new = self._device = self._began = self.size = 0
        self._late: list[str] = []

    def look(self, released: Callable[[], int] | None = None) -> bool:
        """Look at everything and read what only the project has; return whether something is left to `complete`.

        `released` returns since when the agent has been running, 0 if it has not begun.
        """
        self._began = time.time_ns()
        directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(directory).st_dev
        self._look(directory, "", 0)
        if self._converting:
            self._unread += [(folder, number) for folder, number, _, _ in self._seeded]
            self._seeded = []
        self._read_all(self._unread, released)
        since = released() if released is not None else 0
        if since:
            self._drop_late(since - _TICK)
        return bool(self._seeded)

    def complete(self, released: Callable[[], int], fetch: Fetch) -> None:
        """Read what git has as well; `fetch` yields from git what the agent has changed meanwhile."""
        self._read_all([(folder, number) for folder, number, _, _ in self._seeded], released, strict=True)
        changed = [row for row in self._seeded if row[0].digest(row[1]) == NO_DIGEST]
        for seed in {row[2] for row in changed}:
            rows = [row for row in changed if row[2] is seed]
            wanted = [(name, folder.row(number)[3]) for folder, number, _, name in rows]
            for (folder, number, _, _), content in zip(rows, fetch(seed, wanted), strict=False):
                if content is not None and self._store is not None:
                    folder.set(number, folder.row(number), self._store.keep_bytes(content), ())
                    self._left_out.pop(_join(folder.path, folder.names[number]), None)

    def snapshot(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Return what was read."""
        folders = {**self._folders, **{path: folder.keep() for path, folder in self._open.items()}}
        return Snapshot(self._root, self._began, folders, self._left_out, tuple(self._late), tuple(repositories))

    def run(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Read everything at once."""
        self.look()
        return self.snapshot(repositories)

    def _look(self, directory: int, path: str, depth: int) -> None:
        """Look at an open directory and those in it, and close it."""
        try:
            for name in self._list(directory, path, depth):
                try:
                    opened = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._leave_out(_join(path, name), "unreadable", error.strerror)
                    continue
                self._look(opened, _join(path, name), depth + 1)
        except OSError as error:
            self._leave_out(path or ".", "unreadable", error.strerror)
        finally:
            os.close(directory)

    def _list(self, directory: int, path: str, depth: int) -> list[str]:
        """Look at what is in a directory; return the directories in it that are kept."""
        names: list[str] = []
        flat: list[int] = []
        below: list[str] = []
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
                    self._leave_out(_join(path, name), "unreadable", error.strerror)
                    continue
                kind = status.st_mode & 0o170000
                if patterns is not None and (patterns(name) or patterns(_join(path, name))):
                    self._leave_out(_join(path, name), "excluded", _EXCLUDED)
                elif kind == stat.S_IFDIR:
                    if self._is_kept(name, path, status, depth):
                        below.append(name)
                        names.append(name)
                        flat += _FOLDER
                elif kind in _KEPT:
                    names.append(name)
                    flat += (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns,
                             status.st_ctime_ns, status.st_ino & INODES)  # fmt: skip
                else:
                    self._leave_out(_join(path, name), "kind", "a socket or a device")
        self.size += len(names)
        # After all names, so that it shows every change to them.
        self._take(directory, FolderDraft(path, row_of(os.fstat(directory)), names, flat))
        return below

    def _is_kept(self, name: str, path: str, status: os.stat_result, depth: int) -> bool:
        if name in self._names:
            self._leave_out(_join(path, name), "excluded", _EXCLUDED)
        elif status.st_dev != self._device:
            self._leave_out(_join(path, name), "place", "another file system")
        elif depth >= _DEEPEST:
            self._leave_out(_join(path, name), "place", f"more than {_DEEPEST} directories deep")
        else:
            return True
        return False

    def _leave_out(self, path: str, kind: LeftKind, text: str | None) -> None:
        self._left_out[path] = LeftOut(kind, text or "it cannot be read")

    def _take(self, directory: int, folder: FolderDraft) -> None:
        """Take over what is known of a directory as a whole, or name by name."""
        known, own = self._known.get(folder.path), read_attributes(directory)
        if self._seeds and _ATTRIBUTES in folder.names and not self._converting:
            self._converting = is_converting(read_at(directory, _ATTRIBUTES, limit=1 << 20) or b"filter")
        if known is not None and known.latest < self._settled and folder.is_like(known):
            attributes = {name: row for name, row in known.attributes.items() if name} | ({"": own} if own else {})
            self._folders[folder.path] = known.replace(own=folder.own, attributes=attributes)
            return
        if own:
            folder.attributes[""] = own
        self._open[folder.path] = folder
        rows = known.rows_by_name() if known is not None else {}
        for number, name in enumerate(folder.names):
            kind, (row, digest) = folder.flat[number * FIELDS] & 0o170000, rows.get(name, _UNKNOWN)
            if kind == stat.S_IFLNK:
                self._read_link(directory, folder, name)
            elif kind != stat.S_IFREG:
                continue
            elif known is not None and digest != NO_DIGEST and row[CTIME] < self._settled and row == folder.row(number):
                folder.set(number, row, digest, known.attributes.get(name, ()))
            else:
                self._put_off(folder, number)

    def _read_link(self, directory: int, folder: FolderDraft, name: str) -> None:
        try:
            folder.targets[name] = os.readlink(name, dir_fd=directory)
        except OSError:
            self._leave_out(_join(folder.path, name), "late", _LATE)

    def _put_off(self, folder: FolderDraft, number: int) -> None:
        """Read a file later: soon, or when the agent runs already."""
        path, row = _join(folder.path, folder.names[number]), folder.row(number)
        if row[3] > self._most:
            self._leave_out(path, "size", f"{row[3] >> 20} MiB, more than {self._most >> 20} MiB")
            return
        for seed in self._seeds:
            found = seed.find(path, row)
            if found:
                self._seeded.append((folder, number, seed, found))
                return
        self._unread.append((folder, number))

    def _read_all(
        self, files: Iterable[tuple[FolderDraft, int]], released: Callable[[], int] | None, *, strict: bool = False
    ) -> None:
        """Read files; with `strict` only those that are as they were."""
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        directory = -1
        current: FolderDraft | None = None
        try:
            for folder, number in files:
                strict = strict or (released is not None and released() > 0)
                try:
                    if folder is not current:
                        if directory >= 0:
                            os.close(directory)
                        directory, current = -1, folder
                        directory = open_beneath(root, folder.path)
                    if directory < 0:
                        raise OSError(_LATE)  # it could not be opened for the file before
                    self._read_file(directory, folder, number, strict=strict)
                except OSError as error:
                    kind: LeftKind = "unreadable" if error.errno else "late"
                    self._leave_out(_join(folder.path, folder.names[number]), kind, error.strerror or str(error))
        finally:
            os.close(root)
            if directory >= 0:
                os.close(directory)

    def _read_file(self, directory: int, folder: FolderDraft, number: int, *, strict: bool) -> None:
        descriptor = os.open(folder.names[number], _OPEN, dir_fd=directory)
        try:
            before = row_of(os.fstat(descriptor))
            if not stat.S_ISREG(before[0]) or before[3] > self._most or (strict and before != folder.row(number)):
                raise OSError(_LATE)
            if self._store is None:
                digest = _digest(descriptor)
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
                if folder.row(number)[CTIME] >= since:
                    folder.set(number, NO_ROW, NO_DIGEST, ())
                    self._leave_out(_join(path, name), "late", _LATE)
        owns = {path: folder.own for path, folder in self._open.items()}
        owns |= {path: folder.own for path, folder in self._folders.items()}
        self._late = [path or "." for path, own in owns.items() if own[CTIME] >= since]


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _digest(descriptor: int) -> bytes:
    digest = hashlib.sha256()
    while piece := os.read(descriptor, 1 << 20):
        digest.update(piece)
    return digest.digest()
