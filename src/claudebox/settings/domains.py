"""Domains of tier `allow` (patterns, groups, and whether a name is permitted), and addresses that a user opens. Pure.

Names are compared in one spelling: lower case, no dot at the end, letters, digits, `-` and `_`. IP addresses, in any of
the forms that resolvers accept (127.1, 0x7f000001, 017700000001), are never names.
"""

from __future__ import annotations

from claudebox.base import addresses
from claudebox.base.addresses import read_port, split_place
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.settings.records import AddressRequest
from claudebox.tables.network import ALWAYS_BARRED, GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.settings.layers import SettingValue


WEB = (443, 80)  # where no port is given
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_EXAMPLES = "`github.com`, `*.example.org`, `api.example.org:8443`, or the name of a group"


class Domain(Value):
    """A pattern: a name or everything beneath it, on certain ports."""

    name: str  # without `*.`
    beneath: bool = False
    port: int = 0  # 0: 443 and 80

    def __str__(self) -> str:
        return ("*." if self.beneath else "") + self.name + (f":{self.port}" if self.port else "")

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,) if self.port else WEB

    def names(self, name: str) -> bool:
        """Return whether it matches this name, which must be canonical."""
        return name.endswith(f".{self.name}") if self.beneath else name == self.name


def canonical(text: str) -> str:
    """Return a name in its one spelling, or nothing if it is no host name."""
    name = text.removesuffix(".").lower() if text.isascii() else ""
    labels = name.split(".")
    if not 0 < len(name) <= _LONGEST_NAME or not all(_is_label(label) for label in labels):
        return ""
    return "" if _is_number(labels[-1]) else name


def _is_label(label: str) -> bool:
    fits = 0 < len(label) <= _LONGEST_LABEL and label[0] != "-" and label[-1] != "-"
    return fits and set(label) <= _CHARACTERS


def _is_number(label: str) -> bool:
    """Return whether a last label makes resolvers take the whole for an IPv4 address."""
    return label.isdigit() or (label.startswith("0x") and set(label[2:]) <= set("0123456789abcdef"))


def parse_domain(text: str, origin: str) -> Domain:
    """Return the pattern that a user wrote; raise with a hint if it is none."""
    name, colon, port = text.partition(":")
    plain = canonical(name.removeprefix("*."))
    if "." not in plain or name.endswith("."):
        raise ClaudeboxError(f"`{origin}`: `{text}` is not a domain name", hint=_advice(text))
    number = read_port(port)
    if colon and not number:
        raise ClaudeboxError(
            f"`{origin}`: `{text}` has an invalid port",
            hint=f"for example `{name}:8443`; `{name}` alone means ports 443 and 80",
        )
    return Domain(plain, name.startswith("*."), number)


def _advice(text: str) -> str:
    """Return a hint for a malformed pattern."""
    bare = text.partition("://")[2] or text
    host = bare.partition("/")[0].rpartition("@")[2]
    if not text.isascii():
        return _in_ascii(host)
    if host != text and "." in canonical(host.partition(":")[0]):
        return f"the name alone: `{host}`"
    name = host.partition(":")[0].lower().removesuffix(".")
    if name in ("*", "*.*") or (name.startswith("*.") and "." not in name[2:]):
        return "it matches every domain; use `--network inet` for that"
    if "*" in name.removeprefix("*."):
        return "`*` is allowed only as the first label: `*.example.org`"
    if host.count(":") > 1 or "[" in host or _is_number(name.rpartition(".")[2]):
        return "names only, no addresses; see `allow_addresses` and `allow_host_port`"
    if "." in canonical(name):
        return f"the name without the dot at its end: `{name}`"
    return f"write {_EXAMPLES}"


def _in_ascii(host: str) -> str:
    try:
        return f"write it as in DNS: `{host.lower().encode('idna').decode()}`"
    except UnicodeError:
        return f"write {_EXAMPLES}"


def is_group(text: str) -> bool:
    """Return whether a request names a group: one label, with or without `@` in front."""
    text = text.removeprefix("@")
    return text.isascii() and text.replace("-", "a").replace("_", "a").isalnum() and not text.startswith("-")


def check(text: str, origin: str) -> None:
    """Raise if this is neither a pattern nor the name of a group."""
    if not is_group(text) or text.removeprefix("@").isdigit():
        parse_domain(text, origin)


def expand(requests: Iterable[tuple[str, str]], groups: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Domain, str]]:
    """Yield the patterns of requests (text and origin) with their origin; the user's groups override built-in ones."""
    for text, origin in requests:
        if not is_group(text):
            yield parse_domain(text, origin), origin
            continue
        text = text.removeprefix("@")  # noqa: PLW2901
        members = groups.get(text) or GROUPS.get(text)
        if members is None:
            known = ", ".join(f"`{name}`" for name in sorted({*groups, *GROUPS}))
            raise ClaudeboxError(
                f"`{origin}`: there is no group of domains `{text}`",
                hint=f"known groups: {known}; define one as `[domains.{text}]` with `hosts` in config.toml",
            )
        for member in members:
            yield parse_domain(member, f"domains.{text}"), f"{origin}, group {text}"


class Permission:
    """All names that a sandbox may reach, indexed."""

    def __init__(self, domains: Iterable[Domain]) -> None:
        self._exact: dict[str, dict[int, Domain]] = {}
        self._beneath: dict[str, dict[int, Domain]] = {}
        self.add(domains)

    def add(self, domains: Iterable[Domain]) -> None:
        for domain in domains:
            table = self._beneath if domain.beneath else self._exact
            for port in domain.ports:
                table.setdefault(domain.name, {}).setdefault(port, domain)

    def rule(self, name: str, port: int) -> Domain | None:
        """Return the pattern that permits a canonical name on a port."""
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


# Addresses and networks that a user opens in spite of the tier: `10.1.2.3:443`, `10.1.0.0/16`.


_ADDRESS_EXAMPLES = "`10.1.2.3:443`, `10.1.0.0/16`, `fd77::50`, `[fd77::/64]:443`; names work in tier `allow` alone"
_SHORTEST = {4: 8, 16: 7}


def read_address(given: SettingValue) -> AddressRequest:
    """Read ADDRESS[/LENGTH][:PORT]; raise with a hint if it is none."""
    text, port = split_place(given.value)
    address, slash, length = text.partition("/")
    packed = addresses.pack(address)
    bits = len(packed) * 8
    size = bits if not slash else int(length) if length.isascii() and length.isdigit() and len(length) < 4 else -1
    number = read_port(port) if port is not None else 0
    if not packed or not 0 <= size <= bits or (port is not None and not number):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not an address", hint=f"write {_ADDRESS_EXAMPLES}")
    prefix = addresses.network(packed, size)
    if prefix[0] != packed:
        hint = f"the network is `{addresses.show(prefix)}`, the one address `{address}`"
        raise ClaudeboxError(f"`{given.origin}`: `{text}` has bits set beyond its prefix", hint=hint)
    if size < _SHORTEST[len(packed)]:
        raise ClaudeboxError(
            f"`{given.origin}`: prefix of `{text}` too short; minimum /{_SHORTEST[len(packed)]}",
            hint="`--network inet` opens the internet, and `--network full` everything",
        )
    for barred, reason in ALWAYS_BARRED:
        if addresses.covers(addresses.parse_prefix(barred), prefix):
            raise ClaudeboxError(
                f"`{given.origin}`: `{text}` stays closed: {reason}",
                hint="`allow_host_port` opens a port of this machine",
            )
    return AddressRequest(f"{address.lower()}/{size}", number, given.origin, given.untrusted)
