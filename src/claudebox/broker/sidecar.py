"""The broker seen from the launcher: its sockets, its process, its configuration, its end.

Secrets reach it in a memory file, never in arguments or variables. Unless the plan says otherwise, nothing waits for
it: its sockets listen before the sandbox exists, and if it fails the sandbox only reaches less.
"""

from __future__ import annotations

import os
import select
import sys
import time

from claudebox.base import process, runtime, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import PACKAGE
from claudebox.base.syscalls import socket
from claudebox.broker.wire import CONTROL, FAILED, LISTENERS, READY, TOTALS, pack
from claudebox.plan.records import ENTRANCE, MODEL_PLACEHOLDER
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.network.records import Broker


_BACKLOG = 512
_STREAM = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_PATIENCE = 20.0  # seconds for a broker that the launch waits for
_END_PATIENCE = 2.0  # seconds for its last lines of the log
_LIMIT = 1 << 16
_NEVER = 3600.0
_PROGRAM = "import gc, sys; gc.disable(); sys.path += {!r}; from claudebox.broker import main; main.main({}, {})"


def control_directory(launcher: int) -> str:
    """Return the directory of the control socket of a running session; it is not visible inside."""
    return runtime.locate(CONTROL, launcher)


def _listener(kind: int, path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.bind(path)
        os.chmod(path, 0o600)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


class BrokerSidecar(Sidecar):
    """The broker of one sandbox."""

    title = "the broker"

    def __init__(
        self, broker: Broker, handed: Callable[[], list[tuple[str, int]]] = list, texts: tuple[str, ...] = ()
    ) -> None:
        """Choose names; `handed` returns the listeners that the netns holder opened inside, `texts` are for bwrap."""
        self.broker = broker
        self._handed, self._wanted = handed, texts
        self._directory = runtime.name_directory("broker")
        self._listeners: dict[str, socket.socket] = {}
        # Ports of the host stay ours until the end: another account that took one would be told what the agent says.
        self._kept: list[socket.socket] = []
        self._control: socket.socket | None = None
        self._process = 0
        self._lost = self._ready = self._ended = self._hung_up = False
        self._log = -1
        self._totals: dict[str, int] | None = None
        self._failure = ""
        self.sockets = {name: f"{self._directory}/{name}" for name in broker.sockets}
        if broker.proxy is not None and broker.proxy.reach == "everything":
            self._open_entrance()
        if any(model.shared for model in broker.models):
            self._open_models()

    def _open_entrance(self) -> None:
        """Bind a port of the host's loopback, with a password because other users can connect too."""
        listener = socket.socket(socket.AF_INET, _STREAM)
        listener.bind(("127.0.0.1", 0))
        password = os.urandom(24).hex()
        self.broker = self.broker.replace(proxy=self.broker.proxy and self.broker.proxy.replace(password=password))
        self._listeners["proxy"] = listener
        self.texts = {**self.texts, ENTRANCE: f"http://claudebox:{password}@127.0.0.1:{listener.getsockname()[1]}"}

    def _open_models(self) -> None:
        """Bind the ports of the host's loopback where models are served, with a placeholder that nobody else knows."""
        secret = os.urandom(24).hex()
        models = []
        for model in self.broker.models:
            if model.shared:
                listener = socket.socket(socket.AF_INET, _STREAM)
                try:
                    listener.bind(("127.0.0.1", model.port))
                except OSError as error:
                    raise ClaudeboxError(
                        f"port {model.port} of this machine cannot be opened for the model: {error.strerror}",
                        hint="start again: another one will be chosen",
                    ) from None
                self._listeners[model.listener] = listener
                self._kept.append(listener)
            models.append(model.replace(placeholder=model.placeholder + secret) if model.shared else model)
        self.broker = self.broker.replace(models=tuple(models))
        self.texts = {**self.texts, MODEL_PLACEHOLDER: secret}

    def begin(self, log: int = -1) -> None:
        """Create the sockets; start the process if the sandbox waits for it.

        Otherwise `look` starts it once the payload runs: until then bwrap, the snapshot and the launcher need the
        cores. Callers that connect earlier wait in the sockets' queues.
        """
        self._log = log
        self._listen()
        if self.broker.awaited or self._handed is not list or self._wanted:
            self._start()

    def _listen(self) -> None:
        """Create the sockets, in directories that only the user can enter."""
        for listener in self._listeners.values():
            listener.listen(_BACKLOG)
        if self.broker.proxy is not None and self.broker.proxy.reach == "listed":
            self._open_control()
        if self.sockets:
            runtime.make_directory(self._directory)
            for name, path in self.sockets.items():
                self._listeners[name] = _listener(socket.SOCK_STREAM, path)

    def _open_control(self) -> None:
        """Create the socket for `--allow-domain`; the session goes on if that fails."""
        directory = control_directory(os.getpid())
        try:
            runtime.remove_directory(directory)  # of a launcher that had this number
            runtime.make_directory(directory)
            self._listeners[CONTROL] = _listener(socket.SOCK_SEQPACKET, f"{directory}/{CONTROL}")
        except OSError:
            return

    def look(self) -> float:
        """Start the process, now that the payload runs; return in how many seconds to look again."""
        if self._control is None:
            try:
                self._start()
            except OSError as error:  # the sandbox goes on with less reach; connections are refused
                self._failure = error.strerror or str(error)
                self._close_listeners()
        return _NEVER

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        listeners = tuple((name, listener.fileno()) for name, listener in self._listeners.items())
        ends = [(name, os.pipe2(os.O_CLOEXEC)) for name in self._wanted]
        self.pipes = tuple((name, reader) for name, (reader, _) in ends)
        files = (*((name, writer) for name, (_, writer) in ends), *((("log", self._log),) if self._log >= 0 else ()))
        configuration = syscalls.memory_file(pack((self.broker.services, listeners, files)))
        program = _PROGRAM.format([PACKAGE, *self.broker.libraries], configuration, theirs.fileno())
        inherited = [configuration, theirs.fileno(), *(number for _, number in (*listeners, *files))]
        try:
            self._process = process.spawn(
                (sys.executable, "-IS", "-c", program), {number: number for number in inherited}, {}
            )
        finally:
            for descriptor in (configuration, *(writer for _, (_, writer) in ends)):
                os.close(descriptor)
            theirs.close()
        self._close_listeners()

    def attach(self, _payload: int) -> None:
        """Remove the names of the sockets, which are mounted now, and hand over the listeners opened inside."""
        runtime.remove_directory(self._directory)
        if self._control is None:
            return
        if handed := self._handed():
            names = " ".join(name for name, _ in handed).encode()
            descriptors = b"".join(number.to_bytes(4, sys.byteorder) for _, number in handed)
            try:
                self._control.sendmsg([LISTENERS + names], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            except OSError:  # it has ended; its last message says why
                pass
            for _, number in handed:
                os.close(number)
        self._listen_to(_PATIENCE if self.broker.awaited else 0.0)
        if self._ended or (self.broker.awaited and not self._ready):
            why = self._failure or ("it ended at once" if self._ended else "it was not ready in time")
            raise ClaudeboxError(f"the broker, which keeps your key outside, did not start: {why}")

    def tend(self) -> None:
        """Notice its end; the sandbox goes on with less reach."""
        if self._process and process.poll(self._process) is not None:
            self._lost = True
            for listener in self._kept:  # refuses callers, and keeps the port
                try:
                    listener.shutdown(socket.SHUT_RDWR)
                except OSError:  # it refuses callers already; contextlib.suppress would load 2 ms of modules
                    pass

    def hang_up(self) -> None:
        """Tell it to write its log and end."""
        if self._control is None or self._hung_up:
            return
        self.tend()  # an end before this is a failure
        self._hung_up = True
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def finish(self) -> tuple[str, ...]:
        """End it, and return what the user should know."""
        runtime.remove_directory(self._directory)
        runtime.remove_directory(control_directory(os.getpid()))
        self._close_listeners()
        for listener in self._kept:
            listener.close()
        self._listeners, self._kept = {}, []
        if not self._process or self._control is None:
            if self._control is not None:
                self._control.close()
            return (f"the broker did not start: {self._failure}; nothing answered for it",) if self._failure else ()
        self.hang_up()
        self._listen_to(0.0)
        if self._ready:  # otherwise it has nothing to log yet
            self._listen_to(_END_PATIENCE)
        status = process.end(self._process)
        self._process = 0
        self._control.close()
        notes = []
        if self._lost or self._failure:
            why = self._failure or f"status {status}"
            notes.append(f"the broker ended during the session ({why}); from then on nothing answered for it")
        if self._ready and not self._write_account():
            notes.append("the totals of the broker could not be written to the log")
        return tuple(notes)

    def _write_account(self) -> bool:
        """Log the totals, or that the broker was silent about them; return whether that worked."""
        found: dict[str, int] = {"silent": 1} if self._totals is None else self._totals
        amounts = "".join(f', "{name}": {amount}' for name, amount in found.items() if amount)
        line = f'{{"time": {time.time():.3f}, "kind": "broker"{amounts}}}\n'.encode("ascii")
        try:
            return self._log < 0 or os.write(self._log, line) == len(line)
        except OSError:
            return False

    def _listen_to(self, patience: float) -> None:
        """Take its messages for so many seconds at most, until it is ready or, once it was told to end, has ended."""
        assert self._control is not None  # noqa: S101 - for the type checker
        while not self._ended and select.select([self._control.fileno()], [], [], patience)[0]:
            try:
                word = self._control.recv(_LIMIT)
            except OSError:
                word = b""
            self._ended = not word
            if word.startswith(FAILED):
                self._failure = word.removeprefix(FAILED).decode("utf-8", "replace")
            elif word.startswith(TOTALS):
                pairs = (pair.partition(b"=") for pair in word.removeprefix(TOTALS).split())
                self._totals = {name.decode("ascii"): int(amount) for name, _, amount in pairs if amount.isdigit()}
            elif word == READY:
                self._ready = True
                if not self._hung_up:
                    return

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            if listener not in self._kept:
                listener.close()
