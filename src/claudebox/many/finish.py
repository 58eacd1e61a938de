"""`claudebox finish` and `claudebox drop`: show what an agent did in its worktree, then remove it.

`finish` keeps the branch, and keeps the worktree too while it holds anything that exists nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass

from claudebox.base import console, trees
from claudebox.base import state as base_state
from claudebox.base.console import clean, list_some, shorten
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.base.files import list_names, read_small
from claudebox.git import importer
from claudebox.git import state as git_state
from claudebox.git.private import describe_layout
from claudebox.git.refs import HEADS, REMOTES
from claudebox.git.sandbox import GitError
from claudebox.git.sides import GITLINK, Side, agent_side, host_side, parse_changes
from claudebox.host.machine import current_home
from claudebox.many import sessions, worktrees
from claudebox.many.new import enter_project, find_git, plan_repository, restore
from claudebox.many.records import Records
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copies, Copy
from claudebox.report import kinds, leftovers
from claudebox.report.screen import fit
from claudebox.run.live_sessions import Presence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.state import Instance
    from claudebox.git.refs import Move
    from claudebox.git.sandbox import GitSandbox, Tools
    from claudebox.git.sides import TreeChange
    from claudebox.plan.records import PrivateGit
    from claudebox.settings.layers import Settings


_MAX_COMMITS, _MAX_PATHS = 50, 12  # shown
_MAX_WORKTREES = 10_000  # that the agent made inside
_LINK = "120000"
_STASH = "refs/stash"
_REBUILT = ("node_modules", ".venv", "__pycache__")  # directories that tools can make again


def run(flags: Settings, environ: dict[str, str]) -> int:
    verb, (name,) = flags.verb, flags.words
    copies = Copies(current_home(environ))
    if verb == "drop" and not copies.matching(name):
        return sessions.run(flags, environ)  # a session without a copy
    copy = copies.find(name, enter_project(environ))
    copies.require_idle(copy)
    removal = _Removal(copies, copy, flags, environ)
    try:
        return removal.finish() if verb == "finish" else removal.drop()
    except GitError as error:
        hint = "" if os.statvfs(copies.state).f_bavail else "free disk space"
        raise ClaudeboxError(f"`{copy.path}`: {clean(str(error))}", hint=hint) from None
    finally:
        removal.presence.leave()


class _Removal:
    """Looking at one worktree and removing it."""

    def __init__(self, copies: Copies, copy: Copy, flags: Settings, environ: dict[str, str]) -> None:
        self._copies, self._copy, self._flags, self._environ = copies, copy, flags, environ
        self.presence = Presence(copies.state)
        self._asking = not flags.on("yes")
        self._drop_hint = f"`claudebox drop {shlex.quote(copy.name)}`"
        self._unread: list[tuple[str, str]] = []  # paths in the worktree that could not be read, and why
        # Submodules with the agent's commits.
        self._modules: list[tuple[PrivateGit, PrivateGit | None, str, list[Move]]] = []

    def finish(self) -> int:
        copy = self._copy
        self.presence.claim(copy.path)
        source, work = self._examine()
        console.write(report(copy, work), descriptor=1)
        if self._asking:
            console.note(f"as a page: `claudebox review {shlex.quote(copy.name)}`")
        if not work.tip:
            raise ClaudeboxError(f"the branch `{copy.name}` no longer exists", hint=self._drop_hint)
        if reasons := [*self._list_reasons(work), *self._bring_submodules()]:
            console.note(f"the worktree stays: {'; '.join(reasons)}; {self._drop_hint}")
        elif self._asking and not console.confirm("Remove the worktree? The branch stays. [Y/n] ", default=True):
            return DECLINED
        else:
            if copy.onto:
                self._take_off(source)
            self._remove(source)
            merge = f"`git merge {shlex.quote(copy.name)}` merges its branch"
            console.note(f"removed the worktree; {merge if work.commits else f'its branch `{copy.name}` stays'}")
        return 0

    def _take_off(self, source: PrivateGit) -> None:
        """Take the user's uncommitted changes off the branch, or say how to merge it with them."""
        if worktrees.take_off(source, self._tools, self._copy):
            console.note("the branch does not have the uncommitted changes that you brought along")
        else:
            console.note(
                "the agent's commits build upon your uncommitted changes, so the branch has a commit of them: "
                "`git stash -u` yours before you merge it"
            )

    def drop(self) -> int:
        copy = self._copy
        with contextlib.suppress(OSError):  # a full disk; `_remove` checks again
            self.presence.claim(copy.path)
        own = tip = None
        try:
            own, work = self._examine()
            tip = work.tip
            console.write(report(copy, work), descriptor=1)
        except (ClaudeboxError, GitError, OSError) as error:  # dropping works even on a full disk
            why = error.strerror if isinstance(error, OSError) else error
            console.warn(f"the contents of the worktree could not be examined: {clean(str(why))}")
            console.write([f"{clean(copy.name)}: everything in {clean(copy.path)}"], descriptor=1)
        if self._asking and not console.confirm("Delete all of this? [y/N] ", default=False):
            return DECLINED
        if own is None and os.path.isdir(copy.source):
            own = self._plan(copy.source)[0]
        self._remove(own)
        if own is not None and tip and worktrees.delete_branch(own, self._tools, copy, tip):
            console.note(f"removed the worktree and the branch `{copy.name}`")
        else:
            console.note(f"removed the worktree; the branch `{copy.name}` stays")
        return 0

    def _examine(self) -> tuple[PrivateGit, Work]:
        """Import what a killed session left, then return the project's repository and the agent's work."""
        copy = self._copy
        if not os.path.isdir(copy.source):
            raise ClaudeboxError(
                f"the project `{copy.source}` was moved or deleted",
                hint=f"move it back to finish; the branch `{copy.name}` is in its repository",
            )
        if not os.path.lexists(copy.path) and not restore(copy, self._flags, self._environ):
            raise ClaudeboxError(f"the worktree and the branch of `{copy.name}` are gone", hint=self._drop_hint)
        source, sources = self._plan(copy.source)
        self._read_everything()
        leftovers.catch_up(self._instance, (copy.path,))
        _, failed = importer.import_all(self._instance, self._tools)
        if failed:
            raise ClaudeboxError(f"the commits of `{copy.name}` could not be imported")
        own, rows = self._plan(copy.path)
        work = look(copy, own, self._tools, self._instance)
        for place, path, moves in worktrees.find_submodule_work(copy, rows, sources, self._tools):
            self._modules.append((rows[place], sources.get(place), path, moves))
        work.submodules = [path for _, _, path, _ in self._modules]
        return source, work

    def _plan(self, directory: str) -> tuple[PrivateGit, dict[str, PrivateGit]]:
        """Return the repository in a directory, and its submodules by place."""
        planned, own = plan_repository(directory, self._flags, self._environ)
        return own, worktrees.list_submodules(planned.plan.git)

    def _read_everything(self) -> None:
        """Open directories that the agent closed with chmod, and note what cannot be read."""
        for _ in trees.walk(self._copy.path, self._unread, opener=trees.Opener(0.0)):
            pass
        for path, why in self._unread[:1]:
            more = f" and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
            console.warn(f"parts of the worktree cannot be read: {clean(path)} ({why}){more}")

    def _list_reasons(self, work: Work) -> list[str]:
        """Return why removing the worktree would lose something."""
        rows = (
            ("not committed", work.uncommitted),
            ("ignored by git", work.ignored),
            ("only in the agent's own git directory", work.kept),
            ("unreadable", [path for path, _ in self._unread]),
        )
        return [f"{what}: {list_some([clean(path) for path in paths], 3)}" for what, paths in rows if paths]

    def _bring_submodules(self) -> list[str]:
        """Import the agent's commits into the project's submodules; return which stay behind, and why."""
        reasons = []
        for row, source, path, moves in self._modules:
            why = "the project does not have it"
            if source is not None:
                why = worktrees.bring_submodule(self._copy, row, source, moves, self._tools)
            if why:
                reasons.append(f"commits in the submodule {clean(path)}: {why}")
            else:
                names = ", ".join(move.name.removeprefix(HEADS) for move in moves)
                console.note(f"imported commits of the submodule {clean(path)} as {clean(names)}")
        return reasons

    def _remove(self, own: PrivateGit | None) -> None:
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

    @property
    def _instance(self) -> Instance:
        return base_state.locate(self._copies.home, self._copy.path)

    @property
    def _tools(self) -> Tools:
        return find_git(self._copy, self._environ)


@dataclass
class Work:
    """What an agent did."""

    tip: str
    commits: list[str]  # on its branch and on no other
    changed: dict[str, TreeChange]
    links: dict[str, str]  # path and target of each changed link
    uncommitted: list[str]
    ignored: list[str]
    rebuilt: list[str]  # ignored, but brought from the project or made again by tools
    arrived: list[str]  # other branches and tags of the agent, now in the repository
    kept: list[str]  # what exists only in the agent's own git directory
    submodules: list[str]  # with commits that the project does not have


def look(copy: Copy, own: PrivateGit, tools: Tools, instance: Instance) -> Work:
    """Return what was done in a worktree; `own` is its repository, `instance` holds the agent's git directories."""
    layout = describe_layout(own)
    mounts = ("--ro-bind", layout.common, layout.common, "--ro-bind", copy.path, copy.path)
    box = worktrees.open_plain(own, tools, copy, mounts, {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": copy.path})
    work = Work("", [], {}, {}, [], [], [], [], [], [])
    with Side(box, layout, layout.git_dir) as side:
        side.read_refs()
        work.tip = side.refs.get(copy.ref, "")
        session = f"-{os.path.basename(layout.git_dir)}/"
        work.arrived = [name for name in side.refs if "/claudebox/" in name and session in name]
        if work.tip:
            begun = copy.onto and box.ask("merge-base", "--is-ancestor", copy.base, work.tip) is not None
            others = {value for name, value in side.refs.items() if name != copy.ref and "/claudebox/" not in name}
            others |= {copy.base} if begun else set()
            data = "".join(f"{value}\n" for value in (work.tip, *(f"^{value}" for value in sorted(others)))).encode()
            log = box.git("log", "--stdin", "--format=%h %s", data=data).decode("utf-8", "surrogateescape")
            work.commits = [row for row in log.split("\n") if row]
            host = (box.ask("rev-parse", "-q", "--verify", "main-worktree/HEAD^{commit}") or b"").decode().strip()
            bases = (box.ask("merge-base", "--all", work.tip, host or copy.base) or b"").decode().split()
            for base in [copy.base] if begun else bases or [copy.base]:
                found = box.git("diff", "--raw", "-z", "--no-renames", "--no-abbrev", base, work.tip)
                work.changed |= {os.fsdecode(path): row for path, row in (parse_changes(found) or {}).items()}
        work.links = {path: _read_link(box, row.oid) for path, row in work.changed.items() if row.mode == _LINK}
        _read_status(box, copy, work)
    for path in importer.private_directories(f"{instance.directory}/git"):
        work.kept += _find_kept(path, tools)
    return work


def _read_status(box: GitSandbox, copy: Copy, work: Work) -> None:
    for row in box.git("status", "--porcelain", "-z", "--no-renames", "--ignored").split(b"\0"):
        path = os.fsdecode(row[3:])
        plain = path.rstrip("/")
        if not row.startswith(b"!!") and not (row.startswith(b"??") and plain in copy.brought):
            work.uncommitted += [path] * bool(row)
            continue
        rebuilt = plain in copy.brought or os.path.basename(plain) in _REBUILT
        rebuilt = rebuilt or os.path.isfile(f"{copy.path}/{plain}/CACHEDIR.TAG")
        (work.rebuilt if rebuilt else work.ignored).append(path)


def _find_kept(path: str, tools: Tools) -> Iterator[str]:
    """Yield the branches, tags, stashes and detached commits that exist only in a private git directory."""
    state = git_state.read_state(path)
    layout = state.layout
    if not layout.common or not git_state.is_known(path):
        return
    where = f" in the submodule {clean(layout.module)}" if layout.depth else ""
    if not os.path.isdir(layout.common):  # the user has removed it
        if not git_state.settled(path):
            yield f"everything{where}, whose repository is gone"
        return
    with agent_side(tools, path, layout, worktrees.LIMITS) as agent:
        tips = _read_tips(agent, f"{path}/own", state.refs())
    with host_side(tools, path, layout, worktrees.LIMITS, "finish") as real:
        missing = set(worktrees.find_unreachable(real, set(tips.values())))
    for name, value in tips.items():
        if value in missing:
            yield f"{shorten(name.removeprefix(HEADS), 80)}{where}"


def _read_tips(agent: Side, own: str, before: dict[str, str]) -> dict[str, str]:
    """Return what the agent's refs, stashes and heads lead to, by name; refs as they were `before` are left out."""
    agent.read_refs()
    rows = agent.box.git("for-each-ref", "--format=%(objectname) %(refname)").decode("utf-8", "surrogateescape")
    refs = {name: value for value, _, name in (row.partition(" ") for row in rows.split("\n") if row)}
    tips = {
        name: value
        for name, value in refs.items()
        if before.get(name) != value and not name.startswith((REMOTES, "refs/claudebox/"))
    }
    # The agent wrote the files below: only what names an object that exists counts.
    log = (read_small(f"{own}/logs/{_STASH}", limit=1 << 20) or b"").decode("ascii", "replace").split("\n")
    stashes = ((*row.split(" ", 2), "", "")[1] for row in reversed(log) if row)
    more = {f"stash@{{{number}}}": value for number, value in enumerate(stashes)}
    heads = (f"{own}/worktrees/{name}/HEAD" for name in list_names(f"{own}/worktrees")[:_MAX_WORKTREES])
    texts = [os.fsdecode(read_small(head, limit=4096) or b"").strip() for head in heads]
    more |= {f"HEAD {value[:7]}": value for value in (agent.head()[1], *texts) if value}
    more = {name: value for name, value in more.items() if agent.is_id(value)}
    absent = set(agent.lacks(sorted(set(more.values()))))
    tips |= {name: value for name, value in more.items() if value not in absent}
    if any(name.startswith("stash@") for name in tips):
        tips.pop(_STASH, None)
    return tips


def _read_link(box: GitSandbox, identifier: str) -> str:
    try:
        return os.fsdecode(box.git("cat-file", "blob", identifier)[:4096])
    except GitError:
        return "?"


def report(copy: Copy, work: Work) -> Iterator[str]:
    """Yield what an agent did, cleaned: deletions first, then what tools of the host would run."""
    count = len(work.commits)
    yield f"{copy.name}: {count} commit{'' if count == 1 else 's'}"
    for commit in work.commits[:_MAX_COMMITS]:
        yield f"  {shorten(commit, 160)}"
    if count > _MAX_COMMITS:
        yield f"  and {count - _MAX_COMMITS} more"
    yield from _list_paths("deleted", sorted(path for path, row in work.changed.items() if not int(row.mode, 8)))
    found: dict[str, list[tuple[int, str, str]]] = {}  # kind -> rank, reason, path
    for path, row in work.changed.items():
        if not (mode := int(row.mode, 8)):
            continue
        kind = kinds.classify(path, mode, lambda path: _leads_out(path, work.links.get(path, "")))
        kind = kinds.Kind("repository", path, "a submodule") if row.mode == GITLINK else kind
        text = f"{fit(path)} ({clean(kind.why)})" if kind.why else fit(path)
        found.setdefault(kind.name, []).append((kind.rank, kind.why, text))
    for name, heading in kinds.HEADINGS.items():
        yield from _list_paths(heading, _by_danger(found.get(name, [])))
    yield from _list_paths("not committed", work.uncommitted)
    yield from _list_paths("ignored by git", work.ignored)
    yield from _list_paths("ignored by git, copied from the project or made by tools", work.rebuilt)
    arrived = [name.removeprefix(HEADS).removeprefix("refs/") for name in work.arrived]
    yield from _list_paths("other branches and tags of the agent, in your repository", arrived)
    yield from _list_paths("only in the agent's own git directory", work.kept)
    yield from _list_paths("submodules with commits of the agent", work.submodules)


def _by_danger(rows: list[tuple[int, str, str]]) -> list[str]:
    """Return paths, the most dangerous first, and before all others one for each reason: many of one hide no other."""
    firsts: dict[str, tuple[int, str, str]] = {}
    for row in sorted(rows):
        firsts.setdefault(row[1], row)
    return [text for _, _, text in sorted(rows, key=lambda row: (row is not firsts[row[1]], row))]


def _list_paths(heading: str, paths: list[str]) -> Iterator[str]:
    if paths:
        yield f"  {heading} ({len(paths)}): {list_some([clean(path) for path in paths], _MAX_PATHS)}"


def _leads_out(path: str, target: str) -> str:
    """Return where a link leads that leaves the project."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target if target.startswith("/") or place.startswith("..") else ""
