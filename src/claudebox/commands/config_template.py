"""The commented ~/.claudebox/config.toml that `--init` writes: another rendering of the table."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from claudebox.config.options import SETTINGS
from claudebox.errors import ClaudeboxError
from claudebox.files import OPEN_DIRECTORY, Closing, replace_file
from claudebox.state import open_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Setting

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
