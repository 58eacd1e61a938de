"""What the agent's own record of its conversations says about a span of time: prompts, tools that it used, last words.

An agent can write anything there: each value is checked, and lines that are too long or damaged are counted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from datetime import datetime

from claudebox.agent.report import list_conversations
from claudebox.base.files import Closing, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from claudebox.agent.record import AgentKind
    from claudebox.base.state import Instance


_MOST_FILES, _MOST_BYTES, _LONGEST = 32, 64 << 20, 4 << 20
_MOST_USES = 20_000
_TEXT = 4000  # characters of a prompt or an answer
_SLACK = 5.0  # seconds between the agent's clock and the log's
_SAYING = ("command", "file_path", "path", "pattern", "url", "query", "description", "prompt")  # of a tool, the first
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass
class Conversation:
    """What was said and done."""

    identifier: str = ""  # of the one that was written to last
    prompts: list[str] = field(default_factory=list)
    said: str = ""
    uses: list[tuple[float, str]] = field(default_factory=list)  # of tools
    cut: int = 0  # further uses
    damaged: int = 0  # lines
    unread: list[str] = field(default_factory=list)  # files, and why


def find_conversations(agent: AgentKind, instance: Instance, began: float, ended: float) -> Conversation:
    """Return what all conversations of a project say about this time."""
    found = Conversation()
    for path in list_conversations(agent, instance, began - _SLACK)[-_MOST_FILES:]:
        before = len(found.prompts), len(found.uses), found.said
        read_conversation(path, found, began - _SLACK, ended + _SLACK)
        if (len(found.prompts), len(found.uses), found.said) != before:
            found.identifier = os.path.basename(path).partition(".")[0]
    found.uses.sort()
    return found


def read_conversation(path: str, found: Conversation, began: float = 0.0, ended: float = float("inf")) -> None:
    """Add what one file says about a span of time."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        found.unread.append(f"{os.path.basename(path)}: {error.strerror}")
        return
    with Closing(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_size > _MOST_BYTES:
            found.unread.append(f"all but the last {_MOST_BYTES >> 20} MiB of {os.path.basename(path)}")
            os.lseek(descriptor, status.st_size - _MOST_BYTES, os.SEEK_SET)
        rest = b""
        while piece := os.read(descriptor, 1 << 20):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                _read_line(line, found, began, ended)
            if len(rest) > _LONGEST:
                rest = b""
                found.damaged += 1
        if rest:
            _read_line(rest, found, began, ended)


def _read_line(line: bytes, found: Conversation, began: float, ended: float) -> None:
    if not line.strip():
        return
    entry = parse_object(line)
    if not entry:
        found.damaged += 1
        return
    message, kind = entry.get("message"), entry.get("type")
    moment = _moment(entry.get("timestamp"))
    if kind not in ("user", "assistant") or not isinstance(message, dict) or not began <= moment <= ended:
        return
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "assistant" and isinstance(part, dict) and part.get("type") == "tool_use":
            _add_use(found, moment, part)
    text = "\n".join(texts).strip()
    if not text or entry.get("isMeta") or entry.get("isSidechain"):
        return
    if kind == "assistant":
        found.said = _cut(text)
    elif not text.startswith("<"):  # what the client itself says in the user's name
        found.prompts.append(_cut(text))


def _add_use(found: Conversation, moment: float, part: dict[str, object]) -> None:
    if len(found.uses) >= _MOST_USES:
        found.cut += 1
        return
    given: Any = part.get("input")
    name = str(part.get("name", "?"))[:80]
    for key in _SAYING if isinstance(given, dict) else ():
        if isinstance(said := given.get(key), str) and said:
            name = f"{name}: {said[:400]}"
            break
    found.uses.append((moment, name))


def _cut(text: str) -> str:
    more = len(text) - _TEXT
    return f"{text[:_TEXT]} \u2026 and {more:,} more characters" if more > 0 else text


def _moment(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if isinstance(text, str) and len(text) < 40 else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
