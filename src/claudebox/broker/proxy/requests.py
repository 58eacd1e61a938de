"""Requests to a proxy: where they lead, the one request that is passed on, and refusals. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp
from claudebox.places import read_port
from claudebox.values import Value

if TYPE_CHECKING:
    from claudebox.broker.http.messages import Headers, Request

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
