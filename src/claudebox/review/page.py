"""What every page has: its frame, the blocks that its sections are made of, and its place."""

from __future__ import annotations

import os
import stat

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import mode_of, write_file
from claudebox.base.records import Value
from claudebox.review.html import E, Element, link_within, render_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from claudebox.review.html import Content


_PATH = 250  # characters of a path, at each end
_NUMBERS = frozenset((  # heads of columns
    "Times", "Sent", "Received", "Answers", "Tokens in", "From caches", "Out", "Tasks", "Changes", "Cost", "Tries",
))  # fmt: skip


class Section(Value):
    """A part of a page, and the link that leads to it."""

    place: str
    name: str
    count: int
    element: Element


def make_section(
    place: str, title: str, *content: Content, name: str = "", count: int = 0, remark: str = "",
    class_: str | None = None,
) -> Section:  # fmt: skip
    """Return a section; `name` and `count` are what its link says."""
    heading = E("h2", title, E("small", remark) if remark else None, id=f"{place}-title")
    element = E("section", heading, content, id=place, aria_labelledby=f"{place}-title", class_=class_)
    return Section(place, name or title, count, element)


def render_page(title: str, head: Element, sections: Sequence[Section], foot: Content, *, script: str = "") -> bytes:
    """Return a page of sections, with links to them."""
    links = (E("li", link_within(row.place, row.name, (" ", E("span", f"{row.count:,}")) if row.count else None))
             for row in sections)  # fmt: skip
    body = (
        link_within("main", "Skip to the content", class_="skip"),
        E("div", head, class_="wide"),
        E("nav", E("div", E("ul", links), class_="wide"), aria_label="On this page"),
        E("main", (row.element for row in sections), id="main", class_="wide"),
        E("footer", foot, class_="wide"),
    )
    return render_document(f"{title} \u00b7 claudebox", body, style=read_own("page.css"), script=script)


def read_own(name: str) -> str:
    """Return a file that lies beside this one."""
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/{name}", encoding="utf-8") as file:
        return file.read()


def make_head(what: str, title: str, *more: Content, beside: Content = None) -> Element:
    """Return the top of a page: what it is, of what, and what stands below and beside that."""
    return E("header", E("p", E("b", "claudebox"), " ", E("span", what), class_="from"),
             E("div", E("h1", title), beside, class_="title"), more)  # fmt: skip


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[Content]], *, caption: str = "", class_: str = "rows stack"
) -> Element:
    """Return a table; on a phone, where its heads are not seen, numbers stand behind their names."""
    kinds = ["n" if head in _NUMBERS else None if head else "bar" for head in heads]
    names = [head.lower() if head in _NUMBERS else None for head in heads]
    top = (E("th" if head else "td", head, scope="col" if head else None, class_=kind)
           for head, kind in zip(heads, kinds, strict=True))  # fmt: skip
    body = (E("tr", (E("td", cell, class_=kind, data_n=name)
                     for cell, kind, name in zip(row, kinds, names, strict=True))) for row in rows)  # fmt: skip
    title = E("caption", caption) if caption else None
    return E("table", title, E("thead", E("tr", top)), E("tbody", body), class_=class_)


def list_figures(figures: Iterable[tuple[str, str, bool]]) -> Element:
    """Return numbers with their names; those that are bad news stand out."""
    return E("dl", (E("div", E("dt", name), E("dd", number), class_="bad" if bad else None)
                    for name, number, bad in figures), class_="figures")  # fmt: skip


def make_fold(title: str, count: str, *content: Content) -> Element:
    return E("details", E("summary", E("strong", title), " ", count), content, class_="fold")


def show_path(path: str) -> Element:
    """Return a path that cannot be mistaken for another one; of a very long one both ends."""
    more = len(path) - 2 * _PATH
    shown = path if more <= 0 else f"{path[:_PATH]} \u2026 {more:,} more characters \u2026 {path[-_PATH:]}"
    return E("span", shown, class_="path")


def say_some(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def say_cut(count: int, what: str = "") -> Element | None:
    """Return the line that says how much is not shown."""
    return E("p", f"and {count:,} more{f' {what}' if what else ''}", class_="cut") if count > 0 else None


def check_place(path: str) -> None:
    """Refuse a place where no page can be written, or where it would replace something else than a file."""
    mode = mode_of(path)
    if mode and not stat.S_ISREG(mode):
        raise ClaudeboxError(f"`{path}` is not a regular file", hint="give the page a name of its own")
    if not os.path.isdir(os.path.dirname(path)):
        raise ClaudeboxError(f"`{os.path.dirname(path)}` is not a directory")


def write_page(path: str, page: bytes) -> None:
    """Write a page as a whole, readable for its user alone."""
    check_place(path)
    directory, name = os.path.split(path)
    try:
        write_file(f"{os.path.realpath(directory)}/{name}", page)
    except OSError as error:
        raise ClaudeboxError(f"`{path}` cannot be written: {error.strerror}") from None
