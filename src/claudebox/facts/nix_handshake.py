"""Asks a Nix daemon by its own protocol whether it trusts us: some milliseconds, and no program is run."""

from __future__ import annotations

from claudebox.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.nix_model import Trust

_HELLO, _ANSWER = 0x6E697863, 0x6478696F
_VERSION = 0x123  # 1.35: the first in which it tells
_PATIENCE = 10.0
_LONGEST = 1024
_TRUST: dict[int, Trust] = {1: "yes", 2: "no"}


def trust(path: str) -> Trust:
    """Return what the daemon at this socket says; raise OSError if it does not answer."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(_PATIENCE)
        peer.connect(path)
        _send(peer, _HELLO)
        if _receive(peer) != _ANSWER:
            raise OSError("it does not speak the protocol of Nix")
        version = _receive(peer)
        _send(peer, _VERSION, 0, 0)  # neither a processor nor space to reserve
        if version < _VERSION:
            return "unknown"
        length = _receive(peer)
        if length > _LONGEST:
            raise OSError("it does not speak the protocol of Nix")
        _exactly(peer, length + -length % 8)  # its version, in words
        return _TRUST.get(_receive(peer), "unknown")
    finally:
        peer.close()


def _send(peer: socket.socket, *numbers: int) -> None:
    peer.sendall(b"".join(number.to_bytes(8, "little") for number in numbers))


def _receive(peer: socket.socket) -> int:
    return int.from_bytes(_exactly(peer, 8), "little")


def _exactly(peer: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        piece = peer.recv(length - len(found))
        if not piece:
            raise OSError("it ended the conversation")
        found += piece
    return found
