"""Reading a project for a snapshot: every name in an open directory, through no link, whatever races with it.

A file whose size, times and inode are those of an earlier snapshot is not read again: an agent can set every time but
that of the last change (ctime).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from claudebox import state
from claudebox.files import read_small
from claudebox.launch.undo_store import KeptEntry, KeptRefs, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.launch.undo_store import SnapshotStore

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RECENT = 2_000_000_000  # nanoseconds: a file changed so shortly before a snapshot could have changed after it unseen
_TICK = 20_000_000  # the kernel's clock for files lags behind by less
EXCLUDED = "excluded by its name"
_DEEPEST = 400
_MOST_NEW = 4 << 30  # bytes that one snapshot adds
_INDEX_LIMIT = 1 << 30


class Scan:
    """One reading of a project; `store` keeps contents, without it they are only named."""

    def __init__(
        self, root: str, store: SnapshotStore | None, known: Snapshot | None, *, most: int, names: Iterable[str] = (),
        skipped: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._root, self._store, self._most = root, store, most
        self._known = known.entries if known is not None else {}
        self._settled = (known.began if known is not None else 0) - _RECENT
        self._names = frozenset(names)
        self._skipped = frozenset(os.path.relpath(path, root) for path in skipped)
        self._entries: dict[str, KeptEntry] = {}
        self._left_out: dict[str, str] = {}
        self._new = 0
        self._device = 0

    def run(self, released: Callable[[], int] | None = None, repositories: Iterable[KeptRefs] = ()) -> Snapshot:
        """Read everything; `released` returns since when the agent has been running, 0 if it has not begun."""
        began = time.time_ns()
        directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(directory).st_dev
        self._read_directory(directory, "", 0)
        late: list[str] = []
        since = (released() if released is not None else 0) - _TICK
        for path, entry in list(self._entries.items()) if since > 0 else ():
            if entry.ctime >= since and entry.kind == "d":
                late.append(path)
            elif entry.ctime >= since:
                del self._entries[path]
                self._left_out[path] = "it was changed before the snapshot reached it"
        return Snapshot(self._root, began, self._entries, self._left_out, tuple(late), tuple(repositories))

    def _read_directory(self, directory: int, path: str, depth: int) -> None:
        """Read an open directory, and close it."""
        try:
            status = os.fstat(directory)
            self._entries[path or "."] = KeptEntry("d", stat.S_IMODE(status.st_mode), status.st_mtime_ns, 0,
                                               status.st_ctime_ns, status.st_ino)  # fmt: skip
            with os.scandir(directory) as found:
                names = [entry.name for entry in found]
            for name in names:
                self._read_name(directory, name, f"{path}/{name}" if path else name, depth)
        finally:
            os.close(directory)

    def _read_name(self, directory: int, name: str, path: str, depth: int) -> None:
        if path in self._skipped:
            return
        try:
            status = os.lstat(name, dir_fd=directory)
            mode = status.st_mode
            if stat.S_ISDIR(mode):
                why = self._why_not(name, status, depth)
                if why:
                    self._left_out[path] = why
                else:
                    self._read_directory(os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=directory), path, depth + 1)
                return
            content, kind = "", ""
            if stat.S_ISLNK(mode):
                kind, content = "l", os.readlink(name, dir_fd=directory)
            elif stat.S_ISFIFO(mode):
                kind = "p"
            elif stat.S_ISREG(mode):
                kind = "f"
                status, content = self._read_file(directory, name, path, status)
                if not content:
                    return
            if not kind:
                self._left_out[path] = "a socket or a device"
                return
            self._entries[path] = KeptEntry(kind, stat.S_IMODE(mode), status.st_mtime_ns, status.st_size,
                                        status.st_ctime_ns, status.st_ino, content)  # fmt: skip
        except FileNotFoundError:  # it went while we looked: its directory has changed
            return
        except OSError as error:
            self._left_out[path] = error.strerror or "it cannot be read"

    def _why_not(self, name: str, status: os.stat_result, depth: int) -> str:
        if name in self._names:
            return EXCLUDED
        if status.st_dev != self._device:
            return "another file system"
        return f"more than {_DEEPEST} directories deep" if depth >= _DEEPEST else ""

    def _read_file(self, directory: int, name: str, path: str, status: os.stat_result) -> tuple[os.stat_result, str]:
        """Return what a file is like and its content, or none if it is left out."""
        known = self._known.get(path)
        if known is not None and known.content and known.ctime < self._settled and _signature(status) == (
            "f", known.size, known.mtime, known.ctime, known.inode
        ):  # fmt: skip
            return status, known.content
        if status.st_size > self._most:
            self._left_out[path] = f"{status.st_size >> 20} MiB, more than {self._most >> 20} MiB"
            return status, ""
        descriptor = os.open(name, _OPEN, dir_fd=directory)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode) or before.st_size > self._most:
                raise OSError("it changed while it was read")
            if self._store is None:
                content = _digest(descriptor)
            else:
                self._new += before.st_size
                if self._new > _MOST_NEW:
                    self._left_out[path] = f"more than {_MOST_NEW >> 30} GiB of new contents at once"
                    return before, ""
                content = self._store.keep_content(descriptor)
            after = os.fstat(descriptor)
            if _signature(before) != _signature(after):
                self._left_out[path] = "it changed while it was read"
                return after, ""
            return after, content
        finally:
            os.close(descriptor)


def _signature(status: os.stat_result) -> tuple[str, int, int, int, int]:
    return "f", status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest(descriptor: int) -> str:
    digest = hashlib.sha256()
    while piece := os.read(descriptor, 1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def read_repository(private: str, common: str, git_dir: str, store: SnapshotStore | None) -> KeptRefs:
    """Return what claudebox can change in a git directory of the host, read without git."""
    refs: dict[str, str] = {}
    for row in (
        (read_small(f"{common}/packed-refs", limit=1 << 28) or b"").decode("utf-8", "surrogateescape").split("\n")
    ):
        value, _, name = row.partition(" ")
        if row[:1] not in ("#", "^") and name.startswith(("refs/heads/", "refs/tags/")):
            refs[name] = value
    for kind in ("heads", "tags"):
        for name in _loose(f"{common}/refs/{kind}", f"refs/{kind}"):
            refs[name] = os.fsdecode((read_small(f"{common}/{name}") or b"").strip())
    refs = {name: value for name, value in refs.items() if value and not value.startswith("ref:")}
    head = os.fsdecode(read_small(f"{git_dir}/HEAD") or b"").strip()
    index, mtime = "", 0
    try:
        descriptor = os.open(f"{git_dir}/index", _OPEN)
    except OSError:
        return KeptRefs(private, common, head, refs)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size < _INDEX_LIMIT:
            mtime = status.st_mtime_ns
            index = store.keep_content(descriptor) if store is not None else _digest(descriptor)
    finally:
        os.close(descriptor)
    return KeptRefs(private, common, head, refs, index, mtime)


def _loose(directory: str, name: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _loose(entry.path, f"{name}/{entry.name}")
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            yield f"{name}/{entry.name}"


def standing_stubs(instance_directory: str, root: str) -> list[str]:
    """Return the stubs that stand in a project, which are not the user's: nothing is in them."""
    content = read_small(f"{instance_directory}/{state.STUBS}", limit=state.STUBS_LIMIT) or b""
    rows = {row.path for row in state.parse_stubs(content) if row.path.startswith(f"{root.rstrip('/')}/")}
    return sorted(filter(_is_empty, rows))


def _is_empty(path: str) -> bool:
    try:
        status = os.lstat(path)
        return not (os.listdir(path) if stat.S_ISDIR(status.st_mode) else status.st_size)
    except OSError:
        return False
