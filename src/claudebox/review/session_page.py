"""The page of one session: what came of it, what to look at first, every change, and what it reached and cost."""

from __future__ import annotations

import os
import time

from claudebox import __version__
from claudebox.report.log import human
from claudebox.report.screen import say_duration
from claudebox.review import charts
from claudebox.review.html import E, embed_picture, link_within, render_document, show_text
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.review.diffs import FileChange, Hunk, Line
    from claudebox.review.html import Content, Element
    from claudebox.review.pictures import Picture
    from claudebox.review.records import Commit, Event, HostTraffic, Story


_LANES = (
    ("model", "Model", "requests to the model"), ("tools", "Tools", "tools that the agent used"),
    ("commits", "Commits", "commits"), ("allowed", "Network", "connections"),
    ("denied", "Denied", "denied connections"),
)  # fmt: skip
_EVENTS, _LISTED, _OUTCOMES = 1500, 400, 12  # rows of a list
_AMOUNTS = ("Answers", "Tokens in", "From caches", "Out", "Cost")
_PATH, _MESSAGE = 250, 2000  # characters, of a path at each end
_OPEN_LINES, _OPEN_TOGETHER = 60, 240  # of files that are shown unfolded
_MARKED = 300  # characters of a line in which the difference is marked
_ALIKE = 3  # such a part of a line must be the same on both sides
_NAMES = {" ": "span", "-": "del", "+": "ins"}


def render_session(story: Story) -> bytes:
    """Return the page of a session as HTML."""
    return render_page(_plain(story.title), _head(story), [*_list_parts(story)], _foot())


def render_page(
    title: str, head: Element, parts: Sequence[tuple[str, str, int, Element]], foot: Content, *, script: str = ""
) -> bytes:
    """Return a page of sections, each with its place, and its name and count for the way there."""
    links = [
        E("li", link_within(place, name, E("span", f"{count:,}") if count else None)) for place, name, count, _ in parts
    ]
    body = (
        link_within("main", "Skip to the content", class_="skip"),
        E("div", head, class_="wide"),
        E("nav", E("div", E("ul", links), class_="wide"), aria_label="On this page"),
        E("main", (section for *_, section in parts), id="main", class_="wide"),
        E("footer", foot, class_="wide"),
    )
    return render_document(f"{title} \u00b7 claudebox", body, style=read_own("page.css"), script=script)


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
        E("p", show_path(story.place), f" \u00b7 {when}" if when else "", class_="place"),
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


def _list_parts(story: Story) -> Iterator[tuple[str, str, int, Element]]:
    """Yield the sections that have something to say, with a place, a name and a count for the way there."""
    yield "came", "Summary", 0, _summary(story)
    if story.look:
        yield "look", "Look at these", len(story.look), _look(story.look)
    if story.commits:
        yield "commits", "Commits", len(story.commits) + story.commits_cut, _commits(story)
    if story.files or story.output or story.gone or story.moved:
        yield "files", story.files_title, len(story.files) + story.files_cut, _files(story)
    if story.events:
        yield "time", "Timeline", 0, _timeline(story)
    if story.spending:
        yield "cost", "Cost", 0, _cost(story)
    if story.hosts or story.unrecorded:
        yield "network", "Network", len(story.hosts), _network(story)
    if story.entered or story.withheld_count or story.secrets:
        yield "secrets", "Variables", 0, _entered(story)
    if story.commands:
        yield "next", "What next", 0, _commands(story)


def section(place: str, title: str, *content: Content, remark: str = "", class_: str = "") -> Element:
    heading = E("h2", title, E("small", remark) if remark else None, id=f"{place}-title")
    return E("section", heading, content, id=place, aria_labelledby=f"{place}-title", class_=class_ or None)


def _summary(story: Story) -> Element:
    asked = [E("p", show_text(text, lines=True), class_="said") for text in story.asked[:3]]
    if more := max(0, len(story.asked) - 3) + story.asked_cut:
        asked.append(E("p", f"and {say_some(more, 'more prompt')}", class_="note"))
    outcome = [E("li", show_text(text)) for text in story.outcome[:_OUTCOMES]]
    if len(story.outcome) > _OUTCOMES:
        outcome.append(E("li", f"and {len(story.outcome) - _OUTCOMES:,} more"))
    said = E("div", E("p", "The agent's final message", class_="label"),
             E("p", show_text(story.said, lines=True), class_="said")) if story.said else None  # fmt: skip
    brief = (
        E("div", E("p", "Asked", class_="label"), E("div", asked, class_="asked")) if asked else None,
        E("div", E("p", "Outcome", class_="label"), E("ul", outcome, class_="outcome")) if outcome else None,
        said,
    )  # fmt: skip
    doubts = [E("p", "A withheld secret was found in what the session wrote: ", E("strong", show_text(text)),
                ". Find the source and rotate it.", class_="cut bad") for text in story.found]  # fmt: skip
    doubts += [E("p", show_text(text), class_="cut") for text in story.missing]
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
        E("tbody", (E("tr", E("td", show_path(path)), E("td", show_text(how)),
                      E("td", show_text(why))) for path, how, why in rows)),
        class_="rows stack",
    )  # fmt: skip
    return section("look", "Look at these before you work here", table, class_="look",
                   remark="tools run or obey these without asking")  # fmt: skip


def _commits(story: Story) -> Element:
    branches = dict.fromkeys(commit.branch for commit in story.commits if commit.branch)
    more = E("p", f"and {say_some(story.commits_cut, 'older commit')}: git log shows them", class_="cut")
    return section("commits", "Commits", (_commit(commit) for commit in story.commits),
                   more if story.commits_cut else None, remark=_plain(", ".join(branches)))  # fmt: skip


def _commit(commit: Commit) -> Element:
    subject, _, rest = commit.message[:_MESSAGE].strip().partition("\n")
    if len(commit.message) > _MESSAGE:
        rest += f" \u2026 and {len(commit.message) - _MESSAGE:,} more characters"
    when = time.strftime("%d %b %H:%M", time.localtime(commit.time)) if commit.time else ""
    by = E("p", show_text(commit.author[:_PATH]), f" \u00b7 {when}" if when else "", class_="by")
    more = E("p", f"and {say_some(commit.cut, 'more file')}", class_="cut") if commit.cut else None
    return E(
        "article",
        E("h3", E("span", commit.name[:7], class_="hash"), show_text(subject)),
        E("p", show_text(rest.strip(), lines=True), class_="more") if rest.strip() else None,
        by,
        E("p", show_text(commit.note), class_="note") if commit.note else None,
        E("div", show_files(commit.files), more, class_="files"),
        class_="commit",
    )


def _files(story: Story) -> Element:
    files = E("div", show_files(story.files), class_="files") if story.files else None
    more = E("p", f"and {say_some(story.files_cut, 'more file')}: claudebox changes names them", class_="cut")
    moves: list[Content] = [[show_path(old), " \u2192 ", show_path(new)] for old, new in story.moved[:_LISTED]]
    output: list[Content] = [
        [show_path(top), f" \u00b7 {say_some(count, 'file')}"] for top, count in story.output[:_LISTED]
    ]
    folds = (
        _fold("Deleted", len(story.gone), map(show_path, story.gone[:_LISTED]), len(story.gone)),
        _fold("Moved", len(story.moved), moves, len(story.moved)),
        _fold("Build output", sum(count for _, count in story.output), output, len(story.output)),
    )
    return section("files", story.files_title, files, more if story.files_cut else None,
                   E("div", folds, class_="folds") if any(folds) else None)  # fmt: skip


def show_path(path: str) -> Element:
    """Return a path that cannot be mistaken for another one; of a very long one both ends."""
    more = len(path) - 2 * _PATH
    shown = path if more <= 0 else f"{path[:_PATH]} \u2026 {more:,} more characters \u2026 {path[-_PATH:]}"
    return E("span", show_text(shown), class_="path")


def _fold(title: str, count: int, rows: Iterable[Content], known: int) -> Element | None:
    """Return a folded list; `known` rows are there, of which `_LISTED` are given."""
    if not known:
        return None
    more = E("p", f"and {known - _LISTED:,} more", class_="cut") if known > _LISTED else None
    return E("details", E("summary", E("strong", title), say_some(count, "file")),
             E("ul", (E("li", row) for row in rows), class_="list"), more, class_="fold")  # fmt: skip


def show_files(files: Iterable[FileChange]) -> Iterator[Element]:
    """Yield files one after another; the first small ones are unfolded."""
    left = _OPEN_TOGETHER
    for change in files:
        size = change.shown
        is_open = bool(change.before or change.after) or (0 < size <= min(_OPEN_LINES, left))
        left -= size if is_open else 0
        yield show_file(change, is_open=is_open)


def show_file(change: FileChange, *, is_open: bool) -> Element:
    """Return one file with what changed in it."""
    note = change.note if change.sizes is None else _say_sizes(change)
    is_bare = not (change.hunks or change.before or change.after or change.cut)
    head = (
        E("span", show_path(change.origin), " \u2192 ", show_path(change.path), class_="names")
        if change.origin else E("span", show_path(change.path), class_="names"),
        E("span",
          E("span", change.how, class_=f"how {change.how}" if change.how in ("new", "deleted") else "how"),
          E("span", f"+{change.added:,}", class_="plus") if change.added else None,
          E("span", f"\u2212{change.removed:,}", class_="minus") if change.removed else None, class_="marks"),
        E("span", show_text(change.why), class_="why") if change.why else None,
        E("span", show_text(note), class_="about") if note and is_bare else None,
    )  # fmt: skip
    if is_bare:
        return E("div", head, class_="file")
    content: list[Content] = [E("p", show_text(note), class_="note")] if note else []
    if change.before or change.after:
        content.append(_pictures(change))
    if change.hunks:
        content.append(E("pre", (_hunk(hunk) for hunk in change.hunks), class_="diff"))
    if change.cut:
        content.append(E("p", f"and {change.cut:,} more changed lines", class_="cut"))
    return E("details", E("summary", head), content, class_="file", open=is_open)


def _say_sizes(change: FileChange) -> str:
    """Return how large a binary file was and is; captions of pictures say that of each."""
    sizes = [human(size) for size in change.sizes or () if size >= 0]
    if change.before or change.after:
        return change.note
    return ", ".join(filter(None, (change.note or "binary", " \u2192 ".join(sizes))))


def _pictures(change: FileChange) -> Element:
    rows = zip(("before", "after"), (change.before, change.after), change.sizes or (-1, -1), strict=True)
    return E("div", (_picture(name, picture, size, change.path) for name, picture, size in rows if picture),
             class_="pictures")  # fmt: skip


def _picture(name: str, picture: Picture, size: int, path: str) -> Element:
    told = f"{name}: {picture.width:,} \u00d7 {picture.height:,}" + (f", {human(size)}" if size >= 0 else "")
    return E("figure", E("figcaption", told), embed_picture(picture, f"{path[-200:]}, {name}"))


def _hunk(hunk: Hunk) -> Iterator[Element]:
    first = next((number for _, number, _ in hunk.lines), 0)
    if first > 1 or hunk.heading:
        told = f" \u00b7 {hunk.heading}" if hunk.heading else ""
        yield E("span", f"line {first}", show_text(told), class_="hunk")
    for block in _blocks(hunk.lines):
        old, new = ([row for row in block if row[0] == mark] for mark in "-+")
        pairs = dict(zip(map(id, old), new, strict=False)) | dict(zip(map(id, new), old, strict=False))
        for row in block:
            other = pairs.get(id(row)) if len(old) == len(new) else None
            mark, number, text = row
            yield E(_NAMES[mark], _mark(text, other[2]) if other else show_text(text), data_n=number)


def _blocks(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield lines that stay one by one, and those that changed at one place together."""
    block: list[Line] = []
    for row in lines:
        if row[0] == " ":
            if block:
                yield block
                block = []
            yield [row]
        else:
            block.append(row)
    if block:
        yield block


def _mark(text: str, other: str) -> Content:
    """Return a line in which the part that differs from the other side is marked."""
    if max(len(text), len(other)) > _MARKED:
        return show_text(text)
    start, most = 0, min(len(text), len(other))
    while start < most and text[start] == other[start]:
        start += 1
    end = 0
    while end < most - start and text[-1 - end] == other[-1 - end]:
        end += 1
    while start and _is_word(text, start) and _is_word(other, start):
        start -= 1
    while end and _is_word(text, len(text) - end) and _is_word(other, len(other) - end):
        end -= 1
    if (start + end) * _ALIKE < max(len(text), len(other)):
        return show_text(text)
    middle = text[start : len(text) - end]
    marked = E("mark", show_text(middle)) if middle else None
    return [show_text(text[:start]), marked, show_text(text[len(text) - end :])]


def _is_word(text: str, at: int) -> bool:
    """Return whether a place is within a word."""
    return 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()


def _timeline(story: Story) -> Element:
    events = sorted(story.events, key=lambda event: event.time)
    began = story.began or events[0].time
    ended = max(story.ended or events[-1].time, began + 1)  # the dates of commits are the agent's choice
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
                     (E("th", name, scope="col", class_="n") for name in _AMOUNTS))),
        E("tbody", (E("tr", E("td", show_text(model)),
                      (E("td", f"{amount:,}", class_="n", data_n=name.lower())
                       for amount, name in zip(sums, _AMOUNTS[:4], strict=False)),
                      E("td", f"${as_dollars(sums[4])}" if sums[4] else "?", class_="n"))
                    for model, sums in models.items())),
        class_="rows stack",
    )  # fmt: skip
    return section("cost", "Cost", E("div", figures, class_="columns"), table)


def _rise(name: str, whole: str, points: Sequence[tuple[float, int]], began: float, ended: float) -> Element:
    return E(
        "figure",
        E("figcaption", name, E("b", whole)),
        charts.draw_rise(points, f"{name} over time: {whole} at the end", began, ended),
        E("div", charts.list_times(began, ended), class_="axis", aria_hidden="true"),
        class_="chart",
    )


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
    table = E("table", E("caption", title), E("thead", E("tr", head)), E("tbody", rows), class_="rows hosts stack")
    return E("div", table, more)


def _host(host: HostTraffic, most: int, *, amounts: bool) -> Element:
    secrets = E("span", " with ", show_text(", ".join(host.secrets)), class_="note") if host.secrets else None
    cells = [E("td", show_path(host.place), secrets), E("td", f"{host.count:,}", class_="n", data_n="times")]
    if amounts:
        cells += [E("td", human(host.up), class_="n", data_n="sent"),
                  E("td", human(host.down), class_="n", data_n="received"),
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
    columns = (("Entered", entered), ("Withheld", withheld), ("Kept outside", outside))
    return section("secrets", "Variables and secrets", E("div", (
        E("div", E("p", title, class_="label"), E("ul", rows, class_="list")) for title, rows in columns if rows
    ), class_="columns"), remark="names, never values")  # fmt: skip


def _commands(story: Story) -> Element:
    rows = (E("div", E("dt", what), E("dd", E("code", show_text(command)))) for what, command in story.commands)
    return section("next", "What next", E("dl", rows, class_="commands"), remark="a click selects a command")
