"""What a session has spent on the model, and of which budget: as the broker wrote it into the log of the session."""

from __future__ import annotations

import time
from dataclasses import dataclass

from claudebox.commands import log
from claudebox.report import session_log
from claudebox.report.session_log import read_lines, sum_usage
from claudebox.tables.prices import as_dollars

_EARLIER = 1.0  # seconds that a record may have been opened before the session says that it runs


@dataclass(frozen=True)
class Spent:
    """The tokens of one session, by kind, their price in millionths of a dollar, and its budget in words."""

    usage: dict[str, int]
    budget: str = ""

    def __str__(self) -> str:
        usage, budget = self.usage, self.budget
        if not usage["answers"] and not budget:
            return ""
        price, tokens = f"${as_dollars(usage['price'])}", usage["input"] + usage["output"] + usage["cached"]
        amounts = [price] if "$" in budget or usage["price"] else []
        amounts += [f"{tokens} tokens"] if "tokens" in budget or not amounts else []
        return f"{', '.join(amounts)} of {budget}" if budget else ", ".join(amounts)


class Spending:
    """Finds what sessions have spent; the names of all logs are read once."""

    def __init__(self, state: str) -> None:
        self._directory = f"{state}/{session_log.DIRECTORY}"
        self._names = log.records(self._directory)

    def find(self, process: int, since: float) -> Spent:
        """Return what the session of this launcher has spent that began at this moment."""
        begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime(since - _EARLIER))
        names = (name for name in self._names if name >= begun and name.endswith(f"-{process}{session_log.SUFFIX}"))
        name = next(names, "") if process else ""
        if not name:
            return Spent(sum_usage(()))
        rows = read_lines(self._directory, name, b'"start"', b'"usage"')
        budget = next((row.get("budget") for row in rows if row.get("kind") == "start"), "")
        return Spent(sum_usage(rows), budget if isinstance(budget, str) else "")
