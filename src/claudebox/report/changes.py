"""The report: everything that a session changed in a directory, by kind, in bounded time (D11-D13, D17-D22, C17)."""

from __future__ import annotations

import time

from claudebox.base import trees
from claudebox.base.files import LOST
from claudebox.base.records import Value
from claudebox.undo.comparison import find_changes
from claudebox.undo.snapshot import UNTRACKED, look_at_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.host.records import ProtectedPath
    from claudebox.report.kinds import Kind
    from claudebox.undo.manifest import Snapshot
    from claudebox.undo.snapshot import Beginning


BUDGET = 60.0  # seconds; Ctrl+C ends it sooner
TOO_MANY = "are too many to be told apart"
_SORTING = 1.0  # seconds more, to tell kinds apart


class ChangedPath:
    """Something that changed; plain, because there may be a hundred thousand of them."""

    __slots__ = ("beside", "how", "kind", "path")

    def __init__(self, kind: Kind, path: str, how: str, *, beside: bool = True) -> None:
        self.kind = kind
        self.path = path  # below the project, or absolute
        self.how = how  # new, changed, deleted, moved, ...
        self.beside = beside  # its directory was there before


class Report(Value):
    """Everything that changed."""

    changes: tuple[ChangedPath, ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()  # path and why it was not looked at
    files: tuple[str, ...] = ()  # absolute paths of all files that are new or changed

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.unseen)

    @property
    def is_cut_short(self) -> bool:
        """Return whether a later look could see more; what cannot be read at all is only named."""
        return any(why in (trees.OUT_OF_TIME, LOST) or why.endswith(TOO_MANY) for _, why in self.unseen)


def join(report: Report, root: str, other: Report) -> Report:
    """Add the report about another directory, with absolute paths."""

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
    protected: tuple[ProtectedPath, ...] = ()
    stubs: frozenset[str] = frozenset()  # of this session
    standing: frozenset[str] = frozenset()  # stubs of sessions that are still alive
    reopened: tuple[tuple[int, int], ...] = ()  # directories of the user's that we opened and closed again
    snapshot: tuple[str, str] = ("", "")  # the state directory of the project, and the session with a snapshot there


def look(places: Places, beginning: Beginning, *, budget: float = BUDGET) -> Report:
    """Find everything that changed, until the time is up."""
    deadline = time.monotonic() + budget
    opener = trees.Opener(beginning.moment.since(), places.reopened)
    before, after = look_at_end(beginning, (places.git_dir, *places.standing), deadline, opener, places.snapshot)
    return tell_apart(places, before, after, deadline, opener.opened)


def tell_apart(
    places: Places, before: Snapshot, after: Snapshot, deadline: float, opened: Iterable[tuple[str, int]] = ()
) -> Report:
    """Return the changes between two snapshots, by kind; `opened` are directories that denied reading, and modes."""
    top, stubs = places.workdir.rstrip("/"), places.stubs | places.standing  # which stood there at the start
    rows = [row for row in find_changes(before, after) if row.after is not None or f"{top}/{row.path}" not in stubs]
    if not rows and not opened:
        return Report(unseen=tuple(_list_unseen(before, after)))
    from claudebox.report.account import Account
    from claudebox.report.kinds import Kind

    account = Account(places, rows, after)
    changes = [*account.list_changes(deadline + _SORTING)]
    for path, mode in opened:
        changes.append(ChangedPath(Kind("closed", why=f"had mode {mode:04o}"), path or ".", "changed in mode"))
    changes += account.list_gone()
    files = (f"{account.workdir}/{row.path}" for row in rows if row.after is not None and row.after.kind == "f")
    return Report(tuple(changes), (*account.unseen, *_list_unseen(before, after)), tuple(files))


def _list_unseen(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, str]]:
    for path, row in after.left_out.items():
        if row.kind in ("unreadable", "time", "late") or (row.kind == "place" and path not in after.entries):
            yield "" if path == "." else path, row.text
    if any(row.kind == "time" for row in before.left_out.values()):
        yield "", UNTRACKED
