"""What the host's network asks of programs: certificate authorities of a company, and HTTP proxies.

Authorities are named by a dozen variables and by git's configuration; only certificates are taken from these files.
"""

from __future__ import annotations

import os

from claudebox.base.addresses import read_port, split_place
from claudebox.base.files import expand, list_names, read_small, real_path
from claudebox.base.records import Value
from claudebox.tables.environment import ADDED_AUTHORITIES, AUTHORITIES, SAME_AUTHORITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.git.config import Row
    from claudebox.network.records import Trust


_LIMIT = 4 << 20  # bytes of a file
_MOST_FILES = 1024  # of a directory
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class CompanyNetwork(Value):
    """Authorities and proxy that were named for single programs."""

    bundle: bytes = b""  # the system's certificates and the named ones, if there are new ones
    sources: tuple[str, ...] = ()  # variables and keys that name authorities
    problems: tuple[str, ...] = ()
    git_proxy: str = ""
    named: bytes = b""  # for programs that bring the usual certificates themselves
    told: tuple[str, ...] = ()  # variables that are to name the bundle
    upstream: bytes = b""  # for the broker: as `bundle`, without files that an agent can write


def read_company(
    environ: dict[str, str], home: str, rows: tuple[Row, ...], bundle: str, workdir: str = ""
) -> CompanyNetwork | None:
    """Read every file of authorities that is named; `bundle` is the system's, which is inside anyway."""
    git = {(name, key): value for section, name, key, value in rows if section == "http"}
    found: dict[bytes, None] = {}
    added: dict[bytes, None] = {}  # to those that programs bring themselves
    outside: dict[bytes, None] = {}  # of the project
    sources: dict[str, None] = {}
    told: dict[str, None] = {}
    problems = []
    for source, variable, path in _named(environ, home, git):
        real = "" if "\0" in path else real_path(path)
        if real != bundle or not real:
            texts = {text: None for text, _ in _certificates(_read(path)) if _is_certificate(text)} if real else {}
            if not texts:
                problems.append(f"{source} names {path}, which holds no readable certificate")
                continue
            found |= texts
            added |= texts if variable in ADDED_AUTHORITIES else {}
            outside |= texts if not workdir or not f"{real}/".startswith(f"{workdir}/") else {}
        sources[source] = None
        if real == bundle or variable not in ADDED_AUTHORITIES:
            told[variable] = None
    if not sources and not problems and not git.get(("", "proxy")):
        return None
    system = dict(_certificates(_read(bundle))) if found and bundle else {}
    usual, new = b"".join(system.values()), [text for text in found if text not in system]
    firm = [text for text in new if text in outside]
    return CompanyNetwork(
        usual + _spell(new) if new else b"", tuple(sources), tuple(problems), git.get(("", "proxy"), ""),
        named=_spell(added | dict.fromkeys(new)), told=tuple(told), upstream=usual + _spell(firm) if firm else b"",
    )  # fmt: skip


def _named(environ: dict[str, str], home: str, git: dict[tuple[str, str], str]) -> Iterator[tuple[str, str, str]]:
    """Yield what names a file of authorities, the variable that means the same, and the path."""
    for name in ("SSL_CERT_FILE", *AUTHORITIES, *SAME_AUTHORITIES):
        if environ.get(name):
            yield name, SAME_AUTHORITIES.get(name, name), environ[name]
    for directory in environ.get("SSL_CERT_DIR", "").split(":"):
        if directory and os.path.isdir(directory):
            yield "SSL_CERT_DIR", "SSL_CERT_FILE", directory
    for (name, key), value in git.items():
        if key in ("sslcainfo", "sslcapath") and value:
            yield f"git's http.{name + '.' if name else ''}{key}", "GIT_SSL_CAINFO", expand(value, home, home)


def _read(path: str) -> bytes:
    """Return the content of a file, or of all files of a directory, where most have a second name (a hash)."""
    if not os.path.isdir(path):
        return read_small(path, limit=_LIMIT, follow=True) or b""
    files: dict[tuple[int, int], str] = {}
    for name in list_names(path)[:_MOST_FILES]:
        try:
            status = os.stat(f"{path}/{name}")
        except OSError:
            continue
        files.setdefault((status.st_dev, status.st_ino), f"{path}/{name}")
    return b"\n".join(read_small(file, limit=_LIMIT, follow=True) or b"" for file in files.values())


def _certificates(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each certificate, its base64 text without blanks and the block as it is; keys and comments are left out."""
    for part in content.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if end:
            yield b"".join(body.split()), b"%s%s%s\n" % (_BEGIN, body, _END)


def _spell(texts: Iterable[bytes]) -> bytes:
    parts = []
    for text in texts:
        lines = b"".join(text[at : at + 64] + b"\n" for at in range(0, len(text), 64))
        parts.append(b"%s\n%s%s\n" % (_BEGIN, lines, _END))
    return b"".join(parts)


def _is_certificate(text: bytes) -> bool:
    """Return whether this is a single DER sequence of a certificate's size, which the text of a key or token is not."""
    import binascii

    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    start = 2 + (data[1] & 0x7F) if len(data) > 128 else 0
    return data[0:1] == b"\x30" and 2 < start < 5 and int.from_bytes(data[2:start], "big") == len(data) - start


# The HTTP proxy of the host: the one reader of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.


_PORTS = {"http": 80, "https": 443}
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
_ADDRESS = frozenset("0123456789abcdefABCDEF:.")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class HostProxy(Value):
    """A proxy of this machine; its login is never shown."""

    _unprinted = ("login",)
    host: str
    port: int
    tls: bool = False  # the connection to the proxy is TLS itself
    login: str = ""  # `user:password`
    bypass: tuple[str, ...] = ()  # NO_PROXY

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authorization(self) -> bytes:
        """Return the value of Proxy-Authorization, or nothing."""
        if not self.login:
            return b""
        import binascii

        return b"Basic " + binascii.b2a_base64(self.login.encode("utf-8", "surrogateescape"), newline=False)

    def serves(self, host: str, port: int = 443) -> bool:
        """Return whether a host is reached through it: neither this machine nor what NO_PROXY names."""
        host = host.lower().rstrip(".")
        if host in ("localhost", "::1") or host.endswith(".localhost") or _is_loopback(host):
            return False
        return not any(_matches(word, host, port) for word in self.bypass)


def has_login(value: str) -> bool:
    """Return whether the URL of a proxy has a user name or a password in it."""
    rest = value.strip().partition("://")[2] or value.strip()
    for end in "/?#":
        rest = rest.partition(end)[0]
    return "@" in rest


def find_proxy(environ: Mapping[str, str], scheme: str = "https") -> tuple[HostProxy | None, str]:
    """Return the proxy for requests of a scheme, and what is wrong with the one that the environment names.

    Lower case comes first, as in curl, git, Python and the client; empty variables are ignored.
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
    """Return a login with its percent escapes decoded."""
    first, *parts = text.encode("utf-8", "surrogateescape").split(b"%")
    for part in parts:
        code = part[:2].decode("latin-1")
        escaped = len(code) == 2 and set(code) <= _HEXADECIMAL
        first += bytes.fromhex(code) + part[2:] if escaped else b"%" + part
    return first.decode("utf-8", "surrogateescape")


# TLS from the host to servers.


def make_context(trust: Trust) -> ssl.SSLContext:
    """Return the TLS context of an HTTP/1.1 client, with the same verification in every version of Python.

    Python 3.13 began to refuse authorities that violate RFC 5280, as those of many companies do, and to accept a
    trusted intermediate authority. We accept both, as other clients do.
    """
    import ssl

    made = ssl.create_default_context(cafile=trust.bundle or None, capath=trust.directory or None)
    made.verify_flags = (made.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if trust.extra:
        made.load_verify_locations(trust.extra)
    if trust.certificate:
        made.load_cert_chain(trust.certificate, trust.key or None, trust.passphrase or None)
    return made
