"""Stubs in the project: made for a session, taken away after the last one, whatever happened in between.

Each is written down before it is made, with the device and inode of the directory that it is made in. A lock that all
sessions of a project share tells whether one of them is still alive; the first that finds nobody clears away what a
killed one has left (C21). What cannot be removed stays written down. If the journal is lost, a session knows its own
stubs, and the next one knows them by their mark. No link is followed on the way to a stub (C31).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, close_again, open_beneath, open_up, read_at, replace_file
from claudebox.host.protected import MARK, STUBS, STUBS_LIMIT, StubEntry, parse_stubs
from claudebox.run.live_sessions import Presence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.base.state import Instance
    from claudebox.host.records import Identity
    from claudebox.plan.records import Plan, Stub


_LOCK, _MASKED, _ELSEWHERE = "sessions", "masked", "sockets-elsewhere"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # of which nothing has to be read
_UMASK, _MODE = 0o022, 0o755
_COVERS = ("cover", "cover-worktrees")  # the second has a place for worktrees of the client


class Session:
    """A session of a project, counted among those that are alive."""

    def __init__(self, instance: Instance) -> None:
        self._presence = Presence(instance.state)
        self._path = f"{instance.directory}/{_LOCK}"
        self._directory = os.open(instance.directory, _DIRECTORY)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._directory)
        self._entries: list[StubEntry] = []
        self._roots: dict[tuple[str, str], int] = {}  # of this session, found again even if they are moved meanwhile

    def begin(self, plan: Plan) -> None:
        """Join the sessions that are alive, and write down the stubs that this one needs."""
        self._presence.enter(plan)
        if self._alone():
            self._clear()
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._entries = [_entry(stub, plan) for stub in plan.stubs]
        known = frozenset(self._known())
        self._record(entry for entry in self._entries if entry not in known)

    def make(self, plan: Plan) -> dict[str, Identity]:
        """Make sure that every stub is there, and return which they are."""
        git = next((own.dest for own in plan.git), "../.git")
        before = os.umask(_UMASK)
        try:
            self._remember(plan)
            covers = {name: self._make_cover(name, os.fsencode(f"gitdir: {git}\n")) for name in _COVERS}
            found = {entry.path: _make(entry, self._root(entry)) for entry in self._entries}
            for entry in self._entries:  # when all are made: each changes the time of what is around it
                if found[entry.path][1]:
                    _mark(entry, self._root(entry))
        finally:
            os.umask(before)
        made = {path: identity for path, (identity, _) in found.items()}
        # What is mounted there: a cover, the stub itself, or something else, which is not looked at.
        mounted = {mount.dest: mount.source for mount in plan.mounts}
        standing = {path: covers.get(os.path.basename(mounted.get(path, ""))) for path in made}
        standing |= {path: identity for path, identity in made.items() if mounted.get(path) == path}
        return {path: identity for path, identity in standing.items() if identity is not None}

    def add(self, stub: Stub, plan: Plan) -> None:
        """Make a stub where the host has removed something while the session runs; nobody enters it until `open`."""
        entry = _entry(stub, plan)
        if entry not in self._entries:
            self._record([entry])
            self._entries.append(entry)
        before = os.umask(0o777 if stub.kind == "directory" else _UMASK)
        try:
            if _make(entry, self._root(entry))[1]:
                _mark(entry, self._root(entry))
        finally:
            os.umask(before)

    def open(self, path: str) -> None:
        """Let others enter a stub that `add` has made, when it is covered."""
        for entry in self._entries:
            if entry.path == path:
                with Closing(open_beneath(self._root(entry), entry.relative)) as stub:
                    os.chmod(f"/proc/self/fd/{stub}", _MODE)

    def __contains__(self, path: str) -> bool:
        return any(entry.path == path for entry in self._entries)

    def end(self) -> None:
        """Leave, and clear away if nobody is left."""
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
        """Return whether our state was removed while we ran, and others have come since, who share another lock."""
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
        # What stands in another comes first: a directory goes away only when it is empty.
        entries = {*self._known(), *self._entries}
        left = [entry for entry in sorted(entries, key=lambda entry: -len(entry.path)) if not self._is_removed(entry)]
        try:
            if os.access(STUBS, os.F_OK, dir_fd=self._directory, follow_symlinks=False):
                os.unlink(STUBS, dir_fd=self._directory)
            self._record(left)
        except OSError:  # our state was removed; the next session knows them by their mark
            pass

    def _is_removed(self, entry: StubEntry) -> bool:
        """Take a stub away; return whether none is left there, though something else may be."""
        try:
            _remove(entry, self._root(entry))
        except (FileNotFoundError, NotADirectoryError, ClaudeboxError):  # moved, or replaced by something else
            return True
        except OSError as error:
            return error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)  # somebody uses it: it is theirs now
        return True

    def _root(self, entry: StubEntry) -> int:
        """Open the directory in which stubs are made: the very one that was examined, under whatever name."""
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
        """Append: another session may do the same at this moment."""
        content = b"".join(
            os.fsencode(f"\0\0{entry.kind}\0{entry.root}\0{entry.identity}\0{entry.relative}\0") for entry in entries
        )
        if not content:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with Closing(os.open(STUBS, flags, 0o600, dir_fd=self._directory)) as journal:
            os.write(journal, content)

    def _make_cover(self, name: str, gitfile: bytes) -> Identity:
        """Make what is shown inside in place of a stub, a directory that says of itself that it is a nested checkout.

        It is a mount, and `git clean -xfd` would fail to remove it; a checkout of its own it leaves alone.
        """
        try:
            os.mkdir(name, 0o755, dir_fd=self._directory)
        except FileExistsError:
            pass
        directory = os.open(name, _DIRECTORY, dir_fd=self._directory)
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
        """Write down what is masked, to be found wherever it is moved, and which sockets are not in the project."""
        masked = sorted(mount.pinned for mount in plan.mounts if mount.kind == "copy" and mount.pinned is not None)
        content = b"".join(b"%d %d\n" % identity for identity in masked)
        elsewhere = "\n".join(plan.sockets_elsewhere).encode()
        for name, text in ((_MASKED, content), (_ELSEWHERE, elsewhere)):
            if text and text != read_at(self._directory, name, limit=STUBS_LIMIT):
                replace_file(self._directory, name, text)


def _entry(stub: Stub, plan: Plan) -> StubEntry:
    """Return what is written down: the stub, and the writable directory that it lies in, which was examined."""
    binds = (mount for mount in plan.mounts if mount.kind == "bind" and mount.pinned)
    roots = [mount for mount in binds if mount.role in ("project", "asked")]
    around = [mount for mount in roots if stub.path.startswith(mount.dest.rstrip("/") + "/")]
    if not around:
        raise ClaudeboxError(f"`{stub.path}` lies in nothing that can be written")
    root = max(around, key=lambda mount: len(mount.dest))
    device, inode = root.pinned  # type: ignore[misc]  # looked at above
    return StubEntry(stub.kind, root.dest, f"{device}:{inode}", stub.path[len(root.dest.rstrip("/")) + 1 :])


def _make(entry: StubEntry, root: int) -> tuple[Identity, bool]:
    """Make a stub unless something is there; return what is there, and whether it was made just now."""
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
    """Give a stub the time by which it is known."""
    parent, name = os.path.split(entry.relative)
    with Closing(open_beneath(root, parent)) as directory:
        os.utime(name, ns=(MARK, MARK), dir_fd=directory, follow_symlinks=False)


def _remove(entry: StubEntry, root: int) -> None:
    """Take a stub away if it is still just that, or raise; an agent may have closed the directories on the way."""
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
