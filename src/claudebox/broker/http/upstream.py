"""From the host to an upstream: names, the host's proxy, TLS with the host's authorities."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from claudebox.broker.http import messages
from claudebox.broker.http.handler import Unreachable
from claudebox.broker.http.messages import Malformed
from claudebox.broker.http.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE = 30.0  # seconds to get connected
_STAGGER = 0.25  # seconds after which another address of the same name is tried beside
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Proxy:
    """The host's own proxy."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address if "://" in address else f"http://{address}")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.secure else 80)
        said = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        self.authorization = b"Basic " + base64.b64encode(said.encode()) if said else b""


class Egress:
    """How one upstream is reached."""

    def __init__(self, upstream: tuple[str, str, int], environ: Mapping[str, str], ca_bundle: str = "") -> None:
        self.scheme, self.host, self.port = upstream
        self.proxy = find_proxy(upstream, environ)
        self._authorities = (environ, ca_bundle)
        self._context: ssl.SSLContext | None = None

    @property
    def absolute(self) -> bool:
        """Tell whether requests name the whole address, because a proxy reads them."""
        return self.proxy is not None and self.scheme == "http"

    async def connect(self) -> Stream:
        """Return a connection, or say why there is none."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._connect()
        except TimeoutError:
            raise Unreachable(f"{self.host} did not answer within {_PATIENCE:.0f} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {self.host} cannot be trusted: {error.verify_message}; SSL_CERT_FILE or "
                "NODE_EXTRA_CA_CERTS of the host can name another authority"
            ) from None
        except (OSError, Malformed) as error:
            via = f" through the proxy {self.proxy.host}:{self.proxy.port}" if self.proxy else ""
            what = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"{self.host} cannot be reached from the host{via}: {what}") from None

    async def _connect(self) -> Stream:
        proxy = self.proxy
        if proxy is None:
            return await self._open(self.host, self.port, self.scheme == "https")
        stream = await self._open(proxy.host, proxy.port, proxy.secure)
        if self.absolute:
            return stream
        return await self._tunnel(stream, proxy)

    async def _open(self, host: str, port: int, secure: bool) -> Stream:  # noqa: FBT001
        _, stream = await asyncio.get_running_loop().create_connection(
            Stream, host, port, ssl=self._tls() if secure else None, happy_eyeballs_delay=_STAGGER
        )
        return stream

    async def _tunnel(self, stream: Stream, proxy: Proxy) -> Stream:
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        headers: messages.Headers = ((b"host", target.encode()),)
        if proxy.authorization:
            headers = (*headers, (b"proxy-authorization", proxy.authorization))
        stream.write(messages.render_request(messages.Request(b"CONNECT", target.encode(), headers)))
        head = await messages.read_head(stream)
        answer = messages.parse_response(head, b"CONNECT") if head else None
        if answer is None or answer.status != 200 or stream.transport is None:
            stream.abort()
            raise Malformed(f"it answered {answer.status}" if answer else "it closed the connection")
        loop = asyncio.get_running_loop()
        inner = Stream()
        transport = await loop.start_tls(stream.transport, inner, self._tls(), server_hostname=self.host)
        if transport is None:
            raise Malformed("TLS did not begin")
        inner.connection_made(transport)
        return inner

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = context(*self._authorities)
        return self._context


def context(environ: Mapping[str, str], ca_bundle: str = "") -> ssl.SSLContext:
    """Return what the host's own client would trust."""
    file, directory = environ.get("SSL_CERT_FILE") or ca_bundle, environ.get("SSL_CERT_DIR")
    made = ssl.create_default_context(cafile=file or None, capath=directory or None)
    made.set_alpn_protocols(["http/1.1"])
    if environ.get("NODE_EXTRA_CA_CERTS"):
        made.load_verify_locations(environ["NODE_EXTRA_CA_CERTS"])
    if environ.get("CLAUDE_CODE_CLIENT_CERT"):
        made.load_cert_chain(environ["CLAUDE_CODE_CLIENT_CERT"], environ.get("CLAUDE_CODE_CLIENT_KEY") or None)
    return made


def find_proxy(upstream: tuple[str, str, int], environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the host uses for this upstream; none for the host itself."""
    scheme, host, port = upstream
    name = f"{scheme}_proxy"
    address = environ.get(name.upper()) or environ.get(name) or ""
    if not address or host in _LOCAL or host.startswith("127."):
        return None
    for word in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").replace(",", " ").split():
        suffix = word.lower().removeprefix("*")
        if not suffix or suffix == f"{host}:{port}" or host == suffix.lstrip("."):
            return None
        if host.endswith(f".{suffix.lstrip('.')}") and (suffix.startswith(".") or ":" not in suffix):
            return None
    return Proxy(address)
