"""TLS on its way to a permitted name: the ClientHello must name that server, and a second one must again.

The parser understands only what is needed to find one name and refuses everything else, because a server might read
it otherwise. A server may answer the first ClientHello with a request for a second one, and then goes by the name in
that. Anything else that a client sends in the clear before its ClientHello is refused: some servers skip it.
"""

from __future__ import annotations

import asyncio
import re

from claudebox.broker.proxy import sockets
from claudebox.settings.domains import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from claudebox.broker.proxy.sockets import Passage


HANDSHAKE, ALERT, CHANGE_CIPHER_SPEC, APPLICATION_DATA = 22, 21, 20, 23  # types of records
LONGEST = 64 << 10
REFUSAL = bytes((ALERT, 3, 3, 0, 2, 2, 49))  # fatal, access_denied: clients show it to the user
_CLIENT_HELLO, _SERVER_HELLO, _SERVER_NAME, _HOST_NAME = 1, 2, 0, 0
RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_ALERT_SIZE = 7
_WARNINGS = re.compile(rb"(?:\x15\x03.\x00\x02\x01.){0,16}", re.DOTALL)  # which a server may send before its hello
# The `random` of a HelloRetryRequest (RFC 8446, 4.1.3).
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM = _MESSAGE_HEAD + 2


class MalformedHello(ValueError):  # noqa: N818
    """Not a ClientHello that all servers read the same way."""


def is_tls(start: bytes) -> bool:
    """Return whether these first bytes begin a TLS record, or an SSL 2 hello, which some servers still accept."""
    if start[0] & 0x80 and (len(start) < 3 or start[2] == _CLIENT_HELLO):
        return True
    return 20 <= start[0] <= 24 and start[1:2] in (b"", b"\3")


def missing(data: bytes) -> int:
    """Return the length to wait for, 0 if the ClientHello is complete."""
    message, at = _joined(data)
    return 0 if _is_complete(message) else _record_end(data, at)


def _is_complete(message: bytes) -> bool:
    return len(message) >= _MESSAGE_HEAD and len(message) >= _MESSAGE_HEAD + int.from_bytes(message[1:4], "big")


def _record_end(data: bytes, at: int) -> int:
    """Return where the record that starts here ends, or its head if that is incomplete."""
    end = at + RECORD_HEAD
    if len(data) >= end:
        end += int.from_bytes(data[at + 3 : at + 5], "big")
    if end > LONGEST:
        raise MalformedHello("it is too long")
    return end


def _joined(data: bytes, kind: int = _CLIENT_HELLO) -> tuple[bytes, int]:
    """Return what complete records carry up to the end of the first message, and where the next record starts."""
    message, at = b"", 0
    while len(data) - at >= RECORD_HEAD:
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != HANDSHAKE or data[at + 1] != 3 or not 0 < length <= 1 << 14:
            raise MalformedHello("its records are not those of a handshake")
        if len(data) - at - RECORD_HEAD < length:
            break
        message += data[at + RECORD_HEAD : at + RECORD_HEAD + length]
        at += RECORD_HEAD + length
        if _is_complete(message):
            break
    if message and message[0] != kind:
        raise MalformedHello("it does not start with a hello")
    return message, at


def look_for_retry(data: bytes) -> tuple[int, int]:
    """Return how much of a server's answer to wait for, and the size of a HelloRetryRequest; 0 if it is none."""
    warnings = _WARNINGS.match(data)
    at = warnings.end() if warnings is not None else 0
    if data[at : at + 1] == bytes((ALERT,)) and len(data) < at + _ALERT_SIZE:
        return at + _ALERT_SIZE, 0
    if data[at : at + 1] not in (b"", bytes((HANDSHAKE,))):
        return 0, 0
    try:
        message, end = _joined(data[at:], _SERVER_HELLO)
        if not _is_complete(message):
            return _record_end(data, at + end), 0
    except MalformedHello:
        return 0, 0
    return 0, at + end if message[_RANDOM : _RANDOM + len(_RETRY)] == _RETRY else 0


def server_name(data: bytes) -> str:
    """Return the server name in a complete ClientHello, "" if there is none."""
    message, _ = _joined(data)
    if len(message) != _MESSAGE_HEAD + int.from_bytes(message[1:4], "big"):
        raise MalformedHello("something follows it in the same record")
    body = _Fields(message[_MESSAGE_HEAD:])
    body.take(2 + 32)  # version, random
    body.sized(1)  # session
    body.sized(2)  # ciphers
    body.sized(1)  # compressions
    if not body.left:
        return ""
    extensions = _Fields(body.sized(2))
    if body.left:
        raise MalformedHello("something follows its extensions")
    found: list[str] = []
    while extensions.left:
        kind = int.from_bytes(extensions.take(2), "big")
        value = extensions.sized(2)
        if kind == _SERVER_NAME:
            found.append(_host_name(value))
    if len(found) > 1:
        raise MalformedHello("it names its server twice")
    return found[0] if found else ""


def _host_name(value: bytes) -> str:
    whole = _Fields(value)
    entries = _Fields(whole.sized(2))
    kind, name = entries.take(1)[0], entries.sized(2)
    if whole.left or entries.left or kind != _HOST_NAME:
        raise MalformedHello("it names more than one server")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedHello("the name of its server is not ASCII") from None


class _Fields:
    """Takes fields from the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise MalformedHello("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def sized(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))


_PATIENCE = 60.0  # seconds for a server to answer, and for a client to send a second ClientHello
_EARLY = 1 << 20  # bytes of early data before the client reads the HelloRetryRequest


async def names_server(caller: socket.socket, name: str) -> bool:
    """Return whether the ClientHello that comes next, which is not consumed, is for this server."""
    try:
        return canonical(server_name(await sockets.peek(caller, missing))) == name
    except MalformedHello:
        return False


async def pass_hello(caller: socket.socket, far: socket.socket, passage: Passage) -> bool:
    """Pass on a ClientHello that was checked, and check and pass on a second one if the server asks for it."""
    await _pass_client_hello(caller, far, passage)
    async with asyncio.timeout(_PATIENCE):
        try:
            answer = await sockets.peek(far, lambda data: look_for_retry(data)[0])
        except EOFError:  # closed by the server; the pump passes that on
            return True
        _, again = look_for_retry(answer)
        if not again:
            return True
        await _pass(far, caller, again, passage)
        early = 0
        while True:
            head = await sockets.peek(caller, lambda data: 0 if len(data) >= RECORD_HEAD else RECORD_HEAD)
            if head[0] == HANDSHAKE:
                break
            size = RECORD_HEAD + int.from_bytes(head[3:5], "big")
            early += size
            if head[0] not in (CHANGE_CIPHER_SPEC, APPLICATION_DATA) or head[1] != 3 or early > _EARLY:
                return False
            await _pass(caller, far, size, passage)
        if not await names_server(caller, passage.name):
            return False
        await _pass_client_hello(caller, far, passage)
        return True


async def _pass_client_hello(caller: socket.socket, far: socket.socket, passage: Passage) -> None:
    await _pass(caller, far, _joined(await sockets.peek(caller, missing))[1], passage)


async def _pass(source: socket.socket, sink: socket.socket, size: int, passage: Passage) -> None:
    """Pass exactly so many bytes."""
    while size:
        piece = await asyncio.get_running_loop().sock_recv(source, min(size, sockets.LOOK))
        if not piece:
            raise EOFError
        size -= len(piece)
        await sockets.say(sink, piece)
        if sink is passage.far:
            passage.up += len(piece)
        else:
            passage.down += len(piece)
