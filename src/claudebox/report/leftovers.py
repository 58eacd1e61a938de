"""What a session has left in the directories that it could write: disarmed, and looked at.

All that this takes is written down before the payload runs. So after a session that was killed, or whose machine went
down, the next one in, above or below the project does it (`killed`).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import time

from claudebox.base import console, trees
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    LOST,
    OPEN_DIRECTORY,
    Closing,
    identify,
    list_names,
    read_at,
    read_small,
    replace_file,
    write_all,
)
from claudebox.base.process import EVERYTHING, Pending, Unfinished, run_limited
from claudebox.base.records import Value
from claudebox.base.state import Instance
from claudebox.git.facts import KEPT, KEPT_LIMIT, Nested
from claudebox.host import protected as host_protected
from claudebox.report import changes as report_changes
from claudebox.report.log import SUFFIX, SessionLog
from claudebox.tables.paths import GIT
from claudebox.undo import snapshot
from claudebox.undo.snapshot import Beginning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from claudebox.git.disarm import Disarmed
    from claudebox.host.records import Guarded, Host, Identity
    from claudebox.plan.records import Plan
    from claudebox.report.changes import Report
    from claudebox.settings.records import Policy


NOTES = "unlooked"  # in ~/.claudebox, of sessions of all projects: nobody has looked at what one left
UNSEEN = "unseen-"  # begins a name in the state of a project: somebody has, and nobody has seen the report
FORMAT = 5
PATIENCE = 5.0  # seconds that a launch waits for a look at what a killed session has left
unfinished: list[str] = []  # notes of sessions of which something is left to be looked at
_settled: list[str] = []  # notes of sessions of which nothing is left here


class Scope(Value):
    """What a session could write, and how that looked when it began."""

    workdir: str
    home: str
    mounts: tuple[tuple[str, str, str], ...]  # that can be written, and in those: destination, kind, source
    known: tuple[str, ...]  # git directories of the host, which it could not write
    roots: tuple[tuple[str, str, Beginning], ...]  # directory, its git directory, beginning; that of the project first
    opened: bool = False  # the user lets it change what git's configuration names
    nested: tuple[Nested, ...] = ()  # repositories of the user's that were there
    earlier: tuple[float, float, float] | None = None  # when the first session began whose work may move in this one


def describe(plan: Plan, policy: Policy, host: Host) -> Scope:
    """Return the scope of a session that is about to begin."""
    repository = host.git.repository
    ours = (*((repository, *repository.nested) if repository is not None else ()), *host.mounted.repositories)
    # Other directories that the user lets the agent write to.
    asked = {row.source for row in plan.mounts if row.kind == "bind" and row.role == "asked"}
    roots = {host.workdir.real: repository.common_dir if repository is not None else ""}
    for root in sorted(asked):
        if os.path.isdir(root):
            roots.setdefault(root, next((row.common_dir for row in host.mounted.repositories if row.root == root), ""))
    pins = {row.source: row.pinned for row in plan.mounts if row.kind == "bind"}  # what bwrap was made to mount
    beginnings = (
        snapshot.begin(root, (own,), pins.get(root), listing=root != host.workdir.real or plan.undo is None)
        for root, own in roots.items()
    )
    scope = Scope(
        host.workdir.real,
        host.home,
        tuple(_find_writable(plan)),
        tuple(row.common_dir for row in ours if row.common_dir),
        tuple((root, own, at) for (root, own), at in zip(roots.items(), beginnings, strict=True)),
        any(request.name == GIT for request in policy.allow),
        # Where something is left to be disarmed, nothing counts as the user's own.
        host.git.nested if not unfinished else (),
    )
    return share(scope, host.instance.state)


def share(scope: Scope, directory: str) -> Scope:
    """Return a scope that takes nothing for the user's own which a session that is alive may have made.

    Call it when the beginning is known: who writes a note later has a payload that begins later.
    """
    for name in list_names(f"{directory}/{NOTES}"):
        path = f"{directory}/{NOTES}/{name}"
        other = _read_scope(path, directory) if path not in _settled else None
        if other is None or not any(_meet(root, top) for root, *_ in scope.roots for top, *_ in other.roots):
            continue
        begun = [(row.since, row.clock, row.uptime) for _, _, row in other.roots]
        earlier = min(row for row in (scope.earlier, other.earlier, *begun) if row is not None)
        inside = tuple(f"{root}/" for root, *_ in other.roots)
        own = tuple(row for row in scope.nested if row in other.nested or not row.path.startswith(inside))
        scope = scope.replace(nested=own, earlier=earlier)
    return scope


def _read_scope(path: str, directory: str) -> Scope | None:

    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as held:
            note = read_note(path, held, directory)
    except FileNotFoundError:
        return None
    return note.scope if note is not None else None


def _meet(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _find_writable(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield what the agent can write, and what is mounted in that."""
    within: tuple[str, ...] = ()
    for row in plan.mounts:  # what lies in another follows it
        if row.kind == "bind":
            within = (*within, f"{row.dest}/")
        elif not row.dest.startswith(within):
            continue
        yield row.dest, row.kind, row.source


class Leftovers:
    """What one session has left."""

    def __init__(
        self,
        scope: Scope,
        instance: Instance,
        guarded: tuple[Guarded, ...] = (),
        stubs: frozenset[str] = frozenset(),
        standing: frozenset[str] = frozenset(),
        session: str = "",
    ) -> None:
        """Take what is known; `standing` are stubs besides those of sessions of the same project."""
        self._session = session.removesuffix(SUFFIX)
        self._scope, self._instance, self._guarded, self._stubs = scope, instance, guarded, stubs
        self._standing = standing
        self._reopened: tuple[tuple[int, int], ...] = ()

    @property
    def since(self) -> float:
        """Return from when on a change of the project counts."""
        return snapshot.since(self._scope.roots[0][2])

    def look(self) -> Report:
        """Look at everything that changed."""
        report: Report | None = None
        standing = self._standing | {path for _, path in host_protected.recorded_stubs(self._instance)}
        limit = time.monotonic() + report_changes.BUDGET
        for root, git_dir, start in self._scope.roots:
            beginning = start
            if self._session and root == self._scope.workdir:
                beginning = start.replace(directory=self._instance.directory, session=self._session)
            where = report_changes.Places(
                root, git_dir, self._guarded, self._stubs, standing, self._scope.home, self._reopened
            )
            found = report_changes.look(where, beginning, budget=limit - time.monotonic())
            report = found if report is None else report_changes.join(report, root, found)
        return report if report is not None else report_changes.Report()

    def find_lost(self) -> list[str]:
        """Return the directories that are not where they were when the session began."""
        return [root for root, _, at in self._scope.roots if identify(root) != at.identity]

    def disarm(self) -> Disarmed:
        """Disarm the repositories that were made or changed inside; raise Unfinished if that was not possible."""
        from claudebox.git import disarm

        scope = self._scope
        begun = scope.earlier
        roots = tuple(
            (root, min(snapshot.since(at), snapshot.since(Beginning(root, *begun)) if begun else at.since), at.identity)
            for root, _, at in scope.roots
        )
        area = disarm.Area(roots, scope.mounts, scope.known, scope.nested, scope.home, scope.opened)
        done = disarm.disarm(area)
        self._reopened = done.reopened
        self._keep(done.kept)
        return done

    def _keep(self, paths: tuple[str, ...]) -> None:
        """Keep the git directories that were seen to have settings of their own, for the next session."""
        content = os.fsencode("\0".join(paths))
        try:
            with Closing(os.open(self._instance.directory, OPEN_DIRECTORY)) as directory:
                if content != (read_at(directory, KEPT, limit=KEPT_LIMIT) or b""):
                    replace_file(directory, KEPT, content)
        except OSError:  # a full disk: the next session finds those near the top
            pass


def is_cut_short(report: Report) -> bool:
    """Return whether a look ended before everything was seen; what cannot be seen at all is named in the report."""
    return any(why in (trees.OUT_OF_TIME, LOST) or why.endswith(report_changes.TOO_MANY) for _, why in report.unseen)


class Unlooked:
    """The note that somebody has still to look; whoever wrote it holds it for as long as it lives."""

    def __init__(self, scope: Scope, instance: Instance, name: str) -> None:
        """Write it down under the name that the session has in the log."""
        self.name = name.removesuffix(SUFFIX) or f"{os.getpid()}.{time.monotonic_ns()}"
        self._directory = self._descriptor = -1
        try:
            roots = tuple((root, own, *at.identity, at.since, at.clock, at.uptime, at.plain)
                          for root, own, at in scope.roots)  # fmt: skip
            nested = tuple((row.path, row.identity, row.hooks, row.config) for row in scope.nested)
            rest = (scope.workdir, scope.home, scope.mounts, scope.known, roots, scope.opened, nested, scope.earlier)
            self._directory = base_state.open_state(instance.state, NOTES)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self.name, flags, 0o600, dir_fd=self._directory)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            write_all(self._descriptor, marshal.dumps((FORMAT, instance.root, instance.name, *rest)))
        except (OSError, ClaudeboxError) as error:
            why = error.strerror if isinstance(error, OSError) else error.message
            console.warn(f"if this session is killed, nobody will look at what it left: {why}")

    def remove(self) -> None:
        """Take it away: somebody has looked."""
        if self._descriptor >= 0:
            try:
                os.unlink(self.name, dir_fd=self._directory)
            except OSError:  # the state may be gone; at worst the next session looks again
                pass
        self.leave()

    def leave(self) -> None:
        """Leave it to whoever comes next."""
        for descriptor in (self._descriptor, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._directory = -1


def dead_notes(directory: str) -> Iterator[tuple[str, int]]:
    """Yield the notes of sessions that were killed, each open and held while it is looked at."""
    for name in list_names(f"{directory}/{NOTES}"):
        path = f"{directory}/{NOTES}/{name}"
        try:
            with Closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, held
        except (BlockingIOError, FileNotFoundError):  # it is alive, or another was quicker
            continue


def catch_up(
    instance: Instance, tops: tuple[str, ...], record: SessionLog | None = None, patience: float = float("inf")
) -> None:
    """Look at what killed sessions have left, say so, and write it down.

    Into this `record`, or into one of its own. A project that was moved is found in or around `tops`. Of reports that
    nobody has seen, say how to see them.
    """
    for name in list_names(instance.directory):
        if name.startswith(UNSEEN):
            session = os.fsdecode(read_small(f"{instance.directory}/{name}") or b"")
            console.note(f"`{session}` has left something to look at: `claudebox --attach {session}` shows its report")
    for path, held in dead_notes(instance.state):
        if not examine(path, held, instance, tops, record, patience):
            unfinished.append(path)
        else:
            _settled.append(path)


# Sessions that were killed: finding what they could write, wherever it is by now, and looking at it.


_LIMIT = 16 << 20
_MEMORY = 2 << 30  # bytes that a look may take
_LONG = float("inf")
_SLACK = 2.0  # seconds by which times of file systems may be rounded
_UNLOOKED = "and nobody has looked at what it left"


class Note(Value):
    """What a session wrote down before its payload ran."""

    name: str
    instance: Instance
    scope: Scope
    began: float
    is_known: bool = True  # what it could write; else another version wrote the note

    @property
    def title(self) -> str:
        """Return how it is called in a message."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began))
        return f"a session in {console.shorten(self.scope.workdir, 200)} that began at {moment} was killed"


def examine(
    path: str, held: int, instance: Instance, tops: tuple[str, ...], record: SessionLog | None,
    patience: float = _LONG, *, final: bool = False,
) -> bool:  # fmt: skip
    """Look at what a killed session has left, wherever that is now; its note goes only if nothing is left to do.

    Where its directory is gone the user has to say that nobody needs to look; removing the state of its project does.
    After so many seconds of `patience` the look goes on in the background. Return whether it is done. `final`: the user
    has said that nobody needs to look for what is gone.
    """
    note = read_note(path, held, instance.state)
    if note is None:
        os.unlink(path)
        return True
    found = _find(note, tops)
    if found is None:
        console.warn(f"{note.title}, {_UNLOOKED}: the directory is not there any more")
        console.note(f"start claudebox where it is now, or say `claudebox --changes {note.name}`")
        return True
    seen = {at.identity[1] for _, _, at in found.roots}
    lost = [root for root, _, at in note.scope.roots if not final and at.identity[1] not in seen]
    on = f"`claudebox --changes {note.name}` goes on with it"
    try:
        body = lambda: _look(note, found, instance, record, "" if lost else path)  # noqa: E731
        done, lines = run_limited(body, EVERYTHING, _MEMORY, patience)
        console.write(lines)
        if not note.is_known:
            console.warn(f"{note.title} that another version of claudebox started: only the project was examined")
        if lost:
            names = ", ".join(console.shorten(root, 200) for root in lost)
            console.warn(f"{note.title}, {_UNLOOKED} in {names}: not there any more")
            console.note(f"start claudebox where it is now, or say `claudebox --changes {note.name}`")
        if done:
            return True
        console.warn(f"{note.title}; not everything that it left was examined: {on}")
    except Pending:
        console.warn(f"{note.title}; what it left is still being examined in the background: {on}")
    except Unfinished as error:
        console.warn(f"{note.title}; what it left could not be examined ({error}): {on}")
    return False


def acknowledge(instance: Instance, name: str, workdir: str) -> bool:
    """Let the killed session that a user names be done with, if there is one: what is left of it is looked at."""
    for path, held in dead_notes(instance.state):
        note = read_note(path, held, instance.state)
        if note is not None and note.name == name.removesuffix(SUFFIX):
            places = (*(root for root, *_ in note.scope.roots), workdir)
            if _find(note, places) is not None:
                examine(path, held, note.instance, places, None, final=True)
            else:
                os.unlink(path)
                console.note(f"{note.title}: nobody looks for it any more")
            return True
    return False


def describe_killed(directory: str) -> Iterator[str]:
    """Yield what to say of killed sessions that nobody has looked at; `directory` is ~/.claudebox."""
    for path, held in dead_notes(directory):
        note = read_note(path, held, directory)
        if note is not None:
            yield f"{note.title}, {_UNLOOKED}: a launch there does, or `claudebox --changes {note.name}`"


def read_note(path: str, held: int, directory: str) -> Note | None:
    """Return what a session wrote down; nothing where it was killed before it was done, and no payload ran.

    Nor where the user has removed the state of its project since.
    """
    try:
        fields = marshal.loads(read_small(path, limit=_LIMIT) or b"")  # noqa: S302 - our own file
        number, root, name, workdir, *rest = fields
    except (ValueError, EOFError, TypeError):
        return None
    instance, began = Instance(root, directory, name), os.fstat(held).st_mtime
    if not os.path.isdir(instance.directory):
        return None
    known = number == FORMAT
    scope = _read_known(workdir, *rest) if known else _assume_all(workdir, os.path.dirname(directory), began)
    return Note(os.path.basename(path), instance, scope, began, known)


def _read_known(
    workdir: str, home: str, mounts: Any, known: Any, rows: Any, opened: Any, nested: Any, earlier: Any
) -> Scope:  # fmt: skip
    roots = (
        (top, own, Beginning(top, *rest).replace(identity=(device, inode))) for top, own, device, inode, *rest in rows
    )
    own = tuple(Nested(*row) for row in nested)
    return Scope(workdir, home, mounts, known, tuple(roots), opened, own, earlier)


def _assume_all(workdir: str, home: str, began: float) -> Scope:
    """Return the scope for the note of another version: everything in the project changed but its git directory."""
    git_dir = f"{workdir}/.git"
    mounts = ((workdir, "bind", workdir), (git_dir, "closed", git_dir))
    beginning = Beginning(workdir, began - _SLACK, 0.0, 0.0, identity=identify(workdir) or (0, 0))
    return Scope(workdir, home, mounts, (git_dir,), ((workdir, git_dir, beginning),))


def _find(note: Note, tops: tuple[str, ...]) -> Scope | None:
    """Return what a session could write, where it is now; nothing if its project is not found."""
    scope = note.scope
    places: dict[str, str] = {}
    identities: dict[str, Identity] = {}
    for root, _, at in scope.roots:
        for path in _candidates(root, tops):
            found = identify(path)
            # Under the same name its device may have another number by now.
            if found == at.identity or (found is not None and path == root and found[1] == at.identity[1]):
                places[root], identities[root] = path, found
                break

    def moved(path: str) -> str:
        around = next((root for root in places if f"{path}/".startswith(f"{root}/")), "")
        return places[around] + path[len(around) :] if around else path

    if scope.workdir not in places:
        return None
    return scope.replace(
        workdir=places[scope.workdir],
        mounts=tuple((dest, kind, moved(source)) for dest, kind, source in scope.mounts),
        known=tuple(map(moved, scope.known)),
        roots=tuple(
            (places[root], moved(own), at.replace(root=places[root], identity=identities[root]))
            for root, own, at in scope.roots
            if root in places
        ),
        nested=tuple(row.replace(path=moved(row.path)) for row in scope.nested),
    )


def _candidates(root: str, tops: tuple[str, ...]) -> Iterator[str]:
    """Yield where a directory may be: where it was, or around where the user is."""
    yield root
    for top in tops:
        path = top
        while path.strip("/"):
            yield path
            path = os.path.dirname(path)


def _look(note: Note, scope: Scope, instance: Instance, record: SessionLog | None, path: str) -> tuple[bool, list[str]]:
    """Disarm and look; return whether nothing is left to do, and what to say; then the note at the `path` is gone."""
    from claudebox.git import disarm
    from claudebox.report import log as report_log
    from claudebox.report import screen

    own = instance if scope.workdir != note.scope.workdir else note.instance  # that of the project where it is now
    standing = frozenset(
        path for other in (note.instance, instance) for _, path in host_protected.recorded_stubs(other)
    )
    left = Leftovers(scope, own, standing=standing, session=note.name)
    done = left.disarm()
    lines: list[str] = []
    try:
        report = left.look()
    except Exception as error:  # noqa: BLE001 - what was disarmed is told all the same
        lines += map(console.warning, disarm.describe(done, scope.workdir))
        return False, [*lines, console.warning(f"looking for changes failed: {type(error).__name__}")]
    if not report.is_empty or done.findings:
        where = f" (now {console.shorten(scope.workdir, 200)})" if own is not note.instance else ""
        lines.append(console.warning(f"{note.title}{where}; what changed since:"))
        table = tuple(disarm.tabulate(done, scope.workdir))
        lines += screen.lines(screen.Ending(report, disarmed=table, disarmed_more=done.more))
    if not report.is_empty:
        report_log.write_changes(
            record if record is not None and own is instance else SessionLog(own.state, own.name), report
        )
    complete = done.is_complete and not is_cut_short(report)
    if complete and path:
        os.unlink(path)
    return complete, lines
