"""The way to the model: requests of the client, with the credential put in, to the one upstream.

Whoever has the socket may ask the upstream in the user's name; that is what the sandbox is for. What nobody inside
gets is the credential: not by asking for it, not for another one, and not in what comes back.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from claudebox.broker.http.bodies import COMPRESSED, Decompressed
from claudebox.broker.http.cleaning import clean_body, clean_head, readable
from claudebox.broker.http.forward import forward
from claudebox.broker.http.handler import LocalAnswer, Rules
from claudebox.broker.http.recognition import Recognizer
from claudebox.broker.http.recording import Recording
from claudebox.broker.http.stream import Pool, Stream
from claudebox.broker.http.upstream import Egress
from claudebox.broker.model_api.credentials import FixedCredential, NoCredential, SharedLogin
from claudebox.broker.model_api.metering import Meter, UsageFilter, add_reminder
from claudebox.broker.reception import Room

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Request, Response
    from claudebox.broker.main import Context
    from claudebox.broker.reception import Visitor
    from claudebox.plan.network_model import ApiConfig

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
_SECRET = 8  # characters from which on the value of a header is one that must not come back
_MOST, _DESCRIPTORS = 256, 2  # connections at a time; two ends each
_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:@")


class ApiRules(Rules):
    """Only to the upstream, only with the credential of the broker."""

    def __init__(
        self, egress: Egress, prefix: str, holder: FixedCredential | SharedLogin, placeholder: str,
        custom: tuple[tuple[str, str], ...] = (), meter: Meter | None = None,
    ) -> None:  # fmt: skip
        self._meter = meter or Meter(None, lambda _usage: None)
        self._egress = egress
        self._prefix = prefix.encode()
        self._holder = holder
        self.repeats = holder.renewable
        self._placeholder = placeholder.encode()
        port = "" if egress.port == {"http": 80, "https": 443}[egress.scheme] else f":{egress.port}"
        name = f"[{egress.host}]" if ":" in egress.host else egress.host
        self._authority = f"{name}{port}".encode()
        self._custom = tuple((name.encode(), value.encode()) for name, value in custom)
        self._recognizers: dict[tuple[bytes, ...], Recognizer] = {}

    @property
    def _recognizer(self) -> Recognizer:
        """Return what finds the credentials that were used up to now."""
        longer = (value.removeprefix(b"Bearer ") for _, value in self._custom if len(value) >= _SECRET)
        secrets = (*self._holder.secrets(), *longer)
        if secrets not in self._recognizers:
            self._recognizers = {secrets: Recognizer((secret, b"") for secret in secrets)}
        return self._recognizers[secrets]

    async def request(self, request: Request) -> Request | LocalAnswer:
        """Put the credential in where the placeholder stands."""
        refusal = _refused(request)
        if refusal is not None:
            return refusal
        asked = False
        for name, value in request.headers:
            if name in _AUTH:
                if value.removeprefix(b"Bearer ").strip() != self._placeholder:
                    return _denied(
                        401, "this is not the placeholder of this sandbox; requests with another credential do not pass"
                    )
                asked = True
        try:
            held = await self._holder.headers() if asked else []
        except NoCredential as problem:
            return _denied(401, str(problem))
        metered = request.target.partition(b"?")[0] == _METERED
        if spent := await self._meter.begin(_length(request)) if metered else "":
            return _denied(402, f"{spent}. Only the user can raise it: `claudebox --budget` or `--tokens`")
        return self._addressed(request, held)

    def passed(self, up: int, down: int) -> None:  # noqa: ARG002
        """Let the next one ask."""
        self._meter.end(down)

    def _addressed(self, request: Request, held: list[tuple[bytes, bytes]]) -> Request:
        rest = tuple(pair for pair in request.headers if pair[0] in _FIELDS or pair[0].startswith(_FIELD_PREFIXES))
        if request.target.partition(b"?")[0] == _METERED:  # what it costs is read as it passes
            rest = (*rest, (b"accept-encoding", b"identity"))
        elif b"gzip" in (request.header(b"accept-encoding") or b""):  # what can be looked into if it is an error
            rest = (*rest, (b"accept-encoding", b"gzip, deflate"))
        target = self._prefix + request.target
        if self._egress.absolute:
            target = b"http://" + self._authority + target
        own = {name for name, _ in self._custom}  # what the user wants wins, as in the client itself
        kept = tuple(pair for pair in (*rest, *held) if pair[0] not in own)
        headers = ((b"host", self._authority), *kept, *self._custom)
        return type(request)(request.method, target, headers, request.version)

    def rewriting(self, request: Request) -> Callable[[bytes], bytes] | None:
        """Warn the agent, once, in the next request of its own."""
        asked = request.method == b"POST" and request.target.partition(b"?")[0].endswith(_METERED)
        warning = self._meter.warning() if asked else ""
        return (lambda body: add_reminder(body, warning)) if warning else None

    async def again(self, request: Request, response: Response) -> Request | LocalAnswer | None:
        """Renew a login that was not taken, and ask once more; keep an error back that cannot be looked into."""
        if response.status >= 400 and not readable(response):
            return LocalAnswer(response.status, "api_error", "claudebox: the upstream's error is not readable here")
        sent = (request.header(b"authorization") or b"").removeprefix(b"Bearer ").decode("ascii", "replace")
        if response.status != 401 or not sent or not isinstance(self._holder, SharedLogin):
            return None
        try:
            token = await self._holder.after_refusal(sent)
        except NoCredential as problem:
            return _denied(401, str(problem))
        headers = tuple(pair for pair in request.headers if pair[0] != b"authorization")
        return request.with_headers((*headers, (b"authorization", b"Bearer " + token.encode())))

    def response(self, response: Response) -> Response:
        """Take the credential out of the head."""
        if response.status >= 400:
            self._meter.forgive()
            return clean_head(response, self._recognizer)
        found = self._recognizer
        return response.with_headers(
            tuple((name, found.clean(value)) for name, value in response.headers if not found.is_in_name(name))
        )

    def filter(self, response: Response) -> BodyFilter | None:
        """Take the credential out of the body of an error; what a model says passes as it comes, and is counted."""
        if response.status >= 400:
            return clean_body(response, self._recognizer)
        kind = (response.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind not in (b"text/event-stream", b"application/json"):
            return None
        counted: BodyFilter = UsageFilter(self._meter, events=kind == b"text/event-stream")
        coding = (response.header(b"content-encoding") or b"identity").strip().lower()
        return Decompressed(counted) if coding in COMPRESSED else counted

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Answer in the shape in which the API tells of errors."""
        self._meter.forgive()
        document = {"type": "error", "error": {"type": refusal.kind, "message": refusal.text}}
        return b"application/json", json.dumps(document).encode()


def _length(request: Request) -> int:
    """Return how long a body is, as far as that is said."""
    said = request.header(b"content-length") or b""
    return int(said) if said.isdigit() and len(said) < 12 else 0


def _denied(status: int, text: str) -> LocalAnswer:
    kinds = {402: "billing_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    return LocalAnswer(status, kinds.get(status, "invalid_request_error"), f"claudebox: {text}")


def _refused(request: Request) -> LocalAnswer | None:
    """Refuse what is not among the paths of the client."""
    if not request.target.startswith(b"/"):
        return _denied(403, "the broker answers for its own upstream only; other hosts are not reached through it")
    path, _, query = request.target.partition(b"?")
    if not {word.partition(b"=")[0] for word in query.split(b"&") if word} <= _QUERY:
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
        from claudebox.broker.model_api.renewal import Refresher

        return await Refresher(config)(path, refused)

    return renew


async def open(config: ApiConfig, shared: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001
    """Serve the socket of the sandbox."""
    endpoint = config.endpoint
    egress = Egress(endpoint, config.proxy, config.trust)
    holder = (
        SharedLogin(config.login, _refresher(config)) if config.login else FixedCredential(dict(config.credentials))
    )
    meter = Meter(config.budget, shared.log.record_usage)
    rules = ApiRules(egress, endpoint.prefix, holder, config.placeholder, config.headers, meter)
    pool = Pool(egress.connect)

    async def serve(caller: Visitor) -> None:
        with contextlib.closing(await Stream.attend(caller)) as stream:
            await forward(stream, pool, Recording(rules, shared.log, (endpoint.host, endpoint.port), "api"))

    shared.reception.listen(shared.take_listener("model_api"), Room(_MOST, _DESCRIPTORS), serve)

    async def close() -> None:
        pool.close()

    return close
