"""Worktrees that were made inside become worktrees of the real repository (GIT-04).

Only the few lines that make one are written, with values of our own: what the agent's git directory says is checked,
and its index is not taken. The files lie in the project and stay what they are.
"""

from __future__ import annotations

import os
import stat

from claudebox.console import shorten
from claudebox.files import read_small, real_path, replace_file
from claudebox.launch import git_submodules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Layout

_MOST = 64
_LINE = 4096
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+.")
_BRANCH = "ref: refs/heads/"


def adopt(
    path: str, layout: Layout, real: Side, taken: frozenset[str], moved: frozenset[str], *, final: bool
) -> Iterator[str]:
    """Take over the worktrees that the agent has in the project; yield what the user should know.

    `taken` are branches that other checkouts of the host have, `moved` those that have just come back. One that has
    gitlinks waits until no agent runs any more (`final`): git of the host enters them.
    """
    for name in _names(f"{path}/own/worktrees"):
        entry, target = f"{path}/own/worktrees/{name}", f"{layout.common}/worktrees/{name}"
        known = os.path.lexists(target)
        where = os.path.dirname(_line(f"{entry}/gitdir"))
        head = _line(f"{entry}/HEAD")
        if target == layout.git_dir or (known and (os.path.lexists(f"{entry}/locked") or not _is_same(target, where))):
            continue  # the checkout of the session itself, or one that is out of its reach
        problem = _why_not(name, where, target, layout) or _why_not_head(head, real, taken)
        if problem and not known:
            yield f"the worktree {shorten(where or name, 200)} {problem}"
        if problem or (known and head == _line(f"{target}/HEAD") and head.removeprefix("ref: ") not in moved):
            continue
        raw = real.box.ask("ls-tree", "-r", "-z", real.refs.get(head.removeprefix("ref: "), head))
        links = git_submodules.links_of_tree(raw or b"")
        if links and not final:
            continue
        done = git_submodules.put_aside(layout, links, where)
        yield from done.notes
        if raw is None or done.closed:
            yield f"the worktree {shorten(where, 200)} has a submodule that cannot be examined, and does not come back"
            continue
        _write(target, where, head)
        # An index as if just checked out: what was changed in the files shows as changed.
        real.box.ask("--git-dir", target, "read-tree", "HEAD")
        if not known:
            yield f"the worktree {shorten(where, 200)} came back"


def _is_same(target: str, where: str) -> bool:
    return _line(f"{target}/gitdir") == f"{where}/.git"


def _names(directory: str) -> list[str]:
    try:
        mode = os.lstat(directory).st_mode
        return sorted(os.listdir(directory))[:_MOST] if stat.S_ISDIR(mode) else []
    except OSError:
        return []


def _line(path: str) -> str:
    """Return the one line of a file of the agent's, nothing for anything else."""
    if os.path.islink(os.path.dirname(path)):
        return ""
    text = os.fsdecode(read_small(path, limit=_LINE) or b"").strip()
    return text if text.isprintable() else ""


def _why_not(name: str, where: str, target: str, layout: Layout) -> str:
    if not _NAME.issuperset(name) or name.startswith((".", "-")):
        return "has a name that is not taken over"
    if not where:
        return "has a path that is not taken over, such as one with a line break; its files stay as they are"
    if not where.startswith(layout.work_tree.rstrip("/") + "/"):
        return "lay outside of the project and is gone; make worktrees in the project (.claude/worktrees)"
    if real_path(where) != where or _line(f"{where}/.git") != f"gitdir: {target}":
        return "is no longer there"
    return ""


def _why_not_head(head: str, real: Side, taken: frozenset[str]) -> str:
    if head.startswith(_BRANCH):
        name = head.removeprefix("ref: ")
        if name in taken:
            return f"has {shorten(name, 80)} checked out, and so has another checkout"
        return "" if name in real.refs else f"has {shorten(name, 80)}, which did not come back"
    return "" if real.is_id(head) and not real.lacks((head,)) else "has a commit that is on no branch"


def _write(target: str, where: str, head: str) -> None:
    os.makedirs(target, exist_ok=True)
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, text in (("commondir", "../.."), ("gitdir", f"{where}/.git"), ("HEAD", head)):
            replace_file(directory, name, os.fsencode(f"{text}\n"))
    finally:
        os.close(directory)
