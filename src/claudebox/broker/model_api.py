"""The service for models: an agent's requests go to one upstream each, with the credential inserted.

Anybody inside may send requests in the user's name; that is the sandbox's purpose. Nobody inside can get the
credential: not by asking for it, not for another one, and not in a response. Callers come by a Unix socket of the
sandbox's own, or by its loopback. On the host's loopback, in tier `full`, the placeholder is what tells the sandbox
from other accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json

from claudebox.broker import protocols
from claudebox.broker.credentials import FixedCredential, NoCredential, SharedLogin
from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.http.forward import LocalAnswer, Rules, forward
from claudebox.broker.http.messages import header
from claudebox.broker.http.stream import Egress, Pool, Stream
from claudebox.broker.metering import Meter, TokenUsage
from claudebox.broker.reception import Room
from claudebox.broker.secrets import is_guessable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.agent.record import Upstream
    from claudebox.broker.http.forward import Exchange
    from claudebox.broker.http.messages import BodyFilter, Request, Response
    from claudebox.broker.log import Log
    from claudebox.broker.main import Context
    from claudebox.broker.metering import Ticket, UsageFilter
    from claudebox.broker.reception import Attend, Visitor
    from claudebox.network.records import ApiConfig


_AUTH = frozenset((b"authorization", b"x-api-key", b"proxy-authorization"))
_INSPECTED = 1 << 20  # bytes of a request that are parsed for what it can cost
_LONGEST = 32 << 20  # bytes of a request under a budget; the API's own limit
_MOST, _DESCRIPTORS = 256, 2  # connections; two ends each
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:@")
_KINDS = {402: "billing_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large"}
_STATUSES = {401: "UNAUTHENTICATED", 402: "RESOURCE_EXHAUSTED", 403: "PERMISSION_DENIED", 413: "INVALID_ARGUMENT"}


# Header fields that any agent sends; another could carry a credential, choose who pays, or be shown to others.
_FIELDS = frozenset((
    b"accept", b"accept-language", b"cache-control", b"content-length", b"content-type", b"expect",
    b"transfer-encoding", b"user-agent",
))  # fmt: skip
_FIELD_PREFIXES = (b"x-stainless-",)


class Openings:
    """What of an API is open: paths, parts of the query, header fields."""

    def __init__(self, api: Upstream) -> None:
        self._base = read_path(api.official)
        self._usage = api.usage
        self._rows: list[tuple[bytes, bytes, bool, bytes]] = []
        for method, path in api.paths:
            first, wild, last = path.encode().partition(b"*")
            self._rows.append((method.encode(), first, bool(wild), last))
        self._queries = frozenset(name.encode() for name in api.queries)
        fields = [name.encode() for name in api.fields]
        self._fields = _FIELDS.union(name for name in fields if not name.endswith(b"*"))
        self._prefixes = (*_FIELD_PREFIXES, *(name[:-1] for name in fields if name.endswith(b"*")))

    def _is_open(self, name: bytes, value: bytes = b"") -> bool:
        return name in self._queries and _NAME.issuperset(value)

    def below(self, target: bytes) -> bytes | None:
        """Return the path below the address, without the query; None if it lies elsewhere."""
        path = target.partition(b"?")[0]
        return path.removeprefix(self._base) if path.startswith(self._base + b"/") else None

    def methods(self, path: bytes) -> set[bytes]:
        """Return the methods that are open for a path."""
        return {method for method, first, wild, last in self._rows if _fits(path, first, last, wild=wild)}

    def protocol(self, request: Request) -> str:
        """Return the protocol by which the answer is counted, "" if it costs nothing."""
        return protocols.of_path(self.below(request.target) or b"", self._usage) if request.method == b"POST" else ""

    def passes(self, field: bytes) -> bool:
        """Return whether a header field is the agent's; others could carry a credential or choose who pays."""
        return field in self._fields or field.startswith(self._prefixes)

    def refusal(self, request: Request) -> LocalAnswer | None:
        """Refuse methods, paths and queries that the agent does not use."""
        if not request.target.startswith(b"/"):
            return _denied(403, "the broker answers for its own upstream only; other hosts are not reached through it")
        words = [word for word in request.target.partition(b"?")[2].split(b"&") if word]
        if not all(word in self._queries or self._is_open(*word.split(b"=", 1)) for word in words):
            return _denied(403, "a part of this query is not permitted")
        path = self.below(request.target)
        methods = self.methods(path) if path is not None else set()
        if not methods:
            return _denied(
                403,
                "this path is not permitted: a sandbox may query and list models. If a task "
                "needs another, the user can run it outside, or start claudebox with `--set auth=passthrough`",
            )
        asked = b"GET" if request.method == b"HEAD" else request.method
        return None if asked in methods else _denied(405, "this method is not permitted for this path")


def read_path(address: str) -> bytes:
    """Return the path of an address."""
    _, slash, path = address.partition("://")[2].partition("/")
    return f"{slash}{path}".rstrip("/").encode()


def _fits(path: bytes, first: bytes, last: bytes, *, wild: bool) -> bool:
    if not wild:
        return path == first
    name = path.removeprefix(first).removesuffix(last)
    plain = _NAME.issuperset(name) and name.strip(b".") and not (last and b":" in name)
    return bool(plain) and path == first + name + last


class Provider:
    """Shared by all connections: the endpoint, the credential, the meter."""

    def __init__(self, config: ApiConfig, meter: Meter) -> None:
        self.egress, self.meter, self.api = Egress(config.endpoint, config.proxy, config.trust), meter, config.api
        self.openings = Openings(config.api)
        self.credential = SharedLogin(config) if config.login else FixedCredential(config.credentials)
        self.placeholder = config.placeholder.encode()
        self._auth = _AUTH | {config.api.header.encode()}
        self.demanding = bool(config.port)  # every request must carry the placeholder
        authority = str(config.endpoint.replace(prefix="")).partition("://")[2].encode()
        self._prefix = config.endpoint.prefix.encode()
        self._skipped = len(read_path(config.api.official))  # the endpoint has a path of its own
        self._authority = authority
        self._custom = tuple((name.encode(), value.encode()) for name, value in config.headers)
        bare = (value.removeprefix("Bearer ") for _, value in config.headers)
        self._custom_secrets = tuple(value.encode() for value in bare if not is_guessable(value))
        self._recognizers: dict[tuple[bytes, ...], Recognizer] = {}
        self._inspecting = asyncio.Lock()

    @property
    def recognizer(self) -> Recognizer:
        """Return what finds all credentials used so far."""
        secrets = (*self.credential.secrets, *self._custom_secrets)
        if secrets not in self._recognizers:
            self._recognizers = {secrets: Recognizer((secret, b"") for secret in secrets)}
        return self._recognizers[secrets]

    def take_placeholder(self, request: Request) -> tuple[Request, bool] | None:
        """Return the request without its credentials, and whether it had one; None if one is not the placeholder."""
        given = [_bare(value) for name, value in request.headers if name in self._auth]
        target, named = request.target, self.api.key_query.encode()
        if named:
            path, _, query = target.partition(b"?")
            words = [word.partition(b"=") for word in query.split(b"&") if word]
            given += [value for name, _, value in words if name == named]
            rest = b"&".join(b"".join(word) for word in words if word[0] != named)
            target = path + (b"?" + rest if rest else b"")
        if not all([hmac.compare_digest(value, self.placeholder) for value in given]):  # noqa: C419 - look at each
            return None
        if not given and self.demanding:
            return None
        return request.replace(target=target), bool(given)

    async def most(self, protocol: str, target: bytes, content: bytes) -> TokenUsage | None:
        """Return the most that a request can cost; parsed in a thread, one at a time, since that may take long."""
        async with self._inspecting:
            return await asyncio.get_running_loop().run_in_executor(None, protocols.most_of, protocol, target, content)

    def address(self, request: Request, credential: list[tuple[bytes, bytes]]) -> Request:
        """Return the request as the upstream gets it."""
        rest = (*filter(lambda pair: self.openings.passes(pair[0]), request.headers), (b"accept-encoding", b"identity"))
        own = {name for name, _ in self._custom}  # custom headers win, as in the client itself
        kept = tuple(pair for pair in (*rest, *credential) if pair[0] not in own)
        headers = ((b"host", self._authority), *kept, *self._custom)
        below = request.target[self._skipped :]
        return request.replace(target=self._prefix + below, headers=headers)


def _bare(value: bytes) -> bytes:
    """Return a credential without the word that names its scheme."""
    scheme, blank, rest = value.partition(b" ")
    return rest.strip() if blank and scheme.lower() == b"bearer" else value.strip()


class ApiRules(Rules):
    """Only the client's own requests pass, only with the credential of the broker."""

    def __init__(self, upstream: Provider, log: Log, host: str, port: int) -> None:
        super().__init__(log, "api", host, port)
        self._upstream, self._meter = upstream, upstream.meter
        self._protocol = ""
        self._ticket: Ticket | None = None
        self._usage: UsageFilter | None = None
        self._added = False  # the request was made to ask for its usage

    @property
    def outlives(self) -> bool:
        """Read metered responses to the end: disconnecting early costs the same."""
        return self._ticket is not None

    def wanted(self, request: Request) -> int:
        counted = self._meter.budget is not None and self._upstream.openings.protocol(request)
        return _INSPECTED if counted and self._upstream.take_placeholder(request) is not None else 0

    async def request(self, request: Request, exchange: Exchange) -> Request | LocalAnswer:
        """Replace the placeholder by the credential."""
        upstream = self._upstream
        self._protocol, self._ticket, self._usage, self._added = "", None, None, False
        taken = upstream.take_placeholder(request)
        if taken is None:
            return _denied(
                401, "this is not the placeholder of this sandbox; requests with another credential do not pass"
            )
        request, given = taken
        refusal = upstream.openings.refusal(request)
        if refusal is not None:
            return refusal
        self._protocol = upstream.openings.protocol(request)
        try:
            credential = await upstream.credential.headers() if given else []
        except NoCredential as problem:
            return _denied(401, str(problem))
        if self._protocol and self._meter.budget is not None:
            refusal = await self._reserve(request, exchange)
            if refusal is not None:
                return refusal
        return upstream.address(request, credential)

    async def _reserve(self, request: Request, exchange: Exchange) -> LocalAnswer | None:
        """Wait until the budget has room for the most that this request can cost."""
        if exchange.framing == "chunked":
            return _denied(411, "this session has a budget: send the request with a `content-length`")
        if exchange.length > _LONGEST:
            return _denied(413, f"this session has a budget: a request has at most {_LONGEST >> 20} MiB")
        most = None
        if exchange.content is not None:
            most = await self._upstream.most(self._protocol, request.target, exchange.content)
            asking = protocols.ask_for_usage(exchange.content) if self._protocol == "chat" else None
            self._added = asking is not None and exchange.send_instead(asking)
        ticket = await self._meter.begin(most, protocols.MAKERS[self._protocol])
        if isinstance(ticket, str):
            spent = _denied(402, f"{ticket}. Only the user can raise it: `claudebox --budget` or `tokens`")
            # Codex and LiteLLM take 402 for a fault that passes, and ask again for a minute.
            return spent.replace(status=400) if self._protocol in ("chat", "responses") else spent
        self._ticket = ticket
        return None

    def passed(self, exchange: Exchange) -> None:
        """Count what it cost, and release what was reserved."""
        if self._protocol and self._usage is None and exchange.owed != "nothing":
            exchange.rule = "unanswered"
        super().passed(exchange)
        ticket, self._ticket = self._ticket, None
        if self._usage is not None and ticket is None and self._protocol != "anthropic":  # that tells its input at once
            self._usage.asked = exchange.up
        reported = self._usage.usage if self._usage is not None else []
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
        """Remove the credential, and cookies: they are credentials too, and none is sent."""
        cleaned = self._upstream.recognizer.clean_head(response)
        return cleaned.replace(headers=tuple(pair for pair in cleaned.headers if pair[0] != b"set-cookie"))

    def filter(self, response: Response) -> BodyFilter | None:
        """Remove the credential, and count what a model's answer cost."""
        answers = response.status < 300 and bool(self._protocol)
        cleaner = Cleaner(lambda: self._upstream.recognizer, quick=answers)
        if not answers:
            return cleaner
        kind = (header(response, b"content-type") or b"").partition(b";")[0].strip().lower()
        events = kind == b"text/event-stream"
        self._usage = protocols.reader(self._protocol, events=events, added=self._added)
        return _InTurn(cleaner, self._usage)

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return it in the API's format of errors."""
        shape, error = self._upstream.api.usage, {"type": refusal.kind, "message": refusal.text}
        document: dict[str, object] = {"error": {**error, "code": refusal.kind, "param": None}}
        if shape == "anthropic":
            document = {"type": "error", "error": error}
        elif shape == "gemini":
            status = _STATUSES.get(refusal.status, "UNAVAILABLE" if refusal.status >= 500 else "INVALID_ARGUMENT")
            document = {"error": {"code": refusal.status, "message": refusal.text, "status": status}}
        return b"application/json", json.dumps(document).encode()


class _InTurn:
    """Passes a body through one filter and then another."""

    def __init__(self, first: BodyFilter, second: BodyFilter) -> None:
        self._first, self._second = first, second

    def feed(self, piece: bytes) -> bytes:
        return self._second.feed(self._first.feed(piece))

    def end(self) -> bytes:
        return self._second.feed(self._first.end()) + self._second.end()


def _denied(status: int, text: str) -> LocalAnswer:
    return LocalAnswer(status, _KINDS.get(status, "invalid_request_error"), f"claudebox: {text}")


async def open(configs: tuple[ApiConfig, ...], context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    """Serve the sockets of the sandbox."""
    meter = Meter(configs[0].budget, context.log.record_usage)
    room = Room(_MOST, _DESCRIPTORS)
    pools = []
    for config in configs:
        upstream = Provider(config, meter)
        pools.append(Pool(upstream.egress.connect))
        attend = _attendant(upstream, pools[-1], context.log, config)
        context.reception.listen(await context.wait_listener(config.listener), room, attend)

    async def close() -> None:
        for pool in pools:
            pool.close()

    return close


def _attendant(upstream: Provider, pool: Pool, log: Log, config: ApiConfig) -> Attend:
    host, port = config.endpoint.host, config.endpoint.port

    async def serve(caller: Visitor) -> None:
        with contextlib.closing(await Stream.attend(caller)) as stream:
            await forward(stream, pool, ApiRules(upstream, log, host, port))

    return serve
