"""Differences of texts as hunks of lines: computed from two texts, or read from a patch that git has written."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.review.pictures import Picture

    Line = tuple[str, int, str]  # " ", "-" or "+"; its number; its text


MOST_PATCH = 8 << 20  # bytes: about a second for each million lines
CONTEXT = 3
_MOST_DIFFERENCES = 1500  # beyond, lines are not paired: time and memory grow with the square
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
    if not marks:
        change.note = "too different, or too long, to be compared line by line"
        marks = "-" * len(old) + "+" * len(new)
    change.added, change.removed = marks.count("+"), marks.count("-")
    _collect(change, marks, (old, new), most)


def _split(text: str) -> list[str]:
    rows = text.split("\n")
    return rows if rows[-1] else rows[:-1]


def _compare_lines(old: Sequence[str], new: Sequence[str], deadline: float) -> str:
    """Return the shortest way from one text to another as a mark for each line, by Myers' algorithm.

    Empty if there are too many differences, or no time is left.
    """
    start, ends = 0, (len(old), len(new))
    while start < min(ends) and old[start] == new[start]:
        start += 1
    while min(ends) > start and old[ends[0] - 1] == new[ends[1] - 1]:
        ends = ends[0] - 1, ends[1] - 1
    middle = _compare_rest(old[start : ends[0]], new[start : ends[1]], deadline)
    if middle is None:
        return ""
    ordered = re.sub(r"[-+]+", lambda run: "".join(sorted(run[0], reverse=True)), middle)  # what went comes first
    return " " * start + ordered + " " * (len(old) - ends[0])


def _compare_rest(old: Sequence[str], new: Sequence[str], deadline: float) -> str | None:
    size, wanted = len(old), len(new)
    most = min(size + wanted, _MOST_DIFFERENCES)
    furthest = [0] * (2 * most + 3)
    zero = most + 1
    trace: list[list[int]] = []  # `furthest` before each round, as far as that looks
    for count in range(most + 1):
        if time.monotonic() > deadline:
            return None
        trace.append(furthest[zero - count - 1 : zero + count + 2])
        for line in range(zero - count, zero + count + 1, 2):
            added = line == zero - count or (line != zero + count and furthest[line - 1] < furthest[line + 1])
            at = furthest[line + 1] if added else furthest[line - 1] + 1
            other = at - line + zero
            while at < size and other < wanted and old[at] == new[other]:
                at, other = at + 1, other + 1
            furthest[line] = at
            if at >= size and other >= wanted:
                return _walk_back(trace, size, wanted)
    return None


def _walk_back(trace: list[list[int]], at: int, other: int) -> str:
    marks: list[str] = []
    for count in range(len(trace) - 1, -1, -1):
        known, line = trace[count], at - other + count + 1
        added = line == 1 or (line != 2 * count + 1 and known[line - 1] < known[line + 1])
        before = known[line + 1] if added else known[line - 1]
        marks.append(" " * (at - before - (not added)))
        at, other = before, before - (line - count - 1) - (1 if added else -1)
        if count:
            marks.append("+" if added else "-")
    return "".join(reversed(marks))


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
    """Yield the files of a patch that git has written, with at most so many lines of each."""
    return _PatchReader(patch, most).files()


class _PatchReader:
    """Reads a patch from its beginning; lines of a file are counted, so that none of them can pass for a heading."""

    def __init__(self, patch: bytes, most: int) -> None:
        self._patch, self._at, self._most = patch, 0, most
        self._room = most  # lines of the present file that can be shown

    def _next(self) -> str | None:
        """Return the next row without reading past it; None at the end."""
        if self._at >= len(self._patch):
            return None
        self._end = self._patch.find(b"\n", self._at)
        self._end = len(self._patch) if self._end < 0 else self._end
        return self._patch[self._at : self._end].decode("utf-8", "surrogateescape")

    def _pass(self) -> None:
        self._at = self._end + 1

    def files(self) -> Iterator[FileChange]:
        while (row := self._next()) is not None:
            self._pass()
            if row.startswith("diff --git "):
                yield self._read_file(row)

    def _read_file(self, first: str) -> FileChange:
        self._room = self._most
        change = FileChange(_path_of(first.removeprefix("diff --git ")), "changed")
        while (row := self._next()) is not None and not row.startswith("diff --git "):
            self._pass()
            word, _, rest = row.partition(" ")
            if word == "@@":
                self._read_hunk(change, row)
            elif word in ("---", "+++") and (path := _unquote(rest.rstrip("\t"))) != "/dev/null":
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
        return change

    def _read_hunk(self, change: FileChange, row: str) -> None:
        found = _HUNK.fullmatch(row)
        if found is None:
            return
        numbers = [int(found[1]), int(found[3])]
        left = [int(found[2] or 1), int(found[4] or 1)]
        hunk = Hunk(shorten_line(found[5]))
        while max(left) > 0 and (line := self._next()) is not None:
            mark = line[:1] or " "
            self._pass()
            if mark not in " -+":
                continue  # a remark of git
            side = 0 if mark == "-" else 1
            change.removed += mark == "-"
            change.added += mark == "+"
            if self._room > 0:
                self._room -= 1
                hunk.lines.append((mark, numbers[side], shorten_line(line[1:].removesuffix("\r"))))
            else:
                change.cut += mark != " "
            for which, other in ((0, "+"), (1, "-")):
                numbers[which] += mark != other
                left[which] -= mark != other
        if hunk.lines:
            change.hunks.append(hunk)


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
