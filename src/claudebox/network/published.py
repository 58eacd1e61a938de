"""Ports of sandboxes at the host's loopback: opened there, and recorded while they are served.

A record is a file of the state named by the port of the host, locked by the process that serves it. A relay for a
session that runs is a process of its own, on the host's side but in the network of the sandbox; it ends with the
session.
"""

from __future__ import annotations

import fcntl
import os

from claudebox.base import process
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_LOCK, Closing, list_names, write_all
from claudebox.base.records import Value
from claudebox.base.state import open_state
from claudebox.base.syscalls import socket
from claudebox.network import netns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.records import Published


_DIRECTORY = "published"
_TRIED = 100  # ports after the wanted one


class PublishedPort(Value):
    """A port of the host that leads into a session."""

    host: int
    inside: int
    launcher: int
    relay: int  # the process that serves it; the launcher itself if it was published from the start


def address(row: PublishedPort, name: str) -> str:
    """Return where a browser finds it; sessions have names of their own, so that their cookies stay apart."""
    label = "".join(char if char.isascii() and char.isalnum() else "-" for char in name.lower()).strip("-")[:63]
    return f"http://{f'{label}.' if label else ''}localhost:{row.host}"


def listen(wanted: Published) -> tuple[int, list[socket.socket]]:
    """Open the port of the host, or the next free one unless it was fixed; return it with its listeners."""
    last = wanted.host if wanted.fixed else min(wanted.host + _TRIED, 65535)
    for port in range(wanted.host, last + 1):
        try:
            return port, netns.listen_on_loopback(port)
        except PermissionError:
            raise ClaudeboxError(
                f"`--publish {wanted}`: you may not open port {port} on this machine",
                hint=f"use a port from 1024 on: `{port + 8000}:{wanted.inside}`",
            ) from None
        except OSError as error:
            if port == last:
                raise ClaudeboxError(
                    f"`--publish {wanted}`: port {port} of this machine cannot be opened: {error.strerror}",
                    hint=f"see who has it with `ss -ltnp 'sport = :{port}'`, or leave its choice to claudebox: "
                    f"`{wanted.inside}`",
                ) from None
    raise AssertionError


def record(state: str, port: int, inside: int, launcher: int) -> int:
    """Record a port that this process serves; return the descriptor that holds the lock."""
    with Closing(open_state(state, _DIRECTORY)) as directory:
        entry = os.open(str(port), OPEN_LOCK, 0o600, dir_fd=directory)
    fcntl.flock(entry, fcntl.LOCK_EX)
    os.ftruncate(entry, 0)
    write_all(entry, b"%d %d %d" % (inside, launcher, os.getpid()))
    return entry


def list_ports(state: str) -> list[PublishedPort]:
    """Return the ports that are served now: a record that nobody has locked is of a former session."""
    found = []
    for name in sorted(filter(str.isdigit, list_names(f"{state}/{_DIRECTORY}")), key=int):
        with Closing(os.open(f"{state}/{_DIRECTORY}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)) as entry:
            words = os.read(entry, 100).split()
            try:
                fcntl.flock(entry, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found += [PublishedPort(int(name), *map(int, words))] if len(words) == 3 else []
    return found


def start_relay(state: str, wanted: Published, launcher: int, inner: int) -> int:
    """Publish a port of a running session, of which `inner` is a process in its network; return the port."""
    port, listeners = listen(wanted)
    ended = os.pidfd_open(launcher)
    told, tell = os.pipe2(os.O_CLOEXEC)
    numbers = [listener.fileno() for listener in listeners]

    def body() -> None:
        process.outlive_parent()
        try:
            record(state, port, wanted.inside, launcher)  # locked as long as this process lives
            with Closing(os.pidfd_open(inner)) as target:
                netns.join(inner, target)
            process.drop_capabilities()
        except (OSError, netns.SetupFailed) as error:
            os.write(tell, str(error).encode())
            return
        os.close(tell)
        from claudebox.network import relay

        relay.serve([(number, wanted.inside) for number in numbers], until=ended)

    process.fork(body, [*numbers, ended, tell])
    for descriptor in (*map(socket.socket.detach, listeners), ended, tell):
        os.close(descriptor)
    with Closing(told):
        problem = os.read(told, 4096).decode("utf-8", "replace")
    if problem:
        raise ClaudeboxError(f"port {wanted.inside} of the session cannot be published: {problem}")
    return port
