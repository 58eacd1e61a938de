"""Reading files that somebody hostile may have put there, and writing them as a whole.

A FIFO must not block the launcher, a link must not lead it away, a huge file must not fill its memory (C18).
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
_given: list[int] = []  # the umask of whoever started us

LOST = "the directory that the session was started on is not there any more"
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
    """See that we can open what we make, whatever the umask is; `restore_umask` is for what runs inside."""
    given = os.umask(0o077)
    _given[:] = [given]
    os.umask(given & ~_OWNER)


def restore_umask() -> None:
    """Take the umask of whoever started us again."""
    if _given:
        os.umask(_given[0])


def keep_descriptors() -> None:
    """Hand nothing on to what is started from here but the standard descriptors, whatever was left open."""
    if syscalls.close_on_exec(3):
        return
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            try:
                os.set_inheritable(descriptor, False)  # noqa: FBT003
            except OSError:  # the one that was listed by
                continue


def others_write(descriptor: int, status: os.stat_result) -> bool:
    """Return whether somebody but its owner and root may write what is open there.

    The group that is the user's alone counts as the user: many systems start with umask 002 for its sake.
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
    """Return whether an access list names further users: what stands for the group is then their limit."""
    try:
        os.getxattr(descriptor, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _is_alone_in(gid: int) -> bool:
    """Return whether a group has the name of the user, who is not root, and nobody else in it."""
    import grp
    import pwd

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


def parse_object(text: bytes | str | None) -> dict[str, Any]:
    """Return the JSON object that a text is; nothing of anything else."""
    import json

    try:
        document = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def mode_of(path: str | bytes, directory: int | None = None) -> int:
    """Return the mode of what is at a path, which may be a link itself; 0 where nothing can be seen."""
    try:
        return os.lstat(path, dir_fd=directory).st_mode
    except OSError:
        return 0


def list_names(directory: str) -> list[str]:
    """Return the names in a directory, in order; none where it cannot be listed."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def real_path(path: str) -> str:
    """Return a path with every link resolved, or as it is if it leads through more links than the kernel follows."""
    try:
        return os.path.realpath(path)
    except RecursionError:  # Python goes on where the kernel has given up
        return path


def open_beneath(directory: int, relative: str, *, listed: bool = False) -> int:
    """Open a directory in an open one, part by part and through no link; `listed`: what is in it can be read."""
    current = os.dup(directory)
    flags = (0 if listed else os.O_PATH) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for part in relative.split("/") if relative else ():
        with Closing(current) as above:
            current = os.open(part, flags, dir_fd=above)
    return current


def identify(path: str) -> tuple[int, int] | None:
    """Return device and inode of the directory that a path leads to; nothing if it is a link or no directory."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def open_known(path: str, flags: int, identity: tuple[int, int] | None) -> int:
    """Open a directory; where its identity is known and none or another is at the path, fail as `LOST`."""
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
    """Give the owner all rights in a directory, open as O_PATH, that denies them; return the mode that it had.

    None if nothing was changed: it denies nothing, is not ours, or is no directory.
    """
    status = os.fstat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OWNER == _OWNER or status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return None
    os.chmod(f"/proc/self/fd/{directory}", mode | _OWNER)
    return mode


def reopen(path: str) -> None:
    """Open up a directory of ours that an agent has closed, and not where a link leads; whoever reads it complains."""
    try:
        with Closing(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as held:
            open_up(held)
    except OSError:
        pass


def close_again(directory: int, mode: int | None) -> None:
    """Put back the mode that `open_up` returned."""
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
    """Write a file as a whole or not at all.

    Writers take turns, so that one name serves for all unfinished files: what a killed process leaves is at most one of
    them, and the next one takes it away. An agent can hold the lock of a directory of its own: then we do not wait.
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


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of this, however often the kernel takes only a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _lock_soon(descriptor: int) -> bool:
    """Return whether we got the lock within a fifth of a second."""
    for _ in range(100):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            return True
    return False


def expand(value: str, base: str, home: str) -> str:
    """Return the path that a value names, in its shortest spelling."""
    return os.path.normpath(join(value, base, home))


def join(value: str, base: str, home: str) -> str:
    """Return the path that a value names: `~` and `~USER` are homes, anything else counts from `base`.

    What comes before `..` stays: where that leads to is for the kernel to say.
    """
    if value.startswith("~"):
        user, slash, rest = value[1:].partition("/")
        try:
            value = (pwd.getpwnam(user).pw_dir if user else home) + slash + rest
        except (KeyError, ValueError):
            pass
    return os.path.join(base, value)
