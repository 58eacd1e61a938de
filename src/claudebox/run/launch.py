"""A launch: the sandbox and everything beside it, from before its start until after its end.

Whatever fails, everything that was set up is taken down, in order. A step of that which fails is reported; the others
still run.
"""

from __future__ import annotations

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import FAILED
from claudebox.git import state as git_state
from claudebox.run import prepare, start
from claudebox.run.sidecars import Sidecar, make_sidecars
from claudebox.run.storage import Storage
from claudebox.run.stubs import SessionStubs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from claudebox.agent.login import LoginCopy
    from claudebox.many.detach import Notifier
    from claudebox.report.session import SessionReport
    from claudebox.run.mounts import HostGuard
    from claudebox.run.terminal import Terminal
    from claudebox.session import FetchedValues, Planned

    T = TypeVar("T")

_KILLED = 137  # the status of a payload that we had to kill


class Steps:
    """Runs the steps at the end of a session; one that fails is reported, and the others still run."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def step(self, name: str, action: Callable[[], T] | None) -> T | None:
        """Run one step, if there is one; return its result, None if it raised anything at all."""
        try:
            return action() if action is not None else None
        except BaseException as error:  # noqa: BLE001 - MemoryError, RecursionError and signals count as well
            self.report_failure(name, error)
            return None

    def report_failure(self, name: str, error: BaseException) -> None:
        self.failed.append(name)
        try:
            said = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
            problem = type(error).__name__ if isinstance(error, (MemoryError, RecursionError)) else said
            console.warn(f"the end of this session is not complete: {name} failed: {console.shorten(problem, 200)}")
        except BaseException:  # noqa: BLE001, S110 - not even memory for a line; the step is in `failed`
            pass


class Launch:
    """One sandbox, from its start to its end."""

    def __init__(
        self,
        planned: Planned,
        values: FetchedValues,
        terminal: Terminal,
        receipt: str = "",
        *,
        login_copy: LoginCopy | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """Without a `receipt` nothing is logged or reported, as for an examination."""
        self._planned, self._values, self._terminal = planned, values, terminal
        self._receipt, self._login_copy, self._notifier = receipt, login_copy, notifier
        self._storage: Storage | None = None
        self._stubs: SessionStubs | None = None
        self._git_locks: list[int] = []
        self._sidecars: tuple[Sidecar, ...] = ()
        self._building: start.Building | None = None
        self._sandbox: start.Sandbox | None = None
        self._report: SessionReport | None = None
        self._guard: HostGuard | None = None
        self._notes: list[str] = []
        self._ending = Steps()

    def run(self) -> int:
        """Start the sandbox, wait for its end and take everything down; return the status of the payload.

        Raise what kept the sandbox from starting.
        """
        status, problem = _KILLED, None
        try:
            with start.Interruptible():
                sandbox = self._sandbox = self._start()
            status = self._supervise(sandbox)
        except BaseException as error:  # noqa: BLE001 - whatever it was, everything is taken down
            problem = error
            self._kill(error)
        losses = self._take_down()
        if self._sandbox is not None:
            return self._conclude(status, losses)
        self._finish_sidecars()
        self._ending.step("what was started", start.reap_orphans)
        if (report := self._report) is not None:
            self._ending.step("the session log", lambda: report.give_up(getattr(problem, "status", FAILED)))
        raise problem if problem is not None else AssertionError

    def _start(self) -> start.Sandbox:
        """Make everything that the sandbox needs, start it, and let the payload run once everything is in force."""
        plan, instance = self._planned.plan, self._planned.host.instance
        base_state.create(instance, seeds=plan.seeds, mountpoints=plan.mountpoints, kept=plan.kept)
        if self._login_copy is not None:
            self._login_copy.ensure_usable()
        self._storage = Storage(plan, instance.directory)
        self._stubs = SessionStubs(instance)
        self._stubs.begin(plan)
        self._git_locks += git_state.set_up(plan)
        stubs = self._stubs.make(plan)
        log = self._open_report() if self._receipt else -1
        self._sidecars = make_sidecars(plan, self._values.secrets)
        for sidecar in self._sidecars:
            sidecar.begin(log)
        prepared = prepare.prepare(plan, self._values.texts, self._sidecars)
        building = self._building = start.build(plan, prepared, self._terminal)
        sandbox = start.examine(building, plan, stubs, prepared.open_files)
        for sidecar in self._sidecars:
            sidecar.attach(sandbox.payload)
        start.open_gate(building, sandbox)
        return sandbox

    def _open_report(self) -> int:
        """Begin the session log; return the descriptor on which sidecars write their decisions, -1 for none."""
        from claudebox.plan import audit
        from claudebox.report.session import SessionReport

        planned = self._planned
        instance, (told, told_of_path) = planned.host.instance, audit.telling(planned.plan)
        base_state.keep_approved(instance, audit.decided(planned.plan))
        base_state.keep_told(instance.directory, told)
        base_state.keep_told(instance.state, told_of_path)
        host = planned.host.replace(secrets=planned.host.secrets.replace(held=self._values.secrets))
        self._report = SessionReport(planned.plan, planned.policy, host, self._receipt)
        return self._report.record.descriptor

    def _supervise(self, sandbox: start.Sandbox) -> int:
        """Supervise the sandbox until it ends, and return the status of the payload."""
        from claudebox.run.mounts import HostGuard
        from claudebox.run.supervise import Supervisor

        if self._stubs is not None:
            self._guard = HostGuard(self._planned.plan, sandbox.init, self._stubs)
        if self._notifier is not None:
            self._notifier.begin()
        chores = [chore for chore in (self._guard, self._login_copy, self._notifier) if chore is not None]
        return Supervisor(sandbox, self._terminal, self._sidecars, chores, self._notes.append).wait()

    def _kill(self, problem: BaseException) -> None:
        """End what was started, since nothing supervises it any more."""
        if (sandbox := self._sandbox) is not None:
            self._ending.report_failure("supervising the sandbox", problem)
            self._ending.step("the sandbox", lambda: start.end(sandbox))
        elif (building := self._building) is not None:
            self._ending.step("the sandbox", lambda: start.abandon(building))

    def _take_down(self) -> list[str]:
        """Take down what was set up before the sandbox started; return warnings about output that was lost."""
        step, stubs, storage, guard = self._ending.step, self._stubs, self._storage, self._guard
        losses = step("the terminal", self._terminal.restore)
        step("the stubs in the project", stubs.end if stubs else None)
        self._notes += step("the storage of the sandbox", storage.end if storage else None) or ()
        step("the locks of git", lambda: git_state.release(self._git_locks))
        self._notes += step("what the host replaced meanwhile", guard.finish if guard else None) or ()
        return losses or []

    def _conclude(self, status: int, losses: list[str]) -> int:
        """Import what was made inside, and report; return the status."""
        step, report = self._ending.step, self._report
        if report is not None:
            step("disarming repositories", report.disarm)
        self._finish_sidecars()
        moved = tuple(row for sidecar in self._sidecars for row in sidecar.moved)
        step("what the sandbox left running", start.reap_orphans)
        for loss in losses:
            step("a warning", lambda: console.warn(loss))  # noqa: B023
            status = status or FAILED
        for note in (*self._notes, *([f"git: {', '.join(moved)}"] if moved and report is None else [])):
            step("a note", lambda: console.note(note))  # noqa: B023
        if report is None:
            return status
        report.moved = moved
        step("the report", lambda: report.conclude(status, self._ending))
        return step("the note of this session", lambda: report.settle(status, self._ending)) or status

    def _finish_sidecars(self) -> None:
        for sidecar in self._sidecars:
            self._notes += self._ending.step(sidecar.title, sidecar.finish) or ()
