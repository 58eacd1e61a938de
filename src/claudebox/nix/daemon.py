"""What the Nix daemon would do for this account: asked once, remembered until something of it changes.

A trusted user is root by the daemon, and a builder without a sandbox reads the host's files (G01, G02). So what is not
known counts as the worst; and what is known is kept only as long as configuration, daemon, accounts and client are the
same. Whatever the configuration says, it counts from the next start of the daemon on.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import time
from typing import Any

from claudebox.base import syscalls
from claudebox.base.files import parse_object, read_small, real_path
from claudebox.base.syscalls import socket
from claudebox.nix.records import DAEMON_CACHE, Daemon, Location
from claudebox.settings.parsers import pinned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from claudebox.nix.records import Trust


# Asks a Nix daemon by its own protocol whether it trusts us: some milliseconds, and no program is run.


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


_SYSTEM = "/etc/nix"
_FORMAT = "1"
_LIFE = 24 * 3600  # seconds: groups may come from elsewhere than /etc/group
_FILE_LIMIT = 1 << 20
_PRECISION = 1.0  # seconds between the clock of files and that of processes
_INCLUDES = 16
_ACCOUNTS = ("/etc/passwd", "/etc/group")


def ask(
    location: Location, program: str, environ: Mapping[str, str], state: str, *, asking: bool
) -> tuple[Daemon, bytes]:
    """Return what was found out before, if it still holds, or find out; `asking` permits to run `nix` for that.

    The second value is what `launch` may keep in the cache, if there is anything new.
    """
    if _configured_elsewhere(location, environ):
        return Daemon(problem="NIX_CONF_DIR names a configuration, and the machine's daemon reads another"), b""
    key = _key(location, program, environ)
    known = _recall(state, key)
    if known is not None:
        return _confirmed(known, location) if asking else known, b""
    if not asking:
        return Daemon(problem="the daemon has not been asked yet; `claudebox --check` does"), b""

    found = ask_daemon(location, program, environ)
    # What was configured after the daemon had started may not be in force, and will be at a moment that we cannot see.
    if found.problem == "" and _stale(location, environ):
        reason = "its configuration changed after it had started: what is in force is not known"
        return found.replace(trusted="unknown", sandbox="unknown", problem=reason), b""
    return found, b"" if found.problem else _answer(key, found)


def _configured_elsewhere(location: Location, environ: Mapping[str, str]) -> bool:
    """Return whether the configuration that we would read is the user's, and the daemon that of the machine."""
    own = environ.get("NIX_CONF_DIR", "")
    if not own or location.socket != Location().socket or not os.path.exists(f"{_SYSTEM}/nix.conf"):
        return False
    return real_path(own) != real_path(_SYSTEM)


def _confirmed(known: Daemon, location: Location) -> Daemon:
    """Take the daemon's word at each launch before its socket is handed out: who is trusted may come from elsewhere."""
    if known.trusted != "no":
        return known
    try:
        said = trust(location.socket)
    except OSError:  # nobody is there now; what was said still holds
        return known
    return known.replace(trusted="yes") if said == "yes" else known


def configuration(environ: Mapping[str, str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files of the machine's configuration with their content; nothing of it is ever shown (tokens)."""
    pending = [f"{environ.get('NIX_CONF_DIR', '') or _SYSTEM}/nix.conf"]
    seen: set[str] = set()
    while pending and len(seen) < _INCLUDES:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        content = read_small(path, limit=_FILE_LIMIT, follow=True)
        yield path, content
        for line in (content or b"").split(b"\n"):
            words = line.split()
            if len(words) == 2 and words[0] in (b"include", b"!include"):
                pending.append(os.path.join(os.path.dirname(path), os.fsdecode(words[1])))


def registry(environ: Mapping[str, str]) -> str:
    """Return the file in which the machine's administrator gives names to flakes."""
    return f"{environ.get('NIX_CONF_DIR', '') or _SYSTEM}/registry.json"


def system_only(location: Location, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Nix knows this daemon and the machine's configuration, and nothing of the user.

    What a trusted user configures for themselves is obeyed by the daemon; what it says must not depend on that.
    """
    names = ("NIX_CONF_DIR", "NIX_SSL_CERT_FILE", "SSL_CERT_FILE", "NIX_BIN_DIR")
    kept = {name: environ[name] for name in names if environ.get(name)}
    return {**kept, "NIX_REMOTE": location.remote, "NIX_USER_CONF_FILES": "/dev/null", "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}  # fmt: skip


def _key(location: Location, program: str, environ: Mapping[str, str]) -> str:
    words: list[object] = [_FORMAT, location, os.getuid(), os.getgid(), os.getgroups(), real_path(program)]
    words += [(path, syscalls.sha256(content or b"")) for path, content in configuration(environ)]
    files = (path for path, _ in configuration(environ))
    for path in (*files, registry(environ), program, location.socket, *_ACCOUNTS):
        try:
            status = os.stat(path)
            words.append((path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
        except OSError:
            words.append((path,))
    return syscalls.sha256(repr(words).encode("utf-8", "surrogateescape"))


def _recall(state: str, key: str) -> Daemon | None:
    lines = os.fsdecode(read_small(f"{state}/cache/{DAEMON_CACHE}") or b"").split("\n")
    if len(lines) != 8 or lines[0] != key or not lines[1].isdigit():
        return None
    if not 0 <= time.time() - int(lines[1]) < _LIFE:
        return None
    return Daemon(lines[2], lines[3], lines[4], lines[5], lines[6])  # type: ignore[arg-type]


def _answer(key: str, found: Daemon) -> bytes:
    lines = (key, str(int(time.time())), found.version, found.client, found.trusted, found.sandbox, found.nixpkgs, "")
    return os.fsencode("\n".join(lines))


def _stale(location: Location, environ: Mapping[str, str]) -> bool:
    """Return whether the configuration is younger than the daemon."""
    written = 0.0
    for path, _ in configuration(environ):
        try:
            written = max(written, os.stat(path).st_mtime)
        except OSError:
            continue
    return written > _started(location) + _PRECISION


def _started(location: Location) -> float:
    """Return when the daemon started; one that systemd starts on demand reads its configuration then."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(location.socket)
        process = int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
    except OSError:
        return 0.0
    finally:
        peer.close()
    if process != 1:  # 0 is somebody whom we cannot see
        return _birth(process)
    daemons = [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_daemon(int(name))]
    return min((_birth(number) for number in daemons), default=time.time())


def _is_daemon(process: int) -> bool:
    name = (read_small(f"/proc/{process}/stat") or b"").rpartition(b")")[0].partition(b"(")[2]
    return name.startswith((b"nix-daemon", b"determinate-nix"))


def _birth(process: int) -> float:
    fields = (read_small(f"/proc/{process}/stat") or b"").rpartition(b")")[2].split()
    if len(fields) < 20:
        return 0.0
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


# Asks Nix itself: version, trust, and whether builders have a sandbox. Off the usual path: answers are remembered.


_NIX_QUERY_PATIENCE = 20
_FEATURES = ("--extra-experimental-features", "nix-command")


def ask_daemon(location: Location, program: str, environ: Mapping[str, str]) -> Daemon:
    """Return what the daemon and its configuration say."""
    nix = _Program(program, system_only(location, environ))
    client = nix.say("--version").rpartition(" ")[2].strip()
    if not client:
        return Daemon(problem=f"`{program}` does not run: {nix.complaint}")
    told = nix.document("store", "info") or nix.document("store", "ping")
    told = told or _lines(nix.say("store", "ping", all_of_it=True))
    if not told:
        return Daemon(client=client, problem=f"it does not answer: {nix.complaint}")
    settings = nix.document("config", "show") or nix.document("show-config")
    return Daemon(
        version=str(told.get("version", "")),
        client=client,
        trusted=_trusted(told.get("trusted"), _value(settings, "trusted-users")),
        sandbox=_word(_value(settings, "sandbox")),
        nixpkgs=_nixpkgs(read_small(registry(environ), limit=1 << 20, follow=True)),
    )


class _Program:
    """The program `nix`, and what it complained about last."""

    def __init__(self, path: str, environ: dict[str, str]) -> None:
        self._path = path
        self._environ = environ
        self.complaint = ""

    def say(self, *words: str, all_of_it: bool = False) -> str:
        """Return what it prints, or nothing if it fails; some versions tell answers as messages."""
        features = () if words == ("--version",) else _FEATURES
        try:
            answer = subprocess.run(
                [self._path, *features, *words], cwd="/", env=self._environ, capture_output=True,
                timeout=_NIX_QUERY_PATIENCE, check=False, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            self.complaint = str(error)
            return ""
        lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
        self.complaint = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "")
        said = answer.stdout + answer.stderr if all_of_it else answer.stdout
        return said if answer.returncode == 0 else ""

    def document(self, *words: str) -> dict[str, Any]:
        """Return the JSON that it prints, or nothing."""
        return parse_object(self.say(*words, "--json"))


def _lines(text: str) -> dict[str, Any]:
    """Read what old versions print for people: `Version: 2.8.0`."""
    rows = (line.partition(": ") for line in text.splitlines())
    found: dict[str, Any] = {name.lower(): value for name, colon, value in rows if colon}
    if "trusted" in found:
        found["trusted"] = found["trusted"] == "1"
    return found


def _value(settings: dict[str, Any], name: str) -> Any:
    row = settings.get(name)
    return row.get("value") if isinstance(row, dict) else None


def _word(value: Any) -> str:
    word = str(value).lower()
    return word if word in ("true", "false", "relaxed") else "unknown"


def _nixpkgs(content: bytes | None) -> str:
    """Return what the machine's registry pins `nixpkgs` to; what can change in the meantime is no pin."""
    try:
        rows = json.loads(content or b"{}")["flakes"]
        target = next(row["to"] for row in rows if row["from"] == {"type": "indirect", "id": "nixpkgs"})
        found = {
            "path": lambda: f"path:{target['path']}",
            "github": lambda: f"github:{target['owner']}/{target['repo']}/{target['rev']}",
        }[target["type"]]()
    except (ValueError, KeyError, TypeError, StopIteration):
        return ""
    return found if pinned(found) else ""


def _trusted(told: Any, configured: Any) -> Trust:
    """Take the daemon's word; an old one says nothing, and its configuration does."""
    if told is not None:
        return "no" if told in (0, False) else "yes"
    if not isinstance(configured, list):
        return "unknown"
    return "yes" if any(_names_us(str(name)) for name in configured) else "no"


def _names_us(name: str) -> bool:
    if name in ("*", str(os.getuid())) or os.getuid() == 0:
        return True
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return True  # somebody without a name: nothing can be said about them
    if not name.startswith("@"):
        return name == account.pw_name
    groups = set(os.getgroups()) | set(os.getgrouplist(account.pw_name, account.pw_gid))
    try:
        group = grp.getgrnam(name[1:])
    except KeyError:
        return False
    return group.gr_gid in groups or account.pw_name in group.gr_mem
