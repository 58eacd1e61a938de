"""A broker without a sandbox, a scripted upstream, and a client that says exactly what it is told to say."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pytest

from claudebox.agent.claude import API, UPSTREAM
from claudebox.broker.sidecar import BrokerSidecar
from claudebox.network.records import ApiConfig, Broker, Credential, Endpoint, Trust
from claudebox.plan.records import MODEL_PLACEHOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "the-real-key-of-the-tests"
LIBRARIES = tuple(path for path in sys.path if os.path.isdir(f"{path}/cryptography"))


class Visit:
    """One connection to the upstream."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.method = self.path = ""
        self.headers: dict[str, str] = {}
        self._rest = bytearray()

    def next(self) -> bool:
        """Read the head of the next request; tell whether there is one."""
        while b"\r\n\r\n" not in self._rest:
            piece = self.channel.recv(1 << 16)
            if not piece:
                return False
            self._rest += piece
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return True

    def take(self, count: int) -> bytes:
        """Return some of what comes after the head."""
        while len(self._rest) < count:
            piece = self.channel.recv(1 << 18)
            if not piece:
                break
            self._rest += piece
        taken = bytes(self._rest[:count])
        del self._rest[:count]
        return taken

    def body(self) -> bytes:
        """Return the whole body, whichever way it is framed."""
        if self.headers.get("transfer-encoding") != "chunked":
            return self.take(int(self.headers.get("content-length", 0)))
        found = b""
        while True:
            line = b""
            while not line.endswith(b"\r\n"):
                byte = self.take(1)
                if not byte:
                    raise ConnectionResetError("the body breaks off")
                line += byte
            piece = self.take(int(line, 16))
            self.take(2)
            if not piece:
                return found
            found += piece

    def say(self, data: bytes) -> None:
        """Send something."""
        self.channel.sendall(data)

    def reply(self, content: bytes = b"ok", status: str = "200 OK", headers: str = "") -> None:
        """Send a whole answer."""
        self.say(f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n{headers}\r\n".encode() + content)


@dataclass
class Provider:
    """A server that does what its handler says, once per request."""

    port: int
    certificate: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> tuple[str, str]:
    """Return a certificate for localhost and its key."""
    base = tmp_path_factory.mktemp("certificate")
    pair = f"{base}/certificate.pem", f"{base}/key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", pair[1], "-out", pair[0], "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return pair


@pytest.fixture
def upstream(certificate):
    """Return a function that starts an upstream: `upstream(handler, secure=False)`."""
    with contextlib.ExitStack() as stack:

        def start(handler: Callable[[Visit], object], *, secure: bool = False) -> Provider:
            context = None
            if secure:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*certificate)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)  # or who waits for callers waits for ever
            running = Provider(listener.getsockname()[1], certificate[0] if secure else "")

            def serve(channel: socket.socket) -> None:
                with contextlib.suppress(OSError, ValueError), channel:
                    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    own = context.wrap_socket(channel, server_side=True) if context else channel
                    with own:
                        visit = Visit(own)
                        running.connections += 1
                        while visit.next():
                            running.requests.append((visit.method, visit.path, visit.headers))
                            if handler(visit) is False:
                                own.shutdown(socket.SHUT_RDWR)
                                return

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            return running

        yield start


@contextlib.contextmanager
def running(port: int, certificate: str = "", log: int = -1, **changes: object) -> Iterator[BrokerSidecar]:
    """Run a broker, which writes to this log; `changes` are parts of the configuration of its service."""
    config = ApiConfig(
        Endpoint("https" if certificate else "http", "localhost" if certificate else "127.0.0.1", port),
        UPSTREAM.placeholder,
        API,
        credentials=(Credential("ANTHROPIC_API_KEY", KEY, "x-api-key", ""),),
        trust=Trust(certificate),
    ).replace(**changes)
    sidecar = BrokerSidecar(Broker((config,), sockets=("model_api",)))
    try:
        sidecar.begin(log)
        sidecar.look()
        yield sidecar
    finally:
        sidecar.finish()


@pytest.fixture
def broker():
    """Return a function that starts a broker for an upstream and returns a function that connects to it."""
    with contextlib.ExitStack() as stack:

        def start(served: Provider | int, **changes: object) -> Callable[[], Caller]:
            port, secret = (served, "") if isinstance(served, int) else (served.port, served.certificate)
            sidecar = stack.enter_context(running(port, secret, -1, **changes))
            path = sidecar.sockets["model_api"]
            return lambda: stack.enter_context(Caller(path))

        yield start


class Caller:
    """A connection to a broker."""

    def __init__(self, path: str) -> None:
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.settimeout(30)
        self.channel.connect(path)
        self.rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.channel.close()

    def say(self, data: bytes) -> None:
        """Send exactly this."""
        self.channel.sendall(data)

    def ask(self, method: str = "POST", path: str = "/v1/messages", body: bytes = b"", headers: str = "") -> None:
        """Send a request with the placeholder."""
        length = f"content-length: {len(body)}\r\n" if body or method == "POST" else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n{headers}{length}\r\n"
        self.say(head.encode() + body)

    def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the next answer."""
        while b"\r\n\r\n" not in self.rest:
            piece = self.channel.recv(1 << 16)
            assert piece, f"it ended after {self.rest!r}"
            self.rest += piece
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines)

    def take(self, count: int) -> bytes:
        """Return this much of what comes, less at the end."""
        pieces, size = [self.rest], len(self.rest)
        while size < count:
            piece = self.channel.recv(1 << 18)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        found = b"".join(pieces)
        self.rest = found[count:]
        return found[:count]

    def answer(self) -> tuple[int, bytes]:
        """Return the next answer that has a length."""
        status, headers = self.head()
        return status, self.take(int(headers["content-length"]))

    def line(self) -> bytes:
        """Return the next line."""
        while b"\r\n" not in self.rest:
            piece = self.channel.recv(1 << 16)
            assert piece, f"it ended after {self.rest!r}"
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def content(self) -> bytes:
        """Return the body of an answer in chunks, or what came of it before it broke off."""
        found = b""
        with contextlib.suppress(AssertionError, ConnectionResetError):
            while size := int(self.line(), 16):
                found += self.take(size)
                assert self.line() == b""
            assert self.line() == b""
        return found

    def ended(self) -> bool:
        """Return whether the broker closes the connection."""
        try:
            return self.channel.recv(1) == b""
        except ConnectionResetError:
            return True


# Models that are reached by a base URL.


MODEL_KEY = "sk-proj-R3alKey0123456789abcdefghijklm"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])


class Web(Caller):
    """A connection to a port of the loopback."""

    def __init__(self, port: int) -> None:
        self.channel = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.rest = b""

    def post(
        self, path: str, token: str, body: bytes = b"{}", *, header: str = "authorization", more: str = ""
    ) -> None:
        prefix = "Bearer " if header == "authorization" else ""
        given = f"{header}: {prefix}{token}\r\n" if token else ""
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{given}{more}content-length: {len(body)}\r\n\r\n"
        self.say(head.encode() + body)


@pytest.fixture
def models(upstream, tmp_path):
    """Return a function that serves APIs of one TLS upstream: `models(handler, OPENAI)` → (upstream, ports, token)."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sidecars = []

    def start(handler, *apis, key=MODEL_KEY, **changes):
        served = upstream(handler, secure=True)
        configs = tuple(
            ApiConfig(
                Endpoint("https", "localhost", served.port, "/gate/v1"),
                api.placeholder,
                api,
                credentials=(Credential(api.keys[0], key, api.header, api.prefix),),
                trust=Trust(served.certificate),
                port=free_port(),
                shared=True,
            ).replace(**changes)
            for api in apis
        )
        sidecar = BrokerSidecar(Broker(configs))
        sidecars.append(sidecar)
        sidecar.begin(log)
        sidecar.look()
        served.broker = sidecar
        return served, [config.port for config in configs], sidecar.texts[MODEL_PLACEHOLDER]

    yield start
    for sidecar in sidecars:
        sidecar.finish()
    os.close(log)
