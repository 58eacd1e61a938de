"""A script: what the model says, and which tools it calls, as data that a request selects from.

A script is a JSON document. Nothing is remembered between requests, because the client sends the whole conversation
each time: the last prompt of the user selects a conversation, the number of answers since then selects a step, and
what the tools returned selects one of the answers of that step.

    {"conversations": [{"prompt": REGEX, "steps": [[ANSWER, ...], ...]}]}

An ANSWER has any of: `if_result`, `unless_result` (regular expressions searched in what the tools returned), `say`,
`tools` (each `name` and `input`), `error` (`status`, `type`, `message`, `times`), `pause` (seconds between pieces of a
stream), `cut` (break the connection in the middle), `note` (told to whoever started the model). In `say`, `{prompt}`,
`{result}`, `{first}` (its first line), `{lines}` (their number) and `{match}` (what `if_result` found) stand for what
was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# An answer that no script gave.
ENDED = "The script has nothing more to say."
UNKNOWN = "The script has no answer to: {prompt}"

# What the client adds to the words of the user.
_ADDED = re.compile(r"<system-reminder>.*?</system-reminder>|\[Request interrupted by user[^]]*\]", re.DOTALL)
_RESULT_LIMIT = 20_000  # characters of a result that an answer repeats


@dataclass(frozen=True)
class Tool:
    """A call of a tool."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """An error of the API, for the first `times` requests that come to it; 0 is for all of them."""

    status: int
    type: str = "api_error"
    message: str = "scripted failure"
    times: int = 0


@dataclass(frozen=True)
class Answer:
    """What the model does next."""

    say: str = ""
    tools: tuple[Tool, ...] = ()
    if_result: str = ""
    unless_result: str = ""
    error: Failure | None = None
    pause: float = 0.0
    cut: bool = False
    note: Any = None

    def fits(self, result: str) -> bool:
        """Return whether what the tools returned selects this answer."""
        if self.if_result and not re.search(self.if_result, result):
            return False
        return not (self.unless_result and re.search(self.unless_result, result))


@dataclass(frozen=True)
class Conversation:
    """The steps that follow a prompt."""

    prompt: str
    steps: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Seen:
    """What a request shows of the conversation so far."""

    prompt: str = ""
    step: int = 0
    results: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """Return what the tools of the last step returned."""
        return "\n".join(self.results)

    def fill(self, text: str, pattern: str = "") -> str:
        """Put what was seen in the place of its names."""
        found = re.search(pattern, self.result)
        lines = [line for line in self.result.splitlines() if line.strip()]
        values = {
            "prompt": self.prompt,
            "result": self.result[:_RESULT_LIMIT],
            "first": lines[0].strip() if lines else "nothing",
            "lines": str(len(lines)),
            "match": found[0] if found else "",
        }
        return re.sub(r"\{(prompt|result|first|lines|match)\}", lambda match: values[match[1]], text)


@dataclass(frozen=True)
class Script:
    """All conversations; without any, the model repeats what it is told."""

    conversations: tuple[Conversation, ...] = ()
    otherwise: Answer = field(default_factory=lambda: Answer(say=UNKNOWN))

    def answer(self, seen: Seen) -> Answer:
        """Return what the model does now."""
        for conversation in self.conversations:
            if re.search(conversation.prompt, seen.prompt):
                if seen.step >= len(conversation.steps):
                    return Answer(say=ENDED)
                fitting = (answer for answer in conversation.steps[seen.step] if answer.fits(seen.result))
                return next(fitting, Answer(say="No answer of the script fits what the tool returned: {first}"))
        return self.otherwise if self.conversations else Answer(say="You said: {prompt}")


def parse_script(document: dict[str, Any]) -> Script:
    """Read a script; ValueError for what it cannot be."""
    _only(document, {"conversations", "otherwise"}, "a script")
    conversations = []
    for entry in document.get("conversations", ()):
        _only(entry, {"prompt", "steps"}, "a conversation")
        re.compile(entry["prompt"])
        steps = tuple(
            tuple(_answer(answer) for answer in (step if isinstance(step, list) else [step])) for step in entry["steps"]
        )
        conversations.append(Conversation(entry["prompt"], steps))
    if "otherwise" in document:
        return Script(tuple(conversations), _answer(document["otherwise"]))
    return Script(tuple(conversations))


def _answer(document: dict[str, Any]) -> Answer:
    _only(document, {entry.name for entry in fields(Answer)}, "an answer")
    values = dict(document)
    values["tools"] = tuple(Tool(**tool) for tool in document.get("tools", ()))
    values["error"] = Failure(**document["error"]) if document.get("error") else None
    for pattern in (values.get("if_result", ""), values.get("unless_result", "")):
        re.compile(pattern)
    return Answer(**values)


def _only(document: object, known: set[str], what: str) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"{what} is an object, not {type(document).__name__}")  # noqa: TRY004 - of a document
    if unknown := set(document) - known:
        raise ValueError(f"{what} has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")


def look(messages: Sequence[Mapping[str, Any]]) -> Seen:
    """Find the last prompt, the answers since then, and what the last tools returned.

    Besides `user` and `assistant` the client sends messages of role `system` in any place, also as the last one, and
    puts reminders of its own into those of the user.
    """
    prompt, step, before = "", 0, ""
    called: list[str] = []
    returned: dict[str, str] = {}
    for message in messages:
        role, blocks = message.get("role"), _blocks(message.get("content"))
        if role == "user":
            results = [block for block in blocks if block.get("type") == "tool_result"]
            returned.update({str(block.get("tool_use_id")): _text(block.get("content")) for block in results})
            text = _ADDED.sub("", _text([block for block in blocks if block.get("type") == "text"])).strip()
            if text:  # also after an interruption, in one message with what became of the tools
                prompt, step, called, returned = text, 0, [], {}
        elif role == "assistant":
            if before != "assistant":
                step, called, returned = step + 1, [], {}
            called += [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        before = role or ""
    # Tools run side by side and return in any order: the script knows the order in which it called them.
    return Seen(prompt, step, tuple(returned[name] for name in called if name in returned))


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(content: object) -> str:
    return "\n".join(str(block.get("text", "")) for block in _blocks(content))
