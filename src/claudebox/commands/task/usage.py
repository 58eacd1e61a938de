"""What a task took of the model, as the broker counted it outside: also where the client did not live to say it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from claudebox.broker.model_api.metering import TokenUsage
from claudebox.commands.task.model import OVER_BUDGET
from claudebox.commands.task.result import logs
from claudebox.report.session_log import find_doubts, read_lines

if TYPE_CHECKING:
    from claudebox.commands.task.result import TaskResult

_NAMES = {
    "input": "input_tokens", "output": "output_tokens", "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}  # fmt: skip


def add_usage(result: TaskResult, state: str) -> float:
    """Put the tokens of all tries into the result, and their price if it is known; return what a budget counts.

    Towards a budget a model without a price counts as the dearest, and what the client says of itself is in the result
    only where nothing better is known: the agent could have said it.
    """
    lines = [line for path in logs(state) for line in _usage_lines(path)]
    counted = [TokenUsage(str(line.get("model", "")), **_numbers(line)) for line in lines]
    prices = [line["price"] if type(line.get("price")) is int else 0 for line in lines]
    for part, name in _NAMES.items() if lines else ():
        result.tokens[name] = sum(getattr(usage, part) for usage in counted)
    if lines and all(prices):
        result.cost_usd = sum(prices) / 1_000_000
    most = sum(price or usage.price(unknown=True) for price, usage in zip(prices, counted, strict=True))
    doubts = [find_doubts(_lines(path)) for path in logs(state)]
    result.missing = list(dict.fromkeys(text for found in doubts for text in found))
    accounts = [line for path in logs(state) for line in _lines(path) if line.get("kind") == "broker"]
    unknown = any(line.get("silent") or line.get("lost") for line in accounts)
    return max(most / 1_000_000, result.cost_usd or 0.0, math.inf if unknown else 0.0)  # nobody knows what else it took


def find_errors(state: str) -> set[int] | None:
    """Return the statuses of errors that the broker saw in the last try; None if no request went through it.

    Its own refusal for the budget counts as `OVER_BUDGET`: an upstream refuses with the same status.
    """
    last = [line for path in [*logs(state)][-1:] for line in _lines(path) if line.get("service") == "api"]
    own = {OVER_BUDGET for line in last if (line.get("verdict"), line.get("rule")) == ("denied", "billing_error")}
    return own | {line["status"] for line in last if type(line.get("status")) is int} if last else None


def _usage_lines(path: str) -> list[dict[str, Any]]:
    return [line for line in _lines(path) if line.get("kind") == "usage"]


def _lines(path: str) -> list[dict[str, Any]]:
    return read_lines(*os.path.split(path))


def _numbers(line: dict[str, Any]) -> dict[str, int]:
    return {part: line[part] for part in _NAMES if type(line.get(part)) is int}
