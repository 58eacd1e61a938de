"""A short-lived process on the host that renews a login and writes the copy for the sandboxes.

It takes the locks that the client takes, in the client's order, so that host and sandboxes never spend each other's
refresh token; what it writes to the login is what the client would write.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from claudebox.files import read_small, replace_file
from claudebox.host_proxy import find_proxy
from claudebox.launch import token_copy
from claudebox.tables import agent

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from claudebox.host_proxy import HostProxy

_LIMIT = 1 << 20
_STALE = 30.0
_PATIENCE = 20.0
_TIMEOUT = 15.0

DONE, UNUSABLE, UNREACHABLE, REFUSED = 0, 1, 2, 3


def main(argv: list[str]) -> int:
    """Renew if due, and write the copy: `keeper CREDENTIALS LOGIN-DIRECTORY`."""
    source, directory = argv
    descriptor = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status = DONE
        tokens = _tokens(_read(source))
        if tokens is not None and _due(tokens):
            status = renew(source, proxy=_proxy())
        return _copy(source, directory) or status
    except (OSError, ValueError):
        return UNUSABLE
    finally:
        os.close(descriptor)


def _proxy() -> HostProxy | None:
    """Return the proxy of this machine towards those who renew a login."""
    proxy, _ = find_proxy(os.environ)
    return proxy if proxy is not None and proxy.serves(urlsplit(agent.OAUTH_TOKEN_URL).hostname or "") else None


def _read(source: str) -> dict[str, Any]:
    document = json.loads(read_small(source, limit=_LIMIT, follow=True) or b"{}")
    return document if isinstance(document, dict) else {}


def _tokens(document: dict[str, Any]) -> dict[str, Any] | None:
    tokens = document.get(agent.TOKENS)
    return tokens if isinstance(tokens, dict) and isinstance(tokens.get("accessToken"), str) else None


def _due(tokens: dict[str, Any]) -> bool:
    expires = tokens.get("expiresAt")
    return isinstance(expires, int | float) and expires / 1000 < time.time() + token_copy.MARGIN


def _copy(source: str, directory: str) -> int:
    """Write the access token alone, and note of which state of the login it is."""
    status = os.stat(source)
    tokens = _tokens(_read(source))
    if tokens is None:
        return UNUSABLE
    shown = {name: value for name, value in tokens.items() if name != "refreshToken"}
    expires = tokens.get("expiresAt") or 0
    store = os.open(os.path.join(directory, "store"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        replace_file(store, ".credentials.json", json.dumps({agent.TOKENS: shown}).encode())
        stamp = f"{status.st_mtime_ns} {status.st_size} {status.st_ino} {int(expires)}\n"
        replace_file(parent, token_copy.STAMP, stamp.encode())
    finally:
        os.close(store)
        os.close(parent)
    return DONE


def renew(
    source: str,
    *,
    refused: str = "",
    proxy: HostProxy | None = None,
    context: ssl.SSLContext | None = None,
) -> int:
    """Renew a login that is due, or whose token was refused, unless somebody was faster."""
    directory = os.path.dirname(os.path.realpath(source))
    with _lock(os.path.join(directory, ".oauth_refresh.lock")), _lock(f"{directory}.lock"):
        document = _read(source)
        tokens = _tokens(document)
        if tokens is None or not (_due(tokens) or tokens["accessToken"] == refused):  # somebody was faster
            return DONE
        if not isinstance(tokens.get("refreshToken"), str):
            return REFUSED
        try:
            answer = _ask(tokens["refreshToken"], proxy, context)
        except urllib.error.HTTPError as error:
            return REFUSED if error.code in (400, 401, 403) else UNREACHABLE
        except (OSError, ValueError):
            return UNREACHABLE
        tokens["accessToken"] = answer["access_token"]
        tokens["refreshToken"] = answer.get("refresh_token") or tokens["refreshToken"]
        tokens["expiresAt"] = int((time.time() + float(answer.get("expires_in", 3600))) * 1000)
        with _lock(os.path.join(directory, ".storage-write.lock")):
            parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                replace_file(parent, os.path.basename(os.path.realpath(source)), json.dumps(document).encode())
            finally:
                os.close(parent)
    return DONE


def _ask(refresh_token: str, proxy: HostProxy | None, context: ssl.SSLContext | None) -> dict[str, Any]:
    body = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": agent.OAUTH_CLIENT}
    request = urllib.request.Request(  # noqa: S310 - the address is a constant
        agent.OAUTH_TOKEN_URL, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    if proxy is not None and proxy.login:
        request.add_unredirected_header("Proxy-Authorization", proxy.authorization.decode("ascii"))
    through = {"https": f"http://{proxy}"} if proxy is not None else {}
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(through)]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT) as response:
        answer = json.loads(response.read(_LIMIT))
    if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
        raise ValueError("no token in the answer")  # noqa: TRY004 - of the answer, not of a caller
    return answer


@contextlib.contextmanager
def _lock(path: str) -> Iterator[None]:
    """Hold a lock as the client does: a directory, which counts as abandoned when it has not been touched for long."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            os.mkdir(path)
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _STALE:
                    os.rmdir(path)
                    continue
            if time.monotonic() > deadline:
                raise TimeoutError(path) from None
            time.sleep(0.05)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
