"""Looking at a project for a snapshot: every name in an open directory, through no link, whatever races with it.

What an earlier snapshot says of a file is taken over if all that `lstat` says is the same: an agent can set every time
but that of the last change (ctime). A large project is divided among the processors.
"""

from __future__ import annotations

import marshal
import os
import stat

from claudebox.files import read_at
from claudebox.launch import process
from claudebox.launch.undo_manifest import (
    CTIME,
    FIELDS,
    INODES,
    NO_DIGEST,
    SIZE,
    FolderDraft,
    LeftOut,
    pack_rows,
    read_attributes,
    row_of,
    unpack_rows,
)
from claudebox.launch.undo_seed import is_converting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from claudebox.launch.undo_manifest import KeptFolder, LeftKind, Row, Snapshot
    from claudebox.launch.undo_seed import Seed

    KnownRows = dict[str, tuple[Row, bytes]]
    Place = tuple[int, str, str, int]  # an open directory, a name in it, the path of that and how deep it is

LATE = "it was changed before the snapshot reached it"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a snapshot could have changed after it unseen
_DEEPEST = 400
_FOLDER = (stat.S_IFDIR, 0, 0, 0, 0, 0, 0)  # its own record says more
_SEVERAL = frozenset("*?[/")  # what makes a name a pattern
_ATTRIBUTES = ".gitattributes"
_KEPT = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)
_UNKNOWN = ((), NO_DIGEST)
_EXCLUDED = "excluded by its name"
_LARGE, _WIDE = 8000, 8  # names from which it is divided, and directories for each processor
_MOST_PROCESSES, _MOST_HELD = 8, 64


class Look:
    """What a project is like, by names and `lstat`; what has to be read is put off."""

    def __init__(
        self, root: str, known: Snapshot | None, *, most: int, names: Iterable[str] = (), skipped: Iterable[str] = (),
        seeds: Iterable[Seed] = (),
    ) -> None:  # fmt: skip
        self._root, self._most = root, most
        self._known = known.folders if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        patterns = [name for name in self._names if _SEVERAL & set(name)]
        self._patterns = _compile(patterns) if patterns else None
        self._skipped: dict[str, set[str]] = {}
        for path in skipped:
            above, _, name = os.path.relpath(path, root).rpartition("/")
            self._skipped.setdefault(above, set()).add(name)
        self._seeds = tuple(seeds)
        self._converting = False  # attributes name a conversion: what git has is not what stands in the files
        self._folders: dict[str, KeptFolder] = {}
        self._open: dict[str, FolderDraft] = {}  # in which something has changed
        self._unread: list[tuple[FolderDraft, int]] = []
        self._seeded: list[tuple[FolderDraft, int, Seed, int]] = []  # and where its entry is
        self._left_out: dict[str, LeftOut] = {}
        self._device = self.size = 0

    def _look_at_all(self) -> None:
        """Look at everything, in several processes if it is much."""
        top = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(top).st_dev
        parts = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES) if self._is_large() else 1
        if parts == 1:
            self._look(top, "", 0)
            return
        held, places = [top], [(top, name, name, 1) for name in self._names_in(top, "", 0)]
        try:
            while places and len(places) < parts * _WIDE and len(held) < _MOST_HELD:
                above, name, path, depth = places.pop(0)
                directory = self._open_in(above, name, path)
                if directory >= 0:
                    held.append(directory)
                    names = self._names_in(directory, path, depth)
                    places += [(directory, inner, join(path, inner), depth + 1) for inner in names]
            self._divide([places[part::parts] for part in range(parts)], held)
        finally:
            for directory in held:
                os.close(directory)

    def _is_large(self) -> bool:
        """Return whether there are many files, for all that is known from before."""
        known = sum(len(folder.rows) for folder in self._known.values()) // (8 * FIELDS)
        return max([known, *(seed.size for seed in self._seeds)]) >= _LARGE

    def _divide(self, shares: list[list[Place]], held: list[int]) -> None:
        """Look at shares of the project at the same time; what another process does not bring back is done here."""
        helpers = []
        for share in shares[1:]:
            outlet, inlet = os.pipe2(os.O_CLOEXEC)
            try:
                child = process.fork(lambda: self._help(share, inlet), (inlet, *held))  # noqa: B023 - called at once
            except OSError:  # no room for another process
                child = 0
            os.close(inlet)
            helpers.append((child, outlet, share))
        self._look_at(shares[0])
        for child, outlet, share in helpers:
            with open(outlet, "rb") as file:
                content = file.read()
            if child and os.waitpid(child, 0)[1] == 0 and content:
                self._add(marshal.loads(content))  # noqa: S302 - our own child
            else:
                self._look_at(share)

    def _help(self, share: list[Place], inlet: int) -> None:
        """In another process: look at a share, and hand over what is new."""
        self._folders, self._open, self._left_out = {}, {}, {}
        self._unread, self._seeded, self.size = [], [], 0
        self._look_at(share)
        seeds = {id(seed): number for number, seed in enumerate(self._seeds)}
        drafts = {path: (row.own, "\0".join(row.names), pack_rows(row.flat), bytes(row.digests),
                         row.targets, row.attributes) for path, row in self._open.items()}  # fmt: skip
        found = (
            {path: (row.own, row.attributes) for path, row in self._folders.items()},
            drafts,
            [(folder.path, number) for folder, number in self._unread],
            [(folder.path, number, seeds[id(seed)], place) for folder, number, seed, place in self._seeded],
            {path: (row.kind, row.text) for path, row in self._left_out.items()},
            self.size,
            self._converting,
        )
        with open(inlet, "wb") as file:
            file.write(marshal.dumps(found))

    def _add(self, found: tuple[Any, ...]) -> None:
        """Take up what another process has found."""
        folders, drafts, unread, seeded, left_out, size, converting = found
        self._folders |= {path: self._known[path].replace(own=own, attributes=attributes)
                          for path, (own, attributes) in folders.items()}  # fmt: skip
        for path, (own, names, rows, digests, targets, attributes) in drafts.items():
            listed = names.split("\0") if names else []
            folder = self._open[path] = FolderDraft(path, own, listed, unpack_rows(rows))
            folder.digests[:], folder.targets, folder.attributes = digests, targets, attributes
        self._unread += [(self._open[path], number) for path, number in unread]
        self._seeded += [(self._open[path], number, self._seeds[seed], place) for path, number, seed, place in seeded]
        self._left_out |= {path: LeftOut(*row) for path, row in left_out.items()}
        self.size += size
        self._converting |= converting

    def _look_at(self, share: Iterable[Place]) -> None:
        for above, name, path, depth in share:
            directory = self._open_in(above, name, path)
            if directory >= 0:
                self._look(directory, path, depth)

    def _look(self, directory: int, path: str, depth: int) -> None:
        """Look at an open directory and those in it, and close it."""
        try:
            for name in self._names_in(directory, path, depth):
                opened = self._open_in(directory, name, join(path, name))
                if opened >= 0:
                    self._look(opened, join(path, name), depth + 1)
        finally:
            os.close(directory)

    def _open_in(self, directory: int, name: str, path: str) -> int:
        """Open a directory in an open one; -1 if it has gone, or cannot be read."""
        try:
            return os.open(name, _OPEN, dir_fd=directory)
        except FileNotFoundError:  # since its name was read
            self._leave_out(path, "late", LATE)
            return -1
        except OSError as error:
            self._leave_out(path, "unreadable", error.strerror)
            return -1

    def _names_in(self, directory: int, path: str, depth: int) -> list[str]:
        """Look at what is in a directory; return the directories in it that are kept."""
        try:
            return self._list(directory, path, depth)
        except OSError as error:
            self._leave_out(path or ".", "unreadable", error.strerror)
            return []

    def _list(self, directory: int, path: str, depth: int) -> list[str]:
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
                    self._leave_out(join(path, name), "unreadable", error.strerror)
                    continue
                kind = status.st_mode & 0o170000
                if patterns is not None and (patterns(name) or patterns(join(path, name))):
                    self._leave_out(join(path, name), "excluded", _EXCLUDED)
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
                    self._leave_out(join(path, name), "kind", "a socket or a device")
        self.size += len(names)
        # After all names, so that it shows every change to them.
        self._take(directory, FolderDraft(path, row_of(os.fstat(directory)), names, flat))
        return below

    def _is_kept(self, name: str, path: str, status: os.stat_result, depth: int) -> bool:
        if name in self._names:
            self._leave_out(join(path, name), "excluded", _EXCLUDED)
        elif status.st_dev != self._device:
            self._leave_out(join(path, name), "place", "another file system")
        elif depth >= _DEEPEST:
            self._leave_out(join(path, name), "place", f"more than {_DEEPEST} directories deep")
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
        unknown = []
        for number, mode in enumerate(folder.flat[::FIELDS]):
            kind = mode & 0o170000
            if kind == stat.S_IFLNK:
                self._read_link(directory, folder, folder.names[number])
            elif kind != stat.S_IFREG:
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
        """Read files later: soon, or when the agent runs already."""
        sizes = folder.flat[SIZE::FIELDS]
        for number in numbers if max(sizes) > self._most else ():
            if sizes[number] > self._most:
                text = f"{sizes[number] >> 20} MiB, more than {self._most >> 20} MiB"
                self._leave_out(join(folder.path, folder.names[number]), "size", text)
        numbers = [number for number in numbers if sizes[number] <= self._most]
        for seed in self._seeds:
            found = dict(seed.find(folder, numbers))
            self._seeded += [(folder, number, seed, position) for number, position in found.items()]
            numbers = [number for number in numbers if number not in found]
        self._unread += [(folder, number) for number in numbers]


def _compile(patterns: list[str]) -> Callable[[str], object]:
    import fnmatch
    import re

    return re.compile("|".join(map(fnmatch.translate, patterns))).match


def join(path: str, name: str) -> str:
    """Return the path of a name in a directory of the project."""
    return f"{path}/{name}" if path else name
