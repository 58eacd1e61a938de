"""A scripted model for any agent: OpenAI's Responses and Chat Completions, Gemini, Anthropic's Messages.

It answers with one call of the agent's own shell tool, and with a closing sentence once the result of that is in the
request. Requests without the real key get 401.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Event = tuple[str, dict[str, Any] | str]

SAID = "The scripted model has seen the result."
USAGE = (100, 20)  # tokens of each answer: in, out
_SHELLS = (
    "exec_command", "shell_command", "local_shell", "shell", "run_shell_command", "bash", "run_terminal_cmd", "Bash",
)  # fmt: skip
_EDIT = "Here is a file.\n\nmade\n```\n<<<<<<< SEARCH\n=======\n{text}\n>>>>>>> REPLACE\n```\n"


_LIMITS = {"max_context_window_tokens": 200_000, "max_output_tokens": 16_000, "max_prompt_tokens": 128_000}
_COPILOT_MODEL = {
    "id": "gpt-5", "name": "gpt-5", "object": "model", "vendor": "OpenAI", "version": "gpt-5", "preview": False,
    "model_picker_enabled": True, "policy": {"state": "enabled", "terms": ""}, "supported_endpoints": ["/responses"],
    "capabilities": {"type": "chat", "object": "model_capabilities", "family": "gpt-5", "tokenizer": "o200k_base",
                     "limits": _LIMITS, "supports": {"streaming": True, "tool_calls": True}},
}  # fmt: skip


def make_token(name: str, seconds: int = 36000) -> str:
    """Return a JSON web token of ChatGPT that ends in so many seconds."""
    account = {"chatgpt_account_id": "account", "chatgpt_user_id": "user", "chatgpt_plan_type": "plus"}
    claims = {"exp": int(time.time()) + seconds, "email": "a@example.org", "https://api.openai.com/auth": account}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.{name}"


class Models:
    """The server, on a port of loopback; `requests` is what arrived."""

    def __init__(self, key: str, command: str = "echo done >made") -> None:
        self.key, self.command = key, command
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        models = self

        class Handler(_Handler):
            parent = models

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def paths(self) -> list[str]:
        """Return where requests went."""
        return [path for path, _, _ in self.requests]

    def answered(self) -> bool:
        """Return whether the result of the tool came back."""
        return any(b"function_call_output" in body or b"functionResponse" in body or b'"tool' in body
                   for _, _, body in self.requests)  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    parent: Models

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._read()
        if self.path.endswith("/copilot_internal/user"):
            return self._send(200, {"login": "octo", "copilot_plan": "individual_pro", "chat_enabled": True,
                                    "endpoints": {"api": "http://127.0.0.1:9"}, "quota_snapshots": {}})  # fmt: skip
        return self._send(200, {"data": [_COPILOT_MODEL], "models": []})

    def do_POST(self) -> None:
        body = self._read()
        path = self.path.partition("?")[0]
        if path.endswith("/oauth/token"):
            return self._send(200, {"access_token": make_token("fresh"), "id_token": make_token("fresh"),
                                    "refresh_token": "next", "expires_in": 36000})  # fmt: skip
        if not any(self.parent.key in value for value in self.headers.values()):
            return self._send(401, {"error": {"message": "this is not the real key", "code": 401}})
        asked = json.loads(body or b"{}")
        if path.endswith("/responses"):
            return self._stream(list(self._responses(asked)))
        if path.endswith("/chat/completions"):
            return self._chat(asked)
        if path.endswith("/messages"):
            return self._messages(asked)
        if path.endswith(":loadCodeAssist"):
            return self._send(200, {"currentTier": {"id": "free-tier"}, "cloudaicompanionProject": "p"})
        if path.endswith((":fetchAdminControls", ":listExperiments", ":retrieveUserQuota")):
            return self._send(200, {})
        if "enerateContent" in path:
            return self._gemini(asked.get("request", asked), streamed=":stream" in path)
        return self._send(404, {"error": {"message": "no such path", "code": 404}})

    def _read(self) -> bytes:
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.parent.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        return body

    def _send(self, status: int, document: object, kind: str = "application/json") -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterable[Event]) -> None:
        text = "".join(
            f"{f'event: {kind}' + chr(10) if kind else ''}data: {row if isinstance(row, str) else json.dumps(row)}\n\n"
            for kind, row in events
        )
        self._send(200, text.encode(), "text/event-stream")

    def _call(self, tools: Iterable[tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]] | None:
        """Return a call of the shell among these tools, given with their schemas."""
        known = dict(tools)
        name = next((name for name in _SHELLS if name in known), "")
        if not name:
            return None
        fields = known[name].get("properties", {})
        words: dict[str, Any] = {}
        for field, row in fields.items():
            if field in ("command", "cmd"):
                array = row.get("type") == "array"
                words[field] = ["bash", "-lc", self.parent.command] if array else self.parent.command
            elif {"type": "null"} in row.get("anyOf", ()):
                words[field] = None
            elif field in (known[name].get("required") or ()):
                words[field] = {"boolean": False, "number": 1, "integer": 1}.get(row.get("type", ""), "try")
        return name, words

    def _responses(self, asked: dict[str, Any]) -> Iterator[Event]:
        tools = list(_flatten(asked.get("tools") or (), asked.get("input") or ()))
        done = any(str(row.get("type")).endswith("_call_output") for row in asked.get("input") or ())
        call = None if done else self._call((row.get("name", ""), row.get("parameters") or {}) for row in tools)
        items: list[dict[str, Any]] = []
        if not done and any((row.get("type"), row.get("name")) == ("custom", "exec") for row in tools):  # JavaScript
            items.append({"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "exec",
                          "input": f"text(await tools.exec_command({{cmd: {json.dumps(self.parent.command)}}}))",
                          "status": "completed"})  # fmt: skip
        elif call:
            items.append({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": call[0],
                          "arguments": json.dumps(call[1]), "status": "completed"})  # fmt: skip
        else:
            text = {"type": "output_text", "text": SAID, "annotations": []}
            items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                          "content": [text]})  # fmt: skip
        usage = {"input_tokens": USAGE[0], "input_tokens_details": {"cached_tokens": 0}, "output_tokens": USAGE[1],
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": sum(USAGE)}  # fmt: skip
        made: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "output": []}
        made["model"] = asked.get("model")
        yield "response.created", {"type": "response.created", "response": {**made, "status": "in_progress"}}
        for number, item in enumerate(items):
            empty = {**item, "content": []} if item["type"] == "message" else {**item, "arguments": "", "input": ""}
            yield _item("added", number, empty)
            if item["type"] == "message":
                at = {"item_id": item["id"], "output_index": number, "content_index": 0}
                part = "response.content_part"
                yield f"{part}.added", {"type": f"{part}.added", **at, "part": {**item["content"][0], "text": ""}}
                yield "response.output_text.delta", {"type": "response.output_text.delta", **at, "delta": SAID}
                yield "response.output_text.done", {"type": "response.output_text.done", **at, "text": SAID}
                yield f"{part}.done", {"type": f"{part}.done", **at, "part": item["content"][0]}
            elif item["type"] == "function_call":
                at = {"item_id": item["id"], "output_index": number}
                kind = "response.function_call_arguments"
                yield f"{kind}.delta", {"type": f"{kind}.delta", **at, "delta": item["arguments"]}
                yield f"{kind}.done", {"type": f"{kind}.done", **at, "arguments": item["arguments"]}
            yield _item("done", number, item)
        whole = {**made, "status": "completed", "output": items, "usage": usage}
        yield "response.completed", {"type": "response.completed", "response": whole}

    def _chat(self, asked: dict[str, Any]) -> None:
        tools = ((row["function"]["name"], row["function"].get("parameters") or {}) for row in asked.get("tools") or ())
        done = any(row.get("role") == "tool" for row in asked["messages"])
        call = None if done else self._call(tools)
        # aider has no tools: it takes what is to be changed from the text.
        text = SAID if done or asked.get("tools") else _EDIT.format(text="done")
        usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
        base = {"id": "chat_1", "created": 1, "model": asked.get("model")}
        calls = [{"index": 0, "id": "call_1", "type": "function",
                  "function": {"name": call[0], "arguments": json.dumps(call[1])}}] if call else None  # fmt: skip
        says = {"role": "assistant", "content": None if call else text, **({"tool_calls": calls} if calls else {})}
        finish = "tool_calls" if call else "stop"
        if not asked.get("stream"):
            choice = {"index": 0, "message": says, "finish_reason": finish}
            return self._send(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        chunk = {**base, "object": "chat.completion.chunk"}
        return self._stream(
            [
                ("", {**chunk, "choices": [{"index": 0, "delta": says, "finish_reason": None}]}),
                ("", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}),
                ("", {**chunk, "choices": [], "usage": usage}),
                ("", "[DONE]"),
            ]
        )

    def _messages(self, asked: dict[str, Any]) -> None:
        tools = ((row.get("name", ""), row.get("input_schema") or {}) for row in asked.get("tools") or ())
        call = None if "tool_result" in json.dumps(asked["messages"]) else self._call(tools)
        block: dict[str, Any] = {"type": "text", "text": SAID}
        if call:
            block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}
        usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1]}
        made = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked.get("model"),
                "stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None, "usage": usage}  # fmt: skip
        if not asked.get("stream"):
            return self._send(200, {**made, "content": [block]})
        delta = {"type": "text_delta", "text": SAID}
        empty = {**block, "text": ""}
        if call:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
            empty = {**block, "input": {}}
        return self._stream(
            [
                ("message_start", {"type": "message_start", "message": {**made, "content": [], "stop_reason": None}}),
                ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}),
                ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
                ("content_block_stop", {"type": "content_block_stop", "index": 0}),
                (
                    "message_delta",
                    {"type": "message_delta", "delta": {"stop_reason": made["stop_reason"]}, "usage": usage},
                ),
                ("message_stop", {"type": "message_stop"}),
            ]
        )

    def _gemini(self, asked: dict[str, Any], *, streamed: bool) -> None:
        declared = (row for tool in asked.get("tools") or () for row in tool.get("functionDeclarations", ()))
        tools = ((row["name"], row.get("parametersJsonSchema") or row.get("parameters") or {}) for row in declared)
        call = None if "functionResponse" in json.dumps(asked.get("contents")) else self._call(tools)
        wanted = json.dumps(asked.get("generationConfig", {}))
        text = SAID
        for field, answer in (("model_choice", "flash"), ("complexity_score", 10), ("next_speaker", "user")):
            if field in wanted:
                text = json.dumps({field: answer, "reasoning": "scripted", "complexity_reasoning": "scripted"})
        part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": text}
        usage = {"promptTokenCount": USAGE[0], "candidatesTokenCount": USAGE[1], "totalTokenCount": sum(USAGE)}
        candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, "finishReason": "STOP"}
        document = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
        if "/v1internal:" in self.path:
            document = {"response": document}
        return self._stream([("", document)]) if streamed else self._send(200, document)


def _flatten(*lists: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield tools, also those in namespaces and in items of the input."""
    for row in (row for rows in lists for row in rows):
        yield row
        yield from _flatten(row.get("tools") or ())


def _item(what: str, number: int, item: dict[str, Any]) -> Event:
    kind = f"response.output_item.{what}"
    return kind, {"type": kind, "output_index": number, "item": item}
