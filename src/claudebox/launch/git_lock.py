"""Saying that a git directory of the sandbox's own is in use: a lock that ends with the process."""

from __future__ import annotations

import fcntl
import os


def hold(private: str, *, alone: bool = False) -> tuple[int, bool]:
    """Return a descriptor that holds the lock, shared with other sessions, and whether it is held `alone` as wanted."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{private}/sessions", flags, 0o600)
    os.fchmod(descriptor, 0o600)  # whatever the umask is
    try:
        if alone:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor, True
    except BlockingIOError:
        pass
    share(descriptor)
    return descriptor, False


def share(descriptor: int) -> None:
    """Let other sessions use the directory too."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
