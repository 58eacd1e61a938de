"""What git knows of a project already: the content of each file that is as git last saw it.

Such a file need not be read before the agent runs: if the agent is quicker than the snapshot, git has the content. It
counts only if everything that `lstat` says is what the index says, and is older than the index by git's own rule.
"""

from __future__ import annotations

import os
import struct
import sys

from claudebox import syscalls
from claudebox.files import read_small
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits
from claudebox.undo.look import is_converting
from claudebox.undo.manifest import FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit
    from claudebox.undo.manifest import FolderDraft

_ENTRY = struct.Struct(">10I")  # ctime, mtime, each with nanoseconds, device, inode, mode, owner, group, size
_KIND = 0o170000  # of a mode
_SECOND = 1_000_000_000
_LOW = 0xFFFFFFFF
_EXTENDED, _STAGE, _LONG = 0x4000, 0x3000, 0xFFF
_ATTRIBUTE_FILES = ("/etc/gitattributes",)
_BATCH, _BATCH_SIZE = 4000, 64 << 20


class Seed:
    """The index of one checkout in the project."""

    def __init__(self, own: OwnGit, root: str, index: bytes, mtime: int) -> None:
        self.own = own
        self._index, self._before = index, mtime // _SECOND
        self._digest = 32 if own.object_format == "sha256" else 20
        prefix = os.path.relpath(own.worktree, root)
        self._above = "" if not prefix.startswith("..") else f"{os.path.relpath(root, own.worktree)}/"
        self._prefix = "" if prefix == "." or self._above else f"{prefix}/"
        self._places: dict[str, int] | None = None
        self.size = int.from_bytes(index[8:12], "big") if index[:4] == b"DIRC" else 0

    def _read(self) -> Iterator[tuple[str, int]]:
        """Yield paths as the project has them, and where their entries are."""
        prefix, above = self._prefix, self._above
        for raw, position, flags in read_entries(self._index, self._digest):
            if not flags & _EXTENDED:  # what is only intended, or not checked out
                name = str(raw, sys.getfilesystemencoding(), "surrogateescape")
                if not above:
                    yield prefix + name, position
                elif name.startswith(above):
                    yield name[len(above) :], position

    def find(self, folder: FolderDraft, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield those of the files in a directory that are as git saw them, with where their entries are."""
        if self._places is None:  # hardly needed where there is an earlier snapshot
            try:
                self._places = dict(self._read())
            except (IndexError, ValueError):  # it is damaged: what it says of files does not count
                self._places = {}
        # This runs for every file of a project before the agent does: nothing is called that need not be.
        get, unpack, index, before = self._places.get, _ENTRY.unpack_from, self._index, self._before
        names, flat, prefix = folder.names, folder.flat, f"{folder.path}/" if folder.path else ""
        for number in numbers:
            position = get(prefix + names[number])
            if position is None:
                continue
            start = number * FIELDS
            mode, owner, group, size, mtime, ctime, inode = flat[start : start + FIELDS]
            changed, changed_part, written, written_part, _, known, kept, uid, gid, length = unpack(index, position)
            if (
                written * _SECOND + written_part == mtime
                and changed * _SECOND + changed_part == ctime
                and written < before
                and known == inode & _LOW
                and length == size & _LOW
                and uid == owner
                and gid == group
                and not (kept ^ mode) & _KIND
            ):
                yield number, position

    def name_of(self, position: int) -> str:
        """Return the object that has the content of a file."""
        start = position + _ENTRY.size
        return self._index[start : start + self._digest].hex()


def read_entries(index: bytes, digest: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name of each entry, where it begins and its flags; raise where the index is damaged.

    Nothing of version 4, which is rare.
    """
    if index[:4] != b"DIRC" or int.from_bytes(index[4:8], "big") not in (2, 3):
        return
    position, head = 12, 40 + digest + 2
    for _ in range(int.from_bytes(index[8:12], "big")):
        flags = index[position + head - 2] << 8 | index[position + head - 1]
        start = position + head + (2 if flags & _EXTENDED else 0)
        length = flags & _LONG
        if length == _LONG:
            length = index.index(b"\0", start) - start
        yield index[start : start + length], position, flags
        position += (start - position + length + 8) & ~7


def digest_staged(index: bytes, digest: int) -> str:
    """Return a digest of what an index says of files, without the times that a mere `git status` renews."""
    found = syscalls.new_sha256()
    try:
        rows = [(name, index[at + 24 : at + 28] + index[at + 40 : at + 40 + digest], flags & _STAGE)
                for name, at, flags in read_entries(index, digest)]  # fmt: skip
    except (IndexError, ValueError):
        rows = []
    for name, row, stage in rows:
        found.update(b"%s\0%s%d" % (name, row, stage))
    if not rows:
        found.update(index)
    return found.digest().hex()


def converts(own: OwnGit, home: str) -> bool:
    """Return whether attributes beside the project could make git keep something else than what stands in a file."""
    files = (*_ATTRIBUTE_FILES, f"{own.real}/info/attributes", f"{home}/.config/git/attributes")
    return any(is_converting(read_small(path, limit=1 << 20, follow=True) or b"") for path in files)


def read_objects(tools: Tools, own: OwnGit, scratch: str, wanted: Iterable[tuple[str, int]]) -> Iterator[bytes | None]:
    """Yield the contents of objects of these lengths, each in its turn; None for one that is not so."""
    stores = tuple(f"/objects/{number}" for number in range(len(own.stores)))
    mounts = tuple(word for row, place in zip(own.stores, stores, strict=True) for word in ("--ro-bind", row[0], place))
    version = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = sha256\n"
    files = {
        "/g/config": (version if own.object_format == "sha256" else "[core]\n\tbare = false\n").encode(),
        "/g/HEAD": b"ref: refs/heads/none\n",
    }
    environ = {"GIT_DIR": "/g", "GIT_OBJECT_DIRECTORY": stores[0], "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(stores)}
    mounts += ("--dir", "/g/refs")
    with GitSandbox(tools, mounts, environ, scratch, Limits(), files) as box:
        for rows in _batches(wanted):
            data = "".join(f"{name}\n" for name, _ in rows).encode()
            try:
                said = box.git("cat-file", "--batch", data=data)
            except GitError:
                said = b""
            position = 0
            for name, size in rows:
                head = f"{name} blob {size}\n".encode()
                if said.startswith(head, position):
                    position += len(head)
                    yield said[position : position + size]
                    position += size + 1
                else:
                    yield None
                    position = _next(said, position)


def _next(said: bytes, position: int) -> int:
    """Return where the answer after this one begins."""
    end = said.find(b"\n", position)
    if end < 0:
        return len(said)
    size = said[position:end].rpartition(b" ")[2]
    return end + 1 + (int(size) + 1 if size.isdigit() else 0)


def _batches(wanted: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    rows: list[tuple[str, int]] = []
    total = 0
    for row in wanted:
        rows.append(row)
        total += row[1]
        if len(rows) >= _BATCH or total >= _BATCH_SIZE:
            yield rows
            rows, total = [], 0
    if rows:
        yield rows
