"""Locks of git in the real repository: one file replaced under its lock, and no garbage collected meanwhile."""

from __future__ import annotations

import os
import time

from claudebox.files import read_small, write_all
from claudebox.launch.git_sandbox import GitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE, _LOOK = 2.0, 0.02  # seconds for which somebody else may hold a lock
_OLD = 12 * 3600.0  # seconds after which git takes `gc.pid` for left behind
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


class NoGarbageCollection:
    """While this is held no `git gc` of the user starts: it could delete objects that no ref leads to yet.

    The file is git's own, with our process in it; one that a dead process has left means nothing to git, or to us.
    """

    def __init__(self, common: str, *, patience: float) -> None:
        self._path = f"{common}/gc.pid"
        limit = time.monotonic() + patience
        while self._is_running():
            if time.monotonic() > limit:
                raise GitError("a `git gc` is running in your repository: nothing is brought back before its end")
            time.sleep(_LOOK)
        new = f"{self._path}.claudebox-{os.getpid()}"
        try:
            with open(new, "xb") as file:
                file.write(f"{os.getpid()} {os.uname().nodename}".encode())
            os.rename(new, self._path)
        except OSError:
            _unlink(new)
            raise

    def _is_running(self) -> bool:
        number, _, machine = (read_small(self._path, limit=4096) or b"").strip().partition(b" ")
        try:
            recent = number.isdigit() and time.time() - os.lstat(self._path).st_mtime < _OLD
        except OSError:
            return False
        return recent and (machine != os.uname().nodename.encode() or os.path.exists(f"/proc/{int(number)}"))

    def __enter__(self) -> None:
        """Hold it."""

    def __exit__(self, *_: object) -> None:
        """Let it go, if it is still ours."""
        if (read_small(self._path, limit=4096) or b"").startswith(f"{os.getpid()} ".encode()):
            _unlink(self._path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
