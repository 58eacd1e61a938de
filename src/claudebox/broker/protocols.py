"""What requests can cost and what answers report: Messages, Responses, Chat Completions, and Gemini's protocol.

Agents need not tell how long an answer may be; then it is as long as any model's.
"""

from __future__ import annotations

import json

from claudebox.broker import metering
from claudebox.broker.metering import TokenUsage, UsageFilter, model_name, number, parse_document
from claudebox.tables import prices

TYPE_CHECKING = False
if TYPE_CHECKING:
    Document = dict[str, object]


MAKERS = {"anthropic": "anthropic", "responses": "openai", "chat": "openai", "gemini": "gemini"}
_LONGEST_ANSWER = 128_000  # tokens
_ADDED = 2_000  # tokens that a service adds to a request with tools
_IMAGE = 5_000  # tokens of an image, however small its file
_LONGEST_LINE = 1 << 20
_EVENT = 200  # bytes of an event besides its text
_CLIENTS_OWN = frozenset((
    "apply_patch_call", "computer_call", "custom_tool_call", "function_call", "local_shell_call", "mcp_call",
    "shell_call", "tool_search_call",
))  # fmt: skip
# Fields of a request that add no cost beyond its text and its answer.
_PLAIN = {
    "responses": frozenset((
        "client_metadata", "include", "input", "instructions", "max_output_tokens", "metadata", "model",
        "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier",
        "service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools",
        "top_logprobs", "top_p", "truncation", "user",
    )),
    "chat": frozenset((
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "metadata",
        "model", "parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_retention",
        "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
        "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
    )),
    "gemini": frozenset((
        "contents", "generationConfig", "labels", "model", "safetySettings", "session_id", "systemInstruction",
        "system_instruction", "toolConfig", "tools",
    )),
}  # fmt: skip
# What refers to something that is not in the text, or is not paid by its bytes.
_ELSEWHERE = frozenset((
    "audio", "cachedContent", "cached_content", "fileData", "file_data", "file_id", "file_url", "input_audio",
    "item_reference", "input_file", "videoMetadata",
))  # fmt: skip


_BY_PATH = {
    b"/messages": "anthropic", b"/responses": "responses", b"/responses/compact": "responses",
    b"/chat/completions": "chat", b":generateContent": "gemini", b":streamGenerateContent": "gemini",
}  # fmt: skip
_FREE = (
    b"/count_tokens", b"/input_tokens", b"/models/session", b":countTokens", b":fetchAdminControls",
    b":listExperiments", b":loadCodeAssist", b":retrieveUserQuota",
)  # fmt: skip


def of_path(path: bytes, otherwise: str) -> str:
    """Return the protocol of what is posted to a path, "" if that is free."""
    if path.endswith(_FREE):
        return ""
    return next((protocol for end, protocol in _BY_PATH.items() if path.endswith(end)), otherwise)


def most_of(protocol: str, target: bytes, content: bytes) -> TokenUsage | None:
    """Return the most that a request can cost, None if its text does not tell."""
    if protocol == "anthropic":
        return metering.most_of(content)
    images = 0
    plain = True

    def look(pairs: list[tuple[str, object]]) -> Document:
        nonlocal images, plain
        found = dict(pairs)
        kind = str(found.get("type"))  # no text where it is the schema of a parameter
        own = all(map(_is_clients_own, _list(found, "tools")))  # of the request, or of an item in its input
        if len(found) < len(pairs) or kind in _ELSEWHERE or not _ELSEWHERE.isdisjoint(found) or not own:
            plain = False
        for name in ("image_url", "inlineData", "inline_data"):
            if name in found:
                images += 1
                plain = plain and _is_image(found[name])
        return found

    try:
        document = json.loads(content, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    if not plain or not isinstance(document, dict):
        return None
    model = model_name(document)
    if protocol == "gemini":
        model = _model_in(target) or model
        document = _unwrapped(document, "request")
    if not document.keys() <= _PLAIN[protocol]:
        return None
    if any(isinstance(part, dict) and part.keys() <= {"id", "type"} for part in _list(document, "input")):
        return None  # an item that is known by its name alone
    limits = _dict(document, "generationConfig") if protocol == "gemini" else document
    if limits.get("candidateCount", 1) != 1:
        return None
    named = ("max_output_tokens", "max_completion_tokens", "max_tokens", "maxOutputTokens")
    most = max(number(limits.get(name)) for name in named) or _LONGEST_ANSWER
    asked = len(content) + _ADDED + images * _IMAGE  # a token has at least one byte
    percent = _percent(document.get("service_tier")) if protocol != "gemini" else 100
    return TokenUsage(model, input=asked, output=most, percent=percent, maker=MAKERS[protocol])


def _is_image(source: object) -> bool:
    """Return whether an image is in the text itself."""
    if isinstance(source, dict):
        kind = source.get("mimeType") or source.get("mime_type")
        source = source.get("url") or (f"data:{kind}" if isinstance(kind, str) else "")
    return isinstance(source, str) and source.startswith("data:image/")


def _is_clients_own(tool: object) -> bool:
    """Return whether a tool is run by the agent, so that it costs nothing by itself."""
    if not isinstance(tool, dict):
        return False
    if "type" in tool:
        return tool["type"] in ("function", "custom", "local_shell", "namespace")
    return tool.keys() <= {"functionDeclarations", "function_declarations"}


def ask_for_usage(content: bytes) -> bytes | None:
    """Return a streaming request for a chat that asks for its usage, None if it does so already."""
    document = parse_document(content)
    if not isinstance(document, dict) or document.get("stream") is not True:
        return None
    options = _dict(document, "stream_options")
    if options.get("include_usage") is True:
        return None
    return json.dumps({**document, "stream_options": {**options, "include_usage": True}}).encode()


def reader(protocol: str, *, events: bool, added: bool) -> UsageFilter:
    """Return what reads the usage of an answer; `added`: its report was asked for by us."""
    if protocol == "chat":
        return ChatUsage(events=events, added=added)
    return {"anthropic": UsageFilter, "responses": ResponsesUsage, "gemini": GeminiUsage}[protocol](events=events)


class ResponsesUsage(UsageFilter):
    """Of the Responses API: reported once, at the end."""

    def _hear(self, line: bytes) -> None:
        if b'.delta"' in line:
            self._heard += max(1, len(line) - _EVENT)
        elif b'"response.created"' in line:
            self._read(line.removeprefix(b"data:"))

    def _understand(self, document: Document) -> None:
        answer = _dict(document, "response") if self._events else document
        usage = answer.get("usage")
        self._usage = self._usage.replace(model=model_name(answer) or self._usage.model, maker="openai")
        if not isinstance(usage, dict):
            return
        kinds = [row.get("type") for row in _list(answer, "output") if isinstance(row, dict)]
        self._heard = 0
        self._usage = _openai(self._usage, usage, "input_tokens", "output_tokens").replace(
            tools=sum(map(_hosted, kinds)), percent=_percent(answer.get("service_tier"))
        )


class ChatUsage(UsageFilter):
    """Of Chat Completions: reported in the last event, if the request has asked for it; by some in every event.

    Where it was asked for by us, that event becomes a comment: the agent does not expect one without a choice.
    """

    def __init__(self, *, events: bool, added: bool = False) -> None:
        super().__init__(events=events)
        self._added, self._line, self._whole = added and events, b"", True
        self._reported = False  # the line that is looked at has the report and nothing else

    def feed(self, piece: bytes) -> bytes:
        if not self._added:
            return super().feed(piece)
        *lines, self._line = (self._line + piece).split(b"\n")
        passed = []
        for line in lines:
            self._reported = False
            super().feed(line + b"\n")
            passed.append(line.replace(b"data", b":   ", 1) if self._reported and line.startswith(b"data:") else line)
        if len(self._line) > _LONGEST_LINE:  # nothing of ours
            passed, self._line, self._added = [*passed, self._line], b"", False
            return b"\n".join(passed)
        return b"".join(line + b"\n" for line in passed)

    def end(self) -> bytes:
        rest, self._line = self._line, b""
        return super().end() + rest

    def _hear(self, line: bytes) -> None:
        if b'"delta"' in line:
            self._heard += max(1, len(line) - _EVENT)
            if not self._usage.model:
                self._read(line.removeprefix(b"data:"))

    def _understand(self, document: Document) -> None:
        usage, model = document.get("usage"), model_name(document)
        self._usage = self._usage.replace(model=model or self._usage.model, maker="openai")
        if not isinstance(usage, dict):
            return
        self._reported = document.get("choices") == []
        self._heard = 0
        self._usage = _openai(self._usage, usage, "prompt_tokens", "completion_tokens").replace(
            tools=prices.SEARCH if "-search" in self._usage.model else 0,
            percent=_percent(document.get("service_tier")),
        )


class GeminiUsage(UsageFilter):
    """Of Gemini: totals in every event; without events, a document or a list of them."""

    _mark = b'"usageMetadata"'

    def __init__(self, *, events: bool) -> None:
        super().__init__(events=events)
        self._searches = 0

    def _hear(self, line: bytes) -> None:
        if b'"parts"' in line:
            self._heard += max(1, len(line) - _EVENT)

    def _read(self, text: bytes) -> None:
        document = parse_document(text)
        for part in document if isinstance(document, list) else [document]:
            if isinstance(part, dict):
                self._understand(_unwrapped(part, "response"))

    def _understand(self, document: Document) -> None:
        said = document.get("usageMetadata")
        for one in _list(document, "candidates"):
            grounding = _dict(one, "groundingMetadata") if isinstance(one, dict) else {}
            self._searches += len(_list(grounding, "webSearchQueries"))
        if not isinstance(said, dict):
            return
        before = self._usage
        cached = number(said.get("cachedContentTokenCount"))
        given = number(said.get("promptTokenCount")) + number(said.get("toolUsePromptTokenCount"))
        made = number(said.get("candidatesTokenCount")) + number(said.get("thoughtsTokenCount"))
        made = max(made, number(said.get("totalTokenCount")) - given)
        self._heard = 0
        self._usage = TokenUsage(
            model_name(document, "modelVersion") or before.model,
            input=max(before.input, given - min(cached, given)),
            output=max(before.output, made),
            cache_read=max(before.cache_read, min(cached, given)),
            tools=self._searches * prices.SEARCH,
            maker="gemini",
        )


def _openai(before: TokenUsage, usage: Document, given: str, made: str) -> TokenUsage:
    """Return the usage merged with a report, whose input includes what was read from a cache."""
    total = number(usage.get(given))
    cached = min(total, number(_dict(usage, f"{given}_details").get("cached_tokens")))
    return before.replace(
        input=max(before.input, total - cached),
        output=max(before.output, number(usage.get(made))),
        cache_read=max(before.cache_read, cached),
    )


def _hosted(kind: object) -> int:
    """Return what a tool costs that the service runs itself."""
    if not isinstance(kind, str) or not kind.endswith("_call") or kind in _CLIENTS_OWN:
        return 0
    return prices.HOSTED_TOOLS.get(kind, max(prices.HOSTED_TOOLS.values()))


def _percent(tier: object) -> int:
    return prices.TIERS.get(tier if isinstance(tier, str) else str(tier or ""), max(prices.TIERS.values()))


def _model_in(target: bytes) -> str:
    """Return the model that a path of Gemini's API names."""
    name = target.partition(b"?")[0].rpartition(b"/")[2].partition(b":")[0]
    return name.decode("ascii", "replace") if b"/models/" in target else ""


def _unwrapped(document: Document, name: str) -> Document:
    """Return what Code Assist wraps."""
    inner = document.get(name)
    return inner if isinstance(inner, dict) else document


def _dict(document: Document, name: str) -> Document:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _list(document: Document, name: str) -> list[object]:
    found = document.get(name)
    return found if isinstance(found, list) else []
