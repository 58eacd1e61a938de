"""Runs inside or outside: tries every target given as JSON and prints what answered, as JSON.

A target is [kind, address, port]; the result is the answer, or the name of the error and the seconds that it took.
"""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import socket
import struct
import sys
import time

TIMEOUT = 4.0


def attempt(target: list[object]) -> tuple[str, float]:
    kind, address, port = str(target[0]), str(target[1]), int(str(target[2]))
    start = time.monotonic()
    try:
        result = KINDS[kind](address, port)
    except TimeoutError:
        result = "timeout"
    except OSError as error:
        result = errno.errorcode.get(error.errno or 0, str(error))
    return result, time.monotonic() - start


def connect(address: str, port: int, prepare: object = None) -> str:
    info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(info[0], info[1]) as channel:
        channel.settimeout(TIMEOUT)
        if prepare is not None:
            prepare(channel)  # type: ignore[operator]
        channel.connect(info[4])
        return channel.recv(64).decode().strip()


def device() -> str:
    return next((name for _, name in socket.if_nameindex() if name != "lo"), "lo")


def bound(address: str, port: int) -> str:
    name = device()
    return connect(address, port, lambda channel: channel.setsockopt(socket.SOL_SOCKET, 25, name.encode() + b"\0"))


def source_routed(address: str, port: int) -> str:
    hop = socket.inet_aton(address)
    option = b"\x01" + bytes([131, 7, 4]) + hop
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as channel:
        channel.settimeout(TIMEOUT)
        channel.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, option)
        channel.connect(("203.0.113.80", port))
        return channel.recv(64).decode().strip()


def udp(address: str, port: int) -> str:
    info = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], info[1]) as channel:
        channel.settimeout(TIMEOUT)
        channel.sendto(b"?", info[4])
        return channel.recv(64).decode()


def pktinfo(address: str, port: int) -> str:
    index = socket.if_nametoindex(device())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(TIMEOUT)
        ancillary = (socket.IPPROTO_IP, 8, struct.pack("=I4s4s", index, bytes(4), bytes(4)))
        channel.sendmsg([b"?"], [ancillary], 0, (address, port))
        return channel.recv(64).decode()


def ping(address: str, port: int) -> str:
    six = ":" in address
    family, protocol = (socket.AF_INET6, 58) if six else (socket.AF_INET, 1)
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as channel:
        channel.settimeout(TIMEOUT)
        if six:  # as ping(8) does, to hear of refusals
            channel.setsockopt(socket.IPPROTO_IPV6, 25, 1)
        channel.sendto(struct.pack(">BBHHH", 128 if six else 8, 0, 0, 1, 1) + b"claudebox", (address, 0))
        reply = channel.recv(256)
        return "echo" if b"claudebox" in reply else reply.hex()


def lookup(address: str, port: int) -> str:
    found = {str(info[4][0]) for info in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)}
    return " ".join(sorted(found))


def tcp_lookup(address: str, port: int) -> str:
    """Ask the server of resolv.conf over TCP."""
    with open("/etc/resolv.conf") as file:
        server = next(line.split()[1] for line in file if line.startswith("nameserver"))
    name = b"".join(bytes([len(label)]) + label.encode() for label in address.split(".")) + b"\0"
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + b"\x00\x01\x00\x01"
    with socket.create_connection((server, 53), timeout=TIMEOUT) as channel:
        channel.sendall(struct.pack(">H", len(query)) + query)
        reply = channel.recv(512)
        return socket.inet_ntoa(reply[-4:])


def tunnelled(address: str, port: int) -> str:
    """Ask the proxy of the environment for a connection, in the words of HTTP; `address` may be anything."""
    with socket.create_connection(("127.0.0.1", 3128), timeout=TIMEOUT) as channel:
        channel.sendall(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n".encode())
        reply = b""
        while not reply.endswith(b"\r\n\r\n") and (piece := channel.recv(1)):
            reply += piece
        status = reply.split(b" ", 2)[1].decode() if reply else "nothing"
        return channel.recv(64).decode().strip() if status == "200" else status


KINDS = {
    "connect": tunnelled,
    "tcp": connect, "udp": udp, "ping": ping, "bound": bound, "pktinfo": pktinfo, "source-routed": source_routed,
    "lookup": lookup, "tcp-lookup": tcp_lookup,
}  # fmt: skip


def wait_for_ipv6() -> None:
    """IPv6 may come a moment later, by router advertisement (F10)."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with open("/proc/net/ipv6_route") as file:
            if any(line.startswith("0" * 32 + " 00 ") and not line.rstrip().endswith(" lo") for line in file):
                return
        time.sleep(0.02)


if __name__ == "__main__":
    if "--wait" in sys.argv:
        wait_for_ipv6()
    if "--follow" in sys.argv:  # one target per line, for as long as somebody asks
        for line in sys.stdin:
            print(json.dumps(attempt(json.loads(line))), flush=True)  # noqa: T201
        sys.exit(0)
    targets = json.loads(sys.argv[1])
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(attempt, targets))
    print(json.dumps(results))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)
