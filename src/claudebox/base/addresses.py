"""Addresses, prefixes, and hosts with ports: parsing and arithmetic."""

from __future__ import annotations

from claudebox.base.syscalls import socket

NAT64 = "64:ff9b::/96"  # carries an IPv4 address in its last four bytes
Prefix = tuple[bytes, int]  # packed address and length; four bytes are IPv4, sixteen are IPv6
# A route without a gateway that is wider than this is a VPN's way to the internet, and not a neighbourhood.
_SHORTEST = {4: 8, 16: 16}


def pack(text: str) -> bytes:
    """Return the bytes of an IP address; none if the text is anything else."""
    try:
        return parse_prefix(text)[0] if "/" not in text else b""
    except (OSError, ValueError):
        return b""


def parse_prefix(text: str) -> Prefix:
    """Return the prefix that a text names; raise OSError if it names none."""
    address, _, length = text.partition("/")
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return packed, int(length) if length else len(packed) * 8


def show(prefix: Prefix) -> str:
    packed, length = prefix
    return f"{socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)}/{length}"


def network(packed: bytes, length: int) -> Prefix:
    """Return the prefix of this length in which an address lies."""
    return (int.from_bytes(packed, "big") & _mask(len(packed), length)).to_bytes(len(packed), "big"), length


def netmask(prefix: Prefix) -> bytes:
    return _mask(len(prefix[0]), prefix[1]).to_bytes(len(prefix[0]), "big")


def _mask(size: int, length: int) -> int:
    whole = size * 8
    return (1 << whole) - (1 << (whole - length))


def covers(outer: Prefix, inner: Prefix) -> bool:
    """Return whether every address of `inner` lies in `outer`."""
    return len(outer[0]) == len(inner[0]) and outer[1] <= inner[1] and network(inner[0], outer[1]) == outer


def embedded(prefix: Prefix) -> Prefix:
    """Return the NAT64 form of an IPv4 prefix."""
    return parse_prefix(NAT64)[0][:12] + prefix[0], 96 + prefix[1]


def neighbourhood(prefix: Prefix) -> bool:
    """Return whether a prefix that the host reaches without a gateway is small enough to be its neighbourhood."""
    return prefix[1] >= _SHORTEST[len(prefix[0])]


def read_port(text: str) -> int:
    """Return a port, or 0 if the text is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if number < 65536 else 0


def split_place(text: str) -> tuple[str, str | None]:
    """Return host and port of `HOST[:PORT]`, IPv6 with a port in brackets; no host if it is malformed."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            return "", None
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None
