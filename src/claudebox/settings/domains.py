"""Which names the tier `allow` leads to: patterns, groups of them, and the question whether a name is permitted. Pure.

A name is only ever compared in one spelling: lower case, no dot at the end, letters, digits, `-` and `_`. What looks
like an address, in any of the forms that resolvers understand (127.1, 0x7f000001, 017700000001), is not a name.
"""

from __future__ import annotations

from claudebox.base.addresses import read_port, split_place
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.base.syscalls import socket
from claudebox.settings.records import AddressRequest
from claudebox.tables.network import ALWAYS_BARRED, GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.settings.layers import Given


WEB = (443, 80)  # where no port is given
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_EXAMPLES = "`github.com`, `*.example.org`, `api.example.org:8443`, or the name of a group"


class Domain(Value):
    """One pattern: a name or everything beneath it, on certain ports."""

    name: str  # without `*.`
    beneath: bool = False
    port: int = 0  # 0: those of the web

    def __str__(self) -> str:
        return ("*." if self.beneath else "") + self.name + (f":{self.port}" if self.port else "")

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports that it permits."""
        return (self.port,) if self.port else WEB

    def names(self, name: str) -> bool:
        """Return whether it means this name, which must be in its one spelling."""
        return name.endswith(f".{self.name}") if self.beneath else name == self.name


def canonical(text: str) -> str:
    """Return a name in its one spelling, or nothing if it is not the name of a host."""
    name = text.removesuffix(".").lower() if text.isascii() else ""
    labels = name.split(".")
    if not 0 < len(name) <= _LONGEST_NAME or not all(_is_label(label) for label in labels):
        return ""
    return "" if _is_number(labels[-1]) else name


def _is_label(label: str) -> bool:
    fits = 0 < len(label) <= _LONGEST_LABEL and label[0] != "-" and label[-1] != "-"
    return fits and set(label) <= _CHARACTERS


def _is_number(label: str) -> bool:
    """Return whether a last label makes resolvers read the whole as an address of IPv4."""
    return label.isdigit() or (label.startswith("0x") and set(label[2:]) <= set("0123456789abcdef"))


def parse_domain(text: str, origin: str) -> Domain:
    """Return the pattern that a user wrote, or say what would be right."""
    name, colon, port = text.partition(":")
    plain = canonical(name.removeprefix("*."))
    if "." not in plain or name.endswith("."):
        raise ClaudeboxError(f"`{origin}`: `{text}` is not the name of a domain", hint=_advice(text))
    number = read_port(port)
    if colon and not number:
        raise ClaudeboxError(
            f"`{origin}`: `{text}` names no port", hint=f"`{name}:8443`, say; `{name}` alone means ports 443 and 80"
        )
    return Domain(plain, name.startswith("*."), number)


def _advice(text: str) -> str:
    """Return what somebody probably meant who wrote this."""
    bare = text.partition("://")[2] or text
    host = bare.partition("/")[0].rpartition("@")[2]
    if not text.isascii():
        return _in_ascii(host)
    if host != text and "." in canonical(host.partition(":")[0]):
        return f"the name alone: `{host}`"
    name = host.partition(":")[0].lower().removesuffix(".")
    if name in ("*", "*.*") or (name.startswith("*.") and "." not in name[2:]):
        return "that is everybody's; `--network inet` leads to every name"
    if "*" in name.removeprefix("*."):
        return "a star stands alone in front, for everything beneath: `*.example.org`"
    if host.count(":") > 1 or "[" in host or _is_number(name.rpartition(".")[2]):
        return "names only, no addresses; a port of this machine is opened by `--allow-host-port`"
    if "." in canonical(name):
        return f"the name without the dot at its end: `{name}`"
    return f"write {_EXAMPLES}"


def _in_ascii(host: str) -> str:
    try:
        return f"write it as it is asked for in DNS: `{host.lower().encode('idna').decode()}`"
    except UnicodeError:
        return f"write {_EXAMPLES}"


def is_group(text: str) -> bool:
    """Return whether a request is the name of a group: one word, which no pattern is, with `@` in front or without."""
    text = text.removeprefix("@")
    return text.isascii() and text.replace("-", "a").replace("_", "a").isalnum() and not text.startswith("-")


def check(text: str, origin: str) -> None:
    """Raise if this can be neither a pattern nor the name of a group."""
    if not is_group(text) or text.removeprefix("@").isdigit():
        parse_domain(text, origin)


def expand(requests: Iterable[tuple[str, str]], groups: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Domain, str]]:
    """Yield the patterns of requests, each a text with its origin, and what asked for it; groups of a user win."""
    for text, origin in requests:
        if not is_group(text):
            yield parse_domain(text, origin), origin
            continue
        text = text.removeprefix("@")  # noqa: PLW2901 - the name itself
        members = groups.get(text) or GROUPS.get(text)
        if members is None:
            known = ", ".join(f"`{name}`" for name in sorted({*groups, *GROUPS}))
            raise ClaudeboxError(
                f"`{origin}`: there is no group of domains `{text}`",
                hint=f"there are {known}; a new one is `[domains.{text}]` with `hosts`, in ~/.claudebox/config.toml",
            )
        for member in members:
            yield parse_domain(member, f"domains.{text}"), f"{origin}, group {text}"


class Permission:
    """All names that a sandbox may reach, ready to be asked often."""

    def __init__(self, domains: Iterable[Domain]) -> None:
        self._exact: dict[str, dict[int, Domain]] = {}
        self._beneath: dict[str, dict[int, Domain]] = {}
        self.add(domains)

    def add(self, domains: Iterable[Domain]) -> None:
        """Permit more."""
        for domain in domains:
            table = self._beneath if domain.beneath else self._exact
            for port in domain.ports:
                table.setdefault(domain.name, {}).setdefault(port, domain)

    def rule(self, name: str, port: int) -> Domain | None:
        """Return the pattern that permits a name, in its one spelling, on a port."""
        return next((ports[port] for ports in self._rows(name) if port in ports), None)

    def ports(self, name: str) -> tuple[int, ...]:
        """Return the ports on which a name is permitted."""
        return tuple(dict.fromkeys(port for ports in self._rows(name) for port in ports))

    def _rows(self, name: str) -> Iterator[dict[int, Domain]]:
        if name in self._exact:
            yield self._exact[name]
        while name:
            name = name.partition(".")[2]
            if name in self._beneath:
                yield self._beneath[name]


# Addresses and networks that a user opens in spite of the tier: `10.1.2.3:443`, `10.1.0.0/16`. Pure.


_ADDRESSES_EXAMPLES = (
    "`10.1.2.3:443`, `10.1.0.0/16`, `fd77::50`, `[fd77::/64]:443`; a name is of use in tier `allow` alone"
)
_SHORTEST = {4: 8, 16: 7}  # a wider network is half of the world


def read_address(given: Given) -> AddressRequest:
    """Read ADDRESS[/LENGTH][:PORT], or say what would be right."""
    text, port = split_place(given.value)
    address, slash, length = text.partition("/")
    packed = _packed(address)
    bits = len(packed) * 8
    size = bits if not slash else int(length) if length.isascii() and length.isdigit() and len(length) < 4 else -1
    number = read_port(port) if port is not None else 0
    if not packed or not 0 <= size <= bits or (port is not None and not number):
        raise ClaudeboxError(
            f"`{given.origin}`: `{given.value}` is not an address", hint=f"write {_ADDRESSES_EXAMPLES}"
        )
    whole = int.from_bytes(packed, "big")
    first = whole >> (bits - size) << (bits - size)
    if first != whole:
        hint = f"the network is `{_shown(first.to_bytes(bits // 8, 'big'))}/{size}`, the one address `{address}`"
        raise ClaudeboxError(f"`{given.origin}`: `{text}` is neither an address nor a network", hint=hint)
    if size < _SHORTEST[len(packed)]:
        raise ClaudeboxError(
            f"`{given.origin}`: `{text}` is no network but half of the world",
            hint="`--network inet` leads to the internet, and `--network full` everywhere",
        )
    for prefix, reason in ALWAYS_BARRED:
        other, _, closed = prefix.partition("/")
        barred = _packed(other)
        shift = bits - int(closed)
        if len(barred) == len(packed) and int(closed) <= size and whole >> shift == int.from_bytes(barred) >> shift:
            raise ClaudeboxError(
                f"`{given.origin}`: `{text}` stays closed: {reason}",
                hint="a port of this machine is opened by `--allow-host-port`",
            )
    return AddressRequest(f"{address.lower()}/{size}", number, given.origin, given.untrusted)


def _packed(text: str) -> bytes:
    """Return the bytes of an address; nothing where it is none."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        return b""


def _shown(packed: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)
