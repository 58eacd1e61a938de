"""The report on the screen: what could not be looked at first, then the most dangerous, decoys folded together.

The session log has all of it; here each kind has a few lines, and each name that tools obey is at least mentioned.
"""

from __future__ import annotations

from claudebox.console import clean
from claudebox.report.kinds import HEADINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.report.changes import ChangedPath, Report

_SHOWN = 3  # groups of a kind, and paths of a group
_MORE_SHOWN = {"protected": 8, "reported": 8}
_FOLDED_BY_NAME = frozenset(("protected", "repository", "git", "reported"))
_WIDTH = 100
_ALL = "`claudebox --log changes` lists all of it"


def lines(report: Report) -> Iterator[str]:
    """Yield what to say, cleaned; nothing if nothing changed and everything was looked at."""
    if report.unseen:
        path, why = min(report.unseen, key=lambda row: (row[0].count("/"), row[0]))
        more = f" and {len(report.unseen) - 1} more" if len(report.unseen) > 1 else ""
        yield (
            "claudebox: not everything could be looked at, there may be more changes than these: "
            f"{fit(path or '.')} ({clean(why)}){more}"
        )
    if report.clock_set_back:
        yield (
            f"claudebox: the clock was set back by {report.clock_set_back:.1f} s during the session: "
            "changes from before it may be among these"
        )
    if report.changes:
        yield f"claudebox: changed during the session; look at it before tools of the host use it ({_ALL}):"
    for kind, heading in HEADINGS.items():
        rows = [change for change in report.changes if change.kind.name == kind]
        if rows:
            yield f"  {heading}:"
            yield from _rows(kind, rows)
    if report.harmless:
        count = sum(map(len, report.harmless.values()))
        places = _tops((path, len(names)) for path, names in report.harmless.items())
        head = "  and" if report.changes else "claudebox: changed during the session:"
        yield f"{head} {count} files and directories of harmless kinds: {places}"
    if report.unlisted:
        yield (
            f"claudebox: what was deleted from or moved into these is not known, for lack of an earlier list: "
            f"{_tops((path, 1) for path in report.unlisted)}"
        )


def _rows(kind: str, rows: list[ChangedPath]) -> Iterator[str]:
    groups: dict[str, list[ChangedPath]] = {}
    for row in rows:
        group = row.kind.group if kind in _FOLDED_BY_NAME else row.path.rstrip("/").rpartition("/")[0]
        groups.setdefault(group, []).append(row)
    ranks = {group: min(row.kind.rank for row in some) for group, some in groups.items()}
    ordered = sorted(groups, key=lambda group: (ranks[group], *_order(min(groups[group], key=_order))))
    most = _MORE_SHOWN.get(kind, _SHOWN)
    shown = [f"    {_line(kind, group, groups[group])}" for group in ordered[:most]]
    rest = ordered[most:]
    if rest and kind == "reported":
        counts: dict[str, int] = {}
        for group in rest:
            label = group.rstrip("/").rpartition("/")[2]
            counts[label] = counts.get(label, 0) + len(groups[group])
        shown.append(f"    also {', '.join(f'{fit(name, 40)} ({count})' for name, count in counts.items())}")
    elif rest:
        shown[-1] += f" and {sum(len(groups[group]) for group in rest)} more in {len(rest)} other places"
    yield from shown


def _order(change: ChangedPath) -> tuple[bool, bool, int, str]:
    """Sort what lies beside the user's own files first, then what is certain, then what is nearest to the top."""
    return not change.beside, change.how.startswith("in a"), change.path.count("/"), change.path


def _line(kind: str, group: str, rows: list[ChangedPath]) -> str:
    if kind in ("repository", "git"):
        return _with(fit(group or "."), rows[0].kind.why)
    rows = sorted(rows, key=_order)
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    same = len({row.kind.why for row in rows}) == 1
    paths = ", ".join(_with(_path(row), "" if same else row.kind.why) for row in rows[:_SHOWN])
    return _with(paths + more, rows[0].kind.why if same else "")


def _path(row: ChangedPath) -> str:
    told = row.how if row.how.startswith(("now", "in a")) else ""
    group = row.kind.group
    inside = group.endswith("/") and row.path.startswith(group)  # then the name of that tree must not be cut out
    shown = fit(group, _WIDTH // 2) + fit(row.path[len(group) :], _WIDTH // 2) if inside else fit(row.path)
    return shown + (f" ({told})" if told else "")


def _with(text: str, why: str) -> str:
    return f"{text}: {fit(why)}" if why else text


def _tops(rows: Iterable[tuple[str, int]]) -> str:
    """Return how many there are in each directory at the top."""
    counts: dict[str, int] = {}
    for path, count in rows:
        top = path if path.startswith("/") else path.partition("/")[0] or "."
        counts[top] = counts.get(top, 0) + count
    ordered = sorted(counts, key=lambda top: (-counts[top], top))
    more = f" and {len(ordered) - _SHOWN} more directories" if len(ordered) > _SHOWN else ""
    return ", ".join(f"{fit(top, 40)} ({counts[top]})" for top in ordered[:_SHOWN]) + more


def fit(path: str, width: int = _WIDTH) -> str:
    """Return cleaned text that keeps its end when it is too long: the name says more than what it lies in."""
    text = clean(path[:width] + path[-4 * width :] if len(path) > 8 * width else path)
    return text if len(text) <= width else f"{text[: width // 4]}…{text[-(width - width // 4 - 1) :]}"
