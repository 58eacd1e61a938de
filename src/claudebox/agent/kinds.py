"""The agents that claudebox knows, by the names of their programs; a launch loads the row of the one that it starts."""

from __future__ import annotations

from claudebox.tables import agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.agent.record import AgentKind


USUAL, NAMES = "claude", agents.NAMES


def find_kind(name: str) -> AgentKind:
    """Return the row of an agent."""
    row: AgentKind = getattr(__import__(f"claudebox.agent.{name}", fromlist=(name,)), name.upper())
    return row


def find_kinds() -> tuple[AgentKind, ...]:
    """Return the rows of all agents."""
    return tuple(map(find_kind, NAMES))
