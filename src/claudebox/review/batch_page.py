"""The page of a batch: how many tasks came out how, what they cost and took, and a row for each."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field

from claudebox.report.screen import say_duration
from claudebox.review import charts
from claudebox.review.gather import PAGE, count_changes
from claudebox.review.html import E, link_beside, show_text
from claudebox.review.session_page import list_tiles, read_own, render_page, say_some, section, show_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from claudebox.review.html import Content, Element


_OUTCOMES = {"done": "done", "retry": "retry", "cancelled": "retry", "incomplete": "retry"}  # the others have failed
_NAMES = {"done": "done", "failed": "failed", "retry": "worth another try"}
_COLUMNS, _TOP = 24, 6
_MOST = 1e9
_HEADS = (("Task", ""), ("Outcome", ""), ("Changes", "n"), ("Cost", "n"), ("Time", "n"), ("Tries", "n"))


@dataclass
class TaskRow:
    """One task, as its result says; nothing in it is trusted."""

    name: str
    status: str
    why: str = ""
    said: str = ""
    cost: float | None = None
    seconds: float | None = None
    tries: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    page: str = ""  # path, relative to that of the batch

    @property
    def outcome(self) -> str:
        return _OUTCOMES.get(self.status, "failed")


def read_row(name: str, result: dict[str, Any], results: str, page: str) -> TaskRow:
    """Return a row for the result in a directory; `page` is where the page of the batch will be."""
    files = result.get("files")
    has_page = isinstance(files, dict) and PAGE in files
    place = os.path.relpath(f"{results}/{name}/{PAGE}", os.path.dirname(page)) if has_page else ""
    return TaskRow(
        name, str(result.get("status", "?"))[:40], str(result.get("why", ""))[:300], str(result.get("said", ""))[:300],
        _amount(result.get("cost_usd")), _amount(result.get("seconds")), int(_amount(result.get("tries")) or 0),
        count_changes(result, f"{results}/{name}"), place,
    )  # fmt: skip


def _amount(value: object) -> float | None:
    """Return a sum of money or a time, if it can be one."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST and value is not True else None


def render_batch(rows: Sequence[TaskRow], title: str) -> bytes:
    """Return the page of a batch as HTML."""
    head = E("header", E("p", E("b", "claudebox"), E("span", "review of a batch"), class_="from"),
             E("h1", show_text(title)))  # fmt: skip
    foot = E(
        "p", "Names and reasons come from agents. The page loads nothing; its only script sorts and filters the table."
    )
    parts = [("came", "Summary", 0, _summary(rows))]
    if rows:
        parts += [("spread", "Cost and time", 0, _spread(rows)), ("first", "First to look at", 0, _first(rows)),
                  ("tasks", "All tasks", len(rows), _table(rows))]  # fmt: skip
    return render_page("Tasks", head, parts, foot, script=read_own("tasks.js") if rows else "")


def _count(rows: Sequence[TaskRow]) -> dict[str, int]:
    return {name: sum(row.outcome == name for row in rows) for name in _NAMES}


def _summary(rows: Sequence[TaskRow]) -> Element:
    counts = _count(rows)
    told = ", ".join(f"{count} {_NAMES[name]}" for name, count in counts.items() if count) or "no task"
    legend = (E("span", charts.draw_swatch(name), E("b", f"{count:,}"), f" {_NAMES[name]}")
              for name, count in counts.items() if count)  # fmt: skip
    costs = [row.cost for row in rows if row.cost is not None]
    times = [row.seconds for row in rows if row.seconds is not None]
    figures = [("tasks", f"{len(rows):,}", False)]
    figures += [("done", f"{counts['done'] * 100 // len(rows)} %", False)] if rows else []
    if costs:
        figures += [("cost", f"${sum(costs):,.2f}", False), ("median cost", f"${statistics.median(costs):.2f}", False)]
    if times:
        figures += [("agent time", _say_long(sum(times)), False),
                    ("median time", say_duration(statistics.median(times)), False)]  # fmt: skip
    again = sum(row.tries > 1 for row in rows)
    figures += [("retried", f"{again:,}", False)] if again else []
    return section("came", "Summary", charts.draw_shares(counts.items(), told), E("p", legend, class_="legend"),
                   list_tiles(figures))  # fmt: skip


def _say_long(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} h" if seconds >= 36_000 else say_duration(seconds)


def _spread(rows: Sequence[TaskRow]) -> Element:
    costs = [row.cost for row in rows if row.cost is not None]
    times = [row.seconds for row in rows if row.seconds is not None]
    figures = [_columns(name, amounts, say) for name, amounts, say in (
        ("Cost", costs, lambda amount: f"${amount:,.2f}"), ("Time", times, say_duration)) if amounts]  # fmt: skip
    without = len(rows) - len(costs)
    note = E("p", f"{say_some(without, 'task')} without a known cost", class_="note") if without else None
    return section("spread", "Cost and time", E("div", figures, class_="columns"), note)


def _columns(name: str, amounts: Sequence[float], say: Any) -> Element:
    top = max(amounts) or 1.0
    counts = [0] * _COLUMNS
    for amount in amounts:
        counts[min(_COLUMNS - 1, int(amount / top * _COLUMNS))] += 1
    labels = [f"{say(top * at / _COLUMNS)} to {say(top * (at + 1) / _COLUMNS)}" for at in range(_COLUMNS)]
    ends = (E("span", say(top * part / 3)) for part in range(4))
    return E(
        "figure",
        E("figcaption", name, E("b", f"up to {say(top)}")),
        charts.draw_columns(counts, labels, f"{name} of {len(amounts)} tasks, most {say(top)}"),
        E("div", ends, class_="axis", aria_hidden="true"),
        class_="chart",
    )


def _first(rows: Sequence[TaskRow]) -> Element:
    slow = sorted((row for row in rows if row.seconds), key=lambda row: -(row.seconds or 0))[:_TOP]
    dear = sorted((row for row in rows if row.cost), key=lambda row: -(row.cost or 0))[:_TOP]
    again = sorted((row for row in rows if row.tries > 1), key=lambda row: -row.tries)[:_TOP]
    lists = (
        _top("Slowest", slow, [row.seconds or 0 for row in slow], [say_duration(row.seconds or 0) for row in slow]),
        _top("Most expensive", dear, [row.cost or 0 for row in dear], [f"${row.cost:.2f}" for row in dear]),
        _top("Most tries", again, [row.tries for row in again], [f"{row.tries} tries" for row in again]),
    )
    return section("first", "First to look at", E("div", lists, class_="columns"))


def _top(title: str, rows: Sequence[TaskRow], amounts: Sequence[float], said: Sequence[str]) -> Element | None:
    if not rows:
        return None
    most = max(amounts)
    body = (E("tr", E("td", _link(row)), E("td", charts.draw_bar(amount, most), class_="bar"),
              E("td", text, class_="n"))
            for row, amount, text in zip(rows, amounts, said, strict=True))  # fmt: skip
    return E("table", E("caption", title), E("tbody", body), class_="rows")


def _link(row: TaskRow) -> Content:
    return link_beside(row.page, show_path(row.name)) if row.page else show_path(row.name)


def _table(rows: Sequence[TaskRow]) -> Element:
    counts = _count(rows)
    buttons = [E("button", "All", type="button", value="", aria_pressed="true")]
    buttons += [E("button", f"{_NAMES[name]} {count:,}", type="button", value=name, aria_pressed="false")
                for name, count in counts.items() if count]  # fmt: skip
    controls = E(
        "div",
        E("input", type="search", id="search", placeholder="Part of a name or a reason",
          aria_label="Show only tasks with these words", aria_controls="all"),
        buttons,
        E("span", "", id="told", class_="note", role="status"),
        class_="filter", hidden=True,
    )  # fmt: skip
    order = sorted(rows, key=lambda row: (row.outcome == "done", row.outcome == "retry", row.name))
    table = E(
        "table",
        E("thead", E("tr", (E("th", name, scope="col", class_=kind or None) for name, kind in _HEADS))),
        E("tbody", map(_row, order)),
        id="all", class_="rows stack",
    )  # fmt: skip
    return section("tasks", "All tasks", controls, table, remark="failed ones first")


def _row(row: TaskRow) -> Element:
    changed = row.changed
    added, removed = changed.get("added", 0), changed.get("removed", 0)
    changes = (f"{say_some(changed.get('files', 0), 'file')} ", E("span", f"+{added:,}", class_="plus"), " ",
               E("span", f"\u2212{removed:,}", class_="minus"))  # fmt: skip
    why, took = row.why or row.said, "?" if row.seconds is None else say_duration(row.seconds)
    return E(
        "tr",
        E("td", _link(row)),
        E("td", E("span", show_text(row.status), class_=f"status s-{row.outcome}"),
          E("div", show_text(why), class_="note") if why else None),
        E("td", changes if changed.get("files") else "none" if changed else "?", class_="n",
          data_value=added + removed),
        E("td", "?" if row.cost is None else f"${row.cost:.2f}", class_="n", data_value=f"{row.cost or 0:.6f}"),
        E("td", took, class_="n", data_value=f"{row.seconds or 0:.1f}"),
        E("td", row.tries, class_="n", data_value=row.tries, data_n="tries"),
        class_=row.outcome,
    )  # fmt: skip


def list_rows(found: Iterable[tuple[str, dict[str, Any]]], results: str, page: str) -> list[TaskRow]:
    """Return the rows of a batch."""
    return [read_row(name, result, os.path.abspath(results), os.path.abspath(page)) for name, result in found]
