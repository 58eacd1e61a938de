"""The log of decisions: one line of JSON for each connection that was allowed, denied or failed.

Names, numbers and verdicts only. Nothing here takes a header, a body, the path of an address or a value. A line is
one `write` to a file opened for appending, so it is whole or not there; what cannot be written is counted, not waited
for.
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

    Verdict = Literal["allowed", "denied", "failed"]
    Service = Literal["api", "proxy", "names", "secrets"]

MOST_BYTES = 8 << 20  # of one session
_LONGEST = 255  # characters of a name


class Log:
    """Writes decisions to the record of a session."""

    def __init__(self, descriptor: int, *, most: int = MOST_BYTES) -> None:
        """Take a file that is open for appending; -1: nothing is recorded."""
        self._descriptor = descriptor
        self._left = most

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
        line: dict[str, object] = {
            "time": round(time.time(), 3),
            "kind": "decision",
            "service": service,
            "host": host[:_LONGEST],
            "port": port,
            "verdict": verdict,
            "rule": rule[:_LONGEST],
            "up": up,
            "down": down,
        }
        if names := sorted(set(secrets)):
            line["secrets"] = names
        if status >= 400:
            line["status"] = status
        self._write(line)

    def record_usage(self, usage: TokenUsage) -> None:
        """Write down what one answer of the model cost."""
        self._write({
            "time": round(time.time(), 3), "kind": "usage", "model": usage.model, "input": usage.input,
            "output": usage.output, "cache_write": usage.cache_write, "cache_read": usage.cache_read,
            "price": usage.price(),
        })  # fmt: skip

    def record_opened(self, names: Iterable[str]) -> None:
        """Write down which domains the user let in while the session ran."""
        self._write({"time": round(time.time(), 3), "kind": "opened", "names": [name[:_LONGEST] for name in names]})

    def _write(self, line: dict[str, object]) -> None:
        if self._descriptor < 0:
            return
        data = json.dumps(line, ensure_ascii=True).encode("ascii") + b"\n"
        self._left -= len(data)
        last = self._left < 0
        if last:
            data = json.dumps({"time": line["time"], "kind": "full"}).encode("ascii") + b"\n"
        try:
            os.write(self._descriptor, data)
        except OSError:  # a full disk must not end a session; the launcher has its own way to tell
            last = True
        if last:
            self._descriptor = -1
