"""Reading files that may be hostile, and writing files as a whole.

A FIFO must not block the launcher, a link not lead it away, a huge file not fill its memory (C18).
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time

import claudebox
from claudebox.base import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PACKAGE = os.path.dirname(os.path.abspath(claudebox.__path__[0]))  # where modules of ours are found
_OWNER = 0o700
_given: list[int] = []  # the umask of our caller

LOST = "the directory that the session was started in is gone"
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Closing:
    """A descriptor that is closed at the end of a `with` block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_reason: object) -> None:
        os.close(self._descriptor)


def keep_owner_rights() -> None:
    """Keep the owner's rights out of the umask, so that we can open what we make."""
    given = os.umask(0o077)
    _given[:] = [given]
    os.umask(given & ~_OWNER)


def restore_umask() -> None:
    """Restore the umask of our caller, for what runs inside."""
    if _given:
        os.umask(_given[0])


def keep_descriptors() -> None:
    """Set close-on-exec on all descriptors but the standard ones, whatever our caller left open."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            try:
                os.set_inheritable(descriptor, False)  # noqa: FBT003
            except OSError:  # the one that was listed by
                continue


def others_write(descriptor: int, status: os.stat_result) -> bool:
    """Return whether anybody but its owner and root may write what is open there.

    A group that is the user's alone counts as the user: that is why many systems have the umask 002.
    """
    if not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    return bool(status.st_mode & stat.S_IWOTH) or _has_list(descriptor) or not _is_alone_in(status.st_gid)


def is_private(path: str) -> bool:
    """Return whether a path is a directory of ours that nobody else can enter."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _has_list(descriptor: int) -> bool:
    """Return whether an access list names other users; the mode of the group is then their limit."""
    try:
        os.getxattr(descriptor, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _is_alone_in(gid: int) -> bool:
    """Return whether a group is named after the user, who is not root, and has no other members."""
    import grp

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if not user.pw_uid or (user.pw_gid, user.pw_name) != (gid, group.gr_name) or set(group.gr_mem) - {user.pw_name}:
        return False
    accounts = (
        line.split(b":") for line in (read_small("/etc/passwd", limit=1 << 20, follow=True) or b"").splitlines()
    )
    return not any(row[3:4] == [b"%d" % gid] and row[0] != os.fsencode(user.pw_name) for row in accounts)


def read_small(path: str, *, limit: int = 65536, follow: bool = False) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes, or None for anything else."""
    try:
        return _read(os.open(path, _READ | (0 if follow else os.O_NOFOLLOW)), limit)
    except (OSError, ValueError):
        return None


def read_at(directory: int, name: str, *, limit: int = 65536) -> bytes | None:
    """Return the content of a regular file in an open directory, or None for anything else."""
    try:
        return _read(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=directory), limit)
    except OSError:
        return None


def parse_object(content: bytes | str | None) -> dict[str, Any]:
    """Parse a JSON object; return an empty one for anything else."""
    document = syscalls.parse_json(content or b"")
    return document if isinstance(document, dict) else {}


def mode_of(path: str | bytes, directory: int | None = None) -> int:
    """Return the mode of what is at a path, without following a link; 0 if there is nothing."""
    try:
        return os.lstat(path, dir_fd=directory).st_mode
    except OSError:
        return 0


def list_names(directory: str) -> list[str]:
    """Return the names in a directory, sorted; none if it cannot be listed."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def real_path(path: str) -> str:
    """Return a path with every link resolved, or as it is if it has more links than the kernel follows."""
    try:
        return os.path.realpath(path)
    except RecursionError:  # Python follows more links than the kernel
        return path


def open_beneath(directory: int, relative: str, *, listed: bool = False) -> int:
    """Open a directory in an open one, through no link; `listed`: not only as a place (O_PATH)."""
    current = os.dup(directory)
    flags = (0 if listed else os.O_PATH) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for part in relative.split("/") if relative else ():
        with Closing(current) as above:
            current = os.open(part, flags, dir_fd=above)
    return current


def identify(path: str) -> tuple[int, int] | None:
    """Return device and inode of the directory at a path; None if there is none, or a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def open_known(path: str, flags: int, identity: tuple[int, int] | None) -> int:
    """Open a directory; fail as `LOST` if it is not the one of this identity."""
    try:
        opened = os.open(path, flags)
    except OSError as error:
        if identity is None or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        raise OSError(errno.ESTALE, LOST) from None
    status = os.fstat(opened)
    if identity not in (None, (status.st_dev, status.st_ino)):
        os.close(opened)
        raise OSError(errno.ESTALE, LOST)
    return opened


def open_up(directory: int) -> int | None:
    """Give the owner all rights in a directory, open as O_PATH; return the mode that it had, None if unchanged."""
    status = os.fstat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OWNER == _OWNER or status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return None
    os.chmod(f"/proc/self/fd/{directory}", mode | _OWNER)
    return mode


def reopen(path: str) -> None:
    """Give ourselves access to a directory of ours that an agent has closed; whoever reads it reports what fails."""
    try:
        with Closing(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as held:
            open_up(held)
    except OSError:
        pass


def close_again(directory: int, mode: int | None) -> None:
    """Restore the mode that `open_up` returned."""
    if mode is not None:
        os.chmod(f"/proc/self/fd/{directory}", mode)


def _read(descriptor: int, limit: int) -> bytes | None:
    with Closing(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        content = b""
        while len(content) <= limit:
            piece = os.read(descriptor, limit + 1 - len(content))
            if not piece:
                return content
            content += piece
        return None


def replace_file(directory: int, name: str, content: bytes) -> None:
    """Write a file atomically.

    Writers take turns, so that one temporary name serves all: a killed one leaves at most one file, and the next writer
    removes it. An agent can hold the lock of its own directory, so we do not wait long.
    """
    with Closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)) as turn:
        temporary = f".{name}.tmp" if _lock_soon(turn) else f".{name}.{os.getpid()}.tmp"
        try:
            os.unlink(temporary, dir_fd=directory)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
        try:
            write_all(descriptor, content)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(temporary, dir_fd=directory)
            raise
        finally:
            os.close(descriptor)


def write_file(path: str, content: bytes) -> None:
    """Write a file atomically, in a directory that is no link."""
    directory, name = os.path.split(path)
    with Closing(os.open(directory, OPEN_DIRECTORY)) as opened:
        replace_file(opened, name, content)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _lock_soon(descriptor: int) -> bool:
    """Take a lock within a fifth of a second; return whether that worked."""
    for _ in range(100):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            return True
    return False


def expand(value: str, base: str, home: str) -> str:
    """Return the normalised path that a value names."""
    return os.path.normpath(join(value, base, home))


def join(value: str, base: str, home: str) -> str:
    """Return the path that a value names: `~` and `~USER` are homes, anything else is relative to `base`.

    `..` stays: where it leads depends on links.
    """
    if value.startswith("~"):
        user, slash, rest = value[1:].partition("/")
        try:
            value = (pwd.getpwnam(user).pw_dir if user else home) + slash + rest
        except (KeyError, ValueError):
            pass
    return os.path.join(base, value)
