"""What claudebox learns about Nix on this machine: store, daemon and package set. Runs no program; part of `Host`."""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox import build_paths
from claudebox.base import runtime, syscalls
from claudebox.base.files import read_small, real_path
from claudebox.base.syscalls import socket
from claudebox.host import programs
from claudebox.nix.records import STATE, STORE, Daemon, Location, Nix, Packages
from claudebox.settings import parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.nix.records import Trust
    from claudebox.settings.records import Policy


_PROGRAM_DIRECTORIES = ("~/.nix-profile/bin", "/nix/var/nix/profiles/default/bin", "/run/current-system/sw/bin",
                        "/usr/bin")  # fmt: skip
_SINGLE_USER = "the store is a single-user one: without a daemon between, builders would run as you"


def read_nix(policy: Policy, environ: dict[str, str], *, home: str, path: tuple[str, ...], workdir: str) -> Nix | None:
    location = find_nix(environ)
    if not os.path.isdir(location.store):
        return None
    program = find_program(path, home)
    problem = location.problem or "the program `nix` was not found"
    daemon = Daemon(client=_version_in_store(location.inside(program)), problem=problem)
    asked = policy.nix != "off" and (policy.nix != "auto" or policy.tier.shared)  # else the answer changes nothing
    if program and not location.problem and asked:
        daemon = read_daemon(location, program, environ)
    reference = policy.nixpkgs or build_paths.NIXPKGS or _pinned_nixpkgs(environ) or "nixpkgs"
    nix = Nix(location, program, daemon, _store_path(location, program, path), reference)
    if policy.packages:
        nix = nix.replace(packages=_recall_packages(policy, nix, f"{home}/.claudebox"))
    shells = [name for name in ("flake.nix", "shell.nix") if os.path.lexists(f"{workdir}/{name}")]
    return nix.replace(directory=runtime.name_directory("relay"), shell=shells[0] if shells else "")


def find_program(path: tuple[str, ...], home: str) -> str:
    """Return the `nix` that the user's shell would run."""
    if "nix" in build_paths.TOOLS:
        return build_paths.TOOLS["nix"]
    places = (place.replace("~", home, 1) for place in _PROGRAM_DIRECTORIES)
    found = (f"{directory}/nix" for directory in (*path, *places))
    return next((real_path(program) for program in found if programs.is_executable(program)), "")


def _store_path(location: Location, program: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories inside of `nix` and comma, where these are in the store."""
    comma = programs.find_tool(",", path)
    directories = (os.path.dirname(location.inside(real_path(tool))) for tool in (program, comma) if tool)
    return tuple(dict.fromkeys(directory for directory in directories if directory))


# Store and socket, where Nix itself would find them. `NIX_REMOTE=unix://SOCKET?root=ROOT` names a store whose files
# are below ROOT and still called /nix/store/...: for a store without /nix, and for the tests.


def find_nix(environ: Mapping[str, str]) -> Location:
    """Return where store and socket should be; they need not exist."""
    default = environ.get("NIX_DAEMON_SOCKET_PATH", "")
    default = default or f"{environ.get('NIX_STATE_DIR', '') or STATE}/daemon-socket/socket"
    remote = environ.get("NIX_REMOTE", "")
    if remote in ("", "auto", "daemon"):
        return _check_socket(Location(socket=default))
    scheme, _, rest = remote.partition("://")
    path, _, query = (rest if scheme == "unix" else remote).partition("?")
    parameters = dict(word.partition("=")[::2] for word in query.split("&") if word)
    root = _unescape(parameters.pop("root", "")).rstrip("/")
    if not parameters and (not root or root.startswith("/")):
        if scheme == "unix":
            return _check_socket(Location(f"{root}{STORE}", root, path or default))
        if remote.startswith("local"):
            return Location(f"{root}{STORE}", root, default, _SINGLE_USER, "install Nix with its daemon")
    return Location(problem=f"NIX_REMOTE is `{remote}`; claudebox supports `daemon` and `unix://SOCKET?root=ROOT`",
                    remedy="unset NIX_REMOTE")  # fmt: skip


def _check_socket(location: Location) -> Location:
    """Check that we may use the socket, and that nothing else is in its directory, which is what gets mounted."""
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
        remedy = "ask for access; on Debian: `sudo adduser $USER nix-users`, and log in again"
        return location.replace(problem=f"`{location.socket}` is not yours to use: {error.strerror}", remedy=remedy)
    if beside:
        problem = f"`{directory}` holds more than the socket of the daemon, and would be visible as a whole"
        return location.replace(problem=problem, remedy="give the socket a directory of its own")
    return location


def _unescape(text: str) -> str:
    first, *rest = text.split("%")
    try:
        decoded = b"".join(bytes((int(part[:2], 16),)) + os.fsencode(part[2:]) for part in rest)
    except ValueError:
        return "%"  # not an absolute path, so it is refused
    return first + os.fsdecode(decoded)


# The daemon: does it trust us, and are its builds sandboxed?
#
# A trusted user is root by the daemon, and a build without a sandbox reads the host's files (G01, G02), so whatever is
# not known counts as the worst. The daemon is asked by its own protocol at each launch; its configuration is read here,
# and believed only if the daemon has started after it was written.


_CLIENT_MAGIC, _DAEMON_MAGIC = 0x6E697863, 0x6478696F
_PROTOCOL = 0x123  # 1.35, the first in which the daemon tells whether it trusts the client
_PROTOCOL_WITH_VERSION = 0x121
_PATIENCE = 10.0  # seconds
_LONGEST_VERSION = 1024
_TRUST: dict[int, Trust] = {1: "yes", 2: "no"}
_CONFIGURATION = "/etc/nix"
_FILE_LIMIT = 1 << 20
_CLOCK_ERROR = 1.0  # seconds between the clocks of file systems and of processes
_SANDBOX_SETTINGS = ("sandbox", "build-use-sandbox", "build-use-chroot")


def read_daemon(location: Location, program: str, environ: Mapping[str, str]) -> Daemon:
    if _configured_elsewhere(location, environ):
        return Daemon(problem="NIX_CONF_DIR names a configuration, and the machine's daemon reads another")
    try:
        version, trust = ask_daemon(location.socket)
    except OSError as error:
        return Daemon(problem=f"it does not answer: {error.strerror or error}")
    client = _version_in_store(location.inside(program)) or version
    settings, changed, unread = _read_configuration(environ)
    if changed > _started(location.socket) + _CLOCK_ERROR:
        reason = "its configuration changed after it had started: what is in force is not known"
        return Daemon(version, client, problem=reason)
    if unread:
        return Daemon(version, client, trust, problem=f"its configuration `{unread}` cannot be read")
    sandbox = next((value for name in _SANDBOX_SETTINGS for value in settings.get(name, ()) if value != "true"), "true")
    return Daemon(version, client, trust, sandbox if sandbox in ("true", "false", "relaxed") else "unknown")


def ask_daemon(path: str) -> tuple[str, Trust]:
    """Return the version of the daemon at this socket, and whether it trusts us; OSError if it does not answer."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(_PATIENCE)
        peer.connect(path)
        _send(peer, _CLIENT_MAGIC)
        if _receive(peer) != _DAEMON_MAGIC:
            raise OSError("it does not speak the protocol of Nix")
        protocol = _receive(peer)
        _send(peer, _PROTOCOL, 0, 0)  # no CPU affinity, no reserved space
        if protocol < _PROTOCOL_WITH_VERSION:
            return "", "unknown"
        length = _receive(peer)
        if length > _LONGEST_VERSION:
            raise OSError("it does not speak the protocol of Nix")
        version = _receive_bytes(peer, length + -length % 8)[:length].decode("ascii", "replace")
        return version, _TRUST.get(_receive(peer), "unknown") if protocol >= _PROTOCOL else "unknown"
    finally:
        peer.close()


def _send(peer: socket.socket, *numbers: int) -> None:
    peer.sendall(b"".join(number.to_bytes(8, "little") for number in numbers))


def _receive(peer: socket.socket) -> int:
    return int.from_bytes(_receive_bytes(peer, 8), "little")


def _receive_bytes(peer: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        piece = peer.recv(length - len(found))
        if not piece:
            raise OSError("it closed the connection")
        found += piece
    return found


def _version_in_store(program: str) -> str:
    """Return 2.31.5 for /nix/store/HASH-nix-2.31.5/bin/nix."""
    version = program.removeprefix(f"{STORE}/").partition("/")[0].rpartition("-")[2]
    return version if version[:1].isdigit() else ""


def _configured_elsewhere(location: Location, environ: Mapping[str, str]) -> bool:
    """Return whether the configuration that we would read is the user's, and the daemon is the machine's."""
    own = environ.get("NIX_CONF_DIR", "")
    if not own or location.socket != Location().socket or not os.path.exists(f"{_CONFIGURATION}/nix.conf"):
        return False
    return real_path(own) != real_path(_CONFIGURATION)


def _read_configuration(environ: Mapping[str, str]) -> tuple[dict[str, list[str]], float, str]:
    """Return every value that each setting of the machine is given, when the files last changed, and one not read.

    Only an included file may be missing: without nix.conf itself, the daemon was built to read another one.

    It holds access tokens: nothing of it is ever shown.
    """
    settings: dict[str, list[str]] = {}
    changed, unread = 0.0, ""
    main = f"{environ.get('NIX_CONF_DIR', '') or _CONFIGURATION}/nix.conf"
    pending = [main]
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        content = read_small(path, limit=_FILE_LIMIT, follow=True)
        try:
            status = os.stat(path)
        except OSError as error:
            if path == main or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                unread = path
            continue
        if content is None:
            unread = path
            continue
        # A file that was moved here keeps its mtime; the ctime of one in the store changes with links to it.
        in_store = real_path(path).startswith(f"{STORE}/")
        changed = max(changed, status.st_mtime, 0.0 if in_store else status.st_ctime)
        for line in os.fsdecode(content).split("\n"):
            name, equals, value = (part.strip() for part in line.partition("#")[0].partition("="))
            words = line.split()
            if equals:
                settings.setdefault(name, []).append(value)
            elif len(words) == 2 and words[0] in ("include", "!include"):
                pending.append(os.path.join(os.path.dirname(path), words[1]))
    return settings, changed, unread


def _started(path: str) -> float:
    """Return when the daemon at this socket started; one that systemd starts on demand reads its configuration then."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(path)
        process = int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
    except OSError:
        return 0.0
    finally:
        peer.close()
    if process != 1:  # 0: a process outside of our PID namespace
        return _process_start(process)
    daemons = [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_daemon(int(name))]
    return min((_process_start(number) for number in daemons), default=time.time())


def _is_daemon(process: int) -> bool:
    name = (read_small(f"/proc/{process}/stat") or b"").rpartition(b")")[0].partition(b"(")[2]
    return name.startswith((b"nix-daemon", b"determinate-nix"))


def _process_start(process: int) -> float:
    fields = (read_small(f"/proc/{process}/stat") or b"").rpartition(b")")[2].split()
    if len(fields) < 20:
        return 0.0
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


# The package set, and packages of it that were resolved before.


_RECENT = 24 * 3600  # seconds for which a package set that can change is taken to be the same
_FORMAT = "1"


def _pinned_nixpkgs(environ: Mapping[str, str]) -> str:
    """Return what the machine's flake registry pins `nixpkgs` to, if it does."""
    path = f"{environ.get('NIX_CONF_DIR', '') or _CONFIGURATION}/registry.json"
    content = read_small(path, limit=_FILE_LIMIT, follow=True)
    if not content:
        return ""
    try:
        rows = syscalls.parse_json(content)["flakes"]  # type: ignore[index]
        target = next(row["to"] for row in rows if row["from"] == {"type": "indirect", "id": "nixpkgs"})
        found = {
            "path": lambda: f"path:{target['path']}",
            "github": lambda: f"github:{target['owner']}/{target['repo']}/{target['rev']}",
        }[target["type"]]()
    except (ValueError, KeyError, TypeError, StopIteration):
        return ""
    return found if parsers.pinned(found) else ""


def _recall_packages(policy: Policy, nix: Nix, state: str) -> Packages:
    """Return the packages as they were resolved last time, if all of them are still in the store."""
    key = _key(nix, tuple(request.name for request in policy.packages))
    record = f"{state}/nix/{key}/paths"
    content = read_small(record)
    if content is None:
        return Packages(key)
    directories = tuple(os.fsdecode(content).split("\n")[:-1])
    if not all(os.path.isdir(f"{nix.location.root}{path}") for path in directories):
        return Packages(key)
    fresh = parsers.pinned(nix.nixpkgs) or 0 <= time.time() - os.stat(record).st_mtime < _RECENT
    return Packages(key, directories, fresh)


def _key(nix: Nix, names: tuple[str, ...]) -> str:
    """Return a digest of what the packages depend on."""
    words: list[object] = [_FORMAT, os.uname().machine, nix.location.store, nix.nixpkgs, names]
    directory = parsers.directory(nix.nixpkgs)
    if directory and not parsers.pinned(nix.nixpkgs):  # a checkout: files that change with it
        for name in (".", "flake.nix", "flake.lock", "default.nix", ".git/HEAD", ".git/index"):
            try:
                status = os.stat(f"{directory}/{name}")
                words.append((name, status.st_ino, status.st_mtime_ns))
            except OSError:
                continue
    return syscalls.sha256(repr(words).encode("utf-8", "surrogateescape"))[:32]
