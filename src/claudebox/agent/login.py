"""The copy of an access token that a sandbox sees with `--set auth=passthrough`, kept as fresh as the login is.

The refresh token never enters a sandbox. Inside there is a read-only copy of the access token; when it nears its end,
a `token_refresh` process on the host renews it under the host client's own locks, and the client inside takes up the
new copy by itself. So neither can the host's client be logged out by a sandbox (I01), nor an agent put another account
in its place (I02). Only where there is no login at all can one be made inside; keeping it for other projects is asked
for.
"""

from __future__ import annotations

import os
import sys
import time

from claudebox.agent.facts import text_at, value_at
from claudebox.base import process, syscalls
from claudebox.base.files import PACKAGE, Closing, read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from claudebox.agent.facts import Login
    from claudebox.agent.record import LoginFile
    from claudebox.base.state import Instance


MARGIN = 600.0  # seconds before its end at which a token is renewed
STAMP = "stamp"
DONE, UNUSABLE, UNREACHABLE, REFUSED = 0, 1, 2, 3  # statuses of a refresher
_POLL = 60.0
_PATIENCE = 40.0  # longer than a refresher that works ever takes
_REFRESHER = (
    "import sys; sys.path.insert(0, {!r}); from claudebox.agent.renewal import main; sys.exit(main(sys.argv[1:]))"
)


def put_at(document: dict[str, Any], field: str, value: object) -> None:
    """Set a field, and make the objects around it."""
    *above, name = field.split(".")
    for part in above:
        inner = document.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        document = inner
    document[name] = value


def is_due(document: object, kind: LoginFile) -> bool:
    """Return whether a login is about to end."""
    expires = value_at(document, kind.expires) if kind.expires else _end_of(text_at(document, kind.access))
    return isinstance(expires, int | float) and expires / 1000 < time.time() + MARGIN


def _end_of(token: str) -> object:
    """Return when a JSON web token says that it ends, in milliseconds."""
    import binascii

    part = token.split(".")[1:2]
    try:
        claims = syscalls.parse_json(binascii.a2b_base64(f"{part[0]}===".translate({45: 43, 95: 47})))
    except (IndexError, ValueError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return end * 1000 if isinstance(end, int | float) else None


class LoginCopy:
    """The copy of the login that the sandbox sees, renewed before it expires; `look` is called while it runs."""

    def __init__(self, agent: str, login: Login, instance: Instance, environ: dict[str, str]) -> None:
        self._agent, self._login = agent, login
        self._directory = instance.login
        self._environ = environ
        self._refresher = 0
        self._retry = 0.0

    def ensure_usable(self) -> None:
        """Renew the copy before a launch if that is due; without a network it stays as it is."""
        if not self._due():
            return
        refresher, limit = self._start(), time.monotonic() + _PATIENCE
        while process.poll(refresher) is None:
            if time.monotonic() > limit:  # it may have spent a token, and goes on
                self._refresher = refresher
                return
            time.sleep(0.005)

    def look(self) -> float:
        """Renew the copy in the background if that is due; return when to look again."""
        if self._refresher and process.poll(self._refresher) is not None:
            self._refresher = 0
        if not self._refresher and time.monotonic() > self._retry and self._due():
            self._refresher = self._start()
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
        arguments = ["-IS", "-c", _REFRESHER.format(PACKAGE), self._agent, self._login.path, self._directory]
        with Closing(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)) as nothing:
            child = os.posix_spawn(
                sys.executable,
                [sys.executable, *arguments],
                self._environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, nothing, descriptor) for descriptor in (0, 1, 2)],
                setsid=True,  # what ends the session must not end it
                setsigmask=[],
            )
        return process.register(child)
