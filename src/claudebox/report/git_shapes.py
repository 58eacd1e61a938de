"""Directories that git takes for a repository, by what stands in them: the name `.git` is only one way to get there.

Git enters a directory of any name once the user is in it, or where a `.git` file, a link, a worktree or an address
leads there. It needs a `HEAD` of any type, or `objects` and `refs` where a `commondir` leads.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.report.sweep import Listing

_SHAPE = frozenset(("head", "objects", "refs"))
OBEYED = ("config", "config.worktree", "commondir", "hooks", "rebase-merge", "rebase-apply", "sequencer")
_PARTS = frozenset(OBEYED)


def find_shapes(changed: Iterable[str], listing: Listing, is_new: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return directories of that shape in which something that git obeys has changed, and what.

    In one that got its shape since, everything counts: an earlier session may have left the rest there.
    `is_new`: nothing stood at a path before.
    """
    found: dict[str, list[str]] = {}
    around: dict[str, tuple[str, ...]] = {}  # directory -> those that it lies in as a part that git obeys
    for path in changed:
        parent, _, name = path.rpartition("/")
        for place in _find_around(parent, listing, around):
            found.setdefault(place, []).append(path)
        part = name.lower()
        if (part not in _PARTS and part not in _SHAPE) or not has_shape(listing.get(parent, (0, None))[1]):
            continue
        rows = found.setdefault(parent, [])
        if part in _PARTS:
            rows.append(path)
        elif is_new(path):
            names = (row.partition("/")[0] for row in listing.get(parent, (0, None))[1] or ())
            rows += (f"{parent}/{row}" if parent else row for row in names if row.lower() in _PARTS)
    return {place: rows for place, rows in found.items() if rows}


def has_shape(names: Iterable[str] | None) -> bool:
    """Return whether git could enter a directory with these names, or be led there; one that nobody could list, too."""
    if names is None:
        return True
    present = {name.partition("/")[0].lower() for name in names}
    return "head" in present or present >= {"objects", "refs"}


def _find_around(directory: str, listing: Listing, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the directories that one lies in as a part that git obeys; paths may be very deep."""
    waiting = []
    while directory and directory not in known:
        waiting.append(directory)
        directory = directory.rpartition("/")[0]
    places = known.get(directory, ())
    for path in reversed(waiting):
        parent, _, name = path.rpartition("/")
        if name.lower() in _PARTS and has_shape(listing.get(parent, (0, None))[1]):
            places = (*places, parent)
        known[path] = places
    return places
