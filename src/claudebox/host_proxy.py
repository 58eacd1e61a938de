"""The HTTP proxy by which this machine gets out: the one reader of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

from claudebox.places import read_port, split_place
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_PORTS = {"http": 80, "https": 443}
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
_ADDRESS = frozenset("0123456789abcdefABCDEF:.")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class HostProxy(Value):
    """A proxy of this machine; its login is never shown."""

    _unprinted = ("login",)
    host: str
    port: int
    tls: bool = False  # it is spoken to over TLS itself
    login: str = ""  # `user:password`
    bypass: tuple[str, ...] = ()  # NO_PROXY: these are reached directly

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authorization(self) -> bytes:
        """Return the header that logs in, or nothing."""
        if not self.login:
            return b""
        import binascii

        return b"Basic " + binascii.b2a_base64(self.login.encode("utf-8", "surrogateescape"), newline=False)

    def serves(self, host: str, port: int = 443) -> bool:
        """Return whether a host is reached through it: not this machine itself, and not what NO_PROXY names."""
        host = host.lower().rstrip(".")
        if host in ("localhost", "::1") or host.endswith(".localhost") or _is_loopback(host):
            return False
        return not any(_matches(word, host, port) for word in self.bypass)


def has_login(value: str) -> bool:
    """Return whether an address has a name or a password in it."""
    rest = value.strip().partition("://")[2] or value.strip()
    for end in "/?#":
        rest = rest.partition(end)[0]
    return "@" in rest


def find_proxy(environ: Mapping[str, str], scheme: str = "https") -> tuple[HostProxy | None, str]:
    """Return the proxy for requests of a scheme, and what is wrong with the one that the environment names.

    Spellings in lower case come first, as in curl, git, Python and the client; an empty one counts for nothing.
    """
    spellings = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in spellings if environ.get(name, "").strip()), "")
    if not variable:
        return None, ""
    kind, separator, rest = environ[variable].strip().partition("://")
    kind, rest = (kind.lower(), rest) if separator else ("http", kind)
    if kind not in _PORTS:
        shown = f"a {kind} proxy" if kind.isascii() and kind.isalnum() else "no HTTP proxy"
        return None, f"{variable} of this machine names {shown}, and is not used: it must be `http://HOST:PORT`"
    for end in "/?#":
        rest = rest.partition(end)[0]
    login, _, place = rest.rpartition("@")
    host, port = split_place(place)
    number = read_port(port) if port else _PORTS[kind]
    if not host or not set(host) <= (_ADDRESS if ":" in host else _NAME) or not number:
        return None, f"{variable} of this machine is not of the form http://HOST:PORT, and is not used"
    bypass = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower().replace(",", " ").split()
    return HostProxy(host.lower(), number, kind == "https", _decoded(login), tuple(bypass)), ""


def _matches(word: str, host: str, port: int) -> bool:
    name, only = split_place(word)
    if only and only != str(port):
        return False
    if name == "*":
        return True
    name = name.removeprefix("*").lstrip(".").rstrip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") and host.replace(".", "").isdigit()


def _decoded(text: str) -> str:
    """Return a login without its percent signs."""
    first, *parts = text.encode("utf-8", "surrogateescape").split(b"%")
    for part in parts:
        code = part[:2].decode("latin-1")
        escaped = len(code) == 2 and set(code) <= _HEXADECIMAL
        first += bytes.fromhex(code) + part[2:] if escaped else b"%" + part
    return first.decode("utf-8", "surrogateescape")
