"""Names of agents: what a user may call one, and what one is called that got no name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox.errors import ClaudeboxError

if TYPE_CHECKING:
    from claudebox.commands.agents.records import Agent, Records

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LATER = _FIRST | frozenset("._-")
_LONGEST = 64


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a branch, a directory and a session at once."""
    if (
        name[:1] not in _FIRST
        or not _LATER.issuperset(name)
        or len(name) > _LONGEST
        or ".." in name
        or name.endswith((".", ".lock"))
        or name.upper() in ("HEAD", "FETCH_HEAD", "ORIG_HEAD")
        or (len(name) in (40, 64) and frozenset("0123456789abcdef").issuperset(name))
    ):
        raise ClaudeboxError(
            f"`{name}` cannot be the name of an agent",
            hint=f"letters, digits, `.`, `_` and `-`, a letter or digit first, at most {_LONGEST}",
        )


def slug(text: str) -> str:
    """Return a text as a name: what cannot be in one becomes a dash."""
    return "".join(char if char in _LATER else "-" for char in text).strip("-._") or "agent"


def give_name(records: Records, wanted: str, project: str, *, chosen: bool = False) -> tuple[str, list[Agent]]:
    """Return a name that no living session of this project has, and the ended ones that make room for it.

    One whose report nobody has seen keeps its name, unless the user has `chosen` the same: that of a copy, whose work
    `--finish` shows.
    """
    base = slug(wanted)[: _LONGEST - 4]
    others = [agent for agent in records.all() if agent.project == project]
    unseen = [] if chosen else [agent for agent in others if not records.is_seen(agent)]
    taken = {agent.name for agent in others if agent.alive or agent.starting or agent in unseen}
    name = next(name for number in range(1, 1000) if (name := base if number == 1 else f"{base}-{number}") not in taken)
    return name, [agent for agent in others if agent.name == name]
