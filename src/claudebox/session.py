"""A session from beginning to end: settings → host → plan → (show | ask → run → report).

A launch, `--explain`, `--dry-run`, `--check` and `--verify` share this, so what is shown, examined and started is the
same sandbox.
"""

from __future__ import annotations

import os

from claudebox.base import console
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.broker.secrets import Obtain
    from claudebox.host.records import Host
    from claudebox.many.detach import Notifier
    from claudebox.plan.records import Plan
    from claudebox.settings.files import SettingsReader
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy, SecretRequest


class Planned(Value):
    """One sandbox: the settings, what they ask for, the machine, and the plan that follows."""

    settings: Settings
    policy: Policy
    host: Host
    plan: Plan


class FetchedValues(Value):
    """What was fetched once the user had agreed."""

    texts: dict[str, str] = {}  # noqa: RUF012 - values never change; by the keys of `Deferred`
    secrets: tuple[SecretRequest, ...] = ()  # for the broker, and for the search for leaks at the end


def run(flags: Settings, environ: dict[str, str], notifier: Notifier | None = None, *, state: str = "") -> int:
    """Show or run the session that these flags ask for; return the exit status.

    A detached session was confirmed before it started, and has a `notifier`. `state` replaces ~/.claudebox.
    """
    showing = flags.on("dry_run") or flags.on("explain")
    settings, reader = read_settings(flags, environ, approve=None if showing else _approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ, state=state)
    if showing:
        from claudebox.plan import explain

        console.write(explain.render(planned.plan, settings), descriptor=1)
        return 0
    from claudebox.run import prepare, start
    from claudebox.run.launch import Launch
    from claudebox.run.terminal import open_terminal

    policy, host, plan = planned.policy, planned.host, planned.plan
    if notifier is None and not _ask(planned, reader):
        return DECLINED
    values = fetch(planned, environ)
    prepare.check_project(plan)  # asking and fetching may have taken long
    login_copy = None
    if host.agent.login.known and not plan.holds_credential:
        from claudebox.agent.login import LoginCopy

        login_copy = LoginCopy(policy.agent.name, host.agent.login, host.instance, environ)
    hint = policy.agent.extras.resume_hint
    terminal = open_terminal(pty=not plan.detached, filtered=policy.filter_terminal, hint=hint)
    receipt = settings.one("receipt").value
    try:
        return Launch(planned, values, terminal, receipt, login_copy=login_copy, notifier=notifier).run()
    except start.Interrupted as error:
        return error.status


def agree(flags: Settings, environ: dict[str, str]) -> Planned | None:
    """Show a session that another process will run, and ask; return None if the user declined."""
    settings, reader = read_settings(flags, environ, approve=_approve)
    planned = make_plan(settings, decide_policy(settings, environ), environ)
    return planned if _ask(planned, reader) else None


def _ask(planned: Planned, reader: SettingsReader) -> bool:
    """Show what will run; ask unless `confirm` makes that unnecessary (UX-02). Return whether to start."""
    from claudebox.base import state as base_state
    from claudebox.plan import audit

    settings, plan, instance = planned.settings, planned.plan, planned.host.instance
    confirm, before = settings.one("confirm").value, audit.find_nearest(plan, base_state.read_approved(instance))
    settled = confirm != "always" and audit.is_approved(plan, before)
    asking = not (settings.on("yes") or settled or confirm == "never")
    told = base_state.read_told(instance.directory) | base_state.read_told(instance.state)
    notes, directories = audit.untold(plan, told)
    if directories:
        from claudebox.host import programs

        inside, chosen = audit.path_inside(plan), plan.policy.hides_path
        notes += programs.describe_absent(directories, inside, planned.host.home, chosen=chosen)
    if plan.policy.program == "exec" and (said := dict(plan.absent).get(plan.policy.words[0])) and said not in notes:
        notes.append(said)  # each time: it is what the user is about to miss
    chosen = bool(settings.all("profile")) or plan.policy.network_origin != "default"
    quiet = settings.on("quiet")
    shown = audit.lines(plan, before, asking=asking, quiet=quiet, settled=settled, notes=notes, chosen=chosen)
    console.write(shown)
    if asking and not console.confirm("Proceed? [Y/n] ", default=True):
        return False
    if settings.one("project_secrets").origin == "--project-secrets" and not settings.on("yes"):
        _keep_answer(planned, reader)
    reader.save()
    return True


def _keep_answer(planned: Planned, reader: SettingsReader) -> None:
    """Ask whether `--project-secrets show` is meant for later sessions, too; `mask` takes such an answer back."""
    from claudebox.settings import trust

    state, project, plan = planned.host.instance.state, planned.plan.workdir, planned.plan
    if plan.policy.masks_secrets:
        if trust.hide_secrets(state, project):
            console.note("secrets in this project are masked again, in later sessions too")
        return
    settled = any("project_secrets" in layer.given for layer in reader.user_layers or ())  # an answer would not count
    if settled or not plan.exposed or trust.shows_secrets(state, project):
        return
    try:
        if console.confirm("Show them in later sessions of this project, too? [y/N] ", default=False):
            trust.show_secrets(state, project)
    except ClaudeboxError:  # no terminal to ask on
        return


def read_settings(
    flags: Settings, environ: dict[str, str], *, approve: Callable[[Iterable[str]], bool] | None = None
) -> tuple[Settings, SettingsReader]:
    """Return the settings of a launch here, and the reader of the settings files."""
    from claudebox.host import machine
    from claudebox.settings import files, layers
    from claudebox.tables.environment import GATE

    if os.path.lexists(GATE):
        raise ClaudeboxError("this is a sandbox of claudebox: another cannot start in it", hint="start it outside")
    home = machine.current_home(environ)
    reader = flags.reader or files.SettingsReader(home)
    chosen = reader.present() or any(layers.look_up(key, flags, environ) for key in ("profile", "network"))
    if approve is not None and not chosen and not flags.on("yes"):
        from claudebox.commands import first_launch

        if first_launch.ask_settings(home, environ):
            reader = files.SettingsReader(home)
    flags = layers.choose_agent(flags, environ, files.layers(flags, environ, reader))
    return files.apply(flags, environ, reader, workdir=machine.current_directory(), approve=approve), reader


def _approve(request: Iterable[str]) -> bool:
    """Show what a project file asks for and let the user decide."""
    console.write(request)
    try:
        return console.confirm("Approve exactly this, for this project? [y/N] ", default=False)
    except ClaudeboxError:  # no terminal to ask on
        return False


def decide_policy(settings: Settings, environ: dict[str, str]) -> Policy:
    from claudebox.host import machine
    from claudebox.settings import layers

    home, workdir = machine.current_home(environ), machine.current_directory()
    return layers.decide_policy(settings, home=home, workdir=workdir)


def make_plan(
    settings: Settings,
    policy: Policy,
    environ: dict[str, str],
    *,
    searching: bool = True,
    state: str = "",
    pretend: Callable[[Host], Host] | None = None,
) -> Planned:
    """Examine the machine and decide everything about the sandbox, without running or writing anything of the user's.

    Without `searching` the project is not searched for secrets and sockets, for commands that start no sandbox in it;
    `pretend` changes facts about the machine, for `--check` and `--verify`.
    """
    from claudebox.host import gather
    from claudebox.plan import compose

    host = gather.read_host(policy, environ, searching=searching, state=state)
    if pretend is not None:
        host = pretend(host)
    return Planned(settings, policy, host, compose.make_plan(policy, host))


def fetch(planned: Planned, environ: dict[str, str], obtain: Obtain | None = None) -> FetchedValues:
    """Fetch what the user agreed to: values of secrets (by `obtain`), the token for git, packages."""
    from claudebox.plan.records import ENTRANCE, GIT_TOKEN, MODEL_PLACEHOLDER, PACKAGES, placeholder_key

    policy, host, plan = planned.policy, planned.host, planned.plan
    fetched = (*(row.deferred for row in plan.variables), *(row.deferred for row in plan.mounts))
    wanted = {row.key for row in fetched if row is not None}
    if wanted <= {ENTRANCE, MODEL_PLACEHOLDER}:  # the broker fills it in once it listens
        return FetchedValues()
    from claudebox.broker import secrets as broker_secrets
    from claudebox.host import programs

    path = programs.search_path(environ, host.workdir.real)
    if obtain is None:
        obtain = broker_secrets.source_reader(environ, lambda name: programs.find_tool(name, path), home=host.home)
    held = broker_secrets.hold(plan.secrets, obtain)
    if held:
        from claudebox.plan import environment

        environment.check_withheld(((row.value, row.origin) for row in held), plan.variables)
    texts = {placeholder_key(secret.env): secret.placeholder for secret in held}
    if GIT_TOKEN in wanted and policy.credential is not None:
        texts[GIT_TOKEN] = broker_secrets.git_token(policy.credential, obtain)
    if PACKAGES in wanted and host.nix is not None and host.nix.packages is not None:
        from claudebox.nix import packages

        found = packages.resolve(policy, host.nix, host.nix.packages, environ, host.instance.state)
        texts[PACKAGES] = "".join(f"{directory}:" for directory in found)
    return FetchedValues(texts, held)
