"""The way to the model: requests of the client, with the credential put in, to the one upstream.

Whoever has the socket may ask the upstream in the user's name; that is what the sandbox is for. What nobody inside
gets is the credential: not by asking for it, not for another one, and not in what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from claudebox.broker.credentials import FixedCredential, NoCredential, SharedLogin
from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.http.forward import LocalAnswer, Rules, forward
from claudebox.broker.http.stream import Egress, Pool, Stream
from claudebox.broker.metering import Meter, TokenUsage, UsageFilter, most_of
from claudebox.broker.reception import Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.forward import Outcome, RequestBody
    from claudebox.broker.http.messages import BodyFilter, Request, Response
    from claudebox.broker.main import Context, Log
    from claudebox.broker.metering import Ticket
    from claudebox.broker.reception import Visitor
    from claudebox.network.records import ApiConfig


_AUTH = (b"authorization", b"x-api-key", b"proxy-authorization")
# What the client asks for on the way to the model, and nothing else: elsewhere an upstream makes credentials of a
# login, and shows files and batches of other projects.
_READING, _ASKING = (b"GET", b"HEAD"), (b"POST",)
_PATHS = {
    b"/v1/messages": _ASKING,
    b"/v1/messages/count_tokens": _ASKING,
    b"/v1/models": _READING,
    b"/api/hello": _READING,
    b"/api/claude_code/policy_limits": _READING,
    b"/api/claude_code/settings": _READING,
}
# What the client sends; any other field could be another credential, or be shown to others by a gateway.
_FIELDS = frozenset((
    b"accept", b"accept-language", b"cache-control", b"content-length", b"content-type", b"expect", b"sec-fetch-mode",
    b"transfer-encoding", b"user-agent", b"x-app",
))  # fmt: skip
_FIELD_PREFIXES = (b"anthropic-", b"x-anthropic-", b"x-claude-", b"x-stainless-")
_QUERY = frozenset((b"after_id", b"before_id", b"beta", b"limit"))
_METERED = b"/v1/messages"
_READ = 1 << 20  # bytes of a request that are looked into for what it can cost
_LONGEST = 32 << 20  # bytes of a request that counts towards a budget; the API takes no more
_SECRET = 8  # characters from which on the value of a header is one that must not come back
_MOST, _DESCRIPTORS = 256, 2  # connections at a time; two ends each
_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:@")


class Upstream:
    """What all connections share: where requests go, with which credential, and what they cost."""

    def __init__(self, config: ApiConfig, egress: Egress, holder: FixedCredential | SharedLogin, meter: Meter) -> None:
        self.holder, self.meter = holder, meter
        self.placeholder = config.placeholder.encode()
        port = "" if egress.port == {"http": 80, "https": 443}[egress.scheme] else f":{egress.port}"
        name = f"[{egress.host}]" if ":" in egress.host else egress.host
        self._authority = f"{name}{port}".encode()
        self._prefix = (b"http://" + self._authority if egress.absolute else b"") + config.endpoint.prefix.encode()
        self._custom = tuple((name.encode(), value.encode()) for name, value in config.headers)
        self._recognizers: dict[tuple[bytes, ...], Recognizer] = {}
        self._reading = asyncio.Lock()

    @property
    def recognizer(self) -> Recognizer:
        """Return what finds the credentials that were used up to now."""
        longer = (value.removeprefix(b"Bearer ") for _, value in self._custom if len(value) >= _SECRET)
        secrets = (*self.holder.secrets(), *longer)
        if secrets not in self._recognizers:
            self._recognizers = {secrets: Recognizer((secret, b"") for secret in secrets)}
        return self._recognizers[secrets]

    async def most(self, content: bytes) -> TokenUsage | None:
        """Return the most that a request can cost; read beside the loop, and one at a time, since it may take long."""
        async with self._reading:
            return await asyncio.get_running_loop().run_in_executor(None, most_of, content)

    def address(self, request: Request, held: list[tuple[bytes, bytes]]) -> Request:
        """Return a request as the upstream gets it."""
        rest = tuple(pair for pair in request.headers if pair[0] in _FIELDS or pair[0].startswith(_FIELD_PREFIXES))
        if _is_metered(request):  # what it costs is read as it passes
            rest = (*rest, (b"accept-encoding", b"identity"))
        elif b"gzip" in (request.header(b"accept-encoding") or b""):  # what can be looked into if it is an error
            rest = (*rest, (b"accept-encoding", b"gzip, deflate"))
        own = {name for name, _ in self._custom}  # what the user wants wins, as in the client itself
        kept = tuple(pair for pair in (*rest, *held) if pair[0] not in own)
        headers = ((b"host", self._authority), *kept, *self._custom)
        return type(request)(request.method, self._prefix + request.target, headers, request.version)


class ApiRules(Rules):
    """Only to the upstream, only with the credential of the broker."""

    def __init__(self, upstream: Upstream, log: Log, host: str, port: int) -> None:
        super().__init__(log, "api", host, port)
        self._upstream, self._meter = upstream, upstream.meter
        self._metered = False
        self._ticket: Ticket | None = None
        self._usage: UsageFilter | None = None

    @property
    def outlives(self) -> bool:
        """Read to its end what counts towards a budget: who goes away early has spent it all the same."""
        return self._ticket is not None

    def wanted(self, request: Request) -> int:
        """Look into what counts towards a budget, to know what it can cost."""
        return _READ if self._meter.budget is not None and _is_metered(request) else 0

    async def request(self, request: Request, body: RequestBody) -> Request | LocalAnswer:
        """Put the credential in where the placeholder stands."""
        self._metered, self._ticket, self._usage = _is_metered(request), None, None
        refusal = _refused(request)
        if refusal is not None:
            return refusal
        asked = False
        for name, value in request.headers:
            if name in _AUTH:
                if value.removeprefix(b"Bearer ").strip() != self._upstream.placeholder:
                    return _denied(
                        401, "this is not the placeholder of this sandbox; requests with another credential do not pass"
                    )
                asked = True
        try:
            held = await self._upstream.holder.headers() if asked else []
        except NoCredential as problem:
            return _denied(401, str(problem))
        if self._metered and self._meter.budget is not None:
            refusal = await self._reserve(body)
            if refusal is not None:
                return refusal
        return self._upstream.address(request, held)

    async def _reserve(self, body: RequestBody) -> LocalAnswer | None:
        """Wait until the budget has room for what this request can cost."""
        if body.framing == "chunked":
            return _denied(411, "this session has a budget: send the request with a `content-length`")
        if body.length > _LONGEST:
            return _denied(413, f"this session has a budget: a request has at most {_LONGEST >> 20} MiB")
        ticket = await self._meter.begin(await self._upstream.most(body.content) if body.content is not None else None)
        if isinstance(ticket, str):
            return _denied(402, f"{ticket}. Only the user can raise it: `claudebox --budget` or `--tokens`")
        self._ticket = ticket
        return None

    def passed(self, outcome: Outcome) -> None:
        """Count what it cost, and let the next one ask."""
        if self._metered and self._usage is None and outcome.owed != "nothing":
            outcome.rule = "unanswered"
        super().passed(outcome)
        told = self._usage.usage if self._usage is not None else []
        ticket, self._ticket = self._ticket, None
        if ticket is not None and outcome.owed != "nothing" and (outcome.owed == "most" or not told):
            told = ticket.owed(told)
        for usage in told:
            self._meter.add(usage)
        if ticket is not None:
            self._meter.end(ticket)

    async def again(self, request: Request, response: Response) -> Request | LocalAnswer | None:
        """Renew a login that was not taken, and ask once more."""
        holder = self._upstream.holder
        sent = (request.header(b"authorization") or b"").removeprefix(b"Bearer ").decode("ascii", "replace")
        if response.status != 401 or not sent or not isinstance(holder, SharedLogin):
            return None
        try:
            token = await holder.after_refusal(sent)
        except NoCredential as problem:
            return _denied(401, str(problem))
        headers = tuple(pair for pair in request.headers if pair[0] != b"authorization")
        return request.with_headers((*headers, (b"authorization", b"Bearer " + token.encode())))

    def response(self, response: Response) -> Response:
        """Take the credential out of the head."""
        return self._upstream.recognizer.clean_head(response)

    def filter(self, response: Response) -> BodyFilter | None:
        """Take the credential out of the body of an error; what a model says passes as it comes, and is counted."""
        if response.status >= 400:
            return Cleaner(lambda: self._upstream.recognizer)
        if not self._metered:
            return None
        kind = (response.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        self._usage = UsageFilter(events=kind == b"text/event-stream")
        return self._usage

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return the answer as an error of the API."""
        document = {"type": "error", "error": {"type": refusal.kind, "message": refusal.text}}
        return b"application/json", json.dumps(document).encode()


def _is_metered(request: Request) -> bool:
    return request.method == b"POST" and request.target.partition(b"?")[0] == _METERED


def _denied(status: int, text: str) -> LocalAnswer:
    kinds = {402: "billing_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large"}
    return LocalAnswer(status, kinds.get(status, "invalid_request_error"), f"claudebox: {text}")


def _refused(request: Request) -> LocalAnswer | None:
    """Refuse what is not among the paths of the client."""
    if not request.target.startswith(b"/"):
        return _denied(403, "the broker answers for its own upstream only; other hosts are not reached through it")
    path, _, query = request.target.partition(b"?")
    words = [word.partition(b"=") for word in query.split(b"&") if word]
    if not all(name in _QUERY and _NAMES.issuperset(value) for name, _, value in words):
        return _denied(403, "a part of this query is not open to the sandbox")
    collection, _, name = path.rpartition(b"/")
    if collection == b"/v1/models" and name and _NAMES.issuperset(name) and name not in (b".", b".."):
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


def _refresher(config: ApiConfig) -> Callable[[str, str], Awaitable[int]]:
    async def renew(path: str, refused: str) -> int:
        from claudebox.broker.credentials import Refresher

        return await Refresher(config)(path, refused)

    return renew


async def open(config: ApiConfig, shared: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    """Serve the socket of the sandbox."""
    endpoint = config.endpoint
    egress = Egress(endpoint, config.proxy, config.trust)
    holder = (
        SharedLogin(config.login, _refresher(config)) if config.login else FixedCredential(dict(config.credentials))
    )
    upstream = Upstream(config, egress, holder, Meter(config.budget, shared.log.record_usage))
    pool = Pool(egress.connect)

    async def serve(caller: Visitor) -> None:
        with contextlib.closing(await Stream.attend(caller)) as stream:
            await forward(stream, pool, ApiRules(upstream, shared.log, endpoint.host, endpoint.port))

    shared.reception.listen(shared.take_listener("model_api"), Room(_MOST, _DESCRIPTORS), serve)

    async def close() -> None:
        pool.close()

    return close
