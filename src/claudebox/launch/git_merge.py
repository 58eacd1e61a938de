"""Decide, from three states of refs, what goes into the real repository and what into the agent's.

Pure: values in, values out. The third state is the base, what both sides last had in common.
"""

from __future__ import annotations

import os

from claudebox.launch.git_names import HEADS, REMOTES, TAGS, objection, objection_to_new, shorten_ref
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Move(Value):
    """One change of a ref: from an old value to a new one; an empty value is none."""

    name: str
    old: str
    new: str
    commits: int = 0  # that are in the new one only, where somebody has counted them


def put(refs: dict[str, str], move: Move) -> None:
    """Take up in `refs` that one has moved."""
    if move.new:
        refs[move.name] = move.new
    else:
        refs.pop(move.name, None)


def render_updates(moves: Iterable[Move], digits: int) -> bytes:
    """Return what `git update-ref -z --stdin` reads, in a repository whose ids have so many digits."""
    zero = "0" * digits
    return os.fsencode("".join(f"update {move.name}\0{move.new or zero}\0{move.old or zero}\0" for move in moves))


class Merged(Value):
    """What is to be done about refs."""

    out: tuple[Move, ...]  # into the real repository
    into: tuple[Move, ...]  # into the agent's
    parted: tuple[Move, ...]  # both sides moved it apart: the agent's value needs another name
    refused: tuple[tuple[str, str], ...]  # refs of the agent that stay where they are, and why
    agreed: dict[str, str]  # the base as far as both sides have the same


def merge_refs(
    mine: dict[str, str],
    theirs: dict[str, str],
    base: dict[str, str],
    contains: Callable[[str, str], bool],
    elsewhere: frozenset[str] = frozenset(),
    remotes: Callable[[], frozenset[str]] = frozenset,
    only: str = "",
) -> Merged:
    """Compare the agent's refs with the real ones.

    `contains(a, b)`: the history of `a` contains `b`. `elsewhere`: branches that are checked out in another worktree.
    `remotes` are those of the real repository. `only`: no other ref of the real repository moves.
    """
    rows: dict[str, list[Move]] = {"out": [], "into": [], "parted": []}
    refused: list[tuple[str, str]] = []
    # Stashes and notes are compared by nobody: what they were stays written down.
    agreed = {name: value for name, value in base.items() if not name.startswith((HEADS, TAGS, REMOTES))}
    strange = _objections(sorted(mine.keys() - theirs.keys() - base.keys()), theirs, remotes)
    for name in sorted({*mine, *theirs, *base}):
        inside, outside, before = mine.get(name, ""), theirs.get(name, ""), base.get(name, "")
        if inside == outside:
            if inside:
                agreed[name] = inside
            continue
        if before:
            agreed[name] = before
        reason = strange.get(name) or objection(name)
        if inside == before:
            rows["into"].append(Move(name, inside, outside))
        elif name.startswith(REMOTES) or (name.startswith(TAGS) and not inside):
            continue  # what the agent fetched is its own, and a tag that it deleted stays in the real repository
        elif reason or (name.startswith(TAGS) and (before or outside)):
            refused.append((name, reason or "tags are only added"))
        elif not inside:  # deleted inside, or made another name of one: only if nobody has worked on it since
            free = outside == before and name not in elsewhere and not only
            rows["out" if free else "into"].append(Move(name, outside if free else "", "" if free else outside))
        elif name in elsewhere or only not in ("", name):
            rows["parted"].append(Move(name, before, inside))
        elif outside == before or (outside and contains(inside, outside)):
            rows["out"].append(Move(name, outside, inside))
        elif outside and contains(outside, inside):
            rows["into"].append(Move(name, inside, outside))
        else:
            rows["parted"].append(Move(name, before, inside))
    rows["out"].sort(key=lambda move: bool(move.new))  # deletions first: `a` may make room for `a/b`
    return Merged(tuple(rows["out"]), tuple(rows["into"]), tuple(rows["parted"]), tuple(refused), agreed)


def _objections(new: list[str], theirs: dict[str, str], remotes: Callable[[], frozenset[str]]) -> dict[str, str]:
    """Return why refs cannot be made, for those that cannot: of two with the same short name the first one can."""
    known, reserved = {shorten_ref(name) for name in theirs}, remotes() if new else frozenset()
    found = {}
    for name in (name for name in new if name.startswith((HEADS, TAGS))):
        reason = objection_to_new(name, known, reserved)
        if reason:
            found[name] = reason
        known.add(shorten_ref(name))
    return found


class IndexRow(Value):
    """A path of an index that differs from a commit: what it is now, and what it is there; mode 0 is none."""

    mode: str
    oid: str
    mode_before: str
    oid_before: str
