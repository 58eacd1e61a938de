"""The page of one session: what came of it, what to look at first, every change, and what it reached and cost."""

from __future__ import annotations

import itertools
import time

from claudebox import __version__
from claudebox.report.denied import explain
from claudebox.report.log import human
from claudebox.report.screen import fit, say_duration
from claudebox.review import charts, page
from claudebox.review.html import E, embed_picture, link_within, show_lines
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.review.diffs import FileChange, Hunk, Line
    from claudebox.review.html import Content, Element
    from claudebox.review.page import Section
    from claudebox.review.pictures import Picture
    from claudebox.review.records import Commit, HostTraffic, Story


_LANES = (
    ("model", "Model", "requests to the model"), ("tools", "Tools", "tools that the agent used"),
    ("commits", "Commits", "commits"), ("allowed", "Network", "connections"),
    ("denied", "Denied", "denied connections"),
)  # fmt: skip
_EVENTS, _LISTED, _OUTCOMES = 1500, 400, 12  # rows of a list
_SUMS = ("Answers", "Tokens in", "From caches", "Out", "Cost")
_MESSAGE, _LONG = 2000, 600  # characters
_SHOWN = 30  # files before the others are folded together
_OPEN_FILES, _OPEN_LINES, _OPEN_TOGETHER = 12, 60, 240  # of files that are shown unfolded
_MARKED = 300  # characters of a line in which the difference is marked
_ALIKE = 3  # such a part of a line must be the same on both sides
_NAMES = {" ": "span", "-": "del", "+": "ins"}


def render_session(story: Story) -> bytes:
    """Return the page of a session as HTML."""
    told = (
        f"Made by claudebox {__version__} on this machine. Names, messages, changes and pictures come from an agent; "
        "characters that cannot be seen, or that mislead, are named: "
    )
    foot = E("p", told, "\u202e"), E("p", "This page loads nothing and runs nothing.")
    return page.render_page(story.title[:120], _head(story), [*_list_sections(story)], foot)


def _head(story: Story) -> Element:
    pill = E("span", story.state, class_="pill" if story.is_good else "pill bad") if story.state else None
    place = page.show_path(story.place) if story.place else None
    when = _say_span(story) if story.began else ""
    below = E("p", place, " \u00b7 " if place is not None and when else "", when, class_="place")
    return page.make_head(f"review of a {story.what}", story.title, below, beside=pill)


def _say_span(story: Story) -> str:
    day = time.strftime("%A, %d %B %Y", time.localtime(story.began))
    began, ended = (charts.say_time(moment, seconds=False) for moment in (story.began, story.ended))
    return f"{day}, {began}" + (" until now" if not story.ended else f"\u2013{ended}" if ended != began else "")


def _list_sections(story: Story) -> Iterator[Section]:
    """Yield the sections that have something to say."""
    yield _summary(story)
    if story.look:
        yield _look(story)
    if story.commits:
        yield _commits(story)
    if story.files or story.output:
        yield _files(story)
    if len(story.events) > 1:
        yield _timeline(story)
    if story.spending:
        yield _cost(story)
    if story.hosts or story.unrecorded:
        yield _network(story)
    if story.entered or story.withheld_count or story.secrets:
        yield _entered(story)
    if story.commands:
        rows = (E("div", E("dt", what), E("dd", E("code", command))) for what, command in story.commands)
        yield page.make_section(
            "next", "What next", E("dl", rows, class_="commands"), remark="a click selects a command"
        )


def _summary(story: Story) -> Section:
    asked = [_say(text) for text in story.asked[:3]]
    if more := max(0, len(story.asked) - 3) + story.asked_cut:
        asked.append(E("p", f"and {page.say_some(more, 'more prompt')}", class_="note"))
    outcome = [E("li", text) for text in story.outcome[:_OUTCOMES]]
    if len(story.outcome) > _OUTCOMES:
        outcome.append(E("li", f"and {len(story.outcome) - _OUTCOMES:,} more"))
    brief = (
        E("div", E("p", title, class_="label"), content)
        for title, content, is_there in (
            ("Asked", E("div", asked, class_="asked"), asked), ("Outcome", E("ul", outcome, class_="outcome"), outcome),
            ("The agent's final message", _say(story.said), story.said),
        ) if is_there
    )  # fmt: skip
    found = (E("p", "A withheld secret was found in what the session wrote: ", E("strong", text),
               ". Find the source and rotate it.", class_="cut bad") for text in story.found)  # fmt: skip
    doubts = (E("p", text, class_="cut") for text in story.missing)
    facts = E("dl", ((E("dt", name), E("dd", text)) for name, text in story.facts), class_="facts")
    figures = [*_list_figures(story)]
    return page.make_section("came", "Summary", found, E("div", brief, class_="brief"),
                             page.list_figures(figures) if figures else None, doubts,
                             facts if story.facts else None)  # fmt: skip


def _say(text: str, class_: str = "said") -> Element:
    """Return what somebody said; a long text scrolls in its place, so that it hides nothing below."""
    return show_lines(text, class_=class_, tabindex=0 if len(text) > _LONG or text.count("\n") > _LONG / 50 else None)


def _list_figures(story: Story) -> Iterator[tuple[str, str, bool]]:
    if story.ended - story.began >= 1 and story.began:
        yield "duration", say_duration(story.ended - story.began), False
    if story.spending:
        price = sum(row.price for row in story.spending)
        yield ("cost", f"${as_dollars(price)}", False) if price else ("tokens", f"{_tokens(story):,}", False)
    if commits := len(story.commits) + story.commits_cut:
        yield "commits" if commits > 1 else "commit", f"{commits:,}", False
    if added := sum(change.added for change in story.changes):
        yield "lines added", f"+{added:,}", False
    if removed := sum(change.removed for change in story.changes):
        yield "lines removed", f"\u2212{removed:,}", False
    if story.look:
        yield "to look at", f"{len(story.look):,}", True
    if denied := sum(host.count for host in story.hosts if host.verdict == "denied"):
        yield "denied", f"{denied:,}", True


def _tokens(story: Story) -> int:
    return sum(row.given + row.said + row.cached for row in story.spending)


def _look(story: Story) -> Section:
    latest = {fit(change.path): change for change in story.changes}
    rows = []
    for number, (path, how, why) in enumerate(story.look):
        shown = page.show_path(path)
        if path in latest:
            latest[path].place = f"look-{number}"  # for the sections below
            shown = link_within(latest[path].place, shown)
        rows.append((shown, how, why))
    return page.make_section(
        "look", "Look at these before you work here", page.make_table(("Path", "What happened", "Who runs it"), rows),
        name="Look at these", count=len(rows), class_="look", remark="tools run or obey these without asking",
    )  # fmt: skip


def _commits(story: Story) -> Section:
    branches = {commit.branch: None for commit in story.commits if commit.branch}
    more = E("p", f"and {page.say_some(story.commits_cut, 'older commit')}: git log shows them", class_="cut")
    return page.make_section("commits", "Commits", map(_commit, story.commits), more if story.commits_cut else None,
                        count=len(story.commits) + story.commits_cut, remark=", ".join(branches)[:120])  # fmt: skip


def _commit(commit: Commit) -> Element:
    subject, _, rest = commit.message[:_MESSAGE].strip().partition("\n")
    if len(commit.message) > _MESSAGE:
        rest += f" \u2026 and {len(commit.message) - _MESSAGE:,} more characters"
    when = f" \u00b7 {time.strftime('%d %b %H:%M', time.localtime(commit.time))}" if commit.time else ""
    return E(
        "article",
        E("h3", E("span", commit.name[:7], class_="hash"), " ", subject),
        _say(rest.strip(), "more") if rest.strip() else None,
        E("p", commit.author[:250], when, class_="by"),
        E("p", commit.note, class_="note") if commit.note else None,
        E("div", show_files(commit.files), page.say_cut(commit.cut, "files"), class_="files"),
        class_="commit",
    )


def _files(story: Story) -> Section:
    rows = (
        E("li", page.show_path(top), f" \u00b7 {page.say_some(count, 'file')}") for top, count in story.output[:_LISTED]
    )
    output = E("ul", rows, class_="list"), page.say_cut(len(story.output) - _LISTED)
    count = sum(count for _, count in story.output)
    return page.make_section(
        "files", story.files_title, E("div", show_files(story.files), class_="files"),
        page.say_cut(story.files_cut, "files: claudebox changes names them"),
        page.make_fold("Build output", page.say_some(count, "file"), output) if count else None,
        count=len(story.files) + story.files_cut,
    )  # fmt: skip


def show_files(files: Sequence[FileChange]) -> Iterator[Element]:
    """Yield files one after another: small ones unfolded while there is room, many of them folded together."""
    count, left = _OPEN_FILES, _OPEN_TOGETHER
    rest = [change for change in files[_SHOWN:] if not change.place]
    for number, change in enumerate(files):
        if number >= _SHOWN and not change.place:
            continue
        fits = change.how != "deleted" and change.shown <= min(_OPEN_LINES, left) and count > 0
        left, count = (left - change.shown, count - 1) if fits else (left, count)
        yield _file(change, is_open=fits or (bool(change.place) and change.shown <= _OPEN_LINES))
    if rest:
        yield page.make_fold(
            page.say_some(len(rest), "more file"), "", (_file(change, is_open=False) for change in rest)
        )


def _file(change: FileChange, *, is_open: bool) -> Element:
    """Return one file with what changed in it."""
    note = change.note if change.sizes is None else _say_sizes(change)
    is_bare = not (change.hunks or change.before or change.after or change.cut)
    head = (
        E("span", (page.show_path(change.origin), " \u2192 ") if change.origin else None, page.show_path(change.path),
          class_="names"), " ",
        E("span",
          E("span", change.how, class_=f"how {change.how}" if change.how in ("new", "deleted") else "how"),
          (" ", E("span", f"+{change.added:,}", class_="plus")) if change.added else None,
          (" ", E("span", f"\u2212{change.removed:,}", class_="minus")) if change.removed else None, class_="marks"),
        (" ", E("span", change.why, class_="why")) if change.why else None,
        (" ", E("span", note, class_="about")) if note and is_bare else None,
    )  # fmt: skip
    place = change.place or None
    if is_bare:
        return E("div", head, class_="file", id=place)
    pictures = [E("figure", E("figcaption", _say_picture(name, picture, size)),
                  embed_picture(picture, f"{change.path[-200:]}, {name}"))
                for name, picture, size in zip(("before", "after"), (change.before, change.after),
                                               change.sizes or (-1, -1), strict=True) if picture]  # fmt: skip
    return E(
        "details", E("summary", head), E("p", note, class_="note") if note else None,
        E("div", pictures, class_="pictures") if pictures else None,
        E("pre", map(_hunk, change.hunks), class_="diff") if change.hunks else None,
        page.say_cut(change.cut, "changed lines"), class_="file", open=is_open, id=place,
    )  # fmt: skip


def _say_sizes(change: FileChange) -> str:
    """Return how large a binary file was and is; captions of pictures say that of each."""
    sizes = [human(size) for size in change.sizes or () if size >= 0]
    if change.before or change.after:
        return change.note
    return ", ".join(filter(None, (change.note or "binary", " \u2192 ".join(sizes))))


def _say_picture(name: str, picture: Picture, size: int) -> str:
    return f"{name}: {picture.width:,} \u00d7 {picture.height:,}" + (f", {human(size)}" if size >= 0 else "")


def _hunk(hunk: Hunk) -> Iterator[Element]:
    first = next((number for _, number, _ in hunk.lines), 0)
    if first > 1 or hunk.heading:
        yield E("span", f"line {first}", f" \u00b7 {hunk.heading}" if hunk.heading else "", class_="hunk")
    for is_same, rows in itertools.groupby(hunk.lines, lambda row: row[0] == " "):
        block = sorted(rows, key=lambda row: row[0] == "+")  # as git does: what went, then what came
        old, new = ([row for row in block if row[0] == mark] for mark in "-+")
        is_paired = not is_same and len(old) == len(new)
        texts = itertools.chain(*(map(_mark, some, others) for some, others in ((old, new), (new, old))))
        for row, text in zip(block, texts if is_paired else (text for _, _, text in block), strict=True):
            yield E(_NAMES[row[0]], text, data_n=row[1])


def _mark(row: Line, counterpart: Line) -> Content:
    """Return a line in which the part that differs from its counterpart is marked."""
    text, other = row[2], counterpart[2]
    if max(len(text), len(other)) > _MARKED:
        return text
    start = _count_alike(text, other)
    end = _count_alike(text[start:][::-1], other[start:][::-1])
    while start and _is_word(text, start) and _is_word(other, start):
        start -= 1
    while end and _is_word(text, len(text) - end) and _is_word(other, len(other) - end):
        end -= 1
    if (start + end) * _ALIKE < max(len(text), len(other)):
        return text
    middle = text[start : len(text) - end]
    return text[:start], E("mark", middle) if middle else None, text[len(text) - end :]


def _count_alike(text: str, other: str) -> int:
    """Return how many characters are the same from the beginning."""
    return next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two),
                min(len(text), len(other)))  # fmt: skip


def _is_word(text: str, at: int) -> bool:
    """Return whether a place is within a word."""
    return 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()


def _timeline(story: Story) -> Section:
    events = sorted(story.events, key=lambda event: event.time)
    began = story.began or events[0].time
    ended = max(story.ended or events[-1].time, began + 1)  # the dates of commits are the agent's choice
    names = {lane: name for lane, name, _ in _LANES}
    rows: list[Content] = []
    for lane, name, what in _LANES:
        if found := [event for event in events if event.lane == lane]:
            rows += [E("p", name, " ", E("b", f"{len(found):,}"), class_="name"),
                     charts.draw_lane(found, lane, f"{len(found)} {what}", began, ended)]  # fmt: skip
    table = E(
        "div",
        page.make_table(("Time", "What", "Details"), ((charts.say_time(event.time), names[event.lane],
                                                  E("code", event.text[:400])) for event in events[:_EVENTS]),
                   class_="rows"),
        page.say_cut(story.events_cut + max(0, len(events) - _EVENTS)),
        class_="events", tabindex="0", role="region", aria_label="All events",
    )  # fmt: skip
    return page.make_section(
        "time", "Timeline", E("div", rows, charts.draw_axis(began, ended), class_="lanes"),
        page.make_fold("All events", f"{len(events):,}", table),
    )  # fmt: skip


def _cost(story: Story) -> Section:
    rows = sorted(story.spending, key=lambda row: row.time)
    began, ended = story.began or rows[0].time, max(story.ended, rows[-1].time)
    price = sum(row.price for row in rows)
    figures = []
    if price:
        whole = f"${as_dollars(price)}" + (f" of {story.budget}" if story.budget else "")
        figures.append(charts.draw_rise("Dollars", whole, [(row.time, row.price) for row in rows], began, ended))
    amounts = [(row.time, row.given + row.said + row.cached) for row in rows]
    figures.append(charts.draw_rise("Tokens", f"{_tokens(story):,}", amounts, began, ended))
    models: dict[str, list[int]] = {}
    for row in rows:
        sums = models.setdefault(row.model or "?", [0] * len(_SUMS))
        for at, amount in enumerate((1, row.given, row.cached, row.said, row.price)):
            sums[at] += amount
    table = page.make_table(("Model", *_SUMS), (
        (model, *(f"{amount:,}" for amount in sums[:-1]), f"${as_dollars(sums[-1])}" if sums[-1] else "?")
        for model, sums in models.items()))  # fmt: skip
    return page.make_section("cost", "Cost", E("div", figures, class_="columns"), table)


def _network(story: Story) -> Section:
    denied = [host for host in story.hosts if host.verdict == "denied"]
    reached = [host for host in story.hosts if host.verdict != "denied"]
    most = max((host.up + host.down for host in reached), default=0)
    refused = ((page.show_path(host.place), f"{host.count:,}", explain(host.rule)) for host in denied[:_LISTED])
    passed = ((_host(host), f"{host.count:,}", human(host.up), human(host.down),
               charts.draw_bar(host.up + host.down, most)) for host in reached[:_LISTED])  # fmt: skip
    content = (
        _list_hosts("Denied", ("Host", "Times", "Why"), [*refused], len(denied)),
        _list_hosts("Reached", ("Host", "Times", "Sent", "Received", ""), [*passed], len(reached)),
        E("p", story.unrecorded, class_="note") if story.unrecorded else None,
    )
    return page.make_section("network", "Network", content, count=len(story.hosts))


def _list_hosts(title: str, heads: Sequence[str], rows: Sequence[Sequence[Content]], count: int) -> Content:
    if rows:
        return page.make_table(heads, rows, caption=title, class_="rows hosts stack"), page.say_cut(count - len(rows))
    return None


def _host(host: HostTraffic) -> Content:
    secrets = E("span", " with ", ", ".join(host.secrets), class_="note") if host.secrets else None
    return page.show_path(host.place), secrets


def _entered(story: Story) -> Section:
    asked = [(name, origin) for name, origin in story.entered if origin != "claudebox"]
    made = len(story.entered) - len(asked)
    entered = [_variable(*row) for row in asked[:_LISTED]]
    if made:
        entered.append(E("li", f"{page.say_some(made, 'variable')} made by claudebox", class_="note"))
    withheld = [_variable(name) for name in story.withheld[:_LISTED]]
    if (more := story.withheld_count - len(withheld)) > 0:
        withheld.append(E("li", f"and {more:,} more", class_="note"))
    outside = [_variable(name, f"only for {hosts}") for name, hosts in story.secrets[:_LISTED]]
    columns = (("Entered", entered), ("Withheld", withheld), ("Kept outside", outside))
    return page.make_section("secrets", "Variables and secrets", E("div", (
        E("div", E("p", title, class_="label"), E("ul", rows, class_="list")) for title, rows in columns if rows
    ), class_="columns"), name="Variables", remark="names, never values")  # fmt: skip


def _variable(name: str, remark: str = "") -> Element:
    return E("li", E("code", name), " ", E("span", remark, class_="note") if remark else None)
