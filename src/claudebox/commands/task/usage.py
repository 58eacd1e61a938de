"""What a task took of the model, as the broker counted it outside: also where the client did not live to say it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from claudebox.broker.model_api.metering import TokenUsage
from claudebox.commands.task.result import logs
from claudebox.report.log_reader import LogReader

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
    return max(most / 1_000_000, result.cost_usd or 0.0)


def _usage_lines(path: str) -> list[dict[str, Any]]:
    reader = LogReader(os.path.dirname(path), os.path.basename(path))
    try:
        return [line for line in reader.lines() if line.get("kind") == "usage"]
    finally:
        reader.close()


def _numbers(line: dict[str, Any]) -> dict[str, int]:
    return {part: line[part] for part in _NAMES if type(line.get(part)) is int}
