"""The branch of an agent's copy beside the repository that it came from: what is new in it, and bringing it there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from claudebox.commands.agents import large_files
from claudebox.console import clean, list_some, shorten
from claudebox.errors import ClaudeboxError
from claudebox.launch import git_lfs, git_locks, git_transfer
from claudebox.launch.git_merge import Move
from claudebox.launch.git_names import HEADS
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits
from claudebox.launch.git_setup import describe_layout
from claudebox.launch.git_sides import Side, parse_rows, real_side
from claudebox.report import kinds
from claudebox.report.screen import fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.commands.agents.copies import Copy
    from claudebox.launch.git_merge import IndexRow
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit

LIMITS = Limits(seconds=3600.0, size=16 << 30)  # the user waits for it, and can end it
_COMMITS, _PATHS, _LINK, _SUBMODULE = 50, 12, "120000", "160000"
_PATIENCE = 60.0


@dataclass(frozen=True)
class Work:
    """What an agent did."""

    tip: str
    commits: tuple[str, ...]
    changed: dict[str, IndexRow]
    links: dict[str, str]  # where links lead
    uncommitted: tuple[str, ...]


class Branch:
    """Both repositories, each behind a sandbox; `with` opens them."""

    def __init__(
        self, copy: Copy, own: OwnGit, source: OwnGit | None, tools: Tools, submodules: Sequence[OwnGit] = ()
    ) -> None:
        self._copy, self.ref = copy, f"{HEADS}{copy.name}"
        layout = describe_layout(own)
        lent = dict.fromkeys(store for row in (own, *submodules) for store, _ in row.stores[1:])
        stores = (word for store in lent for word in ("--ro-bind", store, store))
        settings = large_files.variables(("core.fsmonitor", "false"))
        environ = {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": copy.path, **settings}
        config = {f"{layout.common}/config": large_files.without_process(own.config)}
        box = GitSandbox(tools, ("--ro-bind", copy.path, copy.path, *stores), environ, copy.project, LIMITS, config)
        self._agent = Side(box, layout, layout.git_dir)
        self._layout = describe_layout(source) if source is not None else None
        name = f"agent {copy.name}"
        self._real = real_side(tools, copy.project, self._layout, LIMITS, name) if self._layout else None

    def __enter__(self) -> Self:
        for side in (self._agent, self._real):
            if side is not None:
                side.begin_refs()
                side.read_refs()
        return self

    def __exit__(self, *_: object) -> None:
        for side in (self._agent, self._real):
            if side is not None:
                side.__exit__()

    def look(self) -> Work:
        """Return what the agent did that is not in the project."""
        agent, box = self._agent, self._agent.box
        tip = agent.refs.get(self.ref, "")
        if not tip:
            raise ClaudeboxError(
                f"the copy has no branch `{self._copy.name}` any more", hint=f"look at `{self._copy.path}`"
            )
        theirs = sorted(set(self._real.refs.values())) if self._real else [self._copy.base]
        unknown = set(agent.lacks(theirs))
        known = [value for value in theirs if value not in unknown]
        data = "".join(f"{value}\n" for value in (tip, *(f"^{value}" for value in known))).encode()
        log = box.git("log", "--stdin", "--format=%h %s", data=data).decode("utf-8", "surrogateescape")
        head = self._real.head()[1] if self._real else ""
        beside = head if head in known else self._copy.base
        common = (box.ask("merge-base", tip, beside) or b"").decode().strip() or self._copy.base
        changed = parse_rows(box.git("diff", "--raw", "-z", "--no-renames", "--no-abbrev", common, tip)) or {}
        rows = {os.fsdecode(path): row for path, row in changed.items()}
        links = {path: _blob(box, row.oid) for path, row in rows.items() if row.mode == _LINK}
        status = box.git("status", "--porcelain", "-z", "--no-renames")
        uncommitted = tuple(os.fsdecode(row[3:]) for row in status.split(b"\0") if row)
        return Work(tip, tuple(row for row in log.split("\n") if row), rows, links, uncommitted)

    def find_name(self, work: Work) -> str:
        """Return what the branch is called in the project, if it is there."""
        refs = self._real.refs if self._real is not None else {}
        names = [
            name.removeprefix(HEADS) for name, value in refs.items() if value == work.tip and name.startswith(HEADS)
        ]
        return self._copy.name if self._copy.name in names else next(iter(names), "")

    def bring(self, work: Work) -> str:
        """Bring the branch into the project as checked data, and return the name that it has there."""
        real, layout = self._real, self._layout
        if real is None or layout is None:
            raise ClaudeboxError("the project is gone")
        taken = {*git_locks.other_heads(layout), real.head()[0].removeprefix("ref: ")}
        for ref in (self.ref, f"{HEADS}claudebox/{self._copy.name}"):
            old = real.refs.get(ref, "")
            if old == work.tip:
                return ref.removeprefix(HEADS)
            if ref in taken or (old and not self._agent.contains(work.tip, old)):
                continue
            guard = lambda: git_locks.NoGarbageCollection(layout.common, patience=_PATIENCE)  # noqa: E731
            answers = git_transfer.send(self._agent, real, [Move(ref, old, work.tip)], set(), guard)
            if answers[ref]:
                raise ClaudeboxError(f"the branch stays in the copy: {clean(answers[ref])}")
            self._bring_large_files(layout.common)
            return ref.removeprefix(HEADS)
        raise ClaudeboxError(
            f"the project has a branch `{self._copy.name}` of its own, and `claudebox/{self._copy.name}` too",
            hint="rename one of them",
        )

    def _bring_large_files(self, common: str) -> None:
        if os.path.isdir(f"{self._copy.path}/.git/lfs/objects"):
            git_lfs.bring_back(f"{self._copy.path}/.git", common, size=LIMITS.size, seconds=LIMITS.seconds)


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
    yield from _paths("not committed, and only in the copy", list(work.uncommitted))


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
