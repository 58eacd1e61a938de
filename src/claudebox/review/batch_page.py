"""The page of a batch: how many tasks came out how, why some failed, what they cost and took, and a row for each."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field

from claudebox.report.screen import say_duration
from claudebox.review import charts, page
from claudebox.review.gather import PAGE, count_changes
from claudebox.review.html import E, link_beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from claudebox.review.html import Content, Element
    from claudebox.review.page import Section


_OUTCOMES = {"done": "done", "retry": "retry", "cancelled": "retry", "incomplete": "retry"}  # the others have failed
_NAMES = {"done": "done", "failed": "failed", "retry": "worth another try"}
_TOP = 6  # rows of a list
_SAID = 300  # characters
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


def list_rows(found: Iterable[tuple[str, dict[str, Any]]], results: str, place: str) -> list[TaskRow]:
    """Return the rows of a batch; `place` is where its page will be."""
    way = os.path.relpath(results, os.path.dirname(os.path.abspath(place)))
    return [_read_row(name, result, f"{way}/{name}/{PAGE}") for name, result in found]


def _read_row(name: str, result: dict[str, Any], place: str) -> TaskRow:
    files = result.get("files")
    return TaskRow(
        name, str(result.get("status", "?"))[:40], _shorten(result.get("why")), _shorten(result.get("said")),
        _amount(result.get("cost_usd")), _amount(result.get("seconds")), int(_amount(result.get("tries")) or 0),
        count_changes(result), place if isinstance(files, dict) and PAGE in files else "",
    )  # fmt: skip


def _shorten(text: object) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text[:_SAID].split()) if isinstance(text, str) else ""


def _amount(value: object) -> float | None:
    """Return a sum of money or a time, if it can be one."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST and value is not True else None


def render_batch(rows: Sequence[TaskRow], title: str) -> bytes:
    """Return the page of a batch as HTML."""
    foot = "Names and reasons come from agents. The page loads nothing; its only script sorts and filters the table."
    return page.render_page("Tasks", page.make_head("review of a batch", title), [*_list_sections(rows)], E("p", foot),
                       script=page.read_own("tasks.js") if rows else "")  # fmt: skip


def _list_sections(rows: Sequence[TaskRow]) -> Iterator[Section]:
    yield _summary(rows)
    if any(row.outcome != "done" for row in rows):
        yield _reasons(rows)
    if any(row.cost is not None or row.seconds is not None for row in rows):
        yield _spread(rows)
    if rows:
        yield _table(rows)


def _count(rows: Sequence[TaskRow]) -> dict[str, int]:
    return {name: sum(row.outcome == name for row in rows) for name in _NAMES}


def _summary(rows: Sequence[TaskRow]) -> Section:
    counts = _count(rows)
    told = ", ".join(f"{count} {_NAMES[name]}" for name, count in counts.items() if count) or "no task"
    legend = (E("span", charts.draw_swatch(name), E("b", f"{count:,}"), f" {_NAMES[name]}")
              for name, count in counts.items() if count)  # fmt: skip
    costs, times = _list_costs(rows), _list_times(rows)
    figures = [("tasks", f"{len(rows):,}", False)]
    figures += [("done", f"{counts['done'] * 100 // len(rows)} %", False)] if rows else []
    figures += [("cost", f"${sum(costs):,.2f}", False)] if costs else []
    figures += [("agent time", _say_long(sum(times)), False)] if times else []
    again = sum(row.tries > 1 for row in rows)
    figures += [("retried", f"{again:,}", False)] if again else []
    return page.make_section("came", "Summary", charts.draw_shares(counts.items(), told),
                             E("p", legend, class_="legend"), page.list_figures(figures))  # fmt: skip


def _list_costs(rows: Iterable[TaskRow]) -> list[float]:
    return [row.cost for row in rows if row.cost is not None]


def _list_times(rows: Iterable[TaskRow]) -> list[float]:
    return [row.seconds for row in rows if row.seconds is not None]


def _say_cost(amount: float) -> str:
    return f"${amount:,.2f}"


def _say_long(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} h" if seconds >= 36_000 else say_duration(seconds)


def _reasons(rows: Sequence[TaskRow]) -> Section:
    """Return why tasks are not done: one cause often explains many."""
    groups: dict[tuple[str, str], list[TaskRow]] = {}
    for row in rows:
        if row.outcome != "done":
            groups.setdefault((row.status, row.why or row.said), []).append(row)
    order = sorted(groups.items(), key=lambda group: (group[1][0].outcome == "retry", -len(group[1])))
    most = max(map(len, groups.values()))
    table = page.make_table(
        ("Outcome", "Reason", "Tasks", "Cost", ""),
        ((_status(status), why or "?", f"{len(some):,}", _say_cost(sum(_list_costs(some))),
          charts.draw_bar(len(some), most)) for (status, why), some in order[:_TOP]),
    )  # fmt: skip
    more = page.say_cut(len(order) - _TOP, "reasons")
    return page.make_section("why", "Why tasks are not done", table, more, name="Reasons", count=len(order))


def _status(status: str) -> Element:
    return E("span", status, class_=f"status s-{_OUTCOMES.get(status, 'failed')}")


def _spread(rows: Sequence[TaskRow]) -> Section:
    costs, times = _list_costs(rows), _list_times(rows)
    kinds = (("Cost", costs, _say_cost), ("Time", times, say_duration))
    figures = [charts.draw_columns(name, f"half below {say(statistics.median(amounts))}", amounts, say)
               for name, amounts, say in kinds if amounts]  # fmt: skip
    again = [row for row in rows if row.tries > 1]
    tops = (_top("Most expensive", rows, lambda row: row.cost or 0, _say_cost),
            _top("Slowest", rows, lambda row: row.seconds or 0, say_duration),
            _top("Most tries", again, lambda row: row.tries, "{:.0f} tries".format))  # fmt: skip
    without = len(rows) - len(costs)
    note = E("p", f"{page.say_some(without, 'task')} without a known cost", class_="note") if without else None
    return page.make_section("spread", "Cost and time", E("div", figures, class_="columns"), note,
                        E("div", tops, class_="columns") if len(rows) > _TOP else None)  # fmt: skip


def _top(
    title: str, rows: Sequence[TaskRow], measure: Callable[[TaskRow], float], say: Callable[[float], str]
) -> Element | None:
    found = sorted((row for row in rows if measure(row)), key=measure, reverse=True)[:_TOP]
    most = measure(found[0]) if found else 0
    body = (E("tr", E("td", _link(row)), E("td", charts.draw_bar(measure(row), most), class_="bar"),
              E("td", say(measure(row)), class_="n")) for row in found)  # fmt: skip
    return E("table", E("caption", title), E("tbody", body), class_="rows") if found else None


def _link(row: TaskRow) -> Content:
    return link_beside(row.page, page.show_path(row.name)) if row.page else page.show_path(row.name)


def _table(rows: Sequence[TaskRow]) -> Section:
    buttons = [E("button", "All", type="button", value="", aria_pressed="true")]
    buttons += [E("button", f"{_NAMES[name]} {count:,}", type="button", value=name, aria_pressed="false")
                for name, count in _count(rows).items() if count]  # fmt: skip
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
    return page.make_section("tasks", "All tasks", controls, table, count=len(rows), remark="failed ones first")


def _row(row: TaskRow) -> Element:
    changed = row.changed
    added, removed = changed.get("added", 0), changed.get("removed", 0)
    changes = (f"{page.say_some(changed.get('files', 0), 'file')} ", E("span", f"+{added:,}", class_="plus"), " ",
               E("span", f"\u2212{removed:,}", class_="minus"))  # fmt: skip
    why = row.why or row.said
    return E(
        "tr",
        E("td", _link(row)),
        E("td", _status(row.status), E("div", why, class_="note") if why else None),
        E("td", changes if changed.get("files") else "none" if changed else "?", class_="n",
          data_value=added + removed),
        E("td", "?" if row.cost is None else _say_cost(row.cost), class_="n", data_value=f"{row.cost or 0:.6f}"),
        E("td", "?" if row.seconds is None else say_duration(row.seconds), class_="n",
          data_value=f"{row.seconds or 0:.1f}"),
        E("td", row.tries, class_="n", data_value=row.tries, data_n="tries"),
        class_=row.outcome,
    )  # fmt: skip
