"""Submodules whose directory the agent has removed or renamed: the user's git directory learns where they are now.

Git inside does the same as outside (`git mv`, `git submodule deinit`), but what it writes into a configuration stays
inside. The one line that git of the host cannot do without, `core.worktree`, is written here, with a checked value.
"""

from __future__ import annotations

import os

from claudebox.console import shorten
from claudebox.files import read_small, real_path
from claudebox.launch import git_locks
from claudebox.launch.git_adopt import quote
from claudebox.launch.git_sandbox import GitError
from claudebox.launch.git_state import Private, is_replaced, read_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_state import Layout

_LIMIT = 1 << 20


def follow(path: str) -> str:
    """Follow one submodule, given its private directory, when no agent runs any more; return what the user should know.

    Its directory had a `.git` at the start.
    """
    layout = read_layout(path)
    if is_replaced(layout):  # the import says so
        return ""
    value = _read_worktree(f"{path}/own/config")
    places = (layout.work_tree, os.path.normpath(os.path.join(layout.common, value or "..")))
    place = next((place for place in places if _is_connected(layout, place)), "")
    if place == os.path.normpath(os.path.join(layout.common, _read_worktree(f"{layout.common}/config"))):
        return ""
    if place:
        shown, name = shorten(place, 200), os.path.relpath(place, layout.common)
        if _write(path, layout, name):
            return f"its directory is `{shown}` now"
        command = f"git --git-dir={layout.common} config core.worktree {name}"
        return f"its directory is `{shown}` now, and git does not know: `{shorten(command, 200)}` tells it"
    if os.path.lexists(f"{layout.work_tree}/.git") or not os.path.isdir(layout.work_tree):
        return ""  # as after `git rm`
    if os.listdir(layout.work_tree) or value:
        return "its directory has no `.git` any more: `git submodule update --init` connects it again"
    return f"it was deinitialised inside: `git submodule deinit {shorten(layout.work_tree, 200)}` does it here"


def _read_worktree(config: str) -> str:
    """Return what a configuration says, in the first line that does; the agent's may say anything."""
    for row in os.fsdecode(read_small(config, limit=_LIMIT) or b"").split("\n"):
        key, _, value = row.partition("=")
        if key.strip().lower() == "worktree" and value.isprintable():
            return value.strip().strip('"').replace('\\"', '"').replace("\\\\", "\\")
    return ""


def _is_connected(layout: Layout, place: str) -> bool:
    """Return whether a directory, reached through no link, has a `.git` file that leads to this submodule."""
    if real_path(place) != place or ".git" in place.lower().split("/"):
        return False
    content = os.fsdecode(read_small(f"{place}/.git", limit=8192) or b"").rstrip("\r\n")
    target = os.path.join(place, content.removeprefix("gitdir: "))
    return content.startswith("gitdir: ") and "\0" not in target and real_path(target) == real_path(layout.common)


def _write(path: str, layout: Layout, value: str) -> bool:
    """Put a new value into the one line of the configuration that has the old one, as git writes it."""
    config = f"{layout.common}/config"
    before = read_small(config, limit=_LIMIT) or b""
    rows = os.fsdecode(before).split("\n")
    found = [at for at, row in enumerate(rows) if row.startswith("\tworktree = ")]
    if len(found) != 1 or not value.isprintable():
        return False
    rows[found[0]] = "\tworktree = " + quote(value)
    after = os.fsencode("\n".join(rows))
    try:
        with Private(path):
            return git_locks.replace_locked(config, after, lambda: read_small(config, limit=_LIMIT) == before)
    except (GitError, OSError):
        return False
