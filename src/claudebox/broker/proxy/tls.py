"""The first words of TLS: which server a client asks for, and whether it will be asked to say so again. Pure.

Only as much is understood as is needed to find one name; whatever is not exactly so is refused, because a server might
read it otherwise.
"""

from __future__ import annotations

import asyncio

from claudebox.broker.proxy import sockets
from claudebox.settings.domains import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from claudebox.broker.proxy.sockets import Passage


HANDSHAKE, ALERT, CHANGE_CIPHER_SPEC, APPLICATION_DATA = 22, 21, 20, 23  # types of records
LONGEST = 64 << 10
# Fatal, access denied: clients name it to the user.
REFUSAL = bytes((21, 3, 3, 0, 2, 2, 49))
_CLIENT_HELLO, _SERVER_HELLO, _SERVER_NAME, _HOST_NAME = 1, 2, 0, 0
RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_WARNING, _ALERTS = 1, 16
# What a server says for `random` where it wants another ClientHello (RFC 8446, 4.1.3).
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM = _MESSAGE_HEAD + 2


class MalformedHello(ValueError):  # noqa: N818 - what it is, not that it is one
    """Not a greeting that all servers understand alike."""


def is_tls(start: bytes) -> bool:
    """Return whether these first bytes begin a record of TLS, or the greeting of SSL 2 that some servers still take."""
    if start[0] & 0x80 and (len(start) < 3 or start[2] == _CLIENT_HELLO):
        return True
    return 20 <= start[0] <= 24 and start[1:2] in (b"", b"\3")


def missing(data: bytes) -> int:
    """Return how many bytes there must be before more can be told; nothing if the greeting is complete."""
    message, at = _joined(data)
    return 0 if _is_complete(message) else _wanted(data, at)


def _is_complete(message: bytes) -> bool:
    return len(message) >= _MESSAGE_HEAD and len(message) >= _MESSAGE_HEAD + int.from_bytes(message[1:4], "big")


def _wanted(data: bytes, at: int) -> int:
    """Return how many bytes there must be for the record that starts here to be complete."""
    wanted = at + RECORD_HEAD
    if len(data) >= wanted:
        wanted += int.from_bytes(data[at + 3 : at + 5], "big")
    if wanted > LONGEST:
        raise MalformedHello("it is too long")
    return wanted


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
        raise MalformedHello("it does not start with a greeting")
    return message, at


def hello_size(data: bytes) -> int:
    """Return how many bytes the records of a complete greeting take."""
    return _joined(data)[1]


def retry_missing(data: bytes) -> int:
    """Return how many bytes of a server there must be to know what `asks_again` returns; nothing if there are."""
    at = _after_warnings(data)
    if at >= 0 and data[at : at + 1] == bytes((ALERT,)):  # the beginning of one
        return at + RECORD_HEAD + 2
    if at < 0 or (len(data) > at and data[at] != HANDSHAKE):
        return 0
    try:
        message, end = _joined(data[at:], _SERVER_HELLO)
    except MalformedHello:
        return 0
    return 0 if _is_complete(message) else _wanted(data, at + end)


def asks_again(data: bytes) -> int:
    """Return how many bytes a server took to say that it wants another ClientHello; nothing if it does not."""
    at = _after_warnings(data)
    if at < 0:
        return 0
    try:
        message, end = _joined(data[at:], _SERVER_HELLO)
    except MalformedHello:
        return 0
    return at + end if message[_RANDOM : _RANDOM + len(_RETRY)] == _RETRY else 0


def _after_warnings(data: bytes) -> int:
    """Return where something else than warnings starts in what a server said; -1 if it is none that go on."""
    at = 0
    for _ in range(_ALERTS):
        if data[at : at + 1] != bytes((ALERT,)):
            return at
        record = data[at : at + RECORD_HEAD + 2]
        if len(record) == RECORD_HEAD + 2 and record[3:6] != bytes((0, 2, _WARNING)):
            return -1
        if len(record) < RECORD_HEAD + 2:
            return at
        at += RECORD_HEAD + 2
    return -1


def server_name(data: bytes) -> str:
    """Return the name in a complete greeting, or nothing if there is none."""
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
    """Takes bytes from the front."""

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


# TLS on its way to a permitted name, followed until no other server can be asked for any more.
#
# A server may answer the first ClientHello with a request for a second one, and then goes by the name in that. So the
# first is passed on, the server's answer is looked at, and a second one must name the same server. What else a client
# says in the clear before its ClientHello is refused: some servers overlook it, and it would hide the name.


_PATIENCE = 60.0  # seconds for a server to answer, and for a client to speak again
_EARLY = 1 << 20  # bytes that a client has sent before it hears that it must greet again


async def names_server(caller: socket.socket, name: str) -> bool:
    """Return whether the ClientHello that comes next is for this server; nothing of it is taken."""
    try:
        return canonical(server_name(await sockets.peek(caller, missing))) == name
    except MalformedHello:
        return False


async def pass_hello(caller: socket.socket, far: socket.socket, passage: Passage) -> bool:
    """Pass on a ClientHello that was looked at, and a second one if the server wants it; return whether both fit."""
    await _pass(caller, far, hello_size(await sockets.peek(caller, missing)), passage)
    async with asyncio.timeout(_PATIENCE):
        try:
            answer = await sockets.peek(far, retry_missing)
        except EOFError:  # it has ended, and whoever carries the connection passes that on
            return True
        again = asks_again(answer)
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
        await _pass(caller, far, hello_size(await sockets.peek(caller, missing)), passage)
        return True


async def _pass(source: socket.socket, sink: socket.socket, size: int, passage: Passage) -> None:
    """Let exactly so many bytes pass."""
    left = size
    while left:
        piece = await asyncio.get_running_loop().sock_recv(source, min(left, sockets.LOOK))
        if not piece:
            raise EOFError
        left -= len(piece)
        await sockets.say(sink, piece)
        if sink is passage.far:
            passage.up += len(piece)
        else:
            passage.down += len(piece)
