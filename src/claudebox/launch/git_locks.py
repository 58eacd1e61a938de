"""One file of a real git directory replaced under its lock."""

from __future__ import annotations

import os
import time

from claudebox.files import write_all
from claudebox.launch.git_sandbox import GitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE, _LOOK = 2.0, 0.02  # seconds for which somebody else may hold a lock
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_locked(path: str, content: bytes, unchanged: Callable[[], bool], mtime: int = 0) -> bool:
    """Replace a file of git under its lock if nobody has changed it; return whether that was done."""
    lock = f"{path}.lock"
    descriptor, replaced = _take(lock), False
    try:
        write_all(descriptor, content)
        if mtime:
            os.utime(lock, ns=(mtime, mtime))
        if unchanged():
            os.rename(lock, path)
            replaced = True
        return replaced
    finally:
        os.close(descriptor)
        if not replaced:
            _unlink(lock)


def _take(lock: str) -> int:
    limit = time.monotonic() + _PATIENCE
    while True:
        try:
            return os.open(lock, _NEW, 0o644)
        except FileExistsError:
            if time.monotonic() > limit:
                raise GitError(f"`{lock}` is held by another git") from None
            time.sleep(_LOOK)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
