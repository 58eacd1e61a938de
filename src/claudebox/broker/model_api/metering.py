"""What the model's answers say that they cost, counted as they pass; and the budget that ends further requests.

Answers come as one document or as a stream of events. Of a stream only the events are read that the API makes itself:
what a model says stands in strings, where a quotation mark is escaped, and can never look like one of them.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from claudebox.tables import prices
from claudebox.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from claudebox.plan.network_model import Budget

_LONGEST = 8 << 20  # bytes of a line or a document that are held
_MOST = 1 << 40  # tokens that a number can mean
_ANSWER = 16_000  # tokens that an answer may have of which nothing is known yet
_BYTES = 3  # of a request for a token, at least
_EVENT = 90  # bytes of an event around what it says
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class TokenUsage(Value):
    """The tokens of one answer."""

    model: str = ""
    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_write_long: int = 0  # of these, for an hour
    cache_read: int = 0

    @property
    def tokens(self) -> int:
        """Return all of them."""
        return self.input + self.output + self.cache_write + self.cache_read

    def price(self, *, unknown: bool = False) -> int:
        """Return what it costs in millionths of a dollar; a model without a price costs nothing, or the most."""
        found = max((name for name in prices.PRICES if self.model.startswith(name)), key=len, default="")
        if not found and not unknown:
            return 0
        given, said, read = prices.PRICES[found] if found else max(prices.PRICES.values())
        limit, more_given, more_said = prices.LONG.get(found, (_MOST, 100, 100))
        if self.input + self.cache_write + self.cache_read > limit:
            given, said, read = given * more_given // 100, said * more_said // 100, read * more_given // 100
        written = (self.cache_write - self.cache_write_long) * prices.CACHE_WRITE
        written += self.cache_write_long * prices.CACHE_WRITE_LONG
        spent = self.input * given + written * given // 100 + self.cache_read * read + self.output * said
        return (spent + 999) // 1000


class Meter:
    """Counts for one session, and says when it is enough; subagents ask the same broker.

    What is under way counts, too, at what the dearest answer has cost, or more. One request passes as long as anything
    is left of the budget; those that could spend what others are about to spend wait for their answers.
    """

    def __init__(self, budget: Budget | None, record: Callable[[TokenUsage], None]) -> None:
        self._budget, self._record = budget, record
        self.spent = self.tokens = 0
        self._dearest = self._longest = 0
        self._warned = False
        self._under_way: dict[asyncio.Task[object] | None, tuple[int, int]] = {}  # who asks, and what is reserved
        self._owed: dict[asyncio.Task[object] | None, TokenUsage] = {}  # what was asked, until an answer is counted
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, usage: TokenUsage) -> None:
        """Count one answer."""
        if not usage.tokens:
            return
        self.forgive()
        price = usage.price(unknown=True)
        self.tokens += usage.tokens
        self.spent += price
        self._dearest, self._longest = max(self._dearest, price), max(self._longest, usage.tokens)
        self._record(usage)

    async def begin(self, length: int) -> str:
        """Wait for a turn to ask with so many bytes; return why there is none."""
        if self._budget is None:
            return ""
        least = TokenUsage(input=length // _BYTES, output=_ANSWER)
        while not (refusal := self.refusal()) and not self._fits(least):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        if not refusal:
            self._under_way[asyncio.current_task()] = self._reserve(least)
            self._owed[asyncio.current_task()] = least.replace(output=0)
        return refusal

    def forgive(self) -> None:
        """Take the request of this connection for paid: its answer was counted, or is an error."""
        if self._owed:
            self._owed.pop(asyncio.current_task(), None)

    def end(self, down: int) -> None:
        """Take the request of this connection for answered; who went away before the end owes what was sent."""
        owed = self._owed.get(asyncio.current_task()) if self._owed else None
        if owed is not None:
            self.add(owed.replace(output=down // _BYTES))
        if self._under_way.pop(asyncio.current_task(), None) is not None:
            for turn in self._waiting:
                if not turn.done():
                    turn.set_result(None)
            self._waiting.clear()

    def _reserve(self, least: TokenUsage) -> tuple[int, int]:
        return max(self._dearest, least.price(unknown=True)), max(self._longest, least.tokens)

    def _fits(self, least: TokenUsage) -> bool:
        dollars, tokens = (sum(parts) for parts in zip(self._reserve(least), *self._under_way.values(), strict=True))
        budget = self._budget
        fits = budget is None or (
            (not budget.dollars or self.spent + dollars <= budget.dollars)
            and (not budget.tokens or self.tokens + tokens <= budget.tokens)
        )
        return fits or not self._under_way

    def warning(self) -> str:
        """Return what to tell the agent when nine tenths are spent, once."""
        budget = self._budget
        if budget is None or self._warned:
            return ""
        parts = ((self.spent, budget.dollars), (self.tokens, budget.tokens))
        if not any(most and 10 * spent >= 9 * most for spent, most in parts):
            return ""
        self._warned = True
        return (
            f"more than nine tenths of the budget of this session ({budget}) are spent. Finish what you are at, commit "
            "it, and say what is left to do; soon every request ends with a billing error."
        )

    def refusal(self) -> str:
        """Return why no further request passes, or nothing."""
        budget = self._budget
        if budget is None:
            return ""
        if budget.dollars and self.spent >= budget.dollars:
            spent = f"${prices.as_dollars(budget.dollars)}, is spent (${prices.as_dollars(self.spent)} until now)"
            return f"the budget of this session, {spent}"
        if budget.tokens and self.tokens >= budget.tokens:
            return f"the budget of this session, {budget.tokens} tokens, is spent ({self.tokens} until now)"
        return ""


def add_reminder(body: bytes, text: str) -> bytes:
    """Return a request with a sentence at the end of what the user says; what is no such request stays as it is."""
    try:
        document = json.loads(body)
        last = document["messages"][-1]
        content = last["content"]
        if last["role"] != "user":
            return body
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        last["content"] = [*blocks, {"type": "text", "text": f"<system-reminder>claudebox: {text}</system-reminder>"}]
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (ValueError, LookupError, TypeError, RecursionError):
        return body


class UsageFilter:
    """Lets a body pass as it is, and reads what it says of its usage."""

    sized = True

    def __init__(self, meter: Meter, *, events: bool) -> None:
        self._meter, self._events = meter, events
        self._held = b""
        self._overlong = False
        self._usage = TokenUsage()
        self._heard = 0  # bytes that the model said since its usage was told

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the same."""
        self._held += piece
        if self._events:
            *lines, self._held = self._held.split(b"\n")
            for line in lines:
                if b'"content_block_delta"' in line:
                    self._heard += max(_BYTES, len(line) - _EVENT)
                if b'"usage"' in line and not self._overlong:
                    self._read(line.removeprefix(b"data:"))
                self._overlong = False
        if len(self._held) > _LONGEST:
            self._held, self._overlong = b"", True
        yield piece

    def end(self) -> bytes:
        """Count what was found; a stream that broke off has told its input, and what it said is counted by length."""
        if not self._events and not self._overlong:
            self._read(self._held)
        self._held = b""
        if self._usage.tokens:
            self._usage = self._usage.replace(output=self._usage.output + self._heard // _BYTES)
        self._meter.add(self._usage)
        self._usage = TokenUsage()
        return b""

    def _read(self, text: bytes) -> None:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(document, dict):
            return
        kind, message = document.get("type"), document.get("message")
        if kind == "message_start" and isinstance(message, dict):
            self._usage = _merged(TokenUsage(_model(message)), message.get("usage"))
        elif kind == "message_delta":
            self._usage, self._heard = _merged(self._usage, document.get("usage")), 0
        elif kind == "message" and not self._events:
            self._usage = _merged(TokenUsage(_model(document)), document.get("usage"))


def _model(message: dict[str, object]) -> str:
    name = message.get("model")
    plain = isinstance(name, str) and len(name) <= 100 and name.isascii() and name.isprintable()
    return str(name) if plain else ""


def _merged(usage: TokenUsage, said: object) -> TokenUsage:
    """Return the usage with what an event says; numbers of a stream are totals, and never go back."""
    if not isinstance(said, dict):
        return usage
    numbers = [_number(said.get(name)) for name in _COUNTS]
    long = said.get("cache_creation")
    held = _number(long.get("ephemeral_1h_input_tokens")) if isinstance(long, dict) else 0
    return usage.replace(
        input=max(usage.input, numbers[0]),
        output=max(usage.output, numbers[1]),
        cache_write=max(usage.cache_write, numbers[2]),
        cache_read=max(usage.cache_read, numbers[3]),
        cache_write_long=min(max(usage.cache_write_long, held), max(usage.cache_write, numbers[2])),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else 0
