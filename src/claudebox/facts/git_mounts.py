"""Repositories in what is mounted besides the project, and what git of the host obeys there."""

from __future__ import annotations

import os

from claudebox.facts import git, protected
from claudebox.facts.git_submodules import list_directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from claudebox.config.model import MountRequest, Policy
    from claudebox.facts.git_model import Repository
    from claudebox.facts.model import Guarded, PathFact
    from claudebox.state import Instance

_MOST_ENTRIES, _MOST_SECONDS = 50_000, 0.5  # of a walk for a repository


def look(
    policy: Policy,
    sources: Mapping[str, PathFact],
    repository: Repository | None,
    home: str,
    environ: dict[str, str],
    instance: Instance,
) -> tuple[tuple[Repository, ...], tuple[Guarded, ...]]:
    """Return the repositories that are mounted writable at their own place, and what the host obeys in such mounts.

    `repository` is that of the project, whose configuration may name something there.
    """
    uid = os.getuid()
    in_place = tuple(request for request in policy.mounts if request.writable and request.dest == request.source)
    found = {
        root: git.find_repository(root, uid, home, environ, policy.mounts)
        for request in in_place
        for root in _roots(request)
    }
    believed = {root: row for root, row in found.items() if row is not None and row.directory is not None}
    around = [git.find_root(sources[request.source].real) for request in in_place]
    known = {"", *believed, repository.root if repository is not None else ""}
    others = [git.find_repository(root, uid, home, environ, policy.mounts) for root in {*around} - known]
    naming = (*believed.values(), *(row for row in (repository, *others) if row is not None))
    changed = tuple(git.with_changes(row, instance.directory) for row in believed.values())
    return changed, protected.look_in_mounts(in_place, tuple(believed.values()), naming, instance)


def _roots(request: MountRequest) -> Iterator[str]:
    """Yield the checkouts that a mount is, or that lie directly in it."""
    below = (f"{request.source}/{name}" for name in list_directories(request.source))
    yield from (root for root in (request.source, *below) if git.begins(root))


def find_exposed(request: MountRequest, real: str) -> tuple[str, str]:
    """Return a checkout that a writable mount leaves open, in its git directory or elsewhere, and what was not seen.

    `real` is where its source was found to be. At another place, as behind a link, nothing is protected: neither in a
    checkout that the mount is or lies in, nor in one that it holds.
    """
    in_place = request.dest == request.source and not os.path.islink(request.source)
    if in_place and "/.git/" not in f"{real}/":
        return "", ""
    root = git.find_root(real)
    if in_place:
        return (root if root and f"{real}/".startswith(f"{root.rstrip('/')}/.git/") else ""), ""
    if root or not os.path.isdir(real):
        return root, ""
    from claudebox.facts.walk import Walk

    held: list[str] = []

    def entered(name: str) -> bool:
        if name == ".git":
            held.append(real)
        return not held

    walk = Walk(real, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
    for path, entry in walk.entries(entered):
        if entry.name == ".git":
            held.append(os.path.dirname(path))
        if held:
            break
    return (held[0], "") if held else ("", walk.unfinished)
