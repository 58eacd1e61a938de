"""Copying files of a project: shared blocks where the file system can, bytes where not, never a hard link.

The project may have been written by an agent: nothing is followed that is a link, and what is neither file, directory
nor link stays behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from claudebox.errors import ClaudeboxError
from claudebox.files import OPEN_DIRECTORY, Closing, open_beneath
from claudebox.report.log_reader import human

_FICLONE = 0x40049409
_DEPTH = 2000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class TreeCopier:
    """Copies from one directory to another, up to so many bytes that are not shared."""

    def __init__(self, source: str, target: str, most: int, skipped: frozenset[str] = frozenset()) -> None:
        self._source, self._target = os.open(source, OPEN_DIRECTORY), os.open(target, OPEN_DIRECTORY)
        self._most, self._skipped = most, skipped
        self.copied = 0  # bytes that take room
        self._clones = True
        self._waiting: list[tuple[str, int]] = []  # directories, and their modes

    def close(self) -> None:
        """Let go of both."""
        os.close(self._source)
        os.close(self._target)

    def copy(self, relative: str) -> bool:
        """Copy a file or a directory with all that is in it; return whether it was there."""
        parent, _, name = relative.rpartition("/")
        try:
            source = open_beneath(self._source, parent, listed=True)
        except OSError:
            return False
        with Closing(source):
            if not os.path.lexists(f"/proc/self/fd/{source}/{name}"):
                return False
            with Closing(self._make_parents(parent)) as target:
                self._entries(source, target, [name], parent)
            self._go_on()
            return True

    def copy_all(self) -> None:
        """Copy everything."""
        names = [name for name in os.listdir(self._source) if name not in self._skipped]
        self._entries(self._source, self._target, names, "")
        self._go_on()

    def _make_parents(self, relative: str) -> int:
        current = os.dup(self._target)
        for part in relative.split("/") if relative else ():
            with Closing(current) as above:
                if not os.path.lexists(f"/proc/self/fd/{above}/{part}"):
                    os.mkdir(part, 0o755, dir_fd=above)
                current = os.open(part, OPEN_DIRECTORY, dir_fd=above)
        return current

    def _go_on(self) -> None:
        """Copy the directories that wait, one after the other: how deep they lie does not matter."""
        while self._waiting:
            path, mode = self._waiting.pop()
            if path.count("/") > _DEPTH:
                raise ClaudeboxError("directories are nested too deeply to be copied")
            with (
                Closing(open_beneath(self._source, path, listed=True)) as source,
                Closing(open_beneath(self._target, path, listed=True)) as target,
            ):
                os.fchmod(target, mode & 0o777 | 0o700)
                self._entries(source, target, os.listdir(source), path)

    def _entries(self, source: int, target: int, names: list[str], path: str) -> None:
        for name in names:
            status = os.lstat(name, dir_fd=source)
            if stat.S_ISDIR(status.st_mode):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=target)
                self._waiting.append((f"{path}/{name}" if path else name, status.st_mode))
            elif os.path.lexists(f"/proc/self/fd/{target}/{name}"):
                continue  # it came with the branch
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif stat.S_ISREG(status.st_mode):
                self._file(source, target, name)

    def _file(self, source: int, target: int, name: str) -> None:
        try:
            old = os.open(name, _READ, dir_fd=source)
        except PermissionError:  # what the user cannot read, no agent needs
            return
        with Closing(old):
            status = os.fstat(old)
            with Closing(os.open(name, _WRITE, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=target)) as new:
                self._content(old, new, status.st_size)
                os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _content(self, old: int, new: int, size: int) -> None:
        if self._clones:
            try:
                fcntl.ioctl(new, _FICLONE, old)
                return
            except OSError as error:
                if error.errno not in _NO_CLONE:
                    raise
                self._clones = False
        self.copied += size
        if self.copied > self._most:
            raise ClaudeboxError(
                f"the copy would take more than {human(self._most)} on a file system that cannot share blocks",
                hint="copy less (`copy = [...]`), or raise `--copy-size`",
            )
        while size > 0:
            done = os.sendfile(new, old, None, min(size, 1 << 26))
            if not done:
                return
            size -= done
