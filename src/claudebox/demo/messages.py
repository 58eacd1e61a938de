"""The Messages API as the client sees it: a message as one document, or as the events of a stream."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.demo.script import Seen

_PIECE = 24  # characters of a text or of the input of a tool in one event


def compose(answer: dict[str, Any], seen: Seen, model: str, *, size: int, stop: str = "") -> dict[str, Any]:
    """Return the whole message; `size` is that of the request, in bytes."""
    tools = answer.get("tools", ())
    text = seen.fill(answer.get("say", ""), answer.get("if_result", ""))
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not tools else []
    content += [{"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", **tool} for tool in tools]
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop or ("tool_use" if tools else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": size // 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1 + len(json.dumps(content)) // 4,
        },
    }


def events(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and data of each event of a stream that tells this message."""
    usage = {**message["usage"], "output_tokens": 1}
    yield "message_start", {"message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        else:
            empty = {**block, "input": {}}
            pieces = ["", *_pieces(json.dumps(block["input"]))]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield "content_block_start", {"index": index, "content_block": empty}
        if index == 0:
            yield "ping", {}
        for delta in deltas:
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": message["usage"]}
    yield "message_stop", {}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def encode(name: str, data: dict[str, Any]) -> bytes:
    """Return one event as it stands in the stream."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def failure(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}


def sample(schema: dict[str, Any]) -> Any:
    """Return something that fits a JSON schema: the client asks for titles and the like in this form."""
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
