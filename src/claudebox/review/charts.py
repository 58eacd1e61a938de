"""Drawings for a page: lanes of events, curves, columns, bars. They stretch with the page and hold no text."""

from __future__ import annotations

import time

from claudebox.review.html import E

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from claudebox.review.html import Content, Element
    from claudebox.review.records import Event


_WIDTH, _HEIGHT = 1000, 100
_CELLS = 250  # of a lane: what falls into one is drawn as one
_POINTS = 400  # of a curve
_COLUMNS = 24
_TITLE = 160  # characters


def draw_lane(events: Sequence[Event], kind: str, label: str, began: float, ended: float) -> Element:
    """Return events on a line of time; the more there are at one place, the taller they are."""
    cells: dict[int, list[Event]] = {}
    for event in events:
        share = (event.time - began) / max(ended - began, 0.001)
        cells.setdefault(min(_CELLS - 1, max(0, int(share * _CELLS))), []).append(event)
    most = max(map(len, cells.values()), default=1)
    return E("svg", (_cell(place, found, most, kind) for place, found in sorted(cells.items())), role="img",
             aria_label=label, viewBox=f"0 0 {_CELLS} 20", preserveAspectRatio="none")  # fmt: skip


def _cell(place: int, events: Sequence[Event], most: int, kind: str) -> Element:
    height = 8 + round(8 * (len(events) / most) ** 0.5)
    more = f" and {len(events) - 1} more" if len(events) > 1 else ""
    text = f"{say_time(events[0].time)}  {events[0].text[:_TITLE]}{more}"
    return E("rect", E("title", text), class_=kind, x=f"{place:.1f}", y=f"{(20 - height) / 2:.1f}",
             width="1.4", height=f"{height}", rx="0.4")  # fmt: skip


def draw_rise(name: str, whole: str, points: Sequence[tuple[float, int]], began: float, ended: float) -> Element:
    """Return a sum that grows with time, from nothing."""
    total, rows = 0, []
    for moment, amount in sorted(points):
        total += amount
        rows.append((min(1.0, max(0.0, (moment - began) / max(ended - began, 0.001))), total))
    if len(rows) > _POINTS:
        rows = [rows[round(at * (len(rows) - 1) / (_POINTS - 1))] for at in range(_POINTS)]
    steps, last = f"M0 {_HEIGHT - 3}", _HEIGHT - 3.0
    for share, amount in rows:
        height = (_HEIGHT - 3) - amount / max(total, 1) * (_HEIGHT - 12)
        steps += f" L{share * _WIDTH:.1f} {last:.1f} L{share * _WIDTH:.1f} {height:.1f}"
        last = height
    steps += f" L{_WIDTH} {last:.1f}"
    curve = E("path", d=f"{steps} L{_WIDTH} {_HEIGHT} L0 {_HEIGHT} Z", class_="area"), E("path", d=steps, class_="rise")
    return _chart(name, whole, curve, f"{name} over time: {whole} at the end", draw_axis(began, ended))


def _chart(name: str, whole: str, drawing: Content, label: str, axis: Element) -> Element:
    return E(
        "figure", E("figcaption", name, " ", E("b", whole)),
        E("svg", drawing, role="img", aria_label=label, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none"),
        axis, class_="chart",
    )  # fmt: skip


def draw_columns(name: str, whole: str, amounts: Sequence[float], say: Callable[[float], str]) -> Element:
    """Return how often amounts fall into each of several ranges of the same width."""
    top, counts = max(amounts) or 1.0, [0] * _COLUMNS
    for amount in amounts:
        counts[min(_COLUMNS - 1, int(amount / top * _COLUMNS))] += 1
    width, heights = _WIDTH / _COLUMNS, [max(2.0, count / max(counts) * (_HEIGHT - 6)) for count in counts]
    columns = (
        E("rect", E("title", f"{say(top * at / _COLUMNS)} to {say(top * (at + 1) / _COLUMNS)}: {count}"),
          class_="column", x=f"{at * width + width * 0.06:.1f}", width=f"{width * 0.88:.1f}",
          height=f"{heights[at]:.1f}", y=f"{_HEIGHT - heights[at]:.1f}")
        for at, count in enumerate(counts) if count
    )  # fmt: skip
    return _chart(name, whole, columns, f"{name} of {len(amounts)} tasks: {whole}",
                  _axis(say(top * part / 3) for part in range(4)))  # fmt: skip


def draw_bar(amount: float, most: float) -> Element:
    """Return an amount as a part of the largest one beside it; the number stands beside it, too."""
    share = max(0.6, amount / most * 100) if amount and most else 0.0
    return E("svg", E("rect", class_="track", width="100", height="10"), E("rect", width=f"{share:.1f}", height="10"),
             viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")  # fmt: skip


def draw_shares(parts: Iterable[tuple[str, int]], label: str) -> Element:
    """Return the parts of a whole, each in its colour."""
    rows = list(parts)
    whole, at, drawn = sum(count for _, count in rows) or 1, 0.0, []
    for kind, count in rows:
        width = count / whole * _WIDTH
        drawn.append(E("rect", class_=kind, x=f"{at:.1f}", width=f"{max(0.0, width - 2):.1f}", height="10"))
        at += width
    return E("svg", drawn, class_="shares", role="img", aria_label=label, viewBox=f"0 0 {_WIDTH} 10",
             preserveAspectRatio="none")  # fmt: skip


def draw_swatch(kind: str) -> Element:
    """Return a square in the colour of a part."""
    return E("svg", E("rect", class_=kind, width="10", height="10"), viewBox="0 0 10 10", aria_hidden="true")


def draw_axis(began: float, ended: float) -> Element:
    """Return labels for a line of time."""
    parts = 3 if ended - began > 4 else 1
    moments = (began + (ended - began) * part / parts for part in range(parts + 1))
    return _axis(say_time(moment, seconds=ended - began < 600) for moment in moments)


def _axis(labels: Iterable[str]) -> Element:
    return E("div", (E("span", label) for label in labels), class_="axis", aria_hidden="true")


def say_time(moment: float, *, seconds: bool = True) -> str:
    try:
        return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return "?"
