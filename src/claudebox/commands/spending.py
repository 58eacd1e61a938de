"""`--usage`: what the model has cost, by project and day, from the logs that are kept."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from claudebox import console
from claudebox.commands.log import records
from claudebox.errors import ClaudeboxError
from claudebox.facts.host import current_home
from claudebox.report import session_log
from claudebox.report.session_log import find_doubts, read_lines, sum_usage
from claudebox.tables import prices

if TYPE_CHECKING:
    from claudebox.config.settings import Settings

_TITLES = ("day", "project", "sessions", "answers", "input", "output", "cached", "dollars")


def run(environ: dict[str, str], settings: Settings) -> int:
    """Print a row for each day and project."""
    if settings.words:
        raise ClaudeboxError(f"`--usage` takes no word, not `{settings.words[0]}`")
    directory = f"{current_home(environ)}/.claudebox/{session_log.DIRECTORY}"
    rows = _rows(directory)
    if settings.on("json"):
        console.write([json.dumps(rows, ensure_ascii=True)], descriptor=1)
        return 0
    if not rows:
        console.note("no answer of a model was counted; the broker counts them where it holds the credential")
        return 0
    table = (_TITLES, *(_shown(row) for row in rows))
    console.write(console.table(table, right=range(2, len(_TITLES))), descriptor=1)
    console.write([f"dollars by the prices of {prices.AS_OF}; `?`: a model without a price"], descriptor=1)
    if missing := sum(row["missing"] for row in rows):
        console.warn(f"the logs of {missing} sessions do not tell everything that was spent; see their receipts")
    return 0


def _rows(directory: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in records(directory):
        lines = read_lines(directory, name)
        start = next((line for line in lines if line.get("kind") == "start"), {})
        project, sessions = str(start.get("project", "")), set[tuple[str, str]]()
        for line in lines:
            if line.get("kind") != "usage" or not isinstance(line.get("time"), int | float):
                continue
            key = time.strftime("%Y-%m-%d", time.localtime(line["time"])), project
            row = found.setdefault(
                key, {"day": key[0], "project": project, "sessions": 0, "missing": 0, **sum_usage(())}
            )
            for part, amount in sum_usage((line,)).items():
                row[part] += amount
            sessions.add(key)
        doubtful = bool(find_doubts(lines))
        for key in sessions:
            found[key]["sessions"] += 1
            found[key]["missing"] += doubtful
    return [found[key] for key in sorted(found)]


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    unknown = "?" if row["unpriced"] else ""
    return (
        row["day"], os.path.basename(row["project"]) or "?", str(row["sessions"]),
        str(row["answers"]), str(row["input"]), str(row["output"]), str(row["cached"]),
        prices.as_dollars(row["price"]) + unknown,
    )  # fmt: skip
