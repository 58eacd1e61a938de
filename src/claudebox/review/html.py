"""HTML as a tree of elements: no function here takes markup, so nothing that an agent wrote can become any.

Only the elements and attributes listed here exist: none that runs, loads or submits anything. A link leads to a place
in the page or to a file beside it, a picture holds its bytes, and the policy of the document permits nothing but its
own style, its own script if it has one, and pictures with their bytes.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import unicodedata
import urllib.parse
from xml.etree import ElementTree as ET

from claudebox.base.console import DECEIVING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from claudebox.review.pictures import Picture

    Content: TypeAlias = "Element | str | int | Iterable[Content] | None"


Element = ET.Element
_TEXT = (
    "article b body button caption code dd del details div dl dt figcaption figure footer h1 h2 h3 header input ins li "
    "main mark nav p pre section small span strong summary table tbody td th thead tr ul"
)
_DRAWING = "path rect svg title"
_ELEMENTS = frozenset(f"{_TEXT} {_DRAWING}".split(" "))
_NAMES = (
    "aria-controls aria-hidden aria-label aria-labelledby aria-pressed class d data-n data-value height hidden id open "
    "placeholder preserveAspectRatio role rx scope tabindex title type value viewBox width x y"
)
_ATTRIBUTES = frozenset(_NAMES.split(" "))
_MARKS = 4  # that may stand on one letter: a pile of them covers the lines around it
_NAMED = 8  # characters in a row that are named one by one


def E(name: str, *content: Content, **attributes: str | float | bool | None) -> Element:  # noqa: N802 - like an element
    """Return an element; its content is text, further elements, or sequences of them.

    Underscores in the names of attributes stand for dashes; one at the end is dropped (`class_`).
    """
    if name not in _ELEMENTS or (name == "input" and attributes.get("type") != "search"):
        raise ValueError(f"no page has an element <{name}>")
    known = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    if not known.keys() <= _ATTRIBUTES:
        raise ValueError(f"no element has all of the attributes {known.keys()}")
    return _make(name, content, known)


def _make(name: str, content: Content, attributes: dict[str, str | float | bool | None]) -> Element:
    given = {key: "" if value is True else name_odd(f"{value}") for key, value in attributes.items()
             if value is not None and value is not False}  # fmt: skip
    element = Element(name, given)
    _add(element, content)
    return element


def _add(element: Element, content: Content, *, lines: bool = False) -> None:
    if isinstance(content, Element):
        element.append(content)
    elif isinstance(content, str):
        for text, is_plain in _split(content, lines=lines):
            if not is_plain:
                odd = ET.SubElement(element, "span", {"class": "odd"})
                odd.text = _name(text)
            elif len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
    elif isinstance(content, int):
        _add(element, f"{content}")
    elif content is not None:
        for part in content:
            _add(element, part)


def show_lines(text: str, **attributes: str | float | bool | None) -> Element:
    """Return a paragraph of text that may have several lines."""
    element = E("p", **attributes)
    _add(element, text, lines=True)
    return element


def _split(text: str, *, lines: bool = False) -> Iterable[tuple[str, bool]]:
    """Return text in pieces, and of each whether it may stand on a page as it is."""
    if text.isascii() and text.isprintable():
        return ((text, True),) if text else ()
    plain, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        is_shown = char.isprintable() and char not in DECEIVING and char != "\ufffc" and marks <= _MARKS
        plain.append(is_shown or char == "\t" or (lines and char == "\n"))
    groups = itertools.groupby(zip(text, plain, strict=True), lambda row: row[1])
    return (("".join(char for char, _ in rows), is_plain) for is_plain, rows in groups)


def _name(odd: str) -> str:
    """Return the names of characters that cannot be seen, or that would be obeyed."""
    more = f" and {len(odd) - _NAMED:,} more" if len(odd) > _NAMED else ""
    return " ".join(map(_name_one, odd[:_NAMED])) + more


def _name_one(char: str) -> str:
    if 0xDC80 <= ord(char) <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return {"\n": "\\n", "\r": "\\r", "\x1b": "\\e"}.get(char) or f"U+{ord(char):04X}"


def name_odd(text: str) -> str:
    """Return text for a place that takes no elements, with names for what cannot be seen or would be obeyed."""
    return "".join(piece if is_plain else _name(piece) for piece, is_plain in _split(text))


def link_within(place: str, *content: Content, class_: str | None = None) -> Element:
    """Return a link to the element with this `id`."""
    return _make("a", content, {"class": class_, "href": f"#{_quote(place, '')}"})


def link_beside(path: str, *content: Content) -> Element:
    """Return a link to a file by its path relative to the page; no name in it can be read as a scheme or a host."""
    target = _quote(path, "/")
    return _make("a", content, {"href": target if target.startswith("../") else f"./{target.lstrip('/')}"})


def _quote(name: str, safe: str) -> str:
    try:
        content = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no file has such a name
        content = name.encode("utf-8", "replace")
    return urllib.parse.quote_from_bytes(content, safe=safe)


def embed_picture(picture: Picture, alt: str) -> Element:
    """Return a picture with its bytes: of a format that only shows pixels, whatever else is in the file."""
    width, height = picture.shown_size
    data = base64.b64encode(picture.content).decode("ascii")
    source = f"data:image/{picture.kind};base64,{data}"
    return _make("img", None, {"alt": alt, "width": width, "height": height, "decoding": "async", "src": source})


def render_document(title: str, body: Iterable[Content], *, style: str, script: str = "") -> bytes:
    """Return a whole page; `style` and `script` are ours, and nothing else of their kind takes effect in it."""
    allowed = f"style-src {_hash(style)}; img-src data:" + (f"; script-src {_hash(script)}" if script else "")
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    head = (
        _make("meta", None, {"charset": "utf-8"}),
        _make("meta", None, {"http-equiv": "Content-Security-Policy", "content": policy}),
        _make("meta", None, {"name": "referrer", "content": "no-referrer"}),
        _make("meta", None, {"name": "color-scheme", "content": "light dark"}),
        _make("meta", None, {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        _make("title", name_odd(title), {}),
        _own("style", style),
    )
    page = _make("html", (_make("head", head, {}), E("body", body, _own("script", script) if script else None)),
                 {"lang": "en"})  # fmt: skip
    written: str = ET.tostring(page, encoding="unicode", method="html")
    return f"<!doctype html>\n{written}\n".encode()


def _own(name: str, content: str) -> Element:
    """Return a style or a script of ours: the serializer writes what is in it as it is."""
    element = Element(name)
    element.text = content
    return element


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
