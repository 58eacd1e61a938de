"""The session's log of decisions, as the broker writes it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from claudebox.broker.metering import TokenUsage

    Verdict = Literal["opened", "allowed", "denied", "failed"]
    Service = Literal["api", "proxy", "secrets"]
    Labels = dict[str, object]


LOG_LIMIT = 8 << 20  # bytes of one session
_LONGEST = 255  # characters of a name
_MOST_SUMS = 2048
_OTHERS = "(others)"  # stands for all further names in sums
_COUNTED = (
    "opened", "allowed", "denied", "failed", "up", "down", "answers", "input", "output", "cache_write", "cache_read",
    "price", "lost",
)  # fmt: skip


class _Sum:
    """Equal lines: how many, which of them are in the file, and the amounts of the others."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.amounts: Counter[str] = Counter()
        self.count = self.written = 0


class Log:
    """One line of JSON for each connection that was allowed, denied or failed.

    It has names, numbers and verdicts; never a header, a body, a path or a value. A line is one `write` to a file
    opened for appending. Repeated denials and failures become counts, so that a flood of them cannot crowd out what
    was allowed and spent; when the file is full, everything becomes sums, which are written at the end. Failed writes
    are retried, and counted as lost if that fails too.
    """

    def __init__(self, descriptor: int, *, most: int = LOG_LIMIT) -> None:
        """Log to a descriptor open for appending, -1 for nowhere."""
        self._descriptor = descriptor
        self._single, self._summed = most // 2, most // 4  # bytes left; the rest is for the sums at the end
        self._torn = False
        self._sums: dict[tuple[object, ...], _Sum] = {}
        self.totals = Counter(dict.fromkeys(_COUNTED, 0))

    def record(  # noqa: PLR0913 - the fields of a line
        self,
        *,
        service: Service,
        host: str,
        port: int,
        verdict: Verdict,
        rule: str,
        up: int = 0,
        down: int = 0,
        secrets: Iterable[str] = (),
        status: int = 0,
    ) -> None:
        """Log one decision; `secrets` are names of variables, `status` is logged if it is an error."""
        labels: Labels = {
            "kind": "decision", "service": service, "host": host[:_LONGEST], "port": port, "verdict": verdict,
            "rule": rule[:_LONGEST],
        }  # fmt: skip
        if names := tuple(sorted(set(secrets))):
            labels["secrets"] = names
        if status >= 400:
            labels["status"] = status
        self._add(verdict, labels, {"up": up, "down": down}, singly=verdict in ("opened", "allowed"))

    def record_usage(self, usage: TokenUsage) -> None:
        """Log what one response of the model cost."""
        amounts = {
            "input": usage.input, "output": usage.output, "cache_write": usage.cache_write,
            "cache_read": usage.cache_read, "price": usage.price(),
        }  # fmt: skip
        labels: Labels = {"kind": "usage", "model": usage.model}
        if usage.maker != "anthropic":
            labels["maker"] = usage.maker
        self._add("answers", labels, amounts, singly=True)

    def record_opened(self, names: Iterable[str]) -> None:
        """Log which domains the user allowed during the session."""
        self._write({"kind": "opened", "names": [name[:_LONGEST] for name in names]})

    def _add(self, total: str, labels: Labels, amounts: dict[str, int], *, singly: bool) -> None:
        """Write a line; or add it to equal ones, of which the first is written, the second, the fourth and so on."""
        self.totals[total] += 1
        self.totals.update(amounts)
        if self._descriptor < 0:
            return
        if singly and self._single > 0 and (size := self._write({**labels, **amounts})):
            self._single -= size
            if self._single <= 0:
                self._write({"kind": "full"})
            return
        key = tuple(labels.values())
        if key not in self._sums and len(self._sums) >= _MOST_SUMS:
            labels = labels | ({"host": _OTHERS, "port": 0} if "host" in labels else {"model": _OTHERS})
            key = tuple(labels.values())
        row = self._sums.setdefault(key, _Sum(labels))
        row.amounts.update(amounts)
        row.count += 1
        if row.count >= row.written and self._summed > 0:
            self._summed -= self._write_sum(row)

    def _write_sum(self, row: _Sum) -> int:
        size = self._write({**row.labels, **row.amounts, **({"count": row.count} if row.count > 1 else {})})
        if size:
            row.written += row.count
            row.amounts, row.count = Counter(), 0
        return size

    def _write(self, line: Labels) -> int:
        """Write a line; return its size, 0 unless all of it is in the file."""
        text = json.dumps({"time": round(time.time(), 3), **line}, ensure_ascii=True)
        data = b"\n" * self._torn + text.encode("ascii") + b"\n"
        try:
            written = os.write(self._descriptor, data)
        except OSError:  # a full disk must not end a session
            return 0
        self._torn = written < len(data)
        return 0 if self._torn else written

    def close(self) -> None:
        """Write the sums that are not written yet."""
        for row in self._sums.values():
            if row.count and not self._write_sum(row):
                self.totals["lost"] += row.count
        self._sums.clear()
