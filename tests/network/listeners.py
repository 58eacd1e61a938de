"""Answers for one place of the topology: its name over TCP and UDP on every address, and names from a small table."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

PORT = 8000
NAMES = {
    "public.example": ("203.0.113.80", "2001:db8:1::80"),
    "rebound.example": ("192.168.77.50", "fd77::1"),
    "metadata.example": ("169.254.169.254", "fd00:ec2::254"),
    "loopback.example": ("127.0.0.1", "::1"),
    "vault.example": ("203.0.113.83", ""),
    "thief.example": ("203.0.113.84", ""),
    "inner.example": ("192.168.77.50", ""),
    "www.public.example": ("203.0.113.80", "2001:db8:1::80"),
    "other.example": ("203.0.113.80", "2001:db8:1::80"),
    "four.example": ("203.0.113.80", ""),
    "six.example": ("", "2001:db8:1::80"),
    "dead-six.example": ("203.0.113.80", "2001:db8:1::dead"),
    "mixed.example": ("203.0.113.80 192.168.77.50", ""),
    "mapped.example": ("", "::ffff:192.168.77.50"),
    "host.example": ("198.51.100.2", "2001:db8:77::2"),
    "roaming.example": ("192.0.2.50", ""),
    "nobody.example": ("203.0.113.99", ""),
    "openssl.example": ("203.0.113.85", ""),
    "go.example": ("203.0.113.86", ""),
    "java.example": ("203.0.113.87", ""),
}
# What only the server of the VPN knows.
NAMES_OF_VPN = {"intranet.example": ("100.64.7.1", "")}
# Each question has the other answer: what was checked is not what a second look would find.
FLIPPING = {"flipping.example": ("203.0.113.80", "192.168.77.50")}
_asked = [0]


def answer(query: bytes, place: str = "lan") -> bytes:
    """Return the DNS response."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    kind = struct.unpack_from(">H", query, at + 1)[0]
    question = query[12 : at + 5]
    name = ".".join(labels).lower()
    found = (NAMES_OF_VPN if place == "tailnet" else NAMES).get(name)
    if name in FLIPPING:
        _asked[0] += kind == 1
        found = (FLIPPING[name][_asked[0] % 2], "")
    records = []
    if found and kind in (1, 28):
        family = socket.AF_INET if kind == 1 else socket.AF_INET6
        for address in found[kind == 28].split():
            packed = socket.inet_pton(family, address)
            records.append(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(packed)) + packed)
    head = struct.pack(">HHHHH", 0x8180 if found else 0x8183, 1, len(records), 0, 0)
    return query[:2] + head + question + b"".join(records)


class Datagrams(asyncio.DatagramProtocol):
    """UDP: the name of the place, or a DNS answer."""

    def __init__(self, place: str, *, dns: bool) -> None:
        self.place, self.dns = place, dns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.dns and b"\x06silent\x07example" in data:
            return  # a server that never answers for these
        reply = answer(data, self.place) if self.dns else self.place.encode()
        self.transport.sendto(reply, addr)  # type: ignore[attr-defined]


async def main(place: str) -> None:
    loop = asyncio.get_running_loop()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(place.encode() + b"\n")
        try:
            await writer.drain()
            writer.close()
        except OSError:
            return

    async def resolve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = struct.unpack(">H", await reader.readexactly(2))[0]
        reply = answer(await reader.readexactly(length))
        writer.write(struct.pack(">H", len(reply)) + reply)
        await writer.drain()
        writer.close()

    await asyncio.start_server(greet, None, PORT)
    addresses = ["0.0.0.0", "::"]
    if place == "lan":
        addresses = ["192.168.77.1", "192.168.77.50", "fd77::1", "169.254.169.254"]
        await asyncio.start_server(resolve, ["192.168.77.1", "fd77::1"], 53)
        for address in ("192.168.77.1", "fd77::1"):
            await loop.create_datagram_endpoint(lambda: Datagrams(place, dns=True), (address, 53))
    if place == "tailnet":
        await loop.create_datagram_endpoint(lambda: Datagrams(place, dns=True), ("100.64.7.1", 53))
    for address in addresses:
        channel = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        if ":" in address:
            channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        channel.bind((address, PORT))
        await loop.create_datagram_endpoint(lambda: Datagrams(place, dns=False), sock=channel)
    print("listening", flush=True)  # noqa: T201
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1]))
