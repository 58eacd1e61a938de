"""TLS on its way to a permitted name, followed until no other server can be asked for any more.

A server may answer the first ClientHello with a request for a second one, and then goes by the name in that. So the
first is passed on, the server's answer is looked at, and a second one must name the same server. What else a client
says in the clear before its ClientHello is refused: some servers overlook it, and it would hide the name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from claudebox.broker.proxy import peek, tls_sni
from claudebox.broker.proxy.tls_sni import MalformedHello
from claudebox.config.domains import canonical

if TYPE_CHECKING:
    import socket

    from claudebox.broker.proxy.tunnel import Passage

_PATIENCE = 60.0  # seconds for a server to answer, and for a client to speak again
_EARLY = 1 << 20  # bytes that a client has sent before it hears that it must greet again


async def names_server(caller: socket.socket, name: str) -> bool:
    """Return whether the ClientHello that comes next is for this server; nothing of it is taken."""
    try:
        return canonical(tls_sni.server_name(await peek.peek(caller, tls_sni.missing))) == name
    except MalformedHello:
        return False


async def pass_hello(caller: socket.socket, far: socket.socket, passage: Passage) -> bool:
    """Pass on a ClientHello that was looked at, and a second one if the server wants it; return whether both fit."""
    await _pass(caller, far, tls_sni.hello_size(await peek.peek(caller, tls_sni.missing)), passage)
    async with asyncio.timeout(_PATIENCE):
        try:
            answer = await peek.peek(far, tls_sni.retry_missing)
        except EOFError:  # it has ended, and whoever carries the connection passes that on
            return True
        again = tls_sni.asks_again(answer)
        if not again:
            return True
        await _pass(far, caller, again, passage)
        early = 0
        while True:
            head = await peek.peek(caller, lambda data: 0 if len(data) >= tls_sni.RECORD_HEAD else tls_sni.RECORD_HEAD)
            if head[0] == tls_sni.HANDSHAKE:
                break
            size = tls_sni.RECORD_HEAD + int.from_bytes(head[3:5], "big")
            early += size
            if head[0] not in (tls_sni.CHANGE_CIPHER_SPEC, tls_sni.APPLICATION_DATA) or head[1] != 3 or early > _EARLY:
                return False
            await _pass(caller, far, size, passage)
        if not await names_server(caller, passage.name):
            return False
        await _pass(caller, far, tls_sni.hello_size(await peek.peek(caller, tls_sni.missing)), passage)
        return True


async def _pass(source: socket.socket, sink: socket.socket, size: int, passage: Passage) -> None:
    """Let exactly so many bytes pass."""
    left = size
    while left:
        piece = await asyncio.get_running_loop().sock_recv(source, min(left, peek.LOOK))
        if not piece:
            raise EOFError
        left -= len(piece)
        await peek.say(sink, piece)
        if sink is passage.far:
            passage.up += len(piece)
        else:
            passage.down += len(piece)
