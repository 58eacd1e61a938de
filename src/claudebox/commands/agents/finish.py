"""`--finish NAME` and `--drop NAME`: the end of an agent's copy. Nothing is merged or thrown away unseen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claudebox import console, state
from claudebox.commands import git_import
from claudebox.commands.agents import branch, merge, sessions
from claudebox.commands.agents.copies import Copies, Copy
from claudebox.commands.agents.new import enter_project, list_submodules, plan_project
from claudebox.commands.agents.records import Records
from claudebox.commands.agents.tmux import Tmux
from claudebox.errors import DECLINED, ClaudeboxError
from claudebox.facts import programs
from claudebox.facts.host import current_home
from claudebox.launch.git_sandbox import GitError
from claudebox.report import leftovers, tree

if TYPE_CHECKING:
    from claudebox.commands.agents.branch import Work
    from claudebox.config.settings import Settings
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit
    from claudebox.session import Planned


def run(verb: str, flags: Settings, environ: dict[str, str]) -> int:
    """Finish a copy, or drop it."""
    words = flags.words
    if not words:
        raise ClaudeboxError(f"`--{verb}` needs the name of an agent", hint="`claudebox --sessions` lists them")
    way = words[1] if len(words) > 1 and verb == "finish" else ""
    if way not in ("", *merge.WAYS) or len(words) > (2 if verb == "finish" else 1):
        raise ClaudeboxError(
            f"`--{verb}` does not know `{words[-1]}`", hint="`--finish NAME`, with `merge` or `rebase`"
        )
    copies = Copies(current_home(environ))
    if verb == "drop" and not any(copy.name == words[0].rpartition("/")[2] for copy in copies.all()):
        return sessions.run("stop", flags, environ)  # a session without a copy
    copy = copies.find(words[0], enter_project(environ))
    copies.require_idle(copy)
    finishing = _Finishing(copies, copy, flags, environ)
    try:
        return finishing.finish(way) if verb == "finish" else finishing.drop()
    except GitError as error:
        raise ClaudeboxError(f"`{copy.path}`: {error}") from None


class _Finishing:
    """One copy at its end."""

    def __init__(self, copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> None:
        self._copies, self._copy, self._flags, self._environ = copies, copy, flags, environ
        self._asking = not flags.on("yes")
        self._unseen: list[tuple[str, str]] = []  # in the copy, and why

    def finish(self, way: str) -> int:
        """Show what was done, bring it in, merge if asked for, offer to remove the copy."""
        copy = self._copy
        if not copy.base:
            raise ClaudeboxError(
                f"`{copy.source}` is no repository: nothing can be brought in as a branch",
                hint=f"copy what you want from `{copy.path}`, then `claudebox --drop {copy.name}`",
            )
        if not os.path.isdir(copy.source):
            raise ClaudeboxError(
                f"the project `{copy.source}` is gone or has moved; the copy is as it was",
                hint=f"`git fetch {copy.path} {copy.name}` where the project is now",
            )
        tools = self._prepare()
        planned, source = self._plan(copy.source)
        examined, own = self._plan(copy.path)
        kept = self._find_kept(examined, planned, tools)
        with branch.Branch(copy, own, source, tools, list_submodules(examined)) as both:
            work = both.look()
            console.write((*branch.lines(copy, work), *kept), descriptor=1)
            if work.commits:
                question = f"Bring {len(work.commits)} commits into {console.clean(copy.source)}? [Y/n] "
                if self._asking and not console.confirm(question, default=True):
                    return DECLINED
                name = both.bring(work)
                console.note(f"`{name}` is in the repository: {work.tip[:7]}")
            else:
                name = both.find_name(work)
        if way and name:
            done = merge.merge_branch(planned, source, tools, copy.project, name, way)
            console.note(f"{'merged' if way == 'merge' else 'rebased'}: {done}")
        if kept:
            console.note(f"the copy stays: fetch these commits from `{copy.path}`, then `--drop {copy.name}`")
        elif work.uncommitted:
            console.note(f"the copy stays: {len(work.uncommitted)} files in it are not committed; `--drop {copy.name}`")
        elif self._unseen:
            console.note(f"the copy stays: not everything in it could be looked at; `--drop {copy.name}`")
        elif not self._asking or console.confirm("Remove the copy? [Y/n] ", default=True):
            self._remove()
        return 0

    def drop(self) -> int:
        """Say what would be lost, and throw it away."""
        copy = self._copy
        if copy.base:
            self._say_what_is_lost()
        else:
            console.write([f"{copy.name}: everything in {console.clean(copy.path)}"], descriptor=1)
        if self._asking and not console.confirm("Throw this away? [y/N] ", default=False):
            return DECLINED
        self._remove()
        return 0

    def _say_what_is_lost(self) -> None:
        copy = self._copy
        try:
            tools = self._prepare()
            planned, source = self._plan(copy.source) if os.path.isdir(copy.source) else (None, None)
            examined, own = self._plan(copy.path)
            kept = self._find_kept(examined, planned, tools)
            with branch.Branch(copy, own, source, tools, list_submodules(examined)) as both:
                work: Work = both.look()
        except (ClaudeboxError, GitError, OSError) as error:  # it is to go, whatever it is, even from a full disk
            why = error.strerror if isinstance(error, OSError) else error
            console.warn(f"what is in the copy cannot be told: {why}")
        else:
            console.write((*branch.lines(copy, work), *kept), descriptor=1)

    def _find_kept(self, examined: Planned, planned: Planned | None, tools: Tools) -> list[str]:
        """Return lines about submodules of the copy with commits that are nowhere else."""
        if not (rows := list_submodules(examined)):
            return []
        from claudebox.commands.agents import submodules

        found = submodules.find_work(
            self._copy, rows, list_submodules(planned) if planned else [], tools, branch.LIMITS
        )
        return [f"  commits that are only in the copy, in the submodule {console.clean(path)}" for path in found]

    def _prepare(self) -> Tools:
        """Bring what a killed session has left into the copy's own repository, and open what hides something there."""
        for _ in tree.walk(self._copy.path, self._unseen, closed=tree.Closed(0.0)):
            pass
        for path, why in self._unseen[:1]:
            more = f" and {len(self._unseen) - 1} more" if len(self._unseen) > 1 else ""
            console.warn(f"not everything in the copy can be looked at: {path} ({why}){more}")
        tools = git_import.find_tools(programs.search_path(self._environ, self._copy.source))
        instance = state.locate(self._copies.home, self._copy.path)
        leftovers.catch_up(instance, (self._copy.path,))
        done, failed = git_import.import_all(instance, tools)
        if failed:
            raise ClaudeboxError(f"what was done in `{self._copy.name}` could not be brought together")
        del done  # it is shown as a whole
        return tools

    def _plan(self, directory: str) -> tuple[Planned, OwnGit]:
        os.chdir(directory)
        planned = plan_project(self._flags, self._environ)
        own = next((row for row in planned.plan.git if row.real and not row.place), None)
        if own is None:
            problem = planned.host.repository.problem if planned.host.repository else "it is none"
            raise ClaudeboxError(f"the repository `{directory}` cannot be read: {problem}")
        return planned, own

    def _remove(self) -> None:
        copy, records = self._copy, Records(self._copies.state)
        os.chdir("/")
        tmux = Tmux(self._copies.state, self._environ)
        for agent in records.all():
            if agent.workdir == copy.path:
                records.remove(agent)
                tmux.kill(agent.id)
        self._copies.remove(copy)
        console.note(f"the copy `{copy.name}` is removed")
