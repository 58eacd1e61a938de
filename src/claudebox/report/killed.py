"""Sessions that were killed: finding what they could write, wherever it is by now, and looking at it."""

from __future__ import annotations

import marshal
import os
import time

from claudebox import console, stub_journal
from claudebox.facts.git_model import Nested
from claudebox.files import identify, read_small
from claudebox.launch.process import EVERYTHING, Pending, Unfinished, run_limited
from claudebox.report import leftovers
from claudebox.report.session_log import SUFFIX, SessionLog
from claudebox.state import Instance
from claudebox.undo.session import Beginning
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.facts.model import Identity
    from claudebox.report.leftovers import Scope

_LIMIT = 16 << 20
_MEMORY = 2 << 30  # bytes that a look may take
_LONG = float("inf")
_UNLOOKED = "and nobody has looked at what it left"


class Note(Value):
    """What a session wrote down before its payload ran."""

    name: str
    instance: Instance
    scope: Scope
    began: float

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
    for path, held in leftovers.dead_notes(instance.state):
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


def describe(directory: str) -> Iterator[str]:
    """Yield what to say of killed sessions that nobody has looked at; `directory` is ~/.claudebox."""
    for path, held in leftovers.dead_notes(directory):
        note = read_note(path, held, directory)
        if note is not None:
            yield f"{note.title}, {_UNLOOKED}: a launch there does, or `claudebox --changes {note.name}`"


def read_note(path: str, held: int, directory: str) -> Note | None:
    """Return what a session wrote down; nothing where it was killed before it was done, and no payload ran.

    Nor where the user has removed the state of its project since.
    """
    try:
        fields = marshal.loads(read_small(path, limit=_LIMIT) or b"")  # noqa: S302 - our own file
        number, root, name, workdir, home, mounts, known, rows, opened, nested, earlier = fields
    except (ValueError, EOFError, TypeError):
        return None
    instance = Instance(root, directory, name)
    if number != leftovers.FORMAT or not os.path.isdir(instance.directory):
        return None
    roots = (
        (top, own, Beginning(top, *rest).replace(identity=(device, inode))) for top, own, device, inode, *rest in rows
    )
    own = tuple(Nested(*row) for row in nested)
    scope = leftovers.Scope(workdir, home, mounts, known, tuple(roots), opened, own, earlier)
    return Note(os.path.basename(path), instance, scope, os.fstat(held).st_mtime)


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
    from claudebox.report import screen, session_log

    own = instance if scope.workdir != note.scope.workdir else note.instance  # that of the project where it is now
    standing = frozenset(path for other in (note.instance, instance) for _, path in stub_journal.recorded_stubs(other))
    left = leftovers.Leftovers(scope, own, standing=standing, session=note.name)
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
        session_log.write_changes(
            record if record is not None and own is instance else SessionLog(own.state, own.name), report
        )
    complete = done.is_complete and not leftovers.is_cut_short(report)
    if complete and path:
        os.unlink(path)
    return complete, lines
