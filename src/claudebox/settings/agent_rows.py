"""The text of ~/.claudebox/agents/NAME.toml → checked fields of an agent's row, or everything that is wrong with them.

Off the launch path: `files` caches what `read_row` returns, by the content of the file.
"""

from __future__ import annotations

import difflib
import re

from claudebox.agent import kinds
from claudebox.agent.record import AgentKind, LoginFile, Seed, Upstream
from claudebox.base.errors import ClaudeboxError
from claudebox.settings import document
from claudebox.settings.layers import list_words
from claudebox.settings.parsers import valid_name
from claudebox.settings.verbs import find_verb
from claudebox.tables.network import FRAMING
from claudebox.tables.paths import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from claudebox.base.records import Value
    from claudebox.settings.files import Source


# What only Claude Code has, or what follows from the name of the file.
_NOT_HERE = {
    AgentKind: frozenset(("extras", "name", "upstream")),
    LoginFile: frozenset(("flock", "locks", "write_lock")),
}  # fmt: skip
_NEEDED = {
    AgentKind: ("install",),
    Upstream: ("name", "official", "paths"),
    Seed: ("path", "content"),
    LoginFile: ("path", "access", "refresh", "url", "client", "again"),
}
_TEXT, _TEXTS, _TABLE = "a string of one line", "an array of strings of one line", "a table of strings of one line"
_WANTED = {
    "str": _TEXT, "bool": "true or false", "tuple[int, ...]": 'a version, such as "1.2.3"', "tuple[str, ...]": _TEXTS,
    "frozenset[str]": _TEXTS, "tuple[tuple[str, str], ...]": _TABLE, "tuple[tuple[str, str, str], ...]": _TABLE,
    "dict[str, str]": _TABLE, "dict[str, tuple[str, str]]": 'a table of `word = ["why not", "what instead"]`',
    "tuple[Seed, ...]": "an array of tables", "tuple[Upstream, ...]": "an array of tables",
    "LoginFile | None": "a table",
}  # fmt: skip
_RECORDS = {"tuple[Seed, ...]": Seed, "tuple[Upstream, ...]": Upstream, "LoginFile | None": LoginFile}
_PROTOCOLS = ("anthropic", "responses", "chat", "gemini")
_METHODS = ("GET", "POST")
_FIELD = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/@:-]*)?")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def _check_name(name: str, shown: str) -> None:
    """Refuse a name that would stand for something else as the first word."""
    if not name[:1].isalpha() or not set(name) <= _NAME or len(name) > 32:
        problem, hint = "cannot be the name of an agent", "small letters, digits and `-`, and a letter first"
    elif name in kinds.NAMES:
        problem, hint = "is a built-in agent", "another name, such as `my-{0}`; the program is found by it"
    elif find_verb(name) is not None:
        problem, hint = "is a verb of claudebox", "another name, such as `my-{0}`; the program is found by it"
    else:
        return
    raise ClaudeboxError(f"{shown}: `{name}` {problem}", hint=hint.format(name))


def read_row(source: Source) -> dict[str, Any]:
    """Return the checked fields of a file, as plain data."""
    _check_name(source.path.rpartition("/")[2].removesuffix(".toml"), source.shown)
    found, lines = document.parse_source(source)
    check = _Check(source.shown, lines)
    row = check.take_record(AgentKind, found, ())
    if not check.errors:
        check.check_whole(row)
    if check.errors:
        raise ClaudeboxError(check.errors[0], more=tuple(check.errors[1:]))
    return row


class _Check:
    """Checks the fields of a file against the records, and collects errors."""

    def __init__(self, shown: str, lines: document.Lines) -> None:
        self.errors: list[str] = []
        self._shown, self._lines = shown, lines

    def _wrong(self, path: tuple[str | int, ...], message: str) -> None:
        line = self._lines.of(*path)
        self.errors.append(f"{self._shown}:{line}: {message}" if line else f"{self._shown}: {message}")

    def take_record(self, record: type[Value], table: dict[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
        """Return the checked fields of a table."""
        shapes = {name: kind for name, kind in record.__annotations__.items() if name not in _NOT_HERE.get(record, ())}
        within = f"`{path[-1] if isinstance(path[-1], str) else path[0]}`" if path else "an agent"
        taken = {}
        for name, value in table.items():
            place = (*path, name)
            shape = shapes.get(name)
            if shape is None:
                near = difflib.get_close_matches(name, shapes, 1)
                hint = f"did you mean `{near[0]}`?" if near else "docs/guide.md has an example"
                self._wrong(place, f"{within} has no field `{name}`; {hint}")
                continue
            before = len(self.errors)
            found = self._take(name, shape, value, place)
            if len(self.errors) == before:
                for problem in _problems(name, found):
                    self._wrong(place, f"`{name}`: {problem}")
                taken[name] = found
        for name in _NEEDED[record]:
            if not table.get(name):
                self._wrong(path, f"{within} needs `{name}`")
        return taken

    def _take(self, name: str, shape: str, value: Any, place: tuple[str | int, ...]) -> Any:
        """Return a value as the record has it."""
        if shape in _RECORDS:
            return self._take_records(name, shape, value, place)
        wanted = _WANTED[shape]
        if name in ("state", "paths"):
            wanted = _TEXTS
        found = _convert(name, shape, value)
        if found is None:
            self._wrong(place, f"`{name}` is {document.describe_kind(value)}, and must be {wanted}")
        return found

    def _take_records(self, name: str, shape: str, value: Any, place: tuple[str | int, ...]) -> Any:
        record, several = _RECORDS[shape], shape.startswith("tuple")
        rows = value if isinstance(value, list) else [value]
        if isinstance(value, list) != several or not all(isinstance(row, dict) for row in rows):
            self._wrong(place, f"`{name}` is {document.describe_kind(value)}, and must be {_WANTED[shape]}")
            return None
        taken = [
            self.take_record(record, row, (*place, number) if several else place) for number, row in enumerate(rows)
        ]
        return tuple(taken) if several else taken[0]

    def check_whole(self, row: dict[str, Any]) -> None:
        """Check what several fields say together."""
        kept = [f"{path}/" for path, _ in row.get("state", ())]
        upstreams = row.get("upstreams", ())
        for seed in (*row.get("seeds", ()), *(seed for upstream in upstreams for seed in upstream.get("seeds", ()))):
            if not seed["path"].startswith(tuple(kept)):
                self._wrong(("seeds",), f"`path`: `{seed['path']}` is in no directory of `state`")
        names = [upstream["name"] for upstream in upstreams]
        for number, upstream in enumerate(upstreams):
            place = ("upstreams", number)
            if names.index(upstream["name"]) < number:
                self._wrong(place, f"the name `{upstream['name']}` appears twice")
            if not upstream.get("keys") and not upstream.get("login"):
                self._wrong(place, "`upstreams` needs `keys` or `login`")
            texts = [text for _, text in upstream.get("env", ())]
            if not any("{url}" in text for text in (*texts, *upstream.get("args", ()))):
                self._wrong(place, "`upstreams` needs `{url}` in `env` or `args`, or the agent does not find it")
            if not any("{placeholder}" in text for text in texts):
                self._wrong(place, "`upstreams` needs `{placeholder}` in `env`: other users can see arguments")
        if not row.get("transcripts", "home/").startswith("home/"):
            self._wrong(("transcripts",), "`transcripts` must be `home/` and a path in a directory of `state`")


def _convert(name: str, shape: str, value: Any) -> Any:
    """Return a value as the record has it, None if it is of another kind."""
    if name == "state":
        return tuple((path, f"home/{path}") for path in value) if _are_texts(value) else None
    if name == "paths":
        rows = [tuple(row.split(" ")) for row in value] if _are_texts(value) else []
        return tuple(rows) if all(len(row) == 2 for row in rows) and rows else None
    match shape:
        case "str":
            return value if _is_text(value, lines=name == "content") else None
        case "bool":
            return value if isinstance(value, bool) else None
        case "tuple[int, ...]":
            numbers = value.split(".") if _is_text(value) else []
            good = 0 < len(numbers) < 5 and all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers)
            return tuple(map(int, numbers)) if good else None
        case "tuple[str, ...]" | "frozenset[str]":
            return (tuple(value) if shape[0] == "t" else frozenset(value)) if _are_texts(value) else None
        case "dict[str, tuple[str, str]]":
            good = isinstance(value, dict) and all(_are_texts(row) and len(row) == 2 for row in value.values())
            return {word: tuple(row) for word, row in value.items()} if good else None
        case _:
            pass
    if not isinstance(value, dict) or not all(map(_is_text, value.values())):
        return None
    if shape.startswith("dict"):
        return dict(value)
    third = ("",) if name == "passed" else ("of your own agent",) if shape.count("str") == 3 else ()
    return tuple((key, text, *third) for key, text in value.items())


def _is_text(value: Any, *, lines: bool = False) -> bool:
    return isinstance(value, str) and bool(value) and (lines or value.isprintable()) and "\0" not in value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _problems(name: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with a value of the right kind."""
    find_problem = _CHECKS.get(name)
    if find_problem is None:
        return
    for row in (value,) if isinstance(value, str) else value:
        first, second = (row, "") if isinstance(row, str) else row[:2]
        text = f"{first} {second}" if name == "paths" else second if name == "headers" else first
        if problem := find_problem(text):
            yield f"`{text}` {problem}"


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return bool(path) and not {"", ".", "..", "~"} & set(parts)


def _check_variable(name: str) -> str:
    return "" if valid_name(name) else "is not the name of a variable"


def _check_home(path: str) -> str:
    if path.partition("/")[0] == STATE:
        return "is claudebox's own"
    return "" if _is_below(path) else "must be a path in the home, without `~` and `..`"


def _check_project(path: str) -> str:
    return "" if _is_below(path) else "must be a path in the project, without `..`"


def _check_file(path: str) -> str:
    return "" if _is_below(path.removeprefix("~/")) else "must be a path in the home, without `..`"


def _check_text(path: str) -> str:
    return "" if _is_below(path.removeprefix("/")) else "must be a path in the home, or absolute"


def _check_address(address: str) -> str:
    return "" if _ADDRESS.fullmatch(address) else "is not an address: `https://HOST[:PORT][/PATH]`"


def _check_usage(protocol: str) -> str:
    return "" if protocol in _PROTOCOLS else f"must be {list_words(_PROTOCOLS)}"


def _check_open(row: str) -> str:
    method, _, path = row.partition(" ")
    good = method in _METHODS and path.startswith("/") and path.count("*") < 2 and not set(path) & set("?# ")
    return "" if good else "must be `GET /PATH` or `POST /PATH`, with at most one `*`"


def _check_header(field: str) -> str:
    return "" if set(field) <= _FIELD and field not in FRAMING else "must be a header field in small letters"


def _check_fields(field: str) -> str:
    good = field != "*" and not _check_header(field.removesuffix("*"))
    return "" if good else "must be a header field in small letters; its end may be `*`"


def _check_transcripts(path: str) -> str:
    return "" if _is_below(path) else "must be a path without `..`"


_CHECKS: dict[str, Callable[[str], str]] = {
    "base_url": _check_variable, "directory": _check_home, "env": _check_variable, "fields": _check_fields,
    "files": _check_file, "header": _check_header, "headers": _check_header, "hidden": _check_home,
    "instructions": _check_text, "keys": _check_variable, "official": _check_address, "passed": _check_variable,
    "path": _check_file, "paths": _check_open, "protected": _check_project, "state": _check_home,
    "task_env": _check_variable, "transcripts": _check_transcripts, "url": _check_address,
    "usage": _check_usage,
}  # fmt: skip
