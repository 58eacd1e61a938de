"""A script: what the model says, and which tools it calls, as data that a request selects from.

Nothing is remembered between requests, because the client sends the whole conversation each time: the last prompt of
the user selects a conversation, the number of answers since then selects a step, and what the tools returned selects
one of the answers of that step.

    {"conversations": [{"prompt": REGEX, "steps": [[ANSWER, ...], ...]}], "otherwise": ANSWER}

An ANSWER has any of: `if_result` (a regular expression searched in what the tools returned), `say`, `tools` (each
`name` and `input`), `error` (`status`, `message`, `times`), `pause` (seconds between pieces of a stream), `note` (told
to whoever started the model). In `say`, `{prompt}`, `{result}`, `{first}` (its first line), `{lines}` (their number)
and `{match}` (what `if_result` found) stand for what was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# What the client adds to the words of the user.
_ADDED = re.compile(r"<system-reminder>.*?</system-reminder>|\[Request interrupted by user[^]]*\]", re.DOTALL)
_RESULT_LIMIT = 20_000  # characters of a result that an answer repeats


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


def choose(script: Mapping[str, Any], seen: Seen) -> dict[str, Any]:
    """Return the answer of the script; an empty one repeats what it is told."""
    for conversation in script.get("conversations", ()):
        if not re.search(conversation["prompt"], seen.prompt):
            continue
        if seen.step >= len(conversation["steps"]):
            return {"say": "The script has nothing more to say."}
        step = conversation["steps"][seen.step]
        for answer in step if isinstance(step, list) else [step]:
            if re.search(answer.get("if_result", ""), seen.result):
                return dict(answer)
        return {"say": "No answer of the script fits what the tool returned: {first}"}
    unknown = "The script has no answer to: {prompt}" if script.get("conversations") else "You said: {prompt}"
    return dict(script.get("otherwise", {"say": unknown}))


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
