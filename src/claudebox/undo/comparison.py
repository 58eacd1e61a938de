"""The changes between two snapshots, and what an undo does given three: start, end and now."""

from __future__ import annotations

import os

from claudebox.base import trees
from claudebox.undo.manifest import TICK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Literal

    from claudebox.undo.manifest import KeptEntry, Snapshot

    What = Literal["new", "changed", "deleted", "moved"]
    Entries = dict[str, KeptEntry]
    Moves = list[tuple[str, str]]


_OLDER = "it is older than the session, and not in the snapshot under its former name"
_LOST = "it was not kept, so it cannot be restored"
_ONE_WAY = "it cannot be kept, so an undo could not be undone: remove it yourself if you do not want it"
MEANWHILE = "it was changed while the question stood, and stays"
_BEFORE = "it may have been there before: its directory changed before the snapshot reached it"
_UNSEEN = frozenset(("late", "unreadable", "time", "place"))  # what is in such a directory is unknown
_UNKEPT = frozenset(("excluded", "unreadable", "time", "place", "outside"))
_GIT = ".git"
TEMPORARY = ".claudebox-undo."  # prefix of files that are being restored


class PathChange:
    """One difference; plain, because there may be a million of them."""

    __slots__ = ("after", "before", "origin", "path", "what")

    def __init__(
        self, path: str, what: What, before: KeptEntry | None, after: KeptEntry | None, origin: str = ""
    ) -> None:
        self.path, self.what, self.before, self.after = path, what, before, after
        self.origin = origin  # former path, if it was moved


def find_changes(before: Snapshot, after: Snapshot) -> list[PathChange]:
    """Return what differs, sorted by path; what either side did not look at is no difference.

    What `before` did not reach counts as changed if its ctime says so.
    """
    old, new = before.entries, after.entries
    is_unseen = _find_within(path for path, row in after.left_out.items()
                             if row.kind == "time" or (row.kind in _UNSEEN and path not in new))  # fmt: skip
    is_unknown = _find_within(path for path, row in before.left_out.items()
                              if row.kind == "time" or (row.kind in _UNSEEN and path not in old))  # fmt: skip
    late = set(before.late)
    origins = {source: target for target, source in _match(old, new)}
    moved = set(origins.values())
    found = []
    for path in _differing(old, new):
        was, now = old.get(path), new.get(path)
        if was is not None and now is not None:
            found.append(PathChange(path, "changed", None if was.kind == "?" else was, now))
        elif now is None:
            if was is not None and was.kind != "?" and path not in moved and not is_unseen(path):
                found.append(PathChange(path, "deleted", was, None))
        elif path in origins:
            found.append(PathChange(path, "moved", old[origins[path]], now, origins[path]))
        elif (os.path.dirname(path) or ".") not in late and not is_unknown(path):
            found.append(PathChange(path, "new", None, now))
        elif now.ctime >= before.began - TICK:
            found.append(PathChange(path, "changed", None, now))
    return found


def find_changed_meanwhile(shown: Snapshot, now: Snapshot) -> set[str]:
    """Return what changed since it was shown, by `lstat`; a nested repository counts as a whole, by its `.git`."""
    old, new = shown.entries, now.entries
    found = {path for path in {*old, *new} if not _is_untouched(old.get(path), new.get(path))}
    # A mere `git status` renews an index.
    repositories = {where for path in found if (where := _repository(path)) and path != f"{where}/index"}
    return {path for path in found if not _repository(path)} | repositories


def _is_untouched(one: KeptEntry | None, other: KeptEntry | None) -> bool:
    if one is None or other is None or one.kind == "d":
        return _is_same(one, other)
    return (one.kind, one.inode, one.ctime, one.size) == (other.kind, other.inode, other.ctime, other.size)


class Comparison:
    """What an undo does: it reverts the session's changes and keeps what changed since.

    With `both` it also reverts what was changed by the session and again since. Without an `end` everything that
    differs now counts as the session's. What is `held` stays in any case.
    """

    def __init__(
        self,
        start: Snapshot,
        end: Snapshot | None,
        now: Snapshot,
        *,
        both: bool = False,
        unfinished: Snapshot | None = None,
        held: Collection[str] = (),
    ) -> None:
        """`unfinished` is the state before an undo that was killed: what that undo changed is not the user's work."""
        self._start, self._both = start, both
        self._unfinished = unfinished.entries if unfinished is not None else None
        self.before, ended = start.entries, (end or now).entries
        movable = {path: row for path, row in now.entries.items() if path not in held}
        self.moves = _match_moves(self.before, ended, movable)
        self._held = {_apply(path, self.moves) for path in held}
        self.ended, self.now = _remap(ended, self.moves), _remap(now.entries, self.moves)
        self.removed: list[str] = []
        self.made: list[str] = []  # restored: deleted or overwritten by the session
        self.since: list[str] = []  # changed after the session, stays
        self.touched_twice: list[str] = []  # changed by the session and since: stays without `both`
        self.left: dict[str, str] = {}  # changed by the session, cannot be reverted: the reason
        self.full: list[str] = []  # directories of the session in which something stays
        self.unkept: dict[str, int] = {}  # number of changes in directories that are not kept
        looks = (start, end, now) if end is not None else (start, now)
        closed = (path for look in looks for path, row in look.left_out.items() if row.kind in _UNKEPT)
        self.find_closed = _find_within(closed)
        unreached = {*start.late, *(path for path, row in start.left_out.items() if row.kind == "late")}
        self.unreached = sorted(path for path in unreached if not self.find_closed(path))
        rows = self.before.values()
        self._inodes = {entry.inode for entry in rows}
        self._unkept = {entry.inode: entry for entry in rows if entry.kind in "f?" and not entry.content}
        self._compare()

    @property
    def is_empty(self) -> bool:
        return not (self.moves or self.removed or self.made)

    def _compare(self) -> None:
        session = _differing(self.before, self.ended)
        since = {path for path in _differing(self.ended, self.now) if not self._is_half_done(path)}
        self.since = sorted(path for path in since.difference(session) if not self.find_closed(path))
        # A mere `git status` renews an index.
        busy = {where for path in since if (where := _repository(path)) and path != f"{where}/index"}
        is_moved = _find_within(target for _, target in self.moves)
        for path in session:
            was, now, repository = self.before.get(path), self.now.get(path), _repository(path)
            if was and now and not was.is_kept and now.is_moved(was) and is_moved(path):
                continue  # it is moved back
            if top := self.find_closed(path):
                self.unkept[top] = self.unkept.get(top, 0) + 1
            elif path in self._held or repository in self._held:
                self.left[path] = MEANWHILE
            elif why := self._stays(path):
                self.left[path] = why
            elif repository in busy if repository else path in since:
                if repository or not _is_same(was, now):
                    self.touched_twice.append(path)
                    if self._both:
                        self._revert(path)
            else:
                self._revert(path)
        self._keep_full()

    def _is_half_done(self, path: str) -> bool:
        """Return whether a killed undo left this so; its temporary files are removed."""
        known, now = self._unfinished, self.now.get(path)
        if known is None or now is None or not _is_same(known.get(path), self.ended.get(path)):
            return False
        if os.path.basename(path).startswith(TEMPORARY) and path not in known:
            self.removed.append(path)
            return True
        return now.kind == "d" and path in self.before and self.before[path].kind == "d"

    def _stays(self, path: str) -> str:
        """Return why a change of the session cannot be reverted; empty if it can."""
        was, now = self.before.get(path), self.now.get(path)
        if path in self._start.left_out and self._start.left_out[path].kind == "late":
            return self._start.left_out[path].text
        if was is not None:
            if not was.is_kept:
                row = self._start.left_out.get(path)
                return f"{row.text}: {_LOST}" if row is not None else _LOST
            return _ONE_WAY if now is not None and not now.is_kept else ""
        if now is None:
            return ""
        if (os.path.dirname(path) or ".") in self._start.late:
            return _BEFORE
        moved = now.inode in self._unkept and self._unkept[now.inode].is_moved(now)
        older = now.ctime < self._start.began - TICK and now.inode not in self._inodes
        if moved or (older and now.kind != "d"):
            return _OLDER
        return "" if now.is_kept else _ONE_WAY

    def _revert(self, path: str) -> None:
        if path in self.before:
            self.made.append(path)
        elif path in self.now:
            self.removed.append(path)

    def find_missed(self, after: Snapshot) -> Iterator[str]:
        """Yield what should have been restored and was not."""
        found = after.entries
        for _, target in self.moves:
            if target not in found or (self.before[target].kind != "d" and target not in self.made
                                       and found[target].inode != self.before[target].inode):  # fmt: skip
                yield target
        yield from (path for path in self.removed if path in found)
        yield from (path for path in self.made if not _is_same(self.before[path], found.get(path)))

    def _keep_full(self) -> None:
        """Keep directories of the session in which something stays."""
        going = set(self.removed)
        holding = {os.path.dirname(path) for path in self.now if path not in going}
        for path in sorted(self.removed, reverse=True):
            if path in holding:
                going.discard(path)
                holding.add(os.path.dirname(path))
                self.full.append(path)
        self.removed = [path for path in self.removed if path in going]


def _is_same(one: KeptEntry | None, other: KeptEntry | None) -> bool:
    return one is other or (one is not None and other is not None and one.is_like(other))


def _differing(old: Entries, new: Entries) -> list[str]:
    """Return the paths that differ, sorted."""
    came = (path for path, entry in new.items() if not _is_same(old.get(path), entry))
    return sorted((*came, *(path for path in old if path not in new)))


def _match(old: Entries, new: Entries) -> list[tuple[str, str]]:
    """Return former and present path of everything that was moved, also with its directory."""
    gone, came = _index(old, new), _index(new, old)
    children = _children(old, gone.values()), _children(new, came.values())
    found = []
    for inode, target in gone.items():
        source = came.get(inode)
        if source is None:
            continue
        was, now = old[target], new[source]
        shared = was.kind == now.kind == "d" and children[0][target] & children[1][source]
        if shared or now.is_moved(was):
            found.append((target, source))
    return found


def _match_moves(old: Entries, new: Entries, now: Entries) -> Moves:
    """Return the renames that give everything its former path, in order, each as present and former path.

    What was moved or replaced since stays.
    """
    matched = [(target, source) for target, source in _match(old, new)
               if target not in now and source in now and _is_still(new[source], now[source])]  # fmt: skip
    former = {source: target for target, source in matched}
    moves: Moves = []
    folders: Moves = []  # only these change the paths of others
    for target, source in sorted(matched, key=lambda row: row[0].count("/")):
        above, _, name = source.rpartition("/")
        if former.get(above, "/") == target.rpartition("/")[0] and target.rpartition("/")[2] == name:
            continue  # it goes with its directory
        place = _apply(source, folders)
        if place != target:
            moves.append((place, target))
            if new[source].kind == "d":
                folders.append((place, target))
    return moves


def _is_still(ended: KeptEntry, now: KeptEntry) -> bool:
    """Return whether something is what the session left; inodes of deleted files are reused."""
    return now.is_moved(ended) or (now.kind, now.inode) == (ended.kind, ended.inode) == ("d", ended.inode)


def _index(entries: Entries, others: Entries) -> dict[int, str]:
    """Return the paths that only one side has by inode, if it has no other path there."""
    found: dict[int, str] = {}
    several = set()
    for path, entry in entries.items():
        if path not in others and entry.kind != "?":
            if entry.inode in found:
                several.add(entry.inode)
            found[entry.inode] = path
    return {inode: path for inode, path in found.items() if inode not in several}


def _children(entries: Entries, directories: Iterable[str]) -> dict[str, set[tuple[str, int]]]:
    found: dict[str, set[tuple[str, int]]] = {path: set() for path in directories if entries[path].kind == "d"}
    for path, entry in entries.items():
        above, _, name = path.rpartition("/")
        if above in found:
            found[above].add((name, entry.inode))
    return found


def _apply(path: str, moves: Iterable[tuple[str, str]]) -> str:
    for source, target in moves:
        if path == source or path.startswith(f"{source}/"):
            path = target + path[len(source) :]
    return path


def _remap(entries: Entries, moves: Moves) -> Entries:
    if not moves:
        return entries
    return {_apply(path, moves): entry for path, entry in entries.items()}


def _repository(path: str) -> str:
    """Return the git directory around a path, which is kept or reverted as a whole."""
    parts = path.split("/")
    return "/".join(parts[: parts.index(_GIT) + 1]) if _GIT in parts else ""


def _find_within(paths: Iterable[str]) -> Callable[[str], str]:
    """Return a function that finds the one of these paths that another is or lies in; empty if there is none."""
    table = {path: path for path in paths}
    find, rest = trees.nearest_in(table), "." if "." in table else ""
    return lambda path: find(path) or rest
