"""Repositories, submodules and worktrees that the agent made: give the host a git directory for each (GIT-04).

It is written by hand, with a configuration of ours, and stays empty until the import fills it: nothing that the agent
wrote is executed on the host. Repositories and submodules only after a session, when no agent can change anything.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox.base import state as base_state
from claudebox.base import syscalls
from claudebox.base.console import shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    OPEN_DIRECTORY,
    Closing,
    identify,
    list_names,
    mode_of,
    open_beneath,
    read_at,
    read_small,
    real_path,
    replace_file,
)
from claudebox.git import private as git_private
from claudebox.git import sides
from claudebox.git import state as git_state
from claudebox.git.config import quote
from claudebox.git.disarm import disarm_paths
from claudebox.git.refs import objection, objection_to_new
from claudebox.git.sandbox import GitError
from claudebox.git.state import REFTABLE_HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.git.checkout import Checkout
    from claudebox.git.refs import Move
    from claudebox.git.sides import Side
    from claudebox.git.state import Layout


_PARTS = ("objects/info", "objects/pack", "refs/heads", "refs/tags", "logs", "info")
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
_DIGITS = 16
_MOST_MODULES = 64


def adopt_repository(path: str) -> bool:
    """Make a git directory for a project that had none, if the agent made one inside; return whether it exists.

    It is built beside and renamed into place; after a kill the next attempt completes it.
    """
    layout = git_state.read_layout(path)
    place = f"{layout.work_tree}/.git"
    built = f"{place}.claudebox"
    if layout.common not in ("", place) or not _holds_work(path, "own"):
        return False
    if layout.common and os.path.lexists(f"{place}/HEAD"):
        return True
    if git_state.find_work_tree(layout) not in (None, identify(layout.work_tree)):
        raise ClaudeboxError(
            f"a repository was made inside, and stays there: `{layout.work_tree}` was replaced or moved"
        )
    try:
        git_private.remove(built)
        if not _is_free(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)
        _make(built, f"{path}/own", _CONFIG)
        inodes = git_state.find_inode(built), git_state.find_inode(layout.work_tree)
        made = layout.replace(common=place, git_dir=place, stores=(f"{place}/objects",), common_inode=inodes[0],
                              work_tree_inode=inodes[1])  # fmt: skip
        _write(path, made, built)
        os.rename(built, place)
    except OSError as error:
        _remove_quietly(built)
        raise ClaudeboxError(
            f"a repository was made inside, and `{place}` cannot be made: {error.strerror}; "
            "`claudebox sync` tries it again"
        ) from None
    return True


def _remove_quietly(path: str) -> None:
    try:
        git_private.remove(path)
    except OSError:
        return  # the next attempt does it


def forget_repository(path: str) -> None:
    """Reset the private directory of a project without a repository, now that it has one."""
    git_private.remove(f"{path}/own")
    os.mkdir(f"{path}/own", 0o700)
    _write(
        path, git_state.read_layout(path).replace(common="", git_dir="", stores=(), common_inode=0, work_tree_inode=0)
    )


def find_layout(path: str) -> Layout | None:
    """Return the layout of a repository, also of one that was made inside and has come back; None without one."""
    layout = git_state.read_layout(path) if git_state.has_state(path) else None
    if layout is None or layout.common:
        return layout
    place = f"{layout.work_tree}/.git"
    is_there = os.path.lexists(f"{place}/HEAD")
    return layout.replace(common=place, git_dir=place, stores=(f"{place}/objects",)) if is_there else None


def adopt_submodules(path: str) -> list[str]:
    """Make a git directory for each submodule that the agent has added; return their private directories."""
    layout = git_state.read_layout(path)
    if git_state.is_replaced(layout):  # the import says so
        return []
    made = []
    inside = os.path.normpath(f"{path}/own/{layout.checkout}/modules")
    for name, checkout in _new_modules(path, layout):
        place = f"{layout.git_dir}/modules/{name}"
        if not os.path.lexists(place):
            built = f"{layout.git_dir}/claudebox.module"
            relative = os.path.relpath(f"{layout.work_tree}/{checkout}", place)
            git_private.remove(built)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _make(built, f"{inside}/{name}", f"{_CONFIG}\tworktree = {quote(relative)}\n")
            inner = layout.replace(
                common=place, git_dir=place, work_tree=f"{layout.work_tree}/{checkout}", stores=(f"{place}/objects",),
                depth=layout.depth + 1, module=name, only="",
                common_inode=git_state.find_inode(built), work_tree_inode=0,
            )  # fmt: skip
            private = f"{os.path.dirname(path)}/{base_state.name_git_directory(built, built)}"
            if os.path.lexists(f"{private}/own"):  # of a deleted git directory with the same inode
                os.rename(private, f"{private}.{time.time_ns()}")
            os.makedirs(private, mode=0o700, exist_ok=True)
            _write(private, inner, built)
            os.rename(built, place)
        private = f"{os.path.dirname(path)}/{base_state.name_git_directory(place, place)}"
        with Closing(_open_below(inside, os.path.dirname(name))) as around:  # through no link of the agent
            os.rename(os.path.basename(name), f"{private}/own", src_dir_fd=around)
        made.append(private)
    return made


def _is_new(path: str, place: str) -> bool:
    """Return whether a submodule has no git directory yet, or one that an import made and did not fill."""
    if not os.path.lexists(place):
        return True
    try:
        private = f"{os.path.dirname(path)}/{base_state.name_git_directory(place, place)}"
    except OSError:
        return False
    return git_state.has_state(private) and not os.path.lexists(f"{private}/own")


def _new_modules(path: str, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield name and checkout of each submodule that only the agent has: a gitfile leads to it."""
    for checkout in _gitfiles(layout.work_tree):
        gitfile = _read_below(layout.work_tree, f"{checkout}/.git")
        if gitfile is None:  # it is not initialised outside
            inside = own_checkout(path, layout.replace(work_tree=f"{layout.work_tree}/{checkout}"))
            gitfile = _read_below(os.path.dirname(path), os.path.relpath(f"{inside}/.git", os.path.dirname(path)))
        content = (gitfile or b"").decode("utf-8", "surrogateescape")
        target = os.path.normpath(f"{layout.work_tree}/{checkout}/{content.removeprefix('gitdir: ').rstrip()}")
        name = target.removeprefix(f"{layout.git_dir}/modules/")
        if not content.startswith("gitdir: ") or name == target or objection(f"refs/heads/{name}"):
            continue
        own = os.path.normpath(f"{layout.checkout}/modules/{name}")
        if _is_new(path, f"{layout.git_dir}/modules/{name}") and _holds_work(f"{path}/own", own):
            yield name, checkout


def own_checkout(path: str, layout: Layout) -> str:
    """Return the directory that stands inside in the place of a submodule that is not initialised outside."""
    return f"{os.path.dirname(path)}/checkouts/{syscalls.sha256(os.fsencode(layout.work_tree))[:_DIGITS]}"


def _gitfiles(work_tree: str) -> Iterator[str]:
    """Yield the paths that `.gitmodules` names, if they are plain."""
    content = (_read_below(work_tree, ".gitmodules") or b"").decode("utf-8", "surrogateescape")
    rows = [row.strip() for row in content.split("\n")][: _MOST_MODULES * 16]
    for row in rows:
        key, _, value = row.partition("=")
        checkout = value.strip().strip('"')
        plain = checkout.isprintable() and checkout == os.path.normpath(checkout) and checkout[:1] not in "/.-"
        if key.strip() == "path" and plain:
            yield checkout


def _open_below(base: str, path: str) -> int:
    with Closing(os.open(base, OPEN_DIRECTORY)) as top:
        return open_beneath(top, path, listed=True)


def _read_below(base: str, path: str) -> bytes | None:
    try:
        with Closing(_open_below(base, os.path.dirname(path))) as directory:
            return read_at(directory, os.path.basename(path))
    except OSError:
        return None


def _holds_work(base: str, path: str) -> bool:
    """Return whether a directory beneath one of ours is a repository that is not empty."""
    try:
        with Closing(_open_below(base, path)) as directory:
            names = os.listdir(directory)
            is_whole = all(stat.S_ISDIR(mode_of(name, directory)) for name in ("refs", "objects"))
    except OSError:
        return False
    return is_whole and not {"index", "packed-refs", "logs"}.isdisjoint(names)


def _is_free(place: str) -> bool:
    """Remove empty directories, of the sandbox or of a failed attempt; return whether nothing else is there."""
    if not stat.S_ISDIR(mode_of(place)):
        return not os.path.lexists(place)
    if any(names for _, _, names in os.walk(place)):
        return False
    git_private.remove(place)
    return True


def _make(place: str, own: str, config: str) -> None:
    for part in _PARTS:
        os.makedirs(f"{place}/{part}")
    head = (_read_below(own, "HEAD") or b"").decode("utf-8", "surrogateescape").strip()
    branch = head.removeprefix("ref: ")
    plain = head.startswith("ref: refs/heads/") and not objection_to_new(branch)
    _write_files(place, HEAD=f"ref: {branch if plain else 'refs/heads/main'}\n", config=config)


def _write_files(directory: str, **files: str) -> None:
    with Closing(os.open(directory, OPEN_DIRECTORY)) as opened:
        for name, text in files.items():
            replace_file(opened, name, os.fsencode(text))
            os.chmod(name, 0o644, dir_fd=opened)


def _write(path: str, layout: Layout, built: str = "") -> None:
    """Write the state as set-up would; what was `built` is empty, so both sides have only HEAD in common."""
    head = (_read_below(built, "HEAD") if built else b"") or b""
    git_state.write_state(path, git_state.State(layout))
    git_state.write_synced(path, head=head.strip(), index=b"")


# Worktrees that were made inside become worktrees of the host's repository. Their files lie in the project already.
# What the agent's git directory says is checked, and its index is not used. A registration is built beside, with an
# index, and renamed into place: without an index the next commit there would delete every file.


_MOST = 64
_LINE = 4096
_BUILD = "claudebox"  # in the git directory, as deep as `worktrees`
_BRANCH = "ref: refs/heads/"


class Worktrees:
    """The agent's worktrees in the project."""

    def __init__(self, path: str, layout: Layout, agent: Side, host: Side) -> None:
        self._path, self._layout, self._agent, self._host = path, layout, agent, host
        self.problem = ""  # why the last one could not move
        self.reached: dict[str, str] = {}  # git directories of the host that the agent can work in, and their HEADs
        for name in _names(f"{path}/own/worktrees"):
            entry, target = f"{path}/own/worktrees/{name}", f"{layout.common}/worktrees/{name}"
            same = _is_same(target, os.path.dirname(_line(f"{entry}/gitdir")))
            head = _line(f"{target}/HEAD")
            is_read = host.is_id(head) or (head.startswith(_BRANCH) and head != REFTABLE_HEAD)
            if same and is_read and target != layout.git_dir and not os.path.lexists(f"{entry}/locked"):
                self.reached[target] = head

    def bring_back(self, checkout: Checkout, taken: frozenset[str], moves: list[Move], *, final: bool) -> Iterator[str]:
        """Register new worktrees, move HEAD and branch of those that the host has; yield lines to tell.

        `taken` are branches that other checkouts of the host have. A worktree with gitlinks waits until no agent runs
        (`final`): git of the host enters them.
        """
        layout, host = self._layout, self._host
        clear_unfinished(layout.common, os.path.basename(self._path))
        for name in _names(f"{self._path}/own/worktrees"):
            entry, target = f"{self._path}/own/worktrees/{name}", f"{layout.common}/worktrees/{name}"
            where, head = os.path.dirname(_line(f"{entry}/gitdir")), _line(f"{entry}/HEAD")
            if os.path.lexists(target) and target not in self.reached:
                continue  # the checkout of the session itself, or one that is out of its reach
            before = self.reached.get(target, "")
            own_moves = [move for move in moves if f"ref: {move.name}" == before]
            if before == head and not own_moves:
                continue
            refs = host.refs | {move.name: move.new for move in own_moves}
            problem = _why_not(name, where, target, layout) or _why_not_head(head, host, refs, taken)
            commit = refs.get(head.removeprefix("ref: "), head)
            raw = b"" if problem else host.box.ask("ls-tree", "-r", "-z", commit)
            links = sides.links_of_tree(raw or b"")
            if links and not final:
                self.problem = "it has a submodule, which comes back at the end of the session"
                continue
            notes, closed = disarm_paths(where, links, (real_path(layout.common),))
            yield from notes
            if raw is None or closed:
                problem = "has a submodule that cannot be examined, and does not come back"
            if not problem and before:
                old = host.refs.get(before.removeprefix("ref: "), before)
                problem, _ = checkout.move_together(
                    target, (old, commit), (before, head if head != before else ""), own_moves
                )
                problem = problem and f"stays as it is: {problem}"
            elif not problem:
                try:
                    _register(layout.common, os.path.basename(self._path), name, where, head, host)
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
    """Return the line of a file with one line; "" for anything else."""
    if os.path.islink(os.path.dirname(path)):
        return ""
    text = os.fsdecode(read_small(path, limit=_LINE) or b"").strip()
    return "" if "\n" in text or "\0" in text else text


def _why_not(name: str, where: str, target: str, layout: Layout) -> str:
    if name.startswith(".") or "\n" in name:  # git itself gives no such name
        return "was not imported: unsupported name"
    if not where:
        return "was not imported: unsupported path, such as one with a line break; its files stay as they are"
    if not where.startswith(layout.work_tree.rstrip("/") + "/"):
        return "lay outside of the project and is gone; make worktrees in the project (.claude/worktrees)"
    if real_path(where) != where or _line(f"{where}/.git") != f"gitdir: {target}":
        return "is no longer there"
    return ""


def _why_not_head(head: str, host: Side, refs: dict[str, str], taken: frozenset[str]) -> str:
    if head.startswith(_BRANCH):
        name = head.removeprefix("ref: ")
        if name in taken:
            return f"has {shorten(name, 80)} checked out, and so has another checkout"
        return "" if refs.get(name) else f"has {shorten(name, 80)}, which did not come back"
    return "" if host.is_id(head) and host.has_all((head,)) else "has a commit that is on no branch"


def _register(common: str, owner: str, name: str, where: str, head: str, host: Side) -> None:
    """Register a worktree with an index as if just checked out: edited files show as changed."""
    built, target = f"{common}/{_BUILD}/{owner}-{name}", f"{common}/worktrees/{name}"
    git_private.remove(built)
    os.makedirs(built)
    try:
        _write_files(built, commondir="../..\n", gitdir=f"{where}/.git\n", HEAD=f"{head}\n")
        host.box.git("--git-dir", built, "read-tree", "HEAD")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(built, target)
    finally:
        clear_unfinished(common, owner)


def clear_unfinished(common: str, owner: str) -> None:
    """Remove what a killed import of this private directory began to build."""
    for entry in list_names(f"{common}/{_BUILD}"):
        if entry.startswith(f"{owner}-"):
            git_private.remove(f"{common}/{_BUILD}/{entry}")
    try:
        os.rmdir(f"{common}/{_BUILD}")
    except OSError:  # missing, or in use by another import
        return
