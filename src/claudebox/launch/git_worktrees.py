"""Worktrees that were made inside become worktrees of the real repository (GIT-04).

Only the few lines that make one are written, with values of our own: what the agent's git directory says is checked,
and its index is not taken. The files lie in the project and stay what they are. A registration is built beside, with
its index, and renamed into place: without one, the next commit there would delete every file.
"""

from __future__ import annotations

import os
import stat

from claudebox.console import shorten
from claudebox.files import list_names, mode_of, read_small, real_path, replace_file
from claudebox.git.disarm import disarm_paths
from claudebox.launch import git_cleanup, git_submodules
from claudebox.launch.git_sandbox import GitError
from claudebox.launch.git_state import REFTABLE_HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.launch.git_checkout import Checkout
    from claudebox.launch.git_merge import Move
    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Layout

_MOST = 64
_LINE = 4096
_BUILD = "claudebox"  # in the git directory, as deep as `worktrees`
_BRANCH = "ref: refs/heads/"


class Worktrees:
    """The worktrees that the agent has in the project."""

    def __init__(self, path: str, layout: Layout, agent: Side, real: Side) -> None:
        self._path, self._layout, self._agent, self._real = path, layout, agent, real
        self.problem = ""  # why the last one could not move
        self.reached: dict[str, str] = {}  # git directories of the host that the agent can work in, and their HEADs
        for name in _names(f"{path}/own/worktrees"):
            entry, target = f"{path}/own/worktrees/{name}", f"{layout.common}/worktrees/{name}"
            same = _is_same(target, os.path.dirname(_line(f"{entry}/gitdir")))
            head = _line(f"{target}/HEAD")
            is_read = real.is_id(head) or (head.startswith(_BRANCH) and head != REFTABLE_HEAD)
            if same and is_read and target != layout.git_dir and not os.path.lexists(f"{entry}/locked"):
                self.reached[target] = head

    def bring_back(self, checkout: Checkout, taken: frozenset[str], moves: list[Move], *, final: bool) -> Iterator[str]:
        """Take over new worktrees, and HEAD and branch of those that the host has; yield what the user should know.

        `taken` are branches that other checkouts of the host have. One with gitlinks waits until no agent runs any more
        (`final`): git of the host enters them.
        """
        layout, real = self._layout, self._real
        clear_unfinished(layout.common, os.path.basename(self._path))
        for name in _names(f"{self._path}/own/worktrees"):
            entry, target = f"{self._path}/own/worktrees/{name}", f"{layout.common}/worktrees/{name}"
            where, head = os.path.dirname(_line(f"{entry}/gitdir")), _line(f"{entry}/HEAD")
            if os.path.lexists(target) and target not in self.reached:
                continue  # the checkout of the session itself, or one that is out of its reach
            before = self.reached.get(target, "")
            mine = [move for move in moves if f"ref: {move.name}" == before]
            if before == head and not mine:
                continue
            refs = real.refs | {move.name: move.new for move in mine}
            problem = _why_not(name, where, target, layout) or _why_not_head(head, real, refs, taken)
            commit = refs.get(head.removeprefix("ref: "), head)
            raw = b"" if problem else real.box.ask("ls-tree", "-r", "-z", commit)
            links = git_submodules.links_of_tree(raw or b"")
            if links and not final:
                self.problem = "it has a submodule, which comes back at the end of the session"
                continue
            notes, closed = disarm_paths(where, links, (real_path(layout.common),))
            yield from notes
            if raw is None or closed:
                problem = "has a submodule that cannot be examined, and does not come back"
            if not problem and before:
                old = real.refs.get(before.removeprefix("ref: "), before)
                problem, _ = checkout.move_together(
                    target, (old, commit), (before, head if head != before else ""), mine
                )
                problem = problem and f"stays as it is: {problem}"
            elif not problem:
                try:
                    _register(layout.common, os.path.basename(self._path), name, where, head, real)
                except (GitError, OSError) as error:
                    problem = f"does not come back: {error}"
            if problem:
                self.problem = f"the worktree {shorten(where or name, 200)} {problem}"
                yield self.problem
            elif not before:
                yield f"the worktree {shorten(where, 200)} came back"


def _is_same(target: str, where: str) -> bool:
    return _line(f"{target}/gitdir") == f"{where}/.git"


def _names(directory: str) -> list[str]:
    return list_names(directory)[:_MOST] if stat.S_ISDIR(mode_of(directory)) else []


def _line(path: str) -> str:
    """Return the one line of a file of the agent's, nothing for anything else."""
    if os.path.islink(os.path.dirname(path)):
        return ""
    text = os.fsdecode(read_small(path, limit=_LINE) or b"").strip()
    return "" if "\n" in text or "\0" in text else text


def _why_not(name: str, where: str, target: str, layout: Layout) -> str:
    if name.startswith(".") or "\n" in name:  # git itself gives no such name
        return "has a name that is not taken over"
    if not where:
        return "has a path that is not taken over, such as one with a line break; its files stay as they are"
    if not where.startswith(layout.work_tree.rstrip("/") + "/"):
        return "lay outside of the project and is gone; make worktrees in the project (.claude/worktrees)"
    if real_path(where) != where or _line(f"{where}/.git") != f"gitdir: {target}":
        return "is no longer there"
    return ""


def _why_not_head(head: str, real: Side, refs: dict[str, str], taken: frozenset[str]) -> str:
    if head.startswith(_BRANCH):
        name = head.removeprefix("ref: ")
        if name in taken:
            return f"has {shorten(name, 80)} checked out, and so has another checkout"
        return "" if refs.get(name) else f"has {shorten(name, 80)}, which did not come back"
    return "" if real.is_id(head) and not real.lacks((head,)) else "has a commit that is on no branch"


def _register(common: str, owner: str, name: str, where: str, head: str, real: Side) -> None:
    """Register a worktree with an index as if just checked out: what was changed in the files shows as changed."""
    built, target = f"{common}/{_BUILD}/{owner}-{name}", f"{common}/worktrees/{name}"
    git_cleanup.remove(built)
    os.makedirs(built)
    directory = os.open(built, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part, text in (("commondir", "../.."), ("gitdir", f"{where}/.git"), ("HEAD", head)):
            replace_file(directory, part, os.fsencode(f"{text}\n"))
            os.chmod(part, 0o644, dir_fd=directory)
        real.box.git("--git-dir", built, "read-tree", "HEAD")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(built, target)
    finally:
        os.close(directory)
        clear_unfinished(common, owner)


def clear_unfinished(common: str, owner: str) -> None:
    """Remove what an import of this private directory began to build, and was killed."""
    for entry in list_names(f"{common}/{_BUILD}"):
        if entry.startswith(f"{owner}-"):
            git_cleanup.remove(f"{common}/{_BUILD}/{entry}")
    try:
        os.rmdir(f"{common}/{_BUILD}")
    except OSError:  # it is not there, or another import builds
        return
