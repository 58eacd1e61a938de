"""One answer to what a session changed: the project when it began, looked at again at its end.

Of a session that can be undone the start is its snapshot, and what is seen at the end is kept beside it. Others have a
list of names and what `lstat` says of them, taken before the payload runs where the project is small enough for that.
Without either, what has changed is known by its time of change, and what was deleted is not known.
"""

from __future__ import annotations

import os
import select
import stat
import time

from claudebox.base import console, process, trees
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import LOST, Closing, identify
from claudebox.base.records import Value
from claudebox.run.sidecars import Sidecar
from claudebox.undo import manifest
from claudebox.undo.manifest import find_changes
from claudebox.undo.walker import Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from claudebox.plan.records import Plan
    from claudebox.settings.records import UndoRequest
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
    return _LETTERS.get(mode & trees.KIND, "") or ("x" if mode & 0o111 else "f")


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
    closed = trees.Closed(moment, reopened)
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
    beginning: Beginning, skipped: Iterable[str], deadline: float, closed: trees.Closed
) -> tuple[Snapshot, Snapshot] | None:
    """Keep the end of a session that has a snapshot of its start, and return both."""
    from claudebox.undo import refs as undo_refs
    from claudebox.undo.store import DATABASE, SnapshotStore
    from claudebox.undo.walker import Scan

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
        refs = undo_refs.read_present(start, store.keep_bytes)
        end = scan.run(refs, patience=max(0.0, deadline - time.monotonic()) + READING)
        if "." in end.left_out and end.left_out["."].text == LOST:
            raise ClaudeboxError(LOST)
        store.write_end(beginning.session, end)
        return start, end
    finally:
        store.close()


def find_skipped(start: Snapshot, directory: str) -> list[str]:
    """Return what is not looked at after a start either: git directories of the host, and stubs; `directory`: state."""
    from claudebox.undo.refs import standing_stubs

    outside = [path for path, row in start.left_out.items() if row.kind == "outside"]
    return [*(row.real for row in start.repositories), *outside, *standing_stubs(directory, start.root)]


# The snapshot of a project at the start of a session, taken by a process beside it (UNDO-01), and that of its end.
#
# It reads while bwrap builds the sandbox. The payload waits for it, but not for long: after that it goes on beside
# the payload, and what the payload changed before it was read is left out by its time of change, which no agent can
# set.


# Seconds for which the payload waits: a client takes longer than that until it acts, a command does not.
_CLIENT, _COMMAND = 0.1, 2.0
_SMALL = 5000  # names: so few are written down before the payload runs
_END, _CUT = 3.0, 2.0  # for which the end of the session waits, and then until what was read is written down


class UndoSidecar(Sidecar):
    """The process, from before the sandbox starts until the snapshot is complete."""

    title = "the snapshot"

    def __init__(self, plan: Plan, wanted: UndoRequest) -> None:
        self._plan, self._wanted = plan, wanted
        self._child = 0
        self._line = self._gate = -1
        self._said = b""

    def begin(self, files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start to read, in a session that is written down: its log names the snapshot."""
        log = next((descriptor for name, descriptor in files if name == "log"), -1)
        if log < 0:
            return
        session = os.path.basename(os.readlink(f"/proc/self/fd/{log}")).removesuffix(".jsonl")
        self._line, line = os.pipe2(os.O_CLOEXEC)
        gate, self._gate = os.pipe2(os.O_CLOEXEC)
        plan, wanted = self._plan, self._wanted
        self._child = process.fork(lambda: _take(plan, wanted, session, line, gate), (line, gate))
        os.close(line)
        os.close(gate)

    def attach(self, payload: int) -> None:  # noqa: ARG002 - a sidecar is told; this one has nothing to do with it
        """Wait for it, for a moment."""
        if not self._child:
            return
        self._hear(_CLIENT if self._wanted.patient else _COMMAND)
        if not self._said.endswith(b"end"):
            try:
                os.write(self._gate, f"{time.time_ns()}".encode())
            except BrokenPipeError:  # it has ended, and the end of the session says so
                pass
        self.tend()

    def tend(self) -> None:
        """Reap it when it has ended; what it said is read at the end."""
        if self._child and process.poll(self._child) is not None:
            self._child = 0

    def finish(self) -> tuple[str, ...]:
        """Wait until the snapshot is written, and say so if there is none."""
        if self._line < 0:
            return ()
        self._hear_out(_END)
        os.close(self._gate)  # one that is not done by now keeps what it has for the next
        self._hear_out(_CUT)
        if self._child:
            process.end(self._child)
        self._child = 0
        os.close(self._line)
        self._line = -1
        if self._said.endswith(b"end"):
            return ()
        problem = (
            self._said.removeprefix(b"read").decode("utf-8", "surrogateescape") or "it was not complete at the end"
        )
        return (f"undo: there is no snapshot of this session: {problem}",)

    def _hear_out(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while self._hear(max(0.0, limit - time.monotonic())):
            continue

    def _hear(self, seconds: float) -> bytes:
        ready = select.select([self._line], [], [], seconds)[0]
        piece = os.read(self._line, 4096) if ready else b""
        self._said += piece
        return piece


def _take(plan: Plan, wanted: UndoRequest, session: str, line: int, gate: int) -> None:
    """In the process: read, say so, write, prune."""
    taking = None
    try:
        taking = Taking(plan, wanted, session, gate)
        if not taking.look():
            os.write(line, b"read")
        taking.write()
        os.write(line, b"end")
        taking.prune()
    except CutOffError:
        if taking is not None:
            taking.write_partial()
    except (OSError, ClaudeboxError) as error:
        said = error.message if isinstance(error, ClaudeboxError) else f"{error.strerror or error}"
        os.write(line, os.fsencode(said))


class CutOffError(Exception):
    """The session has ended, and the snapshot has to."""


class Taking:
    """The steps, one after the other: the project, its repositories, what is not kept."""

    def __init__(self, plan: Plan, wanted: UndoRequest, session: str, gate: int) -> None:
        from claudebox.undo import refs as undo_refs
        from claudebox.undo.store import SnapshotStore
        from claudebox.undo.walker import Scan

        self._plan, self._wanted, self._session, self._gate = plan, wanted, session, gate
        self._since = 0
        self._store = SnapshotStore(wanted.directory)
        self._number = self._store.draw_number()
        rows = [own for own in plan.git if own.real]
        self._indexes = {own.private: undo_refs.read_index(own.git_dir or own.real) for own in rows}
        self._refs = [
            undo_refs.read_refs(own.private, own.real, own.git_dir or own.real, own.worktree, own.only)
            for own in rows
            if own.ref_format == "files"
        ]
        skipped = [own.real for own in rows]
        skipped += [stub.path for stub in plan.stubs]
        skipped += undo_refs.standing_stubs(os.path.dirname(wanted.directory), plan.workdir)
        known = self._store.newest_like(plan.workdir)
        self._scan = Scan(plan.workdir, self._store, known, most=wanted.most, names=wanted.excluded,
                          skipped=skipped)  # fmt: skip

    def look(self) -> bool:
        """Read the project; return whether so little was read that the payload waits until it is written."""
        self._scan.look(self._released)
        return self._scan.size < _SMALL

    def _released(self) -> int:
        """Return since when the agent has been running."""
        if select.select([self._gate], [], [], 0)[0]:
            said = os.read(self._gate, 64)
            if not said:
                raise CutOffError
            self._since = int(said)
        return self._since

    def write(self) -> None:
        """Write it down, with all that it does not keep."""
        from claudebox.undo.manifest import LeftOut
        from claudebox.undo.refs import with_index

        keep = self._store.keep_bytes
        snapshot = self._scan.snapshot(with_index(row, *self._indexes[row.private], keep) for row in self._refs)
        left_out = dict(snapshot.left_out)
        for mount in self._plan.mounts:
            if mount.kind == "bind" and mount.role == "asked":
                left_out[mount.source] = LeftOut("outside", "let in with `--mount-rw`: nothing in it is kept")
        for own in self._plan.git:
            if own.real and own.ref_format != "files":
                left_out[own.real] = LeftOut("outside", f"its branches, in the {own.ref_format} format, are not kept")
        self._store.write_snapshot(self._session, snapshot.replace(left_out=left_out), self._number)

    def write_partial(self) -> None:
        """Keep what was read for the next snapshot."""
        self._store.write_partial(self._scan.snapshot(), self._number)

    def prune(self) -> None:
        """Forget the oldest snapshots."""
        self._store.prune(self._wanted.keep)
