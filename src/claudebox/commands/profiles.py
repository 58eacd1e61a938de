"""`claudebox profiles`, `trust` and `init`: commands about files of settings; the JSON Schema."""

from __future__ import annotations

import json
import os
import textwrap
from typing import Any

from claudebox.base import console, syscalls
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, read_small, replace_file
from claudebox.base.state import open_state
from claudebox.host import machine
from claudebox.settings import document, layers, trust
from claudebox.settings import files as settings_files
from claudebox.settings.layers import Settings
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.records import Field, Setting


# The commented ~/.claudebox/config.toml that `init` writes.


_TABLES = ("table", "record", "rows", "groups")


def write_config(home: str, chosen: dict[str, str] | None = None) -> str:
    """Write the file, unless it exists, and return its path."""
    path = f"{home}/.claudebox/config.toml"
    if os.path.lexists(path):
        raise ClaudeboxError(f"`{path}` already exists", hint="`claudebox help settings` explains what it may say")
    os.close(open_state(f"{home}/.claudebox", "profiles"))
    with Closing(os.open(f"{home}/.claudebox", OPEN_DIRECTORY)) as directory:
        replace_file(directory, "config.toml", text(chosen).encode())
    return path


def text(chosen: dict[str, str] | None = None) -> str:
    """Return the file: every setting with its meaning, as a comment unless it was chosen."""
    rows = [row for row in SETTINGS if row.in_files in ("user", "project")]
    return "\n".join((
        "# Defaults of claudebox for all projects. A profile, a project file that you approved, variables and flags",
        "# override them. Remove the `#` in front of a setting to change it.",
        "# `claudebox --explain` shows all settings in force and their origin.",
        *(line for row in rows if row.shape not in _TABLES for line in _block(row, (chosen or {}).get(row.key))),
        *(line for row in rows if row.shape in _TABLES for line in _block(row)),
        "",
    ))  # fmt: skip


def _block(row: Setting, chosen: str | None = None) -> Iterator[str]:
    yield ""
    yield from textwrap.wrap(row.described, 100, initial_indent="# ", subsequent_indent="# ")
    for field in row.fields:
        text = f"{field.name}: {field.help}."
        yield from textwrap.wrap(text, 100, initial_indent="#   ", subsequent_indent="#     ")
    if chosen is None:
        yield from (f"#{line}" for line in document.example(row))
    else:
        yield f"{row.file_key} = {chosen}"


# The JSON Schema of files of settings, for editors.


_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT}


def schema_text() -> str:
    """Return the schema, without a line end."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of claudebox",
        "description": "~/.claudebox/config.toml, ~/.claudebox/profiles/*.toml and .json, .claudebox.toml of a project",
        "type": "object",
        "additionalProperties": False,
        "properties": {row.file_key: _property(row) for row in SETTINGS if row.in_files != "none"},
    }
    return json.dumps(schema, indent=2)


def _property(row: Setting) -> dict[str, Any]:
    where = {"user": " Not in a project file.", "profile": " Only in a profile."}.get(row.in_files, "")
    shapes: dict[str, dict[str, Any]] = {
        "switch": {"type": "boolean", "default": False},
        "choice": {"enum": list(row.choices), "default": row.default},
        "text": {"anyOf": [_TEXT, {"type": "number"}]},
        "list": {"anyOf": [_TEXT, {"type": "number"}, {"type": "array", "items": {"type": ["string", "number"]}}]},
        "words": {**_TEXTS, "minItems": 1},
        "table": {"type": "object", "additionalProperties": {"type": "string"}},
        "record": _object(row.fields),
        "rows": {"type": "array", "items": _object(row.fields)},
        "groups": {"type": "object", "additionalProperties": _object(row.fields)},
    }
    return {**shapes[row.shape], "description": row.described.replace("`", "") + where}


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    properties = {}
    for field in fields:
        value = (
            {"anyOf": [_TEXT, {**_TEXTS, "minItems": 1}]}
            if field.many
            else {"enum": list(field.choices)}
            if field.choices
            else _TEXT
        )
        properties[field.name] = {**value, "description": field.help.replace("`", "") + "."}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [field.name for field in fields if field.default is None],
        "properties": properties,
    }


def run(flags: Settings, environ: dict[str, str]) -> int:
    home = machine.current_home(environ)
    match flags.verb, flags.words:
        case "init", ():
            console.write(
                [f"wrote {console.clean(write_config(home))}; every setting is in it, as a comment"], descriptor=1
            )
        case "profiles", ():
            listed = list(_list(settings_files.SettingsReader(home)))
            _print(listed, _list_lines(listed), as_json=flags.on("json"))
        case "profiles", (profile,):
            shown = _describe(settings_files.SettingsReader(home), profile)
            _print(shown, _describe_lines(shown), as_json=flags.on("json"))
        case "trust", ():
            approved = list(_approvals(home))
            _print(approved, _approval_lines(approved), as_json=flags.on("json"))
        case "trust", ("approve",):
            return _approve(home, environ)
        case "trust", ("revoke", path):
            return _revoke(home, path)
        case _:
            problem = "needs PATH" if flags.words == ("revoke",) else f"does not take `{flags.words[-1]}`"
            hint = "`claudebox trust`, `claudebox trust approve` or `claudebox trust revoke PATH`"
            raise ClaudeboxError(f"`claudebox trust {flags.words[0]}` {problem}", hint=hint)
    return 0


def _print(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    console.write([json.dumps(document, indent=2)] if as_json else lines, descriptor=1)


def _list(reader: settings_files.SettingsReader) -> Iterator[dict[str, Any]]:
    for name, path in sorted(reader.names().items()):
        description = error = ""
        try:
            given = reader.profile(name, "claudebox profiles")[-1].given
            description = given["description"][0].value if "description" in given else ""
        except ClaudeboxError as problem:
            error = problem.message
        own = not path.startswith(settings_files.BUILT_IN)
        yield {"name": name, "description": description, "file": reader.shown(path) if own else "", "error": error}


def _list_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        broken = console.paint(f"cannot be used: {console.clean(row['error'])}", "yellow", descriptor=1)
        where = f"  ({console.clean(row['file'])})" if row["file"] else ""
        text = broken if row["error"] else console.clean(row["description"])
        yield f"{console.clean(row['name']):<{width}}  {text}{where}"


def _describe(reader: settings_files.SettingsReader, name: str) -> dict[str, Any]:
    """Return a profile: its file, its settings and those of the profiles that it extends, and what they change."""
    chain = reader.profile(name, "claudebox profiles")
    none = Settings({})
    before, after = layers.merge(none, {}), layers.merge(none, {}, chain)
    described = ("extends", "name", "description")
    path = reader.find(name, "claudebox profiles")
    return {
        "name": name,
        "file": reader.shown(path),
        "text": (read_small(path, limit=settings_files.LIMIT, follow=True) or b"").decode(),
        "settings": [
            {"key": row.file_key, "value": " ".join(filter(None, given.fields.values())) or given.value,
             "origin": given.origin}
            for row in SETTINGS if row.key in after.given and row.key not in described
            for given in after.all(row.key) if given.origin != "default"
        ],
        "differences": [change.text for change in trust.changes(before, after) if change.key not in described],
    }  # fmt: skip


def _describe_lines(profile: dict[str, Any]) -> Iterator[str]:
    yield console.paint(console.clean(profile["file"]), "bold", descriptor=1)
    yield from (f"  {console.clean(line)}".rstrip() for line in profile["text"].splitlines())
    yield ""
    yield console.paint("differs from the defaults in", "bold", descriptor=1)
    yield from (f"  {console.shorten(text, 150)}" for text in profile["differences"] or ("nothing",))


def _approvals(home: str) -> Iterator[dict[str, Any]]:
    for path, digest, effect in trust.approvals(f"{home}/.claudebox"):
        yield {"path": path, "sha256": digest, "state": _state(path, digest), "effect": list(effect)}


def _approval_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "no project file has been approved"
    states = {"in force": "", "gone": "  (gone)", "changed": "  (changed since: not in force)"}
    for row in rows:
        what = f"sha256 {console.clean(row['sha256'][:16])}" if row["sha256"] else "your answer"
        yield f"{console.clean(row['path'])}  {what}{states[row['state']]}"
        for text in row["effect"]:
            yield f"    {console.shorten(text, 150)}"


def _state(path: str, digest: str) -> str:
    if not digest:  # an answer about a project
        return "in force" if os.path.isdir(path) else "gone"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            content = file.read(settings_files.LIMIT + 1)
    except OSError:
        return "gone"
    return "in force" if syscalls.sha256(content) == digest else "changed"


def _approve(home: str, environ: dict[str, str]) -> int:
    reader, none = settings_files.SettingsReader(home), Settings({})
    request = settings_files.read_request(reader, os.getcwd())
    if request is None:
        raise ClaudeboxError(f"there is no {settings_files.PROJECT_FILE} in this directory")
    try:
        own = settings_files.layers(none, environ, reader)
    except ClaudeboxError as error:  # what is wider than the defaults is wider than these
        console.warn(f"{error.message}; going on without your settings")
        own = ()
    before, after = layers.merge(none, environ, own), layers.merge(none, environ, (*own, request.layer))
    wide = trust.find_widening(before, after)
    console.write(trust.explain(request, before, after))
    if not wide or trust.is_approved(request, wide):
        console.write(["already approved" if wide else "nothing in it needs your approval"])
        return 0
    if not console.confirm("Approve exactly this, for this project? [y/N] ", default=False):
        return DECLINED
    trust.approve(request, wide)
    return 0


def _revoke(home: str, path: str) -> int:
    """Revoke the approval of a project, or of its file."""
    real = os.path.realpath(path)
    candidates = dict.fromkeys((real, os.path.join(real, settings_files.PROJECT_FILE), path))
    revoked = [candidate for candidate in candidates if trust.revoke(f"{home}/.claudebox", candidate)]
    console.write([f"{console.clean(candidate)} is no longer approved" for candidate in revoked], descriptor=1)
    if revoked:
        return 0
    raise ClaudeboxError(f"`{path}` was not approved", hint="`claudebox trust` lists what was")
