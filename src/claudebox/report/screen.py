"""The end of a session on the screen: a summary of at most three lines, and a table of what to look at.

The session log has all of it. Decoys push nothing off: changes of one kind in one directory share a line, and
`and N more` never stands for another kind.
"""

from __future__ import annotations

from claudebox.base.console import clean, columns, wrap
from claudebox.base.records import Value
from claudebox.report.kinds import IGNORED, LOOK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.report.changes import ChangedPath, Report

    Done = tuple[str, str, str]  # a path, what was done, and why


WIDTH = 100  # where there is no terminal
_HEAD = "claudebox: "
_INDENT = " " * len(_HEAD)
_PLACES = 3  # lines of one kind
_PATH = 60  # columns for a path
_LEAST = 24  # the same on a narrow terminal
SEE, SEE_IN_LOG = "see: claudebox changes · undo · log", "see: claudebox log changes"


class Ending(Value):
    """What the screen shows of one session."""

    report: Report
    seconds: float = 0.0  # 0: not shown
    price: str = ""
    git: tuple[str, ...] = ()  # what became of branches
    resume: str = ""  # the command that continues the conversation
    see: str = SEE_IN_LOG  # what shows more
    disarmed: tuple[Done, ...] = ()  # repositories
    disarmed_more: int = 0  # further ones


def lines(ending: Ending) -> Iterator[str]:
    """Yield the lines, cleaned; none if nothing changed and everything was looked at."""
    width = columns(WIDTH)
    texts, told = sum_up(ending, width)
    if ending.git or texts:
        yield from _wrap([*_spent(ending), *ending.git, *texts, ending.see], width)
    if ending.resume:
        yield f"{_INDENT if ending.git or texts else _HEAD}resume: {clean(ending.resume)}"
    yield from look_at(told, ending.disarmed, ending.disarmed_more)
    yield from _unseen(ending.report)


def sum_up(ending: Ending, width: int = WIDTH) -> tuple[list[str], list[ChangedPath]]:
    """Return a few words about files, deletions and build output; and what to look at that they do not name."""
    rows = [
        row for row in ending.report.changes if not row.path.endswith("/") or row.kind.name not in ("own", "output")
    ]
    own = sorted((row for row in rows if row.kind.name in ("own", "asked")), key=order_own)
    deleted = sorted((row for row in rows if row.kind.name == "deleted"), key=_order)
    known = {path for path, _, _ in ending.disarmed}
    output = _count_output((row for row in rows if row.kind.group not in known), width)
    named: set[str] = set()
    texts = [text for text in (_files(own, "file", named, width), _files(deleted, "deleted", named, width)) if text]
    if output:
        texts.append(output)
    told = [row for row in rows if row.kind.name in LOOK]
    told += [row for row in own if row.kind.name == "asked" and row.path not in named]
    return texts, told


def _spent(ending: Ending) -> list[str]:
    words = [say_duration(ending.seconds)] if ending.seconds else []
    return [", ".join((*words, *([ending.price] if ending.price else [])))] if words or ending.price else []


def say_duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def order_own(row: ChangedPath) -> tuple[bool, bool, int, str]:
    """Sort what tools obey first, then what was there before, then by depth."""
    return row.kind.name != "asked", row.how == "new", row.path.count("/"), row.path


def _files(rows: list[ChangedPath], what: str, named: set[str], width: int) -> str:
    """Return a count and as many names as fit in a line, which are added to `named`."""
    if not rows:
        return ""
    count = f"{len(rows)} {what}" if what == "deleted" else f"{len(rows)} file{'s' * (len(rows) != 1)}"
    text, shown = f"{count}: ", 0
    for row in rows:
        path = fit(row.path, _PATH)
        if shown and len(text) + len(path) + len(" and 9999 more") > width - len(_HEAD):
            break
        text += f"{', ' if shown else ''}{path}"
        shown += 1
        named.add(row.path)
    return text + (f" and {len(rows) - shown} more" if len(rows) > shown else "")


def _count_output(rows: Iterable[ChangedPath], width: int) -> str:
    """Return the number of files in each directory of output, for as many as fit in a line."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.kind.name == "output":
            counts[row.kind.group] = counts.get(row.kind.group, 0) + 1
    text, rest = "build output: ", sum(counts.values())
    for number, top in enumerate(sorted(counts, key=lambda top: (-counts[top], top))):
        named = _of(counts[top], "ignored ") if top == IGNORED else f"{fit(top, 40)}/ {_of(counts[top])}"
        if number and len(f"{text}, {named} and {rest} elsewhere") > width - len(_HEAD):
            return f"{text} and {rest} elsewhere"
        text += f", {named}" if number else named
        rest -= counts[top]
    return text if counts else ""


def _of(count: int, which: str = "") -> str:
    return f"{count} {which}file{'s' * (count != 1)}"


def _wrap(parts: list[str], width: int) -> Iterator[str]:
    """Join parts by dots into lines; a part is not broken."""
    line = _HEAD
    for part in parts:
        if len(line) > len(_HEAD) and len(line) + len(" · ") + len(part) > width:
            yield line
            line = _INDENT
        line += f" · {part}" if len(line) > len(_HEAD) else part
    yield line


def _unseen(report: Report) -> Iterator[str]:
    if report.unseen:
        path, why = min(report.unseen, key=lambda row: (row[0].count("/"), row[0]))
        more = f" and {len(report.unseen) - 1} more" if len(report.unseen) > 1 else ""
        yield f"{_HEAD}not everything could be looked at: {fit(path or '.')} ({clean(why)}){more}"


def look_at(rows: Iterable[ChangedPath], disarmed: tuple[Done, ...] = (), more: int = 0) -> Iterator[str]:
    """Yield a line for each kind and directory, the most dangerous first."""
    table = tabulate(rows, disarmed, more)
    if not table:
        return
    yield "look at these before you work here:"
    paths, hows, whys = (max(len(row[column]) for row in table) for column in range(3))
    if width := columns(0):
        paths = min(paths, max(_LEAST, width - len("      ") - hows - whys))
    for path, how, why in table:
        yield from (line.rstrip() for line in wrap(why, f"  {fit(path, paths):<{paths}}  {how:<{hows}}  "))


def tabulate(rows: Iterable[ChangedPath], disarmed: tuple[Done, ...] = (), more: int = 0) -> list[Done]:
    """Return a row for each kind and directory, the most dangerous first: path, what happened, who runs it."""
    groups: dict[tuple[int, int, str], dict[str, list[ChangedPath]]] = {}
    repositories = {path for path, _, _ in disarmed}
    for row in sorted(rows, key=lambda row: (row.kind.rank, *_order(row))):
        kind = row.kind
        if kind.name == "repository":  # one row for each, the worst
            if kind.group in repositories:
                continue
            repositories.add(kind.group)
        rank = LOOK.index(kind.name) if kind.name in LOOK else len(LOOK)
        key = (rank, kind.rank, kind.why if kind.name != "link" else "")
        groups.setdefault(key, {}).setdefault(kind.group, []).append(row)
    table = [(fit(path, _PATH), how, clean(why)) for path, how, why in disarmed]
    table += [(f"and {more} more", "disarmed", "")] if more else []
    for key in sorted(groups):
        places = [[row for row in some if not row.path.endswith("/")] or some for some in groups[key].values()]
        most = _PLACES if key[0] < len(LOOK) else 1
        table += map(_line, places[:most])
        if rest := sum(map(len, places[most:])):
            table.append((f"and {rest} more", "", places[0][0].kind.why))
    return table


def _order(row: ChangedPath) -> tuple[bool, int, str]:
    """Sort what lies beside the user's own files first, then by depth."""
    return not row.beside, row.path.count("/"), row.path


def _line(rows: list[ChangedPath]) -> tuple[str, str, str]:
    first = rows[0]
    path = (first.kind.group or ".") if first.kind.name in ("repository", "git") else first.path
    more = f" and {len(rows) - 1} more" if len(rows) > 1 and path == first.path else ""
    hows = dict.fromkeys(row.how for row in rows)
    how = next(iter(hows)) if len(hows) == 1 else "changed"
    return fit(path, _PATH - len(more)) + more, how, fit(first.kind.why)


def fit(path: str, width: int = WIDTH) -> str:
    """Clean a path and shorten it in front: its name says most."""
    text = clean(path[:width] + path[-4 * width :] if len(path) > 8 * width else path)
    return text if len(text) <= width else f"{text[: width // 4]}…{text[-(width - width // 4 - 1) :]}"
