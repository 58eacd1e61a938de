"""Canaries for `--verify`: planted on the host, out of reach inside if the sandbox works, removed afterwards.

They lie in claudebox's own state, in the temporary directory and, for sockets and a file with a secret, in the project.
"""

from __future__ import annotations

import contextlib
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

from claudebox.agent.login import put_at
from claudebox.base.errors import ClaudeboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.agent.record import AgentKind
    from claudebox.host.records import Host


class Canaries:
    """Everything planted; `remove` undoes it."""

    def __init__(self, state: str, workdir: str, agent: AgentKind) -> None:
        self.token = f"canary-{secrets.token_hex(12)}"
        # For the broker, instead of the user's key or login, and of the values of `[[secrets]]`.
        self.credential, self.value = (f"canary-{secrets.token_hex(20)}" for _ in range(2))
        self.planted = 0.0  # when; older files cannot contain canaries
        self.login = ""  # path of a login file
        self.sockets: list[str] = []
        self.masked = ""  # path of a file in the project with a secret
        self.control = "canary" + "".join(secrets.choice("bdgklmnprt") for _ in range(12))  # shown in it
        self.hidden: list[tuple[str, int, int]] = []  # files with the token: path, device, inode
        self.listeners: list[tuple[str, int]] = []
        self.process = 0
        self.shared_memory: int | None = None
        self._state, self._workdir, self._agent = state, workdir, agent
        self._nest = f"{workdir}/.{self.token[:15]}-nest"
        self._undo = contextlib.ExitStack()

    def plant(self) -> None:
        self.planted = time.time()
        os.environ["CLAUDEBOX_CANARY"] = self.token
        self._undo.callback(os.environ.pop, "CLAUDEBOX_CANARY")
        public = self._make_directory(tempfile.gettempdir())
        self._plant_file(f"{public}/secret")
        left_open = os.open(f"{public}/secret", os.O_RDONLY)
        self._undo.callback(os.close, left_open)
        os.set_inheritable(left_open, True)  # noqa: FBT003
        private = self._make_directory(self._state)
        self._plant_file(f"{private}/secret")
        self.login = f"{private}/login.json"
        with open(self.login, "x", encoding="ascii") as file:
            json.dump(self._make_login(), file)
        with contextlib.suppress(OSError):  # a project that cannot be written
            os.mkdir(self._nest, 0o700)
            self._undo.callback(shutil.rmtree, self._nest, ignore_errors=True)
            with open(f"{self._nest}/.env", "x", encoding="ascii") as file:
                file.write(f"API_KEY=canary-{secrets.token_hex(12)}\nNAME={self.control}\n")
            self.masked = file.name
        self._plant_sockets(public)
        self._plant_listeners()
        child = subprocess.Popen(
            [sys.executable, "-IS", "-c", "import time; time.sleep(600)", self.token], env={"CANARY": self.token},
            stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        self._undo.callback(child.wait)
        self._undo.callback(child.kill)
        self.process = child.pid
        library = ctypes.CDLL(None, use_errno=True)
        number = library.shmget(0, 4096, 0o1600)
        if number >= 0:
            self.shared_memory = number
            self._undo.callback(library.shmctl, number, 0, None)

    def _make_login(self) -> dict[str, object]:
        """Return a document with the fields of every login and file with a key that the agent has."""
        document: dict[str, object] = {}
        keys = [place.rpartition(":")[2] for api in self._agent.upstreams for place in api.files]
        for field in (*keys, *(field for login in self._agent.logins for field in (login.access, login.refresh))):
            put_at(document, field, self.credential)
        for login in self._agent.logins:
            put_at(document, login.expires or "-", 1 << 43)
        return document

    def _make_directory(self, place: str) -> str:
        made = tempfile.mkdtemp(prefix="claudebox-verify-", dir=place)
        self._undo.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    def _plant_file(self, path: str) -> None:
        with open(path, "x", encoding="ascii") as file:
            file.write(self.token)
        status = os.stat(path)
        self.hidden.append((path, status.st_dev, status.st_ino))

    def _plant_sockets(self, public: str) -> None:
        for path in (f"{public}/socket", f"{self._workdir}/.{self.token[:15]}", f"{self._nest}/s", f"\0{self.token}"):
            listener = self._undo.enter_context(socket.socket(socket.AF_UNIX))
            try:
                listener.bind(path)
            except OSError:  # read-only project, or path too long
                continue
            listener.listen()
            if path.startswith(self._nest):  # its path is not the one that the kernel lists
                os.rename(path, path := f"{self._nest}/moved")
            if path[0] == "/":
                self.sockets.append(path)
                self._undo.callback(_remove, path)

    def _plant_listeners(self) -> None:
        for address in ("127.0.0.1", "::1", *_own_addresses()):
            listener = self._undo.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
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

    def remove(self) -> None:
        self._undo.close()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


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
    held = {name: canaries.credential for name in agent.key_variables if facts.environ.get(name)}
    login = facts.agent.login.replace(path=canaries.login) if facts.agent.login.usable else facts.agent.login
    models = tuple(row.replace(path=canaries.login) for row in facts.secrets.models)
    return facts.replace(
        environ={**facts.environ, **held},
        agent=facts.agent.replace(login=login),
        secrets=facts.secrets.replace(models=models),
    )
