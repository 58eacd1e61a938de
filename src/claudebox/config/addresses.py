"""Addresses and networks that a user opens in spite of the tier: `10.1.2.3:443`, `10.1.0.0/16`. Pure."""

from __future__ import annotations

from claudebox.config.model import AddressRequest
from claudebox.errors import ClaudeboxError
from claudebox.places import read_port, split_place
from claudebox.syscalls import socket
from claudebox.tables.barred_ranges import ALWAYS_BARRED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.settings import Given

_EXAMPLES = "`10.1.2.3:443`, `10.1.0.0/16`, `fd77::50`, `[fd77::/64]:443`; a name is of use in tier `allow` alone"
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


def _packed(text: str) -> bytes:
    """Return the bytes of an address; nothing where it is none."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        return b""


def _shown(packed: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)
