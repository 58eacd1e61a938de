"""The words of SOCKS 5 (RFC 1928): taken apart and put together. Pure."""

from __future__ import annotations

import socket

from claudebox.values import Value

VERSION, CONNECT = 5, 1
GRANTED, NOT_ALLOWED, UNREACHABLE, NO_COMMAND = 0, 2, 4, 7
METHOD, NO_METHOD = b"\x05\x00", b"\x05\xff"
_ADDRESS4, _NAME, _ADDRESS6 = 1, 3, 4
_SIZES = {_ADDRESS4: 4, _ADDRESS6: 16}


class Wish(Value):
    """What a caller wants."""

    command: int
    host: str
    port: int
    size: int


def greeting_missing(data: bytes) -> int:
    """Return how many bytes a greeting needs, if it is not complete."""
    wanted = 2 + data[1] if len(data) > 1 else 2
    return 0 if len(data) >= wanted else wanted


def greeting_size(data: bytes) -> int:
    """Return the length of a complete greeting."""
    return 2 + data[1]


def anonymous(data: bytes) -> bool:
    """Return whether a caller would do without a password."""
    return 0 in data[2 : greeting_size(data)]


def request_missing(data: bytes) -> int:
    """Return how many bytes a request needs, if it is not complete."""
    wanted = 5 if len(data) < 5 else _request_size(data)
    return 0 if len(data) >= wanted else wanted


def _request_size(data: bytes) -> int:
    if data[0] != VERSION or data[2] != 0 or data[3] not in (_ADDRESS4, _NAME, _ADDRESS6):
        raise ValueError("not a request of SOCKS 5")
    return 4 + (1 + data[4] if data[3] == _NAME else _SIZES[data[3]]) + 2


def request(data: bytes) -> Wish:
    """Take a complete request apart."""
    size = _request_size(data)
    where = data[4 : size - 2]
    if data[3] == _NAME:
        host = where[1:].decode("latin-1")
    else:
        host = socket.inet_ntop(socket.AF_INET if data[3] == _ADDRESS4 else socket.AF_INET6, where)
    return Wish(data[1], host, int.from_bytes(data[size - 2 : size], "big"), size)


def reply(code: int) -> bytes:
    """Return an answer; the address in it means nothing."""
    return bytes((VERSION, code, 0, _ADDRESS4)) + bytes(6)
