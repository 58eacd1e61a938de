"""Stand-ins in the project: made before a session, taken away after the last one, whatever happened in between.

Each is written down before it is made. A lock that all sessions of a project share tells whether one of them is still
alive; the first that finds nobody clears away what a killed one has left (C21).
"""

from __future__ import annotations

import fcntl
import os
import stat

from claudebox.errors import ClaudeboxError
from claudebox.files import read_at, replace_file
from claudebox.state import STUBS, STUBS_LIMIT, parse_stubs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.facts.model import Identity
    from claudebox.plan.model import Stub
    from claudebox.state import Instance

_CONTENT = {"dot": b".\n", "file": b""}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Session:
    """A session of a project, counted among those that are alive."""

    def __init__(self, instance: Instance) -> None:
        self._directory = os.open(instance.directory, _DIRECTORY)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open("sessions", flags, 0o600, dir_fd=self._directory)

    def begin(self, stubs: Iterable[Stub]) -> dict[str, Identity]:
        """Join the sessions that are alive, make sure that every stand-in is there, and return which they are."""
        if self._alone():
            self._clear()
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        wanted = list(stubs)
        known = self._known()
        new = [stub for stub in wanted if (stub.kind, stub.path) not in known]
        if new:
            self._record(known | {(stub.kind, stub.path) for stub in new})
        return {stub.path: _make(stub) for stub in wanted}

    def end(self) -> None:
        """Leave, and clear away if nobody is left."""
        if self._alone():
            self._clear()
        os.close(self._lock)
        os.close(self._directory)

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _clear(self) -> None:
        # What stands in another comes first: a directory goes away only when it is empty.
        for kind, path in sorted(self._known(), key=lambda entry: -len(entry[1])):
            _remove(kind, path)
        try:
            os.unlink(STUBS, dir_fd=self._directory)
        except FileNotFoundError:
            pass

    def _known(self) -> frozenset[tuple[str, str]]:
        return parse_stubs(read_at(self._directory, STUBS, limit=STUBS_LIMIT) or b"")

    def _record(self, entries: Iterable[tuple[str, str]]) -> None:
        lines = (os.fsencode(f"{kind} {path}\0") for kind, path in sorted(entries))
        replace_file(self._directory, STUBS, b"".join(lines))


def _make(stub: Stub) -> Identity:
    parent, name = os.path.split(stub.path)
    try:
        directory = os.open(parent, _DIRECTORY)
    except OSError as error:
        raise ClaudeboxError(f"`{stub.path}` cannot be protected: {error.strerror}") from None
    try:
        if stub.kind == "directory":
            os.mkdir(name, 0o755, dir_fd=directory)
        elif stub.kind == "socket":
            _make_socket(name, directory)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o644, dir_fd=directory)
            os.write(descriptor, _CONTENT[stub.kind])
            os.close(descriptor)
    except FileExistsError:
        pass
    except OSError as error:
        raise ClaudeboxError(
            f"`{stub.path}` does not exist and cannot be kept from being created: {error.strerror}",
            hint=f"create it, or open it with `--allow {name}`",
        ) from None
    finally:
        os.close(directory)
    status = os.lstat(stub.path)
    if stat.S_ISLNK(status.st_mode):
        raise ClaudeboxError(f"`{stub.path}` became a link while it was being protected")
    return status.st_dev, status.st_ino


def _make_socket(name: str, directory: int) -> None:
    """Make a socket, or an empty directory where the filesystem knows no sockets; git sees neither."""
    try:
        os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=directory)
    except FileExistsError:
        raise
    except OSError:
        os.mkdir(name, 0o755, dir_fd=directory)


def _remove(kind: str, path: str) -> None:
    """Take a stand-in away if it is still just that."""
    parent, name = os.path.split(path)
    try:
        directory = os.open(parent, _DIRECTORY)
    except OSError:
        return
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
        if kind in ("directory", "socket") and stat.S_ISDIR(mode):
            os.rmdir(name, dir_fd=directory)
        elif (kind == "socket" and stat.S_ISSOCK(mode)) or (kind in _CONTENT and _is_ours(kind, directory, name)):
            os.unlink(name, dir_fd=directory)
    except OSError:  # somebody has put something into it: it is theirs now
        return
    finally:
        os.close(directory)


def _is_ours(kind: str, directory: int, name: str) -> bool:
    """Tell whether a file has what we write into it, or the beginning: who was killed in between wrote nothing."""
    content = read_at(directory, name)
    return content is not None and _CONTENT[kind].startswith(content)
