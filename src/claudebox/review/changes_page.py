"""Files that changed, as they are shown on a page: names, lines, pictures."""

from __future__ import annotations

from claudebox.report.log import human
from claudebox.review.html import E, embed_picture, show_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.review.diffs import FileChange, Hunk, Line
    from claudebox.review.html import Content, Element
    from claudebox.review.pictures import Picture


_OPEN_LINES, _OPEN_TOGETHER = 60, 240  # of files that are shown unfolded
_MARKED = 300  # characters of a line in which the difference is marked
_ALIKE = 3  # such a part of a line must be the same on both sides
_NAMES = {" ": "span", "-": "del", "+": "ins"}


def show_files(files: Iterable[FileChange]) -> Iterator[Element]:
    """Yield files one after another; the first small ones are unfolded."""
    left = _OPEN_TOGETHER
    for change in files:
        size = change.shown
        is_open = bool(change.before or change.after) or (0 < size <= min(_OPEN_LINES, left))
        left -= size if is_open else 0
        yield show_file(change, is_open=is_open)


def show_file(change: FileChange, *, is_open: bool) -> Element:
    """Return one file with what changed in it."""
    name: list[Content] = [show_text(change.path)]
    if change.origin:
        name = [show_text(change.origin), " \u2192 ", *name]
    head = (
        E("span", name, class_="path"),
        E("span", change.how, class_=f"how {change.how}" if change.how in ("new", "deleted") else "how"),
        E("span", f"+{change.added:,}", class_="plus") if change.added else None,
        E("span", f"\u2212{change.removed:,}", class_="minus") if change.removed else None,
        E("span", show_text(change.why), class_="why") if change.why else None,
    )  # fmt: skip
    note = change.note if change.sizes is None else _say_sizes(change)
    content: list[Content] = [E("p", show_text(note), class_="note")] if note else []
    if change.before or change.after:
        content.append(_pictures(change))
    if change.hunks:
        content.append(E("pre", (_hunk(hunk) for hunk in change.hunks), class_="diff"))
    if change.cut:
        content.append(E("p", f"and {change.cut:,} more changed lines", class_="cut"))
    if not content:
        return E("div", E("div", head, class_="head"), class_="file none")
    return E("details", E("summary", head), content, class_="file", open=is_open)


def _say_sizes(change: FileChange) -> str:
    before, after = change.sizes or (-1, -1)
    words = [f"{name} {human(size)}" for name, size in (("was", before), ("is", after)) if size >= 0]
    return ", ".join((change.note or "binary", *words))


def _pictures(change: FileChange) -> Element:
    rows = (("before", change.before), ("after", change.after))
    return E("div", (_picture(name, picture, change.path) for name, picture in rows if picture), class_="pictures")


def _picture(name: str, picture: Picture, path: str) -> Element:
    told = f"{name}: {picture.width} \u00d7 {picture.height}, {human(len(picture.content))}"
    return E("figure", E("figcaption", told), embed_picture(picture, f"{path[-200:]}, {name}"))


def _hunk(hunk: Hunk) -> Iterator[Element]:
    first = next((number for _, number, _ in hunk.lines), 0)
    if first > 1 or hunk.heading:
        told = f" \u00b7 {hunk.heading}" if hunk.heading else ""
        yield E("span", f"line {first}", show_text(told), class_="hunk")
    for block in _blocks(hunk.lines):
        old, new = ([row for row in block if row[0] == mark] for mark in "-+")
        pairs = dict(zip(map(id, old), new, strict=False)) | dict(zip(map(id, new), old, strict=False))
        for row in block:
            other = pairs.get(id(row)) if len(old) == len(new) else None
            mark, number, text = row
            yield E(_NAMES[mark], _mark(text, other[2]) if other else show_text(text), data_n=number)


def _blocks(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield lines that stay one by one, and those that changed at one place together."""
    block: list[Line] = []
    for row in lines:
        if row[0] == " ":
            if block:
                yield block
                block = []
            yield [row]
        else:
            block.append(row)
    if block:
        yield block


def _mark(text: str, other: str) -> Content:
    """Return a line in which the part that differs from the other side is marked."""
    if max(len(text), len(other)) > _MARKED:
        return show_text(text)
    start, most = 0, min(len(text), len(other))
    while start < most and text[start] == other[start]:
        start += 1
    end = 0
    while end < most - start and text[-1 - end] == other[-1 - end]:
        end += 1
    while start and _is_word(text, start) and _is_word(other, start):
        start -= 1
    while end and _is_word(text, len(text) - end) and _is_word(other, len(other) - end):
        end -= 1
    if (start + end) * _ALIKE < max(len(text), len(other)):
        return show_text(text)
    middle = text[start : len(text) - end]
    marked = E("mark", show_text(middle)) if middle else None
    return [show_text(text[:start]), marked, show_text(text[len(text) - end :])]


def _is_word(text: str, at: int) -> bool:
    """Return whether a place is within a word."""
    return 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()
