"""After a session: everything that changed in the project, by kind, in bounded time (D11-D13, D17-D22, C17).

Each change is accounted for: created, changed, deleted, moved, made executable, turned into a link; and so is what
could not be looked at. What changed is found by `undo.session`; here it gets its kind.
"""

from __future__ import annotations

import os
import sys
import time

from claudebox.base import syscalls, trees
from claudebox.base.files import Closing, real_path
from claudebox.base.records import Value
from claudebox.report.kinds import Outputs
from claudebox.tables.reported_paths import DEPENDENCIES
from claudebox.undo.snapshot import letter, look_at_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Guarded
    from claudebox.report.kinds import Kind
    from claudebox.undo.snapshot import Beginning, SessionChanges


TOO_MANY = "are too many to be told apart"
BUDGET = 60.0  # seconds; Ctrl+C ends it sooner
_SORTING = 1.0  # seconds more, to tell kinds apart
_EVERY = 1024  # changes between two looks at the clock
# Told of directories that may have been there before, where nobody looked at the start.
_TOLD_ANYWAY = frozenset(("protected", "repository", "git", "unasked"))
_SYSTEM = ("/usr/", "/bin/", "/lib", "/opt/", "/nix/store/")
_BECAME = {"x": "now executable", "l": "now a link", "d": "now a directory"}
_OPENAT2 = 437
# struct open_how: flags, mode, resolve. A link that leaves the tree on its way is not followed.
_BENEATH = b"".join(part.to_bytes(8, sys.byteorder) for part in (os.O_PATH | os.O_CLOEXEC, 0, 0x08 | 0x02))
_UNKNOWN = "a place that cannot be read ({})"


class ChangedPath:
    """Something that changed; plain, because there may be a hundred thousand of them."""

    __slots__ = ("beside", "how", "kind", "path")

    def __init__(self, kind: Kind, path: str, how: str, *, beside: bool = True) -> None:
        self.kind = kind
        self.path = path  # below the project, or absolute
        self.how = how  # new, changed, deleted, moved, ...; empty if it is not known which
        self.beside = beside  # what it lies in was there before


class Report(Value):
    """Everything that is known about what changed."""

    changes: tuple[ChangedPath, ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()  # path and why it was not looked at
    files: tuple[str, ...] = ()  # every file that is new or changed, by its whole path

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changed and everything was looked at."""
        return not (self.changes or self.unseen)


def join(report: Report, root: str, other: Report) -> Report:
    """Return a report with that about another tree, whose paths become whole ones."""

    def whole(row: ChangedPath) -> ChangedPath:
        kind = row.kind
        kind = kind.replace(group=root if kind.group in ("", ".") else f"{root}/{kind.group}")
        return ChangedPath(kind, f"{root}/{row.path}", row.how, beside=row.beside)

    return report.replace(
        changes=(*report.changes, *map(whole, other.changes)),
        unseen=(*report.unseen, *((f"{root}/{path}".rstrip("/"), why) for path, why in other.unseen)),
        files=(*report.files, *other.files),
    )


class Places(Value):
    """Where to look."""

    workdir: str
    git_dir: str = ""  # of the repository, which only claudebox and the host write to
    guarded: tuple[Guarded, ...] = ()
    stubs: frozenset[str] = frozenset()  # of this session
    standing: frozenset[str] = frozenset()  # stubs of sessions that are still alive
    home: str = ""  # of the user
    reopened: tuple[tuple[int, int], ...] = ()  # directories of the user's that we opened, and closed again


def look(places: Places, beginning: Beginning, *, budget: float = BUDGET) -> Report:
    """Look at everything, until the time is up."""
    deadline = time.monotonic() + budget
    workdir = places.workdir.rstrip("/")
    found = look_at_end(beginning, (places.git_dir, *places.standing), deadline, places.reopened)
    before = found.before
    for row in places.guarded:  # known by identity since the start
        for path, identity in (*row.parents, (row.path, row.identity)):
            if identity is not None and path.startswith(f"{workdir}/"):
                before.setdefault(path[len(workdir) + 1 :], (identity[1], None))
    account = _Account(places, found)
    changes = list(account.changes(deadline + _SORTING))
    files = [f"{workdir}/{path}" for path, mode, _ in found.changed if mode & trees.KIND == trees.IS_FILE]
    unseen = [*account.unseen, *found.unseen]
    return Report(tuple(changes), tuple(unseen), tuple(files))


class _Account:
    """Tells what became of each entry."""

    def __init__(self, places: Places, found: SessionChanges) -> None:
        self._places, self._found, self._before = places, found, found.before
        self._workdir = places.workdir.rstrip("/")
        guarded = (row for row in places.guarded if row.kind not in ("whole", "held"))
        self._find_protected = trees.nearest_in({self._relative(row.path): row for row in guarded})
        self._standing = {self._relative(path) for path in places.standing}
        self._stubs = {self._relative(path) for path in places.stubs}
        self._repositories: dict[str, tuple[str, bool] | None] = {}
        self._new = self._new_directories()
        self._outputs = Outputs(self._workdir, found.listing, self._new, {row[0] for row in found.changed})
        self.unseen: list[tuple[str, str]] = []

    def _relative(self, path: str) -> str:
        return path[len(self._workdir) + 1 :] if path.startswith(f"{self._workdir}/") else path

    def _new_directories(self) -> set[str]:
        """Return the directories that are certainly new at their path."""
        new: set[str] = set()
        rows = (path for path, mode, _ in self._found.changed if mode & trees.KIND == trees.IS_DIRECTORY)
        for path in sorted(rows, key=lambda path: path.count("/")):
            known = path in self._before and path in self._found.listing
            replaced = known and self._before.get(path)[0] != self._found.listing.get(path)[0]
            if path.rpartition("/")[0] in new or self._was(path) not in ("d", None) or replaced:
                new.add(path)
        return new

    def _was(self, path: str) -> str | None:
        """Return what a path was before: a letter, `f` for a plain file, empty for nothing, None if nobody knows."""
        parent, _, name = path.rpartition("/")
        names = self._before.get(parent)[1]
        return None if names is None else names.get(name, "")

    def changes(self, deadline: float) -> Iterator[ChangedPath]:
        """Yield everything that changed in the project."""
        rows = self._found.changed
        for number, (path, mode, own) in enumerate(rows):
            if not number % _EVERY and time.monotonic() > deadline:
                self.unseen.append(("", f"{len(rows) - number} changes {TOO_MANY}"))
                break
            parent = path.rpartition("/")[0]
            if path in self._standing:
                continue
            moved = parent in self._new
            is_directory = mode & trees.KIND == trees.IS_DIRECTORY
            how = self._how(path, mode, own=own, moved=moved)
            kind = self._kind(path, mode, how)
            if is_directory and path not in self._new and (self._found.is_exact or kind.name not in _TOLD_ANYWAY):
                continue  # it was there, and what changed in it is told
            yield ChangedPath(kind, path + "/" * is_directory, how, beside=not moved)
        for path, before in self._found.opened:
            yield ChangedPath(_kind("closed", f"had mode {before:04o}"), path or ".", "changed in mode")
        for path, kind_of in self._found.gone:
            if path not in self._standing and path not in self._stubs:
                top, _ = self._outputs.find(path, is_directory=kind_of == "d")
                kind = _kind("output", group=top) if top else _kind("deleted")
                yield ChangedPath(kind, path + ("/" if kind_of == "d" else ""), "deleted")

    def _how(self, path: str, mode: int, *, own: bool, moved: bool) -> str:
        was, now = self._was(path), letter(mode)
        if moved:
            return "new" if own else "moved"
        if was is None:
            return ""
        if not was:
            return "new"
        return "changed" if was == now else _BECAME.get(now, "changed in kind")

    def _kind(self, path: str, mode: int, how: str) -> Kind:
        from claudebox.report import kinds

        row = self._find_protected(path)
        if row is not None:
            return kinds.Kind("protected", self._relative(row.path), row.reason)
        parent, _, name = path.rpartition("/")
        if name.lower() == ".git":
            return kinds.Kind("repository", path)
        found = self._repository(path if name.lower() == ".git" else parent)
        if found is not None:
            git_dir, named = found
            rest = path[len(git_dir) + 1 if git_dir else 0 :]
            if named:
                return kinds.classify_in_git(git_dir, rest, mode)
            if kinds.makes_repository(rest):
                rank = kinds.rank_part(rest)
                return kinds.Kind("repository", git_dir or ".", "has the shape of a git directory", rank)
        kind = kinds.classify(path, mode, self._leads_out)
        top, fresh = self._outputs.find(path, is_directory=mode & trees.KIND == trees.IS_DIRECTORY)
        if not top and mode & trees.KIND == trees.IS_LINK and kind == kinds.OWN:
            return self._find_hidden(path)
        # In what lies within dependencies nobody works; in other output somebody may.
        quiet = top.rpartition("/")[2].lower() in DEPENDENCIES and f"{kind.group}/".startswith(f"{top}/")
        if not top or (kind.name == "unasked" and not quiet):
            return kind
        if kind.name == "link" and real_path(f"{self._workdir}/{path}").startswith(_SYSTEM):
            kind = kinds.OWN  # as in every virtual environment
        if not fresh:
            kind = kinds.classify_output(kind, path, mode, how, _is_program)
        elif kind.name not in ("privilege", "socket", "link"):
            kind = kinds.Kind("output")
        return kind.replace(group=top) if kind.name == "output" else kind

    def _find_hidden(self, path: str) -> Kind:
        """Return what a link is that leads to where changes are only counted."""
        from claudebox.report import kinds

        place = real_path(f"{self._workdir}/{path}")
        inside = place[len(self._workdir) + 1 :] if place.startswith(f"{self._workdir}/") else ""
        top, _ = self._outputs.find(inside, is_directory=True) if inside else ("", False)
        return kinds.Kind("link", path.rpartition("/")[0], f"leads into {top}") if top else kinds.OWN

    def _repository(self, directory: str) -> tuple[str, bool] | None:
        """Return the git directory that a directory is or lies in, and whether its name says so or only its shape."""
        from claudebox.git.disarm import has_shape

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
            elif found is None and has_shape(self._found.listing.get(path, (0, {}))[1]):
                found = (path, False)
            self._repositories[path] = found
        return found

    def _leads_out(self, path: str) -> str:
        return find_target(self._workdir, path)


def _kind(name: str, why: str = "", group: str = "") -> Kind:
    from claudebox.report import kinds

    return kinds.Kind(name, group, why)


def _is_program(name: str) -> bool:
    """Return whether a program of this name is usually found in PATH."""
    return any(os.path.lexists(f"{directory}/{name}") for directory in ("/usr/local/bin", "/usr/bin", "/bin"))


def find_target(workdir: str, path: str) -> str:
    """Return where a link below the project leads if that is not within it."""
    try:
        target = os.readlink(f"{workdir}/{path}")
    except OSError as error:
        return _UNKNOWN.format(error.strerror)
    within = target.startswith(f"{workdir}/")
    start = target[len(workdir) + 1 :] if within else path
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
