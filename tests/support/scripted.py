"""The scripted model of the demonstration, with more to script: conversations, answers that depend on results, errors.

    {"conversations": [{"prompt": REGEX, "steps": [[ANSWER, ...], ...]}], "otherwise": ANSWER}

The last prompt of the user selects a conversation, and what the tools returned one of the answers of a step. An ANSWER
has any of: `if_result` (a regular expression searched in what the tools returned), `say`, `tools`, `error` (`status`,
`message`, `times`), `pause` (seconds between pieces of a stream). In `say`, `{prompt}`, `{result}`, `{first}` (its
first line), `{lines}` (their number) and `{match}` (what `if_result` found) are replaced.
"""

from __future__ import annotations

import json
import re
import socketserver
from collections import Counter
from typing import TYPE_CHECKING, Any

from claudebox.commands.demo import server

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULT_LIMIT = 20_000  # characters of `{result}`


def sample(schema: dict[str, Any]) -> Any:
    """Return something that fits a JSON schema: the client requests titles and the like this way."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: sample(properties[name]) for name in schema.get("required", properties)}
    plain: dict[str, Any] = {"array": [], "string": "Scripted session", "boolean": False, "null": None}
    return plain.get(kind, 0)


class Scripted(server.ScriptedModel):
    """A running model, on loopback or on a unix socket, that notices canaries in requests."""

    def __init__(
        self, script: Mapping[str, Any] | None = None, *, key: str = "", socket: str = "",
        canaries: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(key=key)
        self.script, self._socket = script or {}, socket
        self.canaries = {name: value.encode() for name, value in (canaries or {}).items()}
        self._failures: Counter[tuple[str, int]] = Counter()

    @property
    def url(self) -> str:
        return super().url if self.port else "http://localhost"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "request"]

    @property
    def results(self) -> str:
        return "\n".join(result for answer in self.answers for result in answer["results"])

    @property
    def leaks(self) -> list[str]:
        """Return the names of canaries found in requests."""
        return sorted({event["name"] for event in self.events if event["event"] == "leak"})

    def bind(self, handler: type[server.Handler]) -> socketserver.BaseServer:
        looking = type("Looking", (handler,), {"look": _look, "disable_nagle_algorithm": not self._socket})
        return _Server(self._socket, looking) if self._socket else super().bind(looking)

    def answer(self, request: dict[str, Any], seen: server.Seen) -> tuple[str, dict[str, Any]]:
        """Distinguish the user's conversation from the client's own requests, which get sensible answers."""
        wanted = (request.get("output_config") or {}).get("format") or request.get("output_format") or {}
        if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
            return "structured", {"say": json.dumps(sample(wanted.get("schema") or {}))}
        if request.get("max_tokens") == 1:
            return "probe", {"say": "#", "stop": "max_tokens"}
        answer = self._choose(seen)
        if answer.get("tools") and not request.get("tools"):
            return "aside", {"say": "A scripted session."}
        return "script", answer

    def _choose(self, seen: server.Seen) -> dict[str, Any]:
        """Return the answer of the script; an empty script repeats the prompt."""
        answer = self._find(seen)
        found = re.search(answer.get("if_result", ""), "\n".join(seen.results))
        failing = answer.get("error")
        if failing:
            self._failures[seen.prompt, seen.step] += 1
            if failing.get("times") and self._failures[seen.prompt, seen.step] > failing["times"]:
                answer = {name: value for name, value in answer.items() if name != "error"}
        return {**answer, "say": _fill(answer.get("say", ""), seen, found[0] if found else "")}

    def _find(self, seen: server.Seen) -> dict[str, Any]:
        for conversation in self.script.get("conversations", ()):
            if not re.search(conversation["prompt"], seen.prompt):
                continue
            if seen.step >= len(conversation["steps"]):
                return {"say": "The script has nothing more to say."}
            step = conversation["steps"][seen.step]
            for answer in step if isinstance(step, list) else [step]:
                if re.search(answer.get("if_result", ""), "\n".join(seen.results)):
                    return dict(answer)
            return {"say": "No answer of the script fits what the tool returned: {first}"}
        unknown = "The script has no answer to: {prompt}" if self.script.get("conversations") else "You said: {prompt}"
        return dict(self.script.get("otherwise", {"say": unknown}))


def _fill(text: str, seen: server.Seen, match: str) -> str:
    result = "\n".join(seen.results)
    lines = [line for line in result.splitlines() if line.strip()]
    values = {"prompt": seen.prompt, "result": result[:RESULT_LIMIT], "lines": str(len(lines)), "match": match,
              "first": lines[0].strip() if lines else "nothing"}  # fmt: skip
    return re.sub(r"\{(prompt|result|first|lines|match)\}", lambda found: values[found[1]], text)


def _look(self: server.Handler, body: bytes) -> None:
    assert isinstance(self.model, Scripted)
    for name, canary in self.model.canaries.items():
        if canary in body:
            self.model.tell("leak", name=name)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
