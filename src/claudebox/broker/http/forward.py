"""HTTP/1.1 from a program inside to an upstream and back.

`Rules` decide what may pass and how. Bodies are streamed; only the beginning of a request's body is kept until the
response has begun, in case the request must be sent again.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from claudebox.base.records import Value
from claudebox.broker.http import messages
from claudebox.broker.http.messages import (
    LAST_CHUNK,
    AnswerBody,
    MalformedHttp,
    Request,
    Response,
    framed,
    framed_request,
    header,
    is_readable,
)
from claudebox.broker.http.stream import BodyReader, UpstreamFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.broker.http.messages import BodyFilter, Framing, Headers
    from claudebox.broker.http.stream import Pool, Stream
    from claudebox.broker.log import Log, Service, Verdict


class LocalAnswer(Value):
    """An answer of the broker itself."""

    status: int
    kind: str  # for programs
    text: str  # for people and models
    headers: Headers = ()


class Rules:
    """What passes on one connection, and how. The base class lets everything pass."""

    ignores_upgrade = False  # instead of refusing requests for another protocol

    def __init__(self, log: Log, service: Service, host: str, port: int) -> None:
        self._log, self._service, self._host, self._port = log, service, host, port
        self.used: Iterable[str] = ()  # names of the secrets in the current request

    @property
    def outlives(self) -> bool:
        """Return whether the current response is read to its end even if the program disconnects."""
        return False

    def wanted(self, _request: Request) -> int:
        """Return the size up to which the body is read before `request` decides."""
        return 0

    async def request(self, request: Request, _exchange: Exchange) -> Request | LocalAnswer:
        """Return the request to send, or an answer of our own."""
        return request

    async def again(self, _request: Request, _response: Response) -> Request | LocalAnswer | None:
        """Return a second request to send instead, or an answer of our own; None accepts the response."""
        return None

    def response(self, response: Response) -> Response:
        """Return the head for the program; its framing is handled elsewhere."""
        return response

    def filter(self, _response: Response) -> BodyFilter | None:
        """Return what the body of the response passes through."""
        return None

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return content type and content of an answer of our own."""
        return b"text/plain; charset=utf-8", f"{refusal.text}\n".encode()

    def passed(self, exchange: Exchange) -> None:
        """Log a finished exchange."""
        self._log.record(
            service=self._service, host=self._host, port=self._port, verdict=exchange.verdict,
            rule=exchange.rule or self._service, up=exchange.up, down=exchange.down, secrets=self.used,
            status=exchange.status,
        )  # fmt: skip


_DISCARD_TIME = 30.0  # seconds to drain a refused body
_ANSWER_TIME = 600.0  # seconds for the rest of a response after the program disconnected
_DISCARD_LIMIT = 1 << 20  # bytes of a refused body that are drained, so that the answer can be read
_KEPT = 4 << 20  # bytes of a body kept for inspection or for sending it again
_KEPT_IN_ALL = 8 << 20  # by all exchanges together
_MAYBE_SERVED = frozenset((408, 499, 502, 504, 524))  # a hop gave up: the request may have been served


async def forward(client: Stream, pool: Pool, rules: Rules) -> None:
    """Serve one connection from inside until it ends."""
    while await Exchange(client, pool, rules).run():
        pass


class _SilentUpstream(UpstreamFailure):
    """The connection ended before any response."""


class _Kept:
    """The beginning of a request's body; None once it is dropped or too large."""

    total = 0

    def __init__(self) -> None:
        self.pieces: list[bytes] | None = []
        self._size = self._reserved = 0

    def reserve(self, size: int) -> bool:
        """Keep room for a whole body; return whether there is any."""
        if size > _KEPT or _Kept.total + size > _KEPT_IN_ALL:
            return False
        self._reserved = size
        _Kept.total += size
        return True

    def add(self, piece: bytes) -> None:
        if self.pieces is None:
            return
        within = self._size + len(piece) <= self._reserved
        if not within and (self._size + len(piece) > _KEPT or _Kept.total + len(piece) > _KEPT_IN_ALL):
            self.drop()
            return
        self.pieces.append(piece)
        self._size += len(piece)
        if not within:
            _Kept.total += len(piece)
            self._reserved += len(piece)

    def drop(self) -> None:
        _Kept.total -= self._reserved
        self._size = self._reserved = 0
        self.pieces = None


class Exchange:
    """One request and its response."""

    def __init__(self, client: Stream, pool: Pool, rules: Rules) -> None:
        # Of the request's body; `content` is set if the rules wanted to see it.
        self.framing: Framing = "none"
        self.length = 0
        self.content: bytes | None = None
        # For the log.
        self.verdict: Verdict = "failed"
        self.rule = ""
        self.status = self.up = self.down = 0
        self.owed: Literal["nothing", "reported", "most"] = "nothing"  # what to count for the request

        self._client, self._pool, self._rules = client, pool, rules
        self._kept = _Kept()
        self._received = False  # the whole body, from the program
        self._fault: Exception | None = None  # why the body will never be complete
        self._sent = False  # the whole request, to the upstream
        self._answered = False
        self._method = b""
        self._reader = BodyReader(client, "none", 0, strict=True)

    async def run(self) -> bool:
        """Serve it; return whether the connection can serve another."""
        try:
            head = await self._client.read_head(limited=True)
            if not head:
                return False
            request = messages.parse_request(head)
            self.framing, self.length = messages.request_framing(request)
        except MalformedHttp as problem:
            return await self._fail(400, problem)
        except TimeoutError:
            return False
        self._method = request.method
        self._reader = BodyReader(self._client, self.framing, self.length, strict=True)
        try:
            async with asyncio.timeout(None) as self._limit:
                return await self._serve(request) and not self._client.lost
        except asyncio.CancelledError:
            if self.owed == "most":  # the session ends: nothing more will be spent
                self.owed = "reported"
            raise
        except TimeoutError:
            self.owed = "most"
            return False
        except UpstreamFailure as problem:
            return await self._fail(502, problem)
        except MalformedHttp as problem:
            return await self._fail(400, problem)
        except (EOFError, OSError):
            return False
        finally:
            self._client.outlast(None)
            self._kept.drop()
            if self._sent and not self._answered:
                self.owed = "most"
            self._rules.passed(self)

    async def _fail(self, status: int, problem: Exception) -> bool:
        kind = "api_error" if status >= 500 else "invalid_request_error"
        return await self._answer(LocalAnswer(status, kind, f"claudebox: {problem}"), alive=False)

    def _outlive(self) -> None:
        """Limit the time for the rest of the response: the program has disconnected."""
        self._limit.reschedule(asyncio.get_running_loop().time() + _ANSWER_TIME)

    async def _serve(self, request: Request) -> bool:
        alive = messages.keeps_alive(request)
        refusal = _unsupported(request, upgrade=not self._rules.ignores_upgrade)
        if refusal is not None:
            return await self._refuse(refusal, alive=False)
        self._received = self.framing == "none"
        waits = not self._received and (header(request, b"expect") or b"").lower() == b"100-continue"
        inspected = self.framing == "length" and self.length <= self._rules.wanted(request)
        if inspected and self._kept.reserve(self.length):
            if waits:
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._read_body()
        outgoing = await self._rules.request(request.replace(headers=messages.end_to_end(request.headers)), self)
        if isinstance(outgoing, LocalAnswer):
            return await self._refuse(outgoing, alive=alive and (self._received or not waits))
        if self._rules.outlives:
            self._client.outlast(self._outlive)
        if waits and self.content is None:
            self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        upstream, response, sender = await self._ask(outgoing)
        try:
            second = await self._rules.again(outgoing, response)
            if second is not None:
                await _stop(sender)
                upstream.abort()
                if isinstance(second, LocalAnswer):
                    return await self._refuse(second, alive=alive)
                if self._kept.pieces is None:
                    retry = ((b"x-should-retry", b"true"),)
                    again = LocalAnswer(503, "overloaded_error", "claudebox: ask again", retry)
                    return await self._answer(again, alive=False)
                upstream, response, sender = await self._ask(second)
            self._kept.drop()
            return await self._deliver(request, response, upstream, alive=alive)
        except BaseException:
            upstream.abort()
            raise
        finally:
            await _stop(sender)

    async def _read_body(self) -> None:
        """Read the whole body before anything is sent to the upstream."""
        while piece := await self._reader.read():
            self.up += len(piece)
            self._kept.add(piece)
        self._received, self.content = True, b"".join(self._kept.pieces or ())

    def send_instead(self, content: bytes) -> bool:
        """Send another body than the one that was inspected; return whether there is room for it."""
        changed = _Kept()
        if self.content is None or not changed.reserve(len(content)):
            return False
        self._kept.drop()
        changed.add(content)
        self._kept, self.content, self.length = changed, content, len(content)
        return True

    async def _ask(self, request: Request) -> tuple[Stream, Response, asyncio.Task[None] | None]:
        """Send the request; return the connection, the response and the task that still sends the body.

        A reused connection may have been closed by the upstream in the meantime: then it is tried once more.
        """
        upstream, used = await self._pool.acquire()
        try:
            return await self._ask_at(upstream, request)
        except _SilentUpstream:
            if not used or self._kept.pieces is None:
                raise
        return await self._ask_at(await self._pool.connect(), request)

    async def _ask_at(self, upstream: Stream, request: Request) -> tuple[Stream, Response, asyncio.Task[None] | None]:
        sender: asyncio.Task[None] | None = None
        try:
            upstream.write(messages.render_request(framed_request(request, self.framing, self.length)))
            for piece in self._kept.pieces or ():
                upstream.write(framed(piece, self.framing))
            if not self._received:
                sender = asyncio.ensure_future(self._send_body(upstream))
            else:
                self._sent = True
                if self.framing == "chunked":
                    upstream.write(LAST_CHUNK)
            while True:
                head = await upstream.read_head()
                if not head:
                    raise self._fault or _SilentUpstream("the upstream closed the connection without an answer")
                response = messages.parse_response(head)
                if response.status == 101:
                    raise UpstreamFailure("the upstream switches to another protocol")
                if response.status >= 200:
                    self._answered = True
                    self.owed = "most" if response.status < 400 or response.status in _MAYBE_SERVED else "nothing"
                    return upstream, response, sender
        except BaseException as problem:
            upstream.abort()
            await _stop(sender)
            if isinstance(problem, OSError):
                raise self._fault or _SilentUpstream("no answer from the upstream: the connection broke") from None
            if isinstance(problem, MalformedHttp) and problem is not self._fault:
                raise self._fault or UpstreamFailure(f"no answer from the upstream: {problem}") from None
            raise

    async def _send_body(self, upstream: Stream) -> None:
        """Send the rest of the body as it arrives."""
        try:
            while piece := await self._reader.read():
                self.up += len(piece)
                self._kept.add(piece)
                upstream.write(framed(piece, self.framing))
                self._sent = self.up == self.length
                await upstream.drain()
        except (MalformedHttp, EOFError) as problem:
            self._fault = problem
            upstream.abort()
            return
        self._received = self._sent = True
        if self.framing == "chunked":
            upstream.write(LAST_CHUNK)

    async def _deliver(self, request: Request, response: Response, upstream: Stream, *, alive: bool) -> bool:
        """Pass the response on to the program."""
        own = self._rules.filter(response)
        if own is not None and not is_readable(response):
            upstream.abort()
            status = response.status if response.status >= 400 else 502
            text = "claudebox: the upstream answered in part, or in an encoding that cannot be read."
            return await self._refuse(LocalAnswer(status, "encoding", text), alive=alive)
        try:
            answer = AnswerBody(request, response, own)
        except MalformedHttp as problem:
            raise UpstreamFailure(f"the answer from the upstream is malformed: {problem}") from None
        self.verdict, self.status = "allowed", response.status
        shown = self._rules.response(response)
        alive = alive and answer.frame != "close"
        headers = (*answer.headers(shown.headers), *(() if alive else ((b"connection", b"close"),)))
        await self._say(messages.render_response(shown.replace(headers=headers)))
        body = BodyReader(upstream, answer.framing, answer.length, strict=False)
        try:
            while piece := await body.read():
                part = answer.feed(piece)
                self.down += len(part)
                await self._say(part)
            rest = answer.end()
            self.down += len(rest)
            if self.owed == "most":
                self.owed = "reported"
            await self._say(rest)
        except (MalformedHttp, EOFError, OSError):  # abort, so that the program sees that it is incomplete
            upstream.abort()
            self._client.abort()
            return False
        if not self._received:  # the upstream answered before it had the whole body
            upstream.abort()
            return False
        if messages.keeps_alive(response) and answer.framing != "close":
            self._pool.release(upstream)
        else:
            upstream.close()
        return alive

    async def _say(self, data: bytes) -> None:
        """Send to the program; its absence is no error where the response is read to its end anyway."""
        try:
            self._client.write(data)
            await self._client.drain()
        except OSError:
            if not self._rules.outlives:
                raise

    async def _refuse(self, refusal: LocalAnswer, *, alive: bool) -> bool:
        """Answer instead of the upstream, after draining the body."""
        self.verdict, self.rule = "denied", refusal.kind
        return await self._answer(refusal, alive=alive and (self._received or await self._discard()))

    async def _discard(self) -> bool:
        """Drain a refused body if it is small; return whether it is drained."""
        taken = 0
        try:
            async with asyncio.timeout(_DISCARD_TIME):
                while piece := await self._reader.read():
                    taken += len(piece)
                    if taken > _DISCARD_LIMIT:
                        return False
        except (MalformedHttp, EOFError, OSError, TimeoutError):
            return False
        return True

    async def _answer(self, refusal: LocalAnswer, *, alive: bool) -> bool:
        self.status = refusal.status
        kind, content = self._rules.render(refusal)
        headers: Headers = (
            (b"content-type", kind),
            (b"content-length", b"%d" % len(content)),
            *refusal.headers,
            *(() if alive else ((b"connection", b"close"),)),
        )
        head = messages.render_response(Response(refusal.status, headers))
        try:
            self._client.write(head if self._method == b"HEAD" else head + content)
            await self._client.drain()
        except OSError:
            return False
        return alive


def _unsupported(request: Request, *, upgrade: bool) -> LocalAnswer | None:
    if request.method == b"CONNECT":
        return LocalAnswer(405, "invalid_request_error", "claudebox: this is not a proxy for other hosts")
    if upgrade and header(request, b"upgrade") is not None:
        text = "claudebox: only HTTP/1.1 passes here, no WebSocket and no other protocol; ask over plain HTTPS"
        return LocalAnswer(426, "upgrade", text, ((b"upgrade", b"HTTP/1.1"),))
    return None


async def _stop(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and ignore its result."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
