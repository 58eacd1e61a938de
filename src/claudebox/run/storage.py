"""The caches of a project, and the directory of a session whose home and /tmp are on disk (scratch).

What is in use is locked, and locks end with their process: the next session removes what a killed one has left.
"""

from __future__ import annotations

import fcntl
import os
import time

from claudebox.base import trees
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, OPEN_LOCK, Closing
from claudebox.base.state import open_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.records import Plan


_DAY = 24 * 3600.0


class Storage:
    """The storage of one session; `directory` is that of the instance."""

    def __init__(self, plan: Plan, directory: str) -> None:
        self._plan, self._directory, self._place = plan, directory, f"{directory}/scratch"
        self._name = os.path.basename(plan.scratch)
        self._own = -1  # the scratch directory, locked
        self._caches = _lock_caches(plan.caches) if plan.caches else -1
        try:
            top = os.open(self._place, OPEN_DIRECTORY)
        except OSError:  # no session here has had one
            return
        with Closing(top):
            fcntl.flock(top, fcntl.LOCK_EX)  # another session may be about to lock what it makes
            left = [(name, held) for name in os.listdir(top) if (held := _take(top, name)) >= 0]
            if self._name:
                self._make(top)
        for name, held in left:
            self._clear(name)
            os.close(held)

    def end(self) -> list[str]:
        """Release everything, and prune the caches once a day; return what the user should know.

        Directories that something inside has closed are opened up for what follows.
        """
        open_again(self._directory, self._plan.kept)
        notes = self._clear(self._name) if self._own >= 0 else []
        due = self._caches >= 0 and time.time() - os.fstat(self._caches).st_mtime > _DAY
        for descriptor in (self._own, self._caches):
            if descriptor >= 0:
                os.close(descriptor)
        if due:
            from claudebox.run import caches

            notes += caches.prune(self._plan.caches, self._plan.policy.cache_limit)
        return notes

    def _make(self, top: int) -> None:
        """Make home and /tmp of this session; inside, the directory around them is not visible."""
        try:
            os.mkdir(self._name, 0o700, dir_fd=top)
            self._own = _take(top, self._name)
            for name, mode in (("home", 0o700), ("tmp", 0o1777)):
                os.mkdir(name, 0o700, dir_fd=self._own)
                os.chmod(name, mode, dir_fd=self._own)  # whatever the umask is
        except OSError as error:
            raise ClaudeboxError(
                f"`{self._place}` cannot hold the home of the sandbox: {error.strerror}",
                hint="free disk space, or choose `--set scratch=memory`",
            ) from None

    def _clear(self, name: str) -> list[str]:
        try:
            trees.remove(self._place, name)
        except OSError as error:
            return [f"`{self._place}/{name}` could not be removed: {error.strerror}"]
        return []


def _take(top: int, name: str) -> int:
    """Open and lock a scratch directory; return -1 if a session uses it."""
    descriptor = -1
    try:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=top)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return -1
    return descriptor


def _lock_caches(directory: str) -> int:
    """Return a descriptor whose lock marks caches as in use."""
    descriptor = os.open(f"{directory}.lock", OPEN_LOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # another session, which has ended, is pruning
        pass
    return descriptor
