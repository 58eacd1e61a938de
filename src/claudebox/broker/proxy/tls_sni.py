"""The first words of TLS: which server a client asks for. Pure.

Only as much is understood as is needed to find one name; whatever is not exactly so is refused, because a server might
read it otherwise.
"""

from __future__ import annotations

HANDSHAKE = 22  # first byte of everything that starts with TLS
LONGEST = 64 << 10
# Fatal, access denied: clients name it to the person.
REFUSAL = bytes((21, 3, 3, 0, 2, 2, 49))
_CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 1, 0, 0
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4


class Malformed(ValueError):  # noqa: N818 - what it is, not that it is one
    """Not a greeting that all servers understand alike."""


def missing(data: bytes) -> int:
    """Return how many bytes there must be before more can be told; nothing if the greeting is complete."""
    message, at = _joined(data)
    if len(message) >= _MESSAGE_HEAD and len(message) >= _MESSAGE_HEAD + int.from_bytes(message[1:4], "big"):
        return 0
    wanted = at + _RECORD_HEAD
    if len(data) >= wanted:
        wanted += int.from_bytes(data[at + 3 : at + 5], "big")
    if wanted > LONGEST:
        raise Malformed("it is too long")
    return wanted


def _joined(data: bytes) -> tuple[bytes, int]:
    """Return what complete records carry, and where the first incomplete one starts."""
    message, at = b"", 0
    while len(data) - at >= _RECORD_HEAD:
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != HANDSHAKE or data[at + 1] != 3 or not 0 < length <= 1 << 14:
            raise Malformed("its records are not those of a handshake")
        if len(data) - at - _RECORD_HEAD < length:
            break
        message += data[at + _RECORD_HEAD : at + _RECORD_HEAD + length]
        at += _RECORD_HEAD + length
    if message and message[0] != _CLIENT_HELLO:
        raise Malformed("it does not start with a client's greeting")
    return message, at


def server_name(data: bytes) -> str:
    """Return the name in a complete greeting, or nothing if there is none."""
    message, _ = _joined(data)
    body = _Reader(message[_MESSAGE_HEAD : _MESSAGE_HEAD + int.from_bytes(message[1:4], "big")])
    body.take(2 + 32)  # version, random
    body.sized(1)  # session
    body.sized(2)  # ciphers
    body.sized(1)  # compressions
    if not body.left:
        return ""
    extensions = _Reader(body.sized(2))
    if body.left:
        raise Malformed("something follows its extensions")
    found: list[str] = []
    while extensions.left:
        kind = int.from_bytes(extensions.take(2), "big")
        value = extensions.sized(2)
        if kind == _SERVER_NAME:
            found.append(_host_name(value))
    if len(found) > 1:
        raise Malformed("it names its server twice")
    return found[0] if found else ""


def _host_name(value: bytes) -> str:
    whole = _Reader(value)
    entries = _Reader(whole.sized(2))
    kind, name = entries.take(1)[0], entries.sized(2)
    if whole.left or entries.left or kind != _HOST_NAME:
        raise Malformed("it names more than one server")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("the name of its server is not ASCII") from None


class _Reader:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise Malformed("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def sized(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))
