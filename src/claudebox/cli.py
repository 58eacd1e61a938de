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

    from claudebox.settings.files import SettingsReader
    from claudebox.settings.layers import Settings
    from claudebox.settings.verbs import Verb


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
    reader, problem = _read_own_agents(environ)
    flags = _parse_arguments(argv, problem).replace(reader=reader)
    if flags.verb == "help" or flags.on("help") or flags.on("version"):
        from claudebox.commands import usage

        return usage.run(flags, environ)
    verb = _find_verb(flags)
    if problem and (verb is None or verb.launches or verb.strict):
        raise problem
    if flags.all("env_file"):
        from claudebox.settings import files

        flags = files.read_env_files(flags)
    if flags.client and not os.isatty(0):  # an editor, where nobody could answer
        from claudebox.settings import layers

        flags = flags.replace(given={"yes": (layers.SettingValue("yes", "the editor"),)})
    _examine_killed(verb, flags, environ)
    flags = _enter_project(verb, flags, environ)
    module = verb.module if verb else flags.action.runs if flags.action else "session"
    if module != "session":
        from importlib import import_module

        status: int = import_module(f"claudebox.{module}").run(flags, environ)
        return status
    if flags.on("detach"):
        from claudebox.many import detach

        return detach.run(flags, environ)
    from claudebox import session

    return session.run(flags, environ)


def _read_own_agents(environ: dict[str, str]) -> tuple[SettingsReader | None, ClaudeboxError | None]:
    """Make the agents of the user known, which change what a first word means; return the reader, and what is wrong."""
    from claudebox.host import machine
    from claudebox.settings import files

    try:
        reader = files.SettingsReader(machine.current_home(environ))
        reader.add_agents()
    except ClaudeboxError as error:
        return None, error
    return reader, None


def _parse_arguments(argv: list[str], problem: ClaudeboxError | None) -> Settings:
    from claudebox.settings import layers

    try:
        return layers.parse_arguments(argv)
    except ClaudeboxError as error:  # its words may be those of an agent that could not be read
        raise problem or error from None


def _find_verb(flags: Settings) -> Verb | None:
    if not flags.verb:
        return None
    from claudebox.settings import verbs

    return verbs.find_verb(flags.verb)


def _examine_killed(verb: Verb | None, flags: Settings, environ: dict[str, str]) -> None:
    """Disarm what killed sessions left, whatever was asked for: until then git of the host obeys it."""
    home = environ.get("HOME", "")
    if flags.on("dry_run") or flags.on("explain") or (verb and verb.examines == "self"):
        return
    if not home.startswith("/") or not list_names(f"{home}/.claudebox/unlooked"):
        return
    from claudebox.base import state as base_state
    from claudebox.host import machine
    from claudebox.report import leftovers

    workdir = machine.current_directory()
    waits = verb is not None and (verb.examines == "fully" or not verb.in_project)
    instance = base_state.locate(machine.current_home(environ), workdir)
    leftovers.catch_up(instance, (workdir,), patience=float("inf") if waits else leftovers.PATIENCE)


def _enter_project(verb: Verb | None, flags: Settings, environ: dict[str, str]) -> Settings:
    """Go to the top of the repository if all of it is to be the project; keep the files that were read for this."""
    if verb and not verb.in_project:
        return flags
    from claudebox.git import facts as git_facts
    from claudebox.host import machine
    from claudebox.settings import files, layers

    start = machine.current_directory()
    reader = flags.reader or files.SettingsReader(machine.current_home(environ))
    try:
        own = files.layers(flags, environ, reader)
    except ClaudeboxError as error:
        if verb is None or verb.launches or verb.strict:
            raise
        console.warn(f"{error.message}; going on without your settings")
        own = reader.user_layers = ()
    flags = flags.replace(reader=reader)
    if verb is None or verb.launches:
        flags = layers.choose_agent(flags, environ, own)
    project = layers.look_up("project", flags, environ, own)
    if not project or project[-1].value == "directory" or (root := git_facts.find_root(start)) in ("", start):
        return flags
    os.chdir(root)
    return flags.replace(start=start)
