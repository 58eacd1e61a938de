"""The entry point: parse argv, dispatch, map errors to exit statuses."""

from __future__ import annotations

import gc
import os
import sys

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import keep_owner_rights, list_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from claudebox.settings.layers import Layer, Settings


_ANYWHERE = ("instances", "profiles", "trust", "init", "schema", "demo")  # verbs that concern no project
_LAUNCHES = ("exec", "shell", "dry_run", "explain", "check", "verify", "now", "task", "tasks")  # need all settings


def main() -> int:
    """Run claudebox with the arguments of this process and return the exit status."""
    _ensure_standard_descriptors()
    keep_owner_rights()
    return console.run_guarded(lambda: _run(sys.argv[1:], dict(os.environ)))


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

    flags = layers.parse_arguments(argv)
    if flags.on("help") or flags.on("version"):
        from claudebox.commands import usage

        return usage.run(flags, environ)
    if flags.client and not os.isatty(0):  # an editor, where nobody could answer
        flags = flags.replace(given={"yes": (layers.SettingValue("yes", "the editor"),)})
    _examine_killed(flags, environ)
    flags = _enter_project(flags, environ)
    module = flags.verb.runs if flags.verb else "many.tasks.batch" if flags.all("results") else "session"
    if module != "session":
        from importlib import import_module

        status: int = import_module(f"claudebox.{module}").run(flags, environ)
        return status
    if flags.all("new"):
        from claudebox.many import new

        return new.run(flags, environ, argv)
    if flags.on("detach"):
        from claudebox.many import detach

        return detach.run(flags, environ, argv)
    from claudebox import session

    return session.run(flags, environ)


def _examine_killed(flags: Settings, environ: dict[str, str]) -> None:
    """Disarm what killed sessions left, whatever was asked for: until then git of the host obeys it."""
    home = environ.get("HOME", "")
    if any(flags.on(key) for key in ("dry_run", "explain", "changes")):  # `--changes` does so itself
        return
    if not home.startswith("/") or not list_names(f"{home}/.claudebox/unlooked"):
        return
    from claudebox.base import state as base_state
    from claudebox.host import machine
    from claudebox.report import leftovers

    workdir = machine.current_directory()
    waits = any(flags.on(key) for key in (*_ANYWHERE, "import", "undo"))
    instance = base_state.locate(machine.current_home(environ), workdir)
    leftovers.catch_up(instance, (workdir,), patience=float("inf") if waits else leftovers.PATIENCE)


def _enter_project(flags: Settings, environ: dict[str, str]) -> Settings:
    """Go to the top of the repository if all of it is to be the project; keep the files that were read for this."""
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
        try:
            own = settings_files.layers(flags, environ, reader)
        except ClaudeboxError as error:
            if flags.verb is None or flags.verb.key in _LAUNCHES:
                raise
            console.warn(f"{error.message}; going on without your settings")
            reader.own = ()
        flags = flags.replace(reader=reader)
    project = layers.look_up("project", flags, environ, own)
    if not project or project[-1].value == "directory" or (root := git_facts.find_root(start)) in ("", start):
        return flags
    os.chdir(root)
    return flags.replace(start=start)
