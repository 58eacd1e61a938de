"""From the host to an upstream: names, the host's proxy, TLS with the host's authorities."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp
from claudebox.broker.http.rules import UpstreamFailure
from claudebox.broker.http.stream import Stream
from claudebox.launch.tls_context import make_context

if TYPE_CHECKING:
    from claudebox.host_proxy import HostProxy
    from claudebox.plan.network_model import Endpoint, Trust

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
