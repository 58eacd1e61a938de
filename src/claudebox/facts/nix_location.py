"""Where the store and the daemon of this machine are, as Nix itself would find them.

`NIX_REMOTE=unix://SOCKET?root=ROOT` names a store whose files lie under ROOT and are called /nix/store/... all the
same: what people use for a store without /nix, and what the tests use for a store of their own.
"""

from __future__ import annotations

import os
import stat

from claudebox.facts.nix_model import STATE, STORE, Location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SINGLE_USER = "the store is a single-user one: without a daemon between, builders would run as you"


def find_nix(environ: Mapping[str, str]) -> Location:
    """Return where everything is; whether it exists is another question."""
    default = environ.get("NIX_DAEMON_SOCKET_PATH", "")
    default = default or f"{environ.get('NIX_STATE_DIR', '') or STATE}/daemon-socket/socket"
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
    if not location.socket.startswith("/"):  # it would be looked for in the project
        return location.replace(problem=f"`{location.socket}` is not an absolute path")
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
