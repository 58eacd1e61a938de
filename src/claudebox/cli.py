"""The edge: split argv, dispatch, map errors to exit statuses. Decides nothing."""

from __future__ import annotations

import gc
import os
import sys

from claudebox import console
from claudebox.errors import DECLINED, FAILED, ClaudeboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from claudebox.config.model import Policy
    from claudebox.config.settings import Settings
    from claudebox.facts.host import Host
    from claudebox.launch.terminal import Terminal
    from claudebox.plan.model import Plan
    from claudebox.report.session import Aftermath


def main() -> int:
    """Run claudebox with the arguments of this process and return the exit status."""
    _ensure_standard_descriptors()
    try:
        return _run(sys.argv[1:], dict(os.environ))
    except ClaudeboxError as error:
        console.report(error)
        return error.status
    except KeyboardInterrupt:
        return DECLINED
    except OSError as error:
        where = f" `{os.fsdecode(error.filename)}`" if error.filename else ""
        console.report(ClaudeboxError(f"{error.strerror or error}{where}"))
        return FAILED


def entry() -> NoReturn:
    """Start from a command that runs this interpreter isolated (`-IS`): every installation does (HOUSE-02)."""
    gc.disable()  # a launch makes no garbage worth collecting, and looking for it costs half a millisecond
    os._exit(main())  # everything is written, and taking the interpreter apart would cost 3 ms


def _ensure_standard_descriptors() -> None:
    """Fill closed standard descriptors, or the next file that we open would become one of them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open("/dev/null", os.O_RDWR), True)  # noqa: FBT003 - what runs inside needs it too


def _run(argv: list[str], environ: dict[str, str]) -> int:
    from claudebox.config import settings as table  # noqa: PLC0415 - everything is imported when it is needed

    settings = table.read(argv, environ)
    if settings.on("help"):
        from claudebox.commands import usage  # noqa: PLC0415

        console.write(usage.help_text(), descriptor=1)
        return 0
    if settings.on("version"):
        from claudebox import __version__  # noqa: PLC0415

        console.write([f"claudebox {__version__}"], descriptor=1)
        return 0
    if settings.on("check"):
        from claudebox.commands import check  # noqa: PLC0415

        return check.run(environ, as_json=settings.on("json"))
    if settings.on("verify"):
        from claudebox.commands.verify import verify  # noqa: PLC0415

        return verify.run(environ, settings)
    if settings.on("log"):
        from claudebox.commands import log  # noqa: PLC0415

        return log.run(environ, settings)
    if settings.on("instances"):
        from claudebox.commands import instances  # noqa: PLC0415

        return instances.run(environ, settings)
    for name in ("profiles", "trust", "init", "schema"):
        if settings.on(name):
            from claudebox.commands import profiles  # noqa: PLC0415

            return profiles.run(name, settings, environ)
    if settings.on("demo"):
        from claudebox.demo import run  # noqa: PLC0415

        tier = settings.one("network")
        return run.run(
            environ,
            settings.words,
            interactive=os.isatty(0) and os.isatty(1) and not settings.on("yes"),
            network="" if tier.origin == "default" else tier.value,
        )
    return _launch(settings, argv, environ)


def _launch(settings: Settings, argv: list[str], environ: dict[str, str]) -> int:
    from claudebox.config import policy  # noqa: PLC0415
    from claudebox.facts import host  # noqa: PLC0415
    from claudebox.plan import compose as planning  # noqa: PLC0415

    home = host.current_home(environ)
    if (
        settings.all("profile")
        or os.path.lexists(f"{home}/.claudebox/config.toml")
        or os.path.lexists(".claudebox.toml")
    ):
        from claudebox.config import files  # noqa: PLC0415
        from claudebox.config import settings as table  # noqa: PLC0415

        settings = files.apply(table.parse(argv), environ, home=home, workdir=host.current_directory())
    wishes = policy.decide(settings, home=home, workdir=host.current_directory())
    facts = host.read(wishes, environ)
    plan = planning.make(wishes, facts)
    if settings.on("dry_run") or settings.on("explain"):
        return _show(plan, settings)
    return _play(plan, wishes, facts, settings, environ)


def _play(plan: Plan, wishes: Policy, facts: Host, settings: Settings, environ: dict[str, str]) -> int:
    """Show the plan, ask, start it, and stay until its end."""
    from claudebox import state  # noqa: PLC0415
    from claudebox.facts.login import Freshness  # noqa: PLC0415
    from claudebox.launch import start  # noqa: PLC0415
    from claudebox.launch.stubs import Session  # noqa: PLC0415
    from claudebox.plan import claude_code, explain  # noqa: PLC0415

    prepared = start.prepare(plan)
    console.write(explain.audit(plan))
    if not settings.on("yes") and not console.confirm("Proceed? [Y/n] ", default=True):
        return DECLINED
    start.check_project(prepared)
    key = claude_code.key_tail(plan.variables)
    state.create(facts.instance, workdir=plan.workdir, key=key, mountpoints=plan.mountpoints, kept=plan.kept)
    chore = None
    if facts.login.known and not claude_code.has_credential(wishes, facts) and not wishes.command:
        freshness = Freshness(facts.login, facts.instance, environ)
        freshness.bring()
        chore = freshness.look
    terminal, prelude = _terminal(private=plan.private)
    remembered: list[Aftermath] = []

    def meanwhile() -> int:
        from claudebox.launch import supervise  # noqa: F401, PLC0415 - wanted later, and free while bwrap is at work
        from claudebox.report import changes  # noqa: F401, PLC0415 - wanted later, and free while bwrap is at work
        from claudebox.report.session import Aftermath  # noqa: PLC0415

        remembered.append(Aftermath(plan, wishes, facts))
        return remembered[0].record.descriptor

    session = Session(facts.instance)
    try:
        standing = session.begin(plan.stubs)
        sandbox = start.start(prepared, standing, prelude, meanwhile=meanwhile)
        from claudebox.launch import supervise  # noqa: PLC0415

        status = supervise.wait(sandbox, terminal, detached=plan.detached or plan.private, chore=chore)
    except start.Interrupted as interruption:
        for aftermath in remembered:
            aftermath.record.write("end", {"status": 128 + interruption.number})
        return 128 + interruption.number
    except ClaudeboxError as error:
        for aftermath in remembered:
            aftermath.record.write("end", {"status": error.status})
        raise
    finally:
        session.end()
    terminal.restore(abnormal=status > 128)
    for companion in sandbox.companions:
        for note in companion.finish():
            console.note(note)
    (aftermath,) = remembered
    aftermath.conclude(status, settings.one("receipt").value)
    if wishes.program == "client" and not wishes.command:
        from claudebox.report import resume_hint  # noqa: PLC0415

        resume_hint.say(facts.instance, aftermath.started, login_known=facts.login.known)
    return status


def _show(plan: Plan, settings: Settings) -> int:
    from claudebox.plan import explain  # noqa: PLC0415

    if settings.on("dry_run"):
        console.write(explain.dry_run(plan), descriptor=1)
    elif settings.on("json"):
        console.write([explain.as_json(plan, settings)], descriptor=1)
    else:
        console.write([*explain.tree(plan), *explain.origins(settings)], descriptor=1)
    return 0


def _terminal(*, private: bool) -> tuple[Terminal, Callable[[], None] | None]:
    if private:
        from claudebox.launch.pty import PrivateTerminal  # noqa: PLC0415 - only for those who want one

        proxy = PrivateTerminal()
        return proxy, proxy.prelude
    from claudebox.launch.terminal import Terminal  # noqa: PLC0415

    return Terminal(), None
