"""The Nix relay: a daemon of our own, for one session, in front of the real one, that trusts nobody (G01).

It runs as the user, whom the real daemon trusts, so it is itself worth attacking. It has a sandbox of its own, with the
system call filter and without network, homes or anything to write to but the directory of its socket. It has no
configuration, because the daemon would obey it; and builds through it are sandboxed whatever the daemon's says.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.base import process, runtime, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.base.syscalls import socket
from claudebox.nix.facts import ask_daemon
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.records import NixRelay


_PATIENCE = 15.0
_MESSAGE_LIMIT = 4096
_SECCOMP_DESCRIPTOR = 9
_HIDDEN = ("/home", "/root", "/run", "/tmp", "/var/tmp")
_HINT = "run `claudebox --check`; `--set nix=off` does without the daemon"
# `substitute`: without a network of its own Nix takes itself for offline, and tells the daemon not to download.
_CONFIG = """\
extra-experimental-features = nix-command daemon-trust-override
sandbox = true
sandbox-fallback = false
post-build-hook =
substitute = true
"""


class NixRelaySidecar(Sidecar):
    """The relay of one session."""

    def __init__(self, relay: NixRelay, seccomp: bytes) -> None:
        self._relay = relay
        self._seccomp = seccomp
        self._child = 0
        self._stderr = -1
        self._notes: tuple[str, ...] = ()

    @property
    def _socket(self) -> str:
        return f"{self._relay.directory}/socket"

    def begin(self, log: int = -1) -> None:  # noqa: ARG002
        """Make the directory that is mounted into the sandbox, and start the daemon, which makes its socket there."""
        try:
            runtime.make_directory(self._relay.directory)
        except OSError as error:
            raise ClaudeboxError(f"`{self._relay.directory}` cannot be made: {error.strerror}") from None
        self._stderr, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        rules = syscalls.memory_file(self._seccomp)
        self._child = process.spawn(
            command(self._relay, _SECCOMP_DESCRIPTOR), {2: stderr, _SECCOMP_DESCRIPTOR: rules}, environ(self._relay)
        )
        os.close(stderr)
        os.close(rules)

    def attach(self, payload: int) -> None:  # noqa: ARG002
        """Wait until it answers and says that it trusts nobody; raise otherwise."""
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
            said = os.read(self._stderr, _MESSAGE_LIMIT).decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        lines = [line.strip() for line in said if line.strip() and not line.startswith("accepted connection")]
        return f": {lines[-1]}" if lines else ""

    def tend(self) -> None:
        """Note if it has ended; the sandbox goes on without Nix."""
        if self._child and process.poll(self._child) is not None:
            self._notes = (f"the relay to the Nix daemon ended during the session{self._said()}",)

    def finish(self) -> tuple[str, ...]:
        """End it and its sandbox."""
        self.tend()
        if self._child:
            process.end(self._child)
            self._child = 0
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1
        runtime.remove_directory(self._relay.directory)
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


def command(relay: NixRelay, seccomp: int) -> tuple[str, ...]:
    """Return its command line, in a sandbox without homes and runtime directories, thus without sockets."""
    places = dict.fromkeys((*_HIDDEN, relay.home))
    hidden = [path for path in places if os.path.isdir(path) and not relay.program.startswith(f"{path}/")]
    empty = (word for path in hidden for word in ("--tmpfs", path))
    needed = (word for path in relay.needed for word in ("--ro-bind", path, path))
    return (
        relay.bwrap, "--die-with-parent", "--new-session",
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--cap-drop", "ALL",
        "--seccomp", str(seccomp), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *empty, *needed,
        "--bind", relay.directory, relay.directory, "--chdir", "/",
        "--", relay.program, "daemon", "--force-untrusted",
    )  # fmt: skip


def environ(relay: NixRelay) -> dict[str, str]:
    """Return its environment: where to listen, whom to ask, and no configuration but ours, for the daemon obeys it."""
    nowhere = ("HOME", "NIX_CONF_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    return {
        **dict.fromkeys(nowhere, "/nonexistent"),
        "NIX_CONFIG": _CONFIG,
        "NIX_DAEMON_SOCKET_PATH": f"{relay.directory}/socket",
        "NIX_REMOTE": relay.remote,
        "NIX_USER_CONF_FILES": "/dev/null",
        "PATH": "/usr/bin:/bin",
    }
