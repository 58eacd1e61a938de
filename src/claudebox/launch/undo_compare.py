"""Two snapshots of a project side by side: what was deleted, overwritten and created between them."""

from __future__ import annotations

import os

from claudebox.launch.undo_manifest import TICK
from claudebox.values import Value

_OLDER = "it is older than the session, and the snapshot did not reach it under its name of then"
TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.undo_manifest import KeptEntry, Snapshot


class Difference(Value):
    """What has happened to a project since a snapshot."""

    deleted: tuple[str, ...]
    overwritten: tuple[str, ...]  # also: another kind, mode, owner, attributes, or linked with others
    created: tuple[str, ...]
    untimed: tuple[str, ...]  # the same, at another time
    left: dict[str, str]  # what is not put back, and why
    unreached: tuple[str, ...] = ()  # of these, what the session changed before the snapshot reached it

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has to be put back."""
        return not (self.deleted or self.overwritten or self.created)


class Comparison:
    """Two snapshots of a project side by side; what the first has left out stays as it is."""

    def __init__(self, before: Snapshot, now: Snapshot) -> None:
        self.before, self.now = before.entries(), now.entries()
        self.links = _groups(self.before, self.before)
        self.difference = self._compare(before, now)

    def _compare(self, before: Snapshot, now: Snapshot) -> Difference:
        left = {path: row.text for path, row in before.left_out.items()}
        closed = set(left)
        rows: dict[str, list[str]] = {"deleted": [], "overwritten": [], "created": [], "untimed": []}
        links = _groups(self.now, self.before)
        for path, entry in self.before.items():
            found = self.now.get(path)
            if found is not None and found.is_like(entry) and links.get(path) == self.links.get(path):
                if found.mtime != entry.mtime:
                    rows["untimed"].append(path)
            elif found is not None or path in now.left_out:
                rows["overwritten"].append(path)
            else:
                rows["deleted"].append(path)
        late = set(before.late)
        older = self._find_older(before)
        for path in (*self.now, *now.left_out):
            if path in self.before or _is_within(path, closed):
                continue
            if late and (os.path.dirname(path) or ".") in late:
                left[path] = "it may have been there before: its directory changed before the snapshot reached it"
            elif path in older:
                left[path] = _OLDER
            elif path not in self.now and now.left_out[path].kind == "excluded":
                left[path] = now.left_out[path].text
            elif not path.startswith("/"):
                rows["created"].append(path)
        deleted, overwritten, created, untimed = (tuple(sorted(found)) for found in rows.values())
        reasons = (*older, *(path for path, row in before.left_out.items() if row.kind == "late"))
        unreached = tuple(sorted({*reasons, *before.late}))
        return Difference(deleted, overwritten, created, untimed, left, unreached)

    def _find_older(self, before: Snapshot) -> set[str]:
        """Return what has a new name, is older than the session and is not kept; and the directories that hold it.

        Nobody can set the time of the last change, and a directory that is renamed does not change those of its files.
        """
        kept, unkept = {entry.inode for entry in self.before.values()}, before.unkept_inodes()
        found: set[str] = set()
        for path, entry in self.now.items():
            if path in self.before:
                continue
            if entry.inode in unkept or (entry.ctime < before.began - TICK and entry.inode not in kept):
                while path and path not in self.before and path not in found:
                    found.add(path)
                    path = os.path.dirname(path)  # noqa: PLW2901 - climbing is the point
        return found


def _groups(entries: dict[str, KeptEntry], among: dict[str, KeptEntry]) -> dict[str, tuple[str, ...]]:
    """Return for each file that has several names, as far as they are `among` others, all of them."""
    by_inode: dict[int, list[str]] = {}
    for path, entry in entries.items():
        if entry.kind == "f" and path in among:
            by_inode.setdefault(entry.inode, []).append(path)
    groups = (tuple(sorted(paths)) for paths in by_inode.values() if len(paths) > 1)
    return {path: group for group in groups for path in group}


def _is_within(path: str, closed: set[str]) -> bool:
    while path:
        if path in closed:
            return True
        path = os.path.dirname(path)
    return False
