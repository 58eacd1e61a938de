"""Repositories that the user has below a project, as far as they can be found before a session begins."""

from __future__ import annotations

import os
import stat
import time

from claudebox.base.files import OPEN_DIRECTORY, Closing, read_at, read_small
from claudebox.git.facts import Nested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


KEPT = "repositories"  # in the state of a project: git directories with settings of their own, from the last look
KEPT_LIMIT = 4 << 20
_MOST_ENTRIES, _MOST_SECONDS = 5000, 0.1  # of a launch
_MOST = 256
_CONFIG_LIMIT = 1 << 16
_PASSED_OVER = frozenset(("node_modules", ".venv", "venv", "target", "__pycache__", ".tox", ".mypy_cache"))


def find_nested(roots: tuple[str, ...], directory: str) -> tuple[Nested, ...]:
    """Return the nested repositories near the top, and those that the last look has kept in the state."""
    kept = os.fsdecode(read_small(f"{directory}/{KEPT}", limit=KEPT_LIMIT) or b"").split("\0")
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    paths = dict.fromkeys((*_search(roots), *(path for path in kept if path.startswith(inside))))
    return tuple(row for row in map(_look_at, list(paths)[:_MOST]) if row is not None)


def _search(roots: tuple[str, ...]) -> Iterator[str]:
    """Yield git directories below some directories, those near the top first."""
    left, limit = _MOST_ENTRIES, time.monotonic() + _MOST_SECONDS
    waiting = [root.rstrip("/") for root in roots]
    for directory in waiting:  # it grows meanwhile
        below: list[str] = []
        names: set[str] = set()
        try:
            with os.scandir(directory or "/") as entries:
                for entry in entries:
                    left -= 1
                    if left < 0 or time.monotonic() > limit:
                        return
                    names.add(entry.name)
                    if entry.name == ".git" and entry.is_dir(follow_symlinks=False):
                        if directory not in roots:
                            yield f"{directory}/.git"
                    elif entry.is_dir(follow_symlinks=False) and entry.name not in _PASSED_OVER:
                        below.append(f"{directory}/{entry.name}")
        except OSError:
            continue
        if names >= {"HEAD", "objects", "refs"} and directory not in roots:
            yield directory
        else:
            waiting += below


def _look_at(path: str) -> Nested | None:
    try:
        with Closing(os.open(path, OPEN_DIRECTORY)) as directory:
            status = os.fstat(directory)
            try:
                hooks = os.lstat("hooks", dir_fd=directory)
            except FileNotFoundError:
                hooks = None
            inode = hooks.st_ino if hooks is not None and stat.S_ISDIR(hooks.st_mode) else 0
            config = read_at(directory, "config", limit=_CONFIG_LIMIT) or b""
            return Nested(path, (status.st_dev, status.st_ino), inode, config)
    except OSError:
        return None
