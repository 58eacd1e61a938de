"""The snapshot of a project at the start of a session, taken by a process beside it (UNDO-01), and that of its end.

It reads while bwrap builds the sandbox. The payload waits for it, but not for long: after that it goes on beside the
payload, and what the payload changed before it was read is left out by its time of change, which no agent can set.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.errors import ClaudeboxError
from claudebox.launch import process
from claudebox.launch.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import UndoRequest
    from claudebox.plan.model import Plan

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
        from claudebox.undo import repositories
        from claudebox.undo.look import Scan
        from claudebox.undo.store import SnapshotStore

        self._plan, self._wanted, self._session, self._gate = plan, wanted, session, gate
        self._since = 0
        self._store = SnapshotStore(wanted.directory)
        self._number = self._store.draw_number()
        rows = [own for own in plan.git if own.real]
        self._indexes = {own.private: repositories.read_index(own.git_dir or own.real) for own in rows}
        self._refs = [
            repositories.read_refs(own.private, own.real, own.git_dir or own.real, own.worktree, own.only)
            for own in rows
            if own.ref_format == "files"
        ]
        skipped = [own.real for own in rows]
        skipped += [stub.path for stub in plan.stubs]
        skipped += repositories.standing_stubs(os.path.dirname(wanted.directory), plan.workdir)
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
        from claudebox.undo.repositories import with_index

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
