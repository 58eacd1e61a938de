"""The scripted model as a process of its own: an HTTP server on loopback or on a unix socket.

The first line of standard input is its configuration, so that no key stands in a command line; the end of standard
input is the end of the process. Standard output tells, in lines of JSON, where it listens and what happens. Of a
request it tells the names of the headers and never their values.
"""

from __future__ import annotations

import hmac
import http.server
import json
import secrets
import socketserver
import sys
import threading
import time
from collections import Counter
from typing import Any, ClassVar
from urllib.parse import urlsplit

from claudebox.demo import messages
from claudebox.demo.script import Answer, Script, Seen, look, parse_script

_LARGEST = 64 << 20  # bytes of a request
_FAILURES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_SUMMARY = "<analysis>A scripted session.</analysis>\n<summary>A scripted session took place.</summary>"


class ScriptedModel:
    """What all connections share: the script, and how often each failure was given."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.script: Script = parse_script(configuration.get("script") or {})
        self.key = str(configuration.get("key") or "")
        self.canaries = {name: value.encode() for name, value in (configuration.get("canaries") or {}).items()}
        self._lock = threading.Lock()
        self._failures: Counter[tuple[str, int]] = Counter()

    def tell(self, event: str, **values: object) -> None:
        """Write a line for whoever started the model."""
        line = json.dumps({"event": event, **values}) + "\n"
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def fails(self, answer: Answer, place: tuple[str, int]) -> bool:
        """Return whether it is time for the failure of this answer."""
        if answer.error is None:
            return False
        with self._lock:
            self._failures[place] += 1
            return not answer.error.times or self._failures[place] <= answer.error.times


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of the client."""

    protocol_version = "HTTP/1.1"
    server_version = "claudebox-demo"
    sys_version = ""
    model: ClassVar[ScriptedModel]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class has
        """Say nothing on standard error."""

    def do_HEAD(self) -> None:
        """Answer the question whether somebody is there."""
        self._get()

    def do_GET(self) -> None:
        """As for HEAD: there is nothing to read here."""
        self._get()

    def _get(self) -> None:
        if urlsplit(self.path).path == "/api/hello":
            self._reply(200, {"message": "hello"})
        else:
            self._fail(404, "there is nothing here")

    def do_POST(self) -> None:
        """Answer with the next step of the script."""
        body = self._body()
        if body is None:
            return
        for name, canary in self.model.canaries.items():
            if canary in body:
                self.model.tell("leak", name=name)
        path = urlsplit(self.path).path
        if path not in ("/v1/messages", "/v1/messages/count_tokens"):
            self._fail(404, "there is nothing here")
        elif not self._authorised():
            self._fail(401, "invalid x-api-key")
        else:
            self._messages(path, body)

    def _body(self) -> bytes | None:
        try:
            length = int(self.headers["content-length"])
        except (TypeError, ValueError):
            length = -1
        if not 0 <= length <= _LARGEST:
            self.close_connection = True
            self._fail(413 if length > _LARGEST else 400, "a request needs a content-length that is not too large")
            return None
        return self.rfile.read(length)

    def _authorised(self) -> bool:
        if not self.model.key:
            return True
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        given = (bearer, self.headers.get("x-api-key", ""))
        return any(hmac.compare_digest(value.encode(), self.model.key.encode()) for value in given)

    def _messages(self, path: str, body: bytes) -> None:
        try:
            request = json.loads(body)
            conversation = request["messages"]
            model = str(request["model"])
            seen = look(conversation)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fail(400, "the body is not a request for a message")
            return
        if path.endswith("count_tokens"):
            self._reply(200, {"input_tokens": len(body) // 4}, kind="count")
            return
        kind, answer = self._choose(request, seen)
        if answer.error is not None and self.model.fails(answer, (seen.prompt, seen.step)):
            self._fail(answer.error.status, answer.error.message, kind=kind, failure=answer.error.type)
            return
        stop = "max_tokens" if kind == "probe" else ""
        message = messages.compose(answer, seen, model, size=len(body), stop=stop)
        self._tell_answer(kind, answer, seen, message)
        if request.get("stream"):
            self._stream(message, answer, kind)
        else:
            self._reply(200, message, kind=kind)

    def _choose(self, request: dict[str, Any], seen: Seen) -> tuple[str, Answer]:
        """Tell the user's conversation from what the client asks on its own account, and answer that sensibly."""
        format_ = (request.get("output_config") or {}).get("format") or request.get("output_format") or {}
        if isinstance(format_, dict) and format_.get("type") == "json_schema":
            return "structured", Answer(say=json.dumps(messages.sample(format_.get("schema") or {})))
        if request.get("max_tokens") == 1:
            return "probe", Answer(say="#")
        if "<summary>" in seen.prompt and "Do NOT call any tools" in seen.prompt:
            return "summary", Answer(say=_SUMMARY)
        answer = self.model.script.answer(seen)
        if answer.tools and not request.get("tools"):
            return "aside", Answer(say="A scripted session.")
        return "script", answer

    def _tell_answer(self, kind: str, answer: Answer, seen: Seen, message: dict[str, Any]) -> None:
        said = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        tools = [{"name": tool.name, "input": tool.input} for tool in answer.tools]
        self.model.tell(
            "answer", kind=kind, prompt=seen.prompt, step=seen.step, results=seen.results, say=said, tools=tools,
            note=answer.note, usage=message["usage"],
        )  # fmt: skip

    def _fail(self, status: int, message: str, *, kind: str = "", failure: str = "api_error") -> None:
        if failure == "api_error":
            failure = _FAILURES.get(status, failure)
        self._reply(status, messages.failure(failure, message, "req_scripted"), kind=kind)

    def _tell_request(self, status: int, kind: str) -> None:
        names = sorted({name.lower() for name in self.headers})
        self.model.tell("request", method=self.command, path=self.path, headers=names, status=status, kind=kind)

    def _start(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self._tell_request(status, kind)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("request-id", f"req_{secrets.token_hex(12)}")
        self.end_headers()

    def _reply(self, status: int, document: dict[str, Any], *, kind: str = "") -> None:
        data = json.dumps(document).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data))}
        self._start(status, kind, headers)
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, message: dict[str, Any], answer: Answer, kind: str) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._start(200, kind, {**headers, "transfer-encoding": "chunked"})
        parts = [messages.encode(name, data) for name, data in messages.events(message)]
        if answer.cut:
            parts = parts[: len(parts) // 2]
        for part in parts:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            if answer.pause:
                time.sleep(answer.pause)
        if answer.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def handle(self) -> None:
        """Serve requests until either side has enough."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone, as it may at any time


class _LoopbackHandler(Handler):
    disable_nagle_algorithm = True


class _LoopbackServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


class _SocketServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> int:
    """Serve until standard input ends."""
    line = sys.stdin.readline()
    try:
        configuration = json.loads(line)
        Handler.model = ScriptedModel(configuration)
    except (ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"the script cannot be used: {error}\n")
        return 2
    path = configuration.get("socket") or ""
    server: socketserver.BaseServer
    if path:
        server = _SocketServer(path, Handler)
        Handler.model.tell("listening", socket=path)
    else:
        server = _LoopbackServer(("127.0.0.1", int(configuration.get("port") or 0)), _LoopbackHandler)
        Handler.model.tell("listening", port=server.server_address[1])
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    sys.stdin.read()
    return 0
