"""Replace HEAD or the index of the real repository under git's own lock files, and clear locks of a dead import."""

from __future__ import annotations

import os
import time

from claudebox.files import read_small
from claudebox.launch.git_sandbox import GitError, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.launch.git_state import Layout, Private

_PATIENCE, _LOOK = 2.0, 0.02  # seconds for which somebody else may hold a lock
_STEADY = 1.0  # a lock that stays the same for so long has lost its owner, if it can be ours at all
_LONGEST_IMPORT = 3600.0
_STALE, _OLD = 10.0, 12 * 3600.0  # seconds: of `gc.pid.lock`, which is held for a moment; of `gc.pid`, as git says


def replace_locked(private: Private, path: str, content: bytes, unchanged: Callable[[], bool], mtime: int = 0) -> bool:
    """Replace a file of git under its lock if nobody has changed it; return whether that was done.

    The lock appears complete and with a number that stands in the journal already, so that one of ours that is left
    behind can be told from one of the user's.
    """
    lock = f"{path}.lock"
    descriptor = _nameless(os.path.dirname(path))
    try:
        write_all(descriptor, content)
        private.journal(f"lock {os.fstat(descriptor).st_ino} {lock}")
        limit = time.monotonic() + _PATIENCE
        while True:
            try:
                # Only with a directory does Python follow the link; the path is absolute, so it does not matter.
                os.link(f"/proc/self/fd/{descriptor}", lock, src_dir_fd=descriptor, follow_symlinks=True)
                break
            except FileExistsError:
                if time.monotonic() > limit:
                    raise GitError(f"`{lock}` is held by another git") from None
                time.sleep(_LOOK)
        if not unchanged():
            os.unlink(lock)
            return False
        if mtime:
            os.utime(lock, ns=(mtime, mtime))
        os.rename(lock, path)
        return True
    finally:
        os.close(descriptor)


def _nameless(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise GitError(f"`{directory}` cannot hold a file without a name: {error.strerror}") from None


class NoGarbageCollection:
    """While this is held no `git gc` of the user starts: it could delete objects that no ref leads to yet.

    The file is git's own, with our process in it; one that a dead process has left means nothing to git, or to us.
    """

    def __init__(self, common: str, *, patience: float) -> None:
        self._path = f"{common}/gc.pid"
        limit = time.monotonic() + patience
        while not self._take():
            if time.monotonic() > limit:
                raise GitError("a `git gc` is running in your repository: nothing is brought back before its end")
            time.sleep(_LOOK)

    def _take(self) -> bool:
        lock = f"{self._path}.lock"
        try:
            descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            status = _status(lock)
            if status is not None and time.time() - status.st_mtime > _STALE:
                _remove(lock)
            return False
        try:
            if self._is_running():
                os.unlink(lock)
                return False
            write_all(descriptor, f"{os.getpid()} {os.uname().nodename}".encode())
            os.rename(lock, self._path)
        finally:
            os.close(descriptor)
        return True

    def _is_running(self) -> bool:
        number, _, machine = (read_small(self._path, limit=4096) or b"").strip().partition(b" ")
        status = _status(self._path)  # another import may remove it at any moment
        if not number.isdigit() or status is None or time.time() - status.st_mtime > _OLD:
            return False
        return machine != os.uname().nodename.encode() or os.path.exists(f"/proc/{int(number)}")

    def __enter__(self) -> None:
        """Hold it."""

    def __exit__(self, *_: object) -> None:
        """Let it go, if it is still ours."""
        if (read_small(self._path, limit=4096) or b"").startswith(f"{os.getpid()} ".encode()):
            _remove(self._path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def recover(private: Private, layout: Layout) -> None:
    """Remove the locks that an import has left in the real repository when it was killed.

    Those that we made ourselves are known by their numbers. Those of `receive-pack` can only be of the refs that it was
    asked for, appeared while it ran, and do not change any more; so with that of `gc.pid`, held for a moment only.
    """
    rows = private.unfinished()
    if not rows:
        return
    begun, owner = float(rows[0].split(" ", 1)[0]), rows[0].rpartition(" ")[2]
    collector = f"{layout.common}/gc.pid"
    if (read_small(collector, limit=4096) or b"").strip() == f"{owner} {os.uname().nodename}".encode():
        os.unlink(collector)  # git would take another process with that number for a `git gc`
    ours = {parts[3]: int(parts[2]) for row in rows if (parts := row.split(" ", 3))[1] == "lock" and len(parts) == 4}
    for path, number in ours.items():
        status = _status(path)
        if status is not None and status.st_ino == number:
            os.unlink(path)
    names = {"HEAD", "gc.pid", "packed-refs", *private.intended()[0]}
    if layout.checkout != ".":
        names.add(f"{layout.checkout}/HEAD")
    suspects = {}
    for name in names:
        path = f"{layout.common}/{name}.lock"
        status = _status(path)
        if status is not None and begun <= status.st_mtime + 1 and status.st_mtime <= begun + _LONGEST_IMPORT:
            suspects[path] = (status.st_ino, status.st_mtime_ns, status.st_size)
    if suspects:
        time.sleep(_STEADY)
    for path, before in suspects.items():
        status = _status(path)
        if status is not None and (status.st_ino, status.st_mtime_ns, status.st_size) == before:
            os.unlink(path)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def other_heads(layout: Layout) -> frozenset[str]:
    """Return the branches that are checked out in other worktrees of the real repository, out of the agent's reach."""
    directories = [] if _is_bare(layout.common) else [layout.common]
    try:
        directories += [entry.path for entry in os.scandir(f"{layout.common}/worktrees")]
    except OSError:
        pass
    found = set()
    for directory in directories:
        head = read_small(f"{directory}/HEAD") or b""
        where = os.fsdecode(read_small(f"{directory}/gitdir") or b"").strip()
        reached = where.startswith(layout.work_tree.rstrip("/") + "/") and directory != layout.common
        if directory != layout.git_dir and not reached and head.startswith(b"ref: "):
            found.add(os.fsdecode(head[5:].strip()))
    return frozenset(found)


def _is_bare(common: str) -> bool:
    """Return whether the directory of the repository is no checkout itself."""
    config = (read_small(f"{common}/config", limit=1 << 20) or b"").lower()
    return any(row.replace(b" ", b"").replace(b"\t", b"") == b"bare=true" for row in config.split(b"\n"))
