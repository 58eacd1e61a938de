"""The proxy of tier `allow`: HTTP CONNECT and plain HTTP on one port, and connections redirected by the kernel.

Each connection asks for a name. The name must be permitted, its addresses public, and the first thing sent must be
meant for the same name; from then on the kernel carries the bytes. Refusals are immediate, in words for an agent.
The netns holder opened the listeners inside the sandbox's network; connections are made from the host's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import socket
import sys
from base64 import b64encode
from hmac import compare_digest

from claudebox.base.addresses import read_port, split_place
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.broker.http import messages
from claudebox.broker.http.messages import LAST_CHUNK, ChunkDecoder, MalformedHttp, framed
from claudebox.broker.proxy import sockets, tls
from claudebox.broker.proxy.dial import Dialer, NoConnection, NothingBarred, RangeWatch
from claudebox.broker.proxy.names import AccessList, Denied, EveryName, Names, answer_datagrams, unrecorded
from claudebox.broker.proxy.sockets import Passage, Pump
from claudebox.broker.reception import Room
from claudebox.broker.wire import CONTROL, READY
from claudebox.settings.domains import WEB, Permission, canonical, parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.messages import Headers, Request
    from claudebox.broker.main import Context
    from claudebox.broker.proxy.names import Record
    from claudebox.broker.reception import Reception, Visitor
    from claudebox.network.records import ProxyConfig

    Dial = Callable[[], Awaitable[socket.socket]]
    # Takes over a connection of which nothing was read yet; closes both sides and logs its decisions itself.
    Interceptor = Callable[[Visitor, str, int, Dial], Awaitable[None]]


# Requests to a proxy, and its answers. Pure.

LONGEST = 64 << 10
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_BLANK = b"\t\n\x0b\x0c\r \x1c\x1d\x1e\x1f\x85\xa0"  # what some server takes for space
_WORD = re.compile(b"[^%s]*" % _BLANK)
_FRAMING = (b"content-length", b"transfer-encoding")
_OWN = (*_FRAMING, b"host", b"http2-settings")


class ProxyRequest(Value):
    """The head of a request that was peeked at."""

    request: Request
    size: int  # in bytes, with the empty line

    @property
    def target(self) -> str:
        return self.request.target.decode()

    @property
    def is_chunked(self) -> bool:
        return messages.request_framing(self.request)[0] == "chunked"

    @property
    def host(self) -> str:
        hosts = [value for name, value in self.request.headers if name == b"host"]
        if len(hosts) != 1:
            raise MalformedHttp("exactly one `Host` is required")
        return hosts[0].decode("latin-1")


def missing(data: bytes) -> int:
    """Return the length to wait for, 0 if the head is complete."""
    return 0 if messages.cut(data, LONGEST) else len(data) + 1


def line_missing(data: bytes) -> int:
    """Return the length to wait for before `is_request` can tell; servers skip empty lines in front."""
    return 0 if b"\n" in data.lstrip(_BLANK) or not _may_be_request(data) or len(data) >= LONGEST else len(data) + 1


def is_request(data: bytes) -> bool:
    """Return whether these first bytes are HTTP with any method: the first line says so, or is endless."""
    line, end, _ = data.lstrip(_BLANK).partition(b"\n")
    return b"HTTP/" in line.upper() if end else len(data) >= LONGEST and _may_be_request(data)


def _may_be_request(data: bytes) -> bool:
    start = data.lstrip(_BLANK)
    word = _WORD.match(start)
    return b"\0" not in start and word is not None and _TOKEN.issuperset(word[0])


def parse_head(data: bytes) -> ProxyRequest:
    size = messages.cut(data, LONGEST)
    request = messages.parse_request(data[:size], any_host=True)
    messages.request_framing(request)
    return ProxyRequest(request, size)


def authority(text: str, default: int) -> tuple[str, int]:
    """Return host and port of `HOST[:PORT]`."""
    host, port = split_place(text)
    number = default if port is None else read_port(port)
    if port is not None and not number:
        raise MalformedHttp("it names no port")
    return host, number


def split_url(target: str) -> tuple[str, str]:
    """Return the authority and the path of an `http://` URL."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise MalformedHttp("a proxy takes `CONNECT host:port`, or a URL that starts with http://")
    end = min((at for at in (rest.find(mark) for mark in "/?#") if at >= 0), default=len(rest))
    where, path = rest[:end], rest[end:]
    if "@" in where:
        raise MalformedHttp("its URL has a user name in it")
    return where, path if path.startswith("/") else f"/{path}"


def single(head: ProxyRequest, target: str, host: str) -> bytes:
    """Return the head for exactly this host, on a connection that serves this one request."""
    request = head.request
    framing = tuple(pair for pair in request.headers if pair[0] in _FRAMING)
    own = (*_OWN, b"expect") if head.is_chunked else _OWN
    kept = tuple(pair for pair in messages.end_to_end(request.headers) if pair[0] not in own)
    headers: Headers = ((b"host", host.encode()), (b"connection", b"close"), *kept, *framing)
    return messages.render_request(request.replace(target=target.encode(), headers=headers))


def response(status: int, reason: str, text: str, *more: str) -> bytes:
    """Return an answer of the proxy itself."""
    body = f"{text}\n".encode("ascii", "replace")
    phrase = "".join(char if " " <= char <= "~" else "?" for char in reason)[:200]
    lines = (
        f"HTTP/1.1 {status} {phrase}", "Content-Type: text/plain; charset=us-ascii", f"Content-Length: {len(body)}",
        "Connection: close", "Proxy-Connection: close", "Cache-Control: no-store", "Via: claudebox", *more,
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_LOGIN_REQUIRED = response(
    407,
    "Proxy Authentication Required",
    "claudebox: this entrance is for one sandbox",
    'Proxy-Authenticate: Basic realm="claudebox"',
)


_MOST, _DESCRIPTORS = 1024, 6  # connections; two ends and two pipes each
_USER = "claudebox"  # goes with the password of the entrance on the host's loopback
_SSH = b"SSH-"  # some hosts offer it on port 443; no TLS server continues after it
GREETING = 20.0  # seconds for a caller to send its first message


class Gateway:
    """Serves the proxy's listeners of one sandbox."""

    def __init__(
        self, access_list: AccessList, dialer: Dialer, pump: Pump, *, record: Record = unrecorded,
        intercept: Callable[[str, int], Interceptor | None] = lambda *_: None, password: str = "",
    ) -> None:  # fmt: skip
        self._access, self._dialer, self._pump = access_list, dialer, pump
        self._login = b"Basic " + b64encode(f"{_USER}:{password}".encode()) if password else b""
        self._record, self._intercept = record, intercept
        self._room = Room(_MOST, _DESCRIPTORS)

    def serve(self, reception: Reception, listener: socket.socket, *, redirected: bool = False) -> None:
        """Accept callers; the kernel `redirected` those who know no proxy."""
        reception.listen(listener, self._room, functools.partial(self._attend, redirected=redirected))

    async def _attend(self, caller: Visitor, *, redirected: bool) -> None:
        try:
            caller.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await (self._redirected(caller) if redirected else self._proxied(caller))
        except (OSError, EOFError, TimeoutError, ValueError):
            sockets.reset(caller.channel)

    async def _proxied(self, caller: Visitor) -> None:
        try:
            async with asyncio.timeout(GREETING):
                first = await sockets.peek(caller.channel, lambda _: 0)
                if first[0] == tls.HANDSHAKE:  # TLS to the proxy itself
                    return await sockets.part(caller.channel, tls.REFUSAL)
                head = parse_head(await sockets.peek(caller.channel, missing))
        except MalformedHttp as error:
            return await self._refuse_http(caller, error)
        caller.heard()
        if not self._is_logged_in(head):
            return await sockets.part(caller.channel, _LOGIN_REQUIRED)
        return await (self._connect(caller, head) if head.request.method == b"CONNECT" else self._forward(caller, head))

    def _is_logged_in(self, head: ProxyRequest) -> bool:
        """Return whether a caller knows the password, where other users of the machine could connect too."""
        said = [value for name, value in head.request.headers if name == b"proxy-authorization"]
        return not self._login or (len(said) == 1 and compare_digest(said[0], self._login))

    async def _connect(self, caller: Visitor, head: ProxyRequest) -> None:
        try:
            passage = await self._reach(*authority(head.target, 0))
        except (Denied, NoConnection, MalformedHttp) as error:
            return await self._refuse_http(caller, error)
        return await self._open(caller, passage, head.size, b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def _forward(self, caller: Visitor, head: ProxyRequest) -> None:
        """Pass on one request with a whole URL."""
        try:
            where, path = split_url(head.target)
            passage = Passage(self._record, self._access.admit(*authority(where, 80)))
            await self._ask(caller, head, passage, path)
        except (Denied, NoConnection, MalformedHttp) as error:
            await self._refuse_http(caller, error)

    async def _ask(self, caller: Visitor, head: ProxyRequest, passage: Passage, path: str) -> None:
        """Send one request to its server, and pass on its body and the response."""
        name, port = passage.name, passage.port
        host = name if port == 80 else f"{name}:{port}"
        request = single(head, path, host)
        if passage.far is None and self._dialer.asks_by_url(name, port):
            if not path.startswith("/"):  # anything else after a host could make it another host
                raise MalformedHttp("the proxy of this machine is asked for paths only")
            request = single(head, f"http://{host}{path}", host)
            await passage.dial(self._dialer.approach(name, port))
        elif passage.far is None:
            await passage.dial(self._dialer.dial(name, port))
        assert passage.far is not None  # noqa: S101 - for the type checker
        passage.begin()
        try:
            await passage.say(request)
            await sockets.take(caller.channel, head.size)
            if head.is_chunked:
                if messages.header(head.request, b"expect") is not None:
                    await sockets.say(caller.channel, b"HTTP/1.1 100 Continue\r\n\r\n")
                await _pass_chunks(caller.channel, passage)
        except BaseException:
            passage.end()
            raise
        # Nothing passes after the body: a proxy would take it for another request.
        self._pump.lead(caller, passage, messages.request_framing(head.request)[1])

    async def _redirected(self, caller: Visitor) -> None:
        """Serve a connection to an address that we gave out for a name."""
        address, port = original_destination(caller.channel)
        try:
            passage = await self._reach(address, port)
        except (Denied, NoConnection) as error:
            if port == 80:
                return await self._refuse_http(caller, error)
            if port == 443 and isinstance(error, Denied):
                return await sockets.part(caller.channel, tls.REFUSAL)
            return sockets.reset(caller.channel)
        return await self._open(caller, passage)

    async def _reach(self, host: str, port: int) -> Passage:
        """Return a connection; not yet made if the host's proxy will be asked by URL."""
        passage = Passage(self._record, self._access.admit(host, port))
        if port != 80 or not self._dialer.asks_by_url(passage.name, port):
            await passage.dial(self._dialer.dial(passage.name, port))
        return passage

    async def _open(self, caller: Visitor, passage: Passage, taken: int = 0, word: bytes = b"") -> None:
        """Inspect the first message, and carry the connection if that is meant for the permitted server."""
        far = passage.far
        try:
            await sockets.take(caller.channel, taken)
            await sockets.say(caller.channel, word)
            if far is None:
                return await self._open_http(caller, passage)
            if not self._access.looks and self._intercept(passage.name, passage.port) is None:
                return self._pump.lead(caller, passage)
            caller.expect()
            speaker = await sockets.first_to_speak(caller.channel, far)
            if speaker is far and passage.port in WEB and not sockets.has_ended(far):
                speaker = await sockets.first_to_speak(caller.channel)  # on the web, clients speak first
            if speaker is caller.channel:
                async with asyncio.timeout(GREETING):
                    start = await sockets.peek_all(caller.channel, line_missing)
                if tls.is_tls(start):
                    return await self._open_tls(caller, passage, far)
                if passage.port == 80 or is_request(start):
                    return await self._open_http(caller, passage)
                if passage.port == 443 and not start.startswith(_SSH):
                    return await self._refuse_tls(caller, passage, "not-tls")
        except BaseException:
            passage.end()
            raise
        return self._pump.lead(caller, passage)

    async def _open_tls(self, caller: Visitor, passage: Passage, far: socket.socket) -> None:
        async with asyncio.timeout(GREETING):
            meant = await tls.names_server(caller.channel, passage.name)
        caller.heard()
        if not meant:
            return await self._refuse_tls(caller, passage)
        handler = self._intercept(passage.name, passage.port)
        if handler is None:
            passage.begin()
            if await tls.pass_hello(caller.channel, far, passage):
                return self._pump.lead(caller, passage)
            return await self._refuse_tls(caller, passage)

        async def dialled() -> socket.socket:
            return far

        passage.ended = True  # the handler logs what it does
        try:
            await handler(caller, passage.name, passage.port, dialled)
        finally:
            far.close()
        return None

    async def _refuse_tls(self, caller: Visitor, passage: Passage, rule: str = "other-server-name") -> None:
        passage.refuse(rule)
        await sockets.part(caller.channel, tls.REFUSAL)

    async def _open_http(self, caller: Visitor, passage: Passage) -> None:
        """Pass on one request of plain HTTP if its `Host` is the permitted server."""
        try:
            async with asyncio.timeout(GREETING):
                head = parse_head(await sockets.peek(caller.channel, missing))
            caller.heard()
            host, port = authority(head.host, passage.port)
            own = (canonical(host), port) == (passage.name, passage.port)
            if not own or not (head.target.startswith("/") or head.target == "*"):
                raise self._access.denial(host, port, "other-host", f"this connection is for `{passage.name}`")
            await self._ask(caller, head, passage, head.target)
        except (Denied, NoConnection, MalformedHttp) as error:
            passage.drop()
            await self._refuse_http(caller, error)

    async def _refuse_http(self, caller: Visitor, error: Exception) -> None:
        if isinstance(error, Denied):
            answer = response(403, f"Not permitted by claudebox ({error.rule})", f"claudebox: {error.text}")
        elif isinstance(error, MalformedHttp):
            answer = response(400, "Bad Request", f"claudebox does not take it: {error}")
        else:
            answer = response(502, "Bad Gateway", f"claudebox: {error}. The name is permitted; it may be down.")
        caller.heard()
        await sockets.part(caller.channel, answer)


async def _pass_chunks(caller: socket.socket, passage: Passage) -> None:
    """Pass on a chunked body until it ends or the server answers."""
    assert passage.far is not None  # noqa: S101 - for the type checker
    chunks = ChunkDecoder(strict=True)
    while not chunks.ended and await sockets.first_to_speak(caller, passage.far) is caller:
        piece = await asyncio.get_running_loop().sock_recv(caller, sockets.LOOK)
        if not piece:
            raise EOFError
        content, _ = chunks.feed(piece)
        if content:
            await passage.say(framed(content, "chunked"))
    if chunks.ended:
        await passage.say(LAST_CHUNK)


def original_destination(caller: socket.socket) -> tuple[str, int]:
    """Return where a redirected connection was going."""
    packed = caller.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
    return socket.inet_ntoa(packed[4:8]), int.from_bytes(packed[2:4], "big")


# The service: gateway, fake DNS and the control socket of one sandbox.

_LONGEST_ORDER, _PATIENCE = 1 << 16, 5.0
_USERS = 4  # at a time on the control socket; the sandbox cannot take their room


class _Control:
    """Takes domains that the user allows during the session, on a socket in a directory that only they can enter."""

    def __init__(self, context: Context, permission: Permission, listed: list[str]) -> None:
        self._context, self._permission, self._listed = context, permission, listed

    async def attend(self, caller: Visitor) -> None:
        loop = asyncio.get_running_loop()
        channel = caller.channel
        owner = int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
        text = await asyncio.wait_for(loop.sock_recv(channel, _LONGEST_ORDER), _PATIENCE)
        if owner != os.getuid():
            return
        try:
            names = text.decode("ascii").split()
            self._permission.add([parse_domain(name, "claudebox allow") for name in names])
        except (ClaudeboxError, UnicodeError) as problem:
            await loop.sock_sendall(channel, str(problem).encode("utf-8", "replace")[:1000])
            return
        self._listed += names
        self._context.log.record_opened(names)
        await loop.sock_sendall(channel, READY)


async def open(config: ProxyConfig, context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    """Serve each listener as soon as it arrives."""
    loop = asyncio.get_running_loop()
    reception, record = context.reception, context.record
    watch, pump = RangeWatch(config.ranges), Pump()
    watch.start()
    permission = Permission(parse_domain(row.name, row.origin) for row in config.domains)
    listed = [row.name for row in config.domains]
    dialer = Dialer(NothingBarred() if config.reach == "everything" else watch.ranges, config.proxy)
    names = Names(permission, record)
    access = AccessList(permission, record, listed=listed, meaning=names.meaning)
    if config.reach != "listed":
        access = EveryName(record, addresses=config.reach == "everything")
    gateway = Gateway(access, dialer, pump, record=record, intercept=context.intercept, password=config.password)
    control = _Control(context, permission, listed)

    def answer(channel: socket.socket) -> None:
        channel.setblocking(False)  # noqa: FBT003
        loop.add_reader(channel, answer_datagrams, names, channel)

    servers: dict[str, Callable[[socket.socket], None]] = {
        "proxy": lambda listener: gateway.serve(reception, listener),
        "redirected": lambda listener: gateway.serve(reception, listener, redirected=True),
        "names": answer,
        CONTROL: lambda listener: reception.listen(listener, Room(_USERS, 0), control.attend),
    }

    async def begin(name: str, serve: Callable[[socket.socket], None]) -> None:
        serve(await context.wait_listener(name))

    tasks = [loop.create_task(begin(name, serve)) for name, serve in servers.items()]

    async def close() -> None:
        for task in tasks:
            task.cancel()
        pump.stop()
        dialer.close()
        watch.close()
        await asyncio.sleep(0)  # the pump's callbacks write to the log

    return close
