"""Putting in order what an agent has left in a git directory of the sandbox's own, through no link of its making."""

from __future__ import annotations

import os
import stat
import time

from claudebox.files import Closing, mode_of, open_beneath, open_up, read_at, reopen, replace_file
from claudebox.launch.git_copy import DIRECTORY

_READ_BY_GIT = ("objects", "refs", "reftable", "logs", "info", "worktrees")
_DAEMON = "fsmonitor--daemon.ipc"  # a socket of git's own, which it does not read
_MOST_ENTRIES, _DEEPEST = 1 << 20, 32


def renew_alternates(objects: str, stores: list[str]) -> None:
    """Name the stores in a directory of objects."""
    directory = os.open(objects, DIRECTORY)
    try:
        for name in ("info", "pack"):
            if not _is_directory(directory, name):
                if name in os.listdir(directory):
                    os.unlink(name, dir_fd=directory)
                os.mkdir(name, 0o755, dir_fd=directory)
        info = os.open("info", DIRECTORY, dir_fd=directory)
        try:
            if _is_directory(info, "alternates"):
                os.rename("alternates", f"alternates.{os.getpid()}", src_dir_fd=info, dst_dir_fd=info)
            content = b"".join(os.fsencode(store) + b"\n" for store in stores)
            if read_at(info, "alternates") != content:
                replace_file(info, "alternates", content)
        finally:
            os.close(info)
    finally:
        os.close(directory)


def _is_directory(directory: int, name: str) -> bool:
    return stat.S_ISDIR(mode_of(name, directory))


def remove_special(own: str) -> list[str]:
    """Remove pipes, sockets and devices from where git reads, links among objects, deep refs; return their paths.

    Git would wait for ever to open a pipe. What denies us reading is ours all the same, and is opened up; objects are
    too many to look at each.
    """
    removed: list[str] = []
    pending, count = [""], 0
    try:
        top = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # whoever reads it says so
        return removed
    try:
        while pending and count < _MOST_ENTRIES:  # beyond, the limits of time are left
            path = pending.pop()
            try:
                with _Opened(top, path) as directory, os.scandir(directory) as found:
                    entries = list(found)
                    count += len(entries)
                    for entry in entries:
                        name = f"{path}/{entry.name}" if path else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            if path.startswith("refs/") and name.count("/") >= _DEEPEST:  # no ref that comes back
                                os.rename(entry.name, f"deep.{time.time_ns()}", src_dir_fd=directory, dst_dir_fd=top)
                                removed.append(name)
                                continue
                            follow = name.count("/") < _DEEPEST if path else name in _READ_BY_GIT
                            pending += [name] if follow else []
                        elif _is_special(entry, name):
                            os.unlink(entry.name, dir_fd=directory)
                            removed.append(name)
                        elif not name.startswith("objects/") and entry.is_file(follow_symlinks=False):
                            _let_read(directory, entry)
            except OSError:
                continue
    finally:
        os.close(top)
    return sorted(removed)


def _is_special(entry: os.DirEntry[str], name: str) -> bool:
    if entry.is_symlink():
        return name.partition("/")[0] == "objects"
    return not entry.is_file(follow_symlinks=False) and entry.name != _DAEMON


def _let_read(directory: int, entry: os.DirEntry[str]) -> None:
    mode = entry.stat(follow_symlinks=False).st_mode
    if not mode & stat.S_IRUSR:
        with Closing(os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as held:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)


class _Opened:
    """A directory that is open to be listed and changed, which its mode may forbid."""

    def __init__(self, top: int, path: str) -> None:
        held = open_beneath(top, path)
        try:
            open_up(held)
            self._descriptor = os.open(".", DIRECTORY, dir_fd=held)
        finally:
            os.close(held)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def remove(path: str) -> None:
    """Remove a tree that an agent has made, however deep: directories move to the top before they are emptied."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    reopen(path)
    top = os.open(path, DIRECTORY)
    try:
        pending = [""]
        count = 0
        while pending:
            name = pending.pop()
            directory = os.open(name, DIRECTORY, dir_fd=top) if name else os.dup(top)
            try:
                for entry in os.listdir(directory):
                    if not _is_directory(directory, entry):
                        os.unlink(entry, dir_fd=directory)
                        continue
                    os.chmod(entry, 0o700, dir_fd=directory)
                    count += 1
                    moved = f".{count}.{os.getpid()}.removed" if name else entry
                    if name:
                        os.rename(entry, moved, src_dir_fd=directory, dst_dir_fd=top)
                    pending.append(moved)
            finally:
                os.close(directory)
            if name:
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)
