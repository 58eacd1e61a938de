"""`claudebox changes` and `undo`: show and revert what a session did to the project."""

from __future__ import annotations

import difflib
import json
import os
import sys
import time
from typing import Any

from claudebox import session
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.console import clean, paint
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.files import list_names
from claudebox.git import facts as git_facts
from claudebox.git.importer import find_tools
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.report import killed, leftovers
from claudebox.report.kinds import IGNORED, Outputs
from claudebox.report.log import name_moment
from claudebox.run.live_sessions import Presence
from claudebox.settings.layers import merge
from claudebox.settings.records import UndoRequest
from claudebox.undo import refs as undo_refs
from claudebox.undo import restore
from claudebox.undo.comparison import MEANWHILE, Comparison, find_changed_meanwhile, find_changes
from claudebox.undo.contents import read_kept, read_present
from claudebox.undo.manifest import Scan
from claudebox.undo.refs import RefComparison
from claudebox.undo.snapshot import find_skipped
from claudebox.undo.store import UNDO, SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from claudebox.git.sandbox import Tools
    from claudebox.settings.layers import Settings
    from claudebox.undo.comparison import PathChange
    from claudebox.undo.manifest import KeptEntry, Snapshot
    from claudebox.undo.refs import RefMove


_MOST_LINES = 40
_FEW = 3  # changes in a directory of build output that are named
_TITLES = {"deleted": "deleted", "moved": "moved", "changed": "changed", "new": "created"}
_KINDS = {"f": "file", "d": "directory", "l": "link"}
_STYLES = {"deleted": "red", "moved": "yellow", "changed": "yellow", "new": "green"}
_DIFFERS = "it differs from what it was"
_BOTH = "Take these back, too, and with them what was done since? [y/N] "


def run(flags: Settings, environ: dict[str, str]) -> int:
    home, workdir = current_home(environ), current_directory()
    try:
        settings, _ = session.read_settings(flags, environ)
    except ClaudeboxError as error:  # a broken file prevents no undo
        console.warn(f"{error.message}: going on without")
        settings = merge(flags, environ)
    wanted = session.decide_policy(settings.replace(words=()), environ).undo or UndoRequest()
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    instance = base_state.locate(home, repository.main if repository else workdir)
    undoing = flags.verb == "undo"
    if not undoing and flags.words and killed.acknowledge(instance, flags.words[0], workdir):
        return 0
    leftovers.catch_up(instance, (workdir,))
    directory = f"{instance.directory}/undo"
    name, start = _choose(SnapshotStore(directory, writing=False), workdir, flags.words)
    undo = _Undo(name, start, wanted, SnapshotStore(directory, writing=undoing), instance)
    if flags.on("json"):
        console.write([json.dumps(undo.document(), indent=2)], descriptor=1)
        return 0
    if not undoing:
        undo.show(patch=flags.on("patch"))
        console.note(f"as a page: `claudebox review {_short(name)}`")
        return 0
    presence = Presence(instance.state)
    try:
        presence.claim(workdir)
        tools = find_tools(programs.search_path(environ, workdir), git_needed=bool(start.repositories))
        return undo.run(tools, flags)
    finally:
        presence.leave()


class _Undo:
    """A session by its start and its end."""

    def __init__(
        self, name: str, start: Snapshot, wanted: UndoRequest, store: SnapshotStore, instance: base_state.Instance
    ) -> None:
        self._name, self._start, self._wanted, self._store, self._instance = name, start, wanted, store, instance
        self._end = store.read_end(name)
        self._unfinished = store.read_unfinished()

    def show(self, *, patch: bool, most: int = 0, descriptor: int = 1, keep: bool = False) -> Snapshot:
        """Show what the session changed and what changed since; return the present."""
        now = self._look(keep=keep)
        end = self._end if self._end is not None else now
        comparison, refs = self._compare(now), RefComparison(self._start, self._end, now)
        found = [row for row in find_changes(self._start, end) if not comparison.find_closed(row.path)]
        changes, output = _split_output(found, self._start.root)
        lines = [
            f"session {_short(self._name)}:" if self._end is not None else
            f"since session {_short(self._name)} began (its end was not recorded, so later changes count, too):",
            *_change_lines(changes, most),
            *_titled("build output", (f"{clean(top)}/ ({count})" for top, count in output.items())),
            *_titled("git", map(_describe_move, refs.session)),
        ]  # fmt: skip
        if len(lines) == 1:
            lines.append("the session changed nothing" + (" that is kept" if comparison.unkept else ""))
        else:
            lines += self._list_others()
        lines += _titled("changed since the session, stays as it is", _since_lines(comparison, refs, end, now), most)
        twice = (*map(clean, comparison.touched_twice), *map(_describe_move, refs.touched_twice))
        lines += _titled("changed by the session and again since", twice, most)
        lines += _titled("not kept, stays as it is", self._list_unkept(comparison), most)
        console.write(lines, descriptor=descriptor)
        if patch:
            console.write(_patch_lines(self._store, changes, self._start.root), descriptor=1)
        return now

    def document(self) -> dict[str, Any]:
        """Return the same for `--json`."""
        now = self._look(keep=False)
        comparison, refs = self._compare(now), RefComparison(self._start, self._end, now)
        rows = find_changes(self._start, self._end if self._end is not None else now)
        entries = [(row, row.after or row.before) for row in rows]
        return {
            "session": self._name,
            "directory": self._start.root,
            "end_recorded": self._end is not None,
            "changes": [
                {"what": _TITLES[row.what], "path": row.path, "kind": _KINDS.get(entry.kind, "other") if entry else "",
                 "from": row.origin}
                for row, entry in entries
            ],
            "refs": [
                {"repository": move.real, "name": move.name, "before": move.before, "after": move.now}
                for move in refs.session
            ],
            "changed_since": sorted(comparison.since),
            "changed_again": sorted(comparison.touched_twice),
            "not_kept": comparison.unkept,
        }  # fmt: skip

    def _compare(self, now: Snapshot, *, both: bool = False, held: Collection[str] = ()) -> Comparison:
        return Comparison(self._start, self._end, now, both=both, unfinished=self._unfinished, held=held)

    def _list_unkept(self, comparison: Comparison) -> Iterator[str]:
        looks = (self._start, self._end or self._start)
        reasons = {path: row for look in looks for path, row in look.left_out.items()}
        for path, count in sorted(comparison.unkept.items()):
            why = reasons[path].text if path in reasons else "it cannot be read now"
            yield f"{clean(path)}: {clean(why)} (changes in it: {count})"
        for path, row in sorted(reasons.items()):
            if row.kind == "outside":
                yield f"{clean(path)}: {clean(row.text)}"
        yield from (f"{clean(path)}: {clean(why)}" for path, why in sorted(comparison.left.items()))
        yield from (f"{clean(path)}: something in it stays" for path in comparison.full)
        for path in {*self._start.late}.intersection(comparison.unreached):
            yield f"{clean(path)}: changed before the snapshot reached it; something in it may be missing"

    def _list_others(self) -> Iterator[str]:
        """Name other sessions that ran at the same time: what each of them did cannot be told apart."""
        last = self._end.began if self._end is not None else time.time_ns()
        for name in self._store.names():
            try:
                start, end = self._store.read_snapshot(name), self._store.read_end(name)
            except ClaudeboxError:
                continue
            if name == self._name or name.endswith(UNDO) or start.root != self._start.root or start.began >= last:
                continue
            if end is None or end.began > self._start.began:
                ran = "ran" if end is not None else "may have run"  # it is alive, or its end is unknown
                yield f"session {_short(name)} {ran} here at the same time: some of these changes may be its own"

    def _find_earlier(self) -> str:
        """Return the name of the session before this one in the same directory."""
        names = self._store.names()
        earlier = (name for name in reversed(names[: names.index(self._name)]) if not name.endswith(UNDO))
        return next((name for name in earlier if self._store.read_snapshot(name).root == self._start.root), "")

    def run(self, tools: Tools, flags: Settings) -> int:
        """Show the changes, ask, and revert them."""
        now = self.show(patch=flags.on("patch"), most=_MOST_LINES, descriptor=2, keep=True)
        start, root = self._start, self._start.root
        comparison, refs = self._compare(now), RefComparison(start, self._end, now)
        asking = not flags.on("yes")
        both = False
        if comparison.is_empty and not refs.back and not (comparison.touched_twice or refs.touched_twice):
            earlier = self._find_earlier()
            more = f"; the session before it: `claudebox undo {_short(earlier)}`" if earlier else ""
            console.note(f"undo: there is nothing to take back{more}")
            return 0
        if asking and not console.confirm("Take back what the session did? [y/N] ", default=False):
            return DECLINED
        if asking and (comparison.touched_twice or refs.touched_twice):
            both = console.confirm(_BOTH, default=False)
        held: set[str] = set()
        stays: set[tuple[str, str]] = set()  # refs
        if asking:  # what came while the question stood was not part of it
            shown, now = now, self._look(keep=True)
            held = find_changed_meanwhile(shown, now)
            stays = {(row.real, row.name) for row in undo_refs.compare_refs(shown, now)}
            comparison, refs = self._compare(now, both=both, held=held), RefComparison(start, self._end, now, stays)
        present = f"{name_moment(time.time())}-{self._instance.name}-{os.getpid()}{UNDO}"
        self._store.write_snapshot(present, now)
        kept = [row.real for row in start.repositories if row.real.startswith(f"{root.rstrip('/')}/")]
        owners = any(entry.owner != (os.getuid(), os.getgid()) for entry in comparison.before.values())
        problems = restore.put_back(
            tools, self._store.directory, (self._name, present), root, filter(os.path.isdir, kept), owners=owners,
            both=both, held=held, told=lambda done, every: _tell("put back", done, every),
        )  # fmt: skip
        wanted = (*refs.back, *(refs.touched_twice if both else ()))
        kept_here = {real for real, _ in stays}
        moves = tuple(row for row in wanted if row in refs.back or row.real not in kept_here)
        problems |= {row.name: MEANWHILE for row in {*wanted} - {*moves}}
        problems |= undo_refs.put_back(tools, self._store, start, now, moves)
        after = self._look(keep=True)
        self._store.write_end(present, after)
        for path in comparison.find_missed(after):
            problems.setdefault(path, _DIFFERS)
        for move in undo_refs.compare_refs(start, after):
            if (move.real, move.name) in {(row.real, row.name) for row in moves}:
                problems.setdefault(f"{move.real} {move.name}", _DIFFERS)
        self._store.prune(self._wanted.keep + 1)
        return self._conclude(comparison, refs, problems, present, both=both)

    def _conclude(
        self, comparison: Comparison, refs: RefComparison, problems: dict[str, str], present: str, *, both: bool
    ) -> int:
        """Report what was reverted and what was not; return the status."""
        for path, why in sorted(problems.items()):
            console.warn(f"not taken back: {console.shorten(path, 300)}: {why}")
        for path, why in sorted(comparison.left.items())[:_MOST_LINES]:
            console.warn(f"not restored: {console.shorten(path, 300)}: {why}")
        stays = [] if both else [*comparison.touched_twice, *(row.name for row in refs.touched_twice)]
        for path in stays[:_MOST_LINES]:
            console.warn(f"stays, because it was changed again after the session: {console.shorten(path, 300)}")
        rest = "the rest of " if problems or comparison.left or stays or comparison.unkept else ""
        since = len(comparison.since) + len(refs.since)
        later = f"; what changed since then stays ({since})" if since else ""
        console.note(
            f"undo: took back {rest}what the session did{later}; `claudebox undo {_short(present)}` undoes this"
        )
        if comparison.unreached:
            late = f"({len(comparison.unreached)}, named by `claudebox changes`)"
            console.note(f"undo: what changed before the snapshot reached it stays as it is {late}")
        return FAILED if problems or comparison.left or comparison.unreached or (refs.bound and not both) else 0

    def _look(self, *, keep: bool) -> Snapshot:
        """Return a snapshot of the present; with `keep` it can be restored."""
        start, wanted = self._start, self._wanted
        known = self._end if self._end is not None else start
        store = self._store if keep else None
        names = start.excluded or wanted.excluded
        scan = Scan(start.root, store, known, most=max(start.most, wanted.most), names=names,
                    skipped=find_skipped(start, self._instance.directory))  # fmt: skip
        scan.told = lambda done, every: _tell("read", done, every)
        return scan.run(undo_refs.read_present(start, store.keep if store is not None else None))


def _short(name: str) -> str:
    """Return the beginning of the name of a session: its moment."""
    return clean(name.partition("-")[0])


def _tell(what: str, done: int, every: int) -> None:
    """Print the progress, on a terminal in place."""
    end = "\r" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"claudebox: undo: {what} {done} of {every}{end}")
    sys.stderr.flush()


def _titled(title: str, rows: Iterable[str], most: int = 0) -> Iterator[str]:
    shown = list(rows)
    if shown:
        yield title
        yield from (f"  {row}" for row in (shown[:most] if most else shown))
        if most and len(shown) > most:
            yield f"  … and {len(shown) - most} more: `claudebox changes` shows them"


def _split_output(rows: list[PathChange], root: str) -> tuple[list[PathChange], dict[str, int]]:
    """Return what is listed, and directories of build output with the number of changes in them."""
    whole = {row.path for row in rows if row.what != "changed"}  # a directory that was made stands for what is in it
    outputs = Outputs(root, lambda path: list_names(f"{root}/{path}"), whole, {row.path for row in rows})
    tops = [outputs.find(row.path)[0] for row in rows]
    counts: dict[str, int] = {}
    for top in tops:
        if top not in ("", IGNORED) and top not in whole:
            counts[top] = counts.get(top, 0) + 1
    many = {top: count for top, count in counts.items() if count > _FEW}
    return [row for row, top in zip(rows, tops, strict=True) if top not in many], many


def _change_lines(changes: list[PathChange], most: int) -> Iterator[str]:
    """Yield what changed, by kind; a directory that was made or deleted stands for what is in it."""
    for what, title in _TITLES.items():
        rows = [row for row in changes if row.what == what]
        whole = {row.path for row in rows if what != "changed" and (row.after or row.before).kind == "d"}  # type: ignore[union-attr]
        tops = [_shown(row) for row in rows if os.path.dirname(row.path) not in whole]
        yield from _titled(paint(f"{title} ({len(rows)})", _STYLES[what]), tops, most)


def _shown(row: PathChange) -> str:
    old, new = row.before, row.after
    entry = new if new is not None else old
    text = clean(row.path) + ("/" if entry is not None and entry.kind == "d" else "")
    if row.what == "moved":
        return f"{text} (was {clean(row.origin)})"
    if old is not None and new is not None and old.kind == new.kind and old.content == new.content:
        return f"{text} ({_nuance(old, new)})" if old.is_kept else text
    return text


def _nuance(old: KeptEntry, new: KeptEntry) -> str:
    if old.mode != new.mode:
        return f"mode {old.mode:04o}, now {new.mode:04o}"
    return "owner {}:{}, now {}:{}".format(*old.owner, *new.owner)


def _since_lines(comparison: Comparison, refs: RefComparison, end: Snapshot, now: Snapshot) -> Iterator[str]:
    listed = set(comparison.since)
    for row in find_changes(end, now):
        if row.path in listed:
            yield f"{_TITLES[row.what]}: {_shown(row)}"
    yield from map(_describe_move, refs.since)


def _describe_move(move: RefMove) -> str:
    short = clean(move.name.removeprefix("refs/heads/"))
    if move.name == "index":
        return "index: changed"
    if move.name == "HEAD":
        return f"HEAD: {clean(move.before)}, now {clean(move.now)}"
    if not move.now:
        return f"deleted {short} ({move.before[:7]})"
    return f"created {short}" if not move.before else f"moved {short} {move.before[:7]}..{move.now[:7]}"


def _patch_lines(store: SnapshotStore, changes: list[PathChange], place: str) -> Iterator[str]:
    """Yield the differences of texts, as `diff -u` has them."""
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for row in changes:
            old, new, path = row.before, row.after, row.path
            if not any(entry is not None and entry.kind in "fl" for entry in (old, new)):
                continue
            texts = [read_kept(store, entry) for entry in (old, new)]
            if texts[1] is None and new is not None:
                texts[1] = read_present(root, path)
            if any(text is None or b"\0" in text for text in texts):
                yield f"Binary or large files a/{clean(path)} and b/{clean(path)} differ"
                continue
            first, then = (_rows(text or b"") for text in texts)
            names = ("/dev/null" if old is None else f"a/{row.origin or path}",
                     "/dev/null" if new is None else f"b/{path}")  # fmt: skip
            yield from map(clean, difflib.unified_diff(first, then, *names, lineterm=""))
    finally:
        os.close(root)


def _rows(text: bytes) -> list[str]:
    return text.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n") if text else []


def _choose(store: SnapshotStore, workdir: str, words: tuple[str, ...]) -> tuple[str, Snapshot]:
    """Return the newest snapshot of a session here, or the one whose name begins with the given word."""
    names = [name for name in store.names() if name.startswith(words[0].removesuffix(".jsonl"))] if words else []
    if words and len(names) != 1 and store.names():
        problem = f"`{words[0]}` fits {len(names)} sessions" if names else f"there is no snapshot of `{words[0]}`"
        raise ClaudeboxError(problem, hint=f"there are: {', '.join(store.names())}")
    elsewhere: dict[str, None] = {}
    for name in names or [name for name in reversed(store.names()) if not name.endswith(UNDO)]:
        found = store.read_snapshot(name)
        elsewhere[found.root] = None
        if found.root == workdir:
            return name, found
        if words:
            raise ClaudeboxError(f"that session was in `{found.root}`", hint="change to that directory")
    usual = "sessions of an agent have one; those of `--exec` and `--shell` only where `undo_keep` is set"
    others = ", ".join(f"`{root}`" for root in elsewhere)  # other checkouts, or the repository as a whole
    raise ClaudeboxError("there is no snapshot of a session in this directory",
                         hint=f"there are some of {others}: change to that directory" if others else usual)  # fmt: skip
