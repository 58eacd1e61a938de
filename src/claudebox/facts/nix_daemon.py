"""What the Nix daemon would do for this account: asked once, remembered until something of it changes.

A trusted user is root by the daemon, and a builder without a sandbox reads the host's files (G01, G02). So what is not
known counts as the worst; and what is known is kept only as long as configuration, daemon, accounts and client are the
same. Whatever the configuration says, it counts from the next start of the daemon on.
"""

from __future__ import annotations

import os
import time

from claudebox import syscalls
from claudebox.facts import nix_handshake
from claudebox.facts.nix_model import DAEMON_CACHE, Daemon, Location
from claudebox.files import read_small, real_path
from claudebox.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    from claudebox.facts import nix_query

    found = nix_query.ask(location, program, environ)
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
        said = nix_handshake.trust(location.socket)
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
