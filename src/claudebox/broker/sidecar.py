"""What the launcher does for the broker: its sockets, its process, its configuration, its end.

Secrets reach it through a nameless file in memory, never as arguments or variables. Nobody waits for it unless the plan
says so: its sockets listen before the sandbox exists, and a broker that does not come up can only mean less reach.
"""

from __future__ import annotations

import os
import select
import sys
import time

from claudebox.base import process as base_process
from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import PACKAGE, is_private
from claudebox.base.syscalls import socket
from claudebox.network import records as network_records
from claudebox.plan.records import ENTRANCE
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.network.records import Broker


_PREFIX = "claudebox-broker-"
_LEFT = 10.0  # seconds after which a directory of a launcher that is gone was left behind
_BACKLOG = 512
_PATIENCE = 20.0  # seconds for a broker that is waited for
_END_PATIENCE = 2.0  # seconds that it has to write down what it knows
_LIMIT = 1 << 16
_NEVER = 3600.0
_PROGRAM = "import gc, sys; gc.disable(); sys.path += {!r}; from claudebox.broker import main; main.main({}, {})"


def _place() -> str:
    """Return where sockets have their names for a moment: the user's runtime directory if there is one."""
    own = f"/run/user/{os.getuid()}"
    return own if is_private(own) else "/tmp"


def _clear(place: str) -> None:
    """Take away what launchers have left that were killed while they started."""
    for name in os.listdir(place):
        process = name.removeprefix(_PREFIX).partition("-")[0]
        directory = f"{place}/{name}"
        if not name.startswith(_PREFIX) or not process.isdigit() or os.path.exists(f"/proc/{process}"):
            continue
        try:
            status = os.lstat(directory)
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _LEFT:
                continue
            for entry in os.listdir(directory):
                os.unlink(f"{directory}/{entry}")
            os.rmdir(directory)
        except OSError:
            continue


def control_directory(launcher: int) -> str:
    """Return where the socket is by which a user changes a session that runs, of the launcher with this number.

    Nothing of it is visible inside: runtime directory and /tmp are the sandbox's own there.
    """
    return f"{_place()}/{_PREFIX}{launcher}-{network_records.CONTROL}"


class BrokerSidecar(Sidecar):
    """The broker of one sandbox, seen from the launcher."""

    title = "the broker"

    def __init__(self, broker: Broker, handed: Callable[[], list[tuple[str, int]]] = list) -> None:
        """Choose names; `handed` returns listeners that the netns holder opened inside, for `attach`."""
        self.broker = broker
        self._handed = handed
        self._directory = f"{_place()}/{_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
        self._listeners: dict[str, socket.socket] = {}
        self._control: socket.socket | None = None
        self._process = 0
        self._made = self._lost = self._ready = self._told = False
        self._files: tuple[tuple[str, int], ...] = ()
        self._notes: list[str] = []
        self._totals: dict[str, int] | None = None
        self._failure = ""
        self._password = self._controlled = ""
        self.sockets = {name: f"{self._directory}/{name}" for name in broker.sockets}
        if broker.proxy is not None and broker.proxy.reach == "everything":
            self._open_entrance()

    def _open_entrance(self) -> None:
        """Listen on this machine's loopback, for those who know a password that was made for this session."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        listener.bind(("127.0.0.1", 0))
        self._password = os.urandom(24).hex()
        self._listeners["proxy"] = listener
        self.texts = {ENTRANCE: f"http://claudebox:{self._password}@127.0.0.1:{listener.getsockname()[1]}"}

    def listen(self) -> None:
        """Make the sockets, in a directory that nobody else can enter."""
        for listener in self._listeners.values():
            listener.listen(_BACKLOG)
        if self.broker.proxy is not None and self.broker.proxy.reach == "listed":
            self._open_control()
        if not self.sockets:
            return
        _clear(os.path.dirname(self._directory))
        os.mkdir(self._directory, 0o700)
        self._made = True
        for name, path in self.sockets.items():
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(_BACKLOG)
            self._listeners[name] = listener

    def _open_control(self) -> None:
        """Listen for the user, in a directory that nobody else can enter; its name lasts as long as the session."""
        directory = control_directory(os.getpid())
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            os.mkdir(directory, 0o700)
            listener.bind(f"{directory}/{network_records.CONTROL}")
        except OSError:  # comfort: the session goes on without
            listener.close()
            return
        listener.listen(_BACKLOG)
        self._listeners[network_records.CONTROL] = listener
        self._controlled = directory

    def begin(self, files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start the process if the sandbox waits for it.

        Otherwise `look` does, when the payload runs: until then bwrap, the snapshot and the launcher share the cores,
        and the payload waits for them. Whoever connects before it has loaded its libraries waits for it.
        """
        self._files = files
        if self.broker.awaited or self._handed is not list or any(name != "log" for name, _ in files):
            self._start()

    def look(self) -> float:
        """Start the process, now that the payload runs; return in how many seconds to look again."""
        if self._control is None:
            try:
                self._start()
            except OSError as error:  # the sandbox has less reach, so it may go on; who connects is refused
                self._failure = error.strerror or str(error)
                self._close_listeners()
        return _NEVER

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        broker = self.broker
        if self._password and broker.proxy is not None:
            broker = broker.replace(proxy=broker.proxy.replace(password=self._password))
        configuration = syscalls.memory_file(
            network_records.pack(
                (
                    broker.services,
                    tuple((name, listener.fileno()) for name, listener in self._listeners.items()),
                    self._files,
                )
            )
        )
        program = _PROGRAM.format([PACKAGE, *self.broker.libraries], configuration, theirs.fileno())
        inherited = [configuration, theirs.fileno(), *(listener.fileno() for listener in self._listeners.values())]
        inherited += [descriptor for _, descriptor in self._files]
        words = (sys.executable, "-IS", "-c", program)
        try:
            self._process = base_process.spawn(words, {number: number for number in inherited}, {})
        finally:
            os.close(configuration)
            theirs.close()
        self._close_listeners()

    def attach(self, _payload: int) -> None:
        """Take the names of the sockets away, now that they are bound, and hand over what was opened inside."""
        self._remove_names()
        if self._control is None:
            return
        handed = self._handed()
        if handed:
            names = " ".join(name for name, _ in handed).encode()
            descriptors = b"".join(number.to_bytes(4, sys.byteorder) for _, number in handed)
            try:
                self._control.sendmsg(
                    [network_records.LISTENERS + names], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
                )
            except OSError:  # it has ended; what it said tells why
                pass
            for _, number in handed:
                os.close(number)
        self._receive(_PATIENCE if self.broker.awaited else 0.0)
        if self._failure:
            raise ClaudeboxError(f"the broker, which keeps your key outside, did not start: {self._failure}")

    def tend(self) -> None:
        """Look whether it is still there; without it the sandbox has less reach, so it may go on."""
        if self._process and base_process.poll(self._process) is not None:
            self._lost = True

    def hang_up(self) -> None:
        """Let it write down what it knows, and end."""
        if self._control is None or self._told:
            return
        self.tend()  # whoever has ended before was not told to
        self._told = True
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def finish(self) -> tuple[str, ...]:
        """End it, and return what the user should know."""
        self._remove_names()
        self._close_listeners()
        self._listeners = {}
        if self._controlled:
            for remove, path in (
                (os.unlink, f"{self._controlled}/{network_records.CONTROL}"),
                (os.rmdir, self._controlled),
            ):
                try:
                    remove(path)
                except FileNotFoundError:
                    pass
            self._controlled = ""
        if not self._process or self._control is None:
            if self._control is not None:
                self._control.close()
            return (f"the broker did not start: {self._failure}; nothing answered for it",) if self._failure else ()
        self.hang_up()
        self._receive(0.0, until_end=True)
        if self._ready:  # otherwise it has nothing to write down yet
            self._receive(_END_PATIENCE, until_end=True)
        status = base_process.end(self._process)
        self._process = 0
        self._control.close()
        if self._ready and not self._write_account():
            self._notes.append("what the broker let pass in this session could not be written to the log")
        if self._lost or self._failure:
            why = self._failure or f"status {status}"
            self._notes.insert(0, f"the broker ended during the session ({why}); from then on nothing answered for it")
        return tuple(self._notes)

    def _write_account(self) -> bool:
        """Write to the log what passed in all, or that the broker did not say so; tell whether that is there."""
        found: dict[str, int] = {"silent": 1} if self._totals is None else self._totals
        amounts = "".join(f', "{name}": {amount}' for name, amount in found.items() if amount)
        line = f'{{"time": {time.time():.3f}, "kind": "broker"{amounts}}}\n'.encode("ascii")
        log = next((descriptor for name, descriptor in self._files if name == "log"), -1)
        try:
            return log < 0 or os.write(log, line) == len(line)
        except OSError:
            return False

    def _receive(self, patience: float, *, until_end: bool = False) -> None:
        """Take up what it says, for so many seconds, until it is ready or has ended."""
        assert self._control is not None  # noqa: S101 - for the type checker
        while select.select([self._control.fileno()], [], [], patience)[0]:
            try:
                word = self._control.recv(_LIMIT)
            except OSError:
                word = b""
            if word.startswith(network_records.FAILED):
                self._failure = word.removeprefix(network_records.FAILED).decode("utf-8", "replace")
            elif word.startswith(network_records.TOTALS):
                pairs = (pair.partition(b"=") for pair in word.removeprefix(network_records.TOTALS).split())
                self._totals = {name.decode("ascii"): int(amount) for name, _, amount in pairs if amount.isdigit()}
            elif word.startswith(network_records.NOTE):
                self._notes.append(word.removeprefix(network_records.NOTE).decode("utf-8", "replace"))
            if not word:
                self._failure = self._failure or ("" if until_end else "it ended at once")
                return
            if word == network_records.READY:
                self._ready = True
                if not until_end:
                    return
        if patience and not until_end:
            self._failure = f"it was not ready within {patience:.0f} seconds"

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def _remove_names(self) -> None:
        for name in self._listeners:
            try:
                os.unlink(f"{self._directory}/{name}")
            except FileNotFoundError:
                pass
        if self._made:
            os.rmdir(self._directory)
            self._made = False
