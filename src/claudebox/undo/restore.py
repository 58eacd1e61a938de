"""Reverting what a session did to a project, in a sandbox that has only the project and the snapshots.

Every name is used in an open directory that was reached through no link, so that a race cannot lead it elsewhere.
Files are replaced as a whole; failures are reported, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import contextmanager

from claudebox.base import console
from claudebox.base.files import PACKAGE, real_path, write_all
from claudebox.undo.comparison import TEMPORARY, Comparison
from claudebox.undo.manifest import read_attributes, row_of
from claudebox.undo.store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.git.sandbox import Tools
    from claudebox.undo.manifest import KeptEntry


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_STORE = "/snapshots"
_CHANGED = "it has just changed, and stays"
# In a user namespace of its own root could not write to the files of others.
_AS_ROOT = (
    "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL",
    *(word for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID") for word in ("--cap-add", f"CAP_{name}")),
)  # fmt: skip
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from claudebox.undo import restore; restore.main(*sys.argv[2:])"
)


def put_back(  # noqa: PLR0913 - all of it enters the sandbox
    tools: Tools, store: str, sessions: tuple[str, str], root: str, kept: Iterable[str], *, owners: bool = False,
    both: bool = False, held: Iterable[str] = (), told: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, str]:  # fmt: skip
    """Revert a session, given its name and that of a snapshot of the present; return what failed, and why.

    `kept` are directories that stay read-only, `held` is what stays in any case. With `owners` some files belong to
    others, which root restores. `told` is called every second: paths done, of how many.
    """
    import subprocess
    import tempfile

    from claudebox.git.sandbox import system_mounts

    python = real_path(sys.executable or "/usr/bin/python3")
    needed = dict.fromkeys((sys.base_prefix, os.path.dirname(python), PACKAGE))
    rights: tuple[str, ...] = ("--unshare-all", "--cap-drop", "ALL")
    if owners and os.getuid() == 0:
        rights = _AS_ROOT
    words = [tools.bwrap, *rights, "--die-with-parent", "--new-session", *system_mounts(),
             "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # fmt: skip
    for path in needed:
        words += ["--ro-bind", path, path]
    words += ["--bind", root, root, "--ro-bind", store, _STORE]
    for path in kept:
        words += ["--ro-bind", path, path]
    words += ["--chdir", "/", "--", python, "-IS", "-c", _PROGRAM, PACKAGE, *sessions, "both" if both else ""]
    found: dict[str, str] | None = None
    with tempfile.TemporaryFile("w+") as asked:
        json.dump(sorted(held), asked)
        asked.seek(0)
        done = subprocess.Popen(words, env={}, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with done:
        for line in done.stdout or ():
            row = json.loads(line)
            if isinstance(row, list):
                told(*row)
            else:
                found = row
        said = done.stderr.read() if done.stderr is not None else b""
    if found is None or done.returncode:
        lines = said.decode("utf-8", "replace").strip().split("\n")
        return {".": f"the sandbox ended with status {done.returncode}: {lines[-1][:300]}"}
    return found


def main(target: str, present: str, both: str) -> None:
    """Run in the sandbox."""
    store = SnapshotStore(_STORE, writing=False)
    start, end, now = store.read_snapshot(target), store.read_end(target), store.read_snapshot(present)
    unfinished = store.read_unfinished(but=present)
    held = frozenset(json.load(sys.stdin))
    comparison = Comparison(start, end, now, both=bool(both), unfinished=unfinished, held=held)
    console.write([json.dumps(_Restoring(store, comparison, start.root).run())], descriptor=1)


class _Restoring:
    """Does it, in the sandbox; each step stands by itself."""

    def __init__(self, store: SnapshotStore, comparison: Comparison, root: str) -> None:
        self._store, self._comparison = store, comparison
        self._before, self._made = comparison.before, frozenset(comparison.made)
        self._problems: dict[str, str] = {}
        self._gone: set[str] = set()  # removed by us
        self._ctimes: dict[int, int] = {}  # of files that we linked or unlinked, by inode
        self._opened: dict[str, int] = {}  # directories that denied their owner something: former mode
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        rows = (*comparison.moves, *comparison.removed, *comparison.made, *comparison.untimed)
        self._done, self._all, self._said = 0, len(rows), time.monotonic()

    def run(self) -> dict[str, str]:
        entries, found, made = self._before, self._comparison.now, self._comparison.made
        touched = {"."}
        for source, target in self._comparison.moves:
            for above in _list_above(target):
                if above in self._made:
                    if above in found and found[above].kind != "d" and above not in self._gone:
                        self._attempt(above, self._remove)  # a link to where it is now, say
                    self._attempt(above, self._make_directory)
            self._attempt(target, lambda directory, name, path: self._move(directory, name, path, source))  # noqa: B023 - at once
            touched |= {*_list_above(source), *_list_above(target)}
        replaced = [path for path in made if path in found and found[path].kind != entries[path].kind
                    and path not in self._gone]  # fmt: skip
        for path in sorted((*self._comparison.removed, *replaced), reverse=True):  # what is in it before a directory
            self._attempt(path, self._remove)
        for path in sorted(path for path in made if entries[path].kind == "d"):
            self._attempt(path, self._make_directory)
        for path in sorted(path for path in made if entries[path].kind != "d"):
            self._attempt(path, self._make)
        for path in self._comparison.untimed:
            if entries[path].kind != "d":
                self._attempt(path, self._set_time)
        touched |= {above for path in (*made, *self._comparison.removed) for above in _list_above(path)}
        touched |= {path for path in (*made, *self._comparison.untimed) if entries[path].kind == "d"}
        for path in sorted((touched | self._opened.keys()) - set(self._comparison.removed), reverse=True):
            self._attempt(path, self._finish_directory)
        return self._problems

    def _tell(self) -> None:
        self._done += 1
        if time.monotonic() - self._said > 1:
            self._said = time.monotonic()
            console.write([json.dumps([min(self._done, self._all), self._all])], descriptor=1)

    def _attempt(self, path: str, action: Callable[[int, str, str], None]) -> None:
        self._tell()
        try:
            directory = self._open(os.path.dirname(path))
            try:
                action(directory, os.path.basename(path), path)
            finally:
                os.close(directory)
        except OSError as error:
            self._problems.setdefault(path, error.strerror or str(error))

    def _open(self, path: str) -> int:
        """Open a directory of the project through no link, with all rights for its owner."""
        current = os.dup(self._root)
        above = ""
        for part in path.split("/") if path else ():
            above = f"{above}/{part}" if above else part
            try:
                self._unlock(part, current, above)
                following = os.open(part, _DIRECTORY, dir_fd=current)
            finally:
                os.close(current)
            current = following
        return current

    def _unlock(self, name: str, directory: int, path: str) -> None:
        """Give the owner of a directory all rights until its mode is restored at the end."""
        mode = os.lstat(name, dir_fd=directory).st_mode
        if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
            self._opened.setdefault(path, stat.S_IMODE(mode))
            _change_mode(directory, name, stat.S_IMODE(mode) | 0o700)

    def _unlock_itself(self, directory: int, path: str) -> None:
        mode = stat.S_IMODE(os.fstat(directory).st_mode)
        if mode & 0o700 != 0o700:
            self._opened.setdefault(os.path.dirname(path) or ".", mode)
            os.fchmod(directory, mode | 0o700)

    @contextmanager
    def _as_seen(self, directory: int, name: str, path: str) -> Iterator[None]:
        """Raise unless a path is what the comparison saw, right before it is changed."""
        entry = self._comparison.now.get(path) if path not in self._gone else None
        try:
            held = os.open(name, _PATH, dir_fd=directory)
        except FileNotFoundError:
            held = -1
        if held < 0:
            if entry is not None:
                raise FileNotFoundError(_CHANGED)
            yield
            return
        try:
            if entry is None or not self._is_seen(os.fstat(held), entry):
                raise OSError(_CHANGED)
            yield
            status = os.fstat(held)
            if status.st_nlink:
                self._ctimes[row_of(status)[-1]] = status.st_ctime_ns
        finally:
            os.close(held)

    def _is_seen(self, status: os.stat_result, entry: KeptEntry) -> bool:
        *_, size, _, ctime, inode = row_of(status)
        if stat.S_ISDIR(status.st_mode) or entry.kind == "d":  # never removed with anything in it
            return stat.S_ISDIR(status.st_mode) and entry.kind == "d" and inode == entry.inode
        return (inode, ctime, size) == (entry.inode, self._ctimes.get(inode, entry.ctime), entry.size)

    def _move(self, directory: int, name: str, path: str, source: str) -> None:
        """Give something its former name, if that is free."""
        self._unlock_itself(directory, path)
        above = self._open(os.path.dirname(source))
        try:
            self._unlock_itself(above, source)
            old = os.path.basename(source)
            with self._as_seen(above, old, path):
                if stat.S_ISDIR(os.lstat(old, dir_fd=above).st_mode):
                    os.rename(
                        old, name, src_dir_fd=above, dst_dir_fd=directory
                    )  # replaces nothing but an empty directory
                else:
                    os.link(old, name, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)
                    os.unlink(old, dir_fd=above)
        finally:
            os.close(above)

    def _remove(self, directory: int, name: str, path: str) -> None:
        self._unlock_itself(directory, path)
        try:
            with self._as_seen(directory, name, path):
                if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                    os.rmdir(name, dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
        except FileNotFoundError:  # removed by another undo that was killed and had not ended yet
            pass
        self._gone.add(path)

    def _make_directory(self, directory: int, name: str, path: str) -> None:
        self._unlock_itself(directory, path)
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                raise

    def _make(self, directory: int, name: str, path: str) -> None:
        self._unlock_itself(directory, path)
        entry = self._before[path]
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}"  # every sandbox has the same process numbers
        try:
            if entry.kind == "l":
                os.symlink(entry.content, temporary, dir_fd=directory)
                _give(temporary, directory, entry)
            elif entry.kind == "p":
                os.mkfifo(temporary, 0o600, dir_fd=directory)
                _give(temporary, directory, entry)
                _change_mode(directory, temporary, entry.mode)
            elif not self._link(directory, temporary, path):
                self._write(directory, temporary, entry)
            if os.lstat(temporary, dir_fd=directory).st_nlink == 1:
                os.utime(temporary, ns=(entry.mtime, entry.mtime), dir_fd=directory, follow_symlinks=False)
            with self._as_seen(directory, name, path):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            try:
                os.unlink(temporary, dir_fd=directory)
            except OSError:
                pass
            raise

    def _link(self, directory: int, temporary: str, path: str) -> bool:
        """Restore a hard link to a file that was restored under another name; return whether there is one."""
        first = self._comparison.links.get(path, (path,))[0]
        if first == path or first in self._problems or first not in self._made:
            return False
        above = self._open(os.path.dirname(first))
        try:
            os.link(os.path.basename(first), temporary, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(above)
        return True

    def _write(self, directory: int, name: str, entry: KeptEntry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            for piece in self._store.read_content(entry.content):
                write_all(descriptor, piece)
            _dress(descriptor, entry)
        finally:
            os.close(descriptor)

    def _set_time(self, directory: int, name: str, path: str) -> None:
        mtime = self._before[path].mtime
        with self._as_seen(directory, name, path):
            os.utime(name, ns=(mtime, mtime), dir_fd=directory, follow_symlinks=False)

    def _finish_directory(self, directory: int, name: str, path: str) -> None:
        """Restore mode and mtime of a directory in which something was done."""
        was, now, ended = self._before.get(path), self._comparison.now.get(path), self._comparison.ended.get(path)
        try:
            descriptor = os.dup(self._root) if path == "." else os.open(name, _DIRECTORY, dir_fd=directory)
        except PermissionError:  # nothing in it had to be restored
            self._unlock(name, directory, path)
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):  # removed
            return
        try:
            if was is not None and path in self._comparison.made:
                _dress(descriptor, was)
            elif path in self._opened:
                os.fchmod(descriptor, self._opened[path])
            is_old = was is not None and (now is None or ended is None or now.mtime == ended.mtime)
            time_of = was if is_old else now
            if time_of is not None and os.fstat(descriptor).st_mtime_ns != time_of.mtime:
                os.utime(descriptor, ns=(time_of.mtime, time_of.mtime))
        finally:
            os.close(descriptor)


def _list_above(path: str) -> list[str]:
    """Return the directories above a path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _dress(descriptor: int, entry: KeptEntry) -> None:
    """Set attributes, owner and mode of an open file or directory where they differ."""
    wanted, found = dict(entry.attributes), dict(read_attributes(descriptor))
    for name, value in wanted.items():
        if found.get(name) != value:
            os.setxattr(descriptor, name, value)
    for name in found.keys() - wanted.keys():
        os.removexattr(descriptor, name)
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != entry.owner:
        _give(descriptor, None, entry)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != entry.mode:
        os.fchmod(descriptor, entry.mode)


def _give(what: str | int, directory: int | None, entry: KeptEntry) -> None:
    """Set the owner, if we may; the caller compares everything afterwards."""
    try:
        os.chown(what, *entry.owner, dir_fd=directory, follow_symlinks=isinstance(what, int))
    except OSError:
        return


def _change_mode(directory: int, name: str, mode: int) -> None:
    """Change the mode of something unreadable, never through a link."""
    descriptor = os.open(name, _PATH, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)
