"""Operations of git that are under way, a rebase or a merge: on which side, and what becomes of the host's.

While one is under way git moves HEAD and index to and fro, and some of its files name commands; none comes back.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_state import Layout, Private

_NAMES = {
    "rebase-merge": "rebase", "rebase-apply": "rebase", "sequencer": "cherry-pick", "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "BISECT_START": "bisect",
}  # fmt: skip


def under_way(directory: str) -> str:
    """Return which operation is under way in a git directory, nothing if there is none."""
    return next((_NAMES[name] for name in _states(directory)), "")


def describe(operation: str) -> str:
    """Return what the user should know of an operation that is under way inside."""
    words = "bisect reset" if operation == "bisect" else f"{operation} --abort"
    return (
        f"a {operation} is under way inside; the next session can go on with it, and "
        f" `claudebox --exec -- git {words}` ends it"
    )


def _states(directory: str) -> list[str]:
    return [name for name in _NAMES if os.path.lexists(f"{directory}/{name}")]


def find_states(git_dir: str) -> list[str]:
    """Return what tells whether an operation of the host is still where it was."""
    found = ((name, os.lstat(f"{git_dir}/{name}")) for name in _states(git_dir))
    return [f"{name} {status.st_ino} {status.st_mtime_ns}" for name, status in found]


def find_ongoing(private: Private) -> str:
    """Return which operation of the host is under way that the agent has not ended, nothing if none is."""
    state = private.state()
    rows = (row for row in find_states(state.layout.git_dir) if row not in state.operations)
    return next((_NAMES[row.partition(" ")[0]] for row in rows), "")


def put_aside(private: Private, layout: Layout) -> list[str]:
    """Take away what was under way on the host and the agent has finished; return what the user should know.

    If it stayed, `git rebase --abort` on the host would throw the result away.
    """
    notes = []
    for name in _states(layout.git_dir):
        aside = f"{layout.git_dir}/claudebox.{name}.{time.time_ns()}"
        try:
            os.rename(f"{layout.git_dir}/{name}", aside)
        except OSError as error:
            notes.append(f"`{name}` cannot be put aside: {error.strerror}")
        else:
            notes.append(f"the {_NAMES[name]} that was under way has ended inside; its state is in `{aside}`")
    if notes:
        private.update(operations=())
    return notes
