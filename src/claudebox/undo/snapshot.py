"""What a session changed in a directory: its start and its end, each as a snapshot.

The start of a session that can be undone (UNDO-01) is read by a process beside the launch: while bwrap builds the
sandbox, and after that beside the payload, which waits for a moment only. What the payload changed before it was read
is left out by its ctime, which no agent can set. Other sessions list names and what `lstat` says of them before the
payload runs.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time

from claudebox.base import console, process, trees
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import LOST, Closing, identify, read_small
from claudebox.base.records import Value
from claudebox.host import protected as host_protected
from claudebox.run.sidecars import Sidecar
from claudebox.undo.manifest import LeftOut, Scan, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from claudebox.plan.records import Plan
    from claudebox.settings.records import UndoRequest


UNTRACKED = "too large to be listed before the session began: deletions and moves in it could not be tracked"
_READING = 1.0  # extra seconds for reading contents at the end
LISTING = 0.3  # seconds before the payload runs, for all directories together
_GRAIN = 2.0  # seconds: the coarsest clock of a file system
_STEP = 0.005  # a smaller difference between clocks is noise


class Moment(Value):
    """When a session began, by three clocks: that of the file system, of the machine, and since it was started."""

    file_system: float
    clock: float
    uptime: float

    def since(self) -> float:
        """Return from when on a ctime belongs to the session, also if the clock was set back meanwhile."""
        back = (_uptime() - self.uptime) - (time.time() - self.clock)
        return self.file_system - back if back > _STEP else self.file_system


class Beginning(Value):
    """A writable directory when a session began."""

    root: str
    moment: Moment
    identity: tuple[int, int] = (0, 0)  # device and inode: no other directory of this name is looked at
    listing: Snapshot | None = None  # where no snapshot is taken


def begin(
    root: str, skipped: Iterable[str] = (), identity: tuple[int, int] | None = None, *, listing: bool = True,
    deadline: float | None = None,
) -> Beginning:  # fmt: skip
    """Record the identity of a directory and the time; with `listing` also its contents, as far as time allows."""
    start = Beginning(root, Moment(_file_time(root), time.time(), _uptime()), identity or identify(root) or (0, 0))
    if not listing:
        return start
    scan = Scan(root, None, None, skipped=skipped)
    scan.deadline = deadline if deadline is not None else time.monotonic() + LISTING
    return start.replace(listing=scan.run())


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _file_time(root: str) -> float:
    """Return the time by the clock of a file system: a server's may differ from ours."""
    try:
        descriptor = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return _file_time_by_name(root)
    with Closing(descriptor):
        return os.fstat(descriptor).st_ctime


def _file_time_by_name(root: str) -> float:
    name = f"{root}/.claudebox-{os.urandom(8).hex()}"
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return time.time() - _GRAIN
    try:
        return os.lstat(name).st_ctime
    finally:
        os.unlink(name)


def look_at_end(
    beginning: Beginning, skipped: Iterable[str], deadline: float, opener: trees.Opener, snapshot: tuple[str, str]
) -> tuple[Snapshot, Snapshot]:
    """Return the start and the end of a session in a directory.

    `snapshot` is the state directory of the project and the session that has a snapshot there, whose end is kept
    beside it. Without a record of the start everything counts as changed whose ctime says so.
    """
    if snapshot[1]:
        try:
            if kept := _keep_end(beginning, skipped, deadline, opener, *snapshot):
                return kept
        except (OSError, ClaudeboxError) as error:
            why = error.message if isinstance(error, ClaudeboxError) else error.strerror or str(error)
            console.warn(f"undo: the state at the end of this session is not kept: {why}")
    since = int(beginning.moment.since() * 1e9)
    unlisted = {".": LeftOut("time", trees.OUT_OF_TIME)}
    start = beginning.listing.replace(began=since) if beginning.listing is not None else None
    start = start or Snapshot(beginning.root, since, {}, unlisted)
    scan = Scan(beginning.root, None, start, skipped=skipped)
    scan.deadline, scan.opener, scan.identity = deadline, opener, beginning.identity
    return start, scan.run()


def _keep_end(
    beginning: Beginning, skipped: Iterable[str], deadline: float, opener: trees.Opener, directory: str, session: str
) -> tuple[Snapshot, Snapshot] | None:
    if not os.path.isdir(f"{directory}/undo"):  # no snapshot was ever taken here
        return None
    from claudebox.undo import comparison
    from claudebox.undo import refs as undo_refs
    from claudebox.undo.store import DATABASE, SnapshotStore

    if not os.path.exists(f"{directory}/undo/{DATABASE}"):
        return None
    store = SnapshotStore(f"{directory}/undo")
    try:
        start = store.find_start(session)
        if start is None:
            return None
        skipped = {*skipped, *find_skipped(start, directory)}
        scan = Scan(beginning.root, store, start, most=start.most, names=start.excluded, skipped=skipped)
        scan.deadline, scan.opener, scan.identity = deadline, opener, beginning.identity
        refs = undo_refs.read_present(start, store.keep)
        end = scan.run(refs, patience=max(0.0, deadline - time.monotonic()) + _READING)
        if "." in end.left_out and end.left_out["."].text == LOST:
            raise ClaudeboxError(LOST)
        cut = start.late or any(row.kind == "time" for row in (*start.left_out.values(), *end.left_out.values()))
        changed = cut or comparison.find_changes(start, end) or undo_refs.compare_refs(start, end)
        store.write_end(session, end, changed=bool(changed))
        return start, end
    finally:
        store.close()


def find_skipped(start: Snapshot, directory: str) -> list[str]:
    """Return what later scans leave out: git directories of the host, what was not kept, stubs in `directory`."""
    outside = [path for path, row in start.left_out.items() if row.kind == "outside"]
    return [*(row.real for row in start.repositories), *outside, *standing_stubs(directory, start.root)]


def standing_stubs(instance_directory: str, root: str) -> list[str]:
    """Return the stubs of sessions in a project that nobody has put to use."""
    content = read_small(f"{instance_directory}/{host_protected.STUBS}", limit=host_protected.STUBS_LIMIT) or b""
    rows = {row.path for row in host_protected.parse_stubs(content) if row.path.startswith(f"{root.rstrip('/')}/")}
    return sorted(path for path in rows if _is_unused(path, rows))


def _is_unused(path: str, stubs: Collection[str]) -> bool:
    """Return whether a stub is empty, or has only stubs in it."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return not status.st_size
        inner = (f"{path}/{name}" for name in os.listdir(path))
        return all(place in stubs and _is_unused(place, stubs) for place in inner)
    except OSError:
        return False


def is_available() -> bool:
    """Return whether snapshots can be kept: Python can be built without `sqlite3`."""
    return any(finder.find_spec("_sqlite3", None) for finder in sys.meta_path)


# Seconds for which the payload waits: a client takes longer than that before it acts, a command does not.
_CLIENT, _COMMAND = 0.1, 2.0
_SMALL = 5000  # names: so few are written to the disk before the payload runs
_END, _CUT = 3.0, 2.0  # seconds that the end waits for the snapshot, and then for what was read to be written


class UndoSidecar(Sidecar):
    """The process that takes a snapshot, from before the sandbox starts until the snapshot is complete."""

    title = "the snapshot"

    def __init__(self, plan: Plan, wanted: UndoRequest) -> None:
        self._plan, self._wanted = plan, wanted
        self._child = 0
        self._line = self._gate = -1
        self._received = b""

    def begin(self, log: int = -1) -> None:
        """Start to read, if the session has a log, which names the snapshot."""
        if log < 0 or not is_available():
            return
        session = os.path.basename(os.readlink(f"/proc/self/fd/{log}")).removesuffix(".jsonl")
        self._line, line = os.pipe2(os.O_CLOEXEC)
        gate, self._gate = os.pipe2(os.O_CLOEXEC)
        plan, wanted = self._plan, self._wanted
        self._child = process.fork(lambda: _take(plan, wanted, session, line, gate), (line, gate))
        os.close(line)
        os.close(gate)

    def attach(self, payload: int) -> None:  # noqa: ARG002 - the snapshot does not need it
        """Wait a moment for the snapshot."""
        if not self._child:
            return
        self._receive(_CLIENT if self._wanted.patient else _COMMAND)
        if not self._received.endswith(b"end"):
            try:
                os.write(self._gate, f"{time.time_ns()}".encode())
            except BrokenPipeError:  # it has ended, and the end of the session says so
                pass
        self.tend()

    def tend(self) -> None:
        """Reap the process."""
        if self._child and process.poll(self._child) is not None:
            self._child = 0

    def finish(self) -> tuple[str, ...]:
        """Wait until the snapshot is written; return a note if there is none."""
        if not is_available():
            return ("undo is not available: this Python has no `sqlite3` module",)
        if self._line < 0:
            return ()
        self._receive_until_closed(_END)
        os.close(self._gate)  # tells the process to write what it has by now
        self._receive_until_closed(_CUT)
        if self._child:
            process.end(self._child)
        self._child = 0
        os.close(self._line)
        self._line = -1
        if self._received.endswith(b"end"):
            return ()
        problem = (
            self._received.removeprefix(b"read").decode("utf-8", "surrogateescape")
            or "the session ended before it was complete"
        )
        return (f"undo: there is no snapshot of this session: {problem}",)

    def _receive_until_closed(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while self._receive(max(0.0, limit - time.monotonic())):
            continue

    def _receive(self, seconds: float) -> bytes:
        ready = select.select([self._line], [], [], seconds)[0]
        piece = os.read(self._line, 4096) if ready else b""
        self._received += piece
        return piece


def _take(plan: Plan, wanted: UndoRequest, session: str, line: int, gate: int) -> None:
    """Read, report that, write, prune: the body of the process."""
    job = None
    try:
        job = SnapshotJob(plan, wanted, session, gate)
        if not job.look():
            os.write(line, b"read")
        job.write()
        os.write(line, b"end")
        job.prune()
    except CutOffError:
        if job is not None:
            job.write_partial()
    except (OSError, ClaudeboxError) as error:
        said = error.message if isinstance(error, ClaudeboxError) else f"{error.strerror or error}"
        os.write(line, os.fsencode(said))


class CutOffError(Exception):
    """The session ended before its snapshot was complete."""


class SnapshotJob:
    """Reads the project and its repositories, and writes the snapshot."""

    def __init__(self, plan: Plan, wanted: UndoRequest, session: str, gate: int) -> None:
        from claudebox.undo import refs as undo_refs
        from claudebox.undo.store import SnapshotStore

        self._plan, self._wanted, self._session, self._gate = plan, wanted, session, gate
        self._since = 0
        self._store = SnapshotStore(f"{plan.directory}/undo")
        self._number = self._store.draw_number()
        rows = [own for own in plan.git if own.real]
        self._indexes = {own.private: undo_refs.read_index(own.git_dir or own.real) for own in rows}
        self._refs = [
            undo_refs.read_refs(own.private, own.real, own.git_dir or own.real, own.worktree, own.only)
            for own in rows
            if own.ref_format == "files"
        ]
        skipped = [*(own.real for own in rows), *(stub.path for stub in plan.stubs),
                   *standing_stubs(plan.directory, plan.workdir)]  # fmt: skip
        known = self._store.newest_like(plan.workdir)
        self._scan = Scan(plan.workdir, self._store, known, most=wanted.most, names=wanted.excluded,
                          skipped=skipped)  # fmt: skip

    def look(self) -> bool:
        """Read the project; return whether it is so small that the payload waits until it is written."""
        self._scan.look(self._released)
        return self._scan.size < _SMALL

    def _released(self) -> int:
        """Return since when the agent has been running, in nanoseconds."""
        if select.select([self._gate], [], [], 0)[0]:
            said = os.read(self._gate, 64)
            if not said:
                raise CutOffError
            self._since = int(said)
        return self._since

    def write(self) -> None:
        from claudebox.undo.refs import with_index

        keep = self._store.keep
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
        """Keep what was read, for the report of this session and the next snapshot."""
        self._scan.drop_late(self._since)
        self._store.write_partial(self._session, self._scan.snapshot(self._refs), self._number)

    def prune(self) -> None:
        self._store.prune(self._wanted.keep)
