"""Telling the kind of each change in a directory."""

from __future__ import annotations

import os
import sys
import time

from claudebox.base import syscalls, trees
from claudebox.base.files import Closing, real_path
from claudebox.base.trees import IS_DIRECTORY, IS_LINK, KIND
from claudebox.git.disarm import has_shape
from claudebox.report import kinds
from claudebox.report.changes import TOO_MANY, ChangedPath
from claudebox.report.kinds import Kind
from claudebox.tables.reported_paths import DEPENDENCIES
from claudebox.undo.manifest import TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.report.changes import Places
    from claudebox.undo.comparison import PathChange
    from claudebox.undo.manifest import KeptEntry, Snapshot


_SYSTEM = ("/usr/", "/bin/", "/lib", "/opt/", "/nix/store/")
_BECAME = {"x": "now executable", "l": "now a link", "d": "now a directory"}
_OPENAT2 = 437
# struct open_how: flags, mode, resolve. A link on the way that leaves the tree is not followed.
_BENEATH = b"".join(part.to_bytes(8, sys.byteorder) for part in (os.O_PATH | os.O_CLOEXEC, 0, 0x08 | 0x02))
_UNKNOWN = "a place that cannot be read ({})"


class Account:
    """Tells the kind of each change."""

    def __init__(self, places: Places, rows: list[PathChange], after: Snapshot) -> None:
        self.workdir = places.workdir.rstrip("/")
        self.unseen: list[tuple[str, str]] = []
        self._rows, self._after = rows, after
        protected = (row for row in places.protected if row.kind != "whole")
        self._find_protected = trees.nearest_in({self._relative(row.path): row for row in protected})
        self._standing = {self._relative(path) for path in places.standing}
        self._stubs = {self._relative(path) for path in places.stubs}
        self._repositories: dict[str, tuple[str, bool] | None] = {}
        self._new = self._find_new_directories()
        self._names: dict[str, list[str]] = {}
        for path in (*after.entries, *after.left_out):
            above, _, name = path.rpartition("/")
            self._names.setdefault(above, []).append(name)
        changed = {row.path for row in rows if row.after is not None}
        self._outputs = kinds.Outputs(self.workdir, self._names_in, self._new, changed)

    def _relative(self, path: str) -> str:
        return path[len(self.workdir) + 1 :] if path.startswith(f"{self.workdir}/") else path

    def _names_in(self, directory: str) -> list[str]:
        return self._names.get(directory, [])

    def _find_new_directories(self) -> set[str]:
        new: set[str] = set()
        rows = [row for row in self._rows if row.after is not None and row.after.kind == "d"]
        for row in sorted(rows, key=lambda row: row.path.count("/")):
            was, now = row.before, row.after
            replaced = was is not None and now is not None and (was.kind, was.inode) != (now.kind, now.inode)
            if row.what in ("new", "moved") or replaced or row.path.rpartition("/")[0] in new:
                new.add(row.path)
        return new

    def list_changes(self, deadline: float) -> Iterator[ChangedPath]:
        """Yield everything that is new or changed."""
        moved = {row.path for row in self._rows if row.what == "moved"}
        for number, row in enumerate(self._rows):
            if time.monotonic() > deadline:
                self.unseen.append(("", f"{len(self._rows) - number} changes {TOO_MANY}"))
                return
            path, entry, parent = row.path, row.after, row.path.rpartition("/")[0]
            if entry is None or path in self._standing:
                continue
            is_directory = entry.kind == "d"
            if is_directory and path not in self._new:
                continue  # what changed in it is told
            how = "moved" if row.what == "moved" and parent in moved else _how(row, fresh=parent in self._new)
            kind = self._kind(path, TYPES.get(entry.kind, 0) | entry.mode)
            yield ChangedPath(kind, path + "/" * is_directory, how, beside=parent not in self._new)

    def list_gone(self) -> Iterator[ChangedPath]:
        """Yield what was deleted or moved away, without what was in it."""
        lost = {row.origin or row.path: row.before for row in self._rows if row.what in ("deleted", "moved")}
        for path, was in lost.items():
            now = self._after.entries.get(path)
            known = (now is not None and now.kind == "d") or os.path.dirname(path) in lost
            if was is None or known or path in self._standing or path in self._stubs:
                continue
            is_directory = was.kind == "d"
            top, _ = self._outputs.find(path, is_directory=is_directory)
            yield ChangedPath(Kind("output", top) if top else Kind("deleted"), path + "/" * is_directory, "deleted")

    def _kind(self, path: str, mode: int) -> Kind:
        protected = self._find_protected(path)
        if protected is not None:
            return Kind("protected", self._relative(protected.path), protected.reason)
        parent, _, name = path.rpartition("/")
        if name.lower() == ".git":
            return Kind("repository", path)
        if repository := self._find_repository(parent):
            git_dir, is_named = repository
            rest = path[len(git_dir) + 1 if git_dir else 0 :]
            if is_named:
                return kinds.classify_in_git(git_dir, rest, mode)
            if kinds.makes_repository(rest):
                rank = 0 if kinds.is_obeyed_in_git(rest) else 1
                return Kind("repository", git_dir or ".", "has the shape of a git directory", rank)
        kind = kinds.classify(path, mode, lambda path: find_target(self.workdir, path))
        top, fresh = self._outputs.find(path, is_directory=mode & KIND == IS_DIRECTORY)
        if not top and mode & KIND == IS_LINK and kind == kinds.OWN:
            return self._find_hidden(path)
        # Nobody works in dependencies; in other output somebody may.
        quiet = top.rpartition("/")[2].lower() in DEPENDENCIES and f"{kind.group}/".startswith(f"{top}/")
        if not top or (kind.name == "unasked" and not quiet):
            return kind
        if kind.name == "link" and real_path(f"{self.workdir}/{path}").startswith(_SYSTEM):
            kind = kinds.OWN  # as in every virtual environment
        if not fresh and not (name.endswith(".pth") and kinds.adds_paths_only(self.workdir, path)):
            kind = kinds.classify_output(kind, path, mode, _is_program)
        elif kind.name not in ("privilege", "socket", "link"):
            kind = Kind("output")
        return kind.replace(group=top) if kind.name == "output" else kind

    def _find_hidden(self, path: str) -> Kind:
        """Return the kind of a link: one that leads into output, where changes are only counted, is shown."""
        place = real_path(f"{self.workdir}/{path}")
        inside = self._relative(place) if place.startswith(f"{self.workdir}/") else ""
        top, _ = self._outputs.find(inside, is_directory=True) if inside else ("", False)
        return Kind("link", path.rpartition("/")[0], f"leads into {top}") if top else kinds.OWN

    def _find_repository(self, directory: str) -> tuple[str, bool] | None:
        """Return the git directory that a directory is or lies in, and whether it has the name of one or the shape."""
        waiting = []
        while directory not in self._repositories:
            waiting.append(directory)
            if not directory:
                break
            directory = directory.rpartition("/")[0]
        found = self._repositories.get(directory)
        for path in reversed(waiting):
            if found is None and path.rpartition("/")[2].lower() == ".git":
                found = (path, True)
            elif found is None and has_shape(self._names_in(path)):
                found = (path, False)
            self._repositories[path] = found
        return found


def _how(row: PathChange, *, fresh: bool) -> str:
    if fresh or row.what in ("new", "moved"):
        return "new"
    was, now = map(_letter, (row.before, row.after))
    return "changed" if row.before is None or was == now else _BECAME.get(now, "changed in kind")


def _letter(entry: KeptEntry | None) -> str:
    if entry is None:
        return ""
    return "x" if entry.kind == "f" and entry.mode & 0o111 else entry.kind


def _is_program(name: str) -> bool:
    return any(os.path.lexists(f"{directory}/{name}") for directory in ("/usr/local/bin", "/usr/bin", "/bin"))


def find_target(workdir: str, path: str) -> str:
    """Return where a link below the project leads if that is not within it."""
    try:
        target = os.readlink(f"{workdir}/{path}")
    except OSError as error:
        return _UNKNOWN.format(error.strerror)
    start = target[len(workdir) + 1 :] if target.startswith(f"{workdir}/") else path
    try:
        top = os.open(workdir or "/", trees.DIRECTORY)
    except OSError as error:
        return _UNKNOWN.format(error.strerror)
    with Closing(top):
        encoded = os.fsencode(start) + b"\0"
        descriptor = syscalls.call("syscall", _OPENAT2, top, encoded, _BENEATH, len(_BENEATH))
        if descriptor >= 0:
            os.close(descriptor)
            return ""
    return target
