"""The way out of tier `allow`: HTTP CONNECT and plain HTTP on one port, and connections led here by the kernel.

Each connection names where it wants to go; the name must be permitted, its addresses public, and what is said first
must be meant for the same name. From then on the kernel carries it. Refusals come at once, in words that an agent
understands. Listeners belong to the sandbox's network, connections are made from the host's.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from base64 import b64encode
from hmac import compare_digest
from typing import TYPE_CHECKING

from claudebox.broker.http import messages
from claudebox.broker.http.bodies import LAST_CHUNK, ChunkDecoder, framed
from claudebox.broker.http.messages import MalformedHttp
from claudebox.broker.proxy import peek, requests, tls_handshake, tls_sni
from claudebox.broker.proxy.acl import Denied, unrecorded
from claudebox.broker.proxy.dial import NoConnection
from claudebox.broker.reception import Room
from claudebox.config.domains import WEB, canonical

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.proxy.acl import AccessList, Admission, Record
    from claudebox.broker.proxy.dial import Dialer
    from claudebox.broker.proxy.tunnel import Pump
    from claudebox.broker.reception import Reception, Visitor

    Dial = Callable[[], Awaitable[socket.socket]]
    # Takes a connection over of which nothing was read yet; ends both sides itself, and writes its decisions down.
    Interceptor = Callable[[Visitor, str, int, Dial], Awaitable[None]]

_MOST, _DESCRIPTORS = 1024, 6  # connections; two ends and two pipes
USER = "claudebox"  # the name that goes with the password of an entrance
_SSH = b"SSH-"  # some hosts offer it on this port, and no server of TLS goes on after it
GREETING = 20.0  # seconds in which a caller must have said what it wants


class Gateway:
    """Serves the listeners of one sandbox."""

    def __init__(
        self, access_list: AccessList, dialer: Dialer, pump: Pump, *, record: Record = unrecorded,
        intercept: Callable[[str, int], Interceptor | None] | None = None, password: str = "",
    ) -> None:  # fmt: skip
        self._door, self._dialer, self._pump = access_list, dialer, pump
        self._login = b"Basic " + b64encode(f"{USER}:{password}".encode()) if password else b""
        self._record, self._intercept = record, intercept
        self._room = Room(_MOST, _DESCRIPTORS)

    def serve(self, reception: Reception, listener: socket.socket, *, redirected: bool = False) -> None:
        """Take callers in; `redirected` ones were led here by the kernel and expect no proxy."""
        reception.listen(listener, self._room, functools.partial(self._attend, redirected=redirected))

    async def _attend(self, caller: Visitor, *, redirected: bool) -> None:
        """Serve one caller; whatever goes wrong is its own affair."""
        try:
            caller.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await (self._redirected(caller) if redirected else self._proxied(caller))
        except (OSError, EOFError, TimeoutError, ValueError):
            peek.reset(caller.channel)

    async def _proxied(self, caller: Visitor) -> None:
        try:
            async with asyncio.timeout(GREETING):
                first = await peek.peek(caller.channel, lambda _: 0)
                if first[0] == tls_sni.HANDSHAKE:  # TLS to the proxy itself
                    return await peek.part(caller.channel, tls_sni.REFUSAL)
                head = requests.parse_head(await peek.peek(caller.channel, requests.missing))
        except MalformedHttp as error:
            return await self._refuse_http(caller, error)
        caller.heard()
        if not self._knows(head):
            return await peek.part(caller.channel, requests.WHO_ARE_YOU)
        return await (self._connect(caller, head) if head.method == "CONNECT" else self._forward(caller, head))

    def _knows(self, head: requests.ProxyRequest) -> bool:
        """Return whether a caller is of our sandbox: on this machine's loopback others could come too."""
        said = [value for name, value in head.request.headers if name == b"proxy-authorization"]
        return not self._login or (len(said) == 1 and compare_digest(said[0], self._login))

    async def _connect(self, caller: Visitor, head: requests.ProxyRequest) -> None:
        try:
            admitted, far = await self._reach(*requests.authority(head.target, 0))
        except (Denied, NoConnection, MalformedHttp) as error:
            return await self._refuse_http(caller, error)
        return await self._open(caller, admitted, far, head.size, b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def _forward(self, caller: Visitor, head: requests.ProxyRequest) -> None:
        """Pass one request on that was written for a proxy."""
        try:
            where, path = requests.split_url(head.target)
            host, port = requests.authority(where, 80)
            admitted = self._door.admit(host, port)
            return await self._ask(caller, head, admitted, path)
        except (Denied, NoConnection, MalformedHttp) as error:
            return await self._refuse_http(caller, error)

    async def _ask(
        self,
        caller: Visitor,
        head: requests.ProxyRequest,
        admitted: Admission,
        path: str,
        far: socket.socket | None = None,
    ) -> None:
        """Send one request to the server that it is for, and let body and answer pass."""
        host = admitted.name if admitted.port == 80 else f"{admitted.name}:{admitted.port}"
        if far is None and self._dialer.asks_by_url(admitted.name, admitted.port):
            far = await self._counted(admitted, self._dialer.approach(admitted.name, admitted.port))
            request = requests.single(head, f"http://{host}{path}", host)
        else:
            far = far or await self._counted(admitted, self._dialer.dial(admitted.name, admitted.port))
            request = requests.single(head, path, host)
        try:
            await peek.say(far, request)
            await peek.take(caller.channel, head.size)
            sent = len(request)
            if head.is_chunked:
                if head.request.header(b"expect") is not None:
                    await peek.say(caller.channel, b"HTTP/1.1 100 Continue\r\n\r\n")
                sent += await _pass_chunks(caller.channel, far)
        except BaseException:
            far.close()
            raise
        # Whatever follows its body is not for this server: a proxy would take it for another request.
        return self._carry(caller, admitted, far, sent, messages.request_framing(head.request)[1])

    async def _redirected(self, caller: Visitor) -> None:
        """Serve somebody who connected to an address that we had given out for a name."""
        address, port = original_destination(caller.channel)
        try:
            admitted, far = await self._reach(address, port)
        except (Denied, NoConnection) as error:
            if port == 80:
                return await self._refuse_http(caller, error)
            if port == 443 and isinstance(error, Denied):
                return await peek.part(caller.channel, tls_sni.REFUSAL)
            return peek.reset(caller.channel)
        return await self._open(caller, admitted, far)

    async def _reach(self, host: str, port: int) -> tuple[Admission, socket.socket | None]:
        """Return a connection; none yet to a server that the proxy of this machine is to be asked for by URL."""
        admitted = self._door.admit(host, port)
        if port == 80 and self._dialer.asks_by_url(admitted.name, port):
            return admitted, None
        return admitted, await self._counted(admitted, self._dialer.dial(admitted.name, port))

    async def _counted(self, admitted: Admission, dialling: Awaitable[socket.socket]) -> socket.socket:
        """Wait for a connection, and write it down if none comes about."""
        try:
            return await dialling
        except Denied as refusal:
            self._record(host=admitted.name, port=admitted.port, verdict="denied", rule=refusal.rule)
            raise
        except (NoConnection, OSError) as error:
            self._record(host=admitted.name, port=admitted.port, verdict="failed", rule=admitted.rule)
            raise error if isinstance(error, NoConnection) else NoConnection(str(error)) from None

    async def _open(
        self, caller: Visitor, admitted: Admission, far: socket.socket | None, taken: int = 0, word: bytes = b""
    ) -> None:
        """Look at what is said first, and open the way if it is meant for the server that was asked for."""
        try:
            await peek.take(caller.channel, taken)
            await peek.say(caller.channel, word)
            if far is None:
                return await self._open_http(caller, admitted, far)
            if not self._door.looks and (
                self._intercept is None or self._intercept(admitted.name, admitted.port) is None
            ):
                return self._carry(caller, admitted, far)
            caller.expect()
            speaker = await peek.first_to_speak(caller.channel, far)
            if speaker is far and admitted.port in WEB and not peek.has_ended(far):
                speaker = await peek.first_to_speak(caller.channel)  # on the web, clients speak first
            if speaker is caller.channel:
                async with asyncio.timeout(GREETING):
                    start = await peek.peek_all(caller.channel, requests.line_missing)
                if tls_sni.is_tls(start):
                    return await self._open_tls(caller, admitted, far)
                if admitted.port == 80 or requests.is_request(start):
                    return await self._open_http(caller, admitted, far)
                if admitted.port == 443 and not start.startswith(_SSH):
                    return await self._refuse_tls(caller, admitted, far, "not-tls")
        except BaseException:
            if far is not None:
                far.close()
            self._record(host=admitted.name, port=admitted.port, verdict="allowed", rule=admitted.rule)
            raise
        return self._carry(caller, admitted, far)

    async def _open_tls(self, caller: Visitor, admitted: Admission, far: socket.socket) -> None:
        async with asyncio.timeout(GREETING):
            meant = await tls_handshake.names_server(caller.channel, admitted.name)
        caller.heard()
        if not meant:
            return await self._refuse_tls(caller, admitted, far)
        handler = self._intercept(admitted.name, admitted.port) if self._intercept is not None else None
        if handler is None:
            meant, sent = await tls_handshake.pass_hello(caller.channel, far, admitted.name)
            return self._carry(caller, admitted, far, sent) if meant else await self._refuse_tls(caller, admitted, far)

        async def handed() -> socket.socket:
            return far

        try:
            await handler(caller, admitted.name, admitted.port, handed)  # it writes down what it does
        finally:
            far.close()
        return None

    async def _refuse_tls(
        self, caller: Visitor, admitted: Admission, far: socket.socket, rule: str = "other-server-name"
    ) -> None:
        far.close()
        self._record(host=admitted.name, port=admitted.port, verdict="denied", rule=rule)
        await peek.part(caller.channel, tls_sni.REFUSAL)

    async def _open_http(self, caller: Visitor, admitted: Admission, far: socket.socket | None) -> None:
        """Pass one request of plain HTTP on: its `Host` must be the server that was asked for."""
        try:
            async with asyncio.timeout(GREETING):
                head = requests.parse_head(await peek.peek(caller.channel, requests.missing))
            caller.heard()
            host, port = requests.authority(head.host, admitted.port)
            if (canonical(host), port) != (admitted.name, admitted.port) or not head.target.startswith(("/", "*")):
                raise self._door.denial(host, port, "other-host", f"this connection is for `{admitted.name}`")
            return await self._ask(caller, head, admitted, head.target, far)
        except (Denied, NoConnection, MalformedHttp) as error:
            if far is not None:
                far.close()
            return await self._refuse_http(caller, error)

    def _carry(
        self, caller: Visitor, admitted: Admission, far: socket.socket, sent: int = 0, limit: int | None = None
    ) -> None:
        """Hand both sides to the kernel, and write down how much passed when it is over."""

        def ended(up: int, down: int) -> None:
            caller.leave()
            self._record(
                host=admitted.name, port=admitted.port, verdict="allowed", rule=admitted.rule, up=sent + up, down=down
            )

        caller.heard()
        caller.stays = True
        self._pump.carry(caller.channel, far, ended, limit)

    async def _refuse_http(self, caller: Visitor, error: Exception) -> None:
        if isinstance(error, Denied):
            answer = requests.response(403, f"Not permitted by claudebox ({error.rule})", f"claudebox: {error.text}")
        elif isinstance(error, MalformedHttp):
            answer = requests.response(400, "Bad Request", f"claudebox does not take it: {error}")
        else:
            answer = requests.response(
                502, "Bad Gateway", f"claudebox: {error}. The name is permitted; it may be down."
            )
        caller.heard()
        await peek.part(caller.channel, answer)


async def _pass_chunks(caller: socket.socket, far: socket.socket) -> int:
    """Pass the body of a request that comes in chunks, until it or the server's patience ends; return its length."""
    chunks, sent = ChunkDecoder(strict=True), 0
    while not chunks.ended and await peek.first_to_speak(caller, far) is caller:
        piece = await asyncio.get_running_loop().sock_recv(caller, peek.LOOK)
        if not piece:
            raise EOFError
        content, _ = chunks.feed(piece)
        if content:
            await peek.say(far, framed(content, "chunked"))
        sent += len(content)
    if chunks.ended:
        await peek.say(far, LAST_CHUNK)
    return sent


def original_destination(caller: socket.socket) -> tuple[str, int]:
    """Return where somebody wanted to go whom a rule of nf_tables led here."""
    packed = caller.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
    return socket.inet_ntoa(packed[4:8]), int.from_bytes(packed[2:4], "big")
