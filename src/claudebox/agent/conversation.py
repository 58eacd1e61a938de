"""What the agent's own record of its conversations says about a span of time: prompts, tools that it used, last words.

An agent can write anything there: each value is checked, and lines that are too long or damaged are counted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from datetime import datetime

from claudebox.agent.report import identify, list_conversations
from claudebox.base.files import Closing, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from claudebox.agent.record import AgentKind
    from claudebox.base.state import Instance


_MOST_FILES, _MOST_BYTES, _LONGEST = 32, 64 << 20, 4 << 20
_MOST_USES, _MOST_PROMPTS = 20_000, 20
_TEXT = 4000  # characters of a prompt or an answer
_SLACK = 1.0  # seconds by which the time of a file may be behind
_SAYING = ("command", "file_path", "path", "pattern", "url", "query", "description", "prompt")  # of a tool, the first
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass
class Conversation:
    """What was said and done."""

    identifier: str = ""  # of the one that was written to last
    prompts: list[str] = field(default_factory=list)
    parts: int = 0  # prompts, answers and uses of tools, also those that are not kept
    said: str = ""
    uses: list[tuple[float, str]] = field(default_factory=list)  # of tools
    cut: int = 0  # further uses
    cut_prompts: int = 0
    damaged: int = 0  # lines
    unread: list[str] = field(default_factory=list)  # files, and why


def find_conversations(agent: AgentKind, instance: Instance, began: float, ended: float) -> Conversation:
    """Return what all conversations of a project say about this time."""
    found = Conversation()
    paths = list_conversations(agent, instance, began - _SLACK)
    shares, left = [], _MOST_BYTES
    for path in reversed(paths[-_MOST_FILES:]):  # the newest may use up what the older ones would need
        shares.append((path, left))
        with contextlib.suppress(OSError):
            left = max(0, left - os.lstat(path).st_size)
    for path, most in reversed(shares):
        before = found.parts
        read_conversation(path, found, began, ended, most)
        if found.parts != before:
            found.identifier = identify(path)
    if len(paths) > _MOST_FILES:
        found.unread.append(f"{len(paths) - _MOST_FILES} older files")
    found.uses.sort()
    return found


def read_conversation(
    path: str, found: Conversation, began: float = 0.0, ended: float = float("inf"), most: int = _MOST_BYTES
) -> None:
    """Add what one file says about a span of time; of a long file what fits in `most` bytes at its end."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        found.unread.append(f"{os.path.basename(path)}: {error.strerror}")
        return
    with Closing(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        skipping = status.st_size > most  # until the next line begins
        if skipping:
            found.unread.append(f"all but the last {most >> 20} MiB of {os.path.basename(path)}")
            os.lseek(descriptor, status.st_size - most, os.SEEK_SET)
        rest = b""
        while most > 0 and (piece := os.read(descriptor, min(most, 1 << 20))):
            most -= len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not skipping:
                    _read_line(line, found, began, ended)
                skipping = False
            if len(rest) > _LONGEST:
                found.damaged += not skipping
                rest, skipping = b"", True
        if rest and not skipping:
            _read_line(rest, found, began, ended)


def _read_line(line: bytes, found: Conversation, began: float, ended: float) -> None:
    if not line.strip():
        return
    entry = parse_object(line)
    if not entry:
        found.damaged += 1
        return
    message, kind = entry.get("message"), entry.get("type")
    moment = read_moment(entry.get("timestamp"))
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
    found.parts += 1
    if kind == "assistant":
        found.said = cut(text)
    elif text.startswith("<"):  # what the client itself says in the user's name
        return
    elif len(found.prompts) < _MOST_PROMPTS:
        found.prompts.append(cut(text))
    else:
        found.cut_prompts += 1


def _add_use(found: Conversation, moment: float, part: dict[str, object]) -> None:
    found.parts += 1
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


def cut(text: str) -> str:
    """Shorten a text and count what is left out."""
    more = len(text) - _TEXT
    return f"{text[:_TEXT]} \u2026 and {more:,} more characters" if more > 0 else text


def read_moment(text: object) -> float:
    """Return a time as agents and the names of logs have it; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if isinstance(text, str) and len(text) < 40 else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
