"""Merging the branch of an agent into what is checked out: by git in a sandbox, and first without the checkout.

None of the repository's configuration or hooks is in force there, only what a list of keys admits, and the user's name.
What comes of it is brought into the checkout in one step, which overwrites nothing that only the user has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from shlex import quote

from claudebox.base.console import clean, list_some, shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import list_names, read_small
from claudebox.git import importer
from claudebox.git import plan as git_plan
from claudebox.git import state as git_state
from claudebox.git.private import describe_layout
from claudebox.git.refs import HEADS, REMOTES
from claudebox.git.sandbox import GitError, GitSandbox
from claudebox.git.sides import Side, own_side, parse_rows, real_mounts, real_side
from claudebox.git.submodules import GITLINK
from claudebox.many import worktrees
from claudebox.report import kinds
from claudebox.report.screen import fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.state import Instance
    from claudebox.git.refs import IndexRow
    from claudebox.git.sandbox import Tools
    from claudebox.many.worktrees import Copy
    from claudebox.plan.records import OwnGit
    from claudebox.session import Planned


WAYS = ("merge", "rebase")
# $1: the repository, $2: its checkout, $3: how, $4: the branch. A checkout of its own in which no file is written that
# can be merged; says what was checked out, and what has come of it.
_CONFLICTS, _NONE = 3, "000000"
_MERGE = f"""\
before=$(git --git-dir="$2" rev-parse --verify HEAD) && tip=$(git rev-parse --verify "refs/heads/$4") || exit
text=$(printf "%s\\t\\tbranch '%s' of .\\n" "$tip" "$4" | git --git-dir="$2" fmt-merge-msg) || exit
mkdir -p /tmp/git/info /tmp/git/refs /tmp/git/reftable /tmp/files && : >/tmp/git/info/sparse-checkout || exit
echo "ref: refs/heads/.invalid" >/tmp/git/HEAD && printf "%s\\n" "$1" >/tmp/git/commondir || exit
export GIT_DIR=/tmp/git GIT_WORK_TREE=/tmp/files
git update-ref --no-deref HEAD "$before" && git read-tree -m -u HEAD || exit
if [ "$3" = merge ]; then
	git merge -q --no-edit -m "$text" "$tip" >/dev/null
elif [ -n "$(git rev-list -n1 "HEAD..$tip")" ]; then
	git cherry-pick --ff "HEAD..$tip" >/dev/null
fi || exit $(($(git ls-files -u | wc -l) ? {_CONFLICTS} : 1))
echo "$before"
git rev-parse HEAD
"""
_BRING_IN = 'GIT_REFLOG_ACTION="$2" git merge -q --ff-only --no-overwrite-ignore "$1" 2>&1'
_NO_FILES = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.sparseCheckout",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "core.sparseCheckoutCone",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "index.sparse",
    "GIT_CONFIG_VALUE_2": "false",
}


@dataclass(frozen=True)
class Merging:
    """A branch that is to be merged into what is checked out, or whose commits are to be put on top of it."""

    planned: Planned
    own: OwnGit
    tools: Tools
    scratch: str
    branch: str
    way: str

    def prepare(self) -> tuple[tuple[str, ...], str]:
        """Return what is checked out and what would be afterwards, or why not; the checkout is not written to."""
        layout = describe_layout(self.own)
        with self._open(worktrees.plain_config(self.own.config), (), {"GIT_DIR": layout.common, **_NO_FILES}) as box:
            if status := box.script(_MERGE, layout.common, layout.git_dir, self.way, self.branch):
                return (), "there are conflicts" if status == _CONFLICTS else box.message()
            return tuple(box.output().decode("ascii", "replace").split()), ""

    def bring_in(self, before: str, after: str) -> str:
        """Check out what was prepared, all of it or nothing; return what became of it."""
        if b'filter "lfs"' in self.own.config:
            raise self.refuse("the repository uses Git LFS, which claudebox does not run", "do it yourself: ")
        place, config = self.own.worktree, worktrees.plain_config(self.own.config, self.own.worktree_config)
        environ = {"GIT_DIR": describe_layout(self.own).git_dir, "GIT_WORK_TREE": place}
        with self._open(config, ("--bind", place, place), environ) as box:
            self._check_out(box, before, after)
        return f"{before[:7]}..{after[:7]}" if before != after else "nothing to do"

    def refuse(self, why: str, advice: str = "") -> ClaudeboxError:
        """Return that nothing was done, and how a user does it."""
        verb, what = ("merge", self.branch) if self.way == "merge" else ("cherry-pick", f"HEAD..{self.branch}")
        return ClaudeboxError(
            f"`{self.branch}` is there, and was not merged: {clean(why)}", hint=f"{advice}`git {verb} {quote(what)}`"
        )

    def _open(self, config: bytes, mounts: tuple[str, ...], environ: dict[str, str]) -> GitSandbox:
        layout = describe_layout(self.own)
        files = {f"{layout.common}/config": config, "/user-config": git_plan.user_config(self.planned.host)}
        environ = {**environ, "GIT_CONFIG_GLOBAL": "/user-config"}
        mounts = (*mounts, *real_mounts(layout))
        return GitSandbox(self.tools, mounts, environ, self.scratch, worktrees.LIMITS, files)

    def _check_out(self, box: GitSandbox, before: str, after: str) -> None:
        if box.git("status", "--porcelain", "--untracked-files=no"):
            raise self.refuse("your checkout has changes that are not committed", "commit them, then ")
        if box.git("rev-parse", "HEAD").decode().strip() != before:
            raise self.refuse("another commit was checked out meanwhile")
        lost = self._find_lost_submodules(box, before, after)
        if not lost and box.script(_BRING_IN, after, f"{self.way} {self.branch}"):
            said = os.fsdecode(box.output()).split("\n")
            lost = [line[1:] for line in said if line.startswith("\t")]
            if not lost:
                why = "; ".join(line for line in said if line.startswith(("error: ", "fatal: "))) or "git failed"
                raise self.refuse(why, "see `git status`, then ")
        if lost:
            names = list_some([f"`{clean(path)}`" for path in lost], 8)
            raise self.refuse(f"it would overwrite what only you have: {names}", "move yours away, then ")

    def _find_lost_submodules(self, box: GitSandbox, before: str, after: str) -> list[str]:
        """Return the submodules with files in them that give way to something else: git would remove them all."""
        raw = box.git("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", before, after)
        rows = parse_rows(raw)
        if rows is None:
            raise GitError("git diff-tree cannot be read")
        paths = (
            os.fsdecode(path)
            for path, row in rows.items()
            if row.mode_before == GITLINK and row.mode not in (GITLINK, _NONE)
        )
        return [path for path in paths if list_names(f"{self.own.worktree}/{path}")]


# What an agent did in its worktree: commits, files that are not committed, and what is nowhere else.


_COMMITS, _PATHS, _LINK, _SUBMODULE = 50, 12, "120000", "160000"
_STASH = "refs/stash"
_MOST = 10_000  # worktrees that an agent made inside
_MADE_AGAIN = ("node_modules", ".venv", "__pycache__")  # directories of tools, which make them again


@dataclass(frozen=True)
class Work:
    """What an agent did."""

    tip: str
    commits: tuple[str, ...]  # of the branch that are on no other
    changed: dict[str, IndexRow]
    links: dict[str, str]  # where links lead
    uncommitted: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    remade: tuple[str, ...] = ()  # ignored too: the project has them, or tools make them again
    arrived: tuple[str, ...] = ()  # other branches and tags of the agent, in the repository
    kept: tuple[str, ...] = ()  # what only the agent's own git directory has
    submodules: tuple[str, ...] = ()  # with commits that the project does not have


def look(copy: Copy, own: OwnGit, tools: Tools, instance: Instance, merged: tuple[str, ...] = ()) -> Work:
    """Return what was done in a worktree; `own` is its repository, `instance` has the agent's own git directories.

    `merged`: what is checked out in the project, and what would be with the branch.
    """
    layout = describe_layout(own)
    stores = (word for store in layout.stores[1:] for word in ("--ro-bind", store, store))
    mounts = ("--ro-bind", layout.common, layout.common, "--ro-bind", copy.path, copy.path, *stores)
    environ = {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": copy.path}
    config = {f"{layout.common}/config": worktrees.plain_config(own.config)}
    box = GitSandbox(tools, mounts, environ, copy.scratch, worktrees.LIMITS, config)
    with Side(box, layout, layout.git_dir) as side:
        side.begin_refs()
        side.read_refs()
        tip = side.refs.get(copy.ref, "")
        session = f"-{os.path.basename(layout.git_dir)}/"
        arrived = tuple(name for name in side.refs if "/claudebox/" in name and session in name)
        rows: dict[str, IndexRow] = {}
        commits: list[str] = []
        if tip:
            known = {value for name, value in side.refs.items() if name != copy.ref and "/claudebox/" not in name}
            data = "".join(f"{value}\n" for value in (tip, *(f"^{value}" for value in sorted(known)))).encode()
            log = box.git("log", "--stdin", "--format=%h %s", data=data).decode("utf-8", "surrogateescape")
            commits = [row for row in log.split("\n") if row]
            beside = (box.ask("rev-parse", "-q", "--verify", "main-worktree/HEAD^{commit}") or b"").decode().strip()
            bases = (box.ask("merge-base", "--all", tip, beside or copy.base) or b"").decode().split() or [copy.base]
            for pair in (merged,) if merged else ((base, tip) for base in bases):
                found = parse_rows(box.git("diff", "--raw", "-z", "--no-renames", "--no-abbrev", *pair)) or {}
                rows |= {os.fsdecode(path): row for path, row in found.items()}
        links = {path: _blob(box, row.oid) for path, row in rows.items() if row.mode == _LINK}
        uncommitted, ignored, remade = _read_status(box, copy)
    kept = tuple(row for path in importer.private_directories(f"{instance.directory}/git")
                 for row in _find_kept(path, tools))  # fmt: skip
    return Work(tip, tuple(commits), rows, links, uncommitted, ignored, remade, arrived, kept)


def _read_status(box: GitSandbox, copy: Copy) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return what is not committed, what is ignored, and what is ignored and can be made again."""
    uncommitted: list[str] = []
    ignored: list[str] = []
    remade: list[str] = []
    for row in box.git("status", "--porcelain", "-z", "--no-renames", "--ignored").split(b"\0"):
        path = os.fsdecode(row[3:])
        if row.startswith(b"!!"):
            plain = path.rstrip("/")
            again = (
                plain in copy.brought
                or os.path.basename(plain) in _MADE_AGAIN
                or os.path.isfile(f"{copy.path}/{plain}/CACHEDIR.TAG")
            )
            (remade if again else ignored).append(path)
        elif row:
            uncommitted.append(path)
    return tuple(uncommitted), tuple(ignored), tuple(remade)


def _find_kept(path: str, tools: Tools) -> Iterator[str]:
    """Yield what the agent's own git directory has and the real one has not: branches, tags, stashes, other tips."""
    state = git_state.read_state(path)
    layout = state.layout
    if not layout.common or not git_state.is_known(path):
        return
    before = state.refs()
    where = f" in the submodule {clean(layout.module)}" if layout.depth else ""
    if not os.path.isdir(layout.common):  # the user has removed it
        if not git_state.settled(path):
            yield f"everything{where}, whose repository is gone"
        return
    with own_side(tools, path, layout, worktrees.LIMITS) as agent:
        agent.begin_refs()
        agent.read_refs()
        rows = agent.box.git("for-each-ref", "--format=%(objectname) %(refname)").decode("utf-8", "surrogateescape")
        found = {name: value for value, _, name in (row.partition(" ") for row in rows.split("\n") if row)}
        tips = {
            name: value
            for name, value in found.items()
            if before.get(name) != value and not name.startswith((REMOTES, "refs/claudebox/"))
        }
        more = {f"stash@{{{number}}}": value for number, value in enumerate(_read_stashes(f"{path}/own/logs/{_STASH}"))}
        heads = (f"{path}/own/worktrees/{name}/HEAD" for name in list_names(f"{path}/own/worktrees")[:_MOST])
        texts = [os.fsdecode(read_small(head, limit=4096) or b"").strip() for head in heads]
        more |= {f"HEAD {value[:7]}": value for value in (agent.head()[1], *texts) if value}
        more = {name: value for name, value in more.items() if agent.is_id(value)}  # the agent wrote these files
        missing = set(agent.lacks(sorted(set(more.values()))))
        tips |= {name: value for name, value in more.items() if value not in missing}
    if any(name.startswith("stash@") for name in tips):
        tips.pop(_STASH, None)
    with real_side(tools, path, layout, worktrees.LIMITS, "finish") as real:
        only = set(worktrees.find_unreachable(real, set(tips.values())))
    for name, value in tips.items():
        if value in only:
            yield f"{shorten(name.removeprefix(HEADS), 80)}{where}"


def _read_stashes(path: str) -> Iterator[str]:
    """Yield the stashes of an agent, the latest first."""
    rows = (read_small(path, limit=1 << 20) or b"").decode("ascii", "replace").split("\n")
    yield from ((*row.split(" ", 2), "", "")[1] for row in reversed(rows) if row)


def _blob(box: GitSandbox, identifier: str) -> str:
    try:
        return os.fsdecode(box.git("cat-file", "blob", identifier)[:4096])
    except GitError:
        return "?"


def lines(copy: Copy, work: Work) -> Iterator[str]:
    """Yield what an agent did, cleaned: what is gone first, then what tools of the host would run."""
    yield f"{copy.name}: {_count(len(work.commits), 'commit')}"
    for commit in work.commits[:_COMMITS]:
        yield f"  {shorten(commit, 160)}"
    if len(work.commits) > _COMMITS:
        yield f"  and {len(work.commits) - _COMMITS} more"
    deleted = [path for path, row in work.changed.items() if not int(row.mode, 8)]
    yield from _paths("deleted", deleted)
    found: dict[str, list[tuple[int, str, str]]] = {}  # kind -> rank, reason, path
    for path, row in work.changed.items():
        if path in deleted:
            continue
        kind = kinds.classify(path, int(row.mode, 8), lambda path: _leads_out(path, work.links.get(path, "")))
        kind = kinds.Kind("repository", path, "a submodule") if row.mode == _SUBMODULE else kind
        text = f"{fit(path)} ({clean(kind.why)})" if kind.why else fit(path)
        found.setdefault(kind.name, []).append((kind.rank, kind.why, text))
    for name, heading in kinds.HEADINGS.items():
        yield from _paths(heading, _by_danger(found.get(name, [])))
    yield from _paths("not committed", list(work.uncommitted))
    yield from _paths("ignored by git", list(work.ignored))
    yield from _paths("ignored by git, and can be made again", list(work.remade))
    yield from _paths(
        "other branches and tags of the agent, in your repository", [_short(name) for name in work.arrived]
    )
    yield from _paths("only in the agent's own git directory", list(work.kept))
    yield from _paths("submodules with commits of the agent", list(work.submodules))


def _short(ref: str) -> str:
    return ref.removeprefix(HEADS).removeprefix("refs/")


def _by_danger(rows: list[tuple[int, str, str]]) -> list[str]:
    """Return paths, the most dangerous first, and before all others one for each reason: many of one hide no other."""
    firsts: dict[str, tuple[int, str, str]] = {}
    for row in sorted(rows):
        firsts.setdefault(row[1], row)
    return [text for _, _, text in sorted(rows, key=lambda row: (row is not firsts[row[1]], row))]


def _paths(heading: str, paths: list[str]) -> Iterator[str]:
    if paths:
        yield f"  {heading} ({len(paths)}): {list_some([clean(path) for path in paths], _PATHS)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _leads_out(path: str, target: str) -> str:
    """Return where a link leads that leaves the project."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target if target.startswith("/") or place.startswith("..") else ""
