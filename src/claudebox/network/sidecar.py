"""The network of a sandbox beside it: netns holder, uplink and relays, from the gate's "ready" to the end.

Everything here either works or raises; whatever was started by then is ended again. `netns` is the holder.
"""

from __future__ import annotations

import os
import select

from claudebox.base import process
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.base.syscalls import signal, socket
from claudebox.network import netns, published, uplink
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.network.records import Link


_PATIENCE = 10.0  # seconds for uplink and holder to get ready
_END_PATIENCE = 1.0  # seconds for the holder to report what was refused
_MESSAGE_LIMIT = 2048
_HINT = "run `claudebox --check`; or try the other program with `uplink`"


class NetworkSidecar(Sidecar):
    """Netns holder, uplink and relays of one sandbox."""

    def __init__(self, link: Link, state: str) -> None:
        """Open the published ports of the host, so that a clash shows before anything starts."""
        self._link, self._state = link, state
        self._published: list[tuple[socket.socket, int]] = []
        self._ports: list[tuple[int, int]] = []  # of the host and of the sandbox
        for row in link.published:
            port, listeners = published.listen(row)
            self._published += [(listener, row.inside) for listener in listeners]
            self._ports.append((port, row.inside))
        self._control: socket.socket | None = None
        self._children: list[int] = []
        self._holder = self._uplink = 0
        self._lost = False
        self._log = -1
        self._lifeline = self._stderr = -1
        self._served: list[tuple[str, int]] = []
        self._records: list[int] = []

    def begin(self, log: int = -1) -> None:
        """Start the netns holder, which prepares while bwrap builds the sandbox."""
        self._log = log
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._lifeline, held = os.pipe2(os.O_CLOEXEC)  # the holder alone keeps the other end, which closes with it
        listeners = [(listener.fileno(), port) for listener, port in self._published]
        self._holder = process.fork(
            lambda: netns.run_holder(self._link, theirs, listeners, log),
            (theirs.fileno(), held, *(number for number, _ in listeners), *((log,) if log >= 0 else ())),
        )
        self._children.append(self._holder)
        theirs.close()
        os.close(held)
        for listener, _ in self._published:
            listener.close()

    def attach(self, payload: int) -> None:
        """Connect the sandbox whose gate is this process, or raise."""
        self._tell(str(payload).encode())
        word, descriptors = self._receive(netns.READY)
        served = len(descriptors) - len(self._link.served)
        names = (row.name for row in self._link.served)
        self._served = list(zip(names, descriptors[served:], strict=True))
        if word.endswith(netns.NO_REDIRECT):
            self._drop_redirected()
        self._relay(descriptors[:served])
        if self._link.program:
            self._start(ipv6=word.endswith(b" 6"))
        self._tell(netns.ATTACHED)
        self._receive(netns.BARRED)
        self._publish()
        if self._uplink and _ended(self._uplink):
            raise self._broken("ended at once")

    def _publish(self) -> None:
        """Record the ports of the host, and name those that are not the wanted ones."""
        for (port, inside), wanted in zip(self._ports, self._link.published, strict=True):
            self._records.append(published.record(self._state, port, inside, os.getpid()))
            if port != wanted.host:
                from claudebox.base import console

                console.note(f"port {wanted.host} is taken: port {inside} of the session is at http://localhost:{port}")

    def _drop_redirected(self) -> None:
        """Close the listeners that need redirected connections, so that programs fail at once there."""
        from claudebox.base import console

        unused = {row.name for row in self._link.served if row.redirected}
        for name, descriptor in self._served:
            if name in unused:
                os.close(descriptor)
        self._served = [row for row in self._served if row[0] not in unused]
        console.warn(
            "this kernel cannot redirect connections to the proxy (nf_tables with `redirect`): only programs that "
            "honour HTTPS_PROXY reach the domains that are listed"
        )

    def hand_over(self) -> list[tuple[str, int]]:
        """Return the listeners inside that the broker serves, by name; the caller closes them."""
        served, self._served = self._served, []
        return served

    def _tell(self, word: bytes) -> None:
        assert self._control is not None  # noqa: S101 - for the type checker
        try:
            self._control.send(word)
        except OSError:  # it has ended; its last message tells why
            return

    def _receive(self, wanted: bytes) -> tuple[bytes, list[int]]:
        """Return the holder's message and the listeners that came with it."""
        assert self._control is not None  # noqa: S101
        self._control.settimeout(_PATIENCE)
        try:
            word, ancillary, _, _ = self._control.recvmsg(4096, 4096)
        except TimeoutError:
            raise ClaudeboxError("the network of the sandbox could not be set up in time", hint=_HINT) from None
        if not word.startswith(wanted):
            said = word.removeprefix(netns.FAILED).decode("utf-8", "replace").strip()
            raise ClaudeboxError(
                f"the network of the sandbox could not be set up: {said or 'the process that holds it ended'}",
                hint=_hint(said),
            )
        found: list[int] = []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found += (int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))
        return word, found

    def _relay(self, descriptors: list[int]) -> None:
        """Start the relay from listeners inside to the ports of the host's loopback."""
        if not descriptors:
            return

        def port(descriptor: int) -> int:
            listener = socket.socket(fileno=descriptor)
            number: int = listener.getsockname()[1]
            listener.detach()
            return number

        listeners = [(descriptor, port(descriptor)) for descriptor in descriptors]

        def body() -> None:
            from claudebox.network import relay

            relay.serve(listeners)

        self._children.append(process.fork(body, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def _start(self, *, ipv6: bool) -> None:
        link = self._link
        # Its stderr is kept unread in a pipe: it must neither block nor fill the memory.
        self._stderr, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with Closing(stderr):
            if link.program == "pasta":
                self._start_pasta(stderr, ipv6=ipv6)
            else:
                ready, told = os.pipe2(os.O_CLOEXEC)
                command = uplink.slirp4netns(link.path, self._holder, told, self._lifeline, ipv6=ipv6)
                self._uplink = process.spawn(command, {2: stderr, told: told, self._lifeline: self._lifeline})
                self._children.append(self._uplink)
                os.close(told)
                self._await(ready, lambda: bool(os.read(ready, 1)))
                os.close(ready)

    def _start_pasta(self, stderr: int, *, ipv6: bool) -> None:
        directory = _private_directory()
        path = f"{directory}/ready"
        try:
            os.mkfifo(path, 0o600)
            ready = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            root = os.getuid() == 0
            command = uplink.pasta(self._link.path, self._link.forwarder, self._holder, path, ipv6=ipv6, root=root)
            self._uplink = process.spawn(command, {2: stderr})
            self._children.append(self._uplink)
            self._await(ready, lambda: bool(os.read(ready, 16).strip()))
            os.close(ready)
        finally:
            if os.path.exists(path):
                os.unlink(path)
            os.rmdir(directory)

    def _await(self, ready: int, said: Callable[[], bool]) -> None:
        """Wait until the uplink reports that packets flow; raise if it ends or takes too long."""
        with Closing(os.pidfd_open(self._uplink)) as ended:
            signs = select.select([ready, ended], [], [], _PATIENCE)[0]
        if not signs:
            raise self._broken(f"did not get ready within {_PATIENCE:.0f} seconds")
        if ready not in signs or not said():
            raise self._broken("did not start")

    def _broken(self, what: str) -> ClaudeboxError:
        said = _last_line(self._stderr)
        return ClaudeboxError(f"the uplink `{self._link.path}` {what}" + (f": {said}" if said else ""), hint=_HINT)

    def tend(self) -> None:
        """End everything if the holder has ended: nothing carries packets without it."""
        if not self._children:
            return
        if _ended(self._holder):
            for child in self._children:
                if not _ended(child):
                    os.kill(child, signal.SIGKILL)
        elif self._uplink and _ended(self._uplink):
            self._lost = True

    def finish(self) -> tuple[str, ...]:
        """End every process, and return what the user should know."""
        self.tend()
        self._log_refused()
        notes: tuple[str, ...] = ()
        for child in reversed(self._children):
            status = process.end(child)
            if child == self._uplink and self._lost:
                said = _last_line(self._stderr)
                end = f"status {status}, {said}" if said else f"status {status}"
                notes += (f"the uplink ended during the session ({end}); from then on the sandbox had no network",)
            if child == self._holder and status not in (None, 0):
                notes += (f"the process that holds the packet filter ended (status {status}), and the uplink with it",)
        self._children.clear()
        for _, descriptor in self.hand_over():
            os.close(descriptor)
        for listener, _ in self._published:
            listener.close()
        if self._control is not None:
            self._control.close()
        for descriptor in (*self._records, self._lifeline, self._stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self._records, self._lifeline, self._stderr = [], -1, -1
        return notes

    def _log_refused(self) -> None:
        """Have the holder log what was refused."""
        if self._uplink and self._control is not None and self._log >= 0:
            self._tell(netns.END)
            select.select([self._control.fileno()], [], [], _END_PATIENCE)  # it closes its end


def _ended(child: int) -> bool:
    return process.poll(child) is not None


def _private_directory() -> str:
    # Not in the runtime directory: AppArmor's profile for pasta lets it write to /tmp and the home only.
    path = f"/tmp/claudebox-{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    return path


def _last_line(descriptor: int) -> str:
    try:
        said = os.read(descriptor, _MESSAGE_LIMIT) if descriptor >= 0 else b""
    except OSError:
        return ""
    lines = [line.strip() for line in said.decode("utf-8", "replace").split("\n") if line.strip()]
    return lines[-1] if lines else ""


def _hint(said: str) -> str:
    if "nf_tables" in said:
        return "the tier `inet` needs nf_tables: `sudo modprobe -a nf_tables nft_reject_ipv4 nft_reject_ipv6`"
    return _HINT
