"""What is known about Nix on a machine, as plain values."""

from __future__ import annotations

import os

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Trust = Literal["yes", "no", "unknown"]


STORE = "/nix/store"
STATE = "/nix/var/nix"
RELAY_PREFIX = "claudebox-relay-"  # of the directory of a relay


class Location(Value):
    """The places, and why the daemon cannot be used from here if that shows already."""

    store: str = STORE  # on the host; it is called /nix/store inside in any case
    root: str = ""  # what stands in front of /nix/store
    socket: str = f"{STATE}/daemon-socket/socket"
    problem: str = ""
    remedy: str = ""

    @property
    def remote(self) -> str:
        """Return what programs of the host find the daemon by."""
        return f"unix://{self.socket}?root={_escaped(self.root)}" if self.root else f"unix://{self.socket}"

    def inside(self, path: str) -> str:
        """Return what a file of the store is called, if the path is one of the host's."""
        return STORE + path[len(self.store) :] if path.startswith(f"{self.store}/") else ""


class Daemon(Value):
    """What is known."""

    version: str = ""  # of the daemon
    client: str = ""  # of the program `nix`
    trusted: Trust = "unknown"
    sandbox: str = "unknown"  # of builders: true, false, relaxed
    problem: str = ""  # why it is not known

    @property
    def relay(self) -> bool:
        """Return whether this Nix can stand in front of the daemon and trust nobody (`--force-untrusted`)."""
        return number(self.client) >= (2, 18)


def number(version: str) -> tuple[int, ...]:
    """Return 2.26.3 as (2, 26, 3); what follows a number in a word is left out."""
    parts = []
    for word in version.split(".")[:3]:
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        parts.append(int(digits) if digits else 0)
    return tuple(parts)


class Packages(Value):
    """What is known of the packages that were asked for, without building any."""

    key: str  # of their directory in ~/.claudebox/nix
    path: tuple[str, ...] | None = None  # their directories of programs, if they were there before and still are
    fresh: bool = False  # and nothing newer need be looked for


class Nix(Value):
    """The facts."""

    location: Location = Location()
    program: str = ""  # `nix` of the host
    daemon: Daemon = Daemon()
    path: tuple[str, ...] = ()  # where its programs are inside, if they are in the store
    nixpkgs: str = ""  # the package set, as a flake reference
    packages: Packages | None = None  # those that were asked for
    directory: str = ""  # of the socket of a relay, should there be one
    shell: str = ""  # what the project's dev shell is made of: flake.nix or shell.nix


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or char in "/._-" else "".join(f"%{byte:02X}" for byte in os.fsencode(char))
                   for char in text)  # fmt: skip
