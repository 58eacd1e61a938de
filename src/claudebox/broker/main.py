"""The broker's process: hardened first, then its services, until the launcher closes the control socket.

A service has `async def open(config, context) -> close`, and gets its part of the configuration only.
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
from collections import Counter
from importlib import import_module

from claudebox.base import syscalls
from claudebox.broker.reception import Reception
from claudebox.broker.wire import FAILED, LISTENERS, READY, TOTALS, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any, Literal, NoReturn

    from claudebox.broker.inject import Interceptor
    from claudebox.broker.metering import TokenUsage

    Verdict = Literal["opened", "allowed", "denied", "failed"]
    Service = Literal["api", "proxy", "secrets"]
    Labels = dict[str, object]

    Close = Callable[[], Awaitable[None]]
    Named = tuple[tuple[str, int], ...]  # descriptors by name


LOG_LIMIT = 8 << 20  # bytes of one session
_LONGEST = 255  # characters of a name
_MOST_SUMS = 2048
_OTHERS = "(others)"  # stands for all further names in sums
_COUNTED = (
    "opened", "allowed", "denied", "failed", "up", "down", "answers", "input", "output", "cache_write", "cache_read",
    "price", "lost",
)  # fmt: skip


class _Sum:
    """Amounts of equal lines that are not written yet."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()
        self.count = self.written = 0


class Log:
    """The session's log of decisions: one line of JSON for each connection that was allowed, denied or failed.

    It has names, numbers and verdicts; never a header, a body, a path or a value. A line is one `write` to a file
    opened for appending. Repeated denials and failures become counts, so that a flood of them cannot crowd out what
    was allowed and spent; when the file is full, everything becomes sums, which are written at the end. Failed writes
    are retried, and counted as lost if that fails too.
    """

    def __init__(self, descriptor: int, *, most: int = LOG_LIMIT) -> None:
        """Log to a descriptor open for appending, -1 for nowhere."""
        self._descriptor = descriptor
        self._weighty, self._noise = most // 2, most // 4  # bytes left; the rest is for the sums at the end
        self._full = self._torn = False
        self._sums: dict[tuple[object, ...], tuple[Labels, _Sum]] = {}
        self.totals = Counter(dict.fromkeys(_COUNTED, 0))

    def record(  # noqa: PLR0913 - the fields of a line
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
        """Log one decision; `secrets` are names of variables, `status` is logged if it is an error."""
        labels: Labels = {
            "kind": "decision", "service": service, "host": host[:_LONGEST], "port": port, "verdict": verdict,
            "rule": rule[:_LONGEST],
        }  # fmt: skip
        if names := tuple(sorted(set(secrets))):
            labels["secrets"] = names
        if status >= 400:
            labels["status"] = status
        self._add(verdict, labels, {"up": up, "down": down}, weighty=verdict in ("opened", "allowed"))

    def record_usage(self, usage: TokenUsage) -> None:
        """Log what one response of the model cost."""
        amounts = {
            "input": usage.input, "output": usage.output, "cache_write": usage.cache_write,
            "cache_read": usage.cache_read, "price": usage.price(),
        }  # fmt: skip
        labels: Labels = {"kind": "usage", "model": usage.model}
        if usage.maker != "anthropic":
            labels["maker"] = usage.maker
        self._add("answers", labels, amounts, weighty=True)

    def record_opened(self, names: Iterable[str]) -> None:
        """Log which domains the user allowed during the session."""
        self._put({"kind": "opened", "names": [name[:_LONGEST] for name in names]}, {}, 1)

    def _add(self, total: str, labels: Labels, amounts: dict[str, int], *, weighty: bool) -> None:
        """Write a line; or add it to equal ones, of which the first is written, the second, the fourth and so on."""
        self.totals[total] += 1
        self.totals.update(amounts)
        if self._descriptor < 0 or (weighty and self._has_room(weighty=True) and self._put(labels, amounts, 1)):
            return
        key = tuple(labels.values())
        if key not in self._sums and len(self._sums) >= _MOST_SUMS:
            labels = labels | ({"host": _OTHERS, "port": 0} if "host" in labels else {"model": _OTHERS})
            key = tuple(labels.values())
        kept, row = self._sums.setdefault(key, (labels, _Sum()))
        row.amounts.update(amounts)
        row.count += 1
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
            row.amounts, row.count = Counter(), 0
        return done

    def _put(self, labels: Labels, amounts: dict[str, int], count: int) -> bool:
        """Write a line that stands for `count` equal ones; return whether all of it is in the file."""
        line = {"time": round(time.time(), 3), **labels, **amounts, **({"count": count} if count > 1 else {})}
        data = b"\n" * self._torn + json.dumps(line, ensure_ascii=True).encode("ascii") + b"\n"
        try:
            written = os.write(self._descriptor, data)
        except OSError:  # a full disk must not end a session
            return False
        self._torn = written < len(data)
        self._weighty -= written
        return not self._torn

    def close(self) -> None:
        """Write the sums that are not written yet."""
        for labels, row in list(self._sums.values()):
            if row.count and not self._write_sum(labels, row):
                self.totals["lost"] += row.count
        self._sums.clear()


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
        return self.interceptor.intercept(host, port) if self.interceptor is not None else None

    def record(self, **decision: Any) -> None:
        """Log a decision of the proxy."""
        self.log.record(service="proxy", **decision)

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
