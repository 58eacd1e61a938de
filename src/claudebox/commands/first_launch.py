"""The first launch asks what sessions may reach, when to ask and what of ~/.claude comes along, and keeps the answers.

They stand in ~/.claudebox/config.toml, where they can be changed. On a terminal of 80x24 all of it fits on one screen
with what is shown before the start.
"""

from __future__ import annotations

import json
import os

from claudebox.agent import kinds
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.commands import profiles
from claudebox.host import programs, texts
from claudebox.host.machine import current_directory
from claudebox.network import uplink
from claudebox.network.tiers import TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OFFERED = sorted((tier for tier in TIERS.values() if tier.question), key=lambda tier: tier.shared)
_DOMAINS = '["anthropic"]'  # needed to log in inside
_TIMES = (
    ("new", "only when something is different (recommended)"),
    ("always", "before every start"),
)


def ask_settings(home: str, environ: dict[str, str]) -> bool:
    """Ask for settings and write them down; return False without a terminal."""
    candidates = uplink.find_uplinks(programs.search_path(environ, current_directory()))
    works = not candidates[-1].problem
    remark = "recommended" if works else f"not on this machine yet: {candidates[0].remedy}"
    rows = [(tier.name, tier.question + (f" ({remark})" if tier.uplink else "")) for tier in _OFFERED]
    try:
        tier = _choose("What may programs inside reach?", "Network", rows, "inet" if works else "full", tuple(TIERS))
        confirm = _choose("When does claudebox ask before it starts?", "Ask", _TIMES, "new", ("always", "new", "never"))
        chosen = {"network": f'"{tier}"', "confirm": f'"{confirm}"'}
        agent = kinds.find_kind(kinds.USUAL)
        if found := texts.find_offered(f"{home}/{agent.directory}", agent.extras.texts):
            question = f"Bring {', '.join(found)} of ~/{agent.directory} in, read-only? [Y/n] "
            chosen["inherit"] = json.dumps(agent.extras.texts if console.confirm(question, default=True) else ())
    except ClaudeboxError:
        return False
    if TIERS[tier].listed:
        chosen["allow_domain"] = _DOMAINS
    profiles.write_config(home, chosen)
    os.close(base_state.open_state(f"{home}/.claudebox", "drop"))  # for `claudebox show` during this session
    console.note("wrote your answers to ~/.claudebox/config.toml")
    return True


def _choose(title: str, prompt: str, rows: Sequence[tuple[str, str]], default: str, known: Sequence[str]) -> str:
    """Ask until the answer is a number, a known word, or nothing for the default."""
    names = [name for name, _ in rows]
    wide = max(map(len, names))
    lines = [title]
    for number, (name, text) in enumerate(rows, 1):
        lines += console.wrap(text, f"  {number}  {name:<{wide}}  ")
    question = f"{prompt}? [{1 + names.index(default)}] "
    explained = "\n".join((*lines, question))
    while True:
        answer = console.ask(explained).decode("ascii", "replace")
        if not answer:
            raise KeyboardInterrupt
        word = answer.strip().lower() or default
        word = {str(number): name for number, name in enumerate(names, 1)}.get(word, word)
        if word in known:
            return word
        explained = question
