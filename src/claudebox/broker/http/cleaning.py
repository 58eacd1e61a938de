"""Answers without the values that were put into their requests: head, body, and what cannot be looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox.broker.http.bodies import COMPRESSED, Decompressed
from claudebox.broker.http.recognition import Cleaner

if TYPE_CHECKING:
    from claudebox.broker.http.bodies import BodyFilter
    from claudebox.broker.http.messages import Response
    from claudebox.broker.http.recognition import Recognizer

_BODY = (b"content-encoding", b"content-length")


def readable(response: Response) -> bool:
    """Return whether the body can be looked into: it has at most one coding, and one that is known."""
    codings = _codings(response)
    return not codings or (len(codings) == 1 and codings[0] in COMPRESSED)


def clean_head(response: Response, recognizer: Recognizer) -> Response:
    """Return a head without values, which goes with a body from `clean_body`."""
    headers = tuple(
        (name, recognizer.clean(value)) for name, value in response.headers if not recognizer.is_in_name(name)
    )
    if _codings(response):
        headers = tuple(pair for pair in headers if pair[0] not in _BODY)
    return response.with_headers(headers)


def clean_body(response: Response, recognizer: Recognizer) -> BodyFilter:
    """Return what a body goes through."""
    inner = Cleaner(recognizer)
    return Decompressed(inner) if _codings(response) else inner


def _codings(response: Response) -> list[bytes]:
    """Return the codings that lie one upon the other."""
    words = (
        word.strip().lower()
        for name, value in response.headers
        if name == b"content-encoding"
        for word in value.split(b",")
    )
    return [word for word in words if word not in (b"", b"identity")]
