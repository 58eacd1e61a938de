"""Nix on a machine, as plain values."""

from __future__ import annotations

import os

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Trust = Literal["yes", "no", "unknown"]


STORE = "/nix/store"
STATE = "/nix/var/nix"


class Location(Value):
    """Where store and socket are, and why the daemon cannot be used, if that is known already."""

    store: str = STORE  # on the host; inside it is always /nix/store
    root: str = ""  # the directory above /nix/store
    socket: str = f"{STATE}/daemon-socket/socket"
    problem: str = ""
    remedy: str = ""

    @property
    def remote(self) -> str:
        """Return NIX_REMOTE for programs of the host."""
        return f"unix://{self.socket}?root={_escaped(self.root)}" if self.root else f"unix://{self.socket}"

    def inside(self, path: str) -> str:
        """Return the path inside of a file in the store, or nothing if it is elsewhere."""
        return STORE + path[len(self.store) :] if path.startswith(f"{self.store}/") else ""


class Daemon(Value):
    """What is known of the daemon."""

    version: str = ""  # of the daemon
    client: str = ""  # version of the program `nix`
    trusted: Trust = "unknown"
    sandbox: str = "unknown"  # of builders: true, false, relaxed
    problem: str = ""  # why it is not known

    @property
    def relay(self) -> bool:
        """Return whether this Nix can be a relay (`nix daemon --force-untrusted`)."""
        return number(self.client) >= (2, 18)


def number(version: str) -> tuple[int, ...]:
    """Return 2.26.3pre1 as (2, 26, 3)."""
    parts = []
    for word in version.split(".")[:3]:
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        parts.append(int(digits) if digits else 0)
    return tuple(parts)


class Packages(Value):
    """The packages that were asked for, as they were resolved before."""

    key: str  # of their directory in ~/.claudebox/nix
    path: tuple[str, ...] | None = None  # their directories of programs, if all are still in the store
    fresh: bool = False  # and need not be resolved again


class Nix(Value):
    """Nix on this machine."""

    location: Location = Location()
    program: str = ""  # `nix` of the host
    daemon: Daemon = Daemon()
    path: tuple[str, ...] = ()  # directories of its programs inside
    nixpkgs: str = ""  # the package set, as a flake reference
    packages: Packages | None = None  # those that were asked for
    directory: str = ""  # for the socket of a relay
    shell: str = ""  # file of the project's dev shell: flake.nix or shell.nix


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or char in "/._-" else "".join(f"%{byte:02X}" for byte in os.fsencode(char))
                   for char in text)  # fmt: skip
