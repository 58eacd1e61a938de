"""`--new NAME`: an agent with a copy of the repository of its own. The project itself is not even mounted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claudebox import console, session
from claudebox.commands.agents import clone, large_files
from claudebox.commands.agents.copies import Copies, Copy
from claudebox.commands.agents.file_copy import TreeCopier
from claudebox.commands.git_import import find_tools
from claudebox.config import agent_parsers as parsers
from claudebox.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.facts import git, programs
from claudebox.facts.host import current_directory, current_home
from claudebox.report import tree

if TYPE_CHECKING:
    from claudebox.config.settings import Settings
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit
    from claudebox.session import Planned

_USUAL, _NOTHING = ("node_modules", ".venv"), "none"  # what comes along unless the user chooses
_NO_NETWORK = {"network": "none", "domains": (), "host_ports": (), "published": (), "secrets": (), "packages": ()}


def run(flags: Settings, environ: dict[str, str], argv: list[str]) -> int:
    """Make the copy, unless it is there, and start the session in it."""
    name = flags.one("new").value
    copies = Copies(current_home(environ))
    source = enter_project(environ)
    copy = copies.place(name, source)
    made = not os.path.lexists(copy.path)
    if made:
        copy = _make(copies, copy, flags, environ)
    elif flags.all("from"):
        raise ClaudeboxError(f"`{name}` is there already", hint="go on in it without `--from`, or `--drop` it first")
    else:
        copies.require_idle(copy)
        console.note(f"goes on in the copy `{name}`")
    os.chdir(copy.path)
    environ = {**environ, "PWD": copy.path}
    try:
        if flags.on("detach"):
            from claudebox.commands.agents import detach

            status = detach.run(flags, environ, argv, name=name, project=source)
        else:
            status = session.run(flags, environ)
    except ClaudeboxError:
        if made:
            copies.remove(copy)
        raise
    if made and status == DECLINED:
        copies.remove(copy)
    elif not flags.on("detach"):
        console.note(f"`claudebox --finish {name}` brings the work into the project, `--drop {name}` throws it away")
    return status


def enter_project(environ: dict[str, str]) -> str:
    """Change to where the project begins, and return it; in a copy, that is the project that it is a copy of."""
    home, workdir = current_home(environ), current_directory()
    for copy in Copies(home).all():
        if f"{workdir}/".startswith(f"{copy.path}/"):
            if not os.path.isdir(copy.source):
                raise ClaudeboxError(f"the project `{copy.source}` of this copy is gone")
            workdir = copy.source
    repository = git.find_repository(workdir, os.getuid(), home, environ)
    root = repository.root if repository is not None and repository.directory is not None else workdir
    os.chdir(root)
    return root


def plan_project(flags: Settings, environ: dict[str, str]) -> Planned:
    """Return the plan of a simple command in the working directory, for what it says of git; nothing is run."""
    settings, _ = session.read_settings(flags, environ)
    policy = session.decide_policy(settings, environ).replace(program="exec", words=("true",), nix="off", **_NO_NETWORK)
    return session.make_plan(settings, policy, environ, asking=False, searching=False)


def _make(copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> Copy:
    planned = plan_project(flags, environ)
    repository = planned.host.repository
    if repository is not None and repository.problem:
        raise ClaudeboxError(f"this repository cannot be copied: {repository.problem}")
    own = next((row for row in planned.plan.git if row.real and not row.place), None)
    start = parsers.parse_branch(flags.one("from")) if flags.all("from") else ""
    if own is None and start:
        raise ClaudeboxError("`--from` needs a repository, and there is none here")
    asked = [parsers.parse_copied_path(given) for given in planned.settings.all("copy")]
    most = parsers.parse_size(planned.settings.one("copy_size")) if planned.settings.all("copy_size") else 2 << 30
    copies.create(copy)
    try:
        if own is not None:
            tools = find_tools(programs.search_path(environ, copy.source))
            base, whole = clone.make_clone(own, tools, copy.path, copy.name, start, most)
            copy = Copy(copy.name, copy.path, copy.source, base)
            _fill_submodules(copy, planned, tools, most)
            if not whole:
                console.note(large_files.TOO_MANY)
        copier = TreeCopier(copy.source, copy.path, most, frozenset((".git",)))
        try:
            if own is None:
                copier.copy_all()
            for path in asked or (_USUAL if own is not None else ()):
                _bring(copier, copy, path, asked=bool(asked))
        finally:
            copier.close()
        copies.save(copy)
    except OSError as error:
        copies.remove(copy)
        raise ClaudeboxError(
            f"the copy could not be made in `{copy.path}`: {error.strerror}", hint="free disk space", status=FAILED
        ) from None
    except BaseException:
        copies.remove(copy)
        raise
    return copy


def _bring(copier: TreeCopier, copy: Copy, path: str, *, asked: bool) -> None:
    """Copy what git ignores; what nobody asked for is left out if it is too large."""
    if path == _NOTHING or (not asked and os.path.lexists(f"{copy.path}/{path}")):
        return
    try:
        copier.copy(path)
    except ClaudeboxError as error:
        if asked:
            raise
        tree.remove(copy.path, path)
        console.note(f"`{path}` did not come along: {error.message}")


def list_submodules(planned: Planned) -> list[OwnGit]:
    """Return the submodules of the repository that is worked in, each before those that lie in it."""
    own = next((row.real for row in planned.plan.git if row.real and not row.place), "")
    return [row for row in planned.plan.git if row.place.startswith("modules/") and row.real.startswith(f"{own}/")]


def _fill_submodules(copy: Copy, planned: Planned, tools: Tools, most: int) -> None:
    if rows := list_submodules(planned):
        from claudebox.commands.agents import submodules

        for note in submodules.fill(copy, rows, tools, most):
            console.note(note)
