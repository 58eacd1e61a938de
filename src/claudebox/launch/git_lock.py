"""Saying that a git directory of the sandbox's own is in use: a lock that ends with the process."""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.model import Plan


def hold(private: str, *, alone: bool = False) -> tuple[int, bool]:
    """Return a descriptor that holds the lock, shared with other sessions, and whether it is held `alone` as wanted."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{private}/sessions", flags, 0o600)
    for _ in range(2 if alone else 0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor, True
        except BlockingIOError:
            share(descriptor)  # an import at the end of another session may have it: wait for that, and try again
    share(descriptor)
    return descriptor, False


def share(descriptor: int) -> None:
    """Let other sessions use the directory too."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def set_up(plan: Plan) -> list[int]:
    """Make the git directories of the sandbox's own; they are in use while what is returned is open."""
    in_use = [hold(own.private)[0] for own in plan.git if not own.real]
    if len(in_use) == len(plan.git):
        return in_use
    from claudebox.launch import git_session

    return in_use + git_session.set_up(plan)


def release(in_use: list[int]) -> None:
    """Let go of git directories that are not in use any more."""
    for descriptor in in_use:
        os.close(descriptor)
