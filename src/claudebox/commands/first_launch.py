"""The first launch asks for the network, once, and writes the answer to ~/.claudebox/config.toml."""

from __future__ import annotations

import os

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.commands import profiles
from claudebox.host import programs
from claudebox.host.machine import current_directory
from claudebox.network import uplink
from claudebox.network.tiers import TIERS

_OFFERED = sorted((tier for tier in TIERS.values() if tier.question), key=lambda tier: tier.shared)
_DOMAINS = '["anthropic"]'  # needed to log in inside


def ask_network(home: str, environ: dict[str, str]) -> bool:
    """Ask which network sessions have, and write it down; return False without a terminal."""
    candidates = uplink.find_uplinks(programs.search_path(environ, current_directory()))
    works = any(not candidate.problem for candidate in candidates)
    remedy = next((candidate.remedy for candidate in candidates if candidate.remedy), "")
    default = "inet" if works else "full"
    question = f"Network? [{_number(default)}] "
    explained = "\n".join((*_lines(home, default, remedy), question))
    while True:
        try:
            answer = console.ask(explained).decode("ascii", "replace")
        except ClaudeboxError:
            return False
        if not answer:
            raise KeyboardInterrupt
        tier = _read(answer.strip().lower() or default)
        if tier:
            break
        explained = question
    chosen = {"network": f'"{tier}"'}
    if TIERS[tier].listed:
        chosen["allow_domain"] = _DOMAINS
    path = profiles.write_config(home, chosen)
    os.close(base_state.open_state(f"{home}/.claudebox", "drop"))  # for `claudebox show` during this session
    console.note(f'wrote network = "{tier}" to {path}')
    return True


def _lines(home: str, default: str, remedy: str) -> list[str]:
    lines = [f"What may programs inside reach? Your answer is written to {console.clean(home)}/.claudebox/config.toml."]
    for number, tier in enumerate(_OFFERED, 1):
        note = f" ({f'not on this machine yet: {remedy}' if TIERS[default].shared else 'recommended'})"
        lines.append(f"  {number}  {tier.name:<6} {tier.question}{note if tier.uplink else ''}")
    return lines


def _number(tier: str) -> int:
    return 1 + _OFFERED.index(TIERS[tier])


def _read(answer: str) -> str:
    """Return the tier of a number or a name."""
    numbered = {str(number): tier.name for number, tier in enumerate(_OFFERED, 1)}
    return numbered.get(answer, answer if answer in TIERS else "")
