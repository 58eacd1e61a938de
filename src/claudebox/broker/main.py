"""The broker's process: hardened first, then its services, until the launcher has gone.

A service has `async def open(config, context) -> close`. It gets its part of the plan and nothing of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import socket
import time
from importlib import import_module

from claudebox.base import syscalls
from claudebox.broker.reception import Reception
from claudebox.network.records import FAILED, LISTENERS, NOTE, READY, unpack
from claudebox.network.records import TOTALS as RECORDS_TOTALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any, Literal, NoReturn

    from claudebox.broker.inject import Interceptor
    from claudebox.broker.metering import TokenUsage

    Verdict = Literal["opened", "allowed", "denied", "failed"]
    Service = Literal["api", "proxy", "names", "secrets"]
    Labels = dict[str, object]

    Close = Callable[[], Awaitable[None]]
    Named = tuple[tuple[str, int], ...]  # descriptors by name


# The log of decisions: one line of JSON for each connection that was allowed, denied or failed.
#
# Names, numbers and verdicts only. Nothing here takes a header, a body, the path of an address or a value. A line is
# one `write` to a file opened for appending. Denials and failures that repeat become counts, so that they take no
# room from what was allowed, spent and ended; where that has no room left either, it goes on in sums, which are
# written at the end. What cannot be written is tried again, and counted.


MOST_BYTES = 8 << 20  # of one session
_LONGEST = 255  # characters of a name
_MOST_SUMS = 2048
_OTHERS = "(others)"  # in sums, instead of more names than that
TOTALS = (
    "opened", "allowed", "denied", "failed", "up", "down", "answers", "input", "output", "cache_write", "cache_read",
    "price", "lost",
)  # fmt: skip


class _Sum:
    """Lines that are alike but for their numbers, and have not been written yet."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.count = self.written = 0

    def add(self, amounts: dict[str, int]) -> None:
        self.count += 1
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0) + amount


class Log:
    """Writes decisions to the record of a session, and keeps their totals."""

    def __init__(self, descriptor: int, *, most: int = MOST_BYTES) -> None:
        """Take a file that is open for appending; -1: nothing is recorded."""
        self._descriptor = descriptor
        self._weighty, self._noise = most // 2, most // 4  # bytes that are left; the rest is for the sums at the end
        self._full = self._torn = False
        self._sums: dict[tuple[object, ...], tuple[Labels, _Sum]] = {}
        self.totals = dict.fromkeys(TOTALS, 0)

    def record(  # noqa: PLR0913 - a line of the log
        self,
        *,
        service: Service,
        host: str,
        port: int,
        verdict: Verdict,
        rule: str,
        up: int = 0,
        down: int = 0,
        secrets: Iterable[str] = (),
        status: int = 0,
    ) -> None:
        """Write one decision down; `secrets` are names of variables, `status` counts if it is that of an error."""
        labels: Labels = {
            "kind": "decision", "service": service, "host": host[:_LONGEST], "port": port, "verdict": verdict,
            "rule": rule[:_LONGEST],
        }  # fmt: skip
        if names := tuple(sorted(set(secrets))):
            labels["secrets"] = names
        if status >= 400:
            labels["status"] = status
        amounts = {"up": up, "down": down}
        self.totals[verdict] += 1
        self._count(amounts)
        self._add(labels, amounts, weighty=verdict in ("opened", "allowed"))

    def record_usage(self, usage: TokenUsage) -> None:
        """Write down what one answer of the model cost."""
        amounts = {
            "input": usage.input, "output": usage.output, "cache_write": usage.cache_write,
            "cache_read": usage.cache_read, "price": usage.price(),
        }  # fmt: skip
        self.totals["answers"] += 1
        self._count(amounts)
        self._add({"kind": "usage", "model": usage.model}, amounts, weighty=True)

    def record_opened(self, names: Iterable[str]) -> None:
        """Write down which domains the user let in while the session ran."""
        self._put({"kind": "opened", "names": [name[:_LONGEST] for name in names]}, {}, 1)

    def _count(self, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            self.totals[name] += amount

    def _add(self, labels: Labels, amounts: dict[str, int], *, weighty: bool) -> None:
        """Write a line; or add it to those like it, of which the first is written, the second, the fourth and so on."""
        if self._descriptor < 0 or (weighty and self._has_room(weighty=True) and self._put(labels, amounts, 1)):
            return
        key = tuple(labels.values())
        if key not in self._sums and len(self._sums) >= _MOST_SUMS:
            labels = labels | ({"host": _OTHERS, "port": 0} if "host" in labels else {"model": _OTHERS})
            key = tuple(labels.values())
        kept, row = self._sums.setdefault(key, (labels, _Sum()))
        row.add(amounts)
        if row.count >= row.written and self._has_room(weighty=False):
            self._write_sum(kept, row)

    def _has_room(self, *, weighty: bool) -> bool:
        if weighty and self._weighty <= 0 and not self._full:
            self._full = self._put({"kind": "full"}, {}, 1)
        return (self._weighty if weighty else self._noise) > 0

    def _write_sum(self, labels: Labels, row: _Sum) -> bool:
        before = self._weighty
        done = self._put(labels, row.amounts, row.count)
        if done:
            self._noise -= before - self._weighty
            self._weighty = before
            row.written += row.count
            row.amounts, row.count = {}, 0
        return done

    def _put(self, labels: Labels, amounts: dict[str, int], count: int) -> bool:
        """Write a line for so many that are alike; tell whether it is in the file, whole."""
        line = {"time": round(time.time(), 3), **labels, **amounts, **({"count": count} if count > 1 else {})}
        data = b"\n" * self._torn + json.dumps(line, ensure_ascii=True).encode("ascii") + b"\n"
        try:
            written = os.write(self._descriptor, data)
        except OSError:  # a full disk must not end a session; it is tried again
            return False
        self._torn = written < len(data)
        self._weighty -= written
        return not self._torn

    def close(self) -> None:
        """Write the sums that have not been written yet."""
        for labels, row in list(self._sums.values()):
            if row.count and not self._write_sum(labels, row):
                self.totals["lost"] += row.count
        self._sums.clear()


_SERVICES = {  # imported only where the plan has them
    "model_api": "claudebox.broker.model_api",
    "proxy": "claudebox.broker.proxy.service",
    "inject": "claudebox.broker.inject",
}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 16
_SIGKILL = 9
_OPEN_FILES = 8192  # two for each stream
_WORDS = 4096
_CLOSING = 1.0  # seconds that services have for their end
_LAST_TURNS = 3  # of the loop, for what the end of a connection has called for


def main(configuration: int, control: int) -> None:
    """Serve, and never return."""
    try:
        harden()
        with os.fdopen(configuration, "rb") as file:
            services, listeners, files = unpack(file.read())
        asyncio.run(_serve(control, services, listeners, files))
    except KeyboardInterrupt:
        pass
    except BaseException as error:  # noqa: BLE001 - the launcher hears of it in one line, and nobody sees a traceback
        _say(control, FAILED + str(error).encode("utf-8", "replace")[:_WORDS])
    os._exit(1)


def harden() -> None:
    """Allow no debugger, no core file and no new privileges, and end with the launcher."""
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, _SIGKILL)):
        if syscalls.call("prctl", option, value, 0, 0, 0) != 0:
            raise OSError("the broker could not be protected")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    os.umask(0o077)
    syscalls.call("mallopt", _M_MMAP_THRESHOLD, _LARGE)  # what was large goes back to the system when it is freed


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

    def take_listener(self, name: str) -> socket.socket:
        """Return a listener that the launcher made before the start."""
        return self._sockets.pop(name)

    def intercept(self, host: str, port: int) -> Any:
        """Return who takes over a connection that is meant for the host of a secret."""
        return self.interceptor.intercept(host, port) if self.interceptor is not None else None

    def record(self, **decision: Any) -> None:
        """Write a decision of the gateway down."""
        self.log.record(service="proxy", **decision)

    def files(self, name: str) -> list[int]:
        """Return what the launcher opened for writing under this name; whoever takes it closes it."""
        found = [descriptor for own, descriptor in self._files if own == name]
        self._files = tuple(pair for pair in self._files if pair[0] != name)
        return found

    async def wait_listener(self, name: str) -> socket.socket:
        """Wait for a listener inside the sandbox's network, and return it."""
        if name in self._sockets:  # the launcher made it, where the sandbox has no network of its own
            return self._sockets.pop(name)
        return await self._awaited.setdefault(name, asyncio.get_running_loop().create_future())

    def note(self, text: str) -> None:
        """Leave a line for the user, who sees it after the session."""
        _say(self._control.fileno(), NOTE + text.encode("utf-8", "backslashreplace")[:_WORDS])

    def receive(self) -> bool:
        """Read a message of the launcher; return whether it is still there."""
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
                future = self._awaited.setdefault(name, asyncio.get_running_loop().create_future())
                future.set_result(made)
        return bool(word)


async def _serve(descriptor: int, services: tuple[tuple[str, Any], ...], listeners: Named, files: Named) -> NoReturn:
    control = socket.socket(fileno=descriptor)
    control.setblocking(False)  # noqa: FBT003
    sockets = {name: socket.socket(fileno=number) for name, number in listeners}
    log = Log(next((number for name, number in files if name == "log"), -1))
    context = Context(control, sockets, files, log)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # it would print what a connection carried
    loop.add_reader(control, lambda: None if context.receive() else ended.set())
    closing: list[Close] = await asyncio.gather(
        *(import_module(_SERVICES[name]).open(config, context) for name, config in services)
    )
    gc.freeze()  # modules make no garbage: the launcher has started us without a collector
    gc.enable()
    control.send(READY)
    await ended.wait()
    loop.remove_reader(control)
    context.reception.close()
    for close in reversed(closing):
        try:
            await asyncio.wait_for(close(), _CLOSING)
        except Exception:  # noqa: BLE001, S112 - the others have their end too
            continue
    await _end_tasks()
    log.close()
    _say(
        descriptor, RECORDS_TOTALS + " ".join(f"{name}={amount}" for name, amount in log.totals.items()).encode("ascii")
    )
    os._exit(0)  # the launcher waits for it, and taking the loop apart serves nobody


async def _end_tasks() -> None:
    """Cancel what is running, so that it logs how far it came."""
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_CLOSING)
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)
