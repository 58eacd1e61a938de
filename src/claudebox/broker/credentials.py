"""What the broker holds: a key, a token, or a login that it renews under the locks of the host's own client."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from claudebox.agent import claude, login
from claudebox.agent.login import DONE, REFUSED, UNREACHABLE
from claudebox.base import syscalls
from claudebox.base.files import PACKAGE
from claudebox.network import records as network_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from claudebox.network.records import ApiConfig


_AGAIN = 60.0  # seconds in which the token that an attempt to renew has left is not renewed again

RELOGIN = "log in again on the host: run `claude` there and `/login`"


class NoCredential(Exception):  # noqa: N818 - it becomes an answer
    """There is no credential that the upstream would take; says why."""


class FixedCredential:
    """Headers that never change."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        for name, value in values.items():
            if name == "ANTHROPIC_API_KEY":
                self._headers.append((b"x-api-key", value.encode("ascii", "surrogateescape")))
            else:
                self._headers.append((b"authorization", b"Bearer " + value.encode("ascii", "surrogateescape")))

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what a request needs."""
        return self._headers

    def secrets(self) -> tuple[bytes, ...]:
        """Return what must never come back."""
        return tuple(value.removeprefix(b"Bearer ") for _, value in self._headers)


class SharedLogin:
    """The login of a file that the host's client, other sandboxes and this one share."""

    def __init__(self, path: str, renew: Callable[[str, str], Awaitable[int]]) -> None:
        """Read nothing yet; `renew(path, refused)` returns one of the statuses of `token_refresh`."""
        self._path = path
        self._renew = renew
        self._lock = asyncio.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Any] = {}
        self._hopeless: tuple[int, int, int] | None = None  # the state of the file whose refresh token was refused
        self._retry = 0.0
        self._left: object = None
        self._known: set[bytes] = set()

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what a request needs, renewed before it ends."""
        token = await self._token()
        return [(b"authorization", b"Bearer " + token.encode())]

    def secrets(self) -> tuple[bytes, ...]:
        """Return what must never come back."""
        return tuple(sorted(self._known))

    async def after_refusal(self, token: str) -> str:
        """Return another token than this one, which the upstream did not take, or raise."""
        async with self._lock:
            self._read()
            if self._tokens.get("accessToken") == token and self._may_renew():
                await self._renewed(token)
        current = self._current()
        if current == token:
            raise NoCredential(f"the login of the host is no longer accepted; {RELOGIN}")
        return current

    def _current(self) -> str:
        token = self._tokens.get("accessToken")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise NoCredential(f"the login of the host is gone; {RELOGIN}")
        return token

    async def _token(self) -> str:
        self._read()
        if self._due():
            async with self._lock:
                self._read()
                if self._due():
                    await self._renewed("")
        return self._current()

    def _due(self) -> bool:
        expires = self._tokens.get("expiresAt")
        if not isinstance(expires, int | float) or self._hopeless == self._seen:
            return False
        return expires / 1000 < time.time() + login.MARGIN and self._may_renew()

    def _may_renew(self) -> bool:
        """Return whether this token is another than the last attempt has left, or that was a while ago."""
        return self._tokens.get("accessToken") != self._left or time.monotonic() >= self._retry

    async def _renewed(self, refused: str) -> None:
        """Renew once; whatever comes of it, leave that token alone for a minute."""
        if self._hopeless == self._seen:
            return
        status = await self._renew(self._path, refused)
        self._read()
        self._left, self._retry = self._tokens.get("accessToken"), time.monotonic() + _AGAIN
        if status == login.REFUSED:
            self._hopeless = self._seen

    def _read(self) -> None:
        """Take up what the file says, if it has changed."""
        import json

        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                seen = status.st_mtime_ns, status.st_size, status.st_ino
                if seen == self._seen:
                    return
                document = json.loads(file.read(1 << 20))
            tokens = document.get(claude.TOKENS) if isinstance(document, dict) else None
        except (OSError, ValueError, RecursionError):
            if self._tokens and os.path.exists(self._path):
                return  # in the midst of being written: what we have is good for now
            seen, tokens = None, None
        self._seen = seen
        self._tokens = tokens if isinstance(tokens, dict) else {}
        self._known.update(
            value.encode()
            for name in ("accessToken", "refreshToken")
            if isinstance(value := self._tokens.get(name), str) and len(value) >= 8
        )


# Renewing a login, in a process that outlives the session: a token that was spent must be written down.
#
# The broker ends with the launcher, at once. Whoever has sent a refresh token must not: the old one is worth nothing
# from then on, and the new one stands in an answer that nobody else will get.


_DESCRIPTOR = 10
_PROGRAM = (
    "import sys; sys.path.insert(0, {!r}); from claudebox.agent.renewal import renew_detached; "
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
        settings = syscalls.memory_file(
            network_records.pack((path, refused, self._config.login_proxy, self._config.trust))
        )
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
