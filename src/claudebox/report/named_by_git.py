"""Files of the project that git obeys in a nested repository or worktree of the user's, because its settings say so.

In the project's own repository such files are protected; here they are named first if the agent changed them.
"""

from __future__ import annotations

import os

from claudebox.facts.git_executed import name_executed
from claudebox.files import read_small, real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.report.sweep import Listing

_GIT = (".git/d", ".git", ".git/l", ".git/x")
_MOST = 200  # repositories
_LINE = 8192


def find_named(workdir: str, home: str, listing: Listing, changed: set[str]) -> dict[str, str]:
    """Return paths below the project and why git obeys them; settings that the agent changed are put aside anyway."""
    found: dict[str, str] = {}
    for directory in _find_checkouts(listing):
        checkout = f"{workdir}/{directory}"
        git_dir, common = _find_git_dir(checkout)
        files = (f"{common}/config", f"{git_dir}/config.worktree")
        if any(path.removeprefix(f"{workdir}/") in changed for path in files):
            continue
        for path, reason in name_executed(checkout, common, git_dir, home):
            if path.startswith(f"{workdir}/") and not path.startswith((f"{git_dir}/", f"{common}/")):
                found.setdefault(path[len(workdir) + 1 :], f"{reason}, in `{directory}`")
    return found


def _find_checkouts(listing: Listing) -> list[str]:
    rows = (path for path, (_, names) in listing.items() if path and names and any(name in names for name in _GIT))
    return sorted(rows, key=lambda path: (path.count("/"), path))[:_MOST]


def _find_git_dir(checkout: str) -> tuple[str, str]:
    """Return the git directory of a checkout, and the one that it shares with others."""
    git_dir = real_path(f"{checkout}/.git")
    for text in _read_lines(git_dir, "gitdir: "):
        git_dir = real_path(os.path.join(checkout, text))
    for text in _read_lines(f"{git_dir}/commondir", ""):
        return git_dir, real_path(os.path.join(git_dir, text))
    return git_dir, git_dir


def _read_lines(path: str, prefix: str) -> Iterator[str]:
    text = os.fsdecode(read_small(path, limit=_LINE) or b"").rstrip("\r\n")
    if text.startswith(prefix) and text and "\0" not in text:
        yield text[len(prefix) :]
