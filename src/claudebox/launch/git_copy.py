"""Copying parts of a git directory that may be hostile into one of ours."""

from __future__ import annotations

import errno
import os
import stat

from claudebox.errors import ClaudeboxError
from claudebox.files import open_beneath, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.model import Identity

LIMIT = 256 << 20  # of packed-refs and the like
MOST_FILES = 200_000
_SMALL = 1 << 16
_DEPTH = 32
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_PACKED = b"# pack-refs with: sorted \n"


class Copier:
    """Takes files out of one directory, by names that are followed through no link."""

    def __init__(self, source: str, target: str, identity: Identity | None) -> None:
        self._source = os.open(source, DIRECTORY)
        self._target = target
        self._left = MOST_FILES
        self._made = {target}
        status = os.fstat(self._source)
        if identity is not None and (status.st_dev, status.st_ino) != identity:
            os.close(self._source)
            raise ClaudeboxError(f"`{source}` was replaced by something else since it was shown")

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._source)

    def files(self, names: Iterable[str]) -> None:
        """Copy those that are regular files, with their times."""
        for name in names:
            descriptor, status = self._open(name)
            if descriptor >= 0:
                try:
                    self._copy(descriptor, status, name)  # type: ignore[arg-type]
                finally:
                    os.close(descriptor)

    def tree(self, name: str) -> None:
        """Copy the files in a directory and beneath."""
        self.files(self.below(name))

    def hooks(self) -> None:
        """Copy the hooks, without the examples that git brings."""
        self.files(f"hooks/{name}" for name in self.names("hooks") if not name.endswith(".sample"))

    def content(self, name: str, limit: int = _SMALL) -> bytes | None:
        """Return what is in a regular file."""
        descriptor, status = self._open(name)
        if descriptor < 0:
            return None
        try:
            return os.read(descriptor, limit) if status is not None and status.st_size <= limit else None
        finally:
            os.close(descriptor)

    def contents(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names and the trimmed contents of all files beneath a directory."""
        for path in self.below(name):
            content = self.content(path)
            if content and content.strip() and b"\n" not in content.strip():
                yield path, content.strip()

    def names(self, name: str) -> list[str]:
        """Return what is in a directory."""
        descriptor = self._enter(name)
        if descriptor < 0:
            return []
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def below(self, name: str) -> list[str]:
        """Return the files beneath a directory, without locks."""
        descriptor = self._enter(name)
        if descriptor < 0:
            return []
        try:
            return [f"{name}/{path}" for path in walk(descriptor, self._left) if not path.endswith(".lock")]
        finally:
            os.close(descriptor)

    def _enter(self, name: str) -> int:
        """Return a descriptor on a directory, -1 if there is none or a link is in the way."""
        try:
            return open_beneath(self._source, name, listed=True)
        except OSError:
            return -1

    def _open(self, name: str) -> tuple[int, os.stat_result | None]:
        parent, _, last = name.rpartition("/")
        directory = self._enter(parent)
        if directory < 0:
            return -1, None
        try:
            descriptor = os.open(last, _READ, dir_fd=directory)
        except OSError:
            return -1, None
        finally:
            os.close(directory)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor, status
        os.close(descriptor)
        return -1, None

    def _copy(self, source: int, status: os.stat_result, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise ClaudeboxError(f"the git directory has more than {MOST_FILES} files besides objects")
        path = f"{self._target}/{name}"
        parent = os.path.dirname(path)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        target = os.open(path, _WRITE, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
        try:
            if status.st_size <= _SMALL:
                write_all(target, os.read(source, _SMALL))
            else:
                copy_range(source, target, status.st_size)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)


def copy_range(source: int, target: int, size: int) -> None:
    """Let the kernel copy, or do it ourselves where it cannot."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, size - done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            piece = os.read(source, 1 << 20)
            write_all(target, piece)
            count = len(piece)
        if not count:
            return
        done += count


def write(path: str, content: bytes) -> None:
    """Write a file of ours, with the directories above it."""
    try:
        descriptor = os.open(path, _WRITE, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _WRITE, 0o644)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def fold(path: str, refs: dict[str, bytes]) -> None:
    """Write refs into `packed-refs`, over what stands there."""
    try:
        with open(path, "rb") as file:
            rows = file.read(LIMIT).split(b"\n")
    except FileNotFoundError:
        rows = []
    merged = {os.fsencode(name): value for name, value in refs.items()}
    known: dict[bytes, bytes] = {}
    peeled: dict[bytes, bytes] = {}
    name = b""
    for row in rows:
        if row.startswith(b"^"):
            peeled[name] = row + b"\n"
        elif row and not row.startswith(b"#"):
            value, _, name = row.partition(b" ")
            known[name] = value
    every = {**known, **merged}
    lines = (
        every[name] + b" " + name + b"\n" + (peeled.get(name, b"") if name not in merged else b"")
        for name in sorted(every)
    )
    write(path, _PACKED + b"".join(lines))


def signature(path: str) -> str:
    """Return what changes when the files in a directory do."""
    rows = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
                rows.append(f"{entry.name}\0{status.st_ino}\0{status.st_size}\0{times}\0{status.st_mode:o}")
    except OSError:
        return ""
    return "\n".join(sorted(rows))


def walk(top: int, most: int) -> list[str]:
    """Return the regular files beneath a directory, relative to it."""
    found: list[str] = []
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        descriptor = top
        try:
            if prefix:
                descriptor = open_beneath(top, prefix, listed=True)
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{prefix}/{entry.name}" if prefix else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending += [(path, depth + 1)] if depth < _DEPTH else []
                    elif entry.is_file(follow_symlinks=False):
                        found.append(path)
        except OSError:
            continue
        finally:
            if descriptor != top and descriptor >= 0:
                os.close(descriptor)
        if len(found) > most:
            raise ClaudeboxError(f"the git directory has more than {MOST_FILES} files besides objects")
    return sorted(found)
