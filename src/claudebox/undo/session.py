"""One answer to what a session changed: the project when it began, looked at again at its end.

Of a session that can be undone the start is its snapshot, and what is seen at the end is kept beside it. Others have a
list of names and what `lstat` says of them, taken before the payload runs where the project is small enough for that.
Without either, what has changed is known by its time of change, and what was deleted is not known.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.files import LOST, Closing, identify
from claudebox.report import tree
from claudebox.undo import manifest
from claudebox.undo.compare import find_changes
from claudebox.undo.look import Look
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from claudebox.undo.manifest import KeptEntry, KeptFolder, Snapshot

    Names = Mapping[str, str] | None  # None: not known

READING = 1.0  # seconds for which contents are read at the end
_MOST_AT_START, _LONGEST_AT_START = 8000, 0.25  # names that are looked at before the payload runs, and seconds
_GRAIN = 2.0  # seconds: the coarsest clock of a file system
_STEP = 0.005  # less than this is no change of the clock
_KINDS = {"d": stat.S_IFDIR, "f": stat.S_IFREG, "l": stat.S_IFLNK, "p": stat.S_IFIFO, "s": stat.S_IFSOCK,
          "c": stat.S_IFCHR, "b": stat.S_IFBLK}  # fmt: skip
_LETTERS = {mode: kind for kind, mode in _KINDS.items() if kind != "f"}
_UNLISTED = "what was deleted from it or moved into it is not known"


class Beginning(Value):
    """A directory when a session began that can write to it."""

    root: str
    since: float  # the time of its file system
    clock: float
    uptime: float
    plain: tuple[Any, ...] | None = None  # what it was like, as plain data
    directory: str = ""  # of the project's state, where the session has a snapshot
    session: str = ""
    identity: tuple[int, int] = (0, 0)  # device and inode: no other directory of its name is looked at


def begin(
    root: str, skipped: Iterable[str] = (), identity: tuple[int, int] | None = None, *, listing: bool = True
) -> Beginning:
    """Note how a directory looks before the payload runs, and which it is; without `listing` only when that was."""
    known = identity or identify(root) or (0, 0)
    start = Beginning(root, _moment(root), time.time(), _uptime(), identity=known)
    if not listing:
        return start
    look = Look(root, None, skipped=skipped)
    look.largest, look.deadline = _MOST_AT_START, time.monotonic() + _LONGEST_AT_START
    try:
        whole = look.look_at_names() and look.look_at_rest()
    except OSError:
        whole = False
    if not whole or time.monotonic() > look.deadline:
        return start
    return start.replace(plain=manifest.pack(look.snapshot()))


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _moment(root: str) -> float:
    """Return the time now as the file system of the project tells it: a server's clock may differ from ours."""
    try:
        descriptor = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return _named_moment(root)
    with Closing(descriptor):
        return os.fstat(descriptor).st_ctime


def _named_moment(root: str) -> float:
    """Do the same where a file needs a name."""
    name = f"{root}/.claudebox-{os.urandom(8).hex()}"
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return time.time() - _GRAIN
    try:
        return os.lstat(name).st_ctime
    finally:
        os.unlink(name)


def since(beginning: Beginning) -> float:
    """Return from when on a time of change counts, also if the clock was set back meanwhile."""
    back = (_uptime() - beginning.uptime) - (time.time() - beginning.clock)
    return beginning.since - back if back > _STEP else beginning.since


class Listing:
    """What stands in each directory of a manifest, by its path: its inode, and the names, each with its letter."""

    def __init__(self, folders: dict[str, KeptFolder]) -> None:
        self._folders = folders
        self._known: dict[str, tuple[int, Names]] = {}

    def get(self, path: str, other: tuple[int, Names] = (0, None)) -> tuple[int, Names]:
        """Return a directory, or the `other`."""
        if path not in self._known and path in self._folders:
            folder = self._folders[path]
            names = folder.names.split("\0") if folder.names else []
            rows = manifest.ROW.iter_unpack(folder.rows)
            self._known[path] = folder.own[-1], {name: letter(row[0]) for name, row in zip(names, rows, strict=True)}
        return self._known.get(path, other)

    def setdefault(self, path: str, row: tuple[int, Names]) -> None:
        """Add a directory that is not there."""
        if path not in self:
            self._known[path] = row

    def __contains__(self, path: str) -> bool:
        return path in self._known or path in self._folders


def letter(mode: int) -> str:
    """Return what something is: `f` a file, `x` a program, `d` a directory, `l` a link, ..."""
    return _LETTERS.get(mode & tree.KIND, "") or ("x" if mode & 0o111 else "f")


class SessionChanges:
    """What a session changed in one directory."""

    def __init__(self, before: Snapshot | None, after: Snapshot, moment: float, opened: list[tuple[str, int]]) -> None:
        self.before = Listing(before.folders if before is not None else {})
        self.listing = Listing(after.folders)
        self.opened = opened  # directories that denied us reading since: path, mode
        self.unseen = [("" if path == "." else path, row.text) for path, row in after.left_out.items()
                       if row.kind in ("unreadable", "time", "late")
                       or (row.kind == "place" and path not in after.folders)]  # fmt: skip
        self.changed: list[tuple[str, int, bool]] = []  # path, mode, whether it itself changed, not only its name
        self.gone: list[tuple[str, str]] = []  # path and letter
        self.is_exact = before is not None
        if before is not None:
            self._compare(before, after)
        else:
            self._judge_by_time(after, int(moment * 1e9))

    def _compare(self, before: Snapshot, after: Snapshot) -> None:
        changes = find_changes(before, after)
        lost: dict[str, KeptEntry | None] = {}
        moved = {row.path for row in changes if row.what == "moved"}
        for row in changes:
            if row.after is not None:
                by_itself = row.what != "moved" or os.path.dirname(row.path) not in moved
                self.changed.append((row.path, _mode(row.after), by_itself))
            if row.what in ("deleted", "moved"):
                lost[row.origin or row.path] = row.before
        for path, was in lost.items():
            if was is not None and path not in after.folders and os.path.dirname(path) not in lost:
                self.gone.append((path, letter(_mode(was))))

    def _judge_by_time(self, after: Snapshot, moment: int) -> None:
        for path, entry in after.entries().items():
            if entry.ctime >= moment and path != ".":
                self.changed.append((path, _mode(entry), True))
            if entry.ctime >= moment and entry.kind == "d":
                self.unseen.append(("" if path == "." else path, _UNLISTED))


def _mode(entry: KeptEntry) -> int:
    return _KINDS.get(entry.kind, 0) | entry.mode


def look_at_end(
    beginning: Beginning, skipped: Iterable[str], deadline: float, reopened: Iterable[tuple[int, int]] = ()
) -> SessionChanges:
    """Look at a directory again, and keep what is seen where the session can be undone.

    `reopened` are directories of the user's that we opened, and closed again.
    """
    moment = since(beginning)
    closed = tree.Closed(moment, reopened)
    if beginning.session:
        try:
            if (kept := _keep_end(beginning, skipped, deadline, closed)) is not None:
                return SessionChanges(*kept, moment, closed.opened)
        except (OSError, ClaudeboxError) as error:
            why = error.message if isinstance(error, ClaudeboxError) else error.strerror or str(error)
            console.warn(f"undo: the state at the end of this session is not kept: {why}")
    before = manifest.unpack(beginning.plain) if beginning.plain is not None else None
    look = Look(beginning.root, before, skipped=skipped)
    look.deadline, look.closed, look.identity = deadline, closed, beginning.identity
    look.look_at_names()
    look.look_at_rest()
    return SessionChanges(before, look.snapshot(), moment, closed.opened)


def _keep_end(
    beginning: Beginning, skipped: Iterable[str], deadline: float, closed: tree.Closed
) -> tuple[Snapshot, Snapshot] | None:
    """Keep the end of a session that has a snapshot of its start, and return both."""
    from claudebox.undo import repositories
    from claudebox.undo.look import Scan
    from claudebox.undo.store import DATABASE, SnapshotStore

    if not os.path.exists(f"{beginning.directory}/undo/{DATABASE}"):
        return None
    store = SnapshotStore(f"{beginning.directory}/undo")
    try:
        if beginning.session not in store.names():
            return None
        start = store.read_snapshot(beginning.session)
        skipped = {*skipped, *find_skipped(start, beginning.directory)}
        scan = Scan(beginning.root, store, start, most=start.most, names=start.excluded, skipped=skipped)
        scan.deadline, scan.closed, scan.identity = deadline, closed, beginning.identity
        refs = repositories.read_present(start, store.keep_bytes)
        end = scan.run(refs, patience=max(0.0, deadline - time.monotonic()) + READING)
        if "." in end.left_out and end.left_out["."].text == LOST:
            raise ClaudeboxError(LOST)
        store.write_end(beginning.session, end)
        return start, end
    finally:
        store.close()


def find_skipped(start: Snapshot, directory: str) -> list[str]:
    """Return what is not looked at after a start either: git directories of the host, and stubs; `directory`: state."""
    from claudebox.undo.repositories import standing_stubs

    outside = [path for path, row in start.left_out.items() if row.kind == "outside"]
    return [*(row.real for row in start.repositories), *outside, *standing_stubs(directory, start.root)]
