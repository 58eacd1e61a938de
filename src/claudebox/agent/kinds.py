"""The agents that claudebox knows, by the names of their programs; a launch loads the row of the one that it starts.

Besides the built-in ones there are those of the user, which `cli` reads from ~/.claudebox/agents at the start.
"""

from __future__ import annotations

from claudebox.agent.record import AgentKind, LoginFile, Seed, Upstream
from claudebox.tables import agents, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


USUAL, NAMES = "claude", agents.NAMES
_own: dict[str, AgentKind] = {}


def find_kind(name: str) -> AgentKind:
    """Return the row of an agent."""
    if name in _own:
        return _own[name]
    row: AgentKind = getattr(__import__(f"claudebox.agent.{name}", fromlist=(name,)), name.upper())
    return row


def find_kinds() -> tuple[AgentKind, ...]:
    """Return the rows of all agents."""
    return tuple(map(find_kind, list_names()))


def list_names() -> tuple[str, ...]:
    """Return the names of all agents."""
    return (*NAMES, *_own)


def list_put_aside() -> tuple[tuple[str, str], ...]:
    """Return the paths of a project that some agent obeys, besides those that have a stub, and why."""
    return (*paths.PUT_ASIDE, *(row for agent in _own.values() for row in agent.protected))


def list_hidden() -> tuple[tuple[str, str], ...]:
    """Return the paths that are never visible, in the home unless absolute, and why."""
    return (*paths.HIDDEN, *(row for agent in _own.values() for row in agent.hides))


def list_protected_names() -> tuple[str, ...]:
    """Return what `--allow` takes."""
    return tuple(dict.fromkeys((*paths.NAMES, *(name for name, _ in list_put_aside()))))


def add_own(rows: Iterable[AgentKind]) -> None:
    """Make the agents of the user known to this process."""
    _own.clear()
    _own.update((row.name, row) for row in rows)


def make_own(name: str, fields: Mapping[str, Any]) -> AgentKind:
    """Return a row from checked fields, which are plain data."""
    records = {
        "seeds": tuple(Seed(**row) for row in fields.get("seeds", ())),
        "upstreams": tuple(map(_make_upstream, fields.get("upstreams", ()))),
    }
    return AgentKind(**{"title": name, "directory": f".{name}", **fields, **records, "name": name})


def _make_upstream(fields: Mapping[str, Any]) -> Upstream:
    login = fields.get("login")
    seeds = tuple(Seed(**row) for row in fields.get("seeds", ()))
    return Upstream(**{**fields, "login": LoginFile(**login) if login else None, "seeds": seeds})
