"""Commits that change what tools of the host obey: hooks, included configuration, programs that git is told to run.

Such paths are read-only in the project, but a commit can change them all the same, and the next `git checkout`,
`stash` or `reset` of the user writes them. So a branch that does arrives under another name, for the user to look at.
"""

from __future__ import annotations

import os

from claudebox.console import shorten
from claudebox.launch import git_submodules
from claudebox.launch.git_merge import Move
from claudebox.launch.git_names import HEADS
from claudebox.tables import project_paths
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Layout
    from claudebox.launch.git_submodules import Changed

ARRIVED = f"{HEADS}claudebox/"  # what stands there has come from an agent, and nobody may have looked at it
_MOST_NAMED = 3


class ObeyedPaths(Value):
    """What some refs change."""

    by_git: dict[str, str]  # ref -> a path that git of the host obeys
    by_others: dict[str, tuple[str, ...]]  # ref -> paths that other tools obey


def trusted_values(refs: dict[str, str]) -> set[str]:
    """Return the commits of the host that are not there only because an agent made them."""
    return {value for name, value in refs.items() if not name.startswith(ARRIVED)}


def find_obeyed(
    agent: Side, layout: Layout, changed: Mapping[str, Changed], new: dict[str, str], real: Side
) -> ObeyedPaths:
    """Return what refs change that the agent moved, given the paths that each changes and its new value."""
    by_git: dict[str, str] = {}
    by_others: dict[str, tuple[str, ...]] = {}
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    others = [name.encode() for name, _, _ in project_paths.PROTECTED]
    for name, rows in changed.items():
        hit = _find_hit(rows or (), obeyed)
        if hit and not _is_theirs(agent, layout, new[name], trusted_values(real.refs), hit):
            by_git[name] = hit
        paths = tuple(os.fsdecode(path) for path in rows or () if _is_in(path.lower(), others))
        by_others.update({name: paths} if paths and name not in by_git else {})
    return ObeyedPaths(by_git, by_others)


def find_checked_out(agent: Side, real: Side, layout: Layout, staged: Iterable[bytes]) -> frozenset[bytes]:
    """Return paths that git of the host would obey if HEAD and index of the agent came back."""
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    rows = frozenset(path for path in staged if obeyed and _find_hit([path], obeyed))
    (mine, commit), (theirs, before) = agent.head(), real.head()
    if obeyed and not rows and mine != theirs and commit and commit not in trusted_values(real.refs):
        changed = git_submodules.changed_paths(agent, [Move("HEAD", before, commit)], "")
        found = find_obeyed(agent, layout, changed, {"HEAD": commit}, real)
        return frozenset(map(os.fsencode, found.by_git.values()))
    return rows


def _find_hit(changed: Iterable[bytes], obeyed: list[bytes]) -> str:
    """Return the first path that is obeyed, lies in such a one, or stands in the place of a directory around one."""
    for path in changed:
        lower = path.lower()
        if _is_in(lower, obeyed) or any(other.startswith(lower + b"/") for other in obeyed):
            return os.fsdecode(path)
    return ""


def _is_in(path: bytes, places: Iterable[bytes]) -> bool:
    return any(place in (b".", path) or path.startswith(place + b"/") for place in places)


def _is_theirs(agent: Side, layout: Layout, new: str, known: set[str], hit: str) -> bool:
    """Return whether all of these paths are as in a commit of the host: a merge or a switch is no change."""
    if any(path.lower().startswith(f"{hit.lower()}/") for path in layout.obeyed):
        return False
    since = "".join(f"^{value}\n" for value in sorted(known))
    inner = (path for path in layout.obeyed if "\n" not in path and not path.endswith(project_paths.PASSED))
    paths = "".join(f":(top,icase,literal){path}\n" for path in inner)
    data = os.fsencode(f"{new}\n{since}--\n{paths}")
    words = ("rev-list", "-n1", "--ignore-missing", "--stdin")
    return agent.box.ask(*words, data=data) == b"" and not any("\n" in path for path in layout.obeyed)


def describe(name: str, path: str, arrived: str = "") -> str:
    """Return what is said about a ref that git of the host would obey."""
    what = f"{name} changes `{shorten(path, 80)}`, which your git obeys"
    where = shorten(arrived.removeprefix(HEADS), 120)
    return f"{what}: it arrived as {where}; look at it, then merge that" if arrived else what


def describe_checkout(paths: frozenset[bytes]) -> list[str]:
    """Return what is said about HEAD and index, if they stay."""
    rows = [f"`{shorten(os.fsdecode(path), 80)}`" for path in sorted(paths)[:1]]
    return [f"HEAD or index inside change {row}, which your git obeys: yours stay as they are" for row in rows]


def describe_others(rows: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what is said about refs that change what other tools obey."""
    found = []
    for name, paths in rows.items():
        more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        named = ", ".join(f"`{shorten(path, 80)}`" for path in paths[:_MOST_NAMED])
        found.append(f"`{shorten(name.removeprefix(HEADS), 80)}` changes what tools of the host obey: {named}{more}")
    return found
