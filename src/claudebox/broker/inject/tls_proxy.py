"""Answering for the hosts of secrets: TLS ends here, values are put in, and the real host is spoken to over TLS again.

What a program sends must be meant for the host that it connected to, in the name of TLS and in `Host` alike: a server
behind which several sites live would otherwise hand a value to another one. The real host is verified as any program
of this machine would verify it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

from claudebox.broker.http.forward import forward
from claudebox.broker.http.recognition import Cleaner
from claudebox.broker.http.rules import LocalAnswer, Rules, UpstreamFailure
from claudebox.broker.http.stream import Pool, Stream
from claudebox.broker.inject.substitute import Substitution
from claudebox.broker.inject.tls import upstream_context
from claudebox.broker.proxy import acl
from claudebox.broker.proxy import dial as dialing
from claudebox.broker.reception import Room

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Request, Response
    from claudebox.broker.http.rules import RequestBody
    from claudebox.broker.inject.substitute import Replacement
    from claudebox.broker.log import Log
    from claudebox.broker.reception import Reception, Visitor

    Dial = Callable[[], Awaitable[socket.socket]]

_ECHOING = (b"TRACE", b"TRACK")
# What asks for another text than the plain and whole one: only that can be read, and so be cleaned.
_CHOOSING = (b"accept-charset", b"accept-encoding", b"if-range", b"range")
_HANDSHAKE = 20.0
_MOST, _DESCRIPTORS = 128, 2  # connections at a time to all hosts of secrets; two ends each


class Interceptor:
    """Serves connections that are meant for the hosts of secrets."""

    def __init__(
        self,
        secrets: Iterable[Replacement],
        contexts: dict[str, ssl.SSLContext],
        bundle: str,
        dialer: dialing.Dialer,
        log: Log,
        reception: Reception,
    ) -> None:
        """Take the secrets, the settings to answer as each of their hosts, and whom this machine trusts."""
        self._secrets, self._contexts = tuple(secrets), contexts
        self._places = frozenset(place for secret in self._secrets for place in secret.hosts)
        self._dialer, self._log, self._reception = dialer, log, reception
        self._room = Room(_MOST, _DESCRIPTORS)
        self._upstream = upstream_context(bundle)
        self._substitutions = {place: Substitution(self._secrets, *place) for place in self._places}
        self._pools = {place: Pool(self._connector(*place)) for place in self._places}

    def claims(self, host: str, port: int) -> bool:
        """Return whether a connection to this host and port is ours."""
        return (host, port) in self._places

    def intercept(self, host: str, port: int) -> Callable[[Visitor, str, int, Dial], Awaitable[None]] | None:
        """Return who takes a connection over, if it is ours."""
        return self.handle if self.claims(host, port) else None

    def serve(self, listener: socket.socket, host: str, port: int) -> None:
        """Take in whoever connects to the address that stands for a host inside."""

        async def attend(caller: Visitor) -> None:
            await self._serve(caller, host, port, self._pools[host, port])

        self._reception.listen(listener, self._room, attend)

    async def handle(self, caller: Visitor, host: str, port: int, dial: Dial) -> None:
        """Take over a connection of which nothing was read yet; `dial` reaches the host the first time."""
        await caller.move(self._room)
        pool = Pool(self._connector(host, port, dial))
        try:
            await self._serve(caller, host, port, pool)
        finally:
            pool.close()

    async def _serve(self, caller: Visitor, host: str, port: int, pool: Pool) -> None:
        caller.expect()
        rules = _Rules(self._substitutions[host, port], self._log, host, port)
        with contextlib.closing(await Stream.attend(caller, self._contexts[host], _HANDSHAKE)) as stream:
            await forward(stream, pool, rules)

    def _connector(self, host: str, port: int, dial: Dial | None = None) -> Callable[[], Awaitable[Stream]]:
        first = [dial] if dial is not None else []

        async def connect() -> Stream:
            try:
                channel = await (first.pop()() if first else self._dialer.dial(host, port))
            except acl.Denied as refusal:
                raise UpstreamFailure(refusal.text) from None
            except (dialing.NoConnection, OSError) as error:
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

        return connect

    def close(self) -> None:
        """End what nobody uses."""
        for pool in self._pools.values():
            pool.close()


class _Rules(Rules):
    """What passes on one connection."""

    def __init__(self, substitution: Substitution, log: Log, host: str, port: int) -> None:
        super().__init__(log, "secrets", host, port)
        self._substitution = substitution
        self._names = {f"{host}:{port}", *((host,) if port == 443 else ())}
        self._sent: dict[str, bytes] = {}

    async def request(self, request: Request, _body: RequestBody) -> Request | LocalAnswer:
        """Put values in, if the request is for this host."""
        self.used, self._sent = (), {}
        named = [value.decode("latin-1").strip().lower() for name, value in request.headers if name == b"host"]
        if len(named) != 1 or named[0] not in self._names:
            return LocalAnswer(
                421, "other-host", f"claudebox: this connection is for {self._host}, and for no other host."
            )
        if not request.target.startswith(b"/") and request.target != b"*":
            return LocalAnswer(400, "not-a-path", "claudebox: this is not a proxy; ask for a path.")
        if request.method in _ECHOING:
            return LocalAnswer(405, "echo", "claudebox: this method does not pass, since it would give the value back.")
        self._asked = request
        return self._filled(request)

    def _filled(self, request: Request) -> Request | LocalAnswer:
        headers, used = self._substitution.insert(list(request.headers))
        refusal = self._substitution.refusal(request, headers, used)
        if refusal:
            return LocalAnswer(403, "permit", f"claudebox: {refusal}.")
        self.used, self._sent = used, self._substitution.values(used)
        kept = [pair for pair in headers if pair[0] not in _CHOOSING]
        return request.with_headers((*kept, (b"accept-encoding", b"identity")))

    async def again(self, _request: Request, response: Response) -> Request | LocalAnswer | None:
        """Read a value again that was not taken, and ask once more with another one."""
        if response.status != 401 or not await self._substitution.renew(self._sent):
            return None
        return self._filled(self._asked)

    def response(self, response: Response) -> Response:
        """Take values out of the head."""
        return self._substitution.recognizer.clean_head(response)

    def filter(self, _response: Response) -> BodyFilter:
        """Take values out of the body."""
        return Cleaner(lambda: self._substitution.recognizer)
