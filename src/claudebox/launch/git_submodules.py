"""Gitlinks: never taken in over a `.git` that claudebox did not make.

On the host `git status` enters the repository at a gitlink and does what its configuration says. So a branch that adds
one waits for the end of the session, when nobody can put a `.git` there any more, and then a strange `.git` in that
place is renamed first. What cannot be examined is not taken in.
"""

from __future__ import annotations

import errno
import os
import stat

from claudebox.console import shorten
from claudebox.files import read_at, real_path
from claudebox.launch.git_sides import parse_rows
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.launch.git_merge import Move
    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Layout

    Changed = dict[bytes, str] | None  # path -> mode

GITLINK = "160000"
_ASIDE = ".git.claudebox"
_NOT_IN_A_PATH = frozenset((b"", b".", b"..", b".git"))


def changed_paths(agent: Side, moves: Iterable[Move], base: str) -> dict[str, Changed]:
    """Return the paths that each branch changes and their new modes, compared with its old value or with a commit.

    None where that cannot be said: such a branch does not come back.
    """
    found: dict[str, Changed] = {}
    for move in moves:
        old = move.old or base
        if not move.new:
            continue
        words = ("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", old, move.new)
        # Only commits are compared, and an index that an agent has broken would end git all the same.
        raw = agent.box.ask(*(words if old else ("ls-tree", "-r", "-z", move.new)), index=False)
        if raw is None:
            found[move.name] = None
        elif not old:
            rows = (row.partition(b"\t") for row in raw.split(b"\0") if row)
            found[move.name] = {path: os.fsdecode(head[:6]) for head, _, path in rows}
        else:
            differences = parse_rows(raw)
            found[move.name] = None if differences is None else {path: row.mode for path, row in differences.items()}
    return found


def select_gitlinks(changed: dict[str, Changed]) -> dict[str, set[bytes]]:
    """Return the gitlinks that each branch adds or changes, for those that do."""
    found = {name: {path for path, mode in (rows or {}).items() if mode == GITLINK} for name, rows in changed.items()}
    return {name: links for name, links in found.items() if links}


def links_of_tree(raw: bytes) -> set[bytes]:
    """Return the gitlinks in the answer of `ls-tree -r -z`."""
    return {row.partition(b"\t")[2] for row in raw.split(b"\0") if row.startswith(GITLINK.encode())}


class Disarmed(Value):
    """What was done about the `.git` at some gitlinks."""

    notes: tuple[str, ...] = ()
    closed: frozenset[bytes] = frozenset()  # paths that could not be examined: git of the host must not enter them


def put_aside(layout: Layout, paths: Iterable[bytes], work_tree: str = "") -> Disarmed:
    """Rename each strange `.git` at these paths of a work tree, where no agent runs any more; say which.

    The agent can take the rights of a directory away, its own and ours; git of the host needs only to search it. So
    such a directory is opened up, and one that cannot be is never taken for empty.
    """
    notes, closed = [], set()
    for path in sorted(paths):
        shown = shorten(os.fsdecode(path), 200)
        try:
            name = _put_aside(layout, work_tree or layout.work_tree, path)
        except OSError as error:
            closed.add(path)
            notes.append(f"`{shown}` cannot be examined, so no submodule comes back there: {error.strerror}")
            continue
        if name:
            notes.append(f"`{shown}/.git` is not of a submodule that claudebox knows: renamed to `{name}`")
    return Disarmed(tuple(notes), frozenset(closed))


def _put_aside(layout: Layout, work_tree: str, path: bytes) -> str:
    """Rename the `.git` in one directory if it is strange; return its new name."""
    if not _NOT_IN_A_PATH.isdisjoint(part.lower() for part in path.split(b"/")):  # no tree has been checked by now
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    directory = open_up(work_tree, os.fsdecode(path))
    if directory < 0:
        return ""
    try:
        if not _is_strange(layout, directory):
            return ""
        _give_rights(directory, stat.S_IWUSR)
        name = _free_name(directory)
        os.rename(".git", name, src_dir_fd=directory, dst_dir_fd=directory)
        return name
    finally:
        os.close(directory)


def open_up(work_tree: str, path: str) -> int:
    """Open a directory of the work tree so that it can be searched; -1 if there is none that git would enter.

    Git enters none through a link. Raise OSError where there is no saying.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(work_tree, flags & ~os.O_NOFOLLOW)
    try:
        for part in path.split("/"):
            _give_rights(current, stat.S_IXUSR)
            above, current = current, os.open(part, flags, dir_fd=current)
            os.close(above)
        _give_rights(current, stat.S_IXUSR)
    except OSError as error:
        os.close(current)
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return -1
        raise
    return current


def _give_rights(directory: int, wanted: int) -> None:
    """Give the owner rights to a directory that is ours; the descriptor leads to it and nowhere else."""
    status = os.fstat(directory)
    if status.st_mode & wanted != wanted and status.st_uid == os.geteuid():
        os.chmod(f"/proc/self/fd/{directory}", stat.S_IMODE(status.st_mode) | wanted)


def _is_strange(layout: Layout, directory: int) -> bool:
    """Return whether a directory has a `.git` that does not lead to a submodule in the real repository.

    Nothing inside can write there, so what stands there is the user's or ours.
    """
    try:
        mode = os.lstat(".git", dir_fd=directory).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        return True
    content = os.fsdecode(read_at(directory, ".git", limit=8192) or b"").rstrip("\r\n")
    if not content.startswith("gitdir: ") or "\0" in content:
        return True
    here = os.readlink(f"/proc/self/fd/{directory}")
    target = os.path.join(here, content[8:])
    # Both ways of reading it: where a directory cannot be searched now, a link on the way is not seen.
    return not all(_is_module(way(target), real_path(layout.common)) for way in (real_path, os.path.normpath))


def _is_module(path: str, common: str) -> bool:
    """Return whether a path is that of a submodule in the real git directory, or in that of one of its worktrees."""
    return path.startswith(f"{common}/modules/") or (path.startswith(f"{common}/worktrees/") and "/modules/" in path)


def _free_name(directory: int) -> str:
    for name in (_ASIDE, *(f"{_ASIDE}.{number}" for number in range(2, 1000))):
        try:
            os.lstat(name, dir_fd=directory)
        except FileNotFoundError:
            return name
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
