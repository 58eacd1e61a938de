"""The pipeline of a session, once: settings → policy → facts → plan → (show | ask → launch → report).

A launch, `--explain`, `--dry-run`, `--check` and `--verify` all go this way, so that what is shown, examined and
started is the same sandbox.
"""

from __future__ import annotations

import os

from claudebox import console
from claudebox.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from claudebox.config.files import SettingsReader
    from claudebox.config.model import Policy, SecretRequest
    from claudebox.config.settings import Settings
    from claudebox.facts.host import Host
    from claudebox.facts.model import Identity
    from claudebox.launch.host_guard import HostGuard
    from claudebox.launch.prepare import Prepared
    from claudebox.launch.secret_values import Obtain
    from claudebox.launch.start import Sandbox
    from claudebox.launch.storage import Storage
    from claudebox.launch.stubs import Session
    from claudebox.launch.terminal import Terminal
    from claudebox.launch.token_copy import Freshness
    from claudebox.plan.model import Plan
    from claudebox.report.session import SessionReport


_KILLED = 137  # the status of a payload that we had to kill
_TITLES = {"UndoSidecar": "the snapshot", "Follower": "bringing commits back", "BrokerSidecar": "the broker"}


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


def run(flags: Settings, environ: dict[str, str], begun: Callable[[], None] | None = None, *, state: str = "") -> int:
    """Show or play the session that these flags ask for; return the exit status.

    `begun` is called when a session runs that was agreed on elsewhere, and may `look` on; `state`: in place of ours.
    """
    showing = flags.on("dry_run") or flags.on("explain")
    settings, files = read_settings(flags, environ, approve=None if showing else _approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ, asking=not showing, state=state)
    if not showing:
        return _play(planned, files, environ, begun)
    from claudebox.plan import explain

    console.write(explain.render(planned.plan, settings), descriptor=1)
    return 0


def agree(flags: Settings, environ: dict[str, str]) -> Planned | None:
    """Show the session that these flags ask for and ask, for one that will run elsewhere; None: the user declined."""
    settings, files = read_settings(flags, environ, approve=_approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ)
    from claudebox.launch import approval

    return planned if _ask(planned, files, approval.read_approved(planned.host.instance)) else None


def _ask(
    planned: Planned, files: SettingsReader | None, approved: frozenset[str] | None, *, agreed: bool = False
) -> bool:
    from claudebox.plan import audit

    asking = not agreed and not planned.settings.on("yes")
    plan, chosen = planned.plan, planned.settings.all("profile") or (files is not None and files.present())
    plan = plan if chosen or plan.policy.network_origin != "default" else audit.with_unchosen(plan)
    notes: Iterable[str] = ()
    if untold := audit.untold(plan, approved):
        from claudebox.facts import absent_programs

        notes = absent_programs.describe_absent(untold, audit.path_inside(plan), planned.host.home)
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
    from claudebox.config import settings as table
    from claudebox.facts import host

    settings, home = table.merge(flags, environ), host.current_home(environ)
    configured = settings.all("profile") or os.path.lexists(f"{home}/.claudebox/config.toml")
    if approve and not configured and not settings.on("yes") and settings.one("network").origin == "default":
        from claudebox.commands import first_launch

        configured = first_launch.ask_network(home, environ)
    if not configured and not os.path.lexists(".claudebox.toml"):
        return settings, None
    from claudebox.config import files

    reader = files.SettingsReader(home)
    return files.apply(flags, environ, reader, workdir=host.current_directory(), approve=approve), reader


def _approve(request: Iterable[str]) -> bool:
    """Show what a project file asks for and let the user decide."""
    console.write(request)
    try:
        return console.confirm("Approve exactly this, for this project? [y/N] ", default=False)
    except ClaudeboxError:  # nobody to ask
        return False


def decide_policy(settings: Settings, environ: dict[str, str]) -> Policy:
    """Return what the settings ask for here."""
    from claudebox.config import policy
    from claudebox.facts import host

    return policy.decide_policy(settings, home=host.current_home(environ), workdir=host.current_directory())


def make_plan(
    settings: Settings,
    policy: Policy,
    environ: dict[str, str],
    *,
    asking: bool = True,
    searching: bool = True,
    state: str = "",
    pretend: Callable[[Host], Host] | None = None,
) -> Planned:
    """Look at the machine and decide everything about the sandbox; nothing of the user's is run, nothing is written.

    `asking` permits to ask `nix`; not `searching`: nothing is started; an examination can `pretend` other facts.
    """
    from claudebox.facts import host
    from claudebox.plan import compose

    facts = host.read_host(policy, environ, asking=asking, searching=searching, state=state)
    if pretend is not None:
        facts = pretend(facts)
    return Planned(settings, policy, facts, compose.make_plan(policy, facts))


def _play(
    planned: Planned, files: SettingsReader | None, environ: dict[str, str], begun: Callable[[], None] | None
) -> int:
    """Show the plan, ask, start it, and stay until its end."""
    from claudebox.launch import approval, prepare, start
    from claudebox.launch.terminal import open_terminal
    from claudebox.plan import audit, claude_code

    settings, policy, host, plan = planned.settings, planned.policy, planned.host, planned.plan
    prepared = prepare.prepare(plan)
    approved = approval.read_approved(host.instance)
    if not _ask(planned, files, approved, agreed=begun is not None):
        return DECLINED
    if host.nix is not None and host.nix.answer:
        from claudebox.launch import nix_packages

        nix_packages.remember_daemon(host.instance.state, host.nix.answer)
    values = fetch(planned, environ)
    prepare.check_project(prepared)  # after everything that takes its time
    host = host.replace(held_secrets=values.secrets)
    freshness = None
    if host.login.known and not plan.holds_credential and not policy.command:
        from claudebox.launch.token_copy import Freshness

        freshness = Freshness(host.login, host.instance, environ)
    reports: list[SessionReport] = []

    def meanwhile() -> int:
        from claudebox.launch import supervise  # noqa: F401 - wanted later, and free while bwrap is at work
        from claudebox.report import changes  # noqa: F401 - wanted later, and free while bwrap is at work
        from claudebox.report.session import SessionReport

        approval.keep_approved(host.instance, audit.decided(plan), before=approved)
        reports.append(SessionReport(plan, policy, host, settings.one("receipt").value))
        return reports[0].record.descriptor

    terminal = open_terminal(pty=not plan.detached, filtered=plan.policy.filter_terminal)
    key = claude_code.key_tail(plan.variables)
    try:
        return launch(Launch(planned, prepared, values, terminal, key, freshness, meanwhile, begun), reports)
    except start.Interrupted as error:
        return error.status


def fetch(planned: Planned, environ: dict[str, str], obtain: Obtain | None = None) -> Values:
    """Run and read what the user agreed to: values of secrets (by `obtain`), the token for git, packages."""
    policy, host, plan = planned.policy, planned.host, planned.plan
    fetched = (*(row.fetched for row in plan.variables), *(row.fetched for row in plan.mounts))
    wanted = {row.key for row in fetched if row is not None and row.key != "entrance"}  # the broker's, at its start
    if not wanted:
        return Values()
    from claudebox.facts import programs
    from claudebox.launch import secret_values
    from claudebox.plan.model import GIT_TOKEN, PACKAGES, placeholder_key

    path = programs.search_path(environ, host.workdir.real)
    if obtain is None:
        obtain = secret_values.source_reader(environ, lambda name: programs.find_tool(name, path), home=host.home)
    held = secret_values.hold(plan.secrets, obtain)
    if held:
        from claudebox.plan import environment

        environment.check_withheld(((row.value, row.origin) for row in held), plan.variables)
    texts = {placeholder_key(secret.env): secret.placeholder for secret in held}
    if GIT_TOKEN in wanted and policy.credential is not None:
        texts[GIT_TOKEN] = secret_values.git_token(policy.credential, obtain)
    if PACKAGES in wanted and host.nix is not None and host.nix.packages is not None:
        from claudebox.launch import nix_packages

        found = nix_packages.resolve(policy, host.nix, host.nix.packages, environ, host.instance.state)
        texts[PACKAGES] = "".join(f"{directory}:" for directory in found)
    return Values(texts, held)


class Launch(Value):
    """Everything that a sandbox is started with."""

    planned: Planned
    prepared: Prepared
    values: Values
    terminal: Terminal
    key: str = ""  # the end of an API key that the client inside is to accept without asking
    freshness: Freshness | None = None
    meanwhile: Callable[[], int] | None = None
    begun: Callable[[], None] | None = None


def launch(given: Launch, reports: Sequence[SessionReport] = ()) -> int:
    """Start the sandbox and wait for its end; then leave everything that was entered, each step by itself.

    Return the status of the payload; raise what kept it from running. `reports` is filled meanwhile.
    """
    from claudebox.ending import Steps
    from claudebox.launch import start

    plan, terminal, entered = given.planned.plan, given.terminal, _Entered()
    ending = Steps()
    step = ending.step
    sandbox, status, problem = None, _KILLED, None
    complaints: list[str] = []
    try:
        sandbox = entered.start(given)
        status = entered.stay(given, sandbox, complaints.append)
    except BaseException as error:  # noqa: BLE001 - whatever it was, everything that was entered is left
        problem = error
    if sandbox is not None and problem is not None:
        step("staying beside the sandbox", lambda: _raise(problem))
        step("the sandbox", lambda: start.end(sandbox))
    losses = step("the terminal", terminal.restore) or []
    step("the stubs in the project", entered.leave_stubs)
    notes = [*complaints, *(step("the storage of the sandbox", entered.leave_storage) or ())]
    step("the locks of git", entered.leave_git)
    notes += step("what the host replaced meanwhile", entered.leave_guard) or ()
    if sandbox is None:
        for report in reports:
            step("the session log", lambda: report.give_up(getattr(problem, "status", FAILED)))  # noqa: B023
        raise problem if problem is not None else AssertionError
    for report in reports:
        step("disarming repositories", report.disarm)
    for sidecar in sandbox.sidecars:
        notes += step(_TITLES.get(type(sidecar).__name__, "a process beside the sandbox"), sidecar.finish) or ()
    adopted, more = step("a repository that was made inside", lambda: _adopt(plan)) or ([], [])
    notes += more
    moved = (*(row for sidecar in sandbox.sidecars for row in getattr(sidecar, "moved", ())), *adopted)
    step("what the sandbox left running", start.reap_orphans)
    for loss in losses:
        step("a warning", lambda: console.warn(loss))  # noqa: B023
        status = status or FAILED
    notes += [f"git: {', '.join(moved)}"] if moved and not reports else []
    for note in notes:
        step("a note", lambda: console.note(note))  # noqa: B023
    for report in reports:
        report.moved = moved
        step("the report", lambda: report.conclude(status, ending))  # noqa: B023
        status = step("the note of this session", lambda: report.settle(status, ending)) or status  # noqa: B023
    return status


class _Entered:
    """What a launch has entered, and has to leave."""

    def __init__(self) -> None:
        self._stubs: Session | None = None
        self._storage: Storage | None = None
        self._guard: HostGuard | None = None
        self._in_use: list[int] = []

    def start(self, given: Launch) -> Sandbox:
        """Make what the sandbox needs and start it."""
        from claudebox import state
        from claudebox.launch import git_lock, prepare, start
        from claudebox.launch.storage import Storage
        from claudebox.launch.stubs import Session

        prepared, values, instance = given.prepared, given.values, given.planned.host.instance
        plan, broker = given.planned.plan, prepared.plan.broker
        if values.secrets and broker is not None:
            from claudebox.plan import secrets

            prepared = prepared.replace(plan=prepared.plan.replace(broker=secrets.with_values(broker, values.secrets)))
        state.create(instance, workdir=plan.workdir, key=given.key, mountpoints=plan.mountpoints, kept=plan.kept)
        if given.freshness is not None:
            given.freshness.bring()
        self._storage = Storage(plan, instance.directory)
        stubs = self._stubs = Session(instance)

        def set_up() -> dict[str, Identity]:
            self._in_use += git_lock.set_up(plan)
            return stubs.make(plan)

        complete = prepare.complete(prepared, values.texts)
        begin, place = (lambda: stubs.begin(plan)), instance.directory
        return start.start(complete, begin, set_up, given.terminal, place, meanwhile=given.meanwhile)

    def stay(self, given: Launch, sandbox: Sandbox, complain: Callable[[str], None]) -> int:
        """Stay beside the sandbox until it ends, and return the status of the payload."""
        if given.begun is not None:
            given.begun()
        from claudebox.launch import supervise
        from claudebox.launch.host_guard import HostGuard

        plan, place = given.prepared.plan, given.planned.host.instance.directory
        if self._stubs is not None:
            self._guard = HostGuard(plan, sandbox.init, self._stubs, place)
        chores = (self._guard, given.freshness, given.begun, *sandbox.sidecars)
        return supervise.wait(sandbox, given.terminal, chores, complain)

    def leave_guard(self) -> tuple[str, ...]:
        """Say what could not be protected again."""
        return self._guard.finish() if self._guard is not None else ()

    def leave_stubs(self) -> None:
        """Take the stubs away."""
        if self._stubs is not None:
            self._stubs.end()

    def leave_storage(self) -> list[str]:
        """Let go of caches and scratch."""
        return self._storage.end() if self._storage is not None else []

    def leave_git(self) -> None:
        """Let others use the git directories."""
        from claudebox.launch import git_lock

        git_lock.release(self._in_use)


def _adopt(plan: Plan) -> tuple[list[str], list[str]]:
    """Take over a repository that was made inside, where there was none."""
    if not any(not own.real and os.path.lexists(f"{own.own}/HEAD") for own in plan.git):
        return [], []
    from claudebox.launch import git_session

    return git_session.adopt(plan)


def _raise(problem: BaseException) -> None:
    raise problem
