"""`claudebox new NAME`: run an agent in a worktree of its own, on a branch NAME of the user's repository."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import replace

from claudebox import session
from claudebox.base import console, trees
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.state import hand_down, locate, open_state
from claudebox.git import facts as git_facts
from claudebox.git.importer import find_tools
from claudebox.git.sandbox import GitError
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.many import worktrees
from claudebox.many.worktrees import Copies, Copy
from claudebox.settings import parsers
from claudebox.tables.paths import COPIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.sandbox import Tools
    from claudebox.plan.records import PrivateGit
    from claudebox.session import Planned
    from claudebox.settings.layers import Settings


_BROUGHT = ("node_modules", ".venv", ".env")  # unless `copy` names others
_NAMED = 5  # paths in a question
_NOTHING = "none"  # the value of `--copy` for no path
_MAX_BROUGHT = 2 << 30  # bytes, of what `--copy` does not name
_NO_NETWORK = {"network": "none", "domains": (), "host_ports": (), "published": (), "secrets": (), "packages": ()}


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Make the worktree unless it exists, and start the session in it."""
    name = flags.one("new").value
    copies = Copies(current_home(environ))
    source = enter_project(environ)
    copy = copies.place(name, source)
    exists = copy.created > 0 and (os.path.lexists(copy.path) or restore(copy, flags, environ))
    if not exists:
        copy = _make(copies, copy, flags, environ)
    elif flags.all("from"):
        raise ClaudeboxError(
            f"`{name}` already exists", hint="resume it without `--from`, or `claudebox drop` it first"
        )
    else:
        copies.require_idle(copy)
        console.note(f"resuming in `{name}`")
    os.chdir(copy.path)
    environ = {**environ, "PWD": copy.path}
    try:
        if flags.on("detach"):
            from claudebox.many import detach

            status = detach.run(flags, environ, name=name, project=source)
        else:
            status = session.run(flags, environ)
    except ClaudeboxError:
        if not exists:
            _unmake(copies, copy, flags, environ)
        raise
    if not exists and status == DECLINED:
        _unmake(copies, copy, flags, environ)
    elif not flags.on("detach"):
        word = shlex.quote(name)
        console.note(
            f"the work is on your branch `{name}`: `claudebox finish {word}` removes the worktree, "
            f"`claudebox drop {word}` both"
        )
    return status


def enter_project(environ: dict[str, str]) -> str:
    """Change to the top of the project, of which the working directory may be an agent's worktree; return it."""
    home, workdir = current_home(environ), current_directory()
    for copy in Copies(home).all():
        if f"{workdir}/".startswith(f"{copy.path}/"):
            if not os.path.isdir(copy.source):
                raise ClaudeboxError(f"the project `{copy.source}` of this worktree is gone")
            workdir = copy.source
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    root = repository.root if repository is not None and repository.directory is not None else workdir
    os.chdir(root)
    return root


def plan_repository(directory: str, flags: Settings, environ: dict[str, str]) -> tuple[Planned, PrivateGit]:
    """Return the plan in a directory, and the repository there, or refuse."""
    os.chdir(directory)
    planned = _plan_project(flags, environ)
    own = _find_repository(planned)
    if own is None:
        problem = planned.host.git.repository.problem if planned.host.git.repository else "there is none"
        raise ClaudeboxError(f"the repository of `{directory}` cannot be read: {problem}")
    return planned, own


def _plan_project(flags: Settings, environ: dict[str, str], *, searching: bool = False) -> Planned:
    """Return the plan of a trivial command here, for what it says about git; nothing is run."""
    settings, _ = session.read_settings(flags, environ)
    policy = session.decide_policy(settings, environ).replace(program="exec", words=("true",), nix="off", **_NO_NETWORK)
    return session.make_plan(settings, policy, environ, searching=searching)


def _find_repository(planned: Planned) -> PrivateGit | None:
    return next((row for row in planned.plan.git if row.real and not row.place), None)


def find_git(copy: Copy, environ: dict[str, str]) -> Tools:
    return find_tools(programs.search_path(environ, copy.source))


def restore(copy: Copy, flags: Settings, environ: dict[str, str]) -> bool:
    """Make a worktree again that the user has deleted; return False if its branch is gone too."""
    _, own = plan_repository(copy.source, flags, environ)
    if not worktrees.restore_worktree(own, find_git(copy, environ), copy):
        return False
    console.note(f"restored the deleted worktree of `{copy.name}` from its branch")
    return True


def _make(copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> Copy:
    planned = _plan_project(flags, environ, searching=not flags.all("from"))
    repository, own = planned.host.git.repository, _find_repository(planned)
    if own is None or repository is None or repository.directory is None:
        problem = f": {repository.problem}" if repository and repository.problem else ", and there is none here"
        raise ClaudeboxError(
            f"`claudebox new` needs a repository{problem}", hint="`git init`, and commit what is there"
        )
    for store in repository.directory.stores:
        if store.path not in dict(own.stores):
            raise ClaudeboxError(
                f"this repository borrows objects from `{store.path}`",
                hint=f"let them in with `--mount-ro {store.path}`",
            )
    start = parsers.commit(flags.one("from")) if flags.all("from") else ""
    asked = [parsers.copied_path(given) for given in planned.settings.all("copy")]
    tools = find_git(copy, environ)
    onto = ""
    if not start:
        start, onto = _commit_changes(planned, own, tools, copy, asked)
    copies.create(copy)
    try:
        copies.save(replace(copy, base="-"))  # from here on no other agent sees the branch
        copy = replace(copy, base=worktrees.make_worktree(own, tools, copy, start), onto=onto)
        copies.save(copy)
        hand_down(planned.host.instance, locate(copies.home, copy.path))
        for note in worktrees.fill_submodules(copy, own, worktrees.list_submodules(planned.plan.git), tools):
            console.note(note)
        brought = tuple(path for path in asked or _BROUGHT if _bring(tools, copy, path, asked=bool(asked)))
        copies.save(replace(copy, brought=brought))
    except OSError as error:
        _unmake(copies, copy, flags, environ)
        raise ClaudeboxError(
            f"the files could not be written to `{copy.path}`: {error.strerror}", hint="free disk space", status=FAILED
        ) from None
    except BaseException:
        _unmake(copies, copy, flags, environ)
        raise
    return copy


def _commit_changes(planned: Planned, own: PrivateGit, tools: Tools, copy: Copy, asked: list[str]) -> tuple[str, str]:
    """Offer to bring uncommitted changes along; return a commit of them and the one below, or nothing."""
    os.close(open_state(copy.scratch, COPIES))
    secret = [row.path for row in planned.host.project.secret_files]  # a commit would keep them
    try:
        with worktrees.Uncommitted(own, tools, copy, secret) as found:
            worktrees.refuse_taken(found.box, copy)
            asking = not planned.settings.on("yes") and planned.settings.one("confirm").value != "never"
            shown = console.list_some([console.shorten(path, 80) for path in found.paths], _NAMED)
            question = (
                f"Bring your uncommitted changes along ({shown})? `claudebox finish` takes them off again. [Y/n] "
            )
            commit, onto = "", ""
            if found.paths and not (asking and not console.confirm(question, default=True)):
                commit, onto = found.commit()
                if not asking:
                    console.note(f"your uncommitted changes come along ({shown}); `claudebox finish` takes them off")
            left = found.left if commit or not found.paths else [*found.left, *found.paths]
            if left := [path for path in left if path not in asked]:  # those are copied
                shown = console.list_some([console.shorten(path, 80) for path in left], _NAMED)
                console.note(f"not committed, and stays behind: {shown} (`--copy FILE` brings a file)")
            return commit, onto
    except GitError as error:
        console.note(f"uncommitted changes stay behind: {console.clean(str(error))}")
        return "", ""


def _bring(tools: Tools, copy: Copy, path: str, *, asked: bool) -> bool:
    """Copy an ignored path into the worktree, with a limit unless the user asked for it."""
    if path == _NOTHING or (not asked and os.path.lexists(f"{copy.path}/{path}")):
        return False
    try:
        return worktrees.bring(tools, copy, path, 0 if asked else _MAX_BROUGHT)
    except ClaudeboxError as error:
        with contextlib.suppress(FileNotFoundError):
            trees.remove(copy.path, path)
        console.note(f"`{path}` was not copied: {error.message}")
        return False


def _unmake(copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> None:
    """Remove the worktree of an agent that did not start, unless something was done in it."""
    if copy.base:
        _, own = plan_repository(copy.source, flags, environ)
        tools = find_git(copy, environ)
        if not worktrees.is_untouched(own, tools, copy):
            console.warn(f"`{copy.path}` has changed and stays; `claudebox drop {shlex.quote(copy.name)}` deletes it")
            return
        worktrees.forget(own, copy)
        worktrees.delete_branch(own, tools, copy, copy.base)
    os.chdir("/")
    copies.remove(copy)
