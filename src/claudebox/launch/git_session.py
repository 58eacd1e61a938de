"""Git for one session: what a killed one has left comes back, the git directories are made, a sidecar follows them."""

from __future__ import annotations

import os
import time

from claudebox import console
from claudebox.console import shorten
from claudebox.errors import ClaudeboxError
from claudebox.files import identify, list_names
from claudebox.launch import git_setup, git_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.launch.git_follow import Follower
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import Plan


def follow(plan: Plan) -> Follower:
    """Return the sidecar that brings back what is done inside."""
    from claudebox.launch.git_follow import Follower

    return Follower(_repositories(plan), lambda: _tools(plan), _name(), plan.policy.git_import)


def set_up(plan: Plan) -> list[int]:
    """Make the git directories; they are in use while the descriptors that are returned are open."""
    for own in plan.git:
        if own.real:
            git_setup.find_moved(own)
    for private in dict.fromkeys((*_repositories(plan), *_left(plan))):
        if git_state.is_known(private) and not git_state.settled(private):
            with git_state.Alone(private) as final:
                if final:
                    _recover(plan, private)
    held = [git_setup.set_up(own, git_state.settled) for own in plan.git if own.real]
    for own in plan.git:
        if own.real and own.ref_format != "files":
            _read_base(plan, own.private)
    return held


def _read_base(plan: Plan, private: str) -> None:
    """Let git say which refs both sides start with, where they are kept in a format that only git reads."""
    from claudebox.launch import git_beginning

    try:
        git_beginning.read_base(private, _tools(plan))
    except ClaudeboxError as error:
        console.warn(f"git: {error.message}")


def adopt(plan: Plan) -> tuple[list[str], list[str]]:
    """Take over a repository that the agent has made where there was none; return its branches, and what to know."""
    for own in plan.git:
        if own.real or not os.path.lexists(f"{own.own}/HEAD"):
            continue
        from claudebox.launch import git_import, git_report

        with git_state.Alone(own.private) as final:
            if not final:
                continue
            pinned = next((row.pinned for row in plan.mounts if row.source == own.worktree and row.pinned), None)
            if pinned not in (None, identify(own.worktree)):
                place = shorten(own.worktree, 200)
                return [], [f"git: a repository was made inside, and stays there: `{place}` was replaced or moved"]
            git_setup.write_layout(own)
            if plan.policy.git_import != "auto":
                return [], ["git: a repository was made inside; `claudebox --import` brings it here"]
            try:
                return git_report.divide(git_import.adopt(own.private, _tools(plan), _name()))
            except ClaudeboxError as error:
                return [], [f"git: {error.message}"]
            except OSError as error:
                return [], [f"git: {git_state.describe_error(error, own.private)}; `claudebox --import` goes on"]
    return [], []


def _left(plan: Plan) -> Iterator[str]:
    """Yield what is kept for repositories under earlier names, and for one that was being adopted."""
    for directory in dict.fromkeys(os.path.dirname(own.private) for own in plan.git):
        for name in list_names(directory):
            private = f"{directory}/{name}"
            if git_state.has_state(private) and os.path.lexists(git_state.read_layout(private).common):
                yield private


def _recover(plan: Plan, private: str) -> None:
    """Bring back what a session has left that was killed."""
    from claudebox.launch import git_import, git_report

    try:
        outward = plan.policy.git_import == "auto"
        if outward:
            done = git_import.finish(private, _tools(plan), _name())
        else:
            done = {private: git_import.bring_back(private, _tools(plan), _name(), outward=False, final=True)}
    except ClaudeboxError as error:
        console.warn(f"git: {error.message}")
    except OSError as error:
        console.warn(f"git: {git_state.describe_error(error, private)}")
    else:
        for line in git_report.lines(done):
            console.note(line)


def _repositories(plan: Plan) -> tuple[str, ...]:
    """Return what is kept for each repository, submodules before what is around them."""
    rows = sorted((own for own in plan.git if own.real), key=lambda own: -own.place.count("modules/"))
    return tuple(own.private for own in rows)


def _tools(plan: Plan) -> Tools:
    from claudebox.launch.git_sandbox import Tools

    path = next((row.value for row in plan.variables if row.name == "PATH"), "/usr/bin:/bin")
    return Tools(plan.bwrap, path, plan.seccomp)


def _name() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
