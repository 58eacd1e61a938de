"""Connections with back-pressure in both directions, and a pool of them to one upstream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque

from claudebox.broker.http import messages
from claudebox.broker.http.messages import ChunkDecoder, MalformedHttp
from claudebox.network.facts import make_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.messages import Framing, Headers
    from claudebox.broker.reception import Visitor
    from claudebox.network.facts import HostProxy
    from claudebox.network.records import Endpoint, Trust


_PIECE = 1 << 17  # bytes read at once
_SLICE = 1 << 14  # bytes encrypted at once
_SEND_BUFFER = 1 << 19
_HIGH = 1 << 18  # unread bytes above which reading pauses
_HEAD_TIME = 30.0  # seconds for a head that has begun
_IDLE_TIME = 600.0  # seconds between two requests on one connection
_CLOSING = 5.0  # seconds in which a caller can read our last words


_ARRIVING = memoryview(bytearray(_PIECE))  # shared by all connections: emptied at once
_ENCRYPTED = bytearray(1 << 18)


class UpstreamFailure(Exception):  # noqa: N818 - becomes a 502 answer
    """The upstream cannot be reached, or broke off before it answered."""


def _share_buffer(transport: asyncio.Transport) -> None:
    """Receive TLS into one shared buffer: asyncio allocates 256 KiB for each connection."""
    protocol = getattr(transport, "_ssl_protocol", None)
    if getattr(protocol, "_ssl_buffer_view", None) is not None:  # private to asyncio: without it, more memory is used
        protocol._ssl_buffer = _ENCRYPTED  # type: ignore[union-attr]  # noqa: SLF001
        protocol._ssl_buffer_view = memoryview(_ENCRYPTED)  # type: ignore[union-attr]  # noqa: SLF001


class Stream(asyncio.BufferedProtocol):
    """One connection. `read` returns bytes as they arrive; `b""` is the end."""

    def __init__(self, caller: Visitor | None = None) -> None:
        self.caller = caller
        self.transport: asyncio.Transport | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._paused = self._blocked = self._ended = self._secure = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.lost = False
        self._on_loss: Callable[[], None] | None = None

    @classmethod
    async def attend(cls, caller: Visitor, tls: ssl.SSLContext | None = None, patience: float | None = None) -> Stream:
        """Return the stream of an admitted caller; losing the connection cancels the caller's handler."""
        _, stream = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: cls(caller), caller.channel, ssl=tls, ssl_handshake_timeout=patience,
            ssl_shutdown_timeout=_CLOSING if tls is not None else None,
        )  # fmt: skip
        caller.stays = not stream.lost
        return stream

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self.transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        if self._secure:
            _share_buffer(transport)
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def get_buffer(self, _hint: int) -> memoryview:
        return _ARRIVING

    def buffer_updated(self, size: int) -> None:
        self._pieces.append(bytes(_ARRIVING[:size]))
        self._size += size
        if self._size > _HIGH and not self._paused and self.transport is not None and not self.lost:
            self._paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """Treat a half-closed connection as closed: clients half-close when they give up."""
        self._ended = True
        _wake(self._reader)
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = self.lost = True
        _wake(self._reader)
        _wake(self._writer)
        if self._on_loss is not None:
            self._on_loss()
        elif self.caller is not None:
            self.caller.dismiss()
            self.caller.leave()

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        _wake(self._writer)

    # Called by users.

    def outlast(self, on_loss: Callable[[], None] | None) -> None:
        """Call this instead of cancelling the handler when the connection is lost; None restores the default."""
        self._on_loss = on_loss
        if on_loss is None and self.lost and self.caller is not None:
            self.caller.leave()

    async def read(self) -> bytes:
        """Return the next bytes, immediately if some have arrived."""
        while not self._pieces:
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        piece = self._pieces.popleft()
        self._size -= len(piece)
        if self._paused and self._size <= _HIGH // 2 and self.transport is not None and not self.lost:
            self._paused = False
            self.transport.resume_reading()
        return piece

    def unread(self, data: bytes) -> None:
        """Put bytes back for the next reader."""
        if data:
            self._pieces.appendleft(data)
            self._size += len(data)

    async def read_head(self, *, limited: bool = False) -> bytes:
        """Return the next complete head, `b""` if the stream ends first; `limited` bounds the time it may take."""
        buffer, begun = b"", False
        if self.caller is not None:
            self.caller.expect()
        async with asyncio.timeout(_IDLE_TIME if limited else None) as limit:
            while True:
                piece = await self.read()
                if not piece:
                    if buffer.strip(b"\r\n"):
                        raise MalformedHttp("the head breaks off")
                    return b""
                if limited and not begun:
                    begun = True
                    limit.reschedule(asyncio.get_running_loop().time() + _HEAD_TIME)
                buffer = (buffer + piece).lstrip(b"\r\n") if buffer[:1] in b"\r\n" else buffer + piece
                end = messages.cut(buffer)
                if end:
                    if self.caller is not None:
                        self.caller.heard()
                    self.unread(buffer[end:])
                    return buffer[:end]

    def write(self, data: bytes) -> None:
        """Send; call `drain` afterwards to bound the buffer."""
        if self.transport is None or self.lost:
            raise ConnectionResetError
        if not self._secure or len(data) <= _SLICE:
            self.transport.write(data)
            return
        view = memoryview(data)  # TLS would keep a buffer of the whole size while the connection lasts
        for at in range(0, len(data), _SLICE):
            self.transport.write(view[at : at + _SLICE])

    async def drain(self) -> None:
        """Wait until there is room to write more."""
        while self._blocked and not self.lost:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self.lost:
            raise ConnectionResetError

    @property
    def silent(self) -> bool:
        """Return whether it is open and has no unread bytes."""
        return not (self.lost or self._ended or self._pieces)

    def close(self) -> None:
        """Close it after everything written was sent."""
        if self.transport is not None:
            self.transport.close()
            if self.caller is not None and not self._secure and self.transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_CLOSING, self.transport.abort)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class BodyReader:
    """Reads the content of one body; cancelling a read loses nothing."""

    def __init__(self, stream: Stream, framing: Framing, length: int, *, strict: bool) -> None:
        self._stream = stream
        self._framing: Framing = framing
        self._left = length
        self._chunks = ChunkDecoder(strict=strict)

    async def read(self) -> bytes:
        """Return the next piece, `b""` at the end; raise EOFError where the body breaks off."""
        if self._framing == "close":
            return await self._stream.read()
        while self._left if self._framing == "length" else self._framing == "chunked" and not self._chunks.ended:
            piece = await self._next()
            if not piece:
                raise EOFError
            if self._framing == "length":
                piece, after = piece[: self._left], piece[self._left :]
                self._left -= len(piece)
            else:
                piece, after = self._chunks.feed(piece)
            self._stream.unread(after)
            if piece:
                return piece
        return b""

    async def _next(self) -> bytes:
        """Read on; a caller that stalls within a body can be evicted like one that has not sent its request."""
        caller = self._stream.caller
        if caller is None or not self._stream.silent:
            return await self._stream.read()
        caller.expect()
        try:
            return await self._stream.read()
        finally:
            caller.heard()


class Pool:
    """Connections to one upstream; idle ones are reused."""

    _IDLE = 30.0  # seconds; servers close theirs later
    _MOST = 16

    def __init__(self, connect: Callable[[], Awaitable[Stream]]) -> None:
        self.connect = connect
        self._free: list[tuple[float, Stream]] = []

    async def acquire(self) -> tuple[Stream, bool]:
        """Return a connection, and whether it was used before."""
        now = asyncio.get_running_loop().time()
        while self._free:
            since, stream = self._free.pop()
            if stream.silent and now - since < self._IDLE:
                return stream, True
            stream.abort()
        return await self.connect(), False

    def release(self, stream: Stream) -> None:
        """Keep a connection whose last response is complete."""
        if not stream.silent or len(self._free) >= self._MOST:
            stream.close()
            return
        self._free.append((asyncio.get_running_loop().time(), stream))

    def close(self) -> None:
        for _, stream in self._free:
            stream.abort()
        self._free.clear()


class Egress:
    """The way from the host to one upstream: name resolution, the host's proxy, TLS with the host's authorities."""

    _PATIENCE = 30.0  # seconds to connect
    _STAGGER = 0.25  # seconds before another address of the same name is tried in parallel

    def __init__(self, endpoint: Endpoint, proxy: HostProxy | None, trust: Trust) -> None:
        self.endpoint, self.proxy = endpoint, proxy
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def connect(self) -> Stream:
        host = self.endpoint.host
        try:
            async with asyncio.timeout(self._PATIENCE):
                return await self._connect()
        except TimeoutError:
            raise UpstreamFailure(f"{host} did not answer within {self._PATIENCE:.0f} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise UpstreamFailure(
                f"the certificate of {host} cannot be trusted: {error.verify_message}; SSL_CERT_FILE or "
                "NODE_EXTRA_CA_CERTS of the host can name another authority"
            ) from None
        except (OSError, MalformedHttp) as error:
            via = f" through the proxy {self.proxy}" if self.proxy else ""
            what = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UpstreamFailure(f"{host} cannot be reached from the host{via}: {what}") from None

    async def _connect(self) -> Stream:
        if self.proxy is None:
            return await self._open(self.endpoint.host, self.endpoint.port, secure=self.endpoint.scheme == "https")
        stream = await self._open(self.proxy.host, self.proxy.port, secure=self.proxy.tls)
        return await self._tunnel(stream, self.proxy)

    async def _open(self, host: str, port: int, *, secure: bool) -> Stream:
        _, stream = await asyncio.get_running_loop().create_connection(
            Stream, host, port, ssl=self._tls() if secure else None, happy_eyeballs_delay=self._STAGGER
        )
        return stream

    async def _tunnel(self, stream: Stream, proxy: HostProxy) -> Stream:
        host = self.endpoint.host
        target = f"{f'[{host}]' if ':' in host else host}:{self.endpoint.port}".encode()
        headers: Headers = ((b"host", target),)
        if proxy.authorization:
            headers = (*headers, (b"proxy-authorization", proxy.authorization))
        stream.write(messages.render_request(messages.Request(b"CONNECT", target, headers)))
        head = await stream.read_head()
        answer = messages.parse_response(head) if head else None
        if answer is None or answer.status != 200 or stream.transport is None:
            stream.abort()
            raise MalformedHttp(f"it answered {answer.status}" if answer else "it closed the connection")
        if self.endpoint.scheme == "http":
            return stream
        inner = Stream()
        transport = await asyncio.get_running_loop().start_tls(
            stream.transport, inner, self._tls(), server_hostname=host
        )
        if transport is None:
            raise MalformedHttp("TLS did not begin")
        inner.connection_made(transport)
        return inner

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = make_context(self._trust)
        return self._context
