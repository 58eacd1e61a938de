"""The receipt: what a session was given and denied, which hosts it reached, and what it left, on one screen.

It renders the session log in ~/.claudebox/log and nothing else.
"""

from __future__ import annotations

from typing import Any

from claudebox.base.console import paint, shorten
from claudebox.network.tiers import TIERS
from claudebox.report.denied import explain
from claudebox.report.kinds import HEADINGS
from claudebox.report.log import find_doubts, human, sum_usage
from claudebox.report.screen import say_duration
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Line = Mapping[str, Any]


_NAMES, _HOSTS = 8, 6  # shown of each


def lines(written: Iterable[Line], where: str = "") -> Iterator[str]:
    """Yield the receipt of one session."""
    rows = list(written)
    start = next((row for row in rows if row.get("kind") == "start"), {})
    end = next((row for row in reversed(rows) if row.get("kind") == "end"), {})
    decisions = [row for row in rows if row.get("kind") == "decision"]
    project = shorten(start.get("project", ""), 100)
    yield f"{paint('receipt', 'bold')} of {say_duration(end.get('seconds', 0))} in {project}"
    if end.get("time_limit"):
        limit = say_duration(end["time_limit"])
        yield f"  {'ended':<9} {paint(f'by the time limit, {limit}', 'red')}"
    yield f"  {'entered':<9} {_entered(start)}"
    yield f"  {'withheld':<9} {_withheld(start)}"
    yield from _hosts("reached", [row for row in decisions if row.get("verdict") in ("opened", "allowed")], start)
    yield from _hosts("denied", [row for row in decisions if row.get("verdict") == "denied"], start)
    unanswered = sum(row.get("count", 1) for row in decisions if row.get("rule") == "unanswered")
    if (usage := sum_usage(rows))["answers"] or unanswered:
        without = f"; {unanswered} requests had no answer" if unanswered else ""
        yield f"  {'model':<9} {_used(usage, start)}{without}"
    for doubt in find_doubts(rows):
        yield f"  {'missing':<9} {paint(doubt, 'red')}"
    yield f"  {'changed':<9} {_changed(end)}"
    found = end.get("found", ())
    if end.get("searched"):
        missed = f"; {end['unsearched']} files could not be searched" if end.get("unsearched") else ""
        yield f"  {'leaked':<9} {_found(found)}{missed}"
    if where:
        yield f"  {'kept in':<9} {shorten(where, 200)}"


def _entered(start: Line) -> str:
    rows = [row for row in start.get("variables", ()) if row["origin"] != "claudebox"]
    made = len(start.get("variables", ())) - len(rows)
    shown = [f"{shorten(row['name'], 40)} ({shorten(row['origin'], 60)})" for row in rows]
    return _some([*shown, f"{made} made by claudebox"] if made else shown, "nothing", _NAMES + 1)


def _withheld(start: Line) -> str:
    count, names = start.get("withheld", 0), start.get("withheld_names", ())
    if not count:
        return "no variable"
    return f"{count} variables: {_some([shorten(name, 40) for name in names], '', _NAMES, count)}"


def _hosts(label: str, rows: list[Line], start: Line) -> Iterator[str]:
    sums: dict[str, list[int]] = {}
    rules: dict[str, str] = {}
    for row in rows:
        place = f"{row.get('host', '')}:{row.get('port', '')}".removesuffix(":443")
        total = sums.setdefault(place, [0, 0, 0, 0])
        count = row.get("count", 1)
        begun = row.get("verdict") == "opened"
        ended = row.get("verdict") == "allowed" and (row.get("service") == "proxy" or row.get("rule") == "passage")
        row_amounts = (0 if begun else count, row.get("up", 0), row.get("down", 0), count * (begun - ended))
        for index, amount in enumerate(row_amounts):
            total[index] += amount
        rules[place] = str(row.get("rule", ""))
    unseen = TIERS[start["network"]].unrecorded if label == "reached" and start.get("network") in TIERS else ""
    if not sums:
        yield f"  {label:<9} {unseen or 'none'}"
        return
    ordered = sorted(sums, key=lambda place: (-sums[place][1], -sums[place][0]))  # by bytes sent
    for index, place in enumerate(ordered[:_HOSTS]):
        count, up, down, open_ = sums[place]
        amounts = f"{human(up)} up, {human(down)} down" if label == "reached" else shorten(explain(rules[place]), 80)
        if open_ > 0:
            count, amounts = count + open_, f"{amounts}; {open_} did not end"
        yield f"  {label if not index else '':<9} {shorten(place, 60)} ({count} times; {amounts})"
    if len(ordered) > _HOSTS:
        yield f"  {'':<9} and {len(ordered) - _HOSTS} more"
    if unseen:
        yield f"  {'':<9} {unseen}"


def _used(usage: Mapping[str, int], start: Line) -> str:
    cached = f", {usage['cached']} of caches" if usage["cached"] else ""
    taken = f"{usage['answers']} answers, {usage['input']} tokens in, {usage['output']} out{cached}"
    price = f"${as_dollars(usage['price'])}" if usage["price"] else "no known price"
    more = " and what has no known price" if usage["price"] and usage["unpriced"] else ""
    budget = shorten(start.get("budget", ""), 60)
    return f"{taken}: {price}{more}{f' of {budget}' if budget else ''}"


def _changed(end: Line) -> str:
    words = [f"{HEADINGS.get(kind) or shorten(kind, 20)}: {count}" for kind, count in end.get("changed", {}).items()]
    missed = [f"{end['unseen']} places could not be looked at"] if end.get("unseen") else []
    missed += [f"{shorten(name, 60)} failed" for name in end.get("failed", ())]
    if missed:
        return "; ".join((paint(", ".join(missed), "red"), *words))
    return "; ".join(words) or "nothing"


def _found(found: Iterable[Line]) -> str:
    names = sorted({row["name"] for row in found})
    return paint(_some(names, "", _NAMES), "red") if names else "no withheld value was found"


def _some(words: list[str], nothing: str, most: int, count: int = 0) -> str:
    more = max(count, len(words)) - len(words[:most])
    return ", ".join(words[:most]) + (f" and {more} more" if more else "") or nothing
