"""Where the store and the daemon of this machine are, as Nix itself would find them.

`NIX_REMOTE=unix://SOCKET?root=ROOT` names a store whose files lie under ROOT and are called /nix/store/... all the same:
what people use for a store without /nix, and what the tests use for a store of their own.
"""

from __future__ import annotations

import os
import stat

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STORE = "/nix/store"
_STATE = "/nix/var/nix"
_SINGLE_USER = "the store is a single-user one: without a daemon between, builders would run as you"


class Location(Value):
    """The places, and why the daemon cannot be used from here if that shows already."""

    store: str = STORE  # on the host; it is called /nix/store inside in any case
    root: str = ""  # what stands in front of /nix/store
    socket: str = f"{_STATE}/daemon-socket/socket"
    problem: str = ""
    remedy: str = ""

    @property
    def remote(self) -> str:
        """Return what programs of the host find the daemon by."""
        return f"unix://{self.socket}?root={_escaped(self.root)}" if self.root else f"unix://{self.socket}"

    def inside(self, path: str) -> str:
        """Return what a file of the store is called, if the path is one of the host's."""
        return STORE + path[len(self.store) :] if path.startswith(f"{self.store}/") else ""


def find(environ: Mapping[str, str]) -> Location:
    """Return where everything is; whether it exists is another question."""
    default = environ.get("NIX_DAEMON_SOCKET_PATH", "")
    default = default or f"{environ.get('NIX_STATE_DIR', '') or _STATE}/daemon-socket/socket"
    remote = environ.get("NIX_REMOTE", "")
    if remote in ("", "auto", "daemon"):
        return _examined(Location(socket=default))
    scheme, _, rest = remote.partition("://")
    path, _, query = (rest if scheme == "unix" else remote).partition("?")
    parameters = dict(word.partition("=")[::2] for word in query.split("&") if word)
    root = _unescaped(parameters.pop("root", "")).rstrip("/")
    if scheme == "unix" and not parameters and not (root and not root.startswith("/")):
        return _examined(Location(f"{root}{STORE}", root, path or default))
    if remote.startswith("local") and not parameters and (not root or root.startswith("/")):
        return Location(f"{root}{STORE}", root, default, _SINGLE_USER, "install Nix with its daemon")
    return Location(problem=f"NIX_REMOTE is `{remote}`, and claudebox knows `daemon` and `unix://SOCKET?root=ROOT`",
                    remedy="unset NIX_REMOTE")  # fmt: skip


def _examined(location: Location) -> Location:
    """Look whether the socket is there for us, and alone: its directory is what is bound."""
    directory, name = os.path.split(location.socket)
    try:
        if not stat.S_ISSOCK(os.stat(location.socket).st_mode):
            return location.replace(problem=f"`{location.socket}` is not a socket")
        beside = [] if location == Location() else [other for other in os.listdir(directory) if other != name]
    except FileNotFoundError:
        return location.replace(problem=_SINGLE_USER, remedy="install Nix with its daemon, or start it")
    except OSError as error:
        remedy = "ask to be let in; on Debian: `sudo adduser $USER nix-users`, and log in again"
        return location.replace(problem=f"`{location.socket}` is not yours to use: {error.strerror}", remedy=remedy)
    if beside:
        problem = f"`{directory}` holds more than the socket of the daemon, and would be visible as a whole"
        return location.replace(problem=problem, remedy="give the socket a directory of its own")
    return location


def _unescaped(text: str) -> str:
    first, *rest = text.split("%")
    try:
        decoded = b"".join(bytes((int(part[:2], 16),)) + os.fsencode(part[2:]) for part in rest)
    except ValueError:
        return "%"  # which is no path
    return first + os.fsdecode(decoded)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or char in "/._-" else "".join(f"%{byte:02X}" for byte in os.fsencode(char))
                   for char in text)  # fmt: skip
