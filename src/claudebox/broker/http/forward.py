"""HTTP/1.1 from a program inside to an upstream and back: heads are read and rewritten, bodies pass as they come.

One `Rules` decides what may pass and how; see there. Nothing is written down, and nothing of a body is kept, except the
beginning of a request's body until its answer has begun, for rules that ask a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from claudebox.broker.http import messages
from claudebox.broker.http.bodies import filtered
from claudebox.broker.http.chunks import Chunks
from claudebox.broker.http.handler import LocalAnswer, UpstreamFailure
from claudebox.broker.http.messages import MalformedHttp, Request, Response
from claudebox.broker.http.repetition import Kept
from claudebox.broker.http.stream import counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.handler import Rules
    from claudebox.broker.http.messages import Framing
    from claudebox.broker.http.stream import Pool, Stream

_DISCARD_TIME = 30.0  # seconds for a body that nobody wants
_LINGER = 1 << 20  # bytes of a refused body that are taken so that the answer can be read
_REWRITTEN = 32 << 20  # bytes of a body that is held because something is added to it
_BUSY = frozenset((b"POST", b"PUT", b"PATCH", b"DELETE"))


async def forward(client: Stream, pool: Pool, rules: Rules) -> None:
    """Serve one connection of a program inside until it ends."""
    while await _Exchange(client, pool, rules).run():
        pass


class _Exchange:
    """One request and its answer."""

    def __init__(self, client: Stream, pool: Pool, rules: Rules) -> None:
        self._client = client
        self._pool = pool
        self._rules = rules
        self._kept = Kept(wanted=rules.repeats)
        self._sent = False  # the whole body of the request has come
        self._fault: Exception | None = None  # why it never will
        self._up = self._down = 0

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
        try:
            return await self._serve(request, framing, length)
        except UpstreamFailure as problem:
            return await self._answer(LocalAnswer(502, "api_error", f"claudebox: {problem}"), alive=False)
        except MalformedHttp as problem:
            return await self._answer(LocalAnswer(400, "invalid_request_error", f"claudebox: {problem}"), alive=False)
        except (EOFError, OSError):
            return False
        finally:
            self._kept.drop()
            self._rules.passed(self._up, self._down)

    async def _serve(self, request: Request, framing: Framing, length: int) -> bool:
        alive = messages.keeps_alive(request)
        refusal = _unsupported(request)
        if refusal is not None:
            return await self._answer(refusal, alive=False)
        outgoing = await self._rules.request(request.with_headers(messages.end_to_end(request.headers)))
        if isinstance(outgoing, LocalAnswer):
            rid = await self._discard(framing, length)
            return await self._answer(outgoing, alive=alive and rid, method=request.method)
        if framing != "none" and (request.header(b"expect") or b"").lower() == b"100-continue":
            self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._sent = framing == "none"
        rewrite = self._rules.rewriting(outgoing) if framing == "length" and length <= _REWRITTEN else None
        if rewrite is not None:
            body = rewrite(b"".join([piece async for piece in _body(self._client, framing, length, strict=True)]))
            self._kept.pieces, length, self._sent = [body], len(body), True
        upstream, response, sender = await self._ask(outgoing, framing, length, replay=rewrite is not None)
        try:
            second = await self._rules.again(outgoing, response)
            if second is not None:
                await _stop(sender)
                upstream.abort()
                if isinstance(second, LocalAnswer):
                    rid = self._sent or await self._discard(framing, length)
                    return await self._answer(second, alive=alive and self._sent and rid, method=request.method)
                if not self._sent or self._kept.pieces is None:
                    again = LocalAnswer(
                        503, "overloaded_error", "claudebox: ask again", ((b"x-should-retry", b"true"),)
                    )
                    return await self._answer(again, alive=False, method=request.method)
                upstream, response, sender = await self._ask(second, framing, length, replay=True)
            self._kept.drop()
            return await self._deliver(request, response, upstream, alive=alive)
        except BaseException:
            upstream.abort()
            raise
        finally:
            await _stop(sender)

    async def _ask(
        self, request: Request, framing: Framing, length: int, *, replay: bool = False
    ) -> tuple[Stream, Response, asyncio.Task[None] | None]:
        """Send the request and return the connection, the head of the answer, and who still sends the body."""
        upstream, _used = await self._pool.acquire()
        sender: asyncio.Task[None] | None = None
        try:
            upstream.write(messages.render_request(_framed(request, framing, length)))
            if replay:
                for piece in self._kept.pieces or ():
                    upstream.write(piece)
            elif framing != "none":
                sender = asyncio.ensure_future(self._send_body(upstream, framing, length))
            while True:
                head = await messages.read_head(upstream)
                if not head:
                    raise self._fault or UpstreamFailure("the upstream closed the connection without an answer")
                response = messages.parse_response(head)
                if response.status == 101:
                    raise UpstreamFailure("the upstream wants another protocol")
                if response.status >= 200:
                    return upstream, response, sender
        except (OSError, MalformedHttp) as problem:
            upstream.abort()
            await _stop(sender)
            what = str(problem) if isinstance(problem, MalformedHttp) else "the connection broke"
            raise self._fault or UpstreamFailure(f"no answer of the upstream: {what}") from None
        except BaseException:
            upstream.abort()
            await _stop(sender)
            raise

    async def _send_body(self, upstream: Stream, framing: Framing, length: int) -> None:
        try:
            async for piece in _body(self._client, framing, length, strict=True):
                self._up += len(piece)
                self._kept.add(piece)
                upstream.write(piece)
                await upstream.drain()
            self._sent = True
        except (MalformedHttp, EOFError) as problem:  # nobody will ever get the rest
            self._fault = problem
            upstream.abort()

    async def _deliver(self, request: Request, response: Response, upstream: Stream, *, alive: bool) -> bool:
        """Pass the answer on."""
        try:
            framing, length = messages.response_framing(response, request.method)
        except MalformedHttp as problem:
            raise UpstreamFailure(f"the answer of the upstream is malformed: {problem}") from None
        shown = self._rules.response(response)
        own = self._rules.filter(response) if framing != "none" else None
        frame: Framing = framing
        if own is not None and not own.sized:
            frame = "chunked" if request.version == b"1.1" else "close"
        alive = alive and frame != "close"
        headers = messages.end_to_end(shown.headers)
        if frame == "chunked":
            headers = (*headers, (b"transfer-encoding", b"chunked"))
        if not alive:
            headers = (*headers, (b"connection", b"close"))
        self._client.write(messages.render_response(shown.with_headers(headers)))
        try:
            if own is None:
                await self._pass_body(upstream, framing, length)
            else:
                await self._pass_filtered(upstream, framing, length, own, chunks=frame == "chunked")
        except (MalformedHttp, EOFError, OSError):  # the program must see that it is incomplete
            upstream.abort()
            self._client.abort()
            return False
        if not self._sent:  # it answered without having heard everything
            upstream.abort()
            return False
        if messages.keeps_alive(response) and framing != "close":
            self._pool.release(upstream)
        else:
            upstream.close()
        return alive

    async def _pass_body(self, upstream: Stream, framing: Framing, length: int) -> None:
        """Pass the body of an answer on as it comes, without holding any of it."""
        before = upstream.passed
        try:
            if framing == "close":
                await upstream.pour(self._client, lambda _buffer, size: (size, False))
            elif framing == "length" and length:
                if not await upstream.pour(self._client, counter(length)):
                    raise EOFError
            elif framing == "chunked":
                chunks = Chunks(strict=False)

                def guide(buffer: bytearray, size: int) -> tuple[int, bool]:
                    return chunks.scan(buffer, size), chunks.last

                if not await upstream.pour(self._client, guide):
                    raise EOFError
                self._client.write(b"\r\n")
                while not chunks.ended:
                    piece = await upstream.read()
                    if not piece:
                        raise EOFError
                    upstream.unread(chunks.feed(piece)[1])
            await self._client.drain()
        finally:
            self._down += upstream.passed - before

    async def _pass_filtered(
        self, upstream: Stream, framing: Framing, length: int, own: BodyFilter, *, chunks: bool
    ) -> None:
        """Pass the body of an answer on through a filter."""
        body = _body(upstream, framing, length, strict=False)
        async with contextlib.aclosing(filtered(body, own, chunked=framing == "chunked", chunks=chunks)) as pieces:
            async for piece in pieces:
                self._down += len(piece)
                self._client.write(piece)
                await self._client.drain()

    async def _discard(self, framing: Framing, length: int) -> bool:
        """Take a body that nobody wants, if it is small; tell whether it is gone."""
        taken = 0
        try:
            async with asyncio.timeout(_DISCARD_TIME):
                async for piece in _body(self._client, framing, length, strict=True):
                    taken += len(piece)
                    if taken > _LINGER:
                        return False
        except (MalformedHttp, EOFError, OSError, TimeoutError):
            return False
        return True

    async def _answer(self, refusal: LocalAnswer, *, alive: bool, method: bytes = b"") -> bool:
        kind, content = self._rules.render(refusal)
        headers: messages.Headers = (
            (b"content-type", kind),
            (b"content-length", b"%d" % len(content)),
            *refusal.headers,
            *(() if alive else ((b"connection", b"close"),)),
        )
        head = messages.render_response(Response(refusal.status, headers))
        try:
            self._client.write(head if method == b"HEAD" else head + content)
            await self._client.drain()
        except OSError:
            return False
        return alive


def _framed(request: Request, framing: Framing, length: int) -> Request:
    """Return the request as it goes out, with our own word on the length of its body."""
    ours = (b"content-length", b"expect", b"transfer-encoding")
    headers = tuple(pair for pair in request.headers if pair[0] not in ours)
    if framing == "chunked":
        headers = (*headers, (b"transfer-encoding", b"chunked"))
    elif framing == "length" or request.method in _BUSY:
        headers = (*headers, (b"content-length", b"%d" % length))
    return request.with_headers(headers)


def _unsupported(request: Request) -> LocalAnswer | None:
    if request.method == b"CONNECT":
        return LocalAnswer(405, "invalid_request_error", "claudebox: this is not a proxy for other hosts")
    if request.header(b"upgrade") is not None:
        return LocalAnswer(501, "invalid_request_error", "claudebox: other protocols than HTTP/1.1 do not pass here")
    return None


async def _stop(task: asyncio.Task[None] | None) -> None:
    """End a task and take its outcome, which shows elsewhere."""
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _body(stream: Stream, framing: Framing, length: int, *, strict: bool) -> AsyncIterator[bytes]:
    """Yield a body as it comes, framed as it was."""
    if framing == "length":
        while length:
            piece = await stream.read()
            if not piece:
                raise EOFError
            if len(piece) > length:
                stream.unread(piece[length:])
                piece = piece[:length]
            length -= len(piece)
            yield piece
    elif framing == "chunked":
        chunks = Chunks(strict=strict)
        while not chunks.ended:
            piece = await stream.read()
            if not piece:
                raise EOFError
            passed, after = chunks.feed(piece)
            stream.unread(after)
            if passed:
                yield passed
    elif framing == "close":
        while piece := await stream.read():
            yield piece
