"""What in a checkout the user's git executes because its configuration says so: hooks, further configuration, programs.

Conditions of includes are taken as met: protecting a path that git would not have read costs little.
"""

from __future__ import annotations

import os
import stat

from claudebox.facts.git_config import expand
from claudebox.facts.git_model import Executed
from claudebox.files import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.facts.git_config import ConfigRows

_MOST_PATHS = 64
# Values that are never run and often name a file of the project.
_INNOCENT = frozenset(("url", "pushurl", "fetch", "push", "merge", "remote", "name", "email", "template", "worktree",
                       "ignorerevsfile", "excludesfile", "blobs", "active", "branch"))  # fmt: skip


def find_executed(found: ConfigRows, root: str, home: str, git_dir: str) -> tuple[Executed, ...]:
    """Return what lies in the checkout at `root`, or is it; elsewhere, and in `git_dir`, the agent cannot write."""
    rows: dict[str, Executed] = {}
    for row in _named(found, root, home):
        for path in (row.path, real_path(row.path)) if "\0" not in row.path else ():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                rows.setdefault(path, row.replace(path=path))
                break
    outside = (row for path, row in rows.items() if path != git_dir and not path.startswith(f"{git_dir}/"))
    return tuple(outside)[:_MOST_PATHS]


def _named(found: ConfigRows, root: str, home: str) -> Iterator[Executed]:
    for path in found.files:
        yield Executed(path, "file", "git reads configuration from it")
    for section, _, key, value in found.rows:
        if not value or section in ("include", "includeif"):
            continue
        if (section, key) == ("core", "hookspath"):
            yield Executed(expand(value, root, home), "directory", "git runs the hooks in it")
        elif key not in _INNOCENT:
            yield from _programs(value, root, home)


def _programs(value: str, root: str, home: str) -> Iterator[Executed]:
    """Yield files of the project that a command names: `./tools/clean.sh %f`, `!sh release.sh`."""
    if "/" not in value and "." not in value and not value.startswith("!"):
        return
    for word in value.lstrip("!").replace('"', " ").replace("'", " ").split()[:16]:
        path = expand(word, root, home)
        if path.startswith(root.rstrip("/") + "/") and _is_file(path):
            yield Executed(path, "none", "the configuration of git runs it")


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
