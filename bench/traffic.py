"""Both ends of the network benchmark: a server, and a client that measures and prints JSON."""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time

PORT = 9000
CHUNK = 1 << 18
_BUFFER = memoryview(bytearray(CHUNK))


def serve() -> None:
    """Answer each connection: D sends as many bytes as asked for, U takes them, C says one byte."""
    with socket.create_server(("", PORT), backlog=512) as server:
        print("listening", flush=True)
        while True:
            threading.Thread(target=_answer, args=server.accept()[:1], daemon=True).start()


def _answer(channel: socket.socket) -> None:
    with channel:
        word = channel.recv(9, socket.MSG_WAITALL)
        if len(word) < 9:
            return
        left = int.from_bytes(word[1:], "big")
        if word[:1] == b"D":
            while left > 0:
                left -= channel.send(_BUFFER[: min(left, CHUNK)])
        else:
            scratch = bytearray(CHUNK)
            while left > 0 and (count := channel.recv_into(scratch, min(left, CHUNK))):
                left -= count
            channel.sendall(b".")


def reach(address: str, port: int, *, proxied: bool) -> socket.socket:
    """Connect, by the proxy of tier `allow` if asked to."""
    if not proxied:
        return socket.create_connection((address, port), timeout=120)
    channel = socket.create_connection(("127.0.0.1", 3128), timeout=120)
    channel.sendall(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n".encode())
    reply = channel.recv(4096)
    if not reply.startswith(b"HTTP/1.1 200 ") or not reply.endswith(b"\r\n\r\n"):
        raise RuntimeError(reply)
    return channel


def crowd(address: str, port: int, size: int, streams: int, *, proxied: bool) -> dict[str, float]:
    """Return Mbit/s of so many downloads at once, and how many of them arrived whole."""
    whole: list[int] = []
    barrier = threading.Barrier(streams)

    def one() -> None:
        with reach(address, port, proxied=proxied) as channel:
            barrier.wait(60)
            channel.sendall(b"D" + size.to_bytes(8, "big"))
            scratch, got = bytearray(CHUNK), 0
            while got < size and (count := channel.recv_into(scratch)):
                got += count
            whole.append(got)

    threads = [threading.Thread(target=one) for _ in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"whole": whole.count(size), "down": size * streams * 8 / (time.perf_counter() - start) / 1e6}


def measure(address: str, port: int, size: int, connects: int, *, proxied: bool = False) -> dict[str, float]:
    """Return Mbit/s in both directions, and the median of microseconds until the first byte of a connection."""
    result = {}
    for name, word in (("down", b"D"), ("up", b"U")):
        with reach(address, port, proxied=proxied) as channel:
            start = time.perf_counter()
            channel.sendall(word + size.to_bytes(8, "big"))
            if word == b"U":
                left = size
                while left > 0:
                    left -= channel.send(_BUFFER[: min(left, CHUNK)])
                channel.recv(1)
            else:
                scratch, got = bytearray(CHUNK), 0
                while got < size and (count := channel.recv_into(scratch)):
                    got += count
            result[name] = size * 8 / (time.perf_counter() - start) / 1e6
    times = []
    for _ in range(connects):
        start = time.perf_counter()
        with reach(address, port, proxied=proxied) as channel:
            channel.sendall(b"C" + bytes(8))
            channel.recv(1)
        times.append(time.perf_counter() - start)
    if times:
        result["connect"] = statistics.median(times) * 1e6
    return result


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        words, options = sys.argv[1:5], sys.argv[5:]
        task = crowd if "crowd" in options else measure
        print(json.dumps(task(words[0], *map(int, words[1:]), proxied="connect" in options)))
