"""The log of decisions: one line of JSON for each connection that was allowed, denied or failed.

Names, numbers and verdicts only. Nothing here takes a header, a body, the path of an address or a value. A line is
one `write` to a file opened for appending. Denials and failures that repeat become counts, so that they take no room
from what was allowed, spent and ended; where that has no room left either, it goes on in sums, which are written at the
end. What cannot be written is tried again, and counted.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from claudebox.broker.model_api.metering import TokenUsage

    Verdict = Literal["opened", "allowed", "denied", "failed"]
    Service = Literal["api", "proxy", "names", "secrets"]
    Labels = dict[str, object]

MOST_BYTES = 8 << 20  # of one session
_LONGEST = 255  # characters of a name
_MOST_SUMS = 2048
_OTHERS = "(others)"  # in sums, instead of more names than that
TOTALS = (
    "opened", "allowed", "denied", "failed", "up", "down", "answers", "input", "output", "cache_write", "cache_read",
    "price", "lost",
)  # fmt: skip


class _Sum:
    """Lines that are alike but for their numbers, and have not been written yet."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.count = self.written = 0

    def add(self, amounts: dict[str, int]) -> None:
        self.count += 1
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0) + amount


class Log:
    """Writes decisions to the record of a session, and keeps their totals."""

    def __init__(self, descriptor: int, *, most: int = MOST_BYTES) -> None:
        """Take a file that is open for appending; -1: nothing is recorded."""
        self._descriptor = descriptor
        self._weighty, self._noise = most // 2, most // 4  # bytes that are left; the rest is for the sums at the end
        self._full = self._torn = False
        self._sums: dict[tuple[object, ...], tuple[Labels, _Sum]] = {}
        self.totals = dict.fromkeys(TOTALS, 0)

    def record(  # noqa: PLR0913 - a line of the log
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
        """Write one decision down; `secrets` are names of variables, `status` counts if it is that of an error."""
        labels: Labels = {
            "kind": "decision", "service": service, "host": host[:_LONGEST], "port": port, "verdict": verdict,
            "rule": rule[:_LONGEST],
        }  # fmt: skip
        if names := tuple(sorted(set(secrets))):
            labels["secrets"] = names
        if status >= 400:
            labels["status"] = status
        amounts = {"up": up, "down": down}
        self.totals[verdict] += 1
        self._count(amounts)
        self._add(labels, amounts, weighty=verdict in ("opened", "allowed"))

    def record_usage(self, usage: TokenUsage) -> None:
        """Write down what one answer of the model cost."""
        amounts = {
            "input": usage.input, "output": usage.output, "cache_write": usage.cache_write,
            "cache_read": usage.cache_read, "price": usage.price(),
        }  # fmt: skip
        self.totals["answers"] += 1
        self._count(amounts)
        self._add({"kind": "usage", "model": usage.model}, amounts, weighty=True)

    def record_opened(self, names: Iterable[str]) -> None:
        """Write down which domains the user let in while the session ran."""
        self._put({"kind": "opened", "names": [name[:_LONGEST] for name in names]}, {}, 1)

    def _count(self, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            self.totals[name] += amount

    def _add(self, labels: Labels, amounts: dict[str, int], *, weighty: bool) -> None:
        """Write a line; or add it to those like it, of which the first is written, the second, the fourth and so on."""
        if self._descriptor < 0 or (weighty and self._has_room(weighty=True) and self._put(labels, amounts, 1)):
            return
        key = tuple(labels.values())
        if key not in self._sums and len(self._sums) >= _MOST_SUMS:
            labels = labels | ({"host": _OTHERS, "port": 0} if "host" in labels else {"model": _OTHERS})
            key = tuple(labels.values())
        kept, row = self._sums.setdefault(key, (labels, _Sum()))
        row.add(amounts)
        if row.count >= row.written and self._has_room(weighty=False):
            self._write_sum(kept, row)

    def _has_room(self, *, weighty: bool) -> bool:
        if weighty and self._weighty <= 0 and not self._full:
            self._full = self._put({"kind": "full"}, {}, 1)
        return (self._weighty if weighty else self._noise) > 0

    def _write_sum(self, labels: Labels, row: _Sum) -> bool:
        before = self._weighty
        done = self._put(labels, row.amounts, row.count)
        if done:
            self._noise -= before - self._weighty
            self._weighty = before
            row.written += row.count
            row.amounts, row.count = {}, 0
        return done

    def _put(self, labels: Labels, amounts: dict[str, int], count: int) -> bool:
        """Write a line for so many that are alike; tell whether it is in the file, whole."""
        line = {"time": round(time.time(), 3), **labels, **amounts, **({"count": count} if count > 1 else {})}
        data = b"\n" * self._torn + json.dumps(line, ensure_ascii=True).encode("ascii") + b"\n"
        try:
            written = os.write(self._descriptor, data)
        except OSError:  # a full disk must not end a session; it is tried again
            return False
        self._torn = written < len(data)
        self._weighty -= written
        return not self._torn

    def close(self) -> None:
        """Write the sums that have not been written yet."""
        for labels, row in list(self._sums.values()):
            if row.count and not self._write_sum(labels, row):
                self.totals["lost"] += row.count
        self._sums.clear()
