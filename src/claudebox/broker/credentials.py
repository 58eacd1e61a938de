"""The credential for the model: a key, a token, or a login that is renewed under the locks of the host's own client."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from claudebox.agent import login
from claudebox.agent.facts import read_field, text_at
from claudebox.base import syscalls
from claudebox.base.files import PACKAGE, Closing
from claudebox.broker.secrets import is_guessable
from claudebox.broker.wire import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.network.records import ApiConfig, Credential


_PAUSE = 60.0  # seconds before a token that a renewal left in place is renewed again
_SHORTEST = 8  # characters of a token


class NoCredential(Exception):  # noqa: N818 - becomes a 401 answer
    """There is no credential that the upstream would accept; the text says why."""


class FixedCredential:
    """A key or token that never changes, from a variable or a file of the agent on the host."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        rows = [(row, _value(row)) for row in credentials]
        # Must never come back; but a word that a service on this machine takes for a key is in ordinary text, too.
        self.secrets = tuple(value for _, value in rows if not is_guessable(value.decode("ascii", "surrogateescape")))
        self._headers = [(row.header.encode(), row.prefix.encode() + value) for row, value in rows if value]
        self._unusable = next((row.name for row, value in rows if not value), "")

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with the values."""
        if self._unusable:
            raise NoCredential(f"the key in {self._unusable} on the host is gone, or no key: set it there")
        return self._headers


def _value(credential: Credential) -> bytes:
    """Return the value, b"" if the file does not have it any more."""
    value = credential.value
    if credential.file:
        value = read_field(credential.file, credential.field).strip()
        value = value if value.isascii() and value.isprintable() else ""
    return value.encode("ascii", "surrogateescape")


class SharedLogin:
    """The login file that the host's client, other sandboxes and this one share."""

    def __init__(self, config: ApiConfig) -> None:
        assert config.login_kind is not None  # noqa: S101 - there is a login
        self._config, self._path, self._kind = config, config.login, config.login_kind
        self._lock = asyncio.Lock()
        self._seen: tuple[int, int, int] | None = None  # mtime, size and inode of the file that was read
        self._document: object = None
        self._hopeless: tuple[int, int, int] | None = None  # the file whose refresh token was refused
        self._retry = 0.0
        self._left = ""  # the token after the last renewal
        self.secrets: tuple[bytes, ...] = ()  # every token so far; must never come back

    @property
    def _access(self) -> str:
        return text_at(self._document, self._kind.access)

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header with the token, renewed if it is about to expire."""
        self._read()
        if self._is_due():
            async with self._lock:
                self._read()
                if self._is_due():
                    await self._renew("")
        fields = ((name, text_at(self._document, field)) for field, name in self._kind.headers)
        told = [(name.encode(), text.encode()) for name, text in fields if text.isascii() and text.isprintable()]
        return [*told, (b"authorization", b"Bearer " + self._token().encode())]

    async def after_refusal(self, token: str) -> str:
        """Return another token than this one, which the upstream refused, or raise NoCredential."""
        async with self._lock:
            self._read()
            if self._access == token and self._may_renew():
                await self._renew(token)
        current = self._token()
        if current == token:
            raise NoCredential(f"the login of the host is no longer accepted; {self._relogin}")
        return current

    @property
    def _relogin(self) -> str:
        return f"log in again on the host: {self._kind.again}"

    def _token(self) -> str:
        token = self._access
        if not token or not token.isascii() or not token.isprintable():
            raise NoCredential(f"the login of the host is gone; {self._relogin}")
        return token

    def _is_due(self) -> bool:
        return self._hopeless != self._seen and login.is_due(self._document, self._kind) and self._may_renew()

    def _may_renew(self) -> bool:
        """Return whether the token changed since the last renewal, or that was a minute ago."""
        return self._access != self._left or time.monotonic() >= self._retry

    async def _renew(self, refused: str) -> None:
        if self._hopeless == self._seen:
            return
        status = await _run_renewal(self._config, refused)
        self._read()
        self._left, self._retry = self._access, time.monotonic() + _PAUSE
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
                document = json.loads(file.read(1 << 20))
        except (OSError, ValueError, RecursionError):
            if self._document and os.path.exists(self._path):
                return  # half-written: keep what we have
            seen, document = None, None
        self._seen, self._document = seen, document
        fields = (self._kind.access, self._kind.refresh, *(field for _, field in self._kind.more))
        found = (text_at(document, field) for field in fields)
        new = (text.encode() for text in found if len(text) >= _SHORTEST)
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

    with Closing(
        syscalls.memory_file(pack((config.login, refused, config.login_proxy, config.trust, config.login_kind)))
    ) as settings:
        try:
            process = Popen(  # noqa: ASYNC220 - forks and returns
                [sys.executable, "-IS", "-c", _PROGRAM.format(PACKAGE, settings)],
                stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env={}, pass_fds=(settings,), start_new_session=True,
            )  # fmt: skip
        except OSError:
            return login.UNREACHABLE
    code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
    return code if code in (login.DONE, login.REFUSED) else login.UNREACHABLE
