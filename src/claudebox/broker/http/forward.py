"""HTTP/1.1 from a program inside to an upstream and back: heads are read and rewritten, bodies pass as they come.

One `Rules` decides what may pass and how; see there. Nothing of a body is kept, except the beginning of a request's
until its answer has begun: the connection to the upstream may be stale, and rules may ask a second time.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from claudebox.base.records import Value
from claudebox.broker.http import messages
from claudebox.broker.http.messages import (
    LAST_CHUNK,
    AnswerBody,
    BodyReader,
    MalformedHttp,
    Request,
    Response,
    framed,
    framed_request,
    is_readable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.broker.http.messages import BodyFilter, Framing, Headers
    from claudebox.broker.http.stream import Pool, Stream
    from claudebox.broker.main import Log, Service, Verdict


# What a forwarder asks before anything passes, and the answers that it gives itself.


class UpstreamFailure(Exception):  # noqa: N818 - it becomes an answer
    """The upstream cannot be reached, or broke off before it answered."""


class LocalAnswer(Value):
    """An answer of ours."""

    status: int
    kind: str  # a word for programs
    text: str  # a sentence for people and models
    headers: Headers = ()


class RequestBody:
    """The body of a request, before it is sent."""

    def __init__(self, framing: Framing, length: int) -> None:
        self.framing: Framing = framing
        self.length = length
        self.content: bytes | None = None  # all of it, where the rules want to see it


class Outcome:
    """How an exchange went."""

    def __init__(self) -> None:
        self.verdict: Verdict = "failed"
        self.rule = ""
        self.status = 0
        self.up = self.down = 0
        self.owed: Literal["nothing", "told", "most"] = "nothing"  # of a request that costs something


class Rules:
    """What passes on one connection and how. This one lets everything pass; override what should differ."""

    def __init__(self, log: Log, service: Service, host: str, port: int) -> None:
        self._log, self._service, self._host, self._port = log, service, host, port
        self.used: Iterable[str] = ()  # names of the secrets that the last request used

    @property
    def outlives(self) -> bool:
        """Return whether the present answer is read to its end even if the program has gone."""
        return False

    def wanted(self, _request: Request) -> int:
        """Return how long a body may be that the rules want to see before they decide."""
        return 0

    async def request(self, request: Request, _body: RequestBody) -> Request | LocalAnswer:
        """Return the request as it goes out, or an answer of ours."""
        return request

    async def again(self, _request: Request, _response: Response) -> Request | LocalAnswer | None:
        """Return what to ask instead, once, if this answer should not reach the program; None lets it pass."""
        return None

    def response(self, response: Response) -> Response:
        """Return the answer as the program gets it; how its body is framed is none of its business."""
        return response

    def filter(self, _response: Response) -> BodyFilter | None:
        """Return what the text of an answer goes through, if anything."""
        return None

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return type and content of an answer of ours."""
        return b"text/plain; charset=utf-8", f"{refusal.text}\n".encode()

    def passed(self, outcome: Outcome) -> None:
        """Write one exchange down."""
        self._log.record(
            service=self._service, host=self._host, port=self._port, verdict=outcome.verdict,
            rule=outcome.rule or self._service, up=outcome.up, down=outcome.down, secrets=self.used,
            status=outcome.status,
        )  # fmt: skip


_DISCARD_TIME = 30.0  # seconds for a body that is refused
_ANSWER_TIME = 600.0  # seconds for the rest of an answer whose program has gone
_LINGER = 1 << 20  # bytes of a refused body that are taken so that the answer can be read
_KEPT = 4 << 20  # bytes of a body that are kept to be looked at, or to be sent once more
_KEPT_IN_ALL = 8 << 20  # of all bodies together
_UNTOLD = frozenset((408, 499, 502, 504, 524))  # a hop gave up: the request may have been served


async def forward(client: Stream, pool: Pool, rules: Rules) -> None:
    """Serve one connection of a program inside until it ends."""
    while await _Exchange(client, pool, rules).run():
        pass


class _SilentUpstream(UpstreamFailure):
    """The connection ended before anything came."""


class _Kept:
    """The beginning of a request's body, while it may have to be sent again."""

    total = 0

    def __init__(self) -> None:
        self.pieces: list[bytes] | None = []
        self._size = 0

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes more can be kept."""
        return self.pieces is not None and self._size + size <= _KEPT and _Kept.total + size <= _KEPT_IN_ALL

    def add(self, piece: bytes) -> None:
        """Keep one more piece, or give up."""
        if self.pieces is None:
            return
        if not self.has_room(len(piece)):
            self.drop()
            return
        self.pieces.append(piece)
        self._size += len(piece)
        _Kept.total += len(piece)

    def drop(self) -> None:
        """Keep nothing any more."""
        _Kept.total -= self._size
        self._size, self.pieces = 0, None


class _Exchange:
    """One request and its answer."""

    def __init__(self, client: Stream, pool: Pool, rules: Rules) -> None:
        self._client = client
        self._pool = pool
        self._rules = rules
        self._kept = _Kept()
        self._sent = False  # the whole body of the request has come
        self._fault: Exception | None = None  # why it never will
        self._asked = False  # the upstream was sent everything
        self._answered = False
        self._outcome = Outcome()
        self._method = b""
        self._body = RequestBody("none", 0)
        self._reader = BodyReader(client, "none", 0, strict=True)

    async def run(self) -> bool:
        """Do it, and tell whether the connection can serve another."""
        try:
            head = await messages.read_head(self._client, limited=True)
            if not head:
                return False
            request = messages.parse_request(head)
            framing, length = messages.request_framing(request)
        except MalformedHttp as problem:
            return await self._answer(LocalAnswer(400, "invalid_request_error", f"claudebox: {problem}"), alive=False)
        except TimeoutError:
            return False
        self._method, self._body = request.method, RequestBody(framing, length)
        self._reader = BodyReader(self._client, framing, length, strict=True)
        try:
            async with asyncio.timeout(None) as self._limit:
                return await self._serve(request) and not self._client.lost
        except asyncio.CancelledError:
            if self._outcome.owed == "most":  # the session ends: nothing more will be spent
                self._outcome.owed = "told"
            raise
        except TimeoutError:
            self._outcome.owed = "most"
            return False
        except UpstreamFailure as problem:
            return await self._answer(LocalAnswer(502, "api_error", f"claudebox: {problem}"), alive=False)
        except MalformedHttp as problem:
            return await self._answer(LocalAnswer(400, "invalid_request_error", f"claudebox: {problem}"), alive=False)
        except (EOFError, OSError):
            return False
        finally:
            self._client.outlast(None)
            self._kept.drop()
            if self._asked and not self._answered:
                self._outcome.owed = "most"
            self._rules.passed(self._outcome)

    def _outlive(self) -> None:
        """Set the time limit for an answer whose program has gone."""
        self._limit.reschedule(asyncio.get_running_loop().time() + _ANSWER_TIME)

    async def _serve(self, request: Request) -> bool:
        alive = messages.keeps_alive(request)
        refusal = _unsupported(request)
        if refusal is not None:
            return await self._refuse(refusal, alive=False)
        body = self._body
        self._sent = body.framing == "none"
        waits = not self._sent and (request.header(b"expect") or b"").lower() == b"100-continue"
        seen = body.framing == "length" and body.length <= self._rules.wanted(request)
        if seen and self._kept.has_room(body.length):
            if waits:
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._hold()
        outgoing = await self._rules.request(request.with_headers(messages.end_to_end(request.headers)), body)
        if isinstance(outgoing, LocalAnswer):
            return await self._refuse(outgoing, alive=alive and (self._sent or not waits))
        if self._rules.outlives:
            self._client.outlast(self._outlive)
        if waits and body.content is None:
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
                    again = LocalAnswer(
                        503, "overloaded_error", "claudebox: ask again", ((b"x-should-retry", b"true"),)
                    )
                    return await self._answer(again, alive=False)
                upstream, response, sender = await self._ask(second)
            self._kept.drop()
            return await self._deliver(request, response, upstream, alive=alive)
        except BaseException:
            upstream.abort()
            raise
        finally:
            await _stop(sender)

    async def _hold(self) -> None:
        """Read the whole body before the upstream is asked."""
        while piece := await self._reader.read():
            self._outcome.up += len(piece)
            self._kept.add(piece)
        self._sent, self._body.content = True, b"".join(self._kept.pieces or ())

    async def _ask(self, request: Request) -> tuple[Stream, Response, asyncio.Task[None] | None]:
        """Send the request and return the connection, the head of the answer, and who still sends the body.

        A connection that was used before may have been closed by the other side in the meantime: then once more.
        """
        upstream, used = await self._pool.acquire()
        try:
            return await self._ask_at(upstream, request)
        except _SilentUpstream:
            if not used or self._kept.pieces is None:
                raise
        return await self._ask_at(await self._pool.connect(), request)

    async def _ask_at(self, upstream: Stream, request: Request) -> tuple[Stream, Response, asyncio.Task[None] | None]:
        body = self._body
        sender: asyncio.Task[None] | None = None
        try:
            upstream.write(messages.render_request(framed_request(request, body.framing, body.length)))
            for piece in self._kept.pieces or ():
                upstream.write(framed(piece, body.framing))
            if not self._sent:
                sender = asyncio.ensure_future(self._send_body(upstream))
            else:
                self._asked = True
                if body.framing == "chunked":
                    upstream.write(LAST_CHUNK)
            while True:
                head = await messages.read_head(upstream)
                if not head:
                    raise self._fault or _SilentUpstream("the upstream closed the connection without an answer")
                response = messages.parse_response(head)
                if response.status == 101:
                    raise UpstreamFailure("the upstream wants another protocol")
                if response.status >= 200:
                    self._answered = True
                    self._outcome.owed = "most" if response.status < 400 or response.status in _UNTOLD else "nothing"
                    return upstream, response, sender
        except BaseException as problem:
            upstream.abort()
            await _stop(sender)
            if isinstance(problem, OSError):
                raise self._fault or _SilentUpstream("no answer of the upstream: the connection broke") from None
            if isinstance(problem, MalformedHttp) and problem is not self._fault:
                raise self._fault or UpstreamFailure(f"no answer of the upstream: {problem}") from None
            raise

    async def _send_body(self, upstream: Stream) -> None:
        """Send what has not come yet of the body."""
        try:
            while piece := await self._reader.read():
                self._outcome.up += len(piece)
                self._kept.add(piece)
                upstream.write(framed(piece, self._body.framing))
                self._asked = self._outcome.up == self._body.length
                await upstream.drain()
        except (MalformedHttp, EOFError) as problem:  # nobody will ever get the rest
            self._fault = problem
            upstream.abort()
            return
        self._sent = self._asked = True
        if self._body.framing == "chunked":
            upstream.write(LAST_CHUNK)

    async def _deliver(self, request: Request, response: Response, upstream: Stream, *, alive: bool) -> bool:
        """Pass the answer on."""
        own = self._rules.filter(response)
        if own is not None and not is_readable(response):
            upstream.abort()
            status = response.status if response.status >= 400 else 502
            text = "claudebox: the upstream answered in part, or in an encoding that cannot be read."
            return await self._refuse(LocalAnswer(status, "encoding", text), alive=alive)
        try:
            answer = AnswerBody(request, response, own)
        except MalformedHttp as problem:
            raise UpstreamFailure(f"the answer of the upstream is malformed: {problem}") from None
        self._outcome.verdict, self._outcome.status = "allowed", response.status
        shown = self._rules.response(response)
        alive = alive and answer.frame != "close"
        headers = (*answer.headers(shown.headers), *(() if alive else ((b"connection", b"close"),)))
        await self._say(messages.render_response(shown.with_headers(headers)))
        body = BodyReader(upstream, answer.framing, answer.length, strict=False)
        try:
            while piece := await body.read():
                for part in answer.feed(piece):
                    self._outcome.down += len(part)
                    await self._say(part)
            rest = answer.end()
            self._outcome.down += len(rest)
            if self._outcome.owed == "most":
                self._outcome.owed = "told"
            await self._say(rest)
        except (MalformedHttp, EOFError, OSError):  # the program must see that it is incomplete
            upstream.abort()
            self._client.abort()
            return False
        if not self._sent:  # it answered without having heard everything
            upstream.abort()
            return False
        if messages.keeps_alive(response) and answer.framing != "close":
            self._pool.release(upstream)
        else:
            upstream.close()
        return alive

    async def _say(self, data: bytes) -> None:
        """Send something to the program, if it is still there or must be."""
        try:
            self._client.write(data)
            await self._client.drain()
        except OSError:
            if not self._rules.outlives:
                raise

    async def _refuse(self, refusal: LocalAnswer, *, alive: bool) -> bool:
        """Answer instead of the upstream, after draining the body."""
        self._outcome.verdict, self._outcome.rule = "denied", refusal.kind
        return await self._answer(refusal, alive=alive and (self._sent or await self._discard()))

    async def _discard(self) -> bool:
        """Drain a body that is refused, if it is small; return whether it is gone."""
        taken = 0
        try:
            async with asyncio.timeout(_DISCARD_TIME):
                while piece := await self._reader.read():
                    taken += len(piece)
                    if taken > _LINGER:
                        return False
        except (MalformedHttp, EOFError, OSError, TimeoutError):
            return False
        return True

    async def _answer(self, refusal: LocalAnswer, *, alive: bool) -> bool:
        self._outcome.status = refusal.status
        kind, content = self._rules.render(refusal)
        headers: messages.Headers = (
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


def _unsupported(request: Request) -> LocalAnswer | None:
    if request.method == b"CONNECT":
        return LocalAnswer(405, "invalid_request_error", "claudebox: this is not a proxy for other hosts")
    if request.header(b"upgrade") is not None:
        text = "claudebox: only HTTP/1.1 passes here, no WebSocket and no other protocol; ask over plain HTTPS"
        return LocalAnswer(426, "upgrade", text, ((b"upgrade", b"HTTP/1.1"),))
    return None


async def _stop(task: asyncio.Task[None] | None) -> None:
    """End a task and take its outcome, which shows elsewhere."""
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
