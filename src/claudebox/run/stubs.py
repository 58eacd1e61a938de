"""Stubs in the project: made for a session and removed after the last one, even if that was killed (C21).

Each is recorded before it is made, with device and inode of the directory that it is made in. All sessions of a project
share a lock; the first that finds it free removes what a killed one has left, and what cannot be removed stays
recorded. If the journal is lost, a session knows its own stubs, and the next one recognises them by their time. No link
is followed on the way to a stub (C31).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    OPEN_DIRECTORY,
    OPEN_LOCK,
    Closing,
    close_again,
    open_beneath,
    open_up,
    read_at,
    replace_file,
    write_all,
)
from claudebox.host.protected import MARK, STUBS, STUBS_LIMIT, StubEntry, parse_stubs
from claudebox.host.secret_files import REMEMBERED, render_remembered
from claudebox.run.live_sessions import Presence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.base.state import Instance
    from claudebox.host.records import Identity
    from claudebox.plan.records import Plan, Stub


_LOCK, _ELSEWHERE = "sessions", "sockets-elsewhere"
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UMASK, _MODE = 0o022, 0o755
_COVERS = ("cover", "cover-worktrees")  # the second has a place for worktrees of the client


class SessionStubs:
    """The stubs of one session, and its place among the running sessions of the project."""

    def __init__(self, instance: Instance) -> None:
        self._presence = Presence(instance.state)
        self._path = f"{instance.directory}/{_LOCK}"
        self._directory = os.open(instance.directory, OPEN_DIRECTORY)
        self._lock = os.open(_LOCK, OPEN_LOCK, 0o600, dir_fd=self._directory)
        self._entries: list[StubEntry] = []
        self._roots: dict[tuple[str, str], int] = {}  # open, so that they are found even if they are moved

    def begin(self, plan: Plan) -> None:
        """Join the running sessions, and record the stubs that this one needs."""
        self._presence.enter(plan)
        if self._alone():
            self._clear()
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._entries = [_entry(stub, plan) for stub in plan.stubs]
        known = frozenset(self._known())
        self._record(entry for entry in self._entries if entry not in known)

    def make(self, plan: Plan) -> dict[str, Identity]:
        """Make every stub that is missing; return the inodes of those that will be mounted as they are."""
        git = next((own.dest for own in plan.git), "../.git")
        before = os.umask(_UMASK)
        try:
            self._remember(plan)
            covers = {name: self._make_cover(name, os.fsencode(f"gitdir: {git}\n")) for name in _COVERS}
            found = {entry.path: _make(entry, self._root(entry)) for entry in self._entries}
            for entry in self._entries:  # once all are made: each changes the time of the directory around it
                if found[entry.path][1]:
                    _mark(entry, self._root(entry))
        finally:
            os.umask(before)
        made = {path: identity for path, (identity, _) in found.items()}
        # What is mounted there: a cover, the stub itself, or something else, which has no inode here.
        mounted = {mount.dest: mount.source for mount in plan.mounts}
        standing = {path: covers.get(os.path.basename(mounted.get(path, ""))) for path in made}
        standing |= {path: identity for path, identity in made.items() if mounted.get(path) == path}
        return {path: identity for path, identity in standing.items() if identity is not None}

    def add(self, stub: Stub, plan: Plan) -> None:
        """Make a stub while the session runs, where the host has removed something.

        The agent cannot write in it before it is covered: a directory stays closed until `open`, and a file, which git
        of the host may read at any moment, is read-only.
        """
        entry = _entry(stub, plan)
        if entry not in self._entries:
            self._record([entry])
            self._entries.append(entry)
        before = os.umask(0o777 if stub.kind == "directory" else 0o333)
        try:
            if _make(entry, self._root(entry))[1]:
                _mark(entry, self._root(entry))
        finally:
            os.umask(before)

    def open(self, path: str) -> None:
        """Open a stub that `add` has made, now that it is covered."""
        for entry in self._entries:
            if entry.path == path:
                with Closing(open_beneath(self._root(entry), entry.relative)) as stub:
                    os.chmod(f"/proc/self/fd/{stub}", _MODE)

    def __contains__(self, path: str) -> bool:
        return any(entry.path == path for entry in self._entries)

    def end(self) -> None:
        """Leave; the last session removes the stubs."""
        if self._alone() and not self._is_superseded():
            self._clear()
        for descriptor in (self._lock, self._directory, *self._roots.values()):
            os.close(descriptor)
        self._presence.leave()

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_superseded(self) -> bool:
        """Return whether our state was removed while we ran, and newer sessions share another lock."""
        if os.fstat(self._lock).st_nlink:
            return False
        try:
            with Closing(os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _clear(self) -> None:
        # Inner ones first: a directory can only be removed when it is empty.
        entries = {*self._known(), *self._entries}
        left = [entry for entry in sorted(entries, key=lambda entry: -len(entry.path)) if not self._is_removed(entry)]
        try:
            if os.access(STUBS, os.F_OK, dir_fd=self._directory, follow_symlinks=False):
                os.unlink(STUBS, dir_fd=self._directory)
            self._record(left)
        except OSError:  # our state was removed; the next session recognises them by their time
            pass

    def _is_removed(self, entry: StubEntry) -> bool:
        """Remove a stub; return whether it is gone, or is no stub any more."""
        try:
            _remove(entry, self._root(entry))
        except (FileNotFoundError, NotADirectoryError, ClaudeboxError):  # moved, or replaced by something else
            return True
        except OSError as error:
            return error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)  # it was put to use, and is the user's
        return True

    def _root(self, entry: StubEntry) -> int:
        """Open the directory that a stub is made in: the very one that was examined."""
        key = (entry.root, entry.identity)
        if key not in self._roots:
            descriptor = os.open(entry.root, _PLACE)
            status = os.fstat(descriptor)
            if f"{status.st_dev}:{status.st_ino}" != entry.identity:
                os.close(descriptor)
                raise ClaudeboxError(f"`{entry.root}` was replaced by something else since it was examined")
            self._roots[key] = descriptor
        return self._roots[key]

    def _known(self) -> Iterable[StubEntry]:
        return parse_stubs(read_at(self._directory, STUBS, limit=STUBS_LIMIT) or b"")

    def _record(self, entries: Iterable[StubEntry]) -> None:
        """Append to the journal, as another session may do at the same time."""
        content = b"".join(
            os.fsencode(f"\0\0{entry.kind}\0{entry.root}\0{entry.identity}\0{entry.relative}\0") for entry in entries
        )
        if not content:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with Closing(os.open(STUBS, flags, 0o600, dir_fd=self._directory)) as journal:
            write_all(journal, content)

    def _make_cover(self, name: str, gitfile: bytes) -> Identity:
        """Make the directory that is mounted over a stub; `git clean -xfd` skips what looks like a checkout."""
        try:
            os.mkdir(name, 0o755, dir_fd=self._directory)
        except FileExistsError:
            pass
        directory = os.open(name, OPEN_DIRECTORY, dir_fd=self._directory)
        try:
            if name.endswith("worktrees") and "worktrees" not in os.listdir(directory):
                os.mkdir("worktrees", 0o755, dir_fd=directory)
            if read_at(directory, ".git") != gitfile:
                replace_file(directory, ".git", gitfile)
            status = os.fstat(directory)
        finally:
            os.close(directory)
        return status.st_dev, status.st_ino

    def _remember(self, plan: Plan) -> None:
        """Record the inodes of masked files, wherever they are moved, and the sockets outside of the project."""
        content = render_remembered(plan.remembered)
        elsewhere = "\n".join(plan.sockets_elsewhere).encode()
        for name, text in ((REMEMBERED, content), (_ELSEWHERE, elsewhere)):
            is_answer = text or (name == REMEMBERED and plan.policy.masks_secrets)  # the others looked for nothing
            if is_answer and text != (read_at(self._directory, name, limit=STUBS_LIMIT) or b""):
                replace_file(self._directory, name, text)


def clear_stubs(instance: Instance) -> None:
    """Remove what killed sessions of a project left, unless another is running."""
    if os.path.lexists(f"{instance.directory}/{STUBS}"):
        SessionStubs(instance).end()


def _entry(stub: Stub, plan: Plan) -> StubEntry:
    """Return the journal entry of a stub, with the innermost writable mount that it lies in."""
    binds = (mount for mount in plan.mounts if mount.kind == "bind" and mount.pinned)
    roots = [mount for mount in binds if mount.role in ("project", "asked")]
    around = [mount for mount in roots if stub.path.startswith(mount.dest.rstrip("/") + "/")]
    if not around:
        raise ClaudeboxError(f"`{stub.path}` lies in no writable directory")
    root = max(around, key=lambda mount: len(mount.dest))
    device, inode = root.pinned  # type: ignore[misc]  # looked at above
    return StubEntry(stub.kind, root.dest, f"{device}:{inode}", stub.path[len(root.dest.rstrip("/")) + 1 :])


def _make(entry: StubEntry, root: int) -> tuple[Identity, bool]:
    """Make a stub unless something is there; return its inode, and whether it is new."""
    made = True
    parent, name = os.path.split(entry.relative)
    try:
        directory = open_beneath(root, parent)
    except OSError as error:
        raise ClaudeboxError(f"`{entry.path}` cannot be protected: {error.strerror}") from None
    try:
        if entry.kind == "directory":
            os.mkdir(name, 0o755, dir_fd=directory)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=directory))
    except FileExistsError:
        made = False
    except OSError as error:
        os.close(directory)
        raise ClaudeboxError(
            f"`{entry.path}` does not exist and cannot be kept from being created: {error.strerror}",
            hint=f"create it, or open it with `--allow {name}`",
        ) from None
    try:
        status = os.lstat(name, dir_fd=directory)
    finally:
        os.close(directory)
    if stat.S_ISLNK(status.st_mode):
        raise ClaudeboxError(f"`{entry.path}` became a link while it was being protected")
    return (status.st_dev, status.st_ino), made


def _mark(entry: StubEntry, root: int) -> None:
    """Give a stub the time by which it is recognised."""
    parent, name = os.path.split(entry.relative)
    with Closing(open_beneath(root, parent)) as directory:
        os.utime(name, ns=(MARK, MARK), dir_fd=directory, follow_symlinks=False)


def _remove(entry: StubEntry, root: int) -> None:
    """Remove a stub if it is still empty, or raise; an agent may have closed the directories on the way."""
    *above, name = entry.relative.split("/")
    if entry.kind == "directory" and not above:
        try:
            os.rmdir(name, dir_fd=root)
        except PermissionError:
            pass
        else:
            return
    passed = [os.dup(root)]
    modes: list[tuple[int, int | None]] = []
    try:
        for part in above:
            modes.append((passed[-1], open_up(passed[-1])))
            passed.append(os.open(part, _PLACE, dir_fd=passed[-1]))
        directory = passed[-1]
        modes.append((directory, open_up(directory)))
        if entry.kind == "directory":
            os.rmdir(name, dir_fd=directory)
        elif read_at(directory, name) == b"":
            os.unlink(name, dir_fd=directory)
    finally:
        for place, mode in reversed(modes):
            close_again(place, mode)
        for descriptor in passed:
            os.close(descriptor)
