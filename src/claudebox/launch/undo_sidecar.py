"""The sidecar that takes the snapshot of a project at the start of a session (UNDO-01).

It reads while bwrap builds the sandbox. The payload waits for it, but not for long: after that it goes on beside the
payload, and what the payload changed before it was read is left out by its time of change, which no agent can set.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.launch import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import UndoRequest
    from claudebox.plan.model import Plan

# Seconds for which the payload waits: a client takes longer than that until it acts, a command does not.
_CLIENT, _COMMAND = 0.1, 2.0
_END, _CUT = 3.0, 2.0  # for which the end of the session waits, and then until what was read is written down


class UndoSidecar:
    """The process, from before the sandbox starts until the snapshot is complete."""

    def __init__(self, plan: Plan, wanted: UndoRequest) -> None:
        self._plan, self._wanted = plan, wanted
        self._child = 0
        self._line = self._gate = -1
        self._said = b""

    def open(self) -> None:
        """Make nothing that bwrap binds."""

    def begin(self, files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start to read, in a session that is written down: its log names the snapshot."""
        log = next((descriptor for name, descriptor in files if name == "log"), -1)
        if log < 0:
            return
        session = os.path.basename(os.readlink(f"/proc/self/fd/{log}")).removesuffix(".jsonl")
        self._line, line = os.pipe2(os.O_CLOEXEC)
        gate, self._gate = os.pipe2(os.O_CLOEXEC)
        self._child = process.fork(lambda: _take(self._plan, self._wanted, session, line, gate), (line, gate))
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
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
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
    from claudebox.errors import ClaudeboxError
    from claudebox.launch import undo_taking

    taking = None
    try:
        taking = undo_taking.Taking(plan, wanted, gate)
        if not taking.look():
            os.write(line, b"read")
        taking.complete()
        taking.write(session)
        os.write(line, b"end")
        taking.prune()
    except undo_taking.CutOffError:
        if taking is not None:
            taking.write_partial()
    except (OSError, ClaudeboxError) as error:
        said = error.message if isinstance(error, ClaudeboxError) else f"{error.strerror or error}"
        os.write(line, os.fsencode(said))
