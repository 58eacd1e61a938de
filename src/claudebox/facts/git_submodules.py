"""Submodules of a repository: their git directories, and the directories that git looks into from above."""

from __future__ import annotations

import os

from claudebox.facts import git_config, git_index
from claudebox.files import read_small, real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.facts.git_model import GitDirectory, Repository

_MOST_MODULES = 128
_MODULE_DEPTH = 12  # names of submodules may hold slashes, and submodules have submodules


def find_directories(found: Repository, describe: Callable[[str, str], GitDirectory]) -> Iterator[GitDirectory]:
    """Yield the git directories of submodules, those of submodules of submodules after them.

    Those of a linked worktree lie in its own part of the git directory.
    """
    pending = [(os.path.relpath(f"{found.git_dir}/modules", found.common_dir), 0)]
    known = {real_path(found.common_dir), real_path(found.git_dir)}  # a link can lead back to one of them
    count = 0
    while pending and count < _MOST_MODULES:
        relative, depth = pending.pop(0)
        path = os.path.join(found.common_dir, relative)
        for name in list_directories(path):
            place, below = f"{relative}/{name}", f"{path}/{name}"
            count += 1
            if not os.path.isfile(f"{below}/HEAD"):
                pending += [(place, depth + 1)] if depth < _MODULE_DEPTH else []
                continue
            real = real_path(below)
            if real in known:
                continue
            known.add(real)
            try:
                directory = describe(below, place)
            except (OSError, ValueError):
                continue
            value = git_config.last((*directory.rows, *directory.worktree_rows), "core", "worktree")
            yield directory.replace(worktree=real_path(os.path.join(below, value)) if value else "")
            pending += [(f"{place}/modules", depth + 1)] if depth < _MODULE_DEPTH else []


def list_directories(path: str) -> list[str]:
    """Return the names of directories in a directory, as many as are looked at."""
    try:
        with os.scandir(path) as entries:
            found = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return sorted(name for _, name in zip(range(_MOST_MODULES), found, strict=False))
    except OSError:
        return []


def find_worktrees(found: Repository) -> Iterator[tuple[str, str]]:
    """Yield the linked worktrees, each with its own part of the git directory."""
    for name in list_directories(f"{found.common_dir}/worktrees"):
        entry = f"{found.common_dir}/worktrees/{name}"
        where = os.path.dirname(os.fsdecode(read_small(f"{entry}/gitdir", limit=8192) or b"").rstrip("\n"))
        if where.startswith("/") and os.path.normpath(where) == where and "\0" not in where:
            yield where, entry


def find_checkouts(
    found: Repository, submodules: Iterable[GitDirectory], worktrees: Iterable[tuple[str, str]], digest: int
) -> Iterator[str]:
    """Yield the directories of submodules that git looks into from above, relative to the checkout.

    Git takes no submodule whose path leads through `.git`; a mount there would be in the way of the sandbox's own.
    """
    for path in _find_named(found, submodules, worktrees, digest):
        if ".git" not in path.split("/"):
            yield path


def _find_named(
    found: Repository, submodules: Iterable[GitDirectory], worktrees: Iterable[tuple[str, str]], digest: int
) -> Iterator[str]:
    indexes = [(found.root, f"{found.git_dir}/index")]
    for directory in submodules:
        if directory.worktree.startswith(found.root.rstrip("/") + "/"):
            yield os.path.relpath(directory.worktree, found.root)
            indexes.append((directory.worktree, f"{directory.path}/index"))
    top = found.root.rstrip("/") + "/"
    indexes += [(where, f"{entry}/index") for where, entry in worktrees if where.startswith(top)]
    for root, index in indexes:
        for name in git_index.find_submodules(index, digest):
            yield os.path.relpath(f"{root}/{name}", found.root)
        for section, _, key, value in git_config.parse_config(read_small(f"{root}/.gitmodules", limit=1 << 20) or b""):
            path = os.path.normpath(value) if value and "\0" not in value else "/"
            if (section, key) == ("submodule", "path") and not path.startswith(("/", "..")) and path != ".":
                yield os.path.relpath(f"{root}/{path}", found.root)
