"""Canaries for `--verify`: planted on the host, out of reach inside if the sandbox works, removed afterwards.

They lie in claudebox's own state, in the temporary directory and, for sockets and a file with a secret, in the project.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from claudebox.agent.facts import as_document
from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.agent.record import AgentKind, ModelService
    from claudebox.host.records import Host


_ADD_KEY = {"x86_64": 248, "aarch64": 217}
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_SESSION_KEYRING = -3
_UNLINK = 9


class Canaries:
    """Everything planted; `remove` undoes it."""

    def __init__(self, state: str, workdir: str, service: ModelService) -> None:
        self.token = f"canary-{secrets.token_hex(12)}"
        self.leftover = f"leftover-{secrets.token_hex(12)}"
        self.credential = f"canary-{secrets.token_hex(20)}"  # for the broker, instead of the user's
        self.value = f"canary-{secrets.token_hex(20)}"  # for the broker, instead of the values of `[[secrets]]`
        self.planted = 0.0  # when; older files cannot contain canaries
        self.login = ""  # path of a file with `credential` as login
        self.sockets: list[str] = []
        self.masked = ""  # path of a file in the project with a secret
        self.secrets: list[str] = []
        self.listeners: list[tuple[str, int]] = []
        self.abstract = self.token
        self.process = 0
        self.shared_memory: int | None = None
        self.descriptor = -1
        self.key = ""  # why no key could be planted
        self._state = state
        self._workdir, self._service = workdir, service
        self._open: list[socket.socket] = []
        self._directory = ""
        self._hidden = ""
        self._nest = f"{workdir}/.{self.token[:15]}-nest"
        self._child: subprocess.Popen[bytes] | None = None
        self._key = -1

    def plant(self) -> None:
        self.planted = time.time()
        os.environ["CLAUDEBOX_CANARY"] = self.token
        self._directory = tempfile.mkdtemp(prefix="claudebox-verify-")
        secret = os.path.join(self._directory, "secret")
        self._write(secret)
        self.descriptor = os.open(secret, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)  # noqa: FBT003
        if os.path.isdir(self._state):
            self._hidden = tempfile.mkdtemp(prefix="verify-", dir=self._state)
            self._write(os.path.join(self._hidden, "secret"))
            self.login = os.path.join(self._hidden, "login.json")
            tokens = {"accessToken": self.credential, "refreshToken": self.credential, "expiresAt": 1 << 43}
            with open(self.login, "x", encoding="ascii") as file:
                json.dump(as_document(self._service, tokens), file)
        self._plant_sockets()
        self._child = subprocess.Popen(
            [sys.executable, "-IS", "-c", "import time; time.sleep(600)", self.token], env={"CANARY": self.token},
            stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        self.process = self._child.pid
        self._plant_key()
        number = ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600)
        self.shared_memory = None if number < 0 else number

    def _write(self, path: str) -> None:
        with open(path, "x", encoding="ascii") as file:
            file.write(self.token)
        self.secrets.append(path)

    def _plant_sockets(self) -> None:
        self._plant_nest()
        for path in (f"{self._directory}/socket", f"{self._workdir}/.{self.token[:15]}", f"{self._nest}/s"):
            listener = socket.socket(socket.AF_UNIX)
            self._open.append(listener)
            try:
                listener.bind(path)
                if path.startswith(self._nest):  # its path is not the one that the kernel lists
                    os.rename(path, path := f"{self._nest}/moved")
            except OSError:  # read-only project, or path too long
                continue
            listener.listen()
            self.sockets.append(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + self.abstract)
        listener.listen()
        self._open.append(listener)
        for address in ("127.0.0.1", "::1", *_own_addresses()):
            listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            self._open.append(listener)
            try:
                listener.bind((address, 0))
                listener.listen()
                port = listener.getsockname()[1]
                socket.create_connection((address, port), timeout=5).close()  # the positive control
            except OSError as error:
                if address == "127.0.0.1":
                    raise ClaudeboxError(
                        f"`--verify` cannot connect to its own listener at {address}: {error.strerror or error}",
                        hint="`lo` may be down: `ip link set lo up`",
                    ) from None
                continue
            self.listeners.append((address, port))

    def _plant_nest(self) -> None:
        """Create a directory in the project, with a file that holds a secret."""
        try:
            os.mkdir(self._nest, 0o700)
            path = os.path.join(self._nest, ".env")
            with open(path, "x", encoding="ascii") as file:
                file.write(f"API_KEY={self.token}\n")
        except OSError:  # read-only project
            return
        self.masked = path

    def _plant_key(self) -> None:
        machine = os.uname().machine
        if machine not in _ADD_KEY:
            self.key = f"system call numbers of {machine} are unknown"
            return
        value = self.token.encode()
        self._key = syscalls.call(
            "syscall", _ADD_KEY[machine], b"user\0", value + b"\0", value, len(value), _SESSION_KEYRING
        )
        if self._key < 0:
            self.key = "this machine has no keyrings"

    def remove(self) -> None:
        os.environ.pop("CLAUDEBOX_CANARY", None)
        for listener in self._open:
            listener.close()
        for path in self.sockets:
            if os.path.lexists(path):
                os.unlink(path)
        for directory in (self._directory, self._hidden, self._nest):
            if directory:
                shutil.rmtree(directory, ignore_errors=True)
        if self.descriptor >= 0:
            os.close(self.descriptor)
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._key >= 0:
            syscalls.call("syscall", _KEYCTL[os.uname().machine], _UNLINK, self._key, _SESSION_KEYRING)
        if self.shared_memory is not None:
            ctypes.CDLL(None).shmctl(self.shared_memory, 0, None)


def _own_addresses() -> list[str]:
    """Return the address for outbound connections; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        address: str = probe.getsockname()[0]
    return [] if address.startswith("127.") else [address]


def with_canaries(facts: Host, agent: AgentKind, canaries: Canaries) -> Host:
    """Return the facts with canaries in place of the user's credentials."""
    held = {name: canaries.credential for name in agent.upstream.credentials if facts.environ.get(name)}
    login = facts.agent.login.replace(path=canaries.login) if facts.agent.login.usable else facts.agent.login
    return facts.replace(environ={**facts.environ, **held}, agent=facts.agent.replace(login=login))
