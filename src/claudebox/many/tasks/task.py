"""Task files, and the exit statuses for engines."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small

# The contract with engines. 125 to 127 are claudebox's own, and never worth another try.
DONE, FAILED, OVER_BUDGET, OVER_TIME, RETRY = 0, 1, 122, 124, 75

_MAX_SIZE = 4 << 20  # bytes
_MAX_TRIES = 10
_MAX_SECONDS = 7 * 24 * 3600
_DURATION = re.compile(r"([0-9]{1,7})([smh]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A task of claudebox",
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "repo", "prompt"],
    "properties": {
        "id": {
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
            "description": "name of the task, in the result and in messages",
        },
        "repo": {
            "type": "string",
            "minLength": 1,
            "description": "repository to clone; relative paths are relative to the task file",
        },
        "ref": {
            "type": "string",
            "minLength": 1,
            "description": "branch, tag or commit; default: the default branch",
        },
        "prompt": {"type": "string", "minLength": 1, "description": "prompt for the agent"},
        "agent": {"type": "string", "minLength": 1, "description": "agent; default: that of the profile, or `claude`"},
        "profile": {"type": "string", "minLength": 1, "description": "profile of claudebox; default: `batch`"},
        "timeout": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": _MAX_SECONDS},
                {"type": "string", "pattern": "^[0-9]{1,7}[smh]?$"},
            ],
            "description": "time limit for the agent: seconds, or `30m`; default: an hour",
        },
        "budget_usd": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "limit in US dollars for all tries together",
        },
        "tries": {
            "type": "integer",
            "minimum": 1,
            "maximum": _MAX_TRIES,
            "description": "how often to try if another try is worth it; default: 1",
        },
    },
}


@dataclass(frozen=True)
class Task:
    """The content of a task file."""

    id: str
    repo: str
    prompt: str
    ref: str = ""
    agent: str = ""
    profile: str = "batch"
    timeout: int = 3600
    budget_usd: float = 0.0  # 0: no limit
    tries: int = 1


def read_task(path: str) -> Task:
    """Read and check a task file."""
    try:
        content = read_small(path, limit=_MAX_SIZE, follow=True)
    except OSError as error:
        raise ClaudeboxError(f"the task `{path}` cannot be read: {error.strerror}") from None
    if content is None:
        hint = f"it must be a file that exists, of at most {_MAX_SIZE >> 20} MiB"
        raise ClaudeboxError(f"the task `{path}` cannot be read", hint=hint)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ClaudeboxError(f"the task `{path}` is not JSON: {error}") from None
    return _checked(path, document)


def _checked(path: str, document: object) -> Task:
    if not isinstance(document, dict):
        raise _wrong(path, "it must be an object")
    known = SCHEMA["properties"]
    for key in document:
        if key not in known:
            raise _wrong(path, f"unknown key `{key[:60]}`")
    for key in SCHEMA["required"]:
        if key not in document:
            raise _wrong(path, f"`{key}` is missing")
    _check_texts(path, document)
    tries = document.get("tries", 1)
    if type(tries) is not int or not 1 <= tries <= _MAX_TRIES:
        raise _wrong(path, f"`tries` must be a number from 1 to {_MAX_TRIES}")
    budget = document.get("budget_usd", 0)
    if type(budget) not in (int, float) or not math.isfinite(budget) or (budget <= 0 and "budget_usd" in document):
        raise _wrong(path, "`budget_usd` must be a number above 0")
    given = {**document, "timeout": _seconds(document.get("timeout", 3600)), "budget_usd": float(budget)}
    if not 1 <= given["timeout"] <= _MAX_SECONDS:
        raise _wrong(path, "`timeout` must be seconds, or a text such as `30m` or `2h`, and at most a week")
    if _is_path(document["repo"]):
        base = os.path.dirname(os.path.abspath(path))
        given["repo"] = os.path.normpath(os.path.join(base, os.path.expanduser(document["repo"])))
    return Task(**given)


def _check_texts(path: str, document: dict[str, Any]) -> None:
    for key in ("id", "repo", "ref", "prompt", "profile"):
        value = document.get(key, "?")
        if not isinstance(value, str) or not value or "\0" in value:
            raise _wrong(path, f"`{key}` must be a text")
        if key != "prompt" and value.startswith("-"):
            raise _wrong(path, f"`{key}` must not begin with `-`")
    if not re.fullmatch(SCHEMA["properties"]["id"]["pattern"][1:-1], document["id"]):
        what = "`id` must be letters, digits, `.`, `_` and `-`, at most 100, and begin with a letter or digit"
        raise _wrong(path, what)


def _wrong(path: str, what: str) -> ClaudeboxError:
    return ClaudeboxError(f"the task `{path}`: {what}", hint="`claudebox help schema task` prints the schema")


def _seconds(value: object) -> int:
    if type(value) is int:
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _is_path(repo: str) -> bool:
    """Return whether git takes this for a path: no scheme, and no colon before the first slash."""
    return "://" not in repo and ":" not in repo.partition("/")[0]
