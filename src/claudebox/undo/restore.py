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
from claudebox.base.files import OPEN_DIRECTORY, PACKAGE, Closing, open_up, real_path, write_all
from claudebox.undo.comparison import TEMPORARY, Comparison
from claudebox.undo.manifest import KeptEntry, pack_row
from claudebox.undo.store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.git.sandbox import Tools


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
        self._ctimes: dict[int, int] = {}  # of files that we moved, by inode
        self._opened: dict[str, int] = {}  # directories that denied their owner something: former mode
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._done, self._said = 0, time.monotonic()
        self._all = len((*comparison.moves, *comparison.removed, *comparison.made))

    def run(self) -> dict[str, str]:
        """Restore everything; return what failed, and why."""
        entries, found, made = self._before, self._comparison.now, self._comparison.made
        for source, target in self._comparison.moves:
            for above in _list_above(target):
                if above in self._made:
                    if above in found and found[above].kind != "d" and above not in self._gone:
                        self._attempt(above, self._remove)  # a link to where it is now, say
                    self._attempt(above, self._make_directory)
            self._attempt(target, lambda directory, name, path: self._move(directory, name, path, source))  # noqa: B023 - at once
        replaced = [path for path in made if path in found and found[path].kind != entries[path].kind
                    and path not in self._gone]  # fmt: skip
        for path in sorted((*self._comparison.removed, *replaced), reverse=True):  # what is in it before a directory
            self._attempt(path, self._remove)
        folders = {path for path in made if entries[path].kind == "d"}
        for path in sorted(folders):
            self._attempt(path, self._make_directory)
        for path in sorted(self._made - folders):
            self._attempt(path, self._make)
        for path in sorted((folders | self._opened.keys()) - set(self._comparison.removed), reverse=True):
            self._attempt(path, self._finish_directory)
        return self._problems

    def _attempt(self, path: str, action: Callable[[int, str, str], None]) -> None:
        self._done += 1
        if time.monotonic() - self._said > 1:
            self._said = time.monotonic()
            console.write([json.dumps([min(self._done, self._all), self._all])], descriptor=1)
        try:
            with Closing(self._open(os.path.dirname(path))) as directory:
                action(directory, os.path.basename(path), path)
        except OSError as error:
            self._problems.setdefault(path, error.strerror or str(error))

    def _open(self, path: str) -> int:
        """Open a directory of the project through no link, with all rights for its owner."""
        current = os.dup(self._root)
        above = ""
        for part in path.split("/") if path else ():
            above = f"{above}/{part}" if above else part
            with Closing(current) as around:
                self._unlock(part, around, above)
                current = os.open(part, OPEN_DIRECTORY, dir_fd=around)
        return current

    def _unlock(self, name: str, directory: int, path: str) -> None:
        """Give the owner of a directory all rights until its mode is restored at the end."""
        with Closing(os.open(name, _PATH, dir_fd=directory)) as held:
            mode = open_up(held)
        if mode is not None:
            self._opened.setdefault(path, mode)

    def _unlock_around(self, directory: int, path: str) -> None:
        self._unlock(".", directory, os.path.dirname(path) or ".")

    @contextmanager
    def _as_seen(self, directory: int, name: str, path: str) -> Iterator[None]:
        """Raise unless a path is what the comparison saw, right before it is changed."""
        entry = self._comparison.now.get(path) if path not in self._gone else None
        try:
            held = os.open(name, _PATH, dir_fd=directory)
        except FileNotFoundError:
            if entry is not None:
                raise FileNotFoundError(_CHANGED) from None
            yield
            return
        with Closing(held):
            if entry is None or not self._is_seen(os.fstat(held), entry):
                raise OSError(_CHANGED)
            yield
            status = os.fstat(held)
            if status.st_nlink:
                self._ctimes[KeptEntry(pack_row(status)).inode] = status.st_ctime_ns

    def _is_seen(self, status: os.stat_result, entry: KeptEntry) -> bool:
        found = KeptEntry(pack_row(status))
        if "d" in (found.kind, entry.kind):  # never removed with anything in it
            return (found.kind, found.inode) == (entry.kind, entry.inode)
        ctime = self._ctimes.get(found.inode, entry.ctime)
        return (found.inode, found.ctime, found.size) == (entry.inode, ctime, entry.size)

    def _move(self, directory: int, name: str, path: str, source: str) -> None:
        """Give something its former name, if that is free."""
        self._unlock_around(directory, path)
        with Closing(self._open(os.path.dirname(source))) as above:
            self._unlock_around(above, source)
            old = os.path.basename(source)
            with self._as_seen(above, old, path):
                if stat.S_ISDIR(os.lstat(old, dir_fd=above).st_mode):  # replaces nothing but an empty directory
                    os.rename(old, name, src_dir_fd=above, dst_dir_fd=directory)
                else:
                    os.link(old, name, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)
                    os.unlink(old, dir_fd=above)

    def _remove(self, directory: int, name: str, path: str) -> None:
        self._unlock_around(directory, path)
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
        self._unlock_around(directory, path)
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                raise

    def _make(self, directory: int, name: str, path: str) -> None:
        """Write a file or link, and rename it into place."""
        self._unlock_around(directory, path)
        entry = self._before[path]
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}"  # every sandbox has the same process numbers
        try:
            if entry.kind == "l":
                os.symlink(entry.content, temporary, dir_fd=directory)
                _give(temporary, directory, entry)
            else:
                with Closing(os.open(temporary, _NEW, 0o600, dir_fd=directory)) as opened:
                    write_all(opened, self._store.read_content(entry.content))
                    _give(opened, None, entry)
                    os.fchmod(opened, entry.mode)
            os.utime(temporary, ns=(entry.mtime, entry.mtime), dir_fd=directory, follow_symlinks=False)
            with self._as_seen(directory, name, path):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            try:
                os.unlink(temporary, dir_fd=directory)
            except OSError:
                pass
            raise

    def _finish_directory(self, directory: int, name: str, path: str) -> None:
        """Restore owner and mode of a directory that was made or opened up."""
        try:
            held = os.dup(self._root) if path == "." else os.open(name, _PATH | os.O_DIRECTORY, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):  # removed
            return
        with Closing(held):
            entry = self._before[path] if path in self._made else None
            if entry is not None:
                _give(f"/proc/self/fd/{held}", None, entry)
            os.chmod(f"/proc/self/fd/{held}", entry.mode if entry is not None else self._opened[path])


def _list_above(path: str) -> list[str]:
    """Return the directories above a path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _give(what: str | int, directory: int | None, entry: KeptEntry) -> None:
    """Set the owner, if we may; the caller compares everything afterwards."""
    try:
        os.chown(what, *entry.owner, dir_fd=directory, follow_symlinks=directory is None)
    except OSError:
        return
