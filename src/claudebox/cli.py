"""The edge: split argv, dispatch, map errors to exit statuses. Decides nothing."""

from __future__ import annotations

import gc
import os
import sys

from claudebox.base import console
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError, describe_failure
from claudebox.base.files import keep_owner_rights, list_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from claudebox.settings.layers import Layer, Settings


_ANYWHERE = ("instances", "profiles", "trust", "init", "schema", "demo")  # what is asked of no project


def main() -> int:
    """Run claudebox with the arguments of this process and return the exit status."""
    _ensure_standard_descriptors()
    keep_owner_rights()
    return guarded(lambda: _run(sys.argv[1:], dict(os.environ)))


def guarded(action: Callable[[], int]) -> int:
    """Do what returns an exit status; a failure becomes a line and a status."""
    try:
        return action()
    except ClaudeboxError as error:
        console.report(error)
        return error.status
    except KeyboardInterrupt:
        return DECLINED
    except (OSError, MemoryError) as error:
        console.report(describe_failure(error))
        return FAILED


def entry() -> NoReturn:
    """Start from a command that runs this interpreter isolated (`-IS`): every installation does (HOUSE-02)."""
    gc.disable()  # installed commands have done so before they loaded this
    os._exit(main())  # everything is written, and taking the interpreter apart would cost 3 ms


def _ensure_standard_descriptors() -> None:
    """Fill closed standard descriptors, or the next file that we open would become one of them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open("/dev/null", os.O_RDWR), True)  # noqa: FBT003 - what runs inside needs it too


def _run(argv: list[str], environ: dict[str, str]) -> int:
    from claudebox.settings import layers

    flags = _read_flags(layers.parse_arguments(argv))
    if flags.on("help"):
        from claudebox.commands import usage

        console.write(usage.help_text(), descriptor=1)
        return 0
    if flags.on("version"):
        from claudebox import __version__

        console.write([f"claudebox {__version__}"], descriptor=1)
        return 0
    _look_at_killed(flags, environ)
    flags = _enter_project(flags, environ)
    if flags.on("check"):
        from claudebox.commands import check

        return check.run(flags, environ)
    if flags.on("verify"):
        from claudebox.commands.verify import verify as verify_verify

        return verify_verify.run(flags, environ)
    if flags.on("log") or flags.on("usage") or flags.on("now"):
        from claudebox.commands import allow_domain
        from claudebox.commands import log as commands_log

        command = (
            allow_domain.run
            if flags.on("now")
            else commands_log.show_spending
            if flags.on("usage")
            else commands_log.run
        )
        return command(environ, flags)
    if flags.on("import"):
        from claudebox.commands import git_import

        return git_import.run(environ)
    if flags.on("changes") or flags.on("undo"):
        from claudebox.commands import undo

        return undo.run(flags, environ)
    if flags.on("instances") or flags.on("show"):
        from claudebox.commands import instances
        from claudebox.commands import show as commands_show

        return instances.run(environ, flags) if flags.on("instances") else commands_show.run(environ, flags.words)
    for name in ("profiles", "trust", "init", "schema"):
        if flags.on(name):
            from claudebox.commands import profiles

            return profiles.run(name, flags, environ)
    if flags.on("demo"):
        from claudebox.commands.demo import run as demo_run

        return demo_run.run(
            environ,
            flags.words,
            interactive=os.isatty(0) and os.isatty(1) and not flags.on("yes"),
            network=flags.one("network").value if flags.all("network") else "",
        )
    return _run_session(flags, environ, argv)


def _look_at_killed(flags: Settings, environ: dict[str, str]) -> None:
    """Examine what killed sessions have left, whatever was asked for: until then git of the host obeys it."""
    home = environ.get("HOME", "")
    if any(flags.on(key) for key in ("dry_run", "explain", "changes")):  # `--changes` does so itself
        return
    if not home.startswith("/") or not list_names(f"{home}/.claudebox/unlooked"):
        return
    from claudebox.base import state as base_state
    from claudebox.host import machine
    from claudebox.report import leftovers

    workdir = machine.current_directory()
    waits = any(flags.on(key) for key in _ANYWHERE) or flags.on("import") or flags.on("undo")
    instance = base_state.locate(machine.current_home(environ), workdir)
    leftovers.catch_up(instance, (workdir,), patience=float("inf") if waits else leftovers.PATIENCE)


def _read_flags(flags: Settings) -> Settings:
    """Return the flags; nobody could answer a question at an editor."""
    if flags.client and not os.isatty(0):
        from claudebox.settings.layers import Given

        return flags.replace(given={"yes": (Given("yes", "the editor"),)})
    return flags


def _enter_project(flags: Settings, environ: dict[str, str]) -> Settings:
    """Go to the top of the repository where all of it is to be the project; the flags then know where we were."""
    if any(flags.on(key) for key in _ANYWHERE):
        return flags
    from claudebox.git import facts as git_facts
    from claudebox.host import machine
    from claudebox.settings import layers

    home, start = machine.current_home(environ), machine.current_directory()
    own: tuple[Layer, ...] = ()
    if layers.look_up("profile", flags, environ) or os.path.lexists(f"{home}/.claudebox/config.toml"):
        from claudebox.settings import files as settings_files

        reader = settings_files.SettingsReader(home)
        flags = flags.replace(reader=reader)
        try:
            own = settings_files.layers(flags, environ, reader)
        except ClaudeboxError:
            if not (flags.on("changes") or flags.on("undo")):  # which go on without
                raise
    project = layers.look_up("project", flags, environ, own)
    if not project or project[-1].value == "directory" or (root := git_facts.find_root(start)) in ("", start):
        return flags
    os.chdir(root)
    return flags.replace(start=start)


def _run_session(flags: Settings, environ: dict[str, str], argv: list[str]) -> int:
    """Start a session, or see to those that run; or do tasks."""
    if flags.all("task"):
        from claudebox.many.tasks import run as tasks_run

        return tasks_run.run(flags, environ)
    if flags.all("tasks") or flags.all("results"):
        from claudebox.many.tasks import batch

        return batch.run(flags, environ)
    for name in ("sessions", "attach", "stop"):
        if flags.on(name):
            from claudebox.many import sessions

            return sessions.run(name, flags, environ)
    for name in ("finish", "drop"):
        if flags.on(name):
            from claudebox.many import finish

            return finish.run(name, flags, environ)
    if flags.all("new"):
        from claudebox.many import new

        return new.run(flags, environ, argv)
    if flags.on("detach"):
        from claudebox.many import detach

        return detach.run(flags, environ, argv)
    from claudebox import session

    return session.run(flags, environ)
