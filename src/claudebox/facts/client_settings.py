"""What comes along with settings of the host's client: variables, hooks, MCP servers, plugins. Names, no values."""

from __future__ import annotations

import json

from claudebox.files import parse_object, read_small
from claudebox.tables.secret_patterns import looks_secret, value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy

_LIMIT, _STATE_LIMIT = 1 << 20, 64 << 20
_TABLES = (
    ("env", "variable of settings.json"),
    ("hooks", "hook"),
    ("mcpServers", "MCP server"),
    ("enabledPlugins", "plugin"),
)
# Programs that the client runs because its settings say so.
_PROGRAMS = ("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "otelHeadersHelper", "statusLine")


def find_inherited(policy: Policy, home: str) -> tuple[tuple[str, str], ...]:
    """Return what a user should know who brings the host's settings in: kind and name of each."""
    parts = {request.name for request in policy.inherit}
    if not policy.shared_home and "settings.json" not in parts:
        return ()
    document = _read_document(f"{home}/.claude/settings.json")
    return tuple(dict.fromkeys(_names(document)))


def find_servers(home: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Return the MCP servers of the user's own configuration as a file for the client, and what to say of each.

    Values of variables and headers that look like secrets stay out and are named; a server that has one among its
    arguments or in its address stays out itself.
    """
    table = _read_document(f"{home}/.claude.json", _STATE_LIMIT).get("mcpServers")
    servers, told = {}, []
    for name, row in table.items() if isinstance(table, dict) else ():
        if not isinstance(row, dict):
            continue
        words = [str(row.get(key, "")) for key in ("command", "url")]
        arguments = row.get("args")
        words += [str(word) for word in arguments] if isinstance(arguments, list) else []
        if any(value_looks_secret(word.rpartition("=")[2]) for word in words):
            told.append(("MCP server", f"{name} is left out: a secret is among its words"))
            continue
        kept, withheld = _without_secrets(row)
        servers[name] = kept
        without = f", without {', '.join(withheld)}" if withheld else ""
        told.append(("MCP server", f"{name} (`{' '.join(word for word in words if word)}`{without})"))
    return json.dumps({"mcpServers": servers}).encode() if servers else b"", tuple(told)


def _without_secrets(row: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    kept, withheld = dict(row), []
    for key in ("env", "headers"):
        table = row.get(key)
        if isinstance(table, dict):
            secret = [name for name, value in table.items() if looks_secret(str(name), str(value))]
            kept[key] = {name: value for name, value in table.items() if name not in secret}
            withheld += secret
    return kept, withheld


def _read_document(path: str, limit: int = _LIMIT) -> dict[str, object]:
    """Return what a file of the client says; nothing if it is not one."""
    return parse_object(read_small(path, limit=limit, follow=True))


def _names(document: dict[str, object]) -> Iterator[tuple[str, str]]:
    for key, kind in _TABLES:
        table = document.get(key)
        for name in table if isinstance(table, dict) else ():
            yield kind, str(name)
    for key in _PROGRAMS:
        if key in document:
            yield "program of settings.json", key
