"""Heads of HTTP/1 as a proxy needs them: taken apart strictly, put together again for one request, refusals. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 64 << 10
_END = b"\r\n\r\n"
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
# Of this connection only, or of the way to the proxy (RFC 9110, 7.6.1).
_NOT_PASSED = frozenset((
    b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"upgrade", b"http2-settings",
))  # fmt: skip
_BLANK = b"\r\n\t "


class Malformed(ValueError):  # noqa: N818 - what it is, not that it is one
    """Not a request that all servers understand alike."""


@dataclass(frozen=True)
class Head:
    """The first line and the fields of a request."""

    method: str
    target: str
    version: str
    fields: tuple[tuple[bytes, bytes], ...]
    size: int  # in bytes, with the empty line

    def values(self, name: bytes) -> list[bytes]:
        """Return all values of a field."""
        return [value for field, value in self.fields if field.lower() == name]

    @property
    def host(self) -> str:
        """Return the one host that it is for."""
        hosts = self.values(b"host")
        if len(hosts) != 1:
            raise Malformed("it has no `Host`" if not hosts else "it has more than one `Host`")
        return hosts[0].decode("latin-1")


def missing(data: bytes) -> int:
    """Return how many bytes there must be before more can be told; nothing if the head is complete."""
    if _END in data:
        return 0
    if len(data) >= LONGEST:
        raise Malformed("its head is too long")
    return len(data) + 1


def line_missing(data: bytes) -> int:
    """Return how many bytes there must be to know whether this is HTTP; servers overlook empty lines in front."""
    return 0 if b"\n" in data.lstrip(_BLANK) or not _may_be_request(data) or len(data) >= LONGEST else len(data) + 1


def is_request(data: bytes) -> bool:
    """Return whether these first bytes are HTTP, whatever the method: the first line says so, or does not end."""
    line, end, _ = data.lstrip(_BLANK).partition(b"\n")
    return b"HTTP/" in line.upper() if end else len(data) >= LONGEST and _may_be_request(data)


def _may_be_request(data: bytes) -> bool:
    start = data.lstrip(_BLANK)
    return b"\0" not in start and _TOKEN.issuperset(start.split(None, 1)[0] if start else b"")


def parse(data: bytes) -> Head:
    """Take a complete head apart."""
    raw = data[: data.index(_END)]
    lines = raw.split(b"\r\n")
    if any(byte < 32 and byte != 9 for line in lines for byte in line) or b"\x7f" in raw:
        raise Malformed("there are control characters in it")
    words = lines[0].split(b" ")
    if len(words) != 3 or not words[0] or not set(words[0]) <= _TOKEN or words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise Malformed("its first line is not that of HTTP/1")
    if not words[1].isascii():
        raise Malformed("its target is not ASCII")
    fields = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN:
            raise Malformed("one of its fields has no proper name")
        fields.append((name, value.strip(b" \t")))
    head = Head(words[0].decode(), words[1].decode(), words[2].decode(), tuple(fields), len(raw) + len(_END))
    lengths = head.values(b"content-length")
    if len(lengths) > 1 or (lengths and head.values(b"transfer-encoding")):
        raise Malformed("it says twice how long it is")
    if any(not length.isdigit() for length in lengths):
        raise Malformed("its length is not a number")
    return head


def authority(text: str, port: int) -> tuple[str, int]:
    """Return host and port of `host[:port]`; the port may be left away."""
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, port
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) <= 65535):
        raise Malformed("it names no port")
    return host, int(digits)


def split_url(target: str) -> tuple[str, str]:
    """Return the authority and the rest of an `http://` URL."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise Malformed("a proxy takes `CONNECT host:port`, or a URL that starts with http://")
    end = min((at for at in (rest.find(mark) for mark in "/?#") if at >= 0), default=len(rest))
    where, path = rest[:end], rest[end:]
    if "@" in where:
        raise Malformed("its URL has a user name in it")
    return where, path if path.startswith("/") else f"/{path}"


def single(head: Head, target: str, host: str) -> bytes:
    """Return the head for a server that is asked this once, and for exactly this host."""
    named = {name.strip().lower() for value in head.values(b"connection") for name in value.split(b",")}
    kept = [row for row in head.fields if row[0].lower() not in _NOT_PASSED | named - {b"transfer-encoding"}]
    lines = [f"{head.method} {target} {head.version}".encode(), b"Host: " + host.encode(), b"Connection: close"]
    lines += [name + b": " + value for name, value in kept if name.lower() != b"content-length"]
    lines += [b"Content-Length: " + value for value in head.values(b"content-length")]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def response(status: int, reason: str, text: str) -> bytes:
    """Return an answer of the proxy itself: why, in words for whoever reads it."""
    body = f"{text}\n".encode("ascii", "replace")
    phrase = "".join(char if " " <= char <= "~" else "?" for char in reason)[:200]
    lines = (
        f"HTTP/1.1 {status} {phrase}", "Content-Type: text/plain; charset=us-ascii", f"Content-Length: {len(body)}",
        "Connection: close", "Proxy-Connection: close", "Cache-Control: no-store", "Via: claudebox",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
