"""Gitlinks: never taken in over a `.git` that claudebox did not make.

On the host `git status` enters the repository at a gitlink and does what its configuration says. So a branch that adds
one waits for the end of the session, when nobody can put a `.git` there any more, and then a strange `.git` in that
place is renamed first.
"""

from __future__ import annotations

import os
import stat

from claudebox.files import open_beneath, read_at, real_path
from claudebox.launch.git_sides import parse_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.launch.git_merge import Move
    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Layout

GITLINK = "160000"
_ASIDE = ".git.claudebox"


def gitlinks(agent: Side, moves: Iterable[Move], base: str) -> dict[str, set[bytes]]:
    """Return the gitlinks that each branch adds or changes, compared with its old value or with a commit."""
    found: dict[str, set[bytes]] = {}
    for move in moves:
        old = move.old or base
        if not move.new:
            continue
        words = ("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", old, move.new)
        raw = agent.box.ask(*(words if old else ("ls-tree", "-r", "-z", move.new)))
        if not old:
            rows = (raw or b"").split(b"\0")
            links = {row.partition(b"\t")[2] for row in rows if row.startswith(GITLINK.encode())}
        else:
            links = {path for path, row in (parse_rows(raw or b"") or {}).items() if row.mode == GITLINK}
        if links:
            found[move.name] = links
    return found


def put_aside(layout: Layout, paths: Iterable[bytes]) -> list[str]:
    """Rename each strange `.git` at these paths of the work tree, where no agent runs any more; say which."""
    notes = []
    for path in sorted(paths):
        directory = _open(layout.work_tree, path)
        if directory < 0:
            continue
        try:
            if _is_strange(layout, directory):
                name = _free_name(directory)
                os.rename(".git", name, src_dir_fd=directory, dst_dir_fd=directory)
                shown = os.fsdecode(path)
                notes.append(f"`{shown}/.git` is not of a submodule that claudebox knows: renamed to `{name}`")
        finally:
            os.close(directory)
    return notes


def _open(work_tree: str, path: bytes) -> int:
    """Open a directory of the work tree without following a link; -1 if there is none."""
    try:
        top = os.open(work_tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return open_beneath(top, os.fsdecode(path), listed=True)
    except OSError:
        return -1
    finally:
        os.close(top)


def _is_strange(layout: Layout, directory: int) -> bool:
    """Return whether a directory has a `.git` that does not lead to a submodule in the real repository.

    Nothing inside can write there, so what stands there is the user's or ours.
    """
    try:
        mode = os.lstat(".git", dir_fd=directory).st_mode
    except OSError:
        return False
    if not stat.S_ISREG(mode):
        return True
    content = os.fsdecode(read_at(directory, ".git", limit=8192) or b"").rstrip("\r\n")
    if not content.startswith("gitdir: "):
        return True
    here = os.readlink(f"/proc/self/fd/{directory}")
    target = real_path(os.path.join(here, content[8:]))
    return not target.startswith((f"{real_path(layout.common)}/modules/",))


def _free_name(directory: int) -> str:
    names = os.listdir(directory)
    return next(name for name in (_ASIDE, *(f"{_ASIDE}.{number}" for number in range(2, 1 << 20))) if name not in names)
