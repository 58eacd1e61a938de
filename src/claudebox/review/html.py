"""HTML from elements: no function here takes markup, so nothing that an agent wrote can become any.

Text and attributes are escaped where they are written, and only the elements and attributes listed here exist: none
that runs, loads or submits anything. A link leads to a place in the page or to a file beside it, a picture holds its
bytes, and the policy of the document permits nothing but its own style, its own script if it has one, and pictures
with their bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import urllib.parse

from claudebox.base.console import DECEIVING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from claudebox.review.pictures import Picture

    Content: TypeAlias = "Element | str | int | Iterable[Content] | None"


_TEXT = (
    "article b body button caption code dd del details div dl dt figcaption figure footer h1 h2 h3 header input ins li "
    "main mark nav p pre section small span strong summary table tbody td th thead tr ul"
)
_DRAWING = "path rect svg title"
_ELEMENTS = frozenset(f"{_TEXT} {_DRAWING}".split(" "))
_EMPTY = frozenset(("input",))
_NAMES = (
    "aria-controls aria-hidden aria-label aria-labelledby aria-pressed class d data-n data-value height hidden id open "
    "placeholder preserveAspectRatio role rx scope tabindex title type value viewBox width x y"
)
_ATTRIBUTES = frozenset(_NAMES.split(" "))


class Element:
    """One element; its content is text, further elements, or sequences of them."""

    __slots__ = ("_written",)

    def __init__(self, name: str, *content: Content, **attributes: str | float | bool | None) -> None:
        """Underscores in the names of attributes stand for dashes; one at the end is dropped (`class_`)."""
        if name not in _ELEMENTS:
            raise ValueError(f"no page has an element <{name}>")
        if name == "input" and attributes.get("type") != "search":
            raise ValueError("an input of another type")
        opened = f"<{name}"
        for key, value in attributes.items():
            attribute = key if key in _ATTRIBUTES else key.rstrip("_").replace("_", "-")
            if attribute not in _ATTRIBUTES:
                raise ValueError(f"no element has an attribute `{attribute}`")
            if value is True:
                opened += f" {attribute}"
            elif value is not None and value is not False:
                opened += f' {attribute}="{_escape(value)}"'
        self._written = opened + (">" if name in _EMPTY else f">{_write(content)}</{name}>")

    @classmethod
    def _of(cls, written: str) -> Element:
        """Return an element of markup that was made here."""
        made = cls.__new__(cls)
        made._written = written  # noqa: SLF001 - our own
        return made

    def __str__(self) -> str:
        return self._written


E = Element


def link_within(place: str, *content: Content, class_: str = "") -> Element:
    """Return a link to the element with this `id`."""
    return _link(f"#{_quote(place, '')}", content, class_)


def link_beside(path: str, *content: Content, class_: str = "") -> Element:
    """Return a link to a file by its path relative to the page; no name in it can be read as a scheme or a host."""
    parts = _quote(path, "/")
    return _link(parts if parts.startswith("../") else f"./{parts.lstrip('/')}", content, class_)


def _quote(name: str, safe: str) -> str:
    try:
        content = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no file has such a name
        content = name.encode("utf-8", "replace")
    return urllib.parse.quote_from_bytes(content, safe=safe)


def _link(target: str, content: Iterable[Content], class_: str) -> Element:
    kind = f' class="{_escape(class_)}"' if class_ else ""
    return Element._of(f'<a{kind} href="{html.escape(target)}">{_write(content)}</a>')  # noqa: SLF001 - our own


def embed_picture(picture: Picture, alt: str) -> Element:
    """Return a picture with its bytes: of a format that only shows pixels, whatever else is in the file."""
    width, height = picture.shown_size
    data = base64.b64encode(picture.content).decode("ascii")
    return Element._of(  # noqa: SLF001 - our own
        f'<img alt="{_escape(alt)}" width="{width:d}" height="{height:d}" decoding="async" '
        f'src="data:image/{picture.kind};base64,{data}">'
    )


def show_text(text: str, *, lines: bool = False) -> Content:
    """Return text in which everything that cannot be seen, or misleads, is named; with `lines` line feeds stay."""
    return text if _is_plain(text) else [*_pieces(text, lines=lines)]


def _pieces(text: str, *, lines: bool) -> Iterator[Content]:
    for is_plain, chars in itertools.groupby(text, lambda char: _is_shown(char) or (lines and char == "\n")):
        run = "".join(chars)
        yield run if is_plain else E("span", " ".join(map(_name, run)), class_="odd")


def _is_shown(char: str) -> bool:
    return (char.isprintable() and char not in DECEIVING and char != "\ufffc") or char == "\t"


def _name(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}.get(char, f"U+{code:04X}")


def _is_plain(text: str) -> bool:
    return text.isascii() and (text.isprintable() or text.replace("\t", "").isprintable())


def _write(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Element):
        return str(content)
    if isinstance(content, str):
        return html.escape(content if _is_plain(content) else _visible(content), quote=False)
    if isinstance(content, int):
        return f"{content}"
    return "".join(map(_write, content))


def _escape(value: str | float) -> str:
    return html.escape(_visible(f"{value}"))


def _visible(text: str) -> str:
    """Return text without what no document may hold or would obey; `show_text` has named it where that matters."""
    if text.isprintable():
        return text.translate(_OBEYED)
    return "".join(char if char.isprintable() or char in "\t\n" else "\ufffd" for char in text).translate(_OBEYED)


_OBEYED = dict.fromkeys(map(ord, DECEIVING), "\ufffd")


def render_document(title: str, body: Iterable[Content], *, style: str, script: str = "", class_: str = "") -> bytes:
    """Return a whole page; `style` and `script` are ours, and nothing else of their kind takes effect in it."""
    allowed = {"style-src": _hash(style), "img-src": "data:"}
    if script:
        allowed["script-src"] = _hash(script)
    policy = "; ".join(
        ("default-src 'none'", *(f"{name} {value}" for name, value in allowed.items()), "base-uri 'none'",
         "form-action 'none'")
    )  # fmt: skip
    program = f"<script>{script}</script>" if script else ""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{_write(title)}</title>'
        f"<style>{style}</style></head>{E('body', body, class_=class_ or None)}{program}</html>\n"
    )
    return page.encode("utf-8", "replace")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
