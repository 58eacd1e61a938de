"""Anthropic's hosts, for tests of the login: a CONNECT proxy that ends TLS itself and answers for them.

It behaves as a strict server does: a refresh token can be spent once, and only an issued access token is taken.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

HOSTS = ("api.anthropic.com", "platform.claude.com", "claude.ai")
_LIFETIME = 28800


class Anthropic:
    """The hosts; use it with `with`."""

    def __init__(self, directory: str) -> None:
        self.certificate = f"{directory}/authority.pem"
        self._context = _authority(directory)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._lock = threading.Lock()
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.renewals: list[str] = []  # refresh tokens that were presented
        self.messages: list[str] = []  # access tokens that asked for an answer
        self.reachable = True
        self.honours = True  # access tokens, as they should be
        self.life: object = _LIFETIME
        self.odd_access: object = None
        self.delay = 0.0  # seconds before a renewal is answered

    @property
    def proxy(self) -> str:
        """Return the address for HTTPS_PROXY."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def issue(self, name: str) -> tuple[str, str]:
        """Return a pair of tokens that these hosts will honour."""
        pair = f"access-{name}", f"refresh-{name}"
        self.access.add(pair[0])
        self.refresh.add(pair[1])
        return pair

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, IndexError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(4096)
                if not piece:
                    return
                head += piece
            if not self.reachable:
                connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with self._context.wrap_socket(connection, server_side=True) as secure, secure.makefile("rb") as stream:
                while self._answer(secure, stream):
                    pass

    def _answer(self, connection: ssl.SSLSocket, stream: Any) -> bool:
        line = stream.readline().decode()
        if not line:
            return False
        path = line.split(" ")[1]
        headers: dict[str, str] = {}
        while text := stream.readline().decode().strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        status, kind, content = self._decide(path, headers, body)
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        return True

    def _decide(self, path: str, headers: dict[str, str], body: bytes) -> tuple[str, str, bytes]:
        if path.startswith("/v1/oauth/token"):
            with self._lock:
                return self._renew(json.loads(body)["refresh_token"])
        if path.startswith("/v1/messages"):
            token = headers.get("authorization", "").removeprefix("Bearer ")
            self.messages.append(token)
            if token not in self.access or not self.honours:
                return "401 Unauthorized", "application/json", _error("authentication_error", "invalid bearer token")
            return "200 OK", "text/event-stream", _stream("hello from the hosts")
        return "404 Not Found", "application/json", b"{}"

    def _renew(self, token: str) -> tuple[str, str, bytes]:
        self.renewals.append(token)
        if token not in self.refresh:
            return "400 Bad Request", "application/json", json.dumps({"error": "invalid_grant"}).encode()
        self.refresh.remove(token)
        time.sleep(self.delay)
        access, refresh = self.issue(f"renewed-{len(self.renewals)}")
        given = self.odd_access or access
        answer = {"access_token": given, "refresh_token": refresh, "expires_in": self.life, "token_type": "Bearer"}
        return "200 OK", "application/json", json.dumps(answer).encode()


def _error(kind: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def _stream(text: str) -> bytes:
    message: dict[str, object] = {
        "id": "msg_test", "type": "message", "role": "assistant", "model": "test", "content": [],
        "stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    events = (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _authority(directory: str) -> ssl.SSLContext:
    """Make an authority of the test's own and a certificate for the hosts."""
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    Path(f"{directory}/extensions").write_text(f"subjectAltName={names}\n", encoding="ascii")
    ca, key, request, leaf = (f"{directory}/{name}" for name in ("authority.pem", "key", "request", "leaf.pem"))
    for command in (
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", f"{directory}/authority.key", "-out", ca, "-subj", "/CN=authority of a test",
         "-addext", "basicConstraints=critical,CA:TRUE"],
        ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", request,
         "-subj", "/CN=hosts of a test"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", f"{directory}/authority.key", "-CAcreateserial", "-days",
         "2", "-extfile", f"{directory}/extensions", "-out", leaf],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf, key)
    return context
