"""What a forwarder asks before anything passes, and the answers that it gives itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from claudebox.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Framing, Headers, Request, Response
    from claudebox.broker.log import Log, Service, Verdict


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
