"""What comes along with settings of the host's client: variables, hooks, MCP servers, plugins. Names, never values."""

from __future__ import annotations

import json

from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy

_LIMIT = 1 << 20
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
    document = read_document(f"{home}/.claude/settings.json")
    return tuple(dict.fromkeys(_names(document)))


def read_document(path: str, limit: int = _LIMIT) -> dict[str, object]:
    """Return what a file of the client says; nothing if it is not one."""
    try:
        document = json.loads(read_small(path, limit=limit, follow=True) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _names(document: dict[str, object]) -> Iterator[tuple[str, str]]:
    for key, kind in _TABLES:
        table = document.get(key)
        for name in table if isinstance(table, dict) else ():
            yield kind, str(name)
    for key in _PROGRAMS:
        if key in document:
            yield "program of settings.json", key
