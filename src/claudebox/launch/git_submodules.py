"""Gitlinks that branches add or change.

On the host `git status` enters the repository at a gitlink and does what its configuration says. So a branch that adds
one waits for the end of the session, when nobody can put a `.git` there any more, and what stands there is disarmed
before the branch moves. What cannot be examined is not taken in.
"""

from __future__ import annotations

import os

from claudebox.launch.git_sides import parse_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.launch.git_merge import Move
    from claudebox.launch.git_sides import Side

    Changed = dict[bytes, str] | None  # path -> mode

GITLINK = "160000"


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
