"""The text of a file of settings → plain values, and where each key stands; refused in a second if hostile (C18)."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from claudebox.errors import ClaudeboxError

if TYPE_CHECKING:
    from claudebox.config.files import Source

# A hundred parts in a row: time and memory of `tomllib` grow with the square of their number (C18).
_LONG_KEY = re.compile(r"""(?m)^[ \t]*+\[?+\[?+(?:[ \t]*+(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.){100}""")
_TYPES = {
    str: "a string", bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "a table",
}  # fmt: skip


def parse_text(source: Source) -> tuple[dict[str, Any], Lines]:
    """Return the document and the lines of its keys."""
    try:
        text = source.content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.content[: error.start].count(b"\n") + 1
        raise ClaudeboxError(f"{source.shown}:{line}: byte {source.content[error.start]:#04x} is not UTF-8") from None
    is_json = source.path.endswith(".json")
    try:
        if not is_json and _LONG_KEY.search(text):
            raise RecursionError
        document = json.loads(text, object_pairs_hook=_unique) if is_json else tomllib.loads(text)
    except RecursionError:
        raise ClaudeboxError(f"{source.shown} is nested too deeply", hint="no setting needs that") from None
    except ValueError as error:
        raise ClaudeboxError(f"{source.shown}{_position(error, text)}: {_problem(error)}") from None
    if not isinstance(document, dict):
        raise ClaudeboxError(f"{source.shown} is {kind(document)}, and settings are a table")
    return document, Lines(text, is_json=is_json)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"the key {name!r} is there twice")
        document[name] = value
    return document


def _position(error: ValueError, text: str) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f":{error.lineno}"
    if "at end of document" in str(error):
        return f":{text.rstrip().count(chr(10)) + 1}"
    found = re.search(r"\(at line (\d+), column \d+\)", str(error))
    return f":{found[1]}" if found else ""


def _problem(error: ValueError) -> str:
    text = error.msg if isinstance(error, json.JSONDecodeError) else re.sub(r" \(at .*\)$", "", str(error))
    return text[:1].lower() + text[1:]


class Lines:
    """Where the keys of a file stand; `tomllib` does not tell, so a look at the beginnings of lines must do."""

    _HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?$")
    _KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.\s*"?([\w-]+)"?\s*)?=""")
    _JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')

    def __init__(self, text: str, *, is_json: bool) -> None:
        self._text = text.split("\n")
        self._known: dict[tuple[str | int, ...], int] = {}
        (self._scan_json if is_json else self._scan_toml)()

    def _scan_toml(self) -> None:
        table: tuple[str | int, ...] = ()
        counts: dict[str, int] = {}
        for number, line in enumerate(self._text, 1):
            if header := self._HEADER.match(line):
                name = header[2].strip().strip("\"'")
                table = (name,)
                if header[1] == "[[":
                    table = (name, counts.get(name, 0))
                    counts[name] = counts.get(name, 0) + 1
                self._known.setdefault((name,), number)
                self._known.setdefault(table, number)
            elif key := self._KEY.match(line):
                name = key[1] or key[2] or key[3] or ""
                self._known.setdefault((*table, name), number)
                if key[4]:
                    self._known.setdefault((*table, name, key[4]), number)

    def _scan_json(self) -> None:
        for number, line in enumerate(self._text, 1):
            for key in self._JSON_KEY.finditer(line):
                self._known.setdefault((key[1],), number)

    def of(self, *path: str | int) -> int:
        """Return the line of a key, or of the table around it; 0 if it was not found."""
        while path:
            if path in self._known:
                return self._known[path]
            if len(path) > 1 and isinstance(path[-1], str) and (path[-1],) in self._known:
                return self._known[path[-1:]]
            path = path[:-1]
        return 0

    def of_item(self, key: str, item: str) -> int:
        """Return the line of one string of an array."""
        start = self.of(key)
        for number in range(start, min(start + 500, len(self._text) + 1)) if start else ():
            line = self._text[number - 1]
            if f'"{item}"' in line or f"'{item}'" in line:
                return number
        return start


def kind(value: Any) -> str:
    """Return what a value is, as a user would call it."""
    if value == "":
        return "an empty string"
    return _TYPES.get(type(value), "a date or time")
