"""`--profiles`, `--trust`, `--init`, `--schema`: what a user does with files of settings besides writing them."""

from __future__ import annotations

import json
import os
import textwrap
import time
from typing import Any

from claudebox.base import console, syscalls
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, replace_file
from claudebox.base.state import open_state
from claudebox.host import machine
from claudebox.settings import files as settings_files
from claudebox.settings import layers, trust
from claudebox.settings.layers import Settings
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.files import Source
    from claudebox.settings.layers import Layer
    from claudebox.settings.records import Field, Setting


# The commented ~/.claudebox/config.toml that `--init` writes: another rendering of the table.


_EXAMPLES = {
    "nixpkgs": "github:NixOS/nixpkgs/nixos-unstable", "time_limit": "8h", "scratch_size": "2G", "memory": "8G",
    "cpus": "2", "budget": "5", "tokens": "2M",
}  # fmt: skip
_TABLES = ("table", "record", "rows", "groups")


def write_config(home: str, chosen: dict[str, str] | None = None) -> str:
    """Write the file and return its path; one that is there already stays as it is."""
    path = f"{home}/.claudebox/config.toml"
    if os.path.lexists(path):
        raise ClaudeboxError(f"`{path}` is there already, and stays as it is")
    os.close(open_state(f"{home}/.claudebox", "profiles"))
    with Closing(os.open(f"{home}/.claudebox", OPEN_DIRECTORY)) as directory:
        replace_file(directory, "config.toml", text(chosen).encode())
    return path


def text(chosen: dict[str, str] | None = None) -> str:
    """Return the file: every setting with its meaning, none in force but those that were chosen, as TOML."""
    rows = [row for row in SETTINGS if row.in_files in ("user", "project")]
    return "\n".join((
        "# Defaults of claudebox for all projects. A profile, a project file that you approved, variables and flags",
        "# come after them. Take the `#` away in front of a setting to give it another value.",
        "# `claudebox --explain` shows what is in force, and where it came from.",
        *(line for row in rows if row.shape not in _TABLES for line in _block(row, (chosen or {}).get(row.key))),
        *(line for row in rows if row.shape in _TABLES for line in _block(row)),
        "",
    ))  # fmt: skip


def _block(row: Setting, chosen: str | None = None) -> Iterator[str]:
    yield ""
    meaning = row.help.removesuffix("; repeatable")
    yield from textwrap.wrap(f"{meaning[0].upper()}{meaning[1:]}.", 100, initial_indent="# ", subsequent_indent="# ")
    for field in row.fields:
        text = f"{field.name}: {field.help}."
        yield from textwrap.wrap(text, 100, initial_indent="#   ", subsequent_indent="#     ")
    if chosen is None:
        yield from (f"#{line}" for line in _example(row))
    else:
        yield f"{row.file_key} = {chosen}"


def _example(row: Setting) -> Iterator[str]:
    match row.shape:
        case "switch":
            yield f"{row.file_key} = false"
        case "choice":
            yield f'{row.file_key} = "{row.default}"'
        case "text":
            example = _EXAMPLES.get(row.key) or row.default or "default"
            yield f'{row.file_key} = "{example}"'
        case "list":
            yield f"{row.file_key} = []"
        case "words":
            yield f'{row.file_key} = ["program", "word"]'
        case "table":
            yield f"[{row.file_key}]"
            yield 'NAME = "value"'
        case "groups":
            yield f"[{row.file_key}.work]"
            yield from (f'{field.name} = ["{field.example}"]' for field in row.fields)
        case _:
            yield f"[[{row.file_key}]]" if row.shape == "rows" else f"[{row.file_key}]"
            for field in row.fields:
                value = field.example or field.default
                if value:
                    words = ", ".join(f'"{word}"' for word in value.split("\n"))
                    yield f"{field.name} = [{words}]" if field.many else f"{field.name} = {words}"


# The JSON Schema of files of settings, for editors: another rendering of the table.


_TEXT = {"type": "string", "minLength": 1}


def schema_text() -> str:
    """Return the schema, without a line end."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of claudebox",
        "description": "~/.claudebox/config.toml, ~/.claudebox/profiles/*.toml and .json, .claudebox.toml of a project",
        "type": "object",
        "additionalProperties": False,
        "properties": {row.file_key: _property(row) for row in SETTINGS if row.in_files != "none"},
    }
    return json.dumps(document, indent=2)


def _property(row: Setting) -> dict[str, Any]:
    where = {"user": " Not in a project file.", "profile": " Only in a profile."}.get(row.in_files, "")
    described = {"description": row.help.replace("`", "").replace("; repeatable", "") + "." + where}
    match row.shape:
        case "switch":
            return {"type": "boolean", "default": False, **described}
        case "choice":
            return {"enum": list(row.choices), "default": row.default, **described}
        case "text":
            return {**_TEXT, **described}
        case "list":
            return {"type": "array", "items": _TEXT, **described}
        case "words":
            return {"type": "array", "items": _TEXT, "minItems": 1, **described}
        case "table":
            return {"type": "object", "additionalProperties": {"type": "string"}, **described}
        case "record":
            return {**_record(row.fields), **described}
        case "groups":
            (field,) = row.fields
            group = {
                "type": "object",
                "additionalProperties": False,
                "required": [field.name],
                "properties": {
                    field.name: {
                        "type": "array",
                        "items": _TEXT,
                        "minItems": 1,
                        "description": field.help.replace("`", "") + ".",
                    }
                },
            }
            return {"type": "object", "additionalProperties": group, **described}
        case "rows":
            return {"type": "array", "items": _record(row.fields), **described}


def _record(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [field.name for field in fields if field.default is None],
        "properties": {
            field.name: {**_value(field), "description": field.help.replace("`", "") + "."} for field in fields
        },
    }


def _value(field: Field) -> dict[str, Any]:
    if field.many:
        return {"type": "array", "items": _TEXT, "minItems": 1}
    return {"enum": list(field.choices)} if field.choices else _TEXT


_USAGE = {
    "profiles": "`--profiles` or `--profiles NAME`",
    "trust": "`--trust`, `--trust approve` or `--trust revoke PATH`",
}


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Do what one of the flags says."""
    name = next(key for key in ("profiles", "trust", "init", "schema") if flags.on(key))
    home = machine.current_home(environ)
    match name, flags.words:
        case "schema", ():
            console.write([schema_text()], descriptor=1)
        case "schema", ("task",):
            import json

            from claudebox.many.tasks.task import SCHEMA

            console.write([json.dumps(SCHEMA, indent=2)], descriptor=1)
        case "init", ():
            return _init(home)
        case "profiles", ():
            console.write(_list(settings_files.SettingsReader(home)), descriptor=1)
        case "profiles", (profile,):
            console.write(_show(settings_files.SettingsReader(home), profile), descriptor=1)
        case "trust", ():
            console.write(_approvals(home), descriptor=1)
        case "trust", ("approve",):
            return _approve(home, environ)
        case "trust", ("revoke", path):
            return _revoke(home, path)
        case _:
            unknown = " ".join(flags.words)
            usage = _USAGE.get(name, f"`--{name}`")
            raise ClaudeboxError(f"`--{name}` does not know `{unknown}`", hint=usage)
    return 0


def _init(home: str) -> int:
    path = write_config(home)
    console.write([f"wrote {console.clean(path)}; every setting is in it, as a comment"], descriptor=1)
    return 0


def _list(reader: settings_files.SettingsReader) -> Iterator[str]:
    names = reader.names()
    width = max(len(name) for name in names)
    for name, path in sorted(names.items()):
        try:
            given = reader.profile(name, "--profiles")[-1].given
        except ClaudeboxError as error:
            text = console.paint(f"cannot be used: {error.message}", "yellow", descriptor=1)
        else:
            text = console.clean(given["description"][0].value) if "description" in given else ""
        where = "" if path.startswith(settings_files.BUILT_IN) else f"  ({console.clean(reader.shown(path))})"
        yield f"{console.clean(name):<{width}}  {text}{where}"


def _show(reader: settings_files.SettingsReader, name: str) -> Iterator[str]:
    chain = reader.profile(name, "--profiles")
    yield console.paint(console.clean(name), "bold", descriptor=1)
    for layer in chain:
        for given in layer.given.get("description", ()):
            yield from textwrap.wrap(console.clean(given.value), 100, initial_indent="  ", subsequent_indent="  ")
    none = Settings({})
    before, after = layers.merge(none, {}), layers.merge(none, {}, chain)
    yield ""
    reasons = {layer.origin: _reasons(reader, layer) for layer in chain}
    described = ("extends", "name", "description")
    for row in (row for row in SETTINGS if row.key in after.given and row.key not in described):
        for given in after.all(row.key):
            if given.origin == "default":
                continue
            path, _, line = given.origin.rpartition(":")
            text = " ".join(word for word in given.fields.values() if word) or given.value
            yield f"  {row.file_key} = {console.shorten(text, 100)}  ({console.clean(given.origin)})"
            reason = reasons.get(path, {}).get(int(line) if line.isdigit() else 0, "")
            yield from textwrap.wrap(console.clean(reason), 100, initial_indent="      ", subsequent_indent="      ")
    yield ""
    yield "  differs from the defaults in:"
    differences = [change for change in trust.changes(before, after) if change.key not in described]
    for change in differences:
        yield f"    {console.shorten(change.text, 150)}"
    if not differences:
        yield "    nothing"


def _reasons(reader: settings_files.SettingsReader, layer: Layer) -> dict[int, str]:
    """Return the comments above each line of a profile."""
    names = {reader.shown(path): path for path in (*reader.names().values(), *_built_in())}
    path = names.get(layer.origin)
    if path is None or not path.endswith(".toml"):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    reasons = {}
    above: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            above.append(line.lstrip("# "))
            continue
        if line.strip() and above:
            reasons[number] = " ".join(above)
        above = []
    return reasons


def _built_in() -> list[str]:
    return [f"{settings_files.BUILT_IN}/{name}" for name in os.listdir(settings_files.BUILT_IN)]


def _approvals(home: str) -> Iterator[str]:
    rows = list(trust.approvals(f"{home}/.claudebox"))
    if not rows:
        yield "no project file has been approved"
    for path, digest, effect in rows:
        yield f"{console.clean(path)}  sha256 {console.clean(digest[:16])}{_state(path, digest)}"
        for text in effect:
            yield f"    {console.shorten(text, 150)}"


def _state(path: str, digest: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            content = file.read(settings_files.LIMIT + 1)
    except OSError:
        return "  (gone)"
    return "" if syscalls.sha256(content) == digest else "  (changed since: not in force)"


def _approve(home: str, environ: dict[str, str]) -> int:
    reader = settings_files.SettingsReader(home)
    none = Settings({})
    source = reader.project(os.getcwd())
    if source is None:
        raise ClaudeboxError(f"there is no {settings_files.PROJECT_FILE} in this directory")
    own = settings_files.layers(none, environ, reader)
    layer = reader.layer(source)
    before, after = layers.merge(none, environ, own), layers.merge(none, environ, (*own, layer))
    request = _request(home, source, layer)
    wide = tuple(change.text for change in trust.changes(before, after) if change.widens)
    console.write(trust.explain(request, before, after))
    if not wide:
        console.write(["nothing in it needs your approval: it only tightens, or changes nothing"])
        return 0
    if trust.is_approved(request, wide):
        console.write(["this is approved already"])
        return 0
    if not console.confirm("Approve exactly this, for this project? [y/N] ", default=False):
        return DECLINED
    trust.approve(request, wide)
    return 0


def _request(home: str, source: Source, layer: Layer) -> trust.TrustRequest:
    return trust.TrustRequest(f"{home}/.claudebox", os.path.realpath(source.path), source.digest, layer)


def _revoke(home: str, path: str) -> int:
    """Take the approval of a project, or of its file, back."""
    real = os.path.realpath(path)
    for candidate in (real, os.path.join(real, settings_files.PROJECT_FILE), path):
        if trust.revoke(f"{home}/.claudebox", candidate):
            when = time.strftime("%H:%M")
            console.write([f"{console.clean(candidate)} is no longer approved, since {when}"], descriptor=1)
            return 0
    raise ClaudeboxError(f"`{path}` was not approved", hint="`claudebox --trust` lists what was")
