"""What a session left in the directories that it could write: repositories are disarmed, changes are reported.

Everything this needs is in a note that is written before the payload runs. So if the session is killed, or its machine
goes down, the next one in, above or below the project does it.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import stat
import time

from claudebox.agent import kinds
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    Closing,
    close_again,
    identify,
    list_names,
    mode_of,
    open_known,
    open_up,
    read_small,
    real_path,
    write_all,
    write_file,
)
from claudebox.base.records import Value
from claudebox.base.state import Instance
from claudebox.git import disarmed
from claudebox.git.facts import KEPT, KEPT_LIMIT, Nested
from claudebox.host import protected as host_protected
from claudebox.report.log import SUFFIX
from claudebox.tables.paths import GIT
from claudebox.undo import manifest, snapshot
from claudebox.undo.snapshot import Beginning, Moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from claudebox.git.disarmed import Disarmed, Finding
    from claudebox.host.records import Host, Identity, ProtectedPath
    from claudebox.plan.records import Plan
    from claudebox.report.changes import Report
    from claudebox.report.log import SessionLog
    from claudebox.settings.records import Policy


NOTES = "unlooked"  # in ~/.claudebox, for all projects: notes of sessions that are still to be examined
UNSEEN = "unseen-"  # prefix in the state of a project: sessions that were examined, and whose report nobody has seen
PATIENCE = 5.0  # seconds that a launch waits until a killed session is examined
_FORMAT = 8
_LIMIT = 1 << 30  # bytes of a note: it lists the project
_HELD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SLACK = 2.0  # seconds by which times of file systems may be rounded
unfinished: list[str] = []  # notes of sessions that could not be examined in full
settled: list[str] = []  # notes of sessions that need nothing more here


class Scope(Value):
    """What a session could write, and how that looked when it began."""

    workdir: str
    home: str
    mounts: tuple[tuple[str, str, str], ...]  # writable ones, and those in them: destination, kind, source
    known: tuple[str, ...]  # git directories of the host, which it could not write
    roots: tuple[tuple[str, str, Beginning], ...]  # directory, its git directory, beginning; the project first
    opened: bool = False  # the user lets it change what git's configuration names
    nested: tuple[Nested, ...] = ()  # repositories of the user's that were there
    earlier: Moment | None = None  # when the first of the sessions began that ran at the same time here
    unwanted: tuple[tuple[str, str], ...] = ()  # what agents of the host would obey: path, and where that led


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
    undo = plan.policy.undo is not None and snapshot.is_available()
    deadline = time.monotonic() + snapshot.LISTING
    beginnings = (
        snapshot.begin(root, (own,), pins.get(root), listing=root != host.workdir.real or not undo, deadline=deadline)
        for root, own in roots.items()
    )
    scope = Scope(
        host.workdir.real,
        host.home,
        tuple(_find_writable(plan)),
        tuple(row.common_dir for row in ours if row.common_dir),
        tuple((root, own, at) for (root, own), at in zip(roots.items(), beginnings, strict=True)),
        any(request.name == GIT for request in policy.allow),
        # While something is left to be disarmed, nothing counts as the user's own.
        host.git.nested if not unfinished else (),
        unwanted=tuple(_find_unwanted(policy, host)),
    )
    return share(scope, host.instance.state)


def _find_unwanted(policy: Policy, host: Host) -> Iterator[tuple[str, str]]:
    """Yield what some agent obeys in a project and must not come from this session, and where it leads now.

    That is what has no mount: what is not there, links, and what another session that is alive may have made: when that
    one has ended, it is gone, and this one could make it.
    """
    root, allowed = host.workdir.real, {request.name for request in policy.allow}
    rows = [row for row in host.project.protected if row.kind == "link" or (row.kind, row.stub) == ("missing", "none")]
    found = {row.name: _leads_to(root, row.name) for row in rows}
    for scope in _alive_scopes(host.instance.state):
        found.update(scope.unwanted if scope.workdir == root else ())
    names = (name for name in kinds.list_protected_names() if name != GIT and name not in allowed)
    yield from ((name, found[name]) for name in names if name in found)


def _leads_to(root: str, path: str) -> str:
    """Return where a path below a directory leads, as seen from there; "" if nothing is there."""
    place = f"{root}/{path}"
    missing = "" if os.path.exists(place) else "?"
    return os.path.relpath(real_path(place), root) + missing if os.path.lexists(place) else ""


def _alive_scopes(directory: str) -> Iterator[Scope]:
    for name in list_names(f"{directory}/{NOTES}"):
        path = f"{directory}/{NOTES}/{name}"
        other = _read_scope(path, directory) if path not in settled else None
        if other is not None:
            yield other


def share(scope: Scope, directory: str) -> Scope:
    """Return the scope without nested repositories that a session which is still alive may have made.

    Call it when the beginning is known: a session that writes its note later begins later.
    """
    for other in _alive_scopes(directory):
        if not any(_meet(root, top) for root, *_ in scope.roots for top, *_ in other.roots):
            continue
        begun = (scope.earlier, other.earlier, *(row.moment for *_, row in other.roots))
        earlier = min((row for row in begun if row is not None), key=lambda row: row.file_system)
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
    """Yield the writable mounts, and those in them."""
    within: tuple[str, ...] = ()
    for row in plan.mounts:  # what lies in another follows it
        if row.kind == "bind":
            within = (*within, f"{row.dest}/")
        elif not row.dest.startswith(within):
            continue
        yield row.dest, row.kind, row.source


class Leftovers:
    """What one session left."""

    def __init__(
        self,
        scope: Scope,
        instance: Instance,
        protected: tuple[ProtectedPath, ...] = (),
        stubs: frozenset[str] = frozenset(),
        standing: frozenset[str] = frozenset(),
        session: str = "",
    ) -> None:
        """`standing` are stubs besides those of sessions of the same project."""
        self._session = session.removesuffix(SUFFIX)
        self._scope, self._instance, self._protected, self._stubs = scope, instance, protected, stubs
        self._standing = standing
        self._reopened: tuple[tuple[int, int], ...] = ()
        self._aside: tuple[str, ...] = ()  # what was renamed in the project, with a slash

    @property
    def since(self) -> float:
        """Return from when on a ctime in the project counts."""
        return self._scope.roots[0][2].moment.since()

    def look(self) -> Report:
        """Find everything that changed."""
        from claudebox.report import changes

        report: Report | None = None
        standing = self._standing | {path for _, path in host_protected.recorded_stubs(self._instance)}
        limit = time.monotonic() + changes.BUDGET
        for root, git_dir, start in self._scope.roots:
            kept = (self._instance.directory, self._session if root == self._scope.workdir else "")
            where = changes.Places(root, git_dir, self._protected, self._stubs, standing, self._reopened, kept)
            found = changes.look(where, start, budget=limit - time.monotonic())
            if root == self._scope.workdir:  # what was put aside is told as that
                shown = (row for row in found.changes if not f"{row.path}/".startswith(self._aside))
                found = found.replace(changes=tuple(shown))
            report = found if report is None else changes.join(report, root, found)
        return report or changes.Report()

    def find_lost(self) -> list[str]:
        """Return the directories that were moved or replaced since the session began."""
        return [root for root, _, at in self._scope.roots if identify(root) != at.identity]

    def disarm(self) -> Disarmed:
        """Disarm the repositories that were made or changed inside; raise Unfinished if that was not possible."""
        scope = self._scope
        earlier = scope.earlier.since() if scope.earlier is not None else float("inf")
        roots = tuple((root, min(at.moment.since(), earlier), at.identity) for root, _, at in scope.roots)
        area = disarmed.Area(roots, scope.mounts, scope.known, scope.nested, scope.home, scope.opened)
        done = disarmed.disarm(area)
        aside = tuple(self._put_aside())
        self._aside = tuple(f"{names[0]}/" for _, what, names in aside if what == disarmed.OBEYED)
        done = done.replace(findings=(*aside, *done.findings))
        self._reopened = done.reopened
        self._keep(done.kept)
        return done

    def _put_aside(self) -> Iterator[Finding]:
        """Rename what an agent of the host would obey, and no session may make or lead elsewhere."""
        root, _, start = self._scope.roots[0]
        for path, led in self._scope.unwanted:
            if _leads_to(root, path) == led:
                continue
            try:
                renamed = _rename_aside(root, start.identity, path)
            except OSError as error:
                yield f"{root}/{path}", disarmed.CLOSED, (error.strerror or "",)
            else:
                if renamed:
                    yield f"{root}/{path}", disarmed.OBEYED, renamed

    def _keep(self, paths: tuple[str, ...]) -> None:
        """Remember for the next session which git directories have settings of their own."""
        content = os.fsencode("\0".join(paths))
        try:
            if content != (read_small(f"{self._instance.directory}/{KEPT}", limit=KEPT_LIMIT) or b""):
                write_file(f"{self._instance.directory}/{KEPT}", content)
        except OSError:  # a full disk: the next session finds those near the top
            pass


def _rename_aside(root: str, identity: Identity, path: str) -> tuple[str, ...]:
    """Rename what is at a path below a directory, or the link that leads there; return its names, () for nothing."""
    parts = path.split("/")
    current = open_known(root, _HELD, identity)
    for number, name in enumerate(parts):
        with Closing(current) as directory:
            mode = mode_of(name, directory)
            if not mode:
                return ()
            if number + 1 == len(parts) or stat.S_ISLNK(mode):
                closed = open_up(directory)
                try:
                    made = disarmed.rename_aside(directory, name)
                    return "/".join((*parts[:number], made)), "/".join((*parts[:number], name))
                finally:
                    close_again(directory, closed)
            if not stat.S_ISDIR(mode):
                return ()
            current = os.open(name, _HELD, dir_fd=directory)
    return ()


class Unlooked:
    """The note that a session is to be examined; locked as long as the session is alive."""

    def __init__(self, scope: Scope, instance: Instance, name: str) -> None:
        """Write it under the name that the session has in the log."""
        # The name says of which project it is, if a loss of power leaves nothing in the file.
        self.name = name.removesuffix(SUFFIX) or f"{time.monotonic_ns()}-{instance.name}-{os.getpid()}"
        self._directory = self._descriptor = -1
        try:
            self._directory = base_state.open_state(instance.state, NOTES)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self.name, flags, 0o600, dir_fd=self._directory)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            fields = (_FORMAT, instance.root, instance.name, *_pack(scope))
            write_all(self._descriptor, marshal.dumps(fields))
        except (OSError, ClaudeboxError) as error:
            why = error.strerror if isinstance(error, OSError) else error.message
            console.warn(f"if this session is killed, what it leaves will not be examined: {why}")

    def remove(self) -> None:
        """Delete the note."""
        if self._descriptor >= 0:
            try:
                os.unlink(self.name, dir_fd=self._directory)
            except OSError:  # at worst the next session examines this one again
                pass
        self.leave()

    def leave(self) -> None:
        """Release the note, so that the next session does the rest."""
        for descriptor in (self._descriptor, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._directory = -1


def catch_up(
    instance: Instance, tops: tuple[str, ...], record: SessionLog | None = None, patience: float = float("inf")
) -> None:
    """Examine killed sessions, and point to reports that nobody has seen.

    Changes are logged to `record`, or to a log of their own. A project that was moved is found in or around `tops`.
    """
    for name in list_names(instance.directory):
        if name.startswith(UNSEEN):
            session = os.fsdecode(read_small(f"{instance.directory}/{name}") or b"")
            console.note(f"`claudebox attach {session}` shows the report of `{session}`")
    if list_names(f"{instance.state}/{NOTES}"):
        from claudebox.report import killed

        killed.examine_all(instance, tops, record, patience)


class Note(Value):
    """What a session wrote down before its payload ran."""

    name: str
    instance: Instance
    scope: Scope
    began: float
    is_known: bool = True  # what it could write; else another version wrote the note

    @property
    def title(self) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began))
        return f"a session in {console.shorten(self.scope.workdir, 200)} that began at {moment} was killed"


def _pack(scope: Scope) -> tuple[Any, ...]:
    """Return a scope as plain data."""
    roots = tuple(
        (root, own, *at.identity, *at.moment.as_tuple(), manifest.pack(at.listing) if at.listing is not None else None)
        for root, own, at in scope.roots
    )
    nested = tuple((row.path, row.identity, row.hooks, row.config) for row in scope.nested)
    earlier = scope.earlier.as_tuple() if scope.earlier is not None else None
    return scope.workdir, scope.home, scope.mounts, scope.known, roots, scope.opened, nested, earlier, scope.unwanted


def read_note(path: str, held: int, directory: str) -> Note | None:
    """Return a note; None if it cannot be said of which project it is, or the state of that is removed.

    One that cannot be read, because its writer was killed or the machine lost its power, counts as of another version.
    """
    try:
        fields = marshal.loads(read_small(path, limit=_LIMIT) or b"")  # noqa: S302 - our own file
        number, root, name, workdir, *rest = fields
    except (ValueError, EOFError, TypeError):
        number, rest = 0, []
        name = os.path.basename(path).partition("-")[2].partition("-")[0]  # of a log: moment, instance, number, process
        root = workdir = os.fsdecode(read_small(f"{directory}/instances/{name}/{base_state.MANIFEST}") or b"")
    instance, began = Instance(root, directory, name), os.fstat(held).st_mtime
    if not root or not os.path.isdir(instance.directory):
        return None
    known = number == _FORMAT
    scope = _unpack(workdir, *rest) if known else _assume_all(workdir, os.path.dirname(directory), began)
    return Note(os.path.basename(path), instance, scope, began, known)


def _unpack(workdir: str, home: str, mounts: Any, known: Any, rows: Any, *rest: Any) -> Scope:
    opened, nested, earlier, unwanted = rest
    roots = tuple(
        (top, own, Beginning(top, Moment(*times), (device, inode), listing and manifest.unpack(listing)))
        for top, own, device, inode, *times, listing in rows
    )
    repositories = tuple(Nested(*row) for row in nested)
    return Scope(workdir, home, mounts, known, roots, opened, repositories, earlier and Moment(*earlier), unwanted)


def _assume_all(workdir: str, home: str, began: float) -> Scope:
    """Return the scope for a note of another version: everything in the project except its git directory."""
    git_dir = f"{workdir}/.git"
    mounts = ((workdir, "bind", workdir), (git_dir, "closed", git_dir))
    beginning = Beginning(workdir, Moment(began - _SLACK, 0.0, 0.0), identify(workdir) or (0, 0))
    return Scope(workdir, home, mounts, (git_dir,), ((workdir, git_dir, beginning),))
