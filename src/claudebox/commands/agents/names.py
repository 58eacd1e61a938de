"""Names of agents: what a user may call one, and what one is called that got no name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claudebox import console, syscalls
from claudebox.errors import ClaudeboxError
from claudebox.launch.git_names import objection

if TYPE_CHECKING:
    from claudebox.commands.agents.records import Agent, Records

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST = 64


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a branch and of a session at once."""
    reason = objection(f"refs/heads/{name}") if name else "it is empty"
    if len(os.fsencode(name)) > _LONGEST:
        reason = f"it is longer than {_LONGEST} bytes"
    if name.upper() == "HEAD" or name.startswith(("claudebox/", "refs/")):
        reason = "git or claudebox use it for something else"
    if reason:
        raise ClaudeboxError(
            f"`{console.clean(name)}` cannot be the name of an agent: {reason}", hint="choose another name"
        )


def directory_name(name: str) -> str:
    """Return what the directory of an agent is called: plain, since tools stumble over anything else."""
    plain = slug(name)
    return plain if plain == name else f"{plain}-{syscalls.sha256(os.fsencode(name))[:6]}"


def slug(text: str) -> str:
    """Return a text as a name: what cannot be in one becomes a dash."""
    return "".join(char if char in _PLAIN else "-" for char in text).strip("-._") or "agent"


def give_name(records: Records, wanted: str, project: str, *, chosen: bool = False) -> tuple[str, list[Agent]]:
    """Return a name that no living session of this project has, and the ended ones that make room for it.

    One whose report nobody has seen keeps its name, unless the user has `chosen` the same: that of a copy, whose work
    `--finish` shows.
    """
    base = wanted if chosen else slug(wanted)[: _LONGEST - 4]
    others = [agent for agent in records.all() if agent.project == project]
    unseen = [] if chosen else [agent for agent in others if not records.is_seen(agent)]
    taken = {agent.name for agent in others if agent.alive or agent.starting or agent in unseen}
    name = next(name for number in range(1, 1000) if (name := base if number == 1 else f"{base}-{number}") not in taken)
    return name, [agent for agent in others if agent.name == name]
