"""The text of a file of settings → checked values, or everything that is wrong with it, at once.

Off the launch path: `files` caches what `read_document` returns, by the content of the file.
"""

from __future__ import annotations

import bisect
import difflib
import json
import re
import tomllib
from typing import Any

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.layers import SettingValue, list_words
from claudebox.settings.table import SETTINGS
from claudebox.tables.agents import ADDRESSES
from claudebox.tables.environment import LOADERS, MADE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.files import Source
    from claudebox.settings.records import Field, Setting

    Row = tuple[str, int, dict[str, str]]  # value, line, fields


# A hundred parts in a row: time and memory of `tomllib` grow with the square of their number (C18).
_LONG_KEY = re.compile(
    r"""(?m)(?:^|[{,])[ \t]*+\[?+\[?+(?:[ \t]*+(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.){100}"""
)
_SHOWN = 60  # characters of a wrong value
_NEAR = 16384  # characters behind a key in which an item of its array is looked for
_LISTED = "`claudebox help settings` lists them"
_TYPES = {
    str: "a string", bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "a table",
}  # fmt: skip
WANTED = {
    "switch": "true or false",
    "text": "a string or a number",
    "list": "a string or an array of strings",
    "words": "an array of strings",
    "table": "a table of strings",
    "record": "a table",
    "rows": "an array of tables",
    "groups": "tables with names of your own",
}
# Besides LOADERS: these lead an agent, and with it its key, to another server.
_NOT_FROM_PROJECTS = ADDRESSES | frozenset((
    "ALL_PROXY", "CURL_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED",
    "REQUESTS_CA_BUNDLE",
))  # fmt: skip
_NOT_FROM_PROJECTS_PREFIXES = ("ANTHROPIC_", "CLAUDE", "DYLD_", "GIT_CONFIG", "LD_")


def read_document(source: Source) -> dict[str, list[Row]]:
    """Return the checked values of a file by the key of their setting."""
    document, lines = parse_source(source)
    check = _Check(source, lines)
    for name, value in document.items():
        check.take(name, value)
    if check.errors:
        raise ClaudeboxError(check.errors[0], more=tuple(check.errors[1:]))
    return check.rows


def find_row(key: str) -> Setting | None:
    """Return the row of a key as files spell it, or as the flag does."""
    rows = {row.file_key: row for row in SETTINGS if row.in_files != "none"}
    return rows.get(key) or next((row for row in rows.values() if row.key == key), None)


def unknown_key(key: str, origin: str) -> ClaudeboxError:
    """Return the error for a key that no setting has."""
    check = _check_text(origin)
    check.take(key, "")
    return ClaudeboxError(check.errors[0])


def _check_text(origin: str) -> _Check:
    from claudebox.settings.files import Source

    return _Check(Source("", origin, "user", b""), Lines(""))


def _explained(row: Setting) -> str:
    return f"`claudebox help settings {row.file_key}` explains it"


def example(row: Setting) -> Iterator[str]:
    """Yield the lines of a file that set it."""
    match row.shape:
        case "switch":
            yield f"{row.file_key} = false"
        case "choice":
            yield f'{row.file_key} = "{row.default}"'
        case "text":
            yield f'{row.file_key} = "{row.example or row.default}"'
        case "list":
            yield f'{row.file_key} = "{row.alone[0]}"' if row.alone else f"{row.file_key} = []"
        case "words":
            yield f'{row.file_key} = ["program", "word"]'
        case "table":
            yield f"[{row.file_key}]"
            yield 'NAME = "value"'
        case _:
            yield {"rows": "[[{}]]", "groups": "[{}.work]"}.get(row.shape, "[{}]").format(row.file_key)
            for field in row.fields:
                if value := field.example or field.default:
                    words = ", ".join(f'"{word}"' for word in value.split("\n"))
                    yield f"{field.name} = [{words}]" if field.many else f"{field.name} = {words}"


def read_assignment(text: str, origin: str) -> tuple[Setting, list[SettingValue]]:
    """Return the row and the checked values of KEY=VALUE; a string needs no quotes, a list of one no brackets."""
    name, assigned, value = text.partition("=")
    name, value = name.strip(), value.strip()
    key, _, part = name.partition(".")
    row = find_row(key)
    if row is None and key and assigned:
        raise unknown_key(key, origin)
    if row is None or not assigned:
        hint = _explained(row) if row else _LISTED
        raise ClaudeboxError(f"`{origin}` needs KEY=VALUE, not `{text}`", hint=hint)
    check = _check_text(origin)
    read: Any = _read_value(row, value, origin)
    check.take(row.file_key, {part: read} if part else read)
    if check.errors:
        raise ClaudeboxError(check.errors[0], hint=_explained(row), more=tuple(check.errors[1:]))
    return row, [
        SettingValue(value, f"{origin} {row.file_key}", fields) for value, _, fields in check.rows.get(row.key, [])
    ]


def _read_value(row: Setting, text: str, origin: str) -> Any:
    """Return the value that this text would be in a file."""
    if row.shape == "switch":
        return {"true": True, "false": False}.get(text, text)
    if text[:1] in ("[", "{", '"', "'"):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError) as error:
            if row.shape in ("list", "text"):
                return [text] if row.shape == "list" else text
            raise ClaudeboxError(f"`{origin} {row.file_key}`: {_problem(error)}") from None
    if row.shape == "words":
        return text.split()
    return [text] if row.shape == "list" else text


def unknown_profile(name: str, origin: str, names: Iterable[str]) -> ClaudeboxError:
    """Return the error for a profile that does not exist."""
    hint = f"{_suggest(name, sorted(names))}; a new one is ~/.claudebox/profiles/{name}.toml"
    return ClaudeboxError(f"`{origin}`: there is no profile `{name}`", hint=hint)


def parse_source(source: Source) -> tuple[dict[str, Any], Lines]:
    """Return the table of a file, and where the keys are."""
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
        line = _position(error, text)
        problem = _problem(error, "" if is_json else text.split("\n")[line - 1])
        raise ClaudeboxError(f"{source.shown}{f':{line}' * bool(line)}: {problem}") from None
    if not isinstance(document, dict):
        raise ClaudeboxError(f"{source.shown} is {describe_kind(document)}, and settings are a table")
    return document, Lines(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"`{name}` is set twice")
        document[name] = value
    return document


def _position(error: ValueError, text: str) -> int:
    """Return the line of an error of a parser, or 0."""
    if isinstance(error, json.JSONDecodeError):
        return error.lineno
    if "at end of document" in str(error):
        return text.rstrip().count("\n") + 1
    found = re.search(r"\(at line (\d+), column \d+\)", str(error))
    return int(found[1]) if found else 0


def _problem(error: Exception, line: str = "") -> str:
    """Return what a parser complains about, or what the line with an unquoted value must be."""
    message = error.msg if isinstance(error, json.JSONDecodeError) else re.sub(r" \(at .*\)$", "", str(error))
    given = re.fullmatch(r"\s*([\w-]+)\s*=\s*(.*?)\s*(?:#.*)?", line)
    if given and message.startswith("Cannot overwrite"):
        return f"`{given[1]}` is set twice"
    row = find_row(given[1]) if given else None
    if given and row is not None and row.shape in ("switch", "choice", "text", "list"):
        words = re.findall(r"[^\s\[\],'\"]+", console.shorten(given[2], _SHOWN)) or [row.default or "VALUE"]
        several = row.shape == "list" and (len(words) > 1 or "[" in given[2])
        right = json.dumps(words if several else " ".join(words), ensure_ascii=False)
        right = "true` or `false" if row.shape == "switch" else right
        return f"the value of `{row.file_key}` cannot be read: write `{row.file_key} = {right}`"
    if message == "Invalid statement":
        return "this is neither `KEY = VALUE` nor `[TABLE]`"
    return message[:1].lower() + message[1:]


def _as_text(value: Any) -> Any:
    """Return a number as the string that it could have been."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 53
    return str(value) if number else value


def _as_list(value: Any) -> Any:
    """Return a list, of which one string needs no brackets."""
    return [value] if isinstance(value, str) else value


def describe_kind(value: Any) -> str:
    """Return what kind of value this is."""
    if value in ("", []):
        return "empty"
    return _TYPES.get(type(value), "a date or time")


def _suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean `{near[0]}`?" if near else otherwise or f"there are {list_words(known)}"


class Lines:
    """The lines of keys, found by their text, since `tomllib` does not tell."""

    # `[name]` or `[[name]]`; `name =` or `name.other =` at the beginning of a line, or in a table on one line; JSON.
    _KEY = re.compile(
        r"""(?m)^[ \t]*\[+([^][\n]+)\]|^[ \t]*(?:"([^"\n]*)"|'([^'\n]*)'|([\w-]+))[ \t]*[=.]|[{,]\s*([\w-]+)[ \t]*="""
        r"""|"((?:[^"\\\n]|\\.)*)"\s*:"""
    )

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: dict[str, list[int]] = {}  # where keys end, by name
        for key in self._KEY.finditer(text):
            self._places.setdefault("".join(filter(None, key.groups())).strip(" \t\"'"), []).append(key.end())

    def of(self, *path: str | int, item: object = None) -> int:
        """Return the line of a key, or of an item of its array, or of the table around it; 0 if none was found."""
        at, found, first = -1, [], 0
        for part in path:
            if isinstance(part, str):
                found = self._places.get(part, [])
                first = bisect.bisect(found, at)
                at = found[first] if first < len(found) else at
            elif first + part < len(found):  # the number of one of several
                at = found[first + part]
        if item is not None and at >= 0:
            quoted = (self._text.find(f"{mark}{item}{mark}", at, at + _NEAR) for mark in "\"'")
            at = next((place for place in quoted if place >= 0), at)
        return self._text.count("\n", 0, at) + 1 if at >= 0 else 0


class _Check:
    """Checks the values of a file against the table, and collects errors."""

    def __init__(self, source: Source, lines: Lines) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.errors: list[str] = []
        self._origin, self._role, self._lines = source.shown, source.role, lines
        self._shown = f"`{self._origin}`" if self._origin.startswith("-") else self._origin  # a flag, or a file

    def _wrong(self, line: int, message: str) -> None:
        self.errors.append(f"{self._shown}:{line}: {message}" if line else f"{self._shown}: {message}")

    def take(self, name: str, value: Any) -> None:
        """Check one key of the file."""
        line = self._lines.of(name)
        row = next((row for row in SETTINGS if row.file_key == name and row.in_files != "none"), None)
        if row is None:
            self._wrong(line, self._describe_unknown(name))
        elif not self._is_permitted(row):
            self._wrong(line, self._describe_forbidden(row))
        elif _fits(row, value := _as_text(value) if row.shape == "text" else value):
            getattr(self, f"_take_{row.shape}")(row, value, line)
        else:
            self._mistyped(row, value, line)

    def _is_permitted(self, row: Setting) -> bool:
        if row.key == "profile" and self._role == "profile":
            return False
        return row.in_files in ("project", self._role) or (row.in_files == "user" and self._role == "profile")

    def _describe_unknown(self, name: str) -> str:
        for row in SETTINGS:
            if name in (row.key, row.key.replace("_", "-"), *(flag.lstrip("-") for flag in row.flags)):
                if row.in_files != "none":
                    return f"`{name}` is called `{row.file_key}` here"
                written = f"; write `{row.instead}` here" if row.instead else ""
                return f"`{name}` is a flag for the command line{written}"
        keys = sorted(row.file_key for row in SETTINGS if self._is_permitted(row))
        return f"`{name}` is not a setting; {_suggest(name, keys, _LISTED)}"

    def _describe_forbidden(self, row: Setting) -> str:
        if row.key == "profile" and self._role == "profile":
            return "`profile` is called `extends` in a profile"
        if row.in_files == "profile":
            return f"`{row.file_key}` belongs in a profile"
        return f"`{row.file_key}` cannot come from a project; set it in ~/.claudebox/config.toml"

    def _mistyped(self, row: Setting, value: Any, line: int, *, within: str = "") -> None:
        shown = "" if within or row.shape in ("switch", "choice", "text", "list") else f": `{next(example(row))}`"
        wanted = list_words(row.choices) if row.choices else WANTED["text" if within else row.shape]
        found = f'`"{console.shorten(value, _SHOWN)}"`' if value and isinstance(value, str) else describe_kind(value)
        self._wrong(line, f"`{row.file_key}`{within} must be {wanted}{shown}, not {found}")

    def _add(self, row: Setting, value: str, line: int, fields: dict[str, str] | None = None) -> None:
        """Add a value unless the parser of its setting refuses it."""
        origin = f"{self._origin}:{line}" if line else self._origin
        given = SettingValue(value, origin, fields or {}, self._role == "project")
        try:
            if row.parse is not None:
                row.parse(given)
        except ClaudeboxError as error:
            place = f"{self._shown}:{line}" if line else self._shown
            message = error.message.replace(f"`{given.origin}`", f"{place}: `{row.file_key}`", 1)
            self.errors.append(f"{message}; {error.hint}" if error.hint else message)
        else:
            self.rows.setdefault(row.key, []).append((value, line, given.fields))

    def _is_text(self, row: Setting, value: Any, line: int, within: str = "") -> bool:
        if not isinstance(value, str):
            self._mistyped(row, value, line, within=within)
        elif not value or "\0" in value:
            self._wrong(line, f"`{row.file_key}`{within} must not be empty or contain a NUL byte")
        else:
            return True
        return False

    def _take_switch(self, row: Setting, value: Any, line: int) -> None:
        self._add(row, "yes" if value else "no", line)

    def _take_choice(self, row: Setting, value: Any, line: int) -> None:
        if value in row.choices:
            self._add(row, value, line)
        else:
            near = difflib.get_close_matches(value, row.choices, 1)
            more = f"; did you mean `{near[0]}`?" if near else ""
            found = console.shorten(value, _SHOWN)
            self._wrong(line, f"`{row.file_key}` must be {list_words(row.choices)}, not `{found}`{more}")

    def _take_text(self, row: Setting, value: Any, line: int) -> None:
        if self._is_text(row, value, line):
            self._add(row, value, line)

    def _take_list(self, row: Setting, value: Any, _line: int) -> None:
        for item in map(_as_text, value if isinstance(value, list) else [value]):
            where = self._lines.of(row.file_key, item=item)
            if not self._is_text(row, item, where, ": each element"):
                continue
            if row.key == "env" and self._role == "project" and item in LOADERS:
                what = f"a project cannot ask for `{item}`, which changes what programs load"
                self._wrong(where, f"`{row.file_key}`: {what}")
            else:
                self._add(row, item, where)

    def _take_words(self, row: Setting, value: Any, line: int) -> None:
        if all(self._is_text(row, item, line, ": each word") for item in value):
            self._add(row, value[0], line, {str(index): word for index, word in enumerate(value)})

    def _take_table(self, row: Setting, value: Any, line: int) -> None:
        for name, item in value.items():
            where = self._lines.of(row.file_key, name) or line
            if not isinstance(item, str):
                self._wrong(where, f"`{row.file_key}.{name}` must be a string, in quotes, not {describe_kind(item)}")
            elif self._role == "project" and name not in MADE and _is_powerful(name):
                what = "which changes what programs load or where they connect"
                self._wrong(where, f"`{row.file_key}`: a project cannot set `{name}`, {what}")
            else:
                self._add(row, f"{name}={item}", where)

    def _take_record(self, row: Setting, value: Any, line: int) -> None:
        self._take_fields(row, value, (row.file_key,), line)

    def _take_rows(self, row: Setting, value: Any, line: int) -> None:
        for index, item in enumerate(value):
            place = (row.file_key, index)
            self._take_fields(row, item, place, self._lines.of(*place) or line)

    def _take_groups(self, row: Setting, value: Any, line: int) -> None:
        (field,) = row.fields
        for group, item in value.items():
            where = self._lines.of(f"{row.file_key}.{group}") or self._lines.of(row.file_key, group) or line
            for name in item.keys() - {field.name}:
                self._wrong(where, f"`{row.file_key}.{group}` has no `{name}`; there is `{field.name}`")
            members = _as_list(item.get(field.name))
            if not isinstance(members, list) or not members:
                self._wrong(where, f"`{row.file_key}.{group}` needs `{field.name}`, an array of strings")
                continue
            for member in members:
                if self._is_text(row, member, where, f".{group}: each element"):
                    self._add(row, f"{group}={member}", where)

    def _take_fields(self, row: Setting, value: dict[str, Any], place: tuple[str | int, ...], line: int) -> None:
        """Take a table with the fields of its row; what is missing gets its default."""
        before = len(self.errors)
        known = {field.name: field for field in row.fields}
        value = {name: _as_list(item) if name in known and known[name].many else item for name, item in value.items()}
        for name, item in value.items():
            if name not in known:
                problem = f"`{row.file_key}` has no `{name}`; {_suggest(name, known)}"
            elif problem := _describe_wrong_field(known[name], item):
                problem = f"`{row.file_key}.{name}` {problem}"
            if problem:
                self._wrong(self._lines.of(*place, name) or line, problem)
        for field in row.fields:
            if field.default is None and field.name not in value:
                self._wrong(line, f"`{row.file_key}` needs `{field.name}`: {field.help.replace('`', '')}")
        if len(self.errors) > before:
            return
        given = {name: "\n".join(item) if known[name].many else item for name, item in value.items()}
        fields = {field.name: given.get(field.name) or field.default or "" for field in row.fields}
        self._add(row, " ".join(filter(None, fields.values())), line, fields)


def _fits(row: Setting, value: Any) -> bool:
    """Return whether a value is of the kind that its row takes, whatever it says."""
    match row.shape:
        case "switch":
            return isinstance(value, bool)
        case "choice" | "text":
            return isinstance(value, str)
        case "list":
            return not isinstance(value, bool | dict)
        case "words":
            return isinstance(value, list) and bool(value)
        case "rows":
            return isinstance(value, list) and all(isinstance(item, dict) for item in value)
        case "groups":
            return isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
        case _:
            return isinstance(value, dict)


def _describe_wrong_field(field: Field, item: Any) -> str:
    """Return what is wrong with a field, or nothing."""
    if field.many:
        never = set("\0\t\n\r" if field.spaced else " \0\t\n\r")
        if isinstance(item, list) and item and all(isinstance(w, str) and w and not never & set(w) for w in item):
            return ""
        return "must be an array of strings" + ("" if field.spaced else " without spaces")
    if not isinstance(item, str) or "\0" in item or not item:
        return f"must be a string, not {describe_kind(item)}"
    if field.choices and item not in field.choices:
        return f"must be {list_words(field.choices)}, not `{console.shorten(item, _SHOWN)}`"
    return ""


def _is_powerful(name: str) -> bool:
    upper = name.upper()
    return name in LOADERS or upper in _NOT_FROM_PROJECTS or upper.startswith(_NOT_FROM_PROJECTS_PREFIXES)
