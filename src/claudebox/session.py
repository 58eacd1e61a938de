"""The pipeline of a session, once: settings → policy → facts → plan → (show | ask → launch → report).

A launch, `--explain`, `--dry-run`, `--check` and `--verify` all go this way, so that what is shown, examined and
started is the same sandbox.
"""

from __future__ import annotations

import os

from claudebox.base import console
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.records import Value
from claudebox.run.ending import Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.agent.login import Freshness
    from claudebox.broker.secrets import Obtain
    from claudebox.host.records import Host
    from claudebox.many.detach import Notifier
    from claudebox.plan.records import Plan
    from claudebox.report.session import SessionReport
    from claudebox.run.host_guard import HostGuard
    from claudebox.run.prepare import Prepared
    from claudebox.run.sidecars import Sidecar
    from claudebox.run.start import Building, Sandbox
    from claudebox.run.storage import Storage
    from claudebox.run.stubs import Session
    from claudebox.run.terminal import Terminal
    from claudebox.settings.files import SettingsReader
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy, SecretRequest


_KILLED = 137  # the status of a payload that we had to kill


class Planned(Value):
    """One sandbox: who asked for what, on which machine, and what follows from that."""

    settings: Settings
    policy: Policy
    host: Host
    plan: Plan


class Values(Value):
    """What was fetched when the user had agreed."""

    texts: dict[str, str] = {}  # noqa: RUF012 - values are never changed; by the keys of `Fetched`
    secrets: tuple[SecretRequest, ...] = ()  # for the broker, and for the search at the end


def run(flags: Settings, environ: dict[str, str], notifier: Notifier | None = None, *, state: str = "") -> int:
    """Show or play the session that these flags ask for; return the exit status.

    With a `notifier` it was agreed on elsewhere, and that watches it. `state` stands for ~/.claudebox.
    """
    showing = flags.on("dry_run") or flags.on("explain")
    settings, files = read_settings(flags, environ, approve=None if showing else _approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ, state=state)
    if showing:
        from claudebox.plan import explain

        console.write(explain.render(planned.plan, settings), descriptor=1)
        return 0
    from claudebox.run import prepare, start
    from claudebox.run.terminal import open_terminal

    policy, host, plan = planned.policy, planned.host, planned.plan
    prepared = prepare.prepare(plan)
    if notifier is None and not _ask(planned, files):
        return DECLINED
    values = fetch(planned, environ)
    prepare.check_project(prepared)  # after everything that takes its time
    freshness = None
    if host.agent.login.known and not plan.holds_credential and not policy.command:
        from claudebox.agent.login import Freshness

        freshness = Freshness(host.agent.login, host.instance, environ)
    terminal = open_terminal(pty=not plan.detached, filtered=policy.filter_terminal)
    receipt = settings.one("receipt").value
    try:
        return Launch(planned, prepared, values, terminal, receipt, freshness=freshness, notifier=notifier).play()
    except start.Interrupted as error:
        return error.status


def agree(flags: Settings, environ: dict[str, str]) -> Planned | None:
    """Show the session that these flags ask for and ask, for one that will run elsewhere; None: the user declined."""
    settings, files = read_settings(flags, environ, approve=_approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ)
    return planned if _ask(planned, files) else None


def _ask(planned: Planned, files: SettingsReader | None) -> bool:
    from claudebox.plan import audit
    from claudebox.run import state as run_state

    asking, approved = not planned.settings.on("yes"), run_state.read_approved(planned.host.instance)
    plan, chosen = planned.plan, planned.settings.all("profile") or (files is not None and files.present())
    plan = plan if chosen or plan.policy.network_origin != "default" else audit.with_unchosen(plan)
    notes: Iterable[str] = ()
    if untold := audit.untold(plan, approved):
        from claudebox.host import programs

        notes = programs.describe_absent(untold, audit.path_inside(plan), planned.host.home)
    console.write(audit.lines(plan, approved, asking=asking, quiet=planned.settings.on("quiet"), notes=notes))
    if asking and not console.confirm("Proceed? [Y/n] ", default=True):
        return False
    if files is not None:
        files.save()
    return True


def read_settings(
    flags: Settings, environ: dict[str, str], *, approve: Callable[[Iterable[str]], bool] | None = None
) -> tuple[Settings, SettingsReader | None]:
    """Return the settings of a launch here, and the reader of files where there are any."""
    from claudebox.host import machine
    from claudebox.settings import layers

    home = machine.current_home(environ)
    configured = layers.look_up("profile", flags, environ) or os.path.lexists(f"{home}/.claudebox/config.toml")
    if approve and not configured and not flags.on("yes") and not layers.look_up("network", flags, environ):
        from claudebox.commands import first_launch

        configured = first_launch.ask_network(home, environ)
    if not configured and not os.path.lexists(".claudebox.toml"):
        return layers.merge(flags, environ), None
    from claudebox.settings import files as settings_files

    reader = flags.reader or settings_files.SettingsReader(home)
    return settings_files.apply(flags, environ, reader, workdir=machine.current_directory(), approve=approve), reader


def _approve(request: Iterable[str]) -> bool:
    """Show what a project file asks for and let the user decide."""
    console.write(request)
    try:
        return console.confirm("Approve exactly this, for this project? [y/N] ", default=False)
    except ClaudeboxError:  # nobody to ask
        return False


def decide_policy(settings: Settings, environ: dict[str, str]) -> Policy:
    """Return what the settings ask for here."""
    from claudebox.host import machine
    from claudebox.settings import policy as settings_policy

    return settings_policy.decide_policy(
        settings, home=machine.current_home(environ), workdir=machine.current_directory()
    )


def make_plan(
    settings: Settings,
    policy: Policy,
    environ: dict[str, str],
    *,
    searching: bool = True,
    state: str = "",
    pretend: Callable[[Host], Host] | None = None,
) -> Planned:
    """Look at the machine and decide everything about the sandbox; nothing of the user's is run, nothing is written.

    Not `searching`: nothing is started; an examination can `pretend` other facts.
    """
    from claudebox.host import gather
    from claudebox.plan import compose

    facts = gather.read_host(policy, environ, searching=searching, state=state)
    if pretend is not None:
        facts = pretend(facts)
    return Planned(settings, policy, facts, compose.make_plan(policy, facts))


def fetch(planned: Planned, environ: dict[str, str], obtain: Obtain | None = None) -> Values:
    """Run and read what the user agreed to: values of secrets (by `obtain`), the token for git, packages."""
    policy, host, plan = planned.policy, planned.host, planned.plan
    fetched = (*(row.fetched for row in plan.variables), *(row.fetched for row in plan.mounts))
    wanted = {row.key for row in fetched if row is not None and row.key != "entrance"}  # the broker's, at its start
    if not wanted:
        return Values()
    from claudebox.broker import secrets as broker_secrets
    from claudebox.host import programs
    from claudebox.plan.records import GIT_TOKEN, PACKAGES, placeholder_key

    path = programs.search_path(environ, host.workdir.real)
    if obtain is None:
        obtain = broker_secrets.source_reader(environ, lambda name: programs.find_tool(name, path), home=host.home)
    held = broker_secrets.hold(plan.secrets, obtain)
    if held:
        from claudebox.plan import environment as plan_environment

        plan_environment.check_withheld(((row.value, row.origin) for row in held), plan.variables)
    texts = {placeholder_key(secret.env): secret.placeholder for secret in held}
    if GIT_TOKEN in wanted and policy.credential is not None:
        texts[GIT_TOKEN] = broker_secrets.git_token(policy.credential, obtain)
    if PACKAGES in wanted and host.nix is not None and host.nix.packages is not None:
        from claudebox.nix import packages

        found = packages.resolve(policy, host.nix, host.nix.packages, environ, host.instance.state)
        texts[PACKAGES] = "".join(f"{directory}:" for directory in found)
    return Values(texts, held)


class Launch:
    """A sandbox from its start to its end, and what stands beside it."""

    def __init__(
        self,
        planned: Planned,
        prepared: Prepared,
        values: Values,
        terminal: Terminal,
        receipt: str = "",
        *,
        freshness: Freshness | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """Without a `receipt` nothing is written down or reported: it is an examination."""
        self._planned, self._prepared, self._values, self._terminal = planned, prepared, values, terminal
        self._receipt, self._freshness, self._notifier = receipt, freshness, notifier
        self._storage: Storage | None = None
        self._stubs: Session | None = None
        self._in_use: list[int] = []
        self._report: SessionReport | None = None
        self._sidecars: tuple[Sidecar, ...] = ()
        self._building: Building | None = None
        self._guard: HostGuard | None = None
        self._notes: list[str] = []

    def play(self) -> int:
        """Start the sandbox, wait for its end and leave everything; return the status of the payload.

        Raise what kept it from running.
        """
        from claudebox.run import start

        sandbox, status, problem = None, _KILLED, None
        try:
            with start.Interruptible():
                sandbox = self._start()
            status = self._stay(sandbox)
        except BaseException as error:  # noqa: BLE001 - whatever it was, everything that was entered is left
            problem = error
        ending = Steps()
        if problem is not None and sandbox is not None:
            ending.tell("staying beside the sandbox", problem)
            ending.step("the sandbox", lambda: start.end(sandbox))
        elif (begun := self._building) is not None and problem is not None:
            ending.step("the sandbox", lambda: start.abandon(begun))
        losses = self._leave(ending)
        if sandbox is not None:
            return self._conclude(ending, status, losses)
        self._finish_sidecars(ending)
        ending.step("what was started", start.reap_orphans)
        if (report := self._report) is not None:
            ending.step("the session log", lambda: report.give_up(getattr(problem, "status", FAILED)))
        raise problem if problem is not None else AssertionError

    def _start(self) -> Sandbox:
        """Make everything that the sandbox needs, start it, and let it go when everything is in force."""
        from claudebox.base import state as base_state
        from claudebox.git import state as git_state
        from claudebox.run import prepare, start
        from claudebox.run.storage import Storage
        from claudebox.run.stubs import Session

        plan, instance, key = self._planned.plan, self._planned.host.instance, ""
        if self._receipt:
            from claudebox.agent import plan as agent_plan

            key = agent_plan.key_tail(plan.variables)
        base_state.create(instance, workdir=plan.workdir, key=key, mountpoints=plan.mountpoints, kept=plan.kept)
        if self._freshness is not None:
            self._freshness.bring()
        self._storage = Storage(plan, instance.directory)
        self._stubs = Session(instance)
        self._stubs.begin(plan)
        self._in_use += git_state.set_up(plan)
        standing = self._stubs.make(plan)
        self._sidecars = _make_sidecars(self._prepared.plan, self._values.secrets)
        for sidecar in self._sidecars:
            sidecar.listen()
        texts = {key: text for sidecar in self._sidecars for key, text in sidecar.texts.items()}
        sockets = {name: path for sidecar in self._sidecars for name, path in sidecar.sockets.items()}
        prepared = prepare.complete(self._prepared, self._values.texts | texts, sockets)
        begun = self._building = start.begin(prepared, self._terminal, instance.directory)
        log = self._open_report() if self._receipt else ()  # from here on bwrap is at work
        try:
            for sidecar in self._sidecars:
                sidecar.begin((*prepared.pipes, *log))
        finally:
            for _, descriptor in prepared.pipes:  # bwrap waits for the end of each
                os.close(descriptor)
        sandbox = start.see_protected(begun, prepared, standing, instance.directory)
        for sidecar in self._sidecars:
            sidecar.attach(sandbox.payload)
        start.let_go(begun, sandbox)
        return sandbox

    def _open_report(self) -> tuple[tuple[str, int], ...]:
        """Begin what the user will be told at the end; return where sidecars write their decisions."""
        from claudebox.plan import audit
        from claudebox.report.session import SessionReport
        from claudebox.run import state as run_state

        planned = self._planned
        run_state.keep_approved(planned.host.instance, audit.decided(planned.plan))
        host = planned.host.replace(secrets=planned.host.secrets.replace(held=self._values.secrets))
        self._report = SessionReport(planned.plan, planned.policy, host, self._receipt)
        log = self._report.record.descriptor
        return (("log", log),) if log >= 0 else ()

    def _stay(self, sandbox: Sandbox) -> int:
        """Stay beside the sandbox until it ends, and return the status of the payload."""
        from claudebox.run import supervise
        from claudebox.run.host_guard import HostGuard

        plan = self._prepared.plan
        if self._stubs is not None:
            self._guard = HostGuard(plan, sandbox.init, self._stubs, self._planned.host.instance.directory)
        if self._notifier is not None:
            self._notifier.begin()
        chores = [chore for chore in (self._guard, self._freshness, self._notifier) if chore is not None]
        return supervise.wait(sandbox, self._terminal, self._sidecars, chores, self._notes.append)

    def _leave(self, ending: Steps) -> list[str]:
        """Leave what was entered before the sandbox started; return what of its output was lost."""
        from claudebox.git import state as git_state

        step, stubs, storage, guard = ending.step, self._stubs, self._storage, self._guard
        losses = step("the terminal", self._terminal.restore)
        step("the stubs in the project", stubs.end if stubs else None)
        self._notes += step("the storage of the sandbox", storage.end if storage else None) or ()
        step("the locks of git", lambda: git_state.release(self._in_use))
        self._notes += step("what the host replaced meanwhile", guard.finish if guard else None) or ()
        return losses or []

    def _conclude(self, ending: Steps, status: int, losses: list[str]) -> int:
        """Bring back what was made inside, and say what came of it."""
        from claudebox.run import start

        step, report = ending.step, self._report
        if report is not None:
            step("disarming repositories", report.disarm)
        self._finish_sidecars(ending)
        adopted, more = step("a repository that was made inside", lambda: _adopt(self._planned.plan)) or ([], [])
        moved = (*(row for sidecar in self._sidecars for row in sidecar.moved), *adopted)
        step("what the sandbox left running", start.reap_orphans)
        for loss in losses:
            step("a warning", lambda: console.warn(loss))  # noqa: B023
            status = status or FAILED
        for note in (*self._notes, *more, *([f"git: {', '.join(moved)}"] if moved and report is None else [])):
            step("a note", lambda: console.note(note))  # noqa: B023
        if report is None:
            return status
        report.moved = moved
        step("the report", lambda: report.conclude(status, ending))
        return step("the note of this session", lambda: report.settle(status, ending)) or status

    def _finish_sidecars(self, ending: Steps) -> None:
        for sidecar in self._sidecars:
            self._notes += ending.step(sidecar.title, sidecar.finish) or ()


def _make_sidecars(plan: Plan, secrets: tuple[SecretRequest, ...]) -> tuple[Sidecar, ...]:
    """Return the processes beside the sandbox; the broker gets the values of secrets."""
    wanted = (plan.link, plan.broker, plan.relay, plan.undo, plan.group)
    if not any(wanted) and not any(own.real for own in plan.git):
        return ()
    from claudebox.run import sidecars

    if secrets and plan.broker is not None:
        from claudebox.broker.plan import with_values

        plan = plan.replace(broker=with_values(plan.broker, secrets))
    return sidecars.make_sidecars(plan)


def _adopt(plan: Plan) -> tuple[list[str], list[str]]:
    """Take over a repository that was made inside, where there was none."""
    if not any(not own.real and os.path.lexists(f"{own.own}/HEAD") for own in plan.git):
        return [], []
    from claudebox.git import sidecar as git_sidecar

    return git_sidecar.adopt(plan)
