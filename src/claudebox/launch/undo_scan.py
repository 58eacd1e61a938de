"""Reading a project for a snapshot, after a look at everything: what nobody else knows, then what git knows.

The latter while the agent runs already: if the agent was quicker, git has the content.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.files import open_beneath
from claudebox.launch.undo_contents import new_digest
from claudebox.launch.undo_look import LATE, Look, join
from claudebox.launch.undo_manifest import (
    CTIME,
    NO_DIGEST,
    NO_ROW,
    TICK,
    FolderDraft,
    Snapshot,
    read_attributes,
    row_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.launch.undo_contents import Contents
    from claudebox.launch.undo_manifest import KeptRefs, LeftKind
    from claudebox.launch.undo_seed import Seed

    Fetch = Callable[[Seed, list[tuple[str, int]]], Iterable[bytes | None]]

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_NEW = 4 << 30  # bytes that one snapshot adds


class Scan(Look):
    """One reading of a project; `store` keeps contents, without it they are only named."""

    def __init__(
        self, root: str, store: Contents | None, known: Snapshot | None, *, most: int, names: Iterable[str] = (),
        skipped: Iterable[str] = (), seeds: Iterable[Seed] = (),
    ) -> None:  # fmt: skip
        super().__init__(root, known, most=most, names=names, skipped=skipped, seeds=seeds)
        self._store = store
        self._new = self._began = 0
        self._late: list[str] = []

    def look(self, released: Callable[[], int] | None = None) -> bool:
        """Look at everything and read what only the project has; return whether something is left to `complete`.

        `released` returns since when the agent has been running, 0 if it has not begun.
        """
        self._began = time.time_ns()
        self._look_at_all()
        if self._converting:
            self._unread += [(folder, number) for folder, number, _, _ in self._seeded]
            self._seeded = []
        self._read_all(self._unread, released)
        since = released() if released is not None else 0
        if since:
            self._drop_late(since - TICK)
        return bool(self._seeded)

    def complete(self, released: Callable[[], int], fetch: Fetch) -> None:
        """Read what git has as well; `fetch` yields from git what the agent has changed meanwhile."""
        self._read_all([(folder, number) for folder, number, _, _ in self._seeded], released, strict=True)
        changed = [row for row in self._seeded if row[0].digest(row[1]) == NO_DIGEST]
        for seed in {row[2] for row in changed}:
            rows = [row for row in changed if row[2] is seed]
            wanted = [(seed.name_of(position), folder.row(number)[3]) for folder, number, _, position in rows]
            for (folder, number, _, _), content in zip(rows, fetch(seed, wanted), strict=False):
                if content is not None and self._store is not None:
                    folder.set(number, folder.row(number), self._store.keep_bytes(content), ())
                    self._left_out.pop(join(folder.path, folder.names[number]), None)

    def snapshot(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Return what was read."""
        folders = {**self._folders, **{path: folder.keep() for path, folder in self._open.items()}}
        return Snapshot(self._root, self._began, folders, self._left_out, tuple(self._late), tuple(repositories))

    def run(self, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Read everything at once."""
        self.look()
        return self.snapshot(repositories)

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
                        raise OSError(LATE)  # it could not be opened for the file before
                    self._read_file(directory, folder, number, strict=strict)
                except OSError as error:
                    kind: LeftKind = "unreadable" if error.errno else "late"
                    self._leave_out(join(folder.path, folder.names[number]), kind, error.strerror or str(error))
        finally:
            os.close(root)
            if directory >= 0:
                os.close(directory)

    def _read_file(self, directory: int, folder: FolderDraft, number: int, *, strict: bool) -> None:
        descriptor = os.open(folder.names[number], _OPEN, dir_fd=directory)
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
                if folder.row(number)[CTIME] >= since:
                    folder.set(number, (*NO_ROW[:-1], folder.row(number)[-1]), NO_DIGEST, ())
                    self._leave_out(join(path, name), "late", LATE)
        owns = {path: folder.own for path, folder in self._open.items()}
        owns |= {path: folder.own for path, folder in self._folders.items()}
        self._late = [path or "." for path, own in owns.items() if own[CTIME] >= since]


def _digest(descriptor: int, length: int) -> bytes:
    digest = new_digest(length)
    while piece := os.read(descriptor, 1 << 20):
        digest.update(piece)
    return digest.digest()
