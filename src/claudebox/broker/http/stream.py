"""Connections with back-pressure in both directions, and those to one upstream that can be used again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque

from claudebox.broker.http import messages
from claudebox.broker.http.forward import UpstreamFailure
from claudebox.broker.http.messages import MalformedHttp
from claudebox.network.facts import make_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.reception import Visitor
    from claudebox.network.facts import HostProxy
    from claudebox.network.records import Endpoint, Trust


_PIECE = 1 << 17  # bytes that are read at once
_SLICE = 1 << 14  # bytes that are encrypted at once
_SEND_BUFFER = 1 << 19
_HIGH = 1 << 18  # bytes that wait to be read before the other side is made to wait
_IDLE = 30.0  # seconds that an unused connection to an upstream is kept; servers close theirs later
_KEPT = 16  # of them
_CLOSING = 5.0  # seconds in which a caller may read what was said last


_ARRIVING = memoryview(bytearray(_PIECE))  # of all connections: what came is taken out at once
_ENCRYPTED = bytearray(1 << 18)


def _share_buffer(transport: asyncio.Transport) -> None:
    """Let connections with TLS receive into one buffer; asyncio would keep a quarter of a megabyte for each."""
    protocol = getattr(transport, "_ssl_protocol", None)
    if getattr(protocol, "_ssl_buffer_view", None) is not None:  # its own affair: elsewhere it takes what it wants
        protocol._ssl_buffer = _ENCRYPTED  # type: ignore[union-attr]  # noqa: SLF001
        protocol._ssl_buffer_view = memoryview(_ENCRYPTED)  # type: ignore[union-attr]  # noqa: SLF001


class Stream(asyncio.BufferedProtocol):
    """One connection. `read` returns what came, as it came; `b""` is its end."""

    def __init__(self, caller: Visitor | None = None) -> None:
        self.caller = caller
        self._transport: asyncio.Transport | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._blocked = False
        self._secure = False
        self.lost = False
        self._on_loss: Callable[[], None] | None = None

    @classmethod
    async def attend(cls, caller: Visitor, tls: ssl.SSLContext | None = None, patience: float | None = None) -> Stream:
        """Return the connection of a caller who was let in; what is done for it ends when the connection does."""
        _, stream = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: cls(caller), caller.channel, ssl=tls, ssl_handshake_timeout=patience,
            ssl_shutdown_timeout=_CLOSING if tls is not None else None,
        )  # fmt: skip
        caller.stays = not stream.lost
        return stream

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up buffers."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        if self._secure:
            _share_buffer(transport)
        channel = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the shared buffer."""
        return _ARRIVING

    def buffer_updated(self, size: int) -> None:
        """Keep what came until it is read."""
        self._pieces.append(bytes(_ARRIVING[:size]))
        self._size += size
        if self._size > _HIGH:
            self.pause()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """Treat a half-closed connection as ended: a program that gives up does that."""
        self._ended = True
        _wake(self._reader)
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Wake all waiters and cancel the work for this connection."""
        self._ended = self.lost = True
        _wake(self._reader)
        _wake(self._writer)
        if self._on_loss is not None:
            self._on_loss()
        elif self.caller is not None:
            self.caller.dismiss()
            self.caller.leave()

    def pause_writing(self) -> None:
        """Make writers wait."""
        self._blocked = True

    def resume_writing(self) -> None:
        """Let them go on."""
        self._blocked = False
        _wake(self._writer)

    # What its users call.

    def outlast(self, on_loss: Callable[[], None] | None) -> None:
        """Go on with what is being done even if the connection ends, which takes its room until None is given."""
        self._on_loss = on_loss
        if on_loss is None and self.lost and self.caller is not None:
            self.caller.leave()

    async def read(self) -> bytes:
        """Return the next bytes, at once when there are some; nothing is the end."""
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
        if self._size <= _HIGH // 2:
            self.resume()
        return piece

    def pause(self) -> None:
        """Make the other side wait."""
        if not self._paused and self._transport is not None and not self.lost:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Let it go on."""
        if self._paused and self._transport is not None and not self.lost:
            self._paused = False
            self._transport.resume_reading()

    def unread(self, data: bytes) -> None:
        """Put back what belongs to the next reader."""
        if data:
            self._pieces.appendleft(data)
            self._size += len(data)

    def write(self, data: bytes) -> None:
        """Send; `drain` afterwards, or it is kept in memory."""
        if self._transport is None or self.lost:
            raise ConnectionResetError
        if not self._secure or len(data) <= _SLICE:
            self._transport.write(data)
            return
        view = memoryview(data)  # TLS would keep room for the whole of it, for as long as the connection lasts
        for at in range(0, len(data), _SLICE):
            self._transport.write(view[at : at + _SLICE])

    async def drain(self) -> None:
        """Wait until the other side has taken enough of it."""
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
        """Return whether it is open, and nothing came that nobody asked for."""
        return not (self.lost or self._ended or self._pieces)

    @property
    def transport(self) -> asyncio.Transport | None:
        """Return what carries it, for those who put TLS on it."""
        return self._transport

    def close(self) -> None:
        """End it, after what was written has gone; a caller has a few seconds to take it."""
        if self._transport is not None:
            self._transport.close()
            if self.caller is not None and not self._secure and self._transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_CLOSING, self._transport.abort)

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Pool:
    """Connections to one upstream; those that are free are used again."""

    def __init__(self, connect: Callable[[], Awaitable[Stream]]) -> None:
        """Take what returns a new connection."""
        self.connect = connect
        self._free: list[tuple[float, Stream]] = []

    async def acquire(self) -> tuple[Stream, bool]:
        """Return a connection, and whether it has been used before."""
        now = asyncio.get_running_loop().time()
        while self._free:
            since, stream = self._free.pop()
            if stream.silent and now - since < _IDLE:
                return stream, True
            stream.abort()
        return await self.connect(), False

    def release(self, stream: Stream) -> None:
        """Keep a connection whose last answer is complete."""
        if not stream.silent or len(self._free) >= _KEPT:
            stream.close()
            return
        self._free.append((asyncio.get_running_loop().time(), stream))

    def close(self) -> None:
        """Close idle connections."""
        for _, stream in self._free:
            stream.abort()
        self._free.clear()


# From the host to an upstream: names, the host's proxy, TLS with the host's authorities.


_PATIENCE = 30.0  # seconds to get connected
_STAGGER = 0.25  # seconds after which another address of the same name is tried beside


class Egress:
    """How one upstream is reached."""

    def __init__(self, endpoint: Endpoint, proxy: HostProxy | None, trust: Trust) -> None:
        self.scheme, self.host, self.port = endpoint.scheme, endpoint.host, endpoint.port
        self.proxy = proxy
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    @property
    def absolute(self) -> bool:
        """Return whether requests name the whole address, because a proxy reads them.

        Not where it wants a login: what comes back could repeat it.
        """
        return self.proxy is not None and self.scheme == "http" and not self.proxy.login

    async def connect(self) -> Stream:
        """Return a connection, or say why there is none."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._connect()
        except TimeoutError:
            raise UpstreamFailure(f"{self.host} did not answer within {_PATIENCE:.0f} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise UpstreamFailure(
                f"the certificate of {self.host} cannot be trusted: {error.verify_message}; SSL_CERT_FILE or "
                "NODE_EXTRA_CA_CERTS of the host can name another authority"
            ) from None
        except (OSError, MalformedHttp) as error:
            via = f" through the proxy {self.proxy}" if self.proxy else ""
            what = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UpstreamFailure(f"{self.host} cannot be reached from the host{via}: {what}") from None

    async def _connect(self) -> Stream:
        proxy = self.proxy
        if proxy is None:
            return await self._open(self.host, self.port, self.scheme == "https")
        stream = await self._open(proxy.host, proxy.port, proxy.tls)
        if self.absolute:
            return stream
        return await self._tunnel(stream, proxy)

    async def _open(self, host: str, port: int, secure: bool) -> Stream:  # noqa: FBT001
        _, stream = await asyncio.get_running_loop().create_connection(
            Stream, host, port, ssl=self._tls() if secure else None, happy_eyeballs_delay=_STAGGER
        )
        return stream

    async def _tunnel(self, stream: Stream, proxy: HostProxy) -> Stream:
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        headers: messages.Headers = ((b"host", target.encode()),)
        if proxy.authorization:
            headers = (*headers, (b"proxy-authorization", proxy.authorization))
        stream.write(messages.render_request(messages.Request(b"CONNECT", target.encode(), headers)))
        head = await messages.read_head(stream)
        answer = messages.parse_response(head) if head else None
        if answer is None or answer.status != 200 or stream.transport is None:
            stream.abort()
            raise MalformedHttp(f"it answered {answer.status}" if answer else "it closed the connection")
        if self.scheme == "http":
            return stream
        loop = asyncio.get_running_loop()
        inner = Stream()
        transport = await loop.start_tls(stream.transport, inner, self._tls(), server_hostname=self.host)
        if transport is None:
            raise MalformedHttp("TLS did not begin")
        inner.connection_made(transport)
        return inner

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = make_context(self._trust)
        return self._context
