"""The broker's process: hardened first, then its services, until the launcher closes the control socket.

A service has `async def open(config, context) -> close`, and gets its part of the configuration only.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
from importlib import import_module

from claudebox.base import syscalls
from claudebox.broker.log import Log
from claudebox.broker.reception import Reception
from claudebox.broker.wire import FAILED, LISTENERS, READY, TOTALS, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, NoReturn

    from claudebox.broker.inject import Interceptor

    Close = Callable[[], Awaitable[None]]
    Named = tuple[tuple[str, int], ...]  # descriptors by name


_SERVICES = {  # imported only if configured
    "model_api": "claudebox.broker.model_api",
    "proxy": "claudebox.broker.proxy.gateway",
    "inject": "claudebox.broker.inject",
}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 16
_SIGKILL = 9
_OPEN_FILES = 8192  # two for each stream
_WORDS = 4096
_CLOSING = 1.0  # seconds for a service to close
_LAST_TURNS = 3  # of the loop, for callbacks of closed connections


def main(configuration: int, control: int) -> None:
    """Serve; never returns."""
    try:
        harden()
        with os.fdopen(configuration, "rb") as file:
            services, listeners, files = unpack(file.read())
        asyncio.run(_serve(control, services, listeners, files))
    except KeyboardInterrupt:
        pass
    except BaseException as error:  # noqa: BLE001 - becomes one line of the launcher, without a traceback
        _say(control, FAILED + str(error).encode("utf-8", "replace")[:_WORDS])
    os._exit(1)


def harden() -> None:
    """Forbid debuggers, core files and new privileges; die with the launcher."""
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, _SIGKILL)):
        if syscalls.call("prctl", option, value, 0, 0, 0) != 0:
            raise OSError("the broker could not be protected")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    os.umask(0o077)
    syscalls.call("mallopt", _M_MMAP_THRESHOLD, _LARGE)  # large blocks return to the system when freed


def _say(control: int, word: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(control, word)


class Context:
    """What services share."""

    def __init__(self, control: socket.socket, sockets: dict[str, socket.socket], files: Named, log: Log) -> None:
        self._control = control
        self._sockets = sockets
        self._files = files
        self.interceptor: Interceptor | None = None
        self.log = log
        self.reception = Reception()
        self._awaited: dict[str, asyncio.Future[socket.socket]] = {}

    def intercept(self, host: str, port: int) -> Any:
        """Return the handler of connections to the host of a secret."""
        return self.interceptor.find_handler(host, port) if self.interceptor is not None else None

    def files(self, name: str) -> list[int]:
        """Return the descriptors that the launcher opened under this name; the caller closes them."""
        found = [descriptor for own, descriptor in self._files if own == name]
        self._files = tuple(pair for pair in self._files if pair[0] != name)
        return found

    async def wait_listener(self, name: str) -> socket.socket:
        """Return a listener: one that the launcher made, or one inside the sandbox's network once it arrives."""
        if name in self._sockets:
            return self._sockets.pop(name)
        return await self._awaited.setdefault(name, asyncio.get_running_loop().create_future())

    def receive(self) -> bool:
        """Read a message of the launcher; return False once it hung up."""
        try:
            word, descriptors, _, _ = socket.recv_fds(self._control, _WORDS, 64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if word.startswith(LISTENERS):
            names = word.removeprefix(LISTENERS).decode("ascii").split()
            for name, descriptor in zip(names, descriptors, strict=True):
                os.set_inheritable(descriptor, False)  # noqa: FBT003
                made = socket.socket(fileno=descriptor)
                made.setblocking(False)  # noqa: FBT003
                self._awaited.setdefault(name, asyncio.get_running_loop().create_future()).set_result(made)
        return bool(word)


async def _serve(descriptor: int, services: tuple[tuple[str, Any], ...], listeners: Named, files: Named) -> NoReturn:
    control = socket.socket(fileno=descriptor)
    control.setblocking(False)  # noqa: FBT003
    sockets = {name: socket.socket(fileno=number) for name, number in listeners}
    log = Log(next((number for name, number in files if name == "log"), -1))
    context = Context(control, sockets, files, log)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # the default prints data of connections
    loop.add_reader(control, lambda: None if context.receive() else ended.set())
    closing: list[Close] = await asyncio.gather(
        *(import_module(_SERVICES[name]).open(config, context) for name, config in services)
    )
    gc.freeze()  # imports leave no garbage: the launcher started us with the collector disabled
    gc.enable()
    control.send(READY)
    await ended.wait()
    loop.remove_reader(control)
    context.reception.close()
    for close in reversed(closing):
        try:
            await asyncio.wait_for(close(), _CLOSING)
        except Exception:  # noqa: BLE001, S112 - the others must close too
            continue
    await _end_tasks()
    log.close()
    _say(descriptor, TOTALS + " ".join(f"{name}={amount}" for name, amount in log.totals.items()).encode("ascii"))
    os._exit(0)  # the launcher waits: skip the teardown of the loop


async def _end_tasks() -> None:
    """Cancel what is running, so that it logs how far it came."""
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_CLOSING)
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)
