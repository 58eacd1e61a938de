"""Addresses and networks that a user opens in spite of the tier: `10.1.2.3:443`, `10.1.0.0/16`. Pure."""

from __future__ import annotations

from claudebox.config.model import AddressRequest
from claudebox.errors import ClaudeboxError
from claudebox.tables.barred_ranges import ALWAYS_BARRED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.settings import Given

_EXAMPLES = "`10.1.2.3:443`, `10.1.0.0/16`, `fd77::50`, `[fd77::/64]:443`; a name is of use in tier `allow` alone"
_SHORTEST = {4: 8, 16: 7}  # a wider network is half of the world
_HEXADECIMAL = frozenset("0123456789abcdef")


def read_address(given: Given) -> AddressRequest:
    """Read ADDRESS[/LENGTH][:PORT], or say what would be right."""
    text, port = _split(given.value)
    address, slash, length = text.partition("/")
    packed = _packed(address)
    bits = len(packed) * 8
    size = _number(length, bits) if slash else bits
    number = _number(port, 65535) if port is not None else 0
    if not packed or size < 0 or number < 0 or (port is not None and not number):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not an address", hint=f"write {_EXAMPLES}")
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


def _split(value: str) -> tuple[str, str | None]:
    """Return address and port; an address of IPv6 with a port stands in brackets."""
    if value.startswith("["):
        text, bracket, rest = value[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            return "", None
        return text, rest[1:] if rest else None
    if value.count(":") > 1:
        return value, None
    text, colon, port = value.partition(":")
    return text, port if colon else None


def _number(text: str, most: int) -> int:
    """Return a number without signs, spaces and zeros in front, or -1."""
    plain = text.isascii() and text.isdigit() and len(text) <= 5 and str(int(text)) == text
    return int(text) if plain and int(text) <= most else -1


def _packed(text: str) -> bytes:
    """Return the bytes of an address in its usual spelling; nothing where it is none."""
    if ":" not in text:
        numbers = [_number(part, 255) for part in text.split(".")]
        return bytes(numbers) if len(numbers) == 4 and min(numbers) >= 0 else b""
    head, gap, tail = text.lower().partition("::")
    before, after = ([part for part in half.split(":") if half] for half in (head, tail))
    missing = 8 - len(before) - len(after)
    if missing < 0 or bool(gap) == (missing == 0) or "::" in tail:
        return b""
    groups = (*before, *("0" for _ in range(missing)), *after)
    if not all(0 < len(group) <= 4 and set(group) <= _HEXADECIMAL for group in groups):
        return b""
    return b"".join(int(group, 16).to_bytes(2, "big") for group in groups)


def _shown(packed: bytes) -> str:
    """Return the text of an address."""
    if len(packed) == 4:
        return ".".join(map(str, packed))
    groups = [f"{int.from_bytes(packed[at : at + 2], 'big'):x}" for at in range(0, 16, 2)]
    while len(groups) > 1 and groups[-1] == "0":
        groups.pop()
    return ":".join(groups) + ("::" if len(groups) < 8 else "")
