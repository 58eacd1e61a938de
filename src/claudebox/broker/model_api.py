"""The socket for the model: the client's requests go to one upstream, with the credential inserted.

Anybody inside may send requests in the user's name; that is the sandbox's purpose. Nobody inside can get the
credential: not by asking for it, not for another one, and not in a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from claudebox.broker.credentials import FixedCredential, NoCredential, SharedLogin
from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.http.forward import LocalAnswer, Rules, forward
from claudebox.broker.http.messages import header
from claudebox.broker.http.stream import Egress, Pool, Stream
from claudebox.broker.metering import Meter, TokenUsage, UsageFilter, most_of
from claudebox.broker.reception import Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.forward import Exchange
    from claudebox.broker.http.messages import BodyFilter, Request, Response
    from claudebox.broker.main import Context, Log
    from claudebox.broker.metering import Ticket
    from claudebox.broker.reception import Visitor
    from claudebox.network.records import ApiConfig


_AUTH = (b"authorization", b"x-api-key", b"proxy-authorization")
# What the client needs, and nothing else: other paths issue credentials or show files and batches of other projects.
_READING, _ASKING = (b"GET", b"HEAD"), (b"POST",)
_PATHS = {
    b"/v1/messages": _ASKING,
    b"/v1/messages/count_tokens": _ASKING,
    b"/v1/models": _READING,
    b"/api/hello": _READING,
    b"/api/claude_code/policy_limits": _READING,
    b"/api/claude_code/settings": _READING,
}
# The client's header fields; any other could carry another credential, or be shown to others by a gateway.
_FIELDS = frozenset((
    b"accept", b"accept-language", b"cache-control", b"content-length", b"content-type", b"expect", b"sec-fetch-mode",
    b"transfer-encoding", b"user-agent", b"x-app",
))  # fmt: skip
_FIELD_PREFIXES = (b"anthropic-", b"x-anthropic-", b"x-claude-", b"x-stainless-")
_QUERY = frozenset((b"after_id", b"before_id", b"beta", b"limit"))
_METERED = b"/v1/messages"
_INSPECTED = 1 << 20  # bytes of a request that are parsed for what it can cost
_LONGEST = 32 << 20  # bytes of a request under a budget; the API's own limit
_SHORTEST_SECRET = 8  # characters of a custom header that is removed from responses
_MOST, _DESCRIPTORS = 256, 2  # connections; two ends each
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:@")


class Upstream:
    """Shared by all connections: the endpoint, the credential, the meter."""

    def __init__(self, config: ApiConfig, meter: Meter) -> None:
        self.egress, self.meter = Egress(config.endpoint, config.proxy, config.trust), meter
        self.credential = SharedLogin(config) if config.login else FixedCredential(dict(config.credentials))
        self.placeholder = config.placeholder.encode()
        authority = str(config.endpoint.replace(prefix="")).partition("://")[2].encode()
        self._prefix = (b"http://" + authority if self.egress.absolute else b"") + config.endpoint.prefix.encode()
        self._authority = authority
        self._custom = tuple((name.encode(), value.encode()) for name, value in config.headers)
        self._recognizers: dict[tuple[bytes, ...], Recognizer] = {}
        self._inspecting = asyncio.Lock()

    @property
    def recognizer(self) -> Recognizer:
        """Return what finds all credentials used so far."""
        custom = (value.removeprefix(b"Bearer ") for _, value in self._custom if len(value) >= _SHORTEST_SECRET)
        secrets = (*self.credential.secrets, *custom)
        if secrets not in self._recognizers:
            self._recognizers = {secrets: Recognizer((secret, b"") for secret in secrets)}
        return self._recognizers[secrets]

    async def most(self, content: bytes) -> TokenUsage | None:
        """Return the most that a request can cost; parsed in a thread, one at a time, since that may take long."""
        async with self._inspecting:
            return await asyncio.get_running_loop().run_in_executor(None, most_of, content)

    def address(self, request: Request, credential: list[tuple[bytes, bytes]]) -> Request:
        """Return the request as the upstream gets it."""
        rest = tuple(pair for pair in request.headers if pair[0] in _FIELDS or pair[0].startswith(_FIELD_PREFIXES))
        if _is_metered(request):
            rest = (*rest, (b"accept-encoding", b"identity"))
        elif b"gzip" in (header(request, b"accept-encoding") or b""):  # only encodings that can be filtered
            rest = (*rest, (b"accept-encoding", b"gzip, deflate"))
        own = {name for name, _ in self._custom}  # custom headers win, as in the client itself
        kept = tuple(pair for pair in (*rest, *credential) if pair[0] not in own)
        headers = ((b"host", self._authority), *kept, *self._custom)
        return request.replace(target=self._prefix + request.target, headers=headers)


class ApiRules(Rules):
    """Only the client's own requests pass, only with the credential of the broker."""

    def __init__(self, upstream: Upstream, log: Log, host: str, port: int) -> None:
        super().__init__(log, "api", host, port)
        self._upstream, self._meter = upstream, upstream.meter
        self._metered = False
        self._ticket: Ticket | None = None
        self._usage: UsageFilter | None = None

    @property
    def outlives(self) -> bool:
        """Read metered responses to the end: disconnecting early costs the same."""
        return self._ticket is not None

    def wanted(self, request: Request) -> int:
        return _INSPECTED if self._meter.budget is not None and _is_metered(request) else 0

    async def request(self, request: Request, exchange: Exchange) -> Request | LocalAnswer:
        """Replace the placeholder by the credential."""
        self._metered, self._ticket, self._usage = _is_metered(request), None, None
        refusal = _refused(request)
        if refusal is not None:
            return refusal
        given = [value.removeprefix(b"Bearer ").strip() for name, value in request.headers if name in _AUTH]
        if any(value != self._upstream.placeholder for value in given):
            return _denied(
                401, "this is not the placeholder of this sandbox; requests with another credential do not pass"
            )
        try:
            credential = await self._upstream.credential.headers() if given else []
        except NoCredential as problem:
            return _denied(401, str(problem))
        if self._metered and self._meter.budget is not None:
            refusal = await self._reserve(exchange)
            if refusal is not None:
                return refusal
        return self._upstream.address(request, credential)

    async def _reserve(self, exchange: Exchange) -> LocalAnswer | None:
        """Wait until the budget has room for the most that this request can cost."""
        if exchange.framing == "chunked":
            return _denied(411, "this session has a budget: send the request with a `content-length`")
        if exchange.length > _LONGEST:
            return _denied(413, f"this session has a budget: a request has at most {_LONGEST >> 20} MiB")
        most = await self._upstream.most(exchange.content) if exchange.content is not None else None
        ticket = await self._meter.begin(most)
        if isinstance(ticket, str):
            return _denied(402, f"{ticket}. Only the user can raise it: `claudebox --budget` or `--tokens`")
        self._ticket = ticket
        return None

    def passed(self, exchange: Exchange) -> None:
        """Count what it cost, and release what was reserved."""
        if self._metered and self._usage is None and exchange.owed != "nothing":
            exchange.rule = "unanswered"
        super().passed(exchange)
        reported = self._usage.usage if self._usage is not None else []
        ticket, self._ticket = self._ticket, None
        if ticket is not None and exchange.owed != "nothing" and (exchange.owed == "most" or not reported):
            reported = ticket.owed(reported)
        for usage in reported:
            self._meter.add(usage)
        if ticket is not None:
            self._meter.end(ticket)

    async def again(self, request: Request, response: Response) -> Request | LocalAnswer | None:
        """Renew a login that was refused, and ask once more."""
        login = self._upstream.credential
        sent = (header(request, b"authorization") or b"").removeprefix(b"Bearer ").decode("ascii", "replace")
        if response.status != 401 or not sent or not isinstance(login, SharedLogin):
            return None
        try:
            token = await login.after_refusal(sent)
        except NoCredential as problem:
            return _denied(401, str(problem))
        headers = tuple(pair for pair in request.headers if pair[0] != b"authorization")
        return request.replace(headers=(*headers, (b"authorization", b"Bearer " + token.encode())))

    def response(self, response: Response) -> Response:
        return self._upstream.recognizer.clean_head(response)

    def filter(self, response: Response) -> BodyFilter | None:
        """Remove the credential from errors; count other responses, which pass unchanged."""
        if response.status >= 400:
            return Cleaner(lambda: self._upstream.recognizer)
        if not self._metered:
            return None
        kind = (header(response, b"content-type") or b"").partition(b";")[0].strip().lower()
        self._usage = UsageFilter(events=kind == b"text/event-stream")
        return self._usage

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return it in the API's format of errors."""
        document = {"type": "error", "error": {"type": refusal.kind, "message": refusal.text}}
        return b"application/json", json.dumps(document).encode()


def _is_metered(request: Request) -> bool:
    return request.method == b"POST" and request.target.partition(b"?")[0] == _METERED


def _denied(status: int, text: str) -> LocalAnswer:
    kinds = {402: "billing_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large"}
    return LocalAnswer(status, kinds.get(status, "invalid_request_error"), f"claudebox: {text}")


def _refused(request: Request) -> LocalAnswer | None:
    """Refuse methods, paths and queries that the client does not use."""
    if not request.target.startswith(b"/"):
        return _denied(403, "the broker answers for its own upstream only; other hosts are not reached through it")
    path, _, query = request.target.partition(b"?")
    words = [word.partition(b"=") for word in query.split(b"&") if word]
    if not all(name in _QUERY and _NAME.issuperset(value) for name, _, value in words):
        return _denied(403, "a part of this query is not open to the sandbox")
    collection, _, name = path.rpartition(b"/")
    if collection == b"/v1/models" and name and _NAME.issuperset(name) and name not in (b".", b".."):
        path = collection
    if path not in _PATHS:
        return _denied(
            403,
            "this path of the upstream is not open to the sandbox: messages, models and policies are. If a task needs "
            "another, the user can run it outside, or start claudebox with `--auth passthrough`",
        )
    if request.method not in _PATHS[path]:
        return _denied(405, "this method is not for this path")
    return None


async def open(config: ApiConfig, context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    """Serve the socket of the sandbox."""
    upstream = Upstream(config, Meter(config.budget, context.log.record_usage))
    pool = Pool(upstream.egress.connect)

    async def serve(caller: Visitor) -> None:
        with contextlib.closing(await Stream.attend(caller)) as stream:
            await forward(stream, pool, ApiRules(upstream, context.log, config.endpoint.host, config.endpoint.port))

    context.reception.listen(await context.wait_listener("model_api"), Room(_MOST, _DESCRIPTORS), serve)

    async def close() -> None:
        pool.close()

    return close
