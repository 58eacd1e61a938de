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


def remember(private: Private, layout: Layout) -> None:
    """Write down which operations of the host the agent goes on with."""
    rows = []
    for name in _states(layout.git_dir):
        status = os.lstat(f"{layout.git_dir}/{name}")
        rows.append(f"{name} {status.st_ino} {status.st_mtime_ns}\n")
    if rows and private.read("states") is None:
        private.write("states", "".join(rows).encode())


def find_ongoing(private: Private, layout: Layout) -> str:
    """Return which operation of the host is under way that the agent did not go on with, nothing if none is."""
    remembered = (private.read("states") or b"").decode().split("\n")
    for name in _states(layout.git_dir):
        status = os.lstat(f"{layout.git_dir}/{name}")
        if f"{name} {status.st_ino} {status.st_mtime_ns}" not in remembered:
            return _NAMES[name]
    return ""


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
        private.write("states", b"")
    return notes
