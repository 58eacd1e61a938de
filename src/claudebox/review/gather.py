"""Everything that is known of one session, from its log, its snapshots, its conversation and the repository.

Of a task, the files of its result say it.

Nothing of the project is run. Files are opened through no link, git reads in a sandbox that can write nothing, and what
cannot be found is said.
"""

from __future__ import annotations

import contextlib
import os
import time

from claudebox.agent import kinds
from claudebox.agent.conversation import Conversation, cut, find_conversations, read_conversation
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, read_small
from claudebox.base.records import Value
from claudebox.git.importer import find_tools
from claudebox.host.secret_files import remembered
from claudebox.network.tiers import TIERS
from claudebox.report import screen
from claudebox.report.changes import Places, Report, tell_apart
from claudebox.report.kinds import LOOK
from claudebox.report.log import LogReader, find_doubts, read_changes
from claudebox.review.commits import HIDDEN, Committed, name_blob, read_commits
from claudebox.review.diffs import MOST_PATCH, FileChange, compare_texts, read_patch
from claudebox.review.pictures import read_picture
from claudebox.review.records import Allowance, Commit, Event, HostTraffic, Spending, Story
from claudebox.tables.secrets import file_looks_secret
from claudebox.undo import refs as undo_refs
from claudebox.undo.comparison import find_changes
from claudebox.undo.contents import read_kept, read_left
from claudebox.undo.manifest import Scan
from claudebox.undo.snapshot import find_skipped
from claudebox.undo.store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from claudebox.base.state import Instance
    from claudebox.git.sandbox import Tools
    from claudebox.report.changes import ChangedPath
    from claudebox.undo.comparison import PathChange
    from claudebox.undo.manifest import KeptEntry, Snapshot

    Line = dict[str, Any]


PAGE = "review.html"
_PATCH, _LOG, _TRANSCRIPT = "work.patch", "log.jsonl", "transcript.jsonl"
_MOST_COUNTED = 1 << 18
_COUNTED = ("files", "added", "removed")
_NOT_SHOWN = ("git", "repository", "output", "deleted", "closed", "socket")  # kinds whose contents say little
_LONGEST = 300  # characters of a text in the log
_MOST_EVENTS = 50_000
_LAST = 1 << 33  # the latest time that is one


class SessionRecord(Value):
    """Where a session is recorded."""

    instance: Instance
    logs: str  # directory
    log: str  # name
    is_alive: bool = False
    path: tuple[str, ...] = ()  # where programs are looked for

    @property
    def session(self) -> str:
        return self.log.removesuffix(".jsonl")


def gather_story(source: SessionRecord) -> Story:
    """Return what one session did."""
    lines, damaged = read_log(source.logs, source.log)
    story = Story(source.session, "")
    read_facts(story, lines, damaged, is_alive=source.is_alive)
    found = _Snapshots.open(source)
    report = read_changes(lines)
    ended = any(line.get("kind") == "end" for line in lines)
    if found is None:
        if report.changes:
            story.missing.append("there is no snapshot of this session: what changed in files is not known")
    elif not ended:
        report = found.tell_apart()
    allowance = Allowance()
    committed = found.read_commits(source, allowance) if found is not None else []
    for row in committed:
        story.commits += row.commits
        story.commits_cut += row.cut
        if row.problem:
            story.missing.append(row.problem)
    story.commits.sort(key=lambda commit: commit.time) if len(committed) > 1 else None
    _sum_up(story, report, lines)
    _list_files(story, report, found, committed, allowance)
    _read_conversation(story, source)
    return story


def read_log(directory: str, name: str) -> tuple[list[Line], int]:
    """Return the lines of a log, and how many cannot be read."""
    reader = LogReader(directory, name)
    try:
        return list(reader.lines()), reader.damaged
    finally:
        reader.close()


# From the log.


def read_facts(story: Story, lines: Sequence[Line], damaged: int, *, is_alive: bool = False) -> None:
    """Add what a log says of a session besides changes."""
    start = next((line for line in lines if line.get("kind") == "start"), {})
    end = next((line for line in reversed(lines) if line.get("kind") == "end"), {})
    story.place = story.place or _text(start.get("project"))
    story.title = story.title or os.path.basename(story.place) or story.name
    moments = [moment for line in lines if (moment := _moment(line.get("time")))]
    story.began = _moment(start.get("time")) or min(moments, default=0.0)
    story.ended = _moment(end.get("time")) or (time.time() if is_alive else max(moments, default=0.0))
    _say_state(story, start, end, is_alive=is_alive)
    if damaged:
        story.missing.append(f"{damaged} lines of the log are damaged")
    if lines and not start:
        story.missing.append("the beginning of the log is missing")
    story.missing += find_doubts(lines)
    tier = TIERS.get(str(start.get("network")))
    story.facts += [("Session", story.name)]
    story.facts += [("Network", _text(start.get("network")))] if start.get("network") else []
    story.unrecorded = tier.unrecorded if tier is not None else ""
    story.budget = _text(start.get("budget"))
    story.entered = [(_text(row.get("name")), _text(row.get("origin"))) for row in _rows(start.get("variables"))]
    story.withheld = [_text(name) for name in _list(start.get("withheld_names"))]
    story.withheld_count = max(_number(start.get("withheld")), len(story.withheld))
    story.secrets = [(_text(row.get("name")), ", ".join(map(_text, _list(row.get("hosts")))))
                     for row in _rows(start.get("secrets"))]  # fmt: skip
    story.found = sorted({f"{_text(row.get('name'))} in {_text(row.get('path'))}" for row in _rows(end.get("found"))})
    _read_traffic(story, lines)


def _say_state(story: Story, start: Line, end: Line, *, is_alive: bool) -> None:
    if end:
        status = _number(end.get("status"))
        story.is_good = status == 0
        story.state = "ended by the time limit" if end.get("time_limit") else f"ended with status {status}"
        story.missing += [f"{_text(name)} failed at its end" for name in _list(end.get("failed"))]
    elif is_alive:
        story.state = "at work"
    elif start:
        story.state, story.is_good = "was killed", False


def _read_traffic(story: Story, lines: Iterable[Line]) -> None:
    """Add what passed to the model and to other hosts."""
    hosts: dict[tuple[str, bool], HostTraffic] = {}
    for line in lines:
        kind, moment = line.get("kind"), _moment(line.get("time"))
        if kind == "usage":
            names = ("price", "input", "output", "cache_write", "cache_read")
            price, given, said, written, read = (_number(line.get(name)) for name in names)
            row = Spending(moment, _text(line.get("model")), price, given, said, written + read)
            story.spending.append(row)
            _add_event(
                story, Event(moment, "model", f"{row.model or 'model'}: {row.given + row.cached} in, {row.said} out")
            )
        elif kind == "decision":
            _add_decision(story, hosts, line, moment)
    order = {key: (key[1], -(row.up + row.down), -row.count) for key, row in hosts.items()}
    story.hosts = [hosts[key] for key in sorted(hosts, key=lambda key: order[key])]


def _add_decision(story: Story, hosts: dict[tuple[str, bool], HostTraffic], line: Line, moment: float) -> None:
    verdict, service = line.get("verdict"), line.get("service")
    denied, count = verdict == "denied", max(1, _number(line.get("count")))
    place = f"{_text(line.get('host'))}:{_number(line.get('port'))}".removesuffix(":443")
    if verdict == "failed":
        place, denied = f"{place} (did not answer)", False
    row = hosts.setdefault((place, denied), HostTraffic(place, "denied" if denied else "reached"))
    row.count += count if verdict != "opened" else 0
    row.up, row.down = row.up + _number(line.get("up")), row.down + _number(line.get("down"))
    row.rule = _text(line.get("rule"))
    row.secrets = tuple(sorted({*row.secrets, *map(_text, _list(line.get("secrets")))}))
    if service == "api" or verdict == "opened":
        return
    times = f", {count} times" if count > 1 else ""
    _add_event(story, Event(moment, "denied" if denied else "allowed", f"{place} ({row.rule}{times})"))


def _add_event(story: Story, event: Event) -> None:
    if len(story.events) < _MOST_EVENTS and event.time:
        story.events.append(event)
    else:
        story.events_cut += 1


def _sum_up(story: Story, report: Report, lines: Sequence[Line]) -> None:
    """Add what the screen said at the end."""
    end = next((line for line in reversed(lines) if line.get("kind") == "end"), {})
    moved = tuple(_text(row) for row in _list(end.get("moved")))
    rows = (tuple(map(_text, row)) for row in _list(end.get("disarmed")) if isinstance(row, list) and len(row) == 3)
    disarmed = tuple((path, how, why) for path, how, why in rows)
    texts, told = screen.sum_up(screen.Ending(report, git=moved, disarmed=disarmed))
    story.outcome = [*moved, *texts] or ["changed nothing"]
    story.look = screen.tabulate(told, disarmed)
    if report.unseen:
        path, why = report.unseen[0]
        more = f" and {len(report.unseen) - 1} more" if len(report.unseen) > 1 else ""
        story.missing.append(f"not everything could be looked at: {path or '.'} ({why}){more}")
    counted = end.get("changed")
    told_at_end = sum(map(_number, counted.values())) if isinstance(counted, dict) else 0
    if (lost := told_at_end - len(report.changes)) > 0:
        story.missing.append(f"the log had no room for {lost} more changes")


# From the snapshots and the repository.


class _Snapshots:
    """The start and the end of a session, or how its project is now."""

    def __init__(self, store: SnapshotStore, start: Snapshot, end: Snapshot, instance: Instance) -> None:
        self.store, self.start, self.end, self._instance = store, start, end, instance
        self.rows = {row.path: row for row in find_changes(start, end)}
        self.masked = {inode for _, inode in remembered(instance)}  # files that were masked, under whatever name

    @classmethod
    def open(cls, source: SessionRecord) -> _Snapshots | None:
        directory = f"{source.instance.directory}/undo"
        try:
            store = SnapshotStore(directory, writing=False)
            start = store.find_start(source.session)
            if start is None:
                return None
            end = store.read_end(source.session)
        except ClaudeboxError:
            return None
        if end is None and not os.path.isdir(start.root):
            return None
        if end is None:
            scan = Scan(start.root, None, start, most=start.most, names=start.excluded,
                        skipped=find_skipped(start, source.instance.directory))  # fmt: skip
            end = scan.run(undo_refs.read_present(start, None))
        return cls(store, start, end, source.instance)

    def tell_apart(self) -> Report:
        """Return the changes by kind, where the end was not logged."""
        return tell_apart(Places(self.start.root), self.start, self.end, time.monotonic() + 10.0)

    def read_commits(self, source: SessionRecord, allowance: Allowance) -> list[Committed]:
        after = {row.real: row for row in self.end.repositories}
        pairs = [(row, after[row.real]) for row in self.start.repositories if row.real in after]
        if not pairs:
            return []
        try:
            tools: Tools = find_tools(source.path)
        except ClaudeboxError as error:
            return [Committed(problem=f"commits cannot be read: {error.message}")]
        scratch = self._instance.directory
        return [read_commits(old, new, self.start.root, tools, scratch, allowance) for old, new in pairs]


def _list_files(
    story: Story, report: Report, found: _Snapshots | None, committed: Sequence[Committed], allowance: Allowance
) -> None:
    """Add the changes that no commit has, the user's own files first."""
    own = sorted((row for row in report.changes if row.kind.name in ("own", "asked")), key=screen.order_own)
    others = [row for row in report.changes if row.kind.name in LOOK and row.kind.name not in _NOT_SHOWN]
    counts: dict[str, int] = {}
    for row in report.changes:
        if row.kind.name == "output" and not row.path.endswith("/"):
            counts[row.kind.group or "elsewhere"] = counts.get(row.kind.group or "elsewhere", 0) + 1
    story.output = sorted(counts.items(), key=lambda item: -item[1])
    heads = {path: blob for row in committed for path, blob in row.head.items()}
    touched = {path for row in committed for path in row.touched}
    moved = {row.path: row.origin for row in found.rows.values() if row.what == "moved"} if found is not None else {}
    origins = set(moved.values())
    story.gone = [
        row.path for row in report.changes if row.kind.name == "deleted" and row.path.rstrip("/") not in origins
    ]
    if story.commits:
        story.files_title = "Not committed"
        story.gone = [path for path in story.gone if path.rstrip("/") not in touched]
    rows = [row for row in (*own, *others) if not row.path.endswith("/")]
    for row in rows:
        if not allowance.files or allowance.is_late:
            story.files_cut += row.path not in touched
        elif (change := _show(row, found, heads, touched, allowance)) is not None:
            story.files.append(change)
            allowance.take_files(1)
    listed = {change.path for change in story.files}
    story.moved = [(origin, path) for path, origin in moved.items() if path not in listed and path not in touched]


def _show(
    row: ChangedPath, found: _Snapshots | None, heads: dict[str, str], touched: set[str], allowance: Allowance
) -> FileChange | None:
    """Return what changed in a file; None if a commit has all of it."""
    change = FileChange(row.path, row.how, why=row.kind.why)
    known = found.rows.get(row.path) if found is not None else None
    if found is None or known is None or known.after is None:
        return None if row.path in touched else change
    if known.origin:
        change.how, change.origin = "moved", known.origin
    if known.before is not None and (
        file_looks_secret(os.path.basename(row.path)) or known.before.inode in found.masked
    ):
        change.note = HIDDEN
        return change
    with Closing(os.open(found.end.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        content, is_same = read_left(found.store, root, row.path, known.after)
    blob = heads.get(row.path, "")
    if content is not None and blob and name_blob(content, blob) == blob:
        return None
    if not is_same:
        change.note = "changed since the session: shown as it is now"
    _compare(change, known, read_kept(found.store, known.before), content, allowance)
    return change


def _compare(
    change: FileChange, known: PathChange, before: bytes | None, after: bytes | None, allowance: Allowance
) -> None:
    if before is None or after is None or b"\0" in before or b"\0" in after:
        change.sizes = _size(known.before), _size(known.after)
        change.note = "" if before is not None and after is not None else "too large, or not kept"
        change.before = allowance.take_picture(read_picture(before or b""))
        change.after = allowance.take_picture(read_picture(after or b""))
        return
    note = change.note
    old, new = (text.decode("utf-8", "surrogateescape") for text in (before, after))
    compare_texts(change, old, new, allowance.most_lines(), allowance.deadline)
    change.note = "; ".join(filter(None, (note, change.note, "" if before or after else "empty")))
    allowance.limit(change)


def _size(entry: KeptEntry | None) -> int:
    return entry.size if entry is not None else -1


# From the conversation.


def _read_conversation(story: Story, source: SessionRecord) -> None:
    agent = kinds.find_kind(kinds.USUAL)  # others write conversations of another shape
    add_conversation(story, find_conversations(agent, source.instance, story.began, story.ended))
    story.events += [Event(commit.time, "commits", _subject(commit)) for commit in story.commits]


def _subject(commit: Commit) -> str:
    return f"{commit.name[:7]} {commit.message.strip().partition(chr(10))[0][:_LONGEST]}"


def add_conversation(story: Story, found: Conversation) -> None:
    """Add what the agent recorded itself."""
    story.asked, story.asked_cut, story.said = found.prompts, found.cut_prompts, found.said
    for moment, text in found.uses:
        _add_event(story, Event(moment, "tools", text))
    story.events_cut += found.cut
    if found.damaged:
        story.missing.append(f"{found.damaged} lines of the conversation are damaged")
    story.missing += [f"not read of the conversation: {text}" for text in found.unread]
    if found.identifier and story.ended:
        story.commands.append(("Go on with the conversation", f"claudebox --resume {found.identifier}"))


# Of a task, from the files of its result.


def gather_task(result: dict[str, Any], directory: str) -> Story:
    """Return what a task did."""
    story = Story(str(result.get("id", "")), str(result.get("id", "")))
    lines, damaged = read_log(directory, _LOG)
    read_facts(story, lines, damaged)
    story.place, story.name = "", story.title
    status = str(result.get("status", "?"))
    story.state, story.is_good = status, status == "done"
    story.facts = [(name, str(value)) for name, value in (
        ("Base", result.get("base")), ("Head", result.get("head")), ("Tries", result.get("tries")),
        ("Ran on", result.get("host"))) if value]  # fmt: skip
    story.outcome = [cut(str(result["why"]))] if result.get("why") else []
    found = Conversation()
    if os.path.lexists(f"{directory}/{_TRANSCRIPT}"):
        read_conversation(f"{directory}/{_TRANSCRIPT}", found)
    add_conversation(story, found)
    story.said = cut(str(result.get("said") or story.said))
    story.commands = [("Take the work over", f"git apply {_PATCH}"),
                      ("Or with its commits", "git fetch work.bundle claudebox-task-result")]  # fmt: skip
    patch = b""
    with contextlib.suppress(FileNotFoundError), open(f"{directory}/{_PATCH}", "rb") as file:
        patch = file.read(MOST_PATCH)
        if file.read(1):
            story.missing.append(f"only the first {MOST_PATCH >> 20} MiB of {_PATCH} are shown and counted")
    story.changed, allowance = dict.fromkeys(_COUNTED, 0), Allowance()
    for change in read_patch(patch, allowance.lines_of_file):
        _count(story.changed, change)
        if allowance.take_files(1):
            allowance.limit(change)
            story.files.append(change)
        else:
            story.files_cut += 1
    told = "{files} files, {added} lines added, {removed} removed".format(**story.changed)
    story.outcome.append(told if story.changed["files"] else "changed nothing")
    return story


def count_changes(result: dict[str, Any], directory: str) -> dict[str, int]:
    """Return how much a task changed, as its result or else its patch says; nothing if that is too large."""
    known = result.get("changed")
    if isinstance(known, dict) and all(type(known.get(name)) is int and known[name] >= 0 for name in _COUNTED):
        return {name: known[name] for name in _COUNTED}
    patch = read_small(f"{directory}/{_PATCH}", limit=_MOST_COUNTED)
    if patch is None and os.path.lexists(f"{directory}/{_PATCH}"):
        return {}
    counts = dict.fromkeys(_COUNTED, 0)
    for change in read_patch(patch or b"", 0):
        _count(counts, change)
    return counts


def _count(counts: dict[str, int], change: FileChange) -> None:
    for name, amount in zip(_COUNTED, (1, change.added, change.removed), strict=True):
        counts[name] += amount


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in _list(value) if isinstance(row, dict)]


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 60 else 0


def _moment(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 < value < _LAST else 0.0
