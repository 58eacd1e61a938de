"""`Nix`: what claudebox learns about Nix on this machine; part of `Host`."""

from __future__ import annotations

import os
import stat
import time

from claudebox import build_paths
from claudebox.base import syscalls
from claudebox.base.files import read_small, real_path
from claudebox.host import programs
from claudebox.nix import daemon
from claudebox.nix.records import RELAY_PREFIX, STATE, STORE, Daemon, Location, Nix, Packages
from claudebox.settings import parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.settings.records import Policy


# Where the store and the daemon of this machine are, as Nix itself would find them.
#
# `NIX_REMOTE=unix://SOCKET?root=ROOT` names a store whose files lie under ROOT and are called /nix/store/... all the
# same: what people use for a store without /nix, and what the tests use for a store of their own.


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


_PLACES = ("~/.nix-profile/bin", "/nix/var/nix/profiles/default/bin", "/run/current-system/sw/bin", "/usr/bin")


def read_nix(
    policy: Policy, environ: dict[str, str], *, home: str, path: tuple[str, ...], workdir: str, asking: bool
) -> Nix | None:
    """Look at everything; nothing is run that was run before and cannot have changed."""
    where = find_nix(environ)
    program = find_program(path, home)
    state = f"{home}/.claudebox"
    answer = b""
    known = Daemon(problem=where.problem or "the program `nix` was not found")
    if program and not where.problem and policy.nix != "off":
        wanted = policy.nix != "auto" or policy.tier.shared  # else the answer would change nothing
        known, answer = daemon.ask(where, program, environ, state, asking=asking and wanted)
    if not os.path.isdir(where.store):
        return None
    reference = policy.nixpkgs or build_paths.NIXPKGS or known.nixpkgs or "nixpkgs"
    nix = Nix(where, program, known, _path(where, program, path), reference, answer=answer)
    if policy.packages:
        nix = nix.replace(packages=recall(policy, nix, state))
    shells = [name for name in ("flake.nix", "shell.nix") if os.path.lexists(f"{workdir}/{name}")]
    return nix.replace(directory=_relay_directory(environ), shell=shells[0] if shells else "")


def find_program(path: tuple[str, ...], home: str) -> str:
    """Return `nix`: the one that the user's shell would run."""
    if "nix" in build_paths.TOOLS:
        return build_paths.TOOLS["nix"]
    places = (place.replace("~", home, 1) for place in _PLACES)
    found = (f"{directory}/nix" for directory in (*path, *places))
    return next((real_path(program) for program in found if programs.executable(program)), "")


def _path(where: Location, program: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories of Nix and comma inside, where these are in the store; baked ones are in PATH anyway."""
    comma = programs.find_tool(",", path)
    directories = (os.path.dirname(where.inside(real_path(tool))) for tool in (program, comma) if tool)
    return tuple(dict.fromkeys(directory for directory in directories if directory))


def _relay_directory(environ: dict[str, str]) -> str:
    """Return where the socket of a relay would be: short, because the name of a socket may not be long."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    short = runtime.startswith("/") and len(runtime) < 40
    own = short and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid()
    return f"{runtime if own else '/tmp'}/{RELAY_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"


# Packages of nixpkgs that were resolved before: what they depend on, and whether all of them are still there.


_LIFE = 24 * 3600  # seconds for which a package set that can change is taken for the same
_FORMAT = "1"


def recall(policy: Policy, nix: Nix, state: str) -> Packages:
    """Return what is known of the packages that the policy asks for; nothing is built."""
    key = _key(nix, tuple(request.name for request in policy.packages))
    record = f"{state}/nix/{key}/paths"
    content = read_small(record)
    if content is None:
        return Packages(key)
    directories = tuple(os.fsdecode(content).split("\n")[:-1])
    if not all(os.path.isdir(f"{nix.location.root}{path}") for path in directories):
        return Packages(key)
    fresh = parsers.pinned(nix.nixpkgs) or 0 <= time.time() - os.stat(record).st_mtime < _LIFE
    return Packages(key, directories, fresh)


def _key(nix: Nix, names: tuple[str, ...]) -> str:
    """Return what the packages depend on."""
    words: list[object] = [_FORMAT, os.uname().machine, nix.location.store, nix.nixpkgs, names]
    directory = parsers.directory(nix.nixpkgs)
    if directory and not parsers.pinned(nix.nixpkgs):  # a checkout of the user: what shows that it changed
        for name in (".", "flake.nix", "flake.lock", "default.nix", ".git/HEAD", ".git/index"):
            try:
                status = os.stat(f"{directory}/{name}")
                words.append((name, status.st_ino, status.st_mtime_ns))
            except OSError:
                continue
    return syscalls.sha256(repr(words).encode("utf-8", "surrogateescape"))[:32]
