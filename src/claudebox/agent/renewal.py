"""A short-lived process on the host that renews a login and writes the copy for the sandboxes.

It outlives the session that started it: a refresh token is spent by being sent, so what comes for it is written down
before anything else is looked at. It takes the locks that the client takes, in the client's order, so that host and
sandboxes never spend each other's refresh token; what it writes to the login is what the client would write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
import urllib.request
from typing import Any
from urllib.parse import urlencode, urlsplit

from claudebox.agent import login
from claudebox.agent.facts import text_at, value_at
from claudebox.agent.kinds import find_kind
from claudebox.agent.login import DONE, REFUSED, UNREACHABLE, UNUSABLE
from claudebox.base import syscalls
from claudebox.base.files import OPEN_DIRECTORY, OPEN_LOCK, Closing, read_small, real_path, replace_file
from claudebox.broker import wire
from claudebox.network.facts import find_proxy, make_context
from claudebox.network.records import Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    import ssl
    from collections.abc import Iterator, Mapping

    from claudebox.agent.record import LoginFile
    from claudebox.network.facts import HostProxy


_LIMIT = 1 << 20
_STALE = 30.0
_PATIENCE = 20.0
_TIMEOUT = 15.0

_OVERALL = 40.0  # seconds for the whole answer
_TOUCH = 3.0  # seconds: the client takes a lock for abandoned that was not touched for ten
_SHORTEST_LIFE, _LONGEST_LIFE, _USUAL_LIFE = login.MARGIN + 60.0, 366 * 86400.0, 3600.0
_AGAIN = 60.0  # seconds in which a token that came from a renewal is not renewed because it was refused
_MARK = "user.claudebox.renewed"  # an attribute of the login: the digest of the token that a renewal brought
_PR_SET_DUMPABLE = 4


def renew_detached(descriptor: int) -> int:
    """Renew for a broker, which has written what to do into this file in memory; return the exit status."""
    _withdraw()
    with os.fdopen(descriptor, "rb") as file:
        source, refused, proxy, trust, kind = wire.unpack(file.read())
    try:
        return renew(source, kind, refused=refused, proxy=proxy, context=make_context(trust))
    except (OSError, ValueError):
        return UNREACHABLE


def _withdraw() -> None:
    """Let nobody look in, and let no signal that ends a session end this."""
    syscalls.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main(argv: list[str]) -> int:
    """Renew if due, and write the copy: `token_refresh AGENT CREDENTIALS LOGIN-DIRECTORY`."""
    name, source, directory = argv
    _withdraw()
    kind = find_kind(name).upstream.login
    assert kind is not None  # noqa: S101 - there is a login to copy
    descriptor = os.open(os.path.join(directory, "lock"), OPEN_LOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status = DONE
        if login.is_due(_read(source), kind):
            status = _renew_as_host(source, kind)
        return _copy(source, directory, kind) or status
    except (OSError, ValueError):
        return UNUSABLE
    finally:
        os.close(descriptor)


def _renew_as_host(source: str, kind: LoginFile) -> int:
    """Renew through the proxy of this machine, with whom its client believes."""
    try:
        context = host_context(os.environ)
    except OSError:  # a file is named that cannot be read
        return UNREACHABLE
    return renew(source, kind, proxy=_proxy(kind), context=context)


def host_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the settings for TLS with the authorities that the environment names, or else those of the system."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
    return make_context(Trust(*(environ.get(name, "") for name in names)))


def _proxy(kind: LoginFile) -> HostProxy | None:
    """Return the proxy of this machine towards those who renew a login."""
    proxy, _ = find_proxy(os.environ)
    return proxy if proxy is not None and proxy.serves(urlsplit(kind.url).hostname or "") else None


def _read(source: str) -> dict[str, Any]:
    document = json.loads(read_small(source, limit=_LIMIT, follow=True) or b"{}")
    return document if isinstance(document, dict) else {}


def _copy(source: str, directory: str, kind: LoginFile) -> int:
    """Write the access token alone, and note of which state of the login it is."""
    status = os.stat(source)
    document = _read(source)
    if not text_at(document, kind.access):
        return UNUSABLE
    part, _, refresh = kind.refresh.partition(".")
    expires = value_at(document, kind.expires) or 0
    shown = {part: {name: value for name, value in document[part].items() if name != refresh}}
    with (
        Closing(os.open(f"{directory}/store", OPEN_DIRECTORY)) as store,
        Closing(os.open(directory, OPEN_DIRECTORY)) as parent,
    ):
        replace_file(store, os.path.basename(kind.path), json.dumps(shown).encode())
        ends = int(expires) if isinstance(expires, int | float) else 0
        stamp = f"{status.st_mtime_ns} {status.st_size} {status.st_ino} {ends}\n"
        replace_file(parent, login.STAMP, stamp.encode())
    return DONE


def renew(
    source: str,
    kind: LoginFile,
    *,
    refused: str = "",
    proxy: HostProxy | None = None,
    context: ssl.SSLContext | None = None,
) -> int:
    """Renew a login that is due, or whose token was refused, unless somebody was faster."""
    path = real_path(source)
    places = {"directory": real_path(os.path.dirname(source)), "path": path}  # the file may be a link out of it
    hold = _flock if kind.flock else _lock
    with contextlib.ExitStack() as stack:
        for lock in kind.locks:
            stack.enter_context(hold(lock.format(**places)))
        document = _read(source)
        access, refresh = text_at(document, kind.access), text_at(document, kind.refresh)
        if not access or not (login.is_due(document, kind) or access == refused):  # somebody was faster
            return DONE
        if not login.is_due(document, kind) and _is_renewed(source, access):  # just now, and in vain
            return DONE
        if not refresh:
            return REFUSED
        directory, name = os.path.split(path)
        with Closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY)) as parent:
            _check_room(parent, name, len(json.dumps(document)))
            try:
                answer = _ask(refresh, kind, proxy, context)
            except urllib.error.HTTPError as error:
                return REFUSED if error.code in (400, 401, 403) else UNREACHABLE
            except (OSError, ValueError):
                return UNREACHABLE
            _take_up(document, kind, answer)
            if kind.write_lock:
                # Whoever holds this lock for long has lost it: what we have cannot be had again.
                lock = kind.write_lock.format(**places)
                stack.enter_context(hold(lock, patience=_TOUCH, regardless=True))
            replace_file(parent, name, json.dumps(document).encode())
            with contextlib.suppress(OSError):
                os.setxattr(source, _MARK, _digest(text_at(document, kind.access)))
    return DONE if isinstance(answer.get("access_token"), str) else UNREACHABLE


def _is_renewed(source: str, token: str) -> bool:
    """Return whether this token came from a renewal within the last minute, rather than from the user's own login."""
    if not 0 <= time.time() - os.stat(source).st_mtime < _AGAIN:
        return False
    try:
        return os.getxattr(source, _MARK) == _digest(token)
    except OSError as error:
        return error.errno != errno.ENODATA  # a file system without attributes: whatever was just written


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _check_room(parent: int, name: str, size: int) -> None:
    """Fail before a token is spent if a new one could not be written down."""
    trial = f".{name}.{os.getpid()}"
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        os.posix_fallocate(descriptor, 0, size + (1 << 14))
    finally:
        os.close(descriptor)
        os.unlink(trial, dir_fd=parent)


def _take_up(document: dict[str, Any], kind: LoginFile, answer: dict[str, Any]) -> None:
    """Take whatever is new, however odd the rest of the answer is."""
    for name, field in (("refresh_token", kind.refresh), ("access_token", kind.access), *kind.more):
        if isinstance(answer.get(name), str) and answer[name]:
            login.put_at(document, field, answer[name])
    if not isinstance(answer.get("access_token"), str):
        return
    life = answer.get("expires_in")
    if not isinstance(life, int | float) or isinstance(life, bool) or (isinstance(life, float) and math.isnan(life)):
        life = _USUAL_LIFE
    seconds = min(max(life, _SHORTEST_LIFE), _LONGEST_LIFE)
    if kind.expires:
        login.put_at(document, kind.expires, int((time.time() + seconds) * 1000))
    if kind.renewed:
        login.put_at(document, kind.renewed, time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()))


def _ask(token: str, kind: LoginFile, proxy: HostProxy | None, context: ssl.SSLContext | None) -> dict[str, Any]:
    body = {"grant_type": "refresh_token", "refresh_token": token, "client_id": kind.client}
    if kind.secret:
        body["client_secret"] = kind.secret
    form = "application/x-www-form-urlencoded" if kind.form else "application/json"
    content = urlencode(body) if kind.form else json.dumps(body)
    request = urllib.request.Request(kind.url, content.encode(), {"content-type": form})  # noqa: S310 - from a row
    if proxy is not None and proxy.login:
        request.add_unredirected_header("Proxy-Authorization", proxy.authorization.decode("ascii"))
    through = {"https": f"http://{proxy}"} if proxy is not None else {}
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(through)]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT) as response:
        answer = json.loads(_read_answer(response))
    if not isinstance(answer, dict):
        raise ValueError("no token in the answer")  # noqa: TRY004 - of the answer, not of a caller
    return answer


def _read_answer(response: http.client.HTTPResponse) -> bytes:
    """Return a small answer that comes within bounded time."""
    limit, data = time.monotonic() + _OVERALL, b""
    while piece := response.read1(_LIMIT):
        data += piece
        if len(data) > _LIMIT or time.monotonic() > limit:
            raise ValueError("the answer has no end")
    return data


@contextlib.contextmanager
def _lock(path: str, *, patience: float = _PATIENCE, regardless: bool = False) -> Iterator[None]:
    """Hold a lock as the client does: a directory, which counts as abandoned when it has not been touched for long."""
    deadline = time.monotonic() + patience
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
                if regardless:
                    yield
                    return
                raise TimeoutError(path) from None
            time.sleep(0.05)
    released = threading.Event()
    threading.Thread(target=_touch, args=(path, released), daemon=True).start()
    try:
        yield
    finally:
        released.set()
        with contextlib.suppress(OSError):
            os.rmdir(path)


@contextlib.contextmanager
def _flock(path: str, *, patience: float = _PATIENCE, regardless: bool = False) -> Iterator[None]:
    """Hold a lock on a file, which stays."""
    deadline = time.monotonic() + patience
    with Closing(os.open(path, OPEN_LOCK, 0o600)) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    if regardless:
                        break
                    raise TimeoutError(path) from None
                time.sleep(0.05)
        yield


def _touch(path: str, released: threading.Event) -> None:
    """Show that somebody still holds a lock."""
    while not released.wait(_TOUCH):
        with contextlib.suppress(OSError):
            os.utime(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
