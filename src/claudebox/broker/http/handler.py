"""What a forwarder asks before anything passes, and the answers that it gives itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Headers, Request, Response


class UpstreamFailure(Exception):  # noqa: N818 - it becomes an answer
    """The upstream cannot be reached, or broke off before it answered."""


class LocalAnswer(Value):
    """An answer of ours."""

    status: int
    kind: str  # a word for programs
    text: str  # a sentence for people and models
    headers: Headers = ()


class Rules:
    """What passes and how. This one lets everything pass as it is; override what should differ."""

    repeats = False  # it may ask a second time, so that the beginning of a request is kept

    async def request(self, request: Request) -> Request | LocalAnswer:
        """Return the request as it goes out, without changing how its body is framed, or an answer of ours."""
        return request

    def rewriting(self, _request: Request) -> Callable[[bytes], bytes] | None:
        """Return what makes another body of the whole of this request's, if anything; most pass as they come."""
        return None

    async def again(self, _request: Request, _response: Response) -> Request | LocalAnswer | None:
        """Return what to ask instead, once, if this answer should not reach the program; None lets it pass."""
        return None

    def response(self, response: Response) -> Response:
        """Return the answer as the program gets it."""
        return response

    def filter(self, _response: Response) -> BodyFilter | None:
        """Return what the body of an answer goes through, if anything."""
        return None

    def render(self, refusal: LocalAnswer) -> tuple[bytes, bytes]:
        """Return type and content of an answer of ours."""
        return b"text/plain; charset=utf-8", f"{refusal.text}\n".encode()

    def passed(self, up: int, down: int) -> None:
        """Hear how many bytes of bodies an exchange had."""
