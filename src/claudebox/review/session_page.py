"""The page of one session: what came of it, what to look at first, every change, and what it reached and cost."""

from __future__ import annotations

import os
import time

from claudebox import __version__
from claudebox.report.log import human
from claudebox.report.screen import say_duration
from claudebox.review import charts
from claudebox.review.changes_page import show_files
from claudebox.review.html import E, link_within, render_document, show_text
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.review.html import Content, Element
    from claudebox.review.records import Commit, Event, HostTraffic, Story


_LANES = (
    ("model", "Model", "requests to the model"), ("tools", "Tools", "tools that the agent used"),
    ("commits", "Commits", "commits"), ("allowed", "Network", "connections"),
    ("denied", "Denied", "denied connections"),
)  # fmt: skip
_EVENTS, _LISTED = 1500, 400  # rows of a list


def render_session(story: Story) -> bytes:
    """Return the page of a session as HTML."""
    parts = [*_list_parts(story)]
    links = [
        E("li", link_within(place, title, E("span", count) if count else None)) for place, title, count, _ in parts
    ]
    body = (
        link_within("main", "Skip to the content", class_="skip"),
        E("div", _head(story), class_="wide"),
        E("nav", E("div", E("ul", links), class_="wide"), aria_label="On this page"),
        E("main", (section for *_, section in parts), id="main", class_="wide"),
        E("footer", _foot(), class_="wide"),
    )
    return render_document(f"{_plain(story.title)} \u00b7 claudebox", body, style=read_own("page.css"))


def read_own(name: str) -> str:
    """Return a file that lies beside this one."""
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/{name}", encoding="utf-8") as file:
        return file.read()


def _plain(text: str) -> str:
    return "".join(char for char in text[:120] if char.isprintable())


def _head(story: Story) -> Element:
    pill = E("span", story.state, class_="pill" if story.is_good else "pill bad") if story.state else None
    when = _say_span(story)
    return E(
        "header",
        E("p", E("b", "claudebox"), E("span", "review of a session"), class_="from"),
        E("div", E("h1", show_text(story.title)), pill, class_="title"),
        E("p", E("span", show_text(story.place), class_="path"), f" \u00b7 {when}" if when else "", class_="place"),
    )


def _say_span(story: Story) -> str:
    if not story.began:
        return ""
    day = time.strftime("%A, %d %B %Y", time.localtime(story.began))
    until = f"\u2013{charts.say_time(story.ended, seconds=False)}" if story.ended else " until now"
    return f"{day}, {charts.say_time(story.began, seconds=False)}{until}"


def _foot() -> Iterator[Element]:
    told = (
        f"Made by claudebox {__version__} on this machine. Names, messages, changes and pictures come from an agent; "
        "characters that cannot be seen, or that mislead, are named: "
    )
    yield E("p", told, E("span", "U+202E", class_="odd"))
    yield E("p", "This page loads nothing and runs nothing.")


def _list_parts(story: Story) -> Iterator[tuple[str, str, int | str, Element]]:
    """Yield the sections that have something to say, with a place, a name and a count for the way there."""
    yield "came", "Summary", "", _summary(story)
    if story.look:
        yield "look", "Look at these", len(story.look), _look(story.look)
    if story.commits:
        yield "commits", "Commits", len(story.commits) + story.commits_cut, _commits(story)
    if story.files or story.output or story.gone or story.moved:
        yield "files", story.files_title, len(story.files) + story.files_cut, _files(story)
    if story.events:
        yield "time", "Timeline", "", _timeline(story)
    if story.spending:
        yield "cost", "Cost", "", _cost(story)
    if story.hosts or story.unrecorded:
        yield "network", "Network", len(story.hosts), _network(story)
    if story.entered or story.withheld_count or story.secrets:
        yield "secrets", "What entered", "", _entered(story)
    if story.commands:
        yield "next", "What next", "", _commands(story)


def section(place: str, title: str, *content: Content, remark: str = "", class_: str = "") -> Element:
    heading = E("h2", title, E("small", remark) if remark else None, id=f"{place}-title")
    return E("section", heading, content, id=place, aria_labelledby=f"{place}-title", class_=class_ or None)


def _summary(story: Story) -> Element:
    asked = [E("p", show_text(text, lines=True), class_="said") for text in story.asked[:3]]
    if len(story.asked) > 3:
        asked.append(E("p", f"and {len(story.asked) - 3} more prompts", class_="note"))
    said = E("div", E("p", "The agent's last words", class_="label"),
             E("p", show_text(story.said, lines=True), class_="said")) if story.said else None  # fmt: skip
    brief = (
        E("div", E("p", "Asked", class_="label"), E("div", asked, class_="asked")) if asked else None,
        E("div", E("p", "What came of it", class_="label"),
          E("ul", (E("li", show_text(text)) for text in story.outcome), class_="outcome")) if story.outcome else None,
        said,
    )  # fmt: skip
    doubts = [E("p", show_text(text), class_="cut") for text in story.missing]
    doubts += [E("p", "A withheld secret was found in what the session wrote: ", E("strong", show_text(text)),
                 ". Find the source and rotate it.", class_="cut") for text in story.found]  # fmt: skip
    facts = E("dl", ((E("dt", name), E("dd", show_text(text))) for name, text in story.facts), class_="facts")
    return section("came", "Summary", E("div", brief, class_="brief"), doubts, list_tiles(_figures(story)),
                   facts if story.facts else None)  # fmt: skip


def list_tiles(figures: Iterable[tuple[str, str, bool]]) -> Element:
    """Return numbers with their names; those that are bad news stand out."""
    return E("dl", (E("div", E("dt", name), E("dd", number), class_="bad" if bad else None)
                    for name, number, bad in figures), class_="tiles")  # fmt: skip


def _figures(story: Story) -> Iterator[tuple[str, str, bool]]:
    if story.ended > story.began > 0:
        yield "duration", say_duration(story.ended - story.began), False
    if story.spending:
        price = sum(row.price for row in story.spending)
        yield ("cost", f"${as_dollars(price)}", False) if price else ("tokens", _short(_tokens(story)), False)
    commits = len(story.commits) + story.commits_cut
    if commits:
        yield say_some(commits, "commit", bare=True), str(commits), False
    files = [*story.files, *(row for commit in story.commits for row in commit.files)]
    if added := sum(row.added for row in files):
        yield "lines added", f"+{_short(added)}", False
    if removed := sum(row.removed for row in files):
        yield "lines removed", f"\u2212{_short(removed)}", False
    if story.look:
        yield "to look at", str(len(story.look)), True
    denied = sum(host.count for host in story.hosts if host.verdict == "denied")
    if denied:
        yield "denied", _short(denied), True


def _tokens(story: Story) -> int:
    return sum(row.given + row.said + row.cached for row in story.spending)


def _short(number: int) -> str:
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**4, "k")):
        if number >= size:
            whole = number / (1000 if unit == "k" else size)
            return f"{whole:.1f}{unit}" if whole < 100 else f"{whole:.0f}{unit}"
    return f"{number:,}"


def say_some(count: int, what: str, *, bare: bool = False) -> str:
    return f"{what}{'s' * (count != 1)}" if bare else f"{count:,} {what}{'s' * (count != 1)}"


def _look(rows: Sequence[tuple[str, str, str]]) -> Element:
    table = E(
        "table",
        E("thead", E("tr", (E("th", name, scope="col") for name in ("Path", "What happened", "Who runs it")))),
        E("tbody", (E("tr", E("td", E("span", show_text(path), class_="path")), E("td", show_text(how)),
                      E("td", show_text(why))) for path, how, why in rows)),
        class_="rows stack",
    )  # fmt: skip
    return section("look", "Look at these before you work here", table, class_="look",
                   remark="tools run or obey them without asking")  # fmt: skip


def _commits(story: Story) -> Element:
    branches = dict.fromkeys(commit.branch for commit in story.commits if commit.branch)
    more = E("p", f"and {say_some(story.commits_cut, 'older commit')}: git log shows them", class_="cut")
    return section("commits", "Commits", (_commit(commit) for commit in story.commits),
                   more if story.commits_cut else None, remark=_plain(", ".join(branches)))  # fmt: skip


def _commit(commit: Commit) -> Element:
    subject, _, rest = commit.message.strip().partition("\n")
    when = time.strftime("%d %b %H:%M", time.localtime(commit.time)) if commit.time else ""
    by = E("p", show_text(commit.author), f" \u00b7 {when}" if when else "", class_="by")
    more = E("p", f"and {say_some(commit.cut, 'more file')}", class_="cut") if commit.cut else None
    return E(
        "article",
        E("h3", E("span", commit.name[:7], class_="hash"), show_text(subject[:300])),
        E("p", show_text(rest.strip()[:2000], lines=True), class_="more") if rest.strip() else None,
        by,
        E("p", show_text(commit.note), class_="note") if commit.note else None,
        E("div", show_files(commit.files), more, class_="files"),
        class_="commit",
    )


def _files(story: Story) -> Element:
    content: list[Content] = [E("div", show_files(story.files), class_="files")] if story.files else []
    if story.files_cut:
        content.append(E("p", f"and {say_some(story.files_cut, 'more file')}: claudebox changes names them",
                         class_="cut"))  # fmt: skip
    if story.gone:
        content.append(_fold("Deleted", len(story.gone), (_path(path) for path in story.gone[:_LISTED])))
    if story.moved:
        rows = (E("li", E("span", show_text(old), class_="path"), " \u2192 ",
                  E("span", show_text(new), class_="path")) for old, new in story.moved[:_LISTED])  # fmt: skip
        content.append(_fold("Moved", len(story.moved), rows))
    if story.output:
        whole = sum(count for _, count in story.output)
        rows = (E("li", E("span", show_text(top), class_="path"), f" \u00b7 {say_some(count, 'file')}")
                for top, count in story.output[:_LISTED])  # fmt: skip
        content.append(_fold("Build output", whole, rows, len(story.output)))
    if not content:
        content.append(E("p", "nothing changed", class_="note"))
    return section("files", story.files_title, content)


def _path(path: str) -> Element:
    return E("li", E("span", show_text(path), class_="path"))


def _fold(title: str, count: int, rows: Iterable[Element], listed: int = 0) -> Element:
    hidden = (listed or count) - _LISTED
    more = E("p", f"and {hidden:,} more", class_="cut") if hidden > 0 else None
    return E("details", E("summary", E("strong", title), say_some(count, "file")), E("ul", rows, class_="list"), more,
             class_="fold")  # fmt: skip


def _timeline(story: Story) -> Element:
    events = sorted(story.events, key=lambda event: event.time)
    began = story.began or events[0].time
    ended = max(story.ended, events[-1].time, began + 1)
    rows: list[Content] = []
    for lane, name, what in _LANES:
        if found := [event for event in events if event.lane == lane]:
            rows.append(E("p", name, E("b", f"{len(found):,}"), class_="name"))
            rows.append(charts.draw_lane(found, lane, f"{len(found)} {what}", began, ended))
    lanes = E("div", rows, E("div", charts.list_times(began, ended), class_="axis", aria_hidden="true"), class_="lanes")
    more = f"and {story.events_cut + max(0, len(events) - _EVENTS):,} more"
    table = E(
        "div",
        E("table", E("thead", E("tr", (E("th", name, scope="col") for name in ("Time", "", "What")))),
          E("tbody", map(_event, events[:_EVENTS])), class_="rows"),
        E("p", more, class_="cut") if story.events_cut or len(events) > _EVENTS else None,
        class_="events", tabindex="0", role="region", aria_label="Everything in order",
    )  # fmt: skip
    fold = E("details", E("summary", E("strong", "Everything in order")), table, class_="fold")
    return section("time", "Timeline", lanes, fold)


def _event(event: Event) -> Element:
    name = next((name for lane, name, _ in _LANES if lane == event.lane), "")
    return E("tr", E("td", charts.say_time(event.time), class_="n"), E("td", name),
             E("td", E("code", show_text(event.text[:400]))))  # fmt: skip


def _cost(story: Story) -> Element:
    rows = sorted(story.spending, key=lambda row: row.time)
    began, ended = story.began or rows[0].time, max(story.ended, rows[-1].time)
    price, tokens = sum(row.price for row in rows), _tokens(story)
    figures = []
    if price:
        of = f" of {story.budget}" if story.budget else ""
        figures.append(
            _rise("Dollars", f"${as_dollars(price)}{of}", [(row.time, row.price) for row in rows], began, ended)
        )
    amounts = [(row.time, row.given + row.said + row.cached) for row in rows]
    figures.append(_rise("Tokens", f"{tokens:,}", amounts, began, ended))
    models: dict[str, list[int]] = {}
    for row in rows:
        sums = models.setdefault(row.model or "?", [0] * 5)
        for at, amount in enumerate((1, row.given, row.cached, row.said, row.price)):
            sums[at] += amount
    table = E(
        "table",
        E("thead", E("tr", E("th", "Model", scope="col"),
                     (E("th", name, scope="col", class_="n")
                      for name in ("Answers", "Tokens in", "From caches", "Out", "Dollars")))),
        E("tbody", (E("tr", E("td", show_text(model)), (E("td", f"{amount:,}", class_="n") for amount in sums[:4]),
                      E("td", as_dollars(sums[4]) if sums[4] else "?", class_="n"))
                    for model, sums in models.items())),
        class_="rows",
    )  # fmt: skip
    return section("cost", "Cost", E("div", figures, class_="columns"), _scroll(table, "Cost by model"))


def _rise(name: str, whole: str, points: Sequence[tuple[float, int]], began: float, ended: float) -> Element:
    return E(
        "figure",
        E("figcaption", name, E("b", whole)),
        charts.draw_rise(points, f"{name} over time: {whole} at the end", began, ended),
        E("div", charts.list_times(began, ended), class_="axis", aria_hidden="true"),
        class_="chart",
    )


def _scroll(content: Element, label: str) -> Element:
    return E("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def _network(story: Story) -> Element:
    denied = [host for host in story.hosts if host.verdict == "denied"]
    reached = [host for host in story.hosts if host.verdict != "denied"]
    content: list[Content] = []
    if denied:
        content.append(_hosts("Denied", denied, amounts=False))
    if reached:
        content.append(_hosts("Reached", reached, amounts=True))
    if story.unrecorded:
        content.append(E("p", story.unrecorded, class_="note"))
    return section("network", "Network", content)


def _hosts(title: str, hosts: Sequence[HostTraffic], *, amounts: bool) -> Element:
    most = max((host.up + host.down for host in hosts), default=0)
    names = ("Host", "Times", *(("Sent", "Received", "") if amounts else ("Why",)))
    head = (E("th", name, scope="col", class_="n" if name in ("Times", "Sent", "Received") else None) if name
            else E("td", class_="bar") for name in names)  # fmt: skip
    more = E("p", f"and {len(hosts) - _LISTED:,} more", class_="cut") if len(hosts) > _LISTED else None
    rows = (_host(host, most, amounts=amounts) for host in hosts[:_LISTED])
    table = E("table", E("caption", title), E("thead", E("tr", head)), E("tbody", rows), class_="rows")
    return E("div", _scroll(table, title), more)


def _host(host: HostTraffic, most: int, *, amounts: bool) -> Element:
    cells: list[Content] = [E("td", E("span", show_text(host.place), class_="path"),
                              E("span", " with ", show_text(", ".join(host.secrets)), class_="note")
                              if host.secrets else None),
                            E("td", f"{host.count:,}", class_="n")]  # fmt: skip
    if amounts:
        cells += [E("td", human(host.up), class_="n"), E("td", human(host.down), class_="n"),
                  E("td", charts.draw_bar(host.up + host.down, most), class_="bar")]  # fmt: skip
    else:
        cells.append(E("td", show_text(host.rule)))
    return E("tr", cells)


def _entered(story: Story) -> Element:
    asked = [(name, origin) for name, origin in story.entered if origin != "claudebox"]
    made = len(story.entered) - len(asked)
    entered = [E("li", E("code", show_text(name)), " ", E("span", show_text(origin), class_="note"))
               for name, origin in asked[:_LISTED]]  # fmt: skip
    if made:
        entered.append(E("li", f"{say_some(made, 'variable')} made by claudebox", class_="note"))
    withheld: list[Content] = [E("li", E("code", show_text(name))) for name in story.withheld[:_LISTED]]
    if story.withheld_count > len(story.withheld):
        withheld.append(E("li", f"and {story.withheld_count - len(story.withheld):,} more", class_="note"))
    outside = [E("li", E("code", show_text(name)), " ", E("span", "only for ", show_text(hosts), class_="note"))
               for name, hosts in story.secrets[:_LISTED]]  # fmt: skip
    columns = (("Entered", entered), ("Withheld", withheld), ("Stayed outside", outside))
    return section("secrets", "What entered, and what did not", E("div", (
        E("div", E("p", title, class_="label"), E("ul", rows, class_="list")) for title, rows in columns if rows
    ), class_="columns"), remark="names, never values")  # fmt: skip


def _commands(story: Story) -> Element:
    rows = (E("div", E("dt", what), E("dd", E("code", show_text(command)))) for what, command in story.commands)
    return section("next", "What next", E("dl", rows, class_="commands"), remark="a click selects a command")
