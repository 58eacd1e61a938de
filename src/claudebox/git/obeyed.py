"""Commits that change what tools of the host obey: hooks, included configuration, programs that git is told to run.

Such paths are read-only in the project, but a commit can change them, and the next `git checkout`, `stash` or `reset`
of the user writes them. So such a branch arrives under another name, for the user to look at. So does one with a masked
file, whose values could only be fake. What other tools obey is named.
"""

from __future__ import annotations

import os

from claudebox.base.console import list_some, shorten
from claudebox.git import sides
from claudebox.git.refs import HEADS, Move
from claudebox.tables.paths import PROTECTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from claudebox.git.sides import Changed, Side
    from claudebox.git.state import Layout


ARRIVED = f"{HEADS}claudebox/"  # not reviewed yet, perhaps
_MOST_NAMED = 3


def trusted_values(refs: dict[str, str]) -> set[str]:
    """Return the commits of the host, without those that only arrived from an agent."""
    return {value for name, value in refs.items() if not name.startswith(ARRIVED)}


def find_obeyed(
    agent: Side, layout: Layout, changed: Mapping[str, Changed], new: dict[str, str], host: Side
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the refs that change a path which git of the host obeys, and those that change what other tools obey.

    `changed` has the paths of each ref that the agent has moved, `new` its value.
    """
    by_git: dict[str, str] = {}
    by_others: dict[str, tuple[str, ...]] = {}
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    others = [name.encode() for name, _, _ in PROTECTED]
    for name, rows in changed.items():
        hit = _find_hit(rows or (), obeyed)
        if hit and not _is_known(agent, layout, new[name], host, hit):
            by_git[name] = hit
        elif paths := tuple(os.fsdecode(path) for path in rows or () if _is_in(path.lower(), others)):
            by_others[name] = paths
    return by_git, by_others


def find_obeyed_in_checkout(agent: Side, host: Side, layout: Layout, staged: Iterable[bytes]) -> frozenset[bytes]:
    """Return paths that git of the host would obey if HEAD and index of the agent came back."""
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    rows = frozenset(path for path in staged if obeyed and _find_hit([path], obeyed))
    (agent_head, commit), (host_head, before) = agent.head(), host.head()
    if obeyed and not rows and agent_head != host_head and commit and commit not in trusted_values(host.refs):
        changed = sides.changed_paths(agent, [Move("HEAD", before, commit)], "")
        by_git, _ = find_obeyed(agent, layout, changed, {"HEAD": commit}, host)
        return frozenset(map(os.fsencode, by_git.values()))
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


def _is_known(agent: Side, layout: Layout, new: str, host: Side, hit: str) -> bool:
    """Return whether all obeyed paths are as in a commit of the host, as after a merge or a switch."""
    if any("\n" in path or path.lower().startswith(f"{hit.lower()}/") for path in layout.obeyed):
        return False
    since = "".join(f"^{value}\n" for value in sorted(trusted_values(host.refs)))
    paths = "".join(f":(top,icase,literal){path}\n" for path in layout.obeyed)
    words = ("rev-list", "-n1", "--ignore-missing", "--stdin")
    return agent.box.ask(*words, data=os.fsencode(f"{new}\n{since}--\n{paths}")) == b""


def describe(name: str, path: str, arrived: str = "") -> str:
    """Return the line about a ref that changes what git of the host obeys."""
    what = f"{name} changes `{shorten(path, 80)}`, which is read-only inside"
    where = shorten(arrived.removeprefix(HEADS), 120)
    return f"{what}: it arrived as {where}; look at it, then merge that" if arrived else what


def describe_checkout(paths: frozenset[bytes]) -> list[str]:
    """Return the line about HEAD and index, if they stay."""
    rows = [f"`{shorten(os.fsdecode(path), 80)}`" for path in sorted(paths)[:1]]
    return [f"HEAD or index inside change {row}, which is read-only inside: yours stay as they are" for row in rows]


def describe_others(rows: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the lines about refs that change what other tools obey."""
    lines = []
    for name, paths in rows.items():
        named = list_some([f"`{shorten(path, 80)}`" for path in paths], _MOST_NAMED)
        lines.append(f"`{shorten(name.removeprefix(HEADS), 80)}` changes what tools of the host obey: {named}")
    return lines
