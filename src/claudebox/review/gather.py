"""What is known of a session, from its log, snapshots, conversation and repository; of a task, from its result.

Nothing of the project is run. Files are opened through no link, git reads in a sandbox that can write nothing, and what
cannot be found is said.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time

from claudebox.agent import kinds
from claudebox.agent.conversation import Conversation, cut, find_conversations, read_conversation, read_moment
from claudebox.base.console import list_some
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, list_names
from claudebox.base.records import Value
from claudebox.git import adoption
from claudebox.git import state as git_state
from claudebox.git.importer import find_tools
from claudebox.host.secret_files import remembered
from claudebox.network.tiers import TIERS
from claudebox.report import screen
from claudebox.report.changes import Places, Report, tell_apart
from claudebox.report.denied import explain, spell_place
from claudebox.report.kinds import LOOK
from claudebox.report.log import LogReader, find_doubts, read_changes, records
from claudebox.review.commits import HIDDEN, Committed, add_commits, hide_secrets, name_blob
from claudebox.review.diffs import MOST_PATCH, FileChange, compare_texts, read_patch
from claudebox.review.pictures import read_picture
from claudebox.review.records import Allowance, Commit, Event, HostTraffic, Spending, Story
from claudebox.undo import refs as undo_refs
from claudebox.undo.comparison import find_changes
from claudebox.undo.contents import read_kept, read_left
from claudebox.undo.manifest import KeptRefs, Scan
from claudebox.undo.snapshot import find_skipped
from claudebox.undo.store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from claudebox.base.state import Instance
    from claudebox.report.changes import ChangedPath
    from claudebox.undo.comparison import PathChange
    from claudebox.undo.manifest import KeptEntry, Snapshot

    Line = dict[str, Any]


PAGE = "review.html"
_PATCH, _LOG, _TRANSCRIPT = "work.patch", "log.jsonl", "transcript.jsonl"
_COUNTED = ("files", "added", "removed")
_NOT_SHOWN = ("git", "repository", "output", "deleted", "closed", "socket")  # kinds whose contents say little
_LONGEST = 300  # characters of a text in the log
_MOST_EVENTS = 50_000
_MOST_GONE = 30  # deleted files that are shown
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
    found, report, why = None, read_changes(lines), "there is no snapshot of this session"
    try:
        found = _Snapshots.open(source)
    except ClaudeboxError as error:
        why = error.message
    is_ended = any(line.get("kind") == "end" for line in lines)
    if found is not None and not is_ended:
        report = found.tell_apart()
        if not source.is_alive:
            story.missing.append("its end was not recorded: later changes are among these")
    elif found is None and report.changes:
        story.missing.append(f"what changed in files is not known: {why}")
    others, until = _find_neighbours(source, story)
    until = story.ended if is_ended else until
    allowance = Allowance()
    committed = found.read_commits(source, until, allowance) if found is not None else Committed()
    story.commits, story.commits_cut = committed.commits, committed.cut
    story.missing += committed.problems
    _sum_up(story, report, lines)
    _list_files(story, report, found, committed, allowance)
    agent = kinds.find_kind(kinds.USUAL)  # others write conversations of another shape
    if story.agent in ("", agent.name):
        add_conversation(story, find_conversations(agent, source.instance, story.began, until))
    story.events += [Event(commit.time, "commits", _subject(commit)) for commit in story.commits]
    if others:
        story.missing.append(f"some of this may be the work of {list_some(others, 3)}, which ran here at the same time")
    return story


def _find_neighbours(source: SessionRecord, story: Story) -> tuple[list[str], float]:
    """Return the sessions that ran here at the same time, and when the next one began."""
    others, until = [], float(_LAST)
    for name in records(source.logs, source.instance.name):
        began = read_moment(name.partition("-")[0])
        with contextlib.suppress(OSError):
            written = os.lstat(f"{source.logs}/{name}").st_mtime
            if name != source.log and began <= story.ended and written >= story.began:
                others.append(name.partition("-")[0])
            elif began > story.ended:
                until = min(until, began)
    return others, until


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
    story.agent = _text(start.get("agent"))
    story.facts += [("Session", story.name)]
    story.facts += [("Agent", f"{story.agent} {_text(start.get('version'))}".strip())] if story.agent else []
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
        ended = "finished" if story.is_good else f"ended with status {status}"
        story.state = "ended by the time limit" if end.get("time_limit") else ended
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
    place = spell_place({"host": _text(line.get("host")), "port": _number(line.get("port"))}).removesuffix(":443")
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
    _add_event(story, Event(moment, "denied" if denied else "allowed", f"{place} ({explain(row.rule)}{times})"))


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
        self.store, self.start, self.end, self._directory = store, start, end, instance.directory
        self.rows = {row.path: row for row in find_changes(start, end)}
        self.masked = {inode for _, inode in remembered(instance)}  # files that were masked, under whatever name

    @classmethod
    def open(cls, source: SessionRecord) -> _Snapshots | None:
        store = SnapshotStore(f"{source.instance.directory}/undo", writing=False)
        start, end = store.find_start(source.session), store.read_end(source.session)
        if start is None or (end is None and not os.path.isdir(start.root)):
            return None
        if end is None:
            scan = Scan(start.root, None, start, most=start.most, names=start.excluded,
                        skipped=find_skipped(start, source.instance.directory))  # fmt: skip
            end = scan.run(undo_refs.read_present(start, None))
        return cls(store, start, end, source.instance)

    def tell_apart(self) -> Report:
        """Return the changes by kind, where the end was not logged."""
        return tell_apart(Places(self.start.root), self.start, self.end, time.monotonic() + 10.0)

    def read_commits(self, source: SessionRecord, until: float, allowance: Allowance) -> Committed:
        found, before = Committed(), {row.real: row for row in self.start.repositories}
        rows = []
        try:
            rows = [(git_state.read_layout(row.private), before[row.real], row)
                    for row in self.end.repositories if row.real in before]  # fmt: skip
            for private in map(f"{self._directory}/git/{{}}".format, list_names(f"{self._directory}/git")):
                layout = adoption.find_layout(private)
                if layout is None or layout.common in before:
                    continue
                if layout.ref_format == "files":  # it was begun inside
                    refs = undo_refs.read_refs(private, layout.common, layout.git_dir, layout.work_tree, layout.only)
                    rows.append((layout, KeptRefs(private, layout.common, "", {}), refs))
                else:
                    found.problems.append(f"commits in {layout.common} are not shown: it keeps its refs in tables")
            for layout, old, new in rows:
                add_commits(
                    found, layout, old, new, self.start.root, find_tools(source.path), self._directory, allowance
                )
        except ClaudeboxError as error:
            found.problems.append(f"commits cannot be read: {error.message}")
        if any(not old.head for _, old, _ in rows):  # how it was at the end is not known
            late = [commit for commit in found.commits if commit.time > until]
            found.commits = [commit for commit in found.commits if commit.time <= until]
            found.problems += [f"{len(late)} commits are dated after the session, and not shown"] if late else []
        if len(rows) > 1:
            found.commits.sort(key=lambda commit: commit.time)
        return found

    def read_after(self, row: PathChange) -> tuple[bytes | None, bool]:
        """Return a file as the session left it, and whether it has not changed since."""
        if row.after is None:
            return b"", True
        try:
            with Closing(os.open(self.end.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
                return read_left(self.store, root, row.path, row.after)
        except OSError:  # the project is gone
            return None, True


def _list_files(
    story: Story, report: Report, found: _Snapshots | None, committed: Committed, allowance: Allowance
) -> None:
    """Add the changes that no commit has, the user's own files first."""
    counts = collections.Counter(row.kind.group or "elsewhere" for row in report.changes
                                 if row.kind.name == "output" and not row.path.endswith("/"))  # fmt: skip
    story.output = counts.most_common()
    story.files_title = "Not committed" if story.commits else "Changed files"
    origins = {row.origin for row in found.rows.values()} if found is not None else set()
    files = [row for row in report.changes if not row.path.endswith("/")]
    gone = [row for row in files if row.kind.name == "deleted" and row.path not in origins
            and (row.path in committed.head or row.path not in committed.touched)]  # fmt: skip
    own = [row for row in files if row.kind.name in ("own", "asked")]
    others = [row for row in files if row.kind.name in LOOK and row.kind.name not in _NOT_SHOWN]
    story.files_cut = len(gone[_MOST_GONE:])
    for row in (*sorted((*own, *gone[:_MOST_GONE]), key=screen.order_own), *others):
        if allowance.files <= 0 or allowance.is_late:
            story.files_cut += row.path not in committed.touched
        elif (change := _show(row, found, committed, allowance)) is not None:
            story.files.append(change)
            allowance.files -= 1


def _show(row: ChangedPath, found: _Snapshots | None, committed: Committed, allowance: Allowance) -> FileChange | None:
    """Return what changed in a file since the last commit of the session that has it; None if that is nothing."""
    is_committed = row.path in committed.touched
    known = found.rows.get(row.path) if found is not None else None
    change = FileChange(row.path, row.how, known.origin if known is not None else "", row.kind.why)
    if found is None or known is None:
        return None if is_committed else change
    if change.origin:
        change.how = "moved"
    old = known.before
    if hide_secrets(change):
        return change
    if old is not None and old.inode in found.masked:
        change.note = HIDDEN
        return change
    before, sizes = read_kept(found.store, old), [_size(old), _size(known.after)]
    after, is_same = found.read_after(known)
    blob = committed.head.get(row.path, "")
    if blob and after is not None and blob in (name_blob(after, blob), name_blob(after.replace(b"\r\n", b"\n"), blob)):
        return None
    if is_committed:
        before = committed.contents.get(blob) if blob else b""
        sizes[0] = len(before) if before is not None and blob else -1
        change.how, change.origin = "deleted" if known.after is None else "changed" if blob else "new", ""
    if not is_same:
        change.note = "changed since the session: shown as it is now"
    _compare(change, before, after, sizes, allowance)
    return change


def _compare(
    change: FileChange, before: bytes | None, after: bytes | None, sizes: Sequence[int], allowance: Allowance
) -> None:
    if before is None or after is None or b"\0" in before or b"\0" in after:
        change.sizes = sizes[0], sizes[1]
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
    story.place, story.name, story.what = "", story.title, "task"
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
        hide_secrets(change)
        if allowance.take_file():
            allowance.limit(change)
            story.files.append(change)
        else:
            story.files_cut += 1
    told = "{files} files, {added} lines added, {removed} removed".format(**story.changed)
    story.outcome.append(told if story.changed["files"] else "changed nothing")
    return story


def count_changes(result: dict[str, Any]) -> dict[str, int]:
    """Return how much a task changed, as its result says; nothing if that is unknown."""
    known = result.get("changed")
    if not isinstance(known, dict) or not all(type(known.get(name)) is int and known[name] >= 0 for name in _COUNTED):
        return {}
    return {name: known[name] for name in _COUNTED}


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
