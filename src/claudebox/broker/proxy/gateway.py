"""The way out of tier `allow`: HTTP CONNECT and plain HTTP on one port, and connections led here by the kernel.

Each connection names where it wants to go; the name must be permitted, its addresses public, and what is said first
must be meant for the same name. From then on the kernel carries it. Refusals come at once, in words that an agent
understands. Listeners belong to the sandbox's network, connections are made from the host's.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
from base64 import b64encode
from hmac import compare_digest

from claudebox.base.addresses import read_port
from claudebox.base.records import Value
from claudebox.broker.http import messages
from claudebox.broker.http.messages import LAST_CHUNK, ChunkDecoder, MalformedHttp, framed
from claudebox.broker.proxy import sockets, tls
from claudebox.broker.proxy.dial import NoConnection
from claudebox.broker.proxy.names import Denied, unrecorded
from claudebox.broker.proxy.sockets import Passage
from claudebox.broker.reception import Room
from claudebox.settings.domains import WEB, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.messages import Headers, Request
    from claudebox.broker.proxy.dial import Dialer
    from claudebox.broker.proxy.names import AccessList, Record
    from claudebox.broker.proxy.sockets import Pump
    from claudebox.broker.reception import Reception, Visitor

    Dial = Callable[[], Awaitable[socket.socket]]
    # Takes a connection over of which nothing was read yet; ends both sides itself, and writes its decisions down.
    Interceptor = Callable[[Visitor, str, int, Dial], Awaitable[None]]


# Requests to a proxy: where they lead, the one request that is passed on, and refusals. Pure.


LONGEST = 64 << 10
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_BLANK = b"\t\n\x0b\x0c\r \x1c\x1d\x1e\x1f\x85\xa0"  # what some server takes for space
_WORD = re.compile(b"[^%s]*" % _BLANK)
_FRAMING = (b"content-length", b"transfer-encoding")
_OWN = (b"host", b"http2-settings")


class ProxyRequest(Value):
    """The head of a request that was only looked at."""

    request: Request
    size: int  # in bytes, with the empty line

    @property
    def method(self) -> str:
        """Return the method."""
        return self.request.method.decode()

    @property
    def target(self) -> str:
        """Return what is asked for."""
        return self.request.target.decode()

    @property
    def is_chunked(self) -> bool:
        """Return whether its body comes in chunks."""
        return messages.request_framing(self.request)[0] == "chunked"

    @property
    def host(self) -> str:
        """Return the one host that it is for."""
        hosts = [value for name, value in self.request.headers if name == b"host"]
        if len(hosts) != 1:
            raise MalformedHttp("it has no `Host`" if not hosts else "it has more than one `Host`")
        return hosts[0].decode("latin-1")


def missing(data: bytes) -> int:
    """Return how many bytes there must be before more can be told; nothing if the head is complete."""
    return 0 if messages.cut(data, LONGEST) else len(data) + 1


def line_missing(data: bytes) -> int:
    """Return how many bytes there must be to know whether this is HTTP; servers overlook empty lines in front."""
    return 0 if b"\n" in data.lstrip(_BLANK) or not _may_be_request(data) or len(data) >= LONGEST else len(data) + 1


def is_request(data: bytes) -> bool:
    """Return whether these first bytes are HTTP, whatever the method: the first line says so, or does not end."""
    line, end, _ = data.lstrip(_BLANK).partition(b"\n")
    return b"HTTP/" in line.upper() if end else len(data) >= LONGEST and _may_be_request(data)


def _may_be_request(data: bytes) -> bool:
    start = data.lstrip(_BLANK)
    word = _WORD.match(start)
    return b"\0" not in start and word is not None and _TOKEN.issuperset(word[0])


def parse_head(data: bytes) -> ProxyRequest:
    """Take a complete head apart."""
    size = messages.cut(data, LONGEST)
    request = messages.parse_request(data[:size], any_host=True)
    messages.request_framing(request)
    return ProxyRequest(request, size)


def authority(text: str, port: int) -> tuple[str, int]:
    """Return host and port of `host[:port]`; the port may be left out."""
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, port
    number = read_port(digits)
    if not number:
        raise MalformedHttp("it names no port")
    return host, number


def split_url(target: str) -> tuple[str, str]:
    """Return the authority and the rest of an `http://` URL."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise MalformedHttp("a proxy takes `CONNECT host:port`, or a URL that starts with http://")
    end = min((at for at in (rest.find(mark) for mark in "/?#") if at >= 0), default=len(rest))
    where, path = rest[:end], rest[end:]
    if "@" in where:
        raise MalformedHttp("its URL has a user name in it")
    return where, path if path.startswith("/") else f"/{path}"


def url(host: str, path: str) -> str:
    """Return the URL of a path; anything else behind a host could make another host of it."""
    if not path.startswith("/"):
        raise MalformedHttp("the proxy of this machine is asked for paths only")
    return f"http://{host}{path}"


def single(head: ProxyRequest, target: str, host: str) -> bytes:
    """Return the head for a server that is asked this once, and for exactly this host."""
    request = head.request
    framing = tuple(pair for pair in request.headers if pair[0] in _FRAMING)
    own = (*_FRAMING, *_OWN, b"expect") if head.is_chunked else (*_FRAMING, *_OWN)
    kept = tuple(pair for pair in messages.end_to_end(request.headers) if pair[0] not in own)
    headers: Headers = ((b"host", host.encode()), (b"connection", b"close"), *kept, *framing)
    return messages.render_request(request.replace(target=target.encode(), headers=headers))


def response(status: int, reason: str, text: str, *more: str) -> bytes:
    """Return an answer of the proxy itself: why, in words for whoever reads it."""
    body = f"{text}\n".encode("ascii", "replace")
    phrase = "".join(char if " " <= char <= "~" else "?" for char in reason)[:200]
    lines = (
        f"HTTP/1.1 {status} {phrase}", "Content-Type: text/plain; charset=us-ascii", f"Content-Length: {len(body)}",
        "Connection: close", "Proxy-Connection: close", "Cache-Control: no-store", "Via: claudebox", *more,
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


WHO_ARE_YOU = response(
    407,
    "Proxy Authentication Required",
    "claudebox: this entrance is for one sandbox",
    'Proxy-Authenticate: Basic realm="claudebox"',
)


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
        if not self._knows(head):
            return await sockets.part(caller.channel, WHO_ARE_YOU)
        return await (self._connect(caller, head) if head.method == "CONNECT" else self._forward(caller, head))

    def _knows(self, head: ProxyRequest) -> bool:
        """Return whether a caller is of our sandbox: on this machine's loopback others could come too."""
        said = [value for name, value in head.request.headers if name == b"proxy-authorization"]
        return not self._login or (len(said) == 1 and compare_digest(said[0], self._login))

    async def _connect(self, caller: Visitor, head: ProxyRequest) -> None:
        try:
            passage = await self._reach(*authority(head.target, 0))
        except (Denied, NoConnection, MalformedHttp) as error:
            return await self._refuse_http(caller, error)
        return await self._open(caller, passage, head.size, b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def _forward(self, caller: Visitor, head: ProxyRequest) -> None:
        """Pass one request on that was written for a proxy."""
        try:
            where, path = split_url(head.target)
            passage = Passage(self._record, self._door.admit(*authority(where, 80)))
            await self._ask(caller, head, passage, path)
        except (Denied, NoConnection, MalformedHttp) as error:
            await self._refuse_http(caller, error)

    async def _ask(self, caller: Visitor, head: ProxyRequest, passage: Passage, path: str) -> None:
        """Send one request to the server that it is for, and let body and answer pass."""
        name, port = passage.name, passage.port
        host = name if port == 80 else f"{name}:{port}"
        request = single(head, path, host)
        if passage.far is None and self._dialer.asks_by_url(name, port):
            request = single(head, url(host, path), host)
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
        # Whatever follows its body is not for this server: a proxy would take it for another request.
        self._pump.lead(caller, passage, messages.request_framing(head.request)[1])

    async def _redirected(self, caller: Visitor) -> None:
        """Serve somebody who connected to an address that we had given out for a name."""
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
        """Return a connection; not yet made to a server that the proxy of this machine is to be asked for by URL."""
        passage = Passage(self._record, self._door.admit(host, port))
        if port != 80 or not self._dialer.asks_by_url(passage.name, port):
            await passage.dial(self._dialer.dial(passage.name, port))
        return passage

    async def _open(self, caller: Visitor, passage: Passage, taken: int = 0, word: bytes = b"") -> None:
        """Look at what is said first, and open the way if it is meant for the server that was asked for."""
        far = passage.far
        try:
            await sockets.take(caller.channel, taken)
            await sockets.say(caller.channel, word)
            if far is None:
                return await self._open_http(caller, passage)
            if not self._door.looks and self._handler(passage) is None:
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

    def _handler(self, passage: Passage) -> Interceptor | None:
        return self._intercept(passage.name, passage.port) if self._intercept is not None else None

    async def _open_tls(self, caller: Visitor, passage: Passage, far: socket.socket) -> None:
        async with asyncio.timeout(GREETING):
            meant = await tls.names_server(caller.channel, passage.name)
        caller.heard()
        if not meant:
            return await self._refuse_tls(caller, passage)
        handler = self._handler(passage)
        if handler is None:
            passage.begin()
            if await tls.pass_hello(caller.channel, far, passage):
                return self._pump.lead(caller, passage)
            return await self._refuse_tls(caller, passage)

        async def handed() -> socket.socket:
            return far

        passage.ended = True  # whoever takes it over writes down what it does
        try:
            await handler(caller, passage.name, passage.port, handed)
        finally:
            far.close()
        return None

    async def _refuse_tls(self, caller: Visitor, passage: Passage, rule: str = "other-server-name") -> None:
        passage.refuse(rule)
        await sockets.part(caller.channel, tls.REFUSAL)

    async def _open_http(self, caller: Visitor, passage: Passage) -> None:
        """Pass one request of plain HTTP on: its `Host` must be the server that was asked for."""
        try:
            async with asyncio.timeout(GREETING):
                head = parse_head(await sockets.peek(caller.channel, missing))
            caller.heard()
            host, port = authority(head.host, passage.port)
            own = (canonical(host), port) == (passage.name, passage.port)
            if not own or not (head.target.startswith("/") or head.target == "*"):
                raise self._door.denial(host, port, "other-host", f"this connection is for `{passage.name}`")
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
    """Pass the body of a request that comes in chunks, until it or the server's patience ends."""
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
    """Return where somebody wanted to go whom a rule of nf_tables led here."""
    packed = caller.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
    return socket.inet_ntoa(packed[4:8]), int.from_bytes(packed[2:4], "big")
