"""Renewing a login, in a process that outlives the session: a token that was spent must be written down.

The broker ends with the launcher, at once. Whoever has sent a refresh token must not: the old one is worth nothing from
then on, and the new one stands in an answer that nobody else will get.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from claudebox import syscalls
from claudebox.files import PACKAGE
from claudebox.launch import broker_wire
from claudebox.launch.token_copy import DONE, REFUSED, UNREACHABLE

if TYPE_CHECKING:
    from claudebox.plan.network_model import ApiConfig

_DESCRIPTOR = 10
_PROGRAM = (
    "import sys; sys.path.insert(0, {!r}); from claudebox.launch.token_refresh import renew_detached; "
    "sys.exit(renew_detached({}))"
)


class Refresher:
    """Starts the process and waits for it."""

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        self._waiting: set[asyncio.Task[int]] = set()

    async def __call__(self, path: str, refused: str) -> int:
        """Renew, and return one of the statuses of `token_refresh`; the process goes on if nobody waits any more."""
        try:
            process = self._start(path, refused)
        except OSError:
            return UNREACHABLE
        task = asyncio.ensure_future(_wait(process))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return await asyncio.shield(task)

    def _start(self, path: str, refused: str) -> int:
        settings = syscalls.memory_file(broker_wire.pack((path, refused, self._config.login_proxy, self._config.trust)))
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        words = [sys.executable, "-IS", "-c", _PROGRAM.format(PACKAGE, _DESCRIPTOR)]
        actions = [(os.POSIX_SPAWN_DUP2, nothing, number) for number in (0, 1, 2)]
        try:
            return os.posix_spawn(
                words[0], words, {}, setsid=True, setsigmask=[],
                file_actions=[*actions, (os.POSIX_SPAWN_DUP2, settings, _DESCRIPTOR)],
            )  # fmt: skip
        finally:
            os.close(settings)
            os.close(nothing)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _wait(process: int) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(process)
    try:
        loop.add_reader(descriptor, _end, ended)
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])  # noqa: ASYNC222 - it has ended
    return code if code in (DONE, REFUSED) else UNREACHABLE
