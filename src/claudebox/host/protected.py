"""Looking at everything in the project that the host's tools obey, without following a link."""

from __future__ import annotations

import os
import stat

from claudebox.agent import kinds
from claudebox.base import syscalls
from claudebox.base.files import list_names, mode_of, read_small, real_path
from claudebox.base.records import Value
from claudebox.host.paths import pin_above
from claudebox.host.records import EmptySubmodule, PathFact, PinnedDirectory, ProtectedPath, between
from claudebox.tables import paths as tables_paths
from claudebox.tables.paths import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.base.state import Instance
    from claudebox.git.config import Executed
    from claudebox.git.facts import Nested, Repository
    from claudebox.host.records import StubKind
    from claudebox.settings.records import MountRequest


# The user's own settings of claudebox where they lie in the project: a repository of dotfiles (C09).
#
# They are links in ~/.claudebox then. An agent that could change them would write the rules of the next session.


def find_own_settings(state: str, workdir: str) -> tuple[tuple[ProtectedPath, ...], tuple[PinnedDirectory, ...]]:
    """Return the files in the project that settings are read from, and the directories on the way to them."""
    inside = workdir.rstrip("/") + "/"
    protected: dict[str, ProtectedPath] = {}
    for path in _places(state):
        real = real_path(path)
        if not real.startswith(inside) or not os.path.exists(real):
            continue
        reason = f"claudebox reads it as {os.path.basename(state)}/{os.path.relpath(path, state)}"
        protected[real] = ProtectedPath(OWN, real, reason, "none", "present", _identity(real))
    return tuple(protected.values()), tuple(pin_above(protected, workdir))


def _places(state: str) -> Iterator[str]:
    yield from (f"{state}/config.toml", f"{state}/CLAUDE.md")
    for directory in (f"{state}/profiles", f"{state}/agents"):
        yield directory
        yield from (f"{directory}/{name}" for name in list_names(directory))


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


# The journal of stubs in a project: each is written down before it is made, and found there by whoever comes later.
#
# A stub also has a time that nothing else has, by which it is known if the journal is lost.


STUBS, STUBS_LIMIT = "stubs", 4 << 20  # its name in the project's state, and its size
MARK = 10**18  # nanoseconds: when stubs were changed last, as every file system can say it


class StubEntry(Value):
    """A line of the journal of stubs."""

    kind: str
    root: str  # the directory of the user that it is made in: the project, or its git directory
    identity: str  # of that directory, device and inode
    relative: str

    @property
    def path(self) -> str:
        """Return the whole path."""
        return f"{self.root.rstrip('/')}/{self.relative}"


def recorded_stubs(instance: Instance) -> frozenset[tuple[str, str]]:
    """Return kind and path of every stub that some session may have made."""
    content = read_small(f"{instance.directory}/{STUBS}", limit=STUBS_LIMIT) or b""
    return frozenset((entry.kind, entry.path) for entry in parse_stubs(content))


def is_marked(path: str) -> bool:
    """Return whether a path is a stub of ours by its time: empty, or a directory with nothing but stubs in it."""
    try:
        status = os.lstat(path)
        if status.st_mtime_ns != MARK or not stat.S_ISDIR(status.st_mode):
            return status.st_mtime_ns == MARK and stat.S_ISREG(status.st_mode) and not status.st_size
        return all(is_marked(f"{path}/{name}") for name in os.listdir(path))
    except OSError:
        return False


def parse_stubs(content: bytes) -> Iterator[StubEntry]:
    """Yield the entries of the journal of stubs."""
    words = [os.fsdecode(word) for word in content.split(b"\0")]
    # Four words and an empty one in front: what a killed writer left incomplete is passed over.
    for start in [number for number, word in enumerate(words) if not word]:
        row = words[start + 1 : start + 5]
        if len(row) == 4 and all(row):
            yield StubEntry(*row)


_MOST_NESTED = 32  # repositories below the project: each takes three mounts


def look_at_project(
    workdir: str, repository: Repository | None, instance: Instance, nested: tuple[Nested, ...] = ()
) -> tuple[ProtectedPath, ...]:
    """Return what is there and what is missing; a stub of another session counts as missing."""
    top = f"{workdir.rstrip('/')}/"
    ours = (repository, *repository.nested) if repository is not None else ()
    own = tuple(f"{path}/" for row in ours for path in (row.common_dir, row.git_dir) if path)
    inner = [row.path for row in nested if row.path.startswith(top) and not f"{row.path}/".startswith(own)]
    nested_rows = _rows_of_nested(workdir, inner[:_MOST_NESTED])
    return _look_past_stubs(lambda: (*_rows(workdir, repository), *nested_rows), instance)


def _rows_of_nested(workdir: str, places: list[str]) -> Iterator[ProtectedPath]:
    """Yield what git obeys in the git directories of nested repositories, which stay where they are."""
    for place in places:
        relative = os.path.relpath(place, workdir)
        for name, reason in (("config", "git runs programs named here"), ("hooks", "git runs the hooks in it")):
            yield _look(tables_paths.GIT, workdir, f"{relative}/{name}", "none", reason)


def look_in_mounts(
    mounts: tuple[MountRequest, ...], own: tuple[Repository, ...], naming: tuple[Repository, ...], instance: Instance
) -> tuple[ProtectedPath, ...]:
    """Return the same for writable mounts: of repositories of their `own` there, and what those `naming` them obey."""
    return _look_past_stubs(lambda: _rows_in_mounts(mounts, own, naming), instance)


def _rows_in_mounts(
    mounts: tuple[MountRequest, ...], own: tuple[Repository, ...], naming: tuple[Repository, ...]
) -> Iterator[ProtectedPath]:
    taken = {request.dest for request in mounts}
    for request in mounts:
        source, real = request.source, real_path(request.source)
        for repository in own:
            if f"{repository.root}/".startswith(f"{source}/"):
                status = os.stat(repository.root)
                holder = ((repository.root, (status.st_dev, status.st_ino)),)
                for row in _rows(repository.root, repository):
                    parents = tuple(pair for pair in (*holder, *row.parents) if pair[0] not in taken)
                    if row.path not in taken:
                        yield row.replace(parents=parents)
        for executed in (row for repository in naming for row in repository.executed):
            found = _look_at(executed, source, real)
            if found is not None and (found.kind == "whole" or found.path not in taken):
                yield found.replace(parents=tuple(pair for pair in found.parents if pair[0] not in taken))


def _look_past_stubs(look_at: Callable[[], Iterable[ProtectedPath]], instance: Instance) -> tuple[ProtectedPath, ...]:
    """Look, and return each path once; what is a stub of some session counts as missing."""
    before = recorded_stubs(instance)
    rows: dict[str, ProtectedPath] = {}
    for row in look_at():
        rows.setdefault(row.path, row)
    made = before | recorded_stubs(instance)  # another session may have come or gone meanwhile
    return tuple(
        row.replace(kind="missing", identity=None)
        if (row.stub, row.path) in made or (row.stub != "none" and is_marked(row.path))
        else row
        for row in rows.values()
    )


def _rows(workdir: str, repository: Repository | None) -> Iterator[ProtectedPath]:
    for name, stub, reason in tables_paths.PROTECTED:
        yield from _look_through(name, workdir, stub, reason)
    for name, reason in kinds.list_put_aside():
        yield from _look_through(name, workdir, "none", reason)
    if repository is None:
        return
    if repository.root != workdir or (repository.problem and repository.gitfile is None):
        # A repository made here would hide the one that starts above; or it is a link, and leads elsewhere.
        stand_in: StubKind = "none" if repository.problem and repository.root == workdir else "directory"
        yield _look(tables_paths.GIT, workdir, ".git", stand_in, "git takes its configuration from here")
    for path in _checkouts(workdir, repository):
        if path not in {nested.root for nested in repository.nested}:
            # Whatever is not a repository at `.git` stops git of the host. What is there stays as it is; where there
            # is nothing, a directory of the sandbox's own takes the place of the submodule (`find_empty_submodules`).
            relative = os.path.relpath(path, workdir)
            around = _look(tables_paths.SUBMODULES, workdir, relative, "directory", "a submodule belongs there")
            if around.kind == "present" and around.path != path:  # nothing can be made there before it is opened
                yield around
                continue
            below = _obstacle(workdir, relative) or (relative if _has_other_files(path) else f"{relative}/.git")
            yield _look(tables_paths.SUBMODULES, workdir, below, "none", "git looks into submodules")
    yield from (row for row in (_look_at(executed, workdir, workdir) for executed in repository.executed) if row)


def _look_through(name: str, workdir: str, stub: StubKind, reason: str) -> Iterator[ProtectedPath]:
    """Look at a path of the project and, if a link is on the way, at the place in the project that it leads to."""
    row = _look(name, workdir, name, stub, reason)
    yield row
    top = f"{workdir.rstrip('/')}/"
    real = real_path(f"{top}{name}") if row.kind == "link" else ""
    if real.startswith(top) and ".git" not in real[len(top) :].split("/"):
        yield _look(name, workdir, real[len(top) :], "none", reason)


def _look_at(executed: Executed, base: str, real: str) -> ProtectedPath | None:
    """Look at what git obeys in a directory, if it is there."""
    path, stub, reason = executed.path, executed.stub, executed.reason
    if path in (base, real):
        return ProtectedPath(tables_paths.GIT, base, reason, "none", "whole")
    top = next((top for top in (base, real) if path.startswith(top.rstrip("/") + "/")), None)
    if top is None:
        return None
    relative = path[len(top.rstrip("/")) + 1 :]
    row = _look(tables_paths.GIT, base, relative, stub, reason)
    itself = row.path == f"{base.rstrip('/')}/{relative}" and os.path.isdir(row.path)
    if executed.generated and (itself or (row.path == path and row.kind == "missing")):
        return row.replace(copy=syscalls.sha256(os.fsencode(row.path))[:16])
    return row


def _checkouts(workdir: str, repository: Repository) -> Iterator[str]:
    """Yield the directories of submodules in the project that exist, or could be made."""
    for checkout in repository.checkouts:
        path = f"{repository.root.rstrip('/')}/{checkout}"
        if path.startswith(workdir.rstrip("/") + "/"):
            yield path


def _obstacle(workdir: str, relative: str) -> str:
    """Return the file that stands in the place of a directory of a submodule, or of one around it."""
    path = ""
    for part in relative.split("/"):
        path = f"{path}/{part}" if path else part
        mode = mode_of(f"{workdir}/{path}")
        if not mode:
            return ""
        if not stat.S_ISDIR(mode):
            return "" if stat.S_ISLNK(mode) else path
    return ""


def _has_other_files(path: str) -> bool:
    """Return whether a directory holds something and no `.git`; one that cannot be listed may hold anything."""
    try:
        names = os.listdir(path)
    except PermissionError:
        return not os.path.lexists(f"{path}/.git")
    except OSError:
        return False
    return bool(names) and ".git" not in names


def find_empty_submodules(workdir: str, repository: Repository | None, instance: Instance) -> Iterator[EmptySubmodule]:
    """Yield the directories of submodules that are not initialised, through no link; stubs count as missing."""
    if repository is None or repository.directory is None or not os.access(workdir, os.W_OK):
        return
    made = {path for _, path in recorded_stubs(instance)} if repository.checkouts else ()

    def is_made(place: str) -> bool:
        return place in made or is_marked(place)

    empty: tuple[str, ...] = ()
    for path in sorted(_checkouts(workdir, repository)):
        if path.startswith(empty) or _obstacle(workdir, os.path.relpath(path, workdir)):
            continue  # what is around it is empty itself, and the sandbox's own
        row = _look("", workdir, os.path.relpath(path, workdir), "directory", "")
        missing = row.kind == "missing" and row.stub == "directory"
        if missing or (row.kind == "present" and row.path == path and _is_empty(path)):
            name = syscalls.sha256(os.fsencode(path))[:16]
            empty = (*empty, f"{path}/")
            above = tuple(place for place in between(path, workdir) if is_made(place) or not os.path.lexists(place))
            yield EmptySubmodule(path, name, missing or is_made(path), above)


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False


def pin_own_places(
    workdir: str, repository: Repository | None, empty: tuple[EmptySubmodule, ...]
) -> Iterator[PinnedDirectory]:
    """Yield the directories in the project that a directory of the sandbox's own is mounted in."""
    if repository is None or repository.directory is None:
        return
    places = [repository.directory.path, *(nested.common_dir for nested in repository.nested)]
    missing = {path for row in empty for path in row.above}
    for place in (*places, *(row.path for row in empty)):
        for path in between(place, workdir):
            if path not in missing:
                status = os.lstat(path)
                yield PinnedDirectory(path, (status.st_dev, status.st_ino))


def find_worktrees(workdir: str, repository: Repository | None, instance: Instance) -> PathFact | None:
    """Return where the client makes worktrees, if it can be made writable: nothing on the way is a link.

    What a killed session has left there is taken away before the next one starts, so it counts as missing.
    """
    if repository is None or repository.directory is None or repository.root != workdir:
        return None
    path = f"{workdir.rstrip('/')}/{tables_paths.WORKTREES}"
    row = _look("", workdir, tables_paths.WORKTREES, "directory", "")
    closed = row.kind == "present" and row.path != path
    if row.kind == "link" or closed or (row.stub == "none" and row.kind == "missing"):
        return None
    made = ("directory", path) in recorded_stubs(instance) or is_marked(path)
    if row.kind == "missing" or made:
        return PathFact(path, path)
    return PathFact(path, path, "directory", (row.identity,) if row.identity else ())


def _look(name: str, base: str, relative: str, stub: StubKind, reason: str) -> ProtectedPath:
    """Walk to a path; of a missing one the first missing part is what must not be created."""
    whole = f"{base.rstrip('/')}/{relative}"
    path = base.rstrip("/")
    above: list[tuple[str, tuple[int, int]]] = []
    for part in relative.split("/"):
        parent, path = path, f"{path}/{part}"
        try:
            status = os.lstat(path)
        except OSError:
            if path != whole and stub != "none":
                stub = "directory"
            if stub != "none" and not os.access(parent or "/", os.W_OK | os.X_OK):
                # No stub can be made, but whoever owns the directory can open it: it is protected as a whole. Where
                # that is the project, it is read-only inside.
                if above:
                    _, identity = above.pop()
                    return ProtectedPath(name, parent, reason, stub, "present", identity, tuple(above))
                stub = "none"
            return ProtectedPath(name, whole if stub == "none" else path, reason, stub, parents=tuple(above))
        if stat.S_ISLNK(status.st_mode):
            return ProtectedPath(name, path, reason, stub, "link")
        above.append((path, (status.st_dev, status.st_ino)))
    _, identity = above.pop()
    return ProtectedPath(name, whole, reason, stub, "present", identity, tuple(above))
