"""The service behind `[[secrets]]`: terminates TLS for the hosts of secrets, and inserts the values into requests.

Inside, /etc/hosts leads these names to addresses of the sandbox's loopback where we listen; in tier `allow` the
gateway hands connections over as well. A request must be for the host that the program connected to, in the server
name of TLS and in `Host`: a server of several sites would otherwise hand a value to another one. The real host is
verified with the certificate authorities that this machine trusts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import re
import ssl
import threading
import time
from pathlib import Path

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, write_all
from claudebox.broker import certificates
from claudebox.broker.certificates import upstream_context
from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.http.forward import LocalAnswer, Rules, forward
from claudebox.broker.http.stream import Pool, Stream, UpstreamFailure
from claudebox.broker.proxy.dial import Dialer, NoConnection, RangeWatch
from claudebox.broker.proxy.names import Admission, Denied
from claudebox.broker.proxy.sockets import Passage
from claudebox.broker.reception import Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from claudebox.broker.http.forward import Exchange
    from claudebox.broker.http.messages import BodyFilter, Request, Response
    from claudebox.broker.log import Log
    from claudebox.broker.main import Context
    from claudebox.broker.reception import Reception, Visitor
    from claudebox.network.records import InjectConfig
    from claudebox.settings.records import SecretRequest

    Headers = list[tuple[bytes, bytes]]


# Placeholders become values in header fields for credentials, and nowhere else: servers keep bodies, URLs and most
# other fields, and show them to others. Basic authentication is decoded and encoded again.

# Fields that hold a credential and nothing else; `headers` of a secret adds others.
CREDENTIAL_FIELDS = frozenset((
    b"api-key", b"apikey", b"authorization", b"circle-token", b"dd-api-key", b"dd-application-key", b"deploy-token",
    b"job-token", b"ocp-apim-subscription-key", b"private-token", b"x-access-token", b"x-api-key", b"x-api-token",
    b"x-auth-key", b"x-auth-token", b"x-consul-token", b"x-figma-token", b"x-gitlab-token", b"x-goog-api-key",
    b"x-jfrog-art-api", b"x-nuget-apikey", b"x-rapidapi-key", b"x-shopify-access-token", b"x-subscription-token",
    b"x-vault-token", b"xi-api-key",
))  # fmt: skip

# Names of fields, `_` written as `-`, that can carry a credential or override the method or path.
_TELLING = re.compile(
    rb"token|key|auth|secret|passw|cookie|credential|jwt|^(?:x-)?session(?:-id)?$"
    rb"|method|override|original|rewrite|forwarded|(?:^|-)(?:url|uri|path)(?:-|$)"
)
_HARMLESS = (b"idempotency-key", b"npm-auth-type")
_ALONE = rb"(?:[A-Za-z-]{1,20} +)?(?:[A-Za-z_.-]{1,40}=)?\"?(?:%s)\"?"  # a scheme, a name, a placeholder
# Shorter than a token, or a mail address.
_USER = re.compile(rb"[\w.+-]{0,19}|[\w.+-]{1,64}@[\w.-]{1,64}(?:/token)?")
_NO_PASSWORD = (b"", b"x", b"X", b"x-oauth-basic")  # passwords beside a token as user
_PAUSE = 60.0  # seconds before a value is read again


# `permit`: methods and paths, only where every server reads the path alike. A part of a path may have plain characters
# and encoded marks; not encoded letters, digits, `.`, `/`, `\\`, `%`, `;`, `?`, `#` or non-ASCII: servers decode at
# different moments, and some cut parameters off.
_PLAIN = re.compile(
    rb"(?!\.\.)(?:[0-9A-Za-z._~!$&'()*+,=:@-]|%(?:2[0-246-9A-Ca-c]|3[AC-Eac-e]|40|5[BDEbde]|60|7[B-Db-d]))+"
)


class Permits:
    """The rules of one secret, such as `GET /repos/acme/**`; GET includes HEAD."""

    def __init__(self, rules: Iterable[str]) -> None:
        pairs = (rule.encode("ascii").split(b" ", 1) for rule in rules)
        self._rules = [(method, path[1:].split(b"/")) for method, path in pairs]

    def allow(self, method: bytes, target: bytes) -> bool:
        path = target.partition(b"?")[0]
        if not path.startswith(b"/"):
            return False
        asked = (b"*", b"GET" if method == b"HEAD" else method)
        parts = path[1:].split(b"/")
        return any(own in asked and _fits(pattern, parts) for own, pattern in self._rules)


def _fits(pattern: list[bytes], parts: list[bytes]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted == b"**":
            return len(parts) > index and all(map(_is_plain, parts[index:]))
        if index >= len(parts) or not (_is_plain(parts[index]) if wanted == b"*" else parts[index] == wanted):
            return False
    return len(parts) == len(pattern)


def _is_plain(part: bytes) -> bool:
    return _PLAIN.fullmatch(part) is not None and part.replace(b"%20", b"").strip(b".") != b""


class Replacement:
    """A secret: its value, its placeholder, where it may go, and how to read it again."""

    def __init__(
        self, name: str, value: bytes, placeholder: bytes, hosts: frozenset[tuple[str, int]],
        fields: frozenset[bytes] = frozenset(), permits: Permits | None = None, read: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        """`fields` are header fields besides the usual ones; `read` returns the current value and may block."""
        self.name, self.value, self.placeholder, self.hosts, self.fields = name, value, placeholder, hosts, fields
        self.permits = permits
        self.known: tuple[bytes, ...] = (value,)  # with former values, which must not come back either
        self._read, self._retry = read, 0.0
        self._lock = asyncio.Lock()

    async def renew(self, refused: bytes) -> bool:
        """Return whether there is another value than this refused one; read it at most once a minute."""
        async with self._lock:
            if self.value == refused and self._read is not None and time.monotonic() >= self._retry:
                try:
                    found = await asyncio.get_running_loop().run_in_executor(None, self._read)
                    self.value = found.encode("ascii")
                    self.known = tuple(dict.fromkeys((*self.known, self.value)))
                except (ClaudeboxError, OSError):  # the refusal of the host is passed on
                    pass
                self._retry = time.monotonic() + _PAUSE
        return self.value != refused


class Substitution:
    """Inserts the secrets for one host into requests, and finds them in responses."""

    def __init__(self, secrets: Iterable[Replacement], host: str, port: int) -> None:
        self._secrets = [secret for secret in secrets if (host, port) in secret.hosts]
        self._host = host
        self._found: tuple[object, Recognizer] = (None, Recognizer(()))
        self.recognizer.prepare()

    @property
    def recognizer(self) -> Recognizer:
        """Return what finds every value used so far."""
        pairs = tuple((value, secret.placeholder) for secret in self._secrets for value in secret.known)
        if self._found[0] != pairs:
            self._found = pairs, Recognizer(pairs)
        return self._found[1]

    async def renew(self, sent: Mapping[str, bytes]) -> bool:
        """Return whether any secret that was sent has another value now."""
        found = [await secret.renew(sent[secret.name]) for secret in self._secrets if secret.name in sent]
        return any(found)

    def values(self, names: Iterable[str]) -> dict[str, bytes]:
        return {secret.name: secret.value for secret in self._secrets if secret.name in names}

    def refusal(self, request: Request, filled: Headers, used: set[str]) -> str:
        """Return why `permit` forbids a request that uses these secrets, or "".

        If every secret of a host has `permit`, so has the host: no other credential passes, and a request without one
        must be permitted by one of them too.
        """
        named = [secret for secret in self._secrets if secret.name in used] or self._secrets
        fits = [secret.permits is None or secret.permits.allow(request.method, request.target) for secret in named]
        if not (all(fits) if used else any(fits)):
            names = " and ".join(secret.name for secret in named)
            what = f"this method and path of {self._host}"
            return f"`permit` of {names} does not allow {what}; only the user can change that"
        if any(secret.permits is None for secret in named):
            return ""
        for (field, before), (_, after) in zip(request.headers, filled, strict=True):
            if not (self._is_alone(before) if before != after else self._is_harmless(field)):
                shown = field.decode("ascii")
                return f"the field `{shown}` does not pass as it is: secrets of {self._host} have `permit`"
        return ""

    def _is_harmless(self, field: bytes) -> bool:
        """Return whether a field can neither be a credential nor override method or path; servers read `_` as `-`."""
        name = field.replace(b"_", b"-")
        own = {own.replace(b"_", b"-") for secret in self._secrets for own in secret.fields}
        return name in _HARMLESS or not (_TELLING.search(name) or name in own or name in CREDENTIAL_FIELDS)

    def _is_alone(self, text: bytes) -> bool:
        """Return whether a field has nothing besides a placeholder that could be another credential."""
        placeholders = [secret.placeholder for secret in self._secrets]
        scheme, _, rest = text.partition(b" ")
        inner = _decode_base64(rest) if scheme.lower() == b"basic" else None
        if inner is None:
            return re.fullmatch(_ALONE % b"|".join(map(re.escape, placeholders)), text) is not None
        user, _, password = inner.partition(b":")
        if password in placeholders:
            return user in placeholders or _USER.fullmatch(user) is not None
        return user in placeholders and password in _NO_PASSWORD

    def insert(self, headers: Headers) -> tuple[Headers, set[str]]:
        """Return the headers with values for placeholders, and the names of the secrets that were used."""
        used: set[str] = set()
        return [(name, self._inserted(name.lower(), value, used)) for name, value in headers], used

    def _inserted(self, field: bytes, text: bytes, used: set[str]) -> bytes:
        secrets = [secret for secret in self._secrets if field in CREDENTIAL_FIELDS or field in secret.fields]
        scheme, _, rest = text.partition(b" ")
        if secrets and scheme.lower() == b"basic":
            inner = _decode_base64(rest)
            if inner is not None:
                put = _replaced(inner, secrets, used)
                return text if put == inner else scheme + b" " + base64.b64encode(put)
        return _replaced(text, secrets, used)


def _replaced(text: bytes, secrets: list[Replacement], used: set[str]) -> bytes:
    for secret in secrets:
        if secret.placeholder in text:
            text = text.replace(secret.placeholder, secret.value)
            used.add(secret.name)
    return text


def _decode_base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return None


_ECHOING = (b"TRACE", b"TRACK")
# They ask for partial or encoded responses; only complete plain text can be cleaned.
_CHOOSING = (b"accept-charset", b"accept-encoding", b"if-range", b"range")
_HANDSHAKE = 20.0
_MOST, _DESCRIPTORS = 128, 2  # connections to all hosts of secrets; two ends each


class Interceptor:
    """Serves connections to the hosts of secrets."""

    def __init__(
        self, secrets: Iterable[Replacement], contexts: dict[str, ssl.SSLContext], bundle: str, dialer: Dialer,
        log: Log,
    ) -> None:  # fmt: skip
        """`contexts` are for TLS as each of the hosts, `bundle` has the authorities that this machine trusts."""
        self._contexts, self._dialer, self._log = contexts, dialer, log
        self._room = Room(_MOST, _DESCRIPTORS)
        self._upstream = upstream_context(bundle)
        secrets = tuple(secrets)
        places = {place for secret in secrets for place in secret.hosts}
        self._substitutions = {place: Substitution(secrets, *place) for place in places}
        self._pools = {place: Pool(functools.partial(self._connect, *place)) for place in places}

    def find_handler(self, host: str, port: int) -> Callable[[Visitor, str, int], Awaitable[None]] | None:
        """Return what takes over connections to this host and port, of which nothing was read yet, if it is ours."""
        return self._take_over if (host, port) in self._pools else None

    async def _take_over(self, caller: Visitor, host: str, port: int) -> None:
        await caller.move(self._room)
        caller.expect()
        await self._serve(caller, host, port)

    def serve(self, reception: Reception, listener: socket.socket, host: str, port: int) -> None:
        """Accept callers on the address that stands for a host inside."""
        reception.listen(listener, self._room, functools.partial(self._serve, host=host, port=port))

    async def _serve(self, caller: Visitor, host: str, port: int) -> None:
        rules = _Rules(self._substitutions[host, port], self._log, host, port)
        with contextlib.closing(await Stream.attend(caller, self._contexts[host], _HANDSHAKE)) as stream:
            await forward(stream, self._pools[host, port], rules)

    async def _connect(self, host: str, port: int) -> Stream:
        try:
            channel = await self._dialer.dial(host, port)
        except (Denied, NoConnection, OSError) as error:
            raise UpstreamFailure(f"no connection to `{host}`: {error}") from None
        try:
            _, stream = await asyncio.get_running_loop().create_connection(
                Stream, sock=channel, ssl=self._upstream, server_hostname=host, ssl_handshake_timeout=_HANDSHAKE
            )
        except ssl.SSLCertVerificationError as error:
            raise UpstreamFailure(
                f"the certificate of `{host}` is not one that this machine trusts ({error.verify_message}); "
                "nothing was sent"
            ) from None
        except (OSError, ssl.SSLError):
            raise UpstreamFailure(f"`{host}` does not speak TLS as it should") from None
        return stream

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


class _Rules(Rules):
    """Requests to one host, with values for placeholders."""

    def __init__(self, substitution: Substitution, log: Log, host: str, port: int) -> None:
        super().__init__(log, "secrets", host, port)
        self._substitution = substitution
        self._names = {f"{host}:{port}", *((host,) if port == 443 else ())}
        self._sent: dict[str, bytes] = {}

    async def request(self, request: Request, _exchange: Exchange) -> Request | LocalAnswer:
        self.used, self._sent = (), {}
        named = [value.decode("latin-1").strip().lower() for name, value in request.headers if name == b"host"]
        if len(named) != 1 or named[0] not in self._names:
            return LocalAnswer(
                421, "other-host", f"claudebox: this connection is for {self._host}, and for no other host."
            )
        if not request.target.startswith(b"/") and request.target != b"*":
            return LocalAnswer(400, "not-a-path", "claudebox: this is not a proxy; ask for a path.")
        if request.method in _ECHOING:
            return LocalAnswer(405, "echo", "claudebox: this method does not pass: it would echo the value.")
        self._asked = request
        return self._filled(request)

    def _filled(self, request: Request) -> Request | LocalAnswer:
        headers, used = self._substitution.insert(list(request.headers))
        refusal = self._substitution.refusal(request, headers, used)
        if refusal:
            return LocalAnswer(403, "permit", f"claudebox: {refusal}.")
        self.used, self._sent = used, self._substitution.values(used)
        kept = [pair for pair in headers if pair[0] not in _CHOOSING]
        return request.replace(headers=(*kept, (b"accept-encoding", b"identity")))

    async def again(self, _request: Request, response: Response) -> Request | LocalAnswer | None:
        """Read a refused value again, and ask once more with the new one."""
        if response.status != 401 or not await self._substitution.renew(self._sent):
            return None
        return self._filled(self._asked)

    def response(self, response: Response) -> Response:
        return self._substitution.recognizer.clean_head(response)

    def filter(self, _response: Response) -> BodyFilter:
        return Cleaner(lambda: self._substitution.recognizer)


AUTHORITY, NAMED = "authority", "named"  # files of bwrap: all authorities, and the added ones only


async def open(config: InjectConfig, context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    secrets = [
        Replacement(
            row.env, row.value.encode("ascii"), row.placeholder.encode("ascii"), frozenset(row.hosts),
            frozenset(field.encode("ascii") for field in row.headers), Permits(row.permit) if row.permit else None,
            functools.partial(_read_again, config, row) if row.source.startswith(("command:", "file:")) else None,
        )
        for row in config.secrets
    ]  # fmt: skip
    watch = RangeWatch(config.ranges)
    watch.start()
    dialer = Dialer(watch.ranges, config.proxy)
    trusted, contexts = await certificates.obtain(host for secret in secrets for host, _ in secret.hosts)
    own = config.authorities or _bundle(config.bundle)
    with Closing(syscalls.memory_file(own)) as bundle:
        place = f"/proc/self/fd/{bundle}" if own else ""
        interceptor = Interceptor(secrets, contexts, place, dialer, context.log)
    context.interceptor = interceptor
    for name, others in ((AUTHORITY, config.inside or own), (NAMED, config.named)):
        for descriptor in context.files(name):
            threading.Thread(target=_write, args=(descriptor, others + trusted), daemon=True).start()
    record = functools.partial(context.log.record, service="secrets")

    async def pass_on(caller: Visitor, host: str, port: int) -> None:
        """Carry a connection to another port of these hosts, which /etc/hosts leads to us too."""
        caller.heard()
        passage = Passage(record, Admission(host, port, "passage"))
        with contextlib.suppress(Denied, NoConnection):
            await passage.dial(dialer.dial(host, port))
            await passage.carry(caller)

    room = Room(_MOST, _DESCRIPTORS)
    for name, host, port in config.listeners:
        listener = await context.wait_listener(name)
        if interceptor.find_handler(host, port):
            interceptor.serve(context.reception, listener, host, port)
        else:
            context.reception.listen(listener, room, functools.partial(pass_on, host=host, port=port))

    async def close() -> None:
        watch.close()
        interceptor.close()

    return close


def _read_again(config: InjectConfig, row: SecretRequest) -> str:
    """Return the current value of a secret; runs in a thread."""
    from claudebox.broker import secrets as broker_secrets
    from claudebox.host import programs

    environ = dict(config.environ)
    path = programs.search_path(environ, config.workdir)
    obtain = broker_secrets.source_reader(environ, lambda name: programs.find_tool(name, path), home=config.home)
    value = obtain(row.source, row.origin)
    broker_secrets.check_value(value, row)
    return value


def _bundle(path: str) -> bytes:
    try:
        return Path(path).read_bytes().rstrip(b"\n") + b"\n" if path else b""
    except OSError:
        raise OSError(f"the certificate authorities of this machine, in {path}, cannot be read") from None


def _write(descriptor: int, text: bytes) -> None:
    """Write a file for bwrap, which reads it while it builds the sandbox."""
    with Closing(descriptor):
        try:
            write_all(descriptor, text)
        except OSError:  # bwrap has ended; the launcher reports why
            pass
