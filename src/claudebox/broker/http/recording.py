"""Rules whose decisions are written down, one line for each exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox.broker.http.handler import LocalAnswer, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Request, Response
    from claudebox.broker.log import Log, Service, Verdict


class Recording(Rules):
    """Lets other rules decide on one connection, and writes down how."""

    def __init__(
        self,
        rules: Rules,
        log: Log,
        place: tuple[str, int],
        service: Service,
        *,
        used: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Take rules, and what returns the names of the secrets that the last request used."""
        self._rules, self._log, self._place, self._service = rules, log, place, service
        self._used = used
        self.repeats = rules.repeats
        self._verdict: Verdict = "failed"
        self._rule: str = service
        self._status = 0

    def _noted(self, answer: Request | LocalAnswer | None) -> None:
        if isinstance(answer, LocalAnswer):
            self._verdict, self._rule = "denied", answer.kind

    async def request(self, request: Request) -> Request | LocalAnswer:
        """Ask the rules."""
        self._verdict, self._rule, self._status = "failed", self._service, 0
        answer = await self._rules.request(request)
        self._noted(answer)
        return answer

    def rewriting(self, request: Request) -> Callable[[bytes], bytes] | None:
        """Ask the rules."""
        return self._rules.rewriting(request)

    async def again(self, request: Request, response: Response) -> Request | LocalAnswer | None:
        """Ask the rules."""
        answer = await self._rules.again(request, response)
        self._noted(answer)
        return answer

    def response(self, response: Response) -> Response:
        """Ask the rules."""
        self._verdict, self._status = "allowed", response.status
        return self._rules.response(response)

    def filter(self, response: Response) -> BodyFilter | None:
        """Ask the rules."""
        return self._rules.filter(response)

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Ask the rules."""
        self._status = refusal.status
        return self._rules.render(refusal)

    def passed(self, up: int, down: int) -> None:
        """Write the decision down."""
        host, port = self._place
        self._log.record(
            service=self._service, host=host, port=port, verdict=self._verdict, rule=self._rule, up=up, down=down,
            secrets=self._used(), status=self._status,
        )  # fmt: skip
        self._rules.passed(up, down)
