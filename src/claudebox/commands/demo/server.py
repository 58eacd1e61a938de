"""The scripted model: a Messages API on loopback, which answers step by step.

The client sends the whole conversation each time, so nothing is remembered between requests: the number of answers
since the last prompt of the user selects the step, which has what to `say`, and `tools` to call (each `name` and
`input`). Of a request only the names of its headers are kept, never their values.
"""

from __future__ import annotations

import hmac
import http.server
import json
import re
import secrets
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Answer = dict[str, Any]


# What the client adds to the prompt of the user.
_ADDED = re.compile(r"<system-reminder>.*?</system-reminder>|\[Request interrupted by user[^]]*\]", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """The state of a conversation, as a request shows it."""

    prompt: str = ""
    step: int = 0
    results: tuple[str, ...] = ()


def look(messages: Sequence[Mapping[str, Any]]) -> Seen:
    """Find the last prompt, the answers since then, and what the last tools returned.

    The client also sends messages of role `system` anywhere, and adds reminders to those of the user.
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
            if text:  # after an interruption, in one message with results
                prompt, step, called, returned = text, 0, [], {}
        elif role == "assistant":
            if before != "assistant":
                step, called, returned = step + 1, [], {}
            called += [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        before = role or ""
    # Tools run in parallel and return in any order; the script wants the order of its calls.
    return Seen(prompt, step, tuple(returned[name] for name in called if name in returned))


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(content: object) -> str:
    return "\n".join(str(block.get("text", "")) for block in _blocks(content))


_PIECE = 24  # characters in one event


def compose(answer: Answer, model: str, *, size: int) -> dict[str, Any]:
    """Return the message; `size` is the size of the request in bytes."""
    tools, text = answer.get("tools", ()), answer.get("say", "")
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not tools else []
    content += [{"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", **tool} for tool in tools]
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": answer.get("stop") or ("tool_use" if tools else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": size // 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1 + len(json.dumps(content)) // 4,
        },
    }


def events(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and data of each event of the message as a stream."""
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
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def failure_body(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}


_LARGEST = 64 << 20  # bytes of a request
_FAILURES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


class ScriptedModel:
    """A running model; use it with `with`."""

    def __init__(
        self, steps: Sequence[Answer] = (), *, key: str = "", listener: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.steps, self.key = steps, key
        self.events: list[dict[str, Any]] = []
        self.port = 0
        self._listener = listener
        self._lock = threading.Lock()
        self._server: socketserver.BaseServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the answers of the script so far, with the tool results before each."""
        return [event for event in self.events if event["event"] == "answer" and event["kind"] == "script"]

    def answer(self, request: dict[str, Any], seen: Seen) -> tuple[str, Answer]:
        """Return the kind of a request, and the answer."""
        if not request.get("tools"):  # the client's own: a title and the like
            return "aside", {"say": "A scripted session."}
        return "script", self.steps[seen.step] if seen.step < len(self.steps) else {"say": "There is nothing more."}

    def __enter__(self) -> Self:
        self._server = self.bind(type("Bound", (Handler,), {"model": self}))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def bind(self, handler: type[Handler]) -> socketserver.BaseServer:
        server = _Server(("127.0.0.1", 0), handler)
        self.port = server.server_address[1]
        return server

    def __exit__(self, *_exception: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def tell(self, event: str, **values: object) -> None:
        with self._lock:
            self.events.append({"event": event, **values})
            if self._listener is not None:
                self._listener(self.events[-1])


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of the client."""

    protocol_version = "HTTP/1.1"
    server_version = "claudebox-demo"
    sys_version = ""
    disable_nagle_algorithm = True
    model: ClassVar[ScriptedModel]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class has
        pass

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/api/hello":
            self._reply(200, {"message": "hello"})
        else:
            self._fail(404, "there is nothing here")

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _LARGEST:
            self.close_connection = True
            self._fail(413 if length.isdigit() else 400, "a request needs a content-length that is not too large")
            return
        body = self.rfile.read(int(length))
        self.look(body)
        path = urlsplit(self.path).path
        if path not in ("/v1/messages", "/v1/messages/count_tokens"):
            self._fail(404, "there is nothing here")
        elif not self._authorised():
            self._fail(401, "invalid x-api-key")
        else:
            self._messages(path, body)

    def look(self, _body: bytes) -> None:
        """Look into a request; for tests."""

    def _authorised(self) -> bool:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        given = (bearer, self.headers.get("x-api-key", ""))
        key = self.model.key.encode()
        return not key or any(hmac.compare_digest(value.encode(), key) for value in given)

    def _messages(self, path: str, body: bytes) -> None:
        try:
            request = json.loads(body)
            model = str(request["model"])
            seen = look(request["messages"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fail(400, "the body is not a request for a message")
            return
        if path.endswith("count_tokens"):
            self._reply(200, {"input_tokens": len(body) // 4}, kind="count")
            return
        kind, answer = self.model.answer(request, seen)
        if error := answer.get("error"):
            self._fail(error["status"], error.get("message", "scripted failure"), kind=kind)
            return
        message = compose(answer, model, size=len(body))
        said = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        self.model.tell(
            "answer", kind=kind, prompt=seen.prompt, step=seen.step, results=seen.results, say=said,
            tools=answer.get("tools", ()), usage=message["usage"],
        )  # fmt: skip
        if request.get("stream"):
            self._stream(message, kind, answer.get("pause", 0.0))
        else:
            self._reply(200, message, kind=kind)

    def _fail(self, status: int, message: str, *, kind: str = "") -> None:
        self._reply(status, failure_body(_FAILURES.get(status, "api_error"), message), kind=kind)

    def _start(self, status: int, kind: str, headers: dict[str, str]) -> None:
        names = sorted({name.lower() for name in self.headers})
        self.model.tell("request", method=self.command, path=self.path, headers=names, status=status, kind=kind)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("request-id", f"req_{secrets.token_hex(12)}")
        self.end_headers()

    def _reply(self, status: int, document: dict[str, Any], *, kind: str = "") -> None:
        data = json.dumps(document).encode()
        self._start(status, kind, {"content-type": "application/json", "content-length": str(len(data))})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, message: dict[str, Any], kind: str, pause: float) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._start(200, kind, {**headers, "transfer-encoding": "chunked"})
        for name, data in events(message):
            part = encode(name, data)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client disconnected


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64
