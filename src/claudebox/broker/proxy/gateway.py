"""The proxy of tier `allow`: HTTP CONNECT and plain HTTP on one port, and connections redirected by the kernel.

Each connection asks for a name. The name must be permitted, its addresses public, and the first thing sent must be
meant for the same name; from then on bytes pass unread. Plain HTTP is forwarded, request by request.
Refusals are immediate, in words for an agent. The netns holder opened the listeners inside the sandbox's network;
connections are made from the host's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
import sys
from base64 import b64encode
from hmac import compare_digest

from claudebox.base.addresses import read_port, split_place
from claudebox.base.errors import ClaudeboxError
from claudebox.broker.http import messages
from claudebox.broker.http.forward import LocalAnswer, Rules, forward
from claudebox.broker.http.messages import MalformedHttp, header
from claudebox.broker.http.stream import Pool, Stream, UpstreamFailure
from claudebox.broker.proxy import sockets, tls
from claudebox.broker.proxy.dial import Dialer, NoConnection, NothingBarred, RangeWatch
from claudebox.broker.proxy.names import AccessList, Denied, EveryName, Names, answer_datagrams, shown
from claudebox.broker.proxy.sockets import Passage
from claudebox.broker.reception import Room
from claudebox.broker.wire import CONTROL, READY
from claudebox.network.relay import reset
from claudebox.settings.domains import WEB, Permission, canonical, parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.forward import Exchange
    from claudebox.broker.http.messages import Request
    from claudebox.broker.log import Log
    from claudebox.broker.main import Context
    from claudebox.broker.proxy.names import Admission
    from claudebox.broker.reception import Reception, Visitor
    from claudebox.network.records import ProxyConfig

    # Takes over a connection of which nothing was read yet, and logs its decisions itself.
    Interceptor = Callable[[Visitor, str, int], Awaitable[None]]


# Requests to a proxy, and its answers. Pure.

LONGEST = 64 << 10
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_BLANK = b"\t\n\x0b\x0c\r \x1c\x1d\x1e\x1f\x85\xa0"  # what some server takes for space
_WORD = re.compile(b"[^%s]*" % _BLANK)


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


_MOST, _DESCRIPTORS = 1024, 2  # connections; two ends each
_USER = "claudebox"  # goes with the password of the entrance on the host's loopback
_SSH = b"SSH-"  # some hosts offer it on port 443; no TLS server continues after it
GREETING = 20.0  # seconds for a caller to send its first message


class Gateway:
    """Serves the proxy's listeners of one sandbox."""

    def __init__(
        self, access: AccessList, dialer: Dialer, log: Log, *,
        intercept: Callable[[str, int], Interceptor | None] = lambda *_: None, password: str = "",
    ) -> None:  # fmt: skip
        self.access, self.dialer, self.log = access, dialer, log
        self._intercept = intercept
        self._record = functools.partial(log.record, service="proxy")
        self._login = b"Basic " + b64encode(f"{_USER}:{password}".encode()) if password else b""
        self._room = Room(_MOST, _DESCRIPTORS)

    def serve(self, reception: Reception, listener: socket.socket, *, redirected: bool = False) -> None:
        """Accept callers; the kernel `redirected` those who know no proxy."""
        reception.listen(listener, self._room, functools.partial(self._attend, redirected=redirected))

    async def _attend(self, caller: Visitor, *, redirected: bool) -> None:
        try:
            caller.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await (self._redirected(caller) if redirected else self._proxied(caller))
        except (OSError, EOFError, TimeoutError, ValueError):
            if not caller.stays:
                reset(caller.channel)

    async def _proxied(self, caller: Visitor) -> None:
        try:
            async with asyncio.timeout(GREETING):
                first = await sockets.peek(caller.channel, lambda _: 0)
                if first[0] == tls.HANDSHAKE:  # TLS to the proxy itself
                    return await sockets.part(caller.channel, tls.REFUSAL)
                head = await sockets.peek(caller.channel, missing)
            size = messages.cut(head, LONGEST)
            request = messages.parse_request(head[:size], any_host=True)
            caller.heard()
            if not self._is_logged_in(request):
                return await sockets.part(caller.channel, _LOGIN_REQUIRED)
            if request.method != b"CONNECT":
                return await self._forward(caller)
            return await self._open(caller, *authority(request.target.decode(), 0), size)
        except (Denied, NoConnection, MalformedHttp) as error:
            return await self._refuse(caller, error)

    def _is_logged_in(self, request: Request) -> bool:
        """Return whether a caller knows the password, where other users of the machine could connect too."""
        said = [value for name, value in request.headers if name == b"proxy-authorization"]
        return not self._login or (len(said) == 1 and compare_digest(said[0], self._login))

    async def _redirected(self, caller: Visitor) -> None:
        """Serve a connection to an address that we gave out for a name."""
        address, port = original_destination(caller.channel)
        try:
            await self._open(caller, address, port)
        except (Denied, NoConnection) as error:
            if port == 80:
                return await self._refuse(caller, error)
            if port == 443 and isinstance(error, Denied):
                return await sockets.part(caller.channel, tls.REFUSAL)
            return reset(caller.channel)

    async def _open(self, caller: Visitor, host: str, port: int, head: int = 0) -> None:
        """Connect a caller, whose request for that has a head of this size, to a permitted server."""
        try:
            admitted = self.access.admit(host, port)
        except Denied as refusal:
            self._record(host=shown(host), port=port, verdict="denied", rule=refusal.rule)
            raise
        handler = self._intercept(admitted.name, port)
        plain = port == 80 and self.access.looks
        passage = Passage(self._record, admitted)
        if handler is None and not plain:
            await passage.dial(self.dialer.dial(admitted.name, port))
        try:
            await sockets.take(caller.channel, head)
            await sockets.say(caller.channel, b"HTTP/1.1 200 Connection established\r\n\r\n" if head else b"")
            if handler is not None:
                await handler(caller, admitted.name, port)
            elif plain:
                await self._forward(caller, admitted)
            elif self.access.looks:
                await self._look(caller, passage)
            else:
                await passage.carry(caller)
        except BaseException:
            passage.end()
            raise

    async def _look(self, caller: Visitor, passage: Passage) -> None:
        """Inspect the first message, and carry the connection if that is meant for the permitted server."""
        far = passage.far
        assert far is not None  # noqa: S101 - for the type checker
        caller.expect()
        speaker = await sockets.first_to_speak(caller.channel, far)
        if speaker is far and passage.port in WEB and not sockets.has_ended(far):
            speaker = await sockets.first_to_speak(caller.channel)  # on the web, clients speak first
        if speaker is caller.channel:
            async with asyncio.timeout(GREETING):
                start = await sockets.peek_all(caller.channel, line_missing)
                is_tls = tls.is_tls(start)
                meant = not is_tls or await tls.names_server(caller.channel, passage.name)
            caller.heard()
            if is_request(start):
                passage.drop()
                return await self._forward(caller, passage.admitted)
            if is_tls and meant:
                passage.begin()
                meant = await tls.pass_hello(caller.channel, far, passage)
            if not meant or (passage.port == 443 and not is_tls and not start.startswith(_SSH)):
                passage.refuse("other-server-name" if is_tls else "not-tls")
                return await sockets.part(caller.channel, tls.REFUSAL)
        return await passage.carry(caller)

    async def _forward(self, caller: Visitor, admitted: Admission | None = None) -> None:
        """Forward plain HTTP, to the one server that was asked for or to those of URLs."""
        rules = _PlainHttp(self, admitted)
        with contextlib.closing(await Stream.attend(caller)) as stream:
            try:
                await forward(stream, rules.pool, rules)
            finally:
                rules.pool.close()

    async def _refuse(self, caller: Visitor, error: Exception) -> None:
        if isinstance(error, Denied):
            answer = response(403, f"Not permitted by claudebox ({error.rule})", f"claudebox: {error.text}")
        elif isinstance(error, MalformedHttp):
            answer = response(400, "Bad Request", f"claudebox does not take it: {error}")
        else:
            answer = response(502, "Bad Gateway", f"claudebox: {error}{_DOWN}")
        caller.heard()
        await sockets.part(caller.channel, answer)


_DOWN = ". The name is permitted; it may be down."


class _PlainHttp(Rules):
    """Requests to permitted servers; each is asked for paths only, and gets its own name as `Host`."""

    ignores_upgrade = True  # some programs offer HTTP/2 with every request

    def __init__(self, gateway: Gateway, admitted: Admission | None) -> None:
        super().__init__(gateway.log, "proxy", "", 0)
        self.pool = Pool(self._connect)
        self._gateway, self._only = gateway, admitted
        self._connected: tuple[str, int] = ("", 0)

    async def request(self, request: Request, exchange: Exchange) -> Request | LocalAnswer:
        access, dialer = self._gateway.access, self._gateway.dialer
        self._host = ""
        try:
            host, port, path = self._locate(request)
            self._host, self._port = shown(host), port
            admitted = self._only or access.admit(host, port)
            if self._only is not None and (canonical(host), port) != (admitted.name, admitted.port):
                raise access.denial(host, port, "other-host", f"this connection is for `{admitted.name}`")
            self._host, exchange.rule = admitted.name, admitted.rule
            by_url = dialer.asks_by_url(admitted.name, port)
            if not path.startswith("/") and (by_url or path != "*"):  # it could make another host of a URL
                raise MalformedHttp("only paths are asked for here")
            await dialer.check(admitted.name, port)
        except MalformedHttp as error:
            self._host = ""
            return LocalAnswer(400, "malformed", f"claudebox does not take it: {error}")
        except Denied as refusal:
            return LocalAnswer(403, refusal.rule, f"claudebox: {refusal.text}")
        except NoConnection as error:
            raise UpstreamFailure(f"{error}{_DOWN}") from None
        if self._connected != (admitted.name, port):
            self.pool.close()
            self._connected = admitted.name, port
        name = admitted.name if port == 80 else f"{admitted.name}:{port}"
        target = f"http://{name}{path}" if by_url else path
        rest = (pair for pair in request.headers if pair[0] not in (b"host", b"http2-settings"))
        return request.replace(target=target.encode(), headers=((b"host", name.encode()), *rest))

    def _locate(self, request: Request) -> tuple[str, int, str]:
        """Return host, port and path of a request."""
        target = request.target.decode()
        if self._only is None:
            where, path = split_url(target)
            return *authority(where, 80), path
        return *authority((header(request, b"host") or b"").decode("latin-1"), self._only.port), target

    async def _connect(self) -> Stream:
        try:
            channel = await self._gateway.dialer.dial(*self._connected, plain=True)
        except (Denied, NoConnection) as error:
            raise UpstreamFailure(f"{error}{_DOWN}") from None
        _, stream = await asyncio.get_running_loop().create_connection(Stream, sock=channel)
        return stream

    def passed(self, exchange: Exchange) -> None:
        if self._host:  # it asked for one
            super().passed(exchange)


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
    reception = context.reception
    watch = RangeWatch(config.ranges)
    watch.start()
    permission = Permission(parse_domain(row.name, row.origin) for row in config.domains)
    listed = [row.name for row in config.domains]
    dialer = Dialer(NothingBarred() if config.reach == "everything" else watch.ranges, config.proxy)
    names = Names(permission, functools.partial(context.log.record, service="proxy"))
    access = AccessList(permission, listed, names.meaning)
    if config.reach != "listed":
        access = EveryName(addresses=config.reach == "everything")
    gateway = Gateway(access, dialer, context.log, intercept=context.intercept, password=config.password)
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
        dialer.close()
        watch.close()

    return close
