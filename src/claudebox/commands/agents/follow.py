"""`--follow NAME`: the conversation of a session, as it grows. The agent writes it: data of a stranger."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.report import resume_hint
from claudebox.report.log_reader import LogReader
from claudebox.state import Instance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.commands.agents.records import Agent, Records

_POLL = 0.3
_LINES, _WIDTH = 12, 400  # of one piece


def run(records: Records, agent: Agent, state: str) -> int:
    """Show it until the session has ended."""
    instance = Instance(agent.project, state, agent.instance)
    reader, path = None, ""
    try:
        while True:
            now = records.get(agent.id) or agent
            over = not now.alive and not now.starting
            newest = resume_hint.newest_conversation(instance, agent.created - 1)
            if newest != path:  # a conversation that was cleared or resumed goes on in another file
                if reader is not None:
                    reader.close()
                path = newest
                reader = LogReader(*os.path.split(path))
            for line in reader.lines() if reader is not None else ():
                console.write(render(line), descriptor=1)
            if over:
                break
            time.sleep(_POLL)
    finally:
        if reader is not None:
            reader.close()
    if not path:
        raise ClaudeboxError(f"`{agent.name}` has no conversation", hint=f"`claudebox --attach {agent.name}`")
    return 0


def render(line: dict[str, Any]) -> Iterator[str]:
    """Yield what one line of a conversation says, cleaned."""
    message = line.get("message")
    if line.get("type") not in ("user", "assistant") or not isinstance(message, dict):
        return
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "text":
            yield from _piece("> " if line["type"] == "user" else "● ", part.get("text"))
        elif kind == "tool_use":
            given = part.get("input")
            values = given.values() if isinstance(given, dict) else ()
            shown = next((value for value in values if isinstance(value, str)), "")
            yield from _piece(f"● {console.shorten(str(part.get('name')), 40)}: ", shown)
        elif kind == "tool_result":
            yield from _piece("  ⎿ ", _text(part.get("content")))


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else json.dumps(content)[:_WIDTH]


def _piece(mark: str, text: object) -> Iterator[str]:
    if not isinstance(text, str) or not text.strip():
        return
    lines = text.strip().split("\n")
    for number, line in enumerate(lines[:_LINES]):
        yield f"{mark if number == 0 else ' ' * len(mark)}{console.shorten(line, _WIDTH)}"
    if len(lines) > _LINES:
        yield f"{' ' * len(mark)}… {len(lines) - _LINES} more lines"
