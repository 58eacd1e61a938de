"""Looking at everything in the project that the host's tools obey, without following a link."""

from __future__ import annotations

import os
import stat

from claudebox import state
from claudebox.facts.model import Guarded
from claudebox.tables import project_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.facts.git import Repository
    from claudebox.facts.model import StubKind
    from claudebox.state import Instance


def look(workdir: str, repository: Repository | None, instance: Instance) -> tuple[Guarded, ...]:
    """Return what is there and what is missing; a stub of another session counts as missing."""
    before = state.recorded_stubs(instance)
    rows: dict[str, Guarded] = {}
    for row in _rows(workdir, repository):
        rows.setdefault(row.path, row)
    made = before | state.recorded_stubs(instance)  # another session may have come or gone meanwhile
    return tuple(
        row.replace(kind="missing", identity=None) if (row.stub, row.path) in made else row for row in rows.values()
    )


def _rows(workdir: str, repository: Repository | None) -> Iterator[Guarded]:
    for name, stub, reason in project_paths.PROTECTED:
        yield _look(name, workdir, name, stub, reason)
    if repository is None:
        return
    if repository.git_dir:
        yield from _git_directory(repository.git_dir, per_worktree=repository.per_worktree)
    elif not repository.linked:
        # It leads elsewhere, or the checkout starts above and would be hidden by a repository made here.
        stand_in: StubKind = "none" if repository.problem else "directory"
        yield _look(project_paths.GIT, workdir, ".git", stand_in, "git takes its configuration from here")
    for checkout in repository.checkouts:
        relative = f"{os.path.relpath(checkout, workdir)}/.git"
        row = _look(project_paths.GIT, workdir, relative, "none", "git looks into submodules")
        if row.kind == "present" and stat.S_ISDIR(os.lstat(row.path).st_mode) and row.identity is not None:
            pins = (*row.parents, (row.path, row.identity))
            for part in _git_directory(row.path, per_worktree=True):
                yield part.replace(parents=(*pins, *part.parents))
        else:
            yield row
    for obeyed in repository.obeyed:
        inside = obeyed.path.startswith(workdir.rstrip("/") + "/")
        base = workdir if inside or obeyed.path == workdir else repository.git_dir
        if obeyed.path == base:
            yield Guarded(project_paths.GIT, base, obeyed.reason, "none", "whole")
        else:
            yield _look(project_paths.GIT, base, os.path.relpath(obeyed.path, base), obeyed.stub, obeyed.reason)


def _git_directory(git_dir: str, *, per_worktree: bool) -> Iterator[Guarded]:
    for name, stub, reason in project_paths.PROTECTED_IN_GIT:
        inert = name == "config.worktree" and not per_worktree
        yield _look(project_paths.GIT, git_dir, name, "none" if inert else stub, reason)


def _look(name: str, base: str, relative: str, stub: StubKind, reason: str) -> Guarded:
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
            if not os.access(parent or "/", os.W_OK):  # nor can anybody inside create it
                stub = "none"
            return Guarded(name, whole if stub == "none" else path, reason, stub, parents=tuple(above))
        if stat.S_ISLNK(status.st_mode):
            return Guarded(name, path, reason, stub, "link")
        above.append((path, (status.st_dev, status.st_ino)))
    _, identity = above.pop()
    return Guarded(name, whole, reason, stub, "present", identity, tuple(above))
