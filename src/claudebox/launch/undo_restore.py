"""Putting a project back as a snapshot has it, in a sandbox that has the project and the snapshots alone.

Every name is used in an open directory that was reached through no link, so that nobody can lead it away, not even
within that sandbox. Files are replaced as a whole; what cannot be done is reported, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import stat
import sys

from claudebox import console
from claudebox.files import PACKAGE, real_path
from claudebox.launch.undo_compare import Comparison
from claudebox.launch.undo_manifest import read_attributes
from claudebox.launch.undo_store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.launch.git_sandbox import Tools
    from claudebox.launch.undo_manifest import KeptEntry, Snapshot

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STORE = "/snapshots"
# In its own user namespace root would be nobody to the files of others.
_AS_ROOT = (
    "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL",
    *(word for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID") for word in ("--cap-add", f"CAP_{name}")),
)  # fmt: skip
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from claudebox.launch import undo_restore; "
    "undo_restore.main(*sys.argv[2:])"
)


def put_back(
    tools: Tools, store: str, target: str, present: str, root: str, kept: Iterable[str], *, owners: bool = False
) -> dict[str, str]:  # fmt: skip
    """Put a project back by two snapshots, one of them of the present; return what was not, and why.

    `kept` are directories in it that stay read-only. With `owners` some files belong to others, which root puts back.
    """
    import subprocess

    from claudebox.launch.git_sandbox import system_mounts

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
    words += ["--chdir", "/", "--", python, "-IS", "-c", _PROGRAM, PACKAGE, target, present]
    done = subprocess.run(words, env={}, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().split("\n")
        return {".": f"the sandbox ended with status {done.returncode}: {lines[-1][:300]}"}
    return dict(json.loads(done.stdout))


def main(target: str, present: str) -> None:
    """Run in the sandbox."""
    store = SnapshotStore(_STORE, writing=False)
    before, now = store.read_snapshot(target), store.read_snapshot(present)
    console.write([json.dumps(_Restoring(store, before, now).run())], descriptor=1)


class _Restoring:
    """In the sandbox: the steps, each on its own."""

    def __init__(self, store: SnapshotStore, before: Snapshot, now: Snapshot) -> None:
        self._store, self._comparison = store, Comparison(before, now)
        self._before = self._comparison.before
        self._problems: dict[str, str] = {}
        self._root = os.open(before.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def run(self) -> dict[str, str]:
        difference = self._comparison.difference
        entries, found = self._before, self._comparison.now
        missing = {*difference.deleted, *difference.overwritten}
        replaced = [path for path in difference.overwritten if path in found and found[path].kind != entries[path].kind]
        for path in sorted((*difference.created, *replaced), reverse=True):  # what is in a directory before itself
            self._attempt(path, self._remove)
        for path in sorted(path for path in missing if entries[path].kind == "d"):
            self._attempt(path, self._make_directory)
        for path in sorted(path for path in missing if entries[path].kind != "d"):
            self._attempt(path, self._make)
        for path in difference.untimed:
            if entries[path].kind != "d":
                self._attempt(path, self._set_time)
        for path in sorted((path for path, entry in entries.items() if entry.kind == "d"), reverse=True):
            self._attempt(path, self._finish_directory)
        return self._problems

    def _attempt(self, path: str, action: Callable[[int, str, str], None]) -> None:
        try:
            directory = self._open(os.path.dirname(path))
            try:
                action(directory, os.path.basename(path), path)
            finally:
                os.close(directory)
        except OSError as error:
            self._problems.setdefault(path, error.strerror or str(error))

    def _open(self, path: str) -> int:
        """Open a directory of the project through no link, and make it ours to write to."""
        current = os.dup(self._root)
        for part in path.split("/") if path else ():
            try:
                _unlock(part, current)
                following = os.open(part, _DIRECTORY, dir_fd=current)
            finally:
                os.close(current)
            current = following
        return current

    def _remove(self, directory: int, name: str, _path: str) -> None:
        _unlock_itself(directory)
        try:
            if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)
        except FileNotFoundError:  # it is gone already, by another undo that was killed and had not ended yet
            pass

    def _make_directory(self, directory: int, name: str, _path: str) -> None:
        _unlock_itself(directory)
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                raise

    def _make(self, directory: int, name: str, path: str) -> None:
        _unlock_itself(directory)
        entry = self._before[path]
        temporary = f".claudebox-undo.{os.urandom(8).hex()}"  # numbers of processes are the same in every sandbox
        try:
            if entry.kind == "l":
                os.symlink(entry.content, temporary, dir_fd=directory)
                _give(temporary, directory, entry)
            elif entry.kind == "p":
                os.mkfifo(temporary, 0o600, dir_fd=directory)
                _give(temporary, directory, entry)
                _change_mode(directory, temporary, entry.mode)
            elif self._link(directory, temporary, path):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                return
            else:
                self._write(directory, temporary, entry)
            os.utime(temporary, ns=(entry.mtime, entry.mtime), dir_fd=directory, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            try:
                os.unlink(temporary, dir_fd=directory)
            except OSError:
                pass
            raise

    def _link(self, directory: int, temporary: str, path: str) -> bool:
        """Make another name of a file that has several, all of which are made anew; return whether that was done."""
        first = self._comparison.links.get(path, (path,))[0]
        if first == path or first in self._problems:
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
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            _dress(descriptor, entry)
        finally:
            os.close(descriptor)

    def _set_time(self, directory: int, name: str, path: str) -> None:
        mtime = self._before[path].mtime
        os.utime(name, ns=(mtime, mtime), dir_fd=directory, follow_symlinks=False)

    def _finish_directory(self, directory: int, name: str, path: str) -> None:
        entry = self._before[path]
        try:
            descriptor = os.dup(self._root) if path == "." else os.open(name, _DIRECTORY, dir_fd=directory)
        except PermissionError:  # it has lost its rights, and nothing in it had to be put back
            _unlock(name, directory)
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
        try:
            _dress(descriptor, entry)
            if os.fstat(descriptor).st_mtime_ns != entry.mtime:
                os.utime(descriptor, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)


def _dress(descriptor: int, entry: KeptEntry) -> None:
    """Give an open file or directory its attributes, owner and mode, as far as it has not got them."""
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
    """Give something its owner, if we may: whoever asked for the undo compares everything afterwards."""
    try:
        os.chown(what, *entry.owner, dir_fd=directory, follow_symlinks=isinstance(what, int))
    except OSError:
        return


def _unlock(name: str, directory: int) -> None:
    """Make a directory readable and writable for its owner, until its mode is put back at the end."""
    mode = os.lstat(name, dir_fd=directory).st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        _change_mode(directory, name, stat.S_IMODE(mode) | 0o700)


def _change_mode(directory: int, name: str, mode: int) -> None:
    """Change the mode of what may not be opened, and never of what a link leads to."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def _unlock_itself(directory: int) -> None:
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(directory, mode | 0o700)
