"""The credential for the model: a key, a token, or a login that is renewed under the locks of the host's own client."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from claudebox.agent import login
from claudebox.agent.facts import tokens_of
from claudebox.base import syscalls
from claudebox.base.files import PACKAGE, Closing
from claudebox.network.records import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.network.records import ApiConfig, Credential


_PAUSE = 60.0  # seconds before a token that a renewal left in place is renewed again
RELOGIN = "log in again on the host: run `claude` there and `/login`"


class NoCredential(Exception):  # noqa: N818 - becomes a 401 answer
    """There is no credential that the upstream would accept; the text says why."""


class FixedCredential:
    """A key or token that never changes."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        rows = [(row.header.encode(), row.prefix.encode(), _encoded(row.value)) for row in credentials]
        self.secrets = tuple(value for _, _, value in rows)  # must never come back
        self._headers = [(name, prefix + value) for name, prefix, value in rows]

    async def headers(self) -> list[tuple[bytes, bytes]]:
        return self._headers


def _encoded(value: str) -> bytes:
    return value.encode("ascii", "surrogateescape")


class SharedLogin:
    """The login file that the host's client, other sandboxes and this one share."""

    def __init__(self, config: ApiConfig) -> None:
        self._config, self._path = config, config.login
        self._lock = asyncio.Lock()
        self._seen: tuple[int, int, int] | None = None  # mtime, size and inode of the file that was read
        self._tokens: dict[str, Any] = {}
        self._hopeless: tuple[int, int, int] | None = None  # the file whose refresh token was refused
        self._retry = 0.0
        self._left: object = None  # the token after the last renewal
        self.secrets: tuple[bytes, ...] = ()  # every token so far; must never come back

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header with the token, renewed if it is about to expire."""
        self._read()
        if self._is_due():
            async with self._lock:
                self._read()
                if self._is_due():
                    await self._renew("")
        return [(b"authorization", b"Bearer " + self._token().encode())]

    async def after_refusal(self, token: str) -> str:
        """Return another token than this one, which the upstream refused, or raise NoCredential."""
        async with self._lock:
            self._read()
            if self._tokens.get("accessToken") == token and self._may_renew():
                await self._renew(token)
        current = self._token()
        if current == token:
            raise NoCredential(f"the login of the host is no longer accepted; {RELOGIN}")
        return current

    def _token(self) -> str:
        token = self._tokens.get("accessToken")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise NoCredential(f"the login of the host is gone; {RELOGIN}")
        return token

    def _is_due(self) -> bool:
        expires = self._tokens.get("expiresAt")
        if not isinstance(expires, int | float) or self._hopeless == self._seen:
            return False
        return expires / 1000 < time.time() + login.MARGIN and self._may_renew()

    def _may_renew(self) -> bool:
        """Return whether the token changed since the last renewal, or that was a minute ago."""
        return self._tokens.get("accessToken") != self._left or time.monotonic() >= self._retry

    async def _renew(self, refused: str) -> None:
        if self._hopeless == self._seen:
            return
        status = await _run_renewal(self._config, refused)
        self._read()
        self._left, self._retry = self._tokens.get("accessToken"), time.monotonic() + _PAUSE
        if status == login.REFUSED:
            self._hopeless = self._seen

    def _read(self) -> None:
        """Read the file if it has changed."""
        import json

        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                seen = status.st_mtime_ns, status.st_size, status.st_ino
                if seen == self._seen:
                    return
                tokens = tokens_of(json.loads(file.read(1 << 20)))
        except (OSError, ValueError, RecursionError):
            if self._tokens and os.path.exists(self._path):
                return  # half-written: keep what we have
            seen, tokens = None, None
        self._seen = seen
        self._tokens = tokens or {}
        found = (self._tokens.get(name) for name in ("accessToken", "refreshToken"))
        new = (text.encode() for text in found if isinstance(text, str) and len(text) >= 8)
        self.secrets = tuple(sorted({*self.secrets, *new}))


_PROGRAM = (
    "import sys; sys.path.insert(0, {!r}); from claudebox.agent.renewal import renew_detached; "
    "sys.exit(renew_detached({}))"
)


async def _run_renewal(config: ApiConfig, refused: str) -> int:
    """Renew the login in a process that outlives the broker; return its status.

    The refresh token is worthless once it was sent: whoever sent it must live long enough to write down the new one.
    """
    from subprocess import DEVNULL, Popen

    with Closing(syscalls.memory_file(pack((config.login, refused, config.login_proxy, config.trust)))) as settings:
        try:
            process = Popen(  # noqa: ASYNC220 - forks and returns
                [sys.executable, "-IS", "-c", _PROGRAM.format(PACKAGE, settings)],
                stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env={}, pass_fds=(settings,), start_new_session=True,
            )  # fmt: skip
        except OSError:
            return login.UNREACHABLE
    code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
    return code if code in (login.DONE, login.REFUSED) else login.UNREACHABLE
