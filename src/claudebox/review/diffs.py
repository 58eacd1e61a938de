"""Differences of texts as hunks of lines: computed from two texts, or read from a patch that git has written."""

from __future__ import annotations

import io
import re
import time
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.review.pictures import Picture

    Line = tuple[str, int, str]  # " ", "-" or "+"; its number; its text
    Way = tuple["Way | None", str, int]  # what came before, "-" or "+", how many lines are the same after it


MOST_PATCH = 8 << 20  # bytes: about a second for each million lines
CONTEXT = 3
_MOST_DIFFERENCES = 1000  # beyond, lines are not paired: time and memory grow with the square
_LONGEST = 1000  # characters of a line
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPES = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


@dataclass
class Hunk:
    """Lines that changed, with what is around them."""

    heading: str  # the function around it, as git says
    lines: list[Line] = field(default_factory=list)


@dataclass
class FileChange:
    """What happened to one file."""

    path: str
    how: str = ""  # new, changed, deleted, moved, ...
    origin: str = ""  # its former path
    why: str = ""  # who would run it
    note: str = ""  # why there are no lines
    hunks: list[Hunk] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    cut: int = 0  # changed lines that are not shown
    before: Picture | None = None
    after: Picture | None = None
    sizes: tuple[int, int] | None = None  # of a binary file, before and after; -1 is none
    blobs: tuple[str, str] = ("", "")  # of a binary file in git, before and after
    place: str = ""  # its `id` on the page, if a link leads there

    @property
    def shown(self) -> int:
        return sum(len(hunk.lines) for hunk in self.hunks)


def compare_texts(change: FileChange, before: str, after: str, most: int, deadline: float) -> None:
    """Add the differences of two texts, at most so many lines."""
    old, new = _split(before), _split(after)
    if before and after and before.endswith("\n") != after.endswith("\n"):
        change.note = f"the line feed at its end is {'new' if after.endswith(chr(10)) else 'gone'}"
    if all(row.endswith("\r") for rows in (old, new) for row in rows):
        old, new = ([row[:-1] for row in rows] for rows in (old, new))
    marks = _compare_lines(old, new, deadline)
    if marks is None:
        change.note = "too different, or too long, to be compared line by line"
        marks = "-" * len(old) + "+" * len(new)
    change.added, change.removed = marks.count("+"), marks.count("-")
    _collect(change, marks, (old, new), most)


def _split(text: str) -> list[str]:
    rows = text.split("\n")
    return rows if rows[-1] else rows[:-1]


def _compare_lines(old: Sequence[str], new: Sequence[str], deadline: float) -> str | None:
    """Return the shortest way from one text to another as a mark for each line, by Myers' algorithm.

    None if there are too many differences, or no time is left.
    """
    # By diagonal: how far into the old text, and what was done on the way there, the last first.
    furthest: dict[int, tuple[int, Way | None]] = {1: (0, None)}
    for count in range(min(len(old) + len(new), _MOST_DIFFERENCES) + 1):
        if time.monotonic() > deadline:
            return None
        for line in range(-count, count + 1, 2):
            added = line == -count or (line != count and furthest[line - 1][0] < furthest[line + 1][0])
            at, way = furthest[line + 1 if added else line - 1]
            start = at = at + (not added)
            while at < len(old) and at - line < len(new) and old[at] == new[at - line]:
                at += 1
            way = way, "+" if added else "-", at - start
            furthest[line] = at, way
            if at >= len(old) and at - line >= len(new):
                return _follow(way)
    return None


def _follow(way: Way | None) -> str:
    marks = []
    while way is not None:
        way, mark, same = way
        marks.append(mark + " " * same)
    found = "".join(reversed(marks))[1:]  # the first step leads to the beginning
    return re.sub(r"[-+]+", lambda run: "".join(sorted(run[0], reverse=True)), found)  # what went comes first


def _collect(change: FileChange, marks: str, texts: tuple[Sequence[str], Sequence[str]], most: int) -> None:
    """Cut the marks into hunks with what is around them."""
    shown = bytearray(len(marks))
    for run in re.finditer(r"[-+]+", marks):
        shown[max(0, run.start() - CONTEXT) : run.end() + CONTEXT] = b"\1" * (
            min(len(marks), run.end() + CONTEXT) - max(0, run.start() - CONTEXT)
        )
    numbers = [0, 0]
    hunk: Hunk | None = None
    for at, mark in enumerate(marks):
        side = 0 if mark == "-" else 1
        number = numbers[side]
        numbers = [numbers[0] + (mark != "+"), numbers[1] + (mark != "-")]
        if not shown[at]:
            hunk = None
        elif most <= 0:
            change.cut += mark != " "
        else:
            if hunk is None:
                hunk = Hunk("")
                change.hunks.append(hunk)
            hunk.lines.append((mark, number + 1, shorten_line(texts[side][number])))
            most -= 1


def shorten_line(text: str) -> str:
    more = len(text) - _LONGEST
    return f"{text[:_LONGEST]} \u2026 and {more} more characters" if more > 0 else text


def read_patch(patch: bytes, most: int) -> Iterator[FileChange]:
    """Yield the files of a patch that git has written, with at most so many lines of each.

    The lines of a hunk are counted, so that none of them can pass for a heading.
    """
    change, room = None, 0
    rows = (row.removesuffix(b"\n").decode("utf-8", "surrogateescape") for row in io.BytesIO(patch))
    for row in rows:
        if row.startswith("diff --git "):
            if change is not None:
                yield change
            change, room = FileChange(_path_of(row.removeprefix("diff --git ")), "changed"), most
        elif change is not None and (found := _HUNK.fullmatch(row)):
            room = _read_hunk(change, found, rows, room)
        elif change is not None:
            _read_heading(change, row)
    if change is not None:
        yield change


def _read_heading(change: FileChange, row: str) -> None:
    word, _, rest = row.partition(" ")
    if word in ("---", "+++") and (path := _unquote(rest.rstrip("\t"))) != "/dev/null":
        change.path = path[2:]
    elif row.startswith("new file mode"):
        change.how = "new"
    elif row.startswith("deleted file mode"):
        change.how = "deleted"
    elif row.startswith(("rename from ", "copy from ")):
        change.how, change.origin = "moved", _unquote(rest.partition(" ")[2])
    elif row.startswith(("rename to ", "copy to ")):
        change.path = _unquote(rest.partition(" ")[2])
    elif row.startswith("new mode "):
        change.note = "now executable" if rest.endswith("755") else f"its mode is {rest.rpartition(' ')[2]} now"
    elif word == "index":
        old, _, new = rest.partition(" ")[0].partition("..")
        change.blobs = (old, new)
    elif row.startswith(("Binary files ", "GIT binary patch")):
        change.sizes = -1, -1


def _read_hunk(change: FileChange, found: re.Match[str], rows: Iterator[str], room: int) -> int:
    """Add a hunk with as many lines as there is room for; return how much room is left."""
    numbers = [int(found[1]), int(found[3])]
    left = [int(found[2] or 1), int(found[4] or 1)]
    hunk = Hunk(shorten_line(found[5]))
    while max(left) > 0 and (row := next(rows, None)) is not None:
        mark = row[:1] or " "
        if mark not in " -+":
            continue  # a remark of git
        change.removed += mark == "-"
        change.added += mark == "+"
        if room > 0:
            room -= 1
            hunk.lines.append((mark, numbers[mark != "-"], shorten_line(row[1:].removesuffix("\r"))))
        else:
            change.cut += mark != " "
        for which, other in ((0, "+"), (1, "-")):
            numbers[which] += mark != other
            left[which] -= mark != other
    if hunk.lines:
        change.hunks.append(hunk)
    return room


def _path_of(names: str) -> str:
    """Return the path in `a/PATH b/PATH`; for others a later line has it."""
    if names.startswith('"'):
        return _unquote(names[: len(names) // 2])[2:]
    return names[2 : len(names) // 2]


def _unquote(name: str) -> str:
    """Return a name as it is, which git quotes as C does."""
    if not (len(name) > 1 and name.startswith('"') and name.endswith('"')):
        return name
    raw = _ESCAPED.sub(lambda found: _ESCAPES.get(found[1]) or _as_byte(int(found[1], 8) & 0xFF), name[1:-1])
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _as_byte(number: int) -> str:
    return chr(number if number < 0x80 else 0xDC00 + number)
