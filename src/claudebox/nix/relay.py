"""A sidecar of one session: a Nix daemon of our own in front of the real one, which trusts nobody (G01).

It runs as the user, whom the real daemon trusts, and speaks to it for the sandbox; so it is what an attacker would
attack next. It gets a sandbox of its own, with the filter of system calls, and without network, homes or anything to
write to but the directory of its socket. It knows no configuration, which the daemon would obey; and builds that go
through it have a sandbox, whatever the daemon's configuration says.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.base import process, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.base.syscalls import socket
from claudebox.nix.facts import ask_daemon
from claudebox.nix.records import RELAY_PREFIX as PREFIX
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.records import NixRelay


_PATIENCE = 15.0
_LAST_WORDS = 4096
_SECCOMP_DESCRIPTOR = 9
_COVERED = ("/home", "/root", "/run", "/tmp", "/var/tmp")
_YOUNG = 60.0  # seconds in which a relay may not answer yet
_HINT = "run `claudebox --check`; `--nix off` does without the daemon"
# `substitute`: in a network of its own Nix would take itself for offline, and tell the daemon to download nothing.
_CONFIG = """\
extra-experimental-features = nix-command daemon-trust-override
sandbox = true
sandbox-fallback = false
post-build-hook =
substitute = true
"""


class NixRelaySidecar(Sidecar):
    """The process, from before the sandbox starts until it has ended."""

    def __init__(self, relay: NixRelay, seccomp: bytes) -> None:
        self._relay = relay
        self._seccomp = seccomp
        self._child = 0
        self._words = -1
        self._notes: tuple[str, ...] = ()

    def listen(self) -> None:
        """Make the directory that is bound into the sandbox, before anything is in it."""
        _clear(os.path.dirname(self._relay.directory))
        try:
            os.mkdir(self._relay.directory, 0o700)
        except OSError as error:
            raise ClaudeboxError(f"`{self._relay.directory}` cannot be made: {error.strerror}") from None

    @property
    def _socket(self) -> str:
        return f"{self._relay.directory}/socket"

    def begin(self, _files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start the daemon, which puts its socket there."""
        self._words, words = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        rules = syscalls.memory_file(self._seccomp)
        self._child = process.spawn(
            command(self._relay, _SECCOMP_DESCRIPTOR), {2: words, _SECCOMP_DESCRIPTOR: rules}, environ(self._relay)
        )
        os.close(words)
        os.close(rules)

    def attach(self, payload: int) -> None:  # noqa: ARG002 - a sidecar is told; this one has nothing to do with it
        """Wait until it answers, and hear from itself that it trusts nobody."""
        ended = os.pidfd_open(self._child)
        limit = time.monotonic() + _PATIENCE
        with Closing(ended):
            while not _answers(self._socket):
                if select.select([ended], [], [], 0.003)[0]:
                    raise ClaudeboxError(f"the relay to the Nix daemon did not start{self._said()}", hint=_HINT)
                if time.monotonic() > limit:
                    raise ClaudeboxError(
                        f"the relay to the Nix daemon did not get ready within {_PATIENCE:.0f} seconds", hint=_HINT
                    )
        try:
            said: str = ask_daemon(self._socket)[1]
        except OSError as error:
            said = str(error)
        if said != "no":
            raise ClaudeboxError(f"the relay to the Nix daemon does not say that it trusts nobody: {said}", hint=_HINT)

    def _said(self) -> str:
        try:
            said = os.read(self._words, _LAST_WORDS).decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        lines = [line.strip() for line in said if line.strip() and not line.startswith("accepted connection")]
        return f": {lines[-1]}" if lines else ""

    def tend(self) -> None:
        """Notice its end; the sandbox goes on without Nix."""
        if self._child and process.poll(self._child) is not None:
            self._notes = (f"the relay to the Nix daemon ended during the session{self._said()}",)

    def finish(self) -> tuple[str, ...]:
        """End it, and everything that it started: its sandbox ends with its first process."""
        self.tend()
        if self._child:
            process.end(self._child)
            self._child = 0
        if self._words >= 0:
            os.close(self._words)
            self._words = -1
        _remove(self._relay.directory)
        return self._notes


def _answers(path: str) -> bool:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except OSError:
        return False
    finally:
        probe.close()
    return True


def _remove(directory: str) -> None:
    for path, remove in ((f"{directory}/socket", os.unlink), (directory, os.rmdir)):
        try:
            remove(path)
        except OSError:
            continue


def _clear(parent: str) -> None:
    """Remove what launchers have left that were killed."""
    with os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            old = time.time() - status.st_mtime > _YOUNG
            if status.st_uid == os.getuid() and old and not _answers(f"{entry.path}/socket"):
                _remove(entry.path)


def command(relay: NixRelay, seccomp: int) -> tuple[str, ...]:
    """Return the words that start it in its sandbox: all programs, and nothing of the places where people have things.

    Sockets of agents, terminals and the desktop are in these places too.
    """
    places = dict.fromkeys((*_COVERED, relay.home))
    covered = [path for path in places if os.path.isdir(path) and not relay.program.startswith(f"{path}/")]
    empty = (word for path in covered for word in ("--tmpfs", path))
    needed = (word for path in relay.needed for word in ("--ro-bind", path, path))
    return (
        relay.bwrap, "--die-with-parent", "--new-session",
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--cap-drop", "ALL",
        "--seccomp", str(seccomp), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *empty, *needed,
        "--bind", relay.directory, relay.directory, "--chdir", "/",
        "--", relay.program, "daemon", "--force-untrusted",
    )  # fmt: skip


def environ(relay: NixRelay) -> dict[str, str]:
    """Return its environment: where to listen, whom to ask, and no configuration but ours.

    What it knew, of the user's or the machine's, it would tell the daemon, which obeys; the daemon has its own.
    """
    nowhere = ("HOME", "NIX_CONF_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    return {
        **dict.fromkeys(nowhere, "/nonexistent"),
        "NIX_CONFIG": _CONFIG,
        "NIX_DAEMON_SOCKET_PATH": f"{relay.directory}/socket",
        "NIX_REMOTE": relay.remote,
        "NIX_USER_CONF_FILES": "/dev/null",
        "PATH": "/usr/bin:/bin",
    }
