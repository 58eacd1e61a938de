"""Protection follows the host: what is replaced or removed there while a session runs is protected or masked again.

A mount hangs on the very file that it covers. Editors and git rename a new file over the old one, and `git clean`
removes stubs: the mount is dropped then, or moves away with the old name. So the launcher watches the directories of
everything that it has mounted for protection, and mounts again with the same program as before.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, open_beneath, read_small
from claudebox.git.sidecar import Watcher
from claudebox.plan import bwrap
from claudebox.plan.records import Stub
from claudebox.run import mounts as run_mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.bwrap import Placed
    from claudebox.plan.records import Plan
    from claudebox.run.stubs import Session


_FOREVER = 3600.0
_SOON, _SETTLED = 0.1, 0.3  # seconds to the next attempt, and until something counts as removed: git makes it anew
_ATTEMPTS = 20
_FOLLOWED = frozenset(("protected", "pin", "masked", "git"))  # roles


class HostGuard:
    """The protected and masked paths of one sandbox; `descriptor` is readable when the host may have changed one."""

    def __init__(self, plan: Plan, init: int, stubs: Session, place: str) -> None:
        """Take the first process inside, what makes stubs, and a directory of ours."""
        self._plan, self._init, self._stubs, self._place = plan, init, stubs, place
        rows = (row for row in bwrap.place(plan) if row.root is not None and row.mount.role in _FOLLOWED)
        self._rows = [row for row in rows if row.mount.kind != "empty"]
        self._names = {_on_host(row) for row in self._rows}
        self._watcher = Watcher()
        self.descriptor = self._watcher.descriptor
        self._missing: dict[str, float] = {}  # since when
        self._failures: dict[str, int] = {}
        self._first = time.monotonic() + _SETTLED  # a short command does without
        self._due = True  # what has changed since everything was mounted is not known
        self._notes: list[str] = []

    def look(self) -> float:
        """Protect again what has lost its protection; return in how many seconds to look again."""
        if (left := self._first - time.monotonic()) > 0:
            return left
        for directory, name, _ in self._watcher.events():
            if not directory or f"{directory.rstrip('/')}/{name}" in self._names:
                self._due = True
        if not self._due:
            return _FOREVER
        watched = [self._watcher.watch_names(parent) for parent in sorted({os.path.dirname(at) for at in self._names})]
        if not any(watched) and not self._notes:
            self._notes.append("what the host replaces in the project is not protected again: it cannot be watched")
        try:
            with Closing(os.open(f"/proc/{self._init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
                self._due = True in [self._tend(row, root) for row in self._rows]
        except OSError:  # the sandbox has ended
            return _FOREVER
        return _SOON if self._due else _FOREVER

    def finish(self) -> tuple[str, ...]:
        """Watch no longer, and return what the user should know."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        return tuple(self._notes)

    def _tend(self, row: Placed, root: int) -> bool:
        """See that a row is mounted; return whether to try again soon."""
        dest = row.mount.dest
        try:
            with Closing(open_beneath(root, os.path.dirname(dest).strip("/"))) as parent:
                closed = os.fstatvfs(parent).f_flag & os.ST_RDONLY
                try:
                    found = os.open(os.path.basename(dest), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                except FileNotFoundError:
                    return not closed and self._replace_missing(row, root)
                with Closing(found):
                    if _mount_of(parent) != _mount_of(found):
                        self._missing.pop(dest, None)
                        self._failures.pop(dest, None)
                        return False
                    status = os.fstat(found)
        except OSError:  # a link, or a file, stands in the place of a directory above it, which has a row of its own
            return False
        self._missing.pop(dest, None)
        if stat.S_ISLNK(status.st_mode):
            self._say(dest, "became a link, which cannot be protected")
            return False
        return self._mount(row, status)

    def _replace_missing(self, row: Placed, root: int) -> bool:
        """Make a stub where something protected is gone, when nobody has put anything in its place meanwhile."""
        dest = row.mount.dest
        if row.mount.role == "masked" or row.mount.stub == "none":
            return False
        if time.monotonic() < self._missing.setdefault(dest, time.monotonic()) + _SETTLED:
            return True
        try:
            self._stubs.add(Stub(dest, row.mount.stub), self._plan)
        except (ClaudeboxError, OSError):
            return self._count(dest)
        return self._count(dest) and self._tend(row, root)

    def _mount(self, row: Placed, status: os.stat_result) -> bool:
        mount = row.mount
        writable = mount.kind == "bind" and not row.source and mount.dest not in self._stubs
        how = "nr" if mount.role == "masked" else "iw" if writable else "ir"
        from claudebox.run.start import make_program

        try:
            with Closing(make_program(self._place)) as program:
                run_mounts.mount_again(self._init, row, how, (status.st_dev, status.st_ino), program)
            if not stat.S_IMODE(status.st_mode) and mount.dest in self._stubs:
                self._stubs.open(mount.dest)
        except (ClaudeboxError, OSError):  # it was replaced again meanwhile
            return self._count(mount.dest)
        return False

    def _count(self, dest: str) -> bool:
        """Count a failure, and return whether to try again."""
        self._failures[dest] = self._failures.get(dest, 0) + 1
        if self._failures[dest] < _ATTEMPTS:
            return True
        self._say(dest, "changed on the host and could not be protected again")
        return False

    def _say(self, dest: str, what: str) -> None:
        note = f"`{dest}` {what}: look at it before tools of the host use it"
        if note not in self._notes:
            self._notes.append(note)


def _on_host(row: Placed) -> str:
    root = row.root
    return root.source.rstrip("/") + row.mount.dest[len(root.dest.rstrip("/")) :] if root is not None else ""


def _mount_of(descriptor: int) -> bytes:
    text = read_small(f"/proc/self/fdinfo/{descriptor}") or b""
    return next((line for line in text.splitlines() if line.startswith(b"mnt_id:")), b"")
