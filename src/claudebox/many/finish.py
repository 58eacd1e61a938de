"""`--finish NAME` and `--drop NAME`: the end of an agent's worktree. Nothing is merged or thrown away unseen."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import replace

from claudebox.base import console, trees
from claudebox.base import state as base_state
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.commands import git_import
from claudebox.git.sandbox import GitError
from claudebox.host import programs
from claudebox.host.machine import current_home
from claudebox.many import branch, sessions, worktrees
from claudebox.many.new import enter_project, plan_repository
from claudebox.many.records import Records
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copies, Copy
from claudebox.report import leftovers
from claudebox.run.live_sessions import Presence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.refs import Move
    from claudebox.git.sandbox import Tools
    from claudebox.many.branch import Work
    from claudebox.plan.records import OwnGit
    from claudebox.session import Planned
    from claudebox.settings.layers import Settings


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Finish a copy, or drop it."""
    verb = "finish" if flags.on("finish") else "drop"
    words = flags.words
    if not words:
        raise ClaudeboxError(f"`--{verb}` needs the name of an agent", hint="`claudebox --sessions` lists them")
    way = words[1] if len(words) > 1 and verb == "finish" else ""
    if way not in ("", *branch.WAYS) or len(words) > (2 if verb == "finish" else 1):
        raise ClaudeboxError(
            f"`--{verb}` does not know `{words[-1]}`", hint="`--finish NAME`, with `merge` or `rebase`"
        )
    copies = Copies(current_home(environ))
    if verb == "drop" and not copies.matching(words[0]):
        return sessions.run(flags, environ)  # a session without a copy
    copy = copies.find(words[0], enter_project(environ))
    copies.require_idle(copy)
    finishing = _Finishing(copies, copy, flags, environ)
    try:
        return finishing.finish(way) if verb == "finish" else finishing.drop()
    except GitError as error:
        hint = "" if os.statvfs(copies.state).f_bavail else "free disk space"
        raise ClaudeboxError(f"`{copy.path}`: {console.clean(str(error))}", hint=hint) from None
    finally:
        finishing.presence.leave()


class _Finishing:
    """One copy at its end."""

    def __init__(self, copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> None:
        self._copies, self._copy, self._flags, self._environ = copies, copy, flags, environ
        self.presence = Presence(copies.state)
        self._asking = not flags.on("yes")
        self._drop = f"`claudebox --drop {shlex.quote(copy.name)}`"
        self._unseen: list[tuple[str, str]] = []  # in the copy, and why
        self._modules: list[tuple[OwnGit, OwnGit | None, str, list[Move]]] = []  # submodules with work of the agent

    def finish(self, way: str) -> int:
        """Show what was done, merge if asked for, offer to remove the worktree; the branch stays."""
        copy = self._copy
        self._require_project()
        planned, source = plan_repository(copy.source, self._flags, self._environ)
        # An agent could lead what is written to the checkout astray.
        self.presence.claim(copy.path, *((source.worktree,) if way else ()))
        tools = self._prepare()
        merging = branch.Merging(planned, source, tools, copy.scratch, copy.name, way or "merge")
        merged, problem = merging.prepare()
        found = self._look(tools, planned, merged)
        console.write(branch.lines(copy, found), descriptor=1)
        if not found.tip:
            raise ClaudeboxError(f"the repository has no branch `{copy.name}` any more", hint=self._drop)
        if way:
            if problem:
                raise merging.refuse(problem)
            console.note(f"{'merged' if way == 'merge' else 'rebased'}: {merging.bring_in(*merged)}")
        if reasons := [*self._list_reasons(found), *self._bring_submodules(tools)]:
            console.note(f"the worktree stays: {'; '.join(reasons)}; {self._drop}")
        elif self._asking and not console.confirm("Remove the worktree? The branch stays. [Y/n] ", default=True):
            return DECLINED
        else:
            self._remove(source)
            console.note(f"the worktree is removed, the branch `{copy.name}` stays")
        return 0

    def drop(self) -> int:
        """Say what would be lost, and throw it away."""
        copy = self._copy
        with contextlib.suppress(OSError):  # a full disk; it is looked at again before anything goes
            self.presence.claim(copy.path)
        found = self._look_before_dropping()
        if found is None:
            console.write([f"{console.clean(copy.name)}: everything in {console.clean(copy.path)}"], descriptor=1)
        if self._asking and not console.confirm("Throw this away? [y/N] ", default=False):
            return DECLINED
        own = None
        if os.path.isdir(copy.source):
            _, own = plan_repository(copy.source, self._flags, self._environ)
        self._remove(own)
        if own is not None and found is not None and found.tip:
            tools = git_import.find_tools(programs.search_path(self._environ, copy.source))
            if worktrees.delete_branch(own, tools, copy, found.tip):
                console.note(f"the worktree and the branch `{copy.name}` are removed")
                return 0
        console.note(f"the worktree is removed, the branch `{copy.name}` stays")
        return 0

    def _require_project(self) -> None:
        copy = self._copy
        if not os.path.isdir(copy.source):
            raise ClaudeboxError(
                f"the project `{copy.source}` is gone or has moved; the worktree is as it was",
                hint=f"the branch `{copy.name}` is in the repository, wherever that is now; move it back to finish",
            )

    def _look_before_dropping(self) -> Work | None:
        """Show what would be lost, or say that it cannot be told: it is to go, even from a full disk."""
        copy = self._copy
        try:
            self._require_project()
            tools = self._prepare()
            planned, _ = plan_repository(copy.source, self._flags, self._environ)
            found = self._look(tools, planned)
        except (ClaudeboxError, GitError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            console.warn(f"what is in the worktree cannot be told: {console.clean(str(why))}")
            return None
        console.write(branch.lines(copy, found), descriptor=1)
        return found

    def _look(self, tools: Tools, planned: Planned, merged: tuple[str, ...] = ()) -> Work:
        """Look at everything in the worktree and in the agent's own git directories."""
        copy = self._copy
        examined, own = plan_repository(copy.path, self._flags, self._environ)
        found = branch.look(copy, own, tools, self._instance, merged)
        rows, sources = (worktrees.list_submodules(one.plan.git) for one in (examined, planned))
        for place, path, moves in worktrees.find_submodule_work(copy, rows, sources, tools):
            self._modules.append((rows[place], sources.get(place), path, moves))
        return replace(found, submodules=tuple(path for _, _, path, _ in self._modules))

    def _list_reasons(self, found: Work) -> list[str]:
        """Return why a worktree cannot be removed without losing something."""
        rows = (
            ("not committed", found.uncommitted),
            ("ignored by git", found.ignored),
            ("only in the agent's own git directory", found.kept),
            ("not to be looked at", [path for path, _ in self._unseen]),
        )
        return [
            f"{what}: {console.list_some([console.clean(path) for path in paths], 3)}" for what, paths in rows if paths
        ]

    def _bring_submodules(self, tools: Tools) -> list[str]:
        """Bring the agent's commits in submodules into those of the project; return what stays, and why."""
        reasons = []
        for row, source, path, moves in self._modules:
            why = "the project does not have it"
            if source is not None:
                why = worktrees.bring_submodule(self._copy, row, source, moves, tools)
            if why:
                reasons.append(f"commits in the submodule {console.clean(path)}: {why}")
            else:
                names = ", ".join(move.name.removeprefix("refs/heads/") for move in moves)
                console.note(f"commits of the submodule {console.clean(path)} are in yours: {console.clean(names)}")
        return reasons

    @property
    def _instance(self) -> base_state.Instance:
        return base_state.locate(self._copies.home, self._copy.path)

    def _prepare(self) -> Tools:
        """Bring what a killed session has left into the repository, and open what hides something in the worktree."""
        copy = self._copy
        tools = git_import.find_tools(programs.search_path(self._environ, copy.source))
        if not os.path.lexists(copy.path):
            _, own = plan_repository(copy.source, self._flags, self._environ)
            if not worktrees.restore_worktree(own, tools, copy):
                raise ClaudeboxError(f"the worktree and the branch of `{copy.name}` are gone", hint=self._drop)
            console.note(f"the worktree of `{copy.name}` was deleted: made again from its branch")
        for _ in trees.walk(copy.path, self._unseen, closed=trees.Closed(0.0)):
            pass
        for path, why in self._unseen[:1]:
            more = f" and {len(self._unseen) - 1} more" if len(self._unseen) > 1 else ""
            console.warn(f"not everything in the worktree can be looked at: {console.clean(path)} ({why}){more}")
        leftovers.catch_up(self._instance, (copy.path,))
        _, failed = git_import.import_all(self._instance, tools)  # what came is shown as a whole
        if failed:
            raise ClaudeboxError(f"what was done in `{copy.name}` could not be brought together")
        return tools

    def _remove(self, own: OwnGit | None) -> None:
        copy, records = self._copy, Records(self._copies.state)
        self._copies.require_idle(copy)
        os.chdir("/")
        tmux = Tmux(self._copies.state, self._environ)
        for agent in records.all():
            if agent.workdir == copy.path:
                records.remove(agent)
                tmux.kill(agent.id)
        if own is not None:
            worktrees.forget(own, copy)
        self._copies.remove(copy)
