"""Counts what the model's responses cost, and refuses requests when the budget is spent.

Responses are one document or a stream of events. Only the API's own events are parsed: the model's text is inside
strings, where quotation marks are escaped, so it cannot imitate one.
"""

from __future__ import annotations

import asyncio
import json

from claudebox.base.records import Value
from claudebox.network.records import Budget
from claudebox.tables import prices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST = 8 << 20  # bytes of a line or a document
_MOST = 1 << 40  # tokens; larger numbers are nonsense
_BYTES = 3  # of a response per token, at least
_EVENT = 90  # bytes of an event besides its text
_COUNTS = {
    "input": "input_tokens", "output": "output_tokens", "cache_write": "cache_creation_input_tokens",
    "cache_read": "cache_read_input_tokens",
}  # fmt: skip
_SUMMED = ("input", "output", "cache_write", "cache_write_long", "cache_read")
_ADDED = 2_000  # tokens that the API adds to a request with tools
_IMAGE = 5_000  # tokens of an image, however small its file
# Fields of a request that add no cost beyond its text and its response.
_PLAIN = frozenset((
    "anthropic_beta", "anthropic_version", "cache_control", "context_management", "max_tokens", "messages", "metadata",
    "inference_geo", "model", "output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream",
    "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
))  # fmt: skip


class TokenUsage(Value):
    """The tokens of one answer."""

    model: str = ""
    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_write_long: int = 0  # of these, for an hour
    cache_read: int = 0
    tools: int = 0  # what tools of the API cost besides, in millionths of a dollar
    percent: int = 100  # of the usual price, for speed and place
    maker: str = "anthropic"  # whose dearest model an unknown one counts as

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_write + self.cache_read

    def _is_called(self, name: str) -> bool:
        """Return whether the model has this name, or this and a date: `gpt-5.9` and `gpt-5-audio` are not `gpt-5`."""
        rest = self.model[len(name) :]
        words = "".join(letter if letter.isalnum() else " " for letter in rest).split()
        usual = all(word.isdigit() or word in prices.VARIANTS for word in words)
        return self.model.startswith(name) and usual and not (rest[:1].isalnum() or rest[:1] == ".")

    def price(self, *, unknown: bool = False) -> int:
        """Return the cost in millionths of a dollar; a model without a price costs nothing, if `unknown` the most."""
        found = max(filter(self._is_called, prices.PRICES), key=len, default="")
        if not found and not unknown:
            return self.tools
        given, said, read = prices.PRICES[found] if found else prices.DEAREST[self.maker]
        limit, more_given, more_said = prices.LONG.get(found, (_MOST, 100, 100))
        if self.input + self.cache_write + self.cache_read > limit:
            given, said, read = given * more_given // 100, said * more_said // 100, read * more_given // 100
        written = (self.cache_write - self.cache_write_long) * prices.CACHE_WRITE
        written += self.cache_write_long * prices.CACHE_WRITE_LONG
        spent = self.input * given + written * given // 100 + self.cache_read * read + self.output * said
        return (spent * self.percent + 99_999) // 100_000 + self.tools


LARGEST = TokenUsage(
    output=128_000, cache_write=1_000_000, cache_write_long=1_000_000, percent=prices.SPEED * prices.PLACE // 100
)


class Ticket:
    """A request under way, and what is reserved for it until its response is counted."""

    def __init__(self, most: TokenUsage | None, budget: Budget, maker: str) -> None:
        """Reserve the most that it can cost, everything if that is unknown."""
        self._most, self._maker = most, maker
        self.dollars = most.price(unknown=True) if most else budget.dollars
        self.tokens = most.tokens if most else budget.tokens

    def owed(self, reported: list[TokenUsage]) -> list[TokenUsage]:
        """Return the most that a response can have cost that broke off after reporting this."""
        if self._most is None:
            return max(reported, [LARGEST.replace(maker=self._maker)], key=_price)
        if not reported:
            return [self._most]
        first, *others = reported
        output, percent = max(first.output, self._most.output), max(first.percent, self._most.percent)
        return [first.replace(output=output, percent=percent), *others]


class Meter:
    """Counts for one session, subagents included.

    Concurrent requests pass if the budget covers the most that all of them can cost. One passes alone while anything is
    left, so at most the budget and one request can be spent.
    """

    def __init__(self, budget: Budget | None, record: Callable[[TokenUsage], None]) -> None:
        self.budget, self._record = budget, record
        self._limit = budget or Budget()  # 0: unlimited
        self.spent = self.tokens = 0
        self._under_way: set[Ticket] = set()
        self._freed = asyncio.Event()

    def add(self, usage: TokenUsage) -> None:
        if usage.tokens:
            self.tokens += usage.tokens
            self.spent += usage.price(unknown=True)
            self._record(usage)

    async def begin(self, most: TokenUsage | None, maker: str = "anthropic") -> Ticket | str:
        """Wait until so much can be spent; return a ticket, or the refusal."""
        ticket = Ticket(most, self._limit, maker)
        while not (refusal := self.refusal()) and not self._fits(ticket):
            self._freed.clear()
            await self._freed.wait()
        if refusal:
            return refusal
        self._under_way.add(ticket)
        return ticket

    def end(self, ticket: Ticket) -> None:
        """Release what was reserved."""
        self._under_way.discard(ticket)
        self._freed.set()

    def _fits(self, ticket: Ticket) -> bool:
        if not self._under_way:
            return True
        dollars = self.spent + sum(one.dollars for one in (ticket, *self._under_way))
        tokens = self.tokens + sum(one.tokens for one in (ticket, *self._under_way))
        limit = self._limit
        return (not limit.dollars or dollars <= limit.dollars) and (not limit.tokens or tokens <= limit.tokens)

    def refusal(self) -> str:
        """Return why no further request passes, or ""."""
        limit = self._limit
        if limit.dollars and self.spent >= limit.dollars:
            spent = f"${prices.as_dollars(limit.dollars)}, is spent (${prices.as_dollars(self.spent)} until now)"
            return f"the budget of this session, {spent}"
        if limit.tokens and self.tokens >= limit.tokens:
            return f"the budget of this session, {limit.tokens} tokens, is spent ({self.tokens} until now)"
        return ""


def most_of(body: bytes) -> TokenUsage | None:
    """Return the most that a request can cost, None if its text does not tell.

    It does not if the API fetches something or asks a model itself (its own tools, documents, URLs, files, compaction,
    unknown fields), or if two parsers could read the text differently.
    """
    images = 0
    plain = True

    def look(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal images, plain
        found = dict(pairs)
        kind, source = found.get("type"), found.get("source")
        if isinstance(source, dict) and kind == "image" and source.get("type") == "base64":
            images += 1
        elif isinstance(source, dict) or _is_service(kind) or len(found) < len(pairs):
            plain = False
        return found

    try:
        document = json.loads(body, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    most = number(document.get("max_tokens")) if isinstance(document, dict) else 0
    if not plain or not most or not document.keys() <= _PLAIN:
        return None
    asked = len(body) + _ADDED + images * _IMAGE  # a token has at least one byte; an hour in the cache costs most
    dearest = _percent(document.get("speed"), "anywhere")  # an account may have chosen a country for all
    return TokenUsage(model_name(document), output=most, cache_write=asked, cache_write_long=asked, percent=dearest)


def _is_service(kind: object) -> bool:
    """Return whether this names something that the API does itself; clearing text is free."""
    return isinstance(kind, str) and kind[-9:-6] == "_20" and not kind.startswith("clear_")


class UsageFilter:
    """Passes a body unchanged, and reads the usage that it reports: for the Messages API, and a base for others."""

    _mark = b'"usage"'  # in a line that may report
    asked = 0  # bytes of the request, if its cost may be told by its length

    def __init__(self, *, events: bool) -> None:
        self._events = events
        self._held = b""
        self._overlong = False
        self._usage = TokenUsage()
        self._others: list[TokenUsage] = []  # of other models, or other passes
        self._heard = 0  # bytes of text since the last report

    @property
    def usage(self) -> list[TokenUsage]:
        """Return the reported usage; text after the last report is counted by its length."""
        first = self._usage
        if first.tokens:
            first = first.replace(output=first.output + self._heard // _BYTES)
        elif self.asked:
            first = first.replace(input=self.asked // _BYTES, output=self._heard // _BYTES)
        return [one for one in (first, *self._others) if one.tokens]

    def feed(self, piece: bytes) -> bytes:
        self._held += piece
        if self._events:
            *lines, self._held = self._held.split(b"\n")
            for line in lines:
                self._take_line(line)
                self._overlong = False
        if len(self._held) > _LONGEST:
            self._held, self._overlong = b"", True
        return piece

    def _take_line(self, line: bytes) -> None:
        self._hear(line)
        if self._mark in line and not self._overlong:
            self._read(line.removeprefix(b"data:"))

    def _hear(self, line: bytes) -> None:
        """Count text that a line brings."""
        if b'"content_block_delta"' in line:
            self._heard += max(_BYTES, len(line) - _EVENT)

    def end(self) -> bytes:
        if not self._events and not self._overlong:
            self._read(self._held)
        self._held = b""
        return b""

    def _read(self, text: bytes) -> None:
        document = parse_document(text)
        if isinstance(document, dict):
            self._understand(document)

    def _understand(self, document: dict[str, object]) -> None:
        """Take the report of an event or a whole answer."""
        kind, message = document.get("type"), document.get("message")
        if kind == "message_start" and isinstance(message, dict):
            self._take(TokenUsage(model_name(message)), message.get("usage"))
        elif kind == "message_delta":
            self._take(self._usage, document.get("usage"))
            self._heard = 0
        elif kind == "message" and not self._events:
            self._take(TokenUsage(model_name(document)), document.get("usage"))

    def _take(self, usage: TokenUsage, said: object) -> None:
        """Merge a report: the whole can omit what later passes of the message read again, and omits other models."""
        parts = said.get("iterations") if isinstance(said, dict) else None
        own, others = TokenUsage(), []
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "message":
                own = _sum(own, _merged(TokenUsage(), part))
            elif isinstance(part, dict):
                name = usage.model if part.get("type") == "compaction" and "model" not in part else model_name(part)
                others.append(_merged(TokenUsage(name), part))
        whole = _merged(usage, said)
        self._usage = whole.replace(**{name: max(getattr(whole, name), getattr(own, name)) for name in _SUMMED})
        self._others = max(self._others, others, key=_price)


def parse_document(text: bytes) -> object:
    """Return a document of JSON, None if it is none."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def model_name(message: dict[str, object], field: str = "model") -> str:
    """Return the name of a model, if it looks like one."""
    name = message.get(field)
    plain = isinstance(name, str) and len(name) <= 100 and name.isascii() and name.isprintable()
    return str(name) if plain else ""


def _percent(speed: object, place: object) -> int:
    """Return the price in percent of the usual one; unknown words count as the dearest."""
    slow, usual = speed in prices.USUAL_SPEEDS, place in prices.USUAL_PLACES
    return (100 if slow else prices.SPEED) * (100 if usual else prices.PLACE) // 100


def _price(parts: list[TokenUsage]) -> int:
    return sum(part.price(unknown=True) for part in parts)


def _sum(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    return TokenUsage(**{name: getattr(one, name) + getattr(other, name) for name in _SUMMED})


def _merged(usage: TokenUsage, said: object) -> TokenUsage:
    """Return the usage merged with a report; the numbers in a stream are totals and never decrease."""
    if not isinstance(said, dict):
        return usage
    counts = {name: max(getattr(usage, name), number(said.get(field))) for name, field in _COUNTS.items()}
    caches = said.get("cache_creation")
    long = number(caches.get("ephemeral_1h_input_tokens")) if isinstance(caches, dict) else 0
    used = said.get("server_tool_use")
    dearest = max(prices.SERVER_TOOLS.values())
    tools = sum(
        number(count) * prices.SERVER_TOOLS.get(name, dearest)
        for name, count in (used.items() if isinstance(used, dict) else ())
    )
    return usage.replace(
        **counts,
        cache_write_long=min(max(usage.cache_write_long, long), counts["cache_write"]),
        tools=max(usage.tools, tools),
        percent=max(usage.percent, _percent(said.get("speed"), said.get("inference_geo"))),
    )


def number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else 0
