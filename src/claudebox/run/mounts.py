"""Mounts by descriptor, at the start and whenever the host replaces what they protect.

What lies in a directory that an agent can write is mounted by the gate program and not by bwrap: the program enters the
mount namespace of the sandbox and resolves every target once, through no link.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, open_beneath, read_small
from claudebox.base.inotify import Watcher
from claudebox.plan import bwrap
from claudebox.plan.records import Plan, Stub
from claudebox.run.prepare import move_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from claudebox.host.records import Identity
    from claudebox.plan.bwrap import Placed
    from claudebox.run.stubs import SessionStubs


_LARGEST_TABLE, _MOST_ROWS = 4 << 20, 1 << 15  # src/gate/gate.c has the same
_MESSAGE = 8192
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_DENIED = (errno.ENOSYS, errno.EPERM)

_NEVER = 3600.0
_SOON, _SETTLED = 0.1, 0.3  # seconds to the next attempt, and until something counts as removed
_ATTEMPTS = 20
_FOLLOWED = frozenset(("protected", "pin", "masked", "git"))  # roles


def mount_all(payload: int, plan: Plan, stubs: Mapping[str, Identity], program: int) -> None:
    """Make every mount that bwrap did not make, and let no later mount of the host appear inside (C34).

    `stubs` are those that were made, `program` is a descriptor on the gate.
    """
    rows = bwrap.place(plan)
    stage = (bwrap.STAGE.lstrip("/"),) if any(row.source for row in rows) else ()
    _run(payload, _make_table(rows, stubs), program, stage)


def mount_again(process: int, row: Placed, how: str, found: Identity, program: int) -> None:
    """Mount one row in a running sandbox, over what was `found` there; `how` is as gate.c reads it."""
    root = row.root.dest if row.root else "/"
    target = row.mount.dest[len(root.rstrip("/")) + 1 :]
    fields = ("R", root.strip("/"), "", "", "", how, target, "", _name(found), _name(found))
    _run(process, os.fsencode("".join(f"{field}\0" for field in fields)), program, ())


def _make_table(rows: Iterable[Placed], stubs: Mapping[str, Identity]) -> bytes:
    """Return the table that gate.c reads."""
    fields: list[str] = []
    within: object = ()
    around = "\0"
    for row in rows:
        mount, root = row.mount, row.root
        nested = mount.dest.startswith(around)  # in another row, which may show something else there
        around = around if nested else f"{mount.dest}/"
        if root is not within:
            within = root
            fields += ["R", root.dest.strip("/") if root else "", "", _name(root.pinned if root else None), ""]
        target = mount.dest[len(root.dest.rstrip("/")) + 1 if root else 1 :]
        if mount.kind in ("mask", "copy", "empty"):
            where = {"mask": "nr", "copy": "sr", "empty": "sr"}[mount.kind]
            fields += [where, target, row.source, _name(mount.pinned), ""]
        else:
            identity = _name(mount.pinned or stubs.get(mount.dest))
            where = "s" if row.source else "i"
            itself = identity if where == "i" and not nested else ""
            fields += [where + ("w" if mount.kind == "bind" else "r"), target, row.source, itself, identity]
    table = os.fsencode("".join(f"{field}\0" for field in fields))
    if len(table) > _LARGEST_TABLE or len(fields) > _MOST_ROWS * 5:
        raise ClaudeboxError("too many paths are mounted or protected in the project", hint="mount fewer of them")
    return table


def _name(identity: Identity | None) -> str:
    return f"{os.major(identity[0])}:{os.minor(identity[0])}:{identity[1]}" if identity else ""


def _run(process: int, table: bytes, program: int, words: tuple[str, ...]) -> None:
    """Run the gate program in the mount namespace of a process; raise if it fails."""
    entry, messages_end = os.pipe2(os.O_CLOEXEC)
    with Closing(entry) as messages:
        try:
            with (
                Closing(move_up(messages_end)) as errors,
                Closing(move_up(syscalls.memory_file(table))) as rows,
                Closing(move_up(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))) as mounts,
            ):
                places = [
                    (os.POSIX_SPAWN_DUP2, rows, 0),
                    (os.POSIX_SPAWN_DUP2, errors, 2),
                    (os.POSIX_SPAWN_DUP2, mounts, bwrap.GATE_DESCRIPTOR),
                ]
                child = os.posix_spawn(f"/proc/self/fd/{program}", ("mount", *words), {}, file_actions=places)
            status = os.waitpid(child, 0)[1]
        except OSError as error:
            raise ClaudeboxError(f"the mounts of the sandbox cannot be entered: {error.strerror}") from None
        if status != 0:
            raise _explain(os.read(messages, _MESSAGE))


def _explain(message: bytes) -> ClaudeboxError:
    call, _, rest = os.fsdecode(message).partition(" ")
    number, _, path = rest.partition(" ")
    code = int(number or errno.EIO)
    if code in _DENIED:
        return ClaudeboxError(
            f"nothing can be protected here: the system call `{call}` is denied: {os.strerror(code)}",
            hint="claudebox needs Linux 5.13; in a container, a filter that permits setns, mount, openat2, open_tree, "
            "mount_setattr and move_mount",
        )
    if code in _GONE:
        return ClaudeboxError(f"`{path}` was moved, or became a link, while it was being protected")
    if code == 0:
        return ClaudeboxError(f"`{path}` was replaced by something else while the sandbox was being built")
    return ClaudeboxError(f"`{path}` could not be protected: {call}: {os.strerror(code)}")


class HostGuard:
    """Protects and masks again what the host replaces or removes while a session runs.

    A mount hangs on the very file that it covers. Editors and git rename a new file over the old one, and `git clean`
    removes stubs: the mount is dropped, or moves away with the old name. So the directories of everything that is
    mounted for protection are watched; `descriptor` is readable when something may have changed there.
    """

    def __init__(self, plan: Plan, init: int, stubs: SessionStubs) -> None:
        """`init` is the first process inside."""
        self._plan, self._init, self._stubs = plan, init, stubs
        rows = (row for row in bwrap.place(plan) if row.root is not None and row.mount.role in _FOLLOWED)
        self._rows = [row for row in rows if row.mount.kind != "empty"]
        self._names = {_on_host(row) for row in self._rows}
        self._watcher = Watcher()
        self.descriptor = self._watcher.descriptor
        self._missing: dict[str, float] = {}  # since when
        self._failures: dict[str, int] = {}
        self._first = time.monotonic() + _SETTLED  # a short command needs none of this
        self._due = True  # something may have changed since everything was mounted
        self._notes: list[str] = []

    def look(self) -> float:
        """Restore lost protection; return in how many seconds to look again."""
        if (left := self._first - time.monotonic()) > 0:
            return left
        for directory, name, _ in self._watcher.events():
            if not directory or f"{directory.rstrip('/')}/{name}" in self._names:
                self._due = True
        if not self._due:
            return _NEVER
        watched = [self._watcher.watch_names(parent) for parent in sorted({os.path.dirname(at) for at in self._names})]
        if not any(watched) and not self._notes:
            self._notes.append(
                "files that the host replaces in the project are not protected again: they cannot be watched"
            )
        try:
            with Closing(os.open(f"/proc/{self._init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
                self._due = True in [self._tend(row, root) for row in self._rows]
        except OSError:  # the sandbox has ended
            return _NEVER
        return _SOON if self._due else _NEVER

    def finish(self) -> tuple[str, ...]:
        """Stop watching; return what the user should know."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        return tuple(self._notes)

    def _tend(self, row: Placed, root: int) -> bool:
        """Mount a row again if it is not; return whether to try again soon."""
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
            self._warn(dest, "became a link, which cannot be protected")
            return False
        return self._mount(row, status)

    def _replace_missing(self, row: Placed, root: int) -> bool:
        """Make a stub where something protected has been gone for a moment: git removes a file and makes it anew."""
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
        from claudebox.run.start import open_program

        try:
            with Closing(open_program()) as program:
                mount_again(self._init, row, how, (status.st_dev, status.st_ino), program)
            if not stat.S_IMODE(status.st_mode) and mount.dest in self._stubs:
                self._stubs.open(mount.dest)
        except (ClaudeboxError, OSError):  # it was replaced again
            return self._count(mount.dest)
        return False

    def _count(self, dest: str) -> bool:
        """Count a failure, and return whether to try again."""
        self._failures[dest] = self._failures.get(dest, 0) + 1
        if self._failures[dest] < _ATTEMPTS:
            return True
        self._warn(dest, "changed on the host and could not be protected again")
        return False

    def _warn(self, dest: str, what: str) -> None:
        note = f"`{dest}` {what}: check it before tools of the host use it"
        if note not in self._notes:
            self._notes.append(note)


def _on_host(row: Placed) -> str:
    root = row.root
    return root.source.rstrip("/") + row.mount.dest[len(root.dest.rstrip("/")) :] if root is not None else ""


def _mount_of(descriptor: int) -> bytes:
    text = read_small(f"/proc/self/fdinfo/{descriptor}") or b""
    return next((line for line in text.splitlines() if line.startswith(b"mnt_id:")), b"")
