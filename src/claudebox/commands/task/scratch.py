"""Where a task is worked on: a directory of its own, removed at its end, or by the next task after a `kill -9`."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from typing import TYPE_CHECKING, Self

from claudebox.errors import ClaudeboxError
from claudebox.files import Closing

if TYPE_CHECKING:
    from types import TracebackType

_PREFIX = "claudebox-task-"
_LOCK = "lock"


class Scratch:
    """A directory for one task; use it with `with`."""

    def __init__(self, environ: dict[str, str]) -> None:
        """Take the directory that TMPDIR names, or /var/tmp: work can be too large for memory."""
        self._base = environ.get("TMPDIR") or "/var/tmp"
        self.path = ""

    def __enter__(self) -> Self:
        """Make the directory, and remove those that nobody is working in."""
        try:
            self._sweep()
            while not self._make():
                pass
            os.mkdir(f"{self.path}/state", 0o700)
        except OSError as error:
            raise ClaudeboxError(
                f"there is no place to work in `{self._base}`: {error.strerror}",
                hint="set TMPDIR to a directory of yours",
            ) from None
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Remove it."""
        remove(self.path)
        os.close(self._lock)

    def _make(self) -> bool:
        """Make a directory and lock it; False if another task took it for left behind before it was locked."""
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=self._base)
        self._lock = os.open(f"{self.path}/{_LOCK}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.fstat(self._lock).st_nlink:
            return True
        os.close(self._lock)
        return False

    def _sweep(self) -> None:
        with os.scandir(self._base) as entries:
            found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
        for path in found:
            try:
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    continue
                lock = os.open(f"{path}/{_LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            with Closing(lock):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(path)
                except BlockingIOError:
                    pass  # somebody works there


def remove(path: str) -> None:
    """Remove a directory that an agent has written in, whatever modes it left there."""

    def open_up(_function: object, name: str, _error: object) -> None:
        parent = os.path.dirname(name)
        for each in (parent, name):
            if not os.path.islink(each) and os.path.isdir(each):
                os.chmod(each, 0o700)
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name, ignore_errors=True)
        else:
            try:
                os.unlink(name)
            except OSError:
                pass

    shutil.rmtree(path, onerror=open_up)
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
