"""The JSON Schema of files of settings, for editors: another rendering of the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from claudebox.config.options import SETTINGS

if TYPE_CHECKING:
    from claudebox.config.model import Field, Setting

_TEXT = {"type": "string", "minLength": 1}


def text() -> str:
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
