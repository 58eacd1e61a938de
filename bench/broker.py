"""Measure what the broker adds to a conversation, against the same client and the same upstream without it.

Everything is on loopback and in one run, direct and through the broker by turns: the first byte of an answer to a
request as long as the client's, a stream of 64 MB, many streams at once, and the memory of the broker. The upstream
speaks TLS, as Anthropic's does, and, for comparison, plain HTTP.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.agent.claude import API, UPSTREAM  # noqa: E402
from claudebox.broker.sidecar import BrokerSidecar  # noqa: E402
from claudebox.network.records import (  # noqa: E402
    ApiConfig,
    Broker,
    Credential,
    Endpoint,
    Trust,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STREAM = 64 << 20
BODY = 96 << 10  # what a request of the client has
STREAMS = 200
CHUNK = 16 << 10  # bytes of what a server sends at once
EVENT = 512  # bytes of an event of a stream
TARGETS = {  # the limits
    "first byte, ms more": 2.0,
    "64 MB over TLS, ratio": 1.05,
    "64 MB in chunks over TLS, ratio": 1.05,
    "64 MB over TLS, read by JavaScript, ratio": 1.05,
    "resident memory, MB": 40.0,
    f"{STREAMS} streams, lost": 0.0,
}


def main() -> int:
    """Print the figures; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base:
        figures = measure(base, options.rounds)
    rows = [
        {"name": name, "value": figures[name], "limit": limit, "met": figures[name] <= limit}
        for name, limit in TARGETS.items()
    ]
    if options.json:
        print(json.dumps({"figures": figures, "targets": rows}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:<44} {value:10.2f}")
        print()
        for row in rows:
            print(f"{'met   ' if row['met'] else 'MISSED'} {row['name']}: {row['value']:.2f}, at most {row['limit']:g}")
    return 0 if all(row["met"] for row in rows) else 1


def measure(base: str, rounds: int) -> dict[str, float]:
    """Return every figure by its name."""
    certificate, key = authority(base)
    figures: dict[str, float] = {}
    for secure in (True, False):
        kind = "TLS" if secure else "plain HTTP"
        with upstream(certificate if secure else "", key) as port, broker(port, certificate if secure else "") as way:
            direct = Way(("127.0.0.1", port), certificate if secure else "")
            through = Way(way[0], "")
            for path in ("/first", f"/length/{1 << 20}", f"/events/{1 << 20}"):  # everything has been done once
                for each in (direct, through):
                    with each.open() as stream:
                        ask(stream, path)
            first = [_pair(direct, through, lambda stream: ask(stream, "/first")[0], 40) for _ in range(3)]
            figures[f"first byte over {kind}, direct, ms"] = statistics.median(row[0] for row in first) * 1000
            figures[f"first byte over {kind}, broker, ms"] = statistics.median(row[1] for row in first) * 1000
            for name, path in (
                ("64 MB", f"/length/{STREAM}"),
                ("64 MB in chunks", f"/chunks/{STREAM}"),
                ("64 MB in events", f"/events/{STREAM}"),
            ):
                pairs = [_pair(direct, through, functools.partial(last_byte, path=path), 1) for _ in range(rounds)]
                times = [statistics.median(pair[index] for pair in pairs) for index in (0, 1)]
                figures[f"{name} over {kind}, direct, ms"] = times[0] * 1000
                figures[f"{name} over {kind}, broker, ms"] = times[1] * 1000
                figures[f"{name} over {kind}, ratio"] = statistics.median(pair[1] / pair[0] for pair in pairs)
            with reader() as read:
                path = f"/events/{STREAM}"
                pairs = [(read(direct, path, BODY), read(through, path, BODY)) for _ in range(rounds)][1:]
                name = f"64 MB over {kind}, read by JavaScript"
                figures[f"{name}, direct, ms"], figures[f"{name}, broker, ms"] = (
                    statistics.median(pair[index] for pair in pairs) for index in (0, 1)
                )
                figures[f"{name}, ratio"] = statistics.median(pair[1] / pair[0] for pair in pairs)
            figures[f"resident memory with one stream, {kind}, MB"] = resident(way[1])
            if secure:
                figures["first byte, ms more"] = (
                    figures[f"first byte over {kind}, broker, ms"] - figures[f"first byte over {kind}, direct, ms"]
                )
                figures[f"{STREAMS} streams, direct, s"], _ = many(direct)
                figures[f"{STREAMS} streams, broker, s"], figures[f"{STREAMS} streams, lost"] = many(through)
                figures["resident memory, MB"] = resident(way[1])
    return figures


def _pair(direct: Way, through: Way, action: Callable[[socket.socket], float], times: int) -> tuple[float, float]:
    """Return the median of each way, each done on a connection of its own."""
    result = []
    for way in (direct, through):
        with way.open() as stream:
            ask(stream, "/first")
            result.append(statistics.median(action(stream) for _ in range(times)))
    return result[0], result[1]


class Way:
    """How the upstream is reached."""

    def __init__(self, address: tuple[str, int] | str, certificate: str) -> None:
        self.address = address
        self.certificate = certificate
        self._context = ssl.create_default_context(cafile=certificate) if certificate else None

    def open(self) -> socket.socket:
        """Return a connection."""
        if isinstance(self.address, str):
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(self.address)
            return stream
        stream = socket.create_connection(self.address)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(stream, server_hostname="localhost") if self._context else stream


def ask(stream: socket.socket, path: str) -> tuple[float, float]:
    """Return after how many seconds the first and the last byte of an answer came."""
    target = f"/v1/messages?beta={path}"
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\ncontent-length: {BODY}\r\n\r\n"
    begun = time.perf_counter()
    stream.sendall(head.encode() + bytes(BODY))
    buffer = memoryview(bytearray(1 << 20))
    got = stream.recv_into(buffer)
    first = time.perf_counter() - begun
    end = bytes(buffer[:got]).find(b"\r\n\r\n") + 4
    lines = bytes(buffer[:end]).lower()
    assert lines.startswith(b"http/1.1 200 "), lines
    if b"chunked" in lines:
        last = bytes(buffer[max(end, got - 7) : got])
        while not last.endswith(b"\r\n0\r\n\r\n"):
            size = stream.recv_into(buffer)
            assert size
            last = (last + bytes(buffer[max(0, size - 7) : size]))[-7:]
    else:
        left = int(lines.split(b"content-length: ")[1].split(b"\r\n")[0]) - (got - end)
        while left:
            left -= stream.recv_into(buffer)
    return first, time.perf_counter() - begun


@contextlib.contextmanager
def reader() -> Iterator[Callable[[Way, str, int], float]]:
    """Run a client in JavaScript; yield a function that asks for an answer and returns how many ms it took."""
    with subprocess.Popen(
        ["node", f"{TOP}/bench/reader.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="ascii"
    ) as process:

        def ask_it(way: Way, path: str, body: int) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            place = {"socket": way.address} if isinstance(way.address, str) else {"port": way.address[1]}
            order = {
                **place,
                "ca": way.certificate,
                "path": f"/v1/messages?beta={path}",
                "body": body,
                "key": UPSTREAM.placeholder,
            }
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            result = json.loads(process.stdout.readline())
            return float(result["ms"])

        yield ask_it
        process.kill()


def last_byte(stream: socket.socket, path: str) -> float:
    """Return after how many seconds the last byte came."""
    return ask(stream, path)[1]


def many(way: Way) -> tuple[float, float]:
    """Return how long many streams of events took side by side, and how many did not end well."""
    lost = []

    def one() -> None:
        try:
            with way.open() as stream:
                stream.settimeout(60)
                ask(stream, "/slow")
        except (OSError, AssertionError, IndexError):
            lost.append(1)

    begun = time.perf_counter()
    threads = [threading.Thread(target=one) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun, float(len(lost))


@contextlib.contextmanager
def broker(port: int, certificate: str) -> Iterator[tuple[str, int]]:
    """Run a broker for this upstream, without a sandbox; yield its socket and its process."""
    config = ApiConfig(
        Endpoint("https" if certificate else "http", "localhost" if certificate else "127.0.0.1", port),
        UPSTREAM.placeholder,
        API,
        credentials=(Credential("ANTHROPIC_API_KEY", "the-real-key", "x-api-key", ""),),
        trust=Trust(certificate),
    )
    sidecar = BrokerSidecar(Broker((config,), sockets=("model_api",)))
    try:
        sidecar.begin()
        yield sidecar.sockets["model_api"], sidecar._process  # noqa: SLF001
    finally:
        for note in sidecar.finish():
            print(note, file=sys.stderr)


def resident(process: int) -> float:
    """Return how many megabytes a process keeps, shared ones included."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextlib.contextmanager
def upstream(certificate: str, key: str) -> Iterator[int]:
    """Run an upstream in a process of its own, as it is in life; yield its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    process = os.fork()
    if process == 0:
        try:
            serve(listener, certificate, key)
        finally:
            os._exit(0)
    try:
        yield listener.getsockname()[1]
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        listener.close()


def serve(listener: socket.socket, certificate: str, key: str) -> None:
    """Answer requests, each connection in a thread."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    while True:
        stream, _ = listener.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=converse, args=(stream, context), daemon=True).start()


def converse(plain: socket.socket, context: ssl.SSLContext | None) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(OSError):
        stream = context.wrap_socket(plain, server_side=True) if context else plain
        buffered = b""
        while True:
            while b"\r\n\r\n" not in buffered:
                piece = stream.recv(1 << 18)
                if not piece:
                    return
                buffered += piece
            head, _, rest = buffered.partition(b"\r\n\r\n")
            left = BODY - len(rest)
            while left > 0:
                left -= len(stream.recv(1 << 18))
            buffered = b""
            answer(stream, head.split()[1].decode())


def answer(stream: socket.socket, path: str) -> None:
    """Send what the path asks for."""
    kind, _, size = path.partition("=")[2].strip("/").partition("/")
    if kind == "first":
        stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    elif kind == "length":
        stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % int(size))
        piece = bytes(1 << 18)
        for _ in range(int(size) // len(piece)):
            stream.sendall(piece)
    else:
        length = CHUNK if kind == "chunks" else EVENT
        count, pause = (int(size) // length // 32, 0.0) if size else (20, 0.05)
        stream.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b"%x\r\n%s\n\r\n" % (length, b"x" * (length - 1))
        piece = event * (32 if size else 1)
        for _ in range(count):
            stream.sendall(piece)
            if pause:
                select.select([], [], [], pause)
        stream.sendall(b"0\r\n\r\n")


def authority(base: str) -> tuple[str, str]:
    """Return a certificate for localhost and its key."""
    certificate, key = f"{base}/certificate.pem", f"{base}/key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    sys.exit(main())
