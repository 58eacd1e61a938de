"""Which login the client inside uses, and keeping it fresh without letting it in.

The refresh token never enters a sandbox. Inside there is a read-only copy of the access token; when it nears its end,
a `keeper` process on the host renews it under the host client's own locks, and the client inside takes up the new copy
by itself. So neither can the host's client be logged out by a sandbox (I01), nor an agent put another account in its
place (I02). Only where there is no login at all can one be made inside; keeping it for other projects is asked for.
"""

from __future__ import annotations

import os
import sys
import time

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.tables import agent
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.config.model import Policy
    from claudebox.state import Instance

MARGIN = 600.0  # seconds before its end at which a token is renewed
STAMP = "stamp"
_LIMIT = 1 << 20
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.-")
_POLL = 60.0
_PATIENCE = 40.0  # longer than a keeper that works ever takes
_KEEPER = (
    "import sys; sys.path.insert(0, {!r}); from claudebox.launch.token_refresh import main; "
    "sys.exit(main(sys.argv[1:]))"
)


class Login(Value):
    """Where the login comes from."""

    source: Literal["claudebox", "host", "none"] = "none"
    path: str = ""  # the file with the tokens, never mounted
    usable: bool = False  # it was read, and there are tokens in it
    traits: tuple[tuple[str, str], ...] = ()  # what else it says, as variables of the client

    @property
    def known(self) -> bool:
        """Tell whether there is one."""
        return self.source != "none"


def find(home: str, instance: Instance) -> Login:
    """Return the login to use: claudebox's own before that of the host's client."""
    own = f"{instance.login}/credentials.json"
    if os.path.isfile(own):
        return Login("claudebox", own)
    host = f"{home}/.claude/.credentials.json"
    if os.path.isfile(host):
        return Login("host", host)
    return Login()


def read(login: Login) -> Login:
    """Return the same login with what it says of itself; the tokens are not kept."""
    document = syscalls.parse_json(read_small(login.path, limit=_LIMIT, follow=True) or b"")
    tokens = document.get(agent.TOKENS) if isinstance(document, dict) else None
    if not isinstance(tokens, dict) or not isinstance(tokens.get("accessToken"), str):
        return login
    found = []
    for field, variable in agent.LOGIN_TRAITS:
        value = tokens.get(field)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if words and all(word and set(word) <= _PLAIN for word in words):
            found.append((variable, " ".join(words)))
    return login.replace(usable=True, traits=tuple(found))


def find_credential(environ: dict[str, str], login: Login) -> str:
    """Return the credential that the client would use: the name of a variable, or `login`, or nothing."""
    named = (name for name in agent.CREDENTIALS if environ.get(name))
    return next(named, "login" if login.usable else "")


def for_broker(
    policy: Policy, environ: dict[str, str], login: Login, *, certificates: bool = False
) -> tuple[Login, tuple[str, ...] | ClaudeboxError]:
    """Look at what a broker would hold, and for the libraries that it would need."""
    if policy.brokered and login.known and not find_credential(environ, login):
        login = read(login)
    if not (policy.brokered and find_credential(environ, login)) and not certificates:
        return login, ()
    from claudebox.facts import broker_libraries  # noqa: PLC0415 - only where there is something to hold

    try:
        return login, broker_libraries.find(
            *(broker_libraries.HTTP, broker_libraries.CERTIFICATES)[: 2 if certificates else 1]
        )
    except ClaudeboxError as problem:
        return login, problem


class Freshness:
    """Keeps the copy inside as fresh as the login is; called now and then by whoever waits for the sandbox."""

    def __init__(self, login: Login, instance: Instance, environ: dict[str, str]) -> None:
        self._login = login
        self._directory = instance.login
        self._environ = environ
        self._keeper = 0
        self._retry = 0.0

    def bring(self) -> None:
        """Make sure, before a launch, that the copy is there and usable; without a network it stays as it is."""
        if not self._due():
            return
        keeper, limit = self._start(), time.monotonic() + _PATIENCE
        while not os.waitpid(keeper, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                os.kill(keeper, 9)
                os.waitpid(keeper, 0)
                return
            time.sleep(0.005)

    def look(self) -> float:
        """Renew the copy in the background if that is due; return when to look again."""
        if self._keeper and os.waitpid(self._keeper, os.WNOHANG)[0]:
            self._keeper = 0
        if not self._keeper and time.monotonic() > self._retry and self._due():
            self._keeper = self._start()
            self._retry = time.monotonic() + _POLL
        return _POLL

    def _due(self) -> bool:
        try:
            status = os.stat(self._login.path)
        except OSError:
            return False
        stamp = (read_small(f"{self._directory}/{STAMP}") or b"").split()
        if stamp[:3] != [b"%d" % status.st_mtime_ns, b"%d" % status.st_size, b"%d" % status.st_ino]:
            return True
        return len(stamp) == 4 and int(stamp[3]) / 1000 < time.time() + MARGIN

    def _start(self) -> int:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        arguments = ["-IS", "-c", _KEEPER.format(package), self._login.path, self._directory]
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, *arguments],
                self._environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, nothing, descriptor) for descriptor in (0, 1, 2)],
                setsigmask=[],
            )
        finally:
            os.close(nothing)
