"""Sessions that were killed, or whose machine went down: the next one examines what they left, from their notes."""

from __future__ import annotations

import fcntl
import os

from claudebox.base import console
from claudebox.base.files import Closing, identify, list_names
from claudebox.base.process import EVERYTHING, Pending, Unfinished, run_limited
from claudebox.git import disarmed
from claudebox.host import protected as host_protected
from claudebox.report.leftovers import NOTES, Leftovers, read_note, settled, unfinished
from claudebox.report.log import SUFFIX, SessionLog
from claudebox.run.stubs import clear_stubs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.state import Instance
    from claudebox.host.records import Identity
    from claudebox.report.leftovers import Note, Scope


_MEMORY = 4 << 30  # bytes that an examination may take
_UNEXAMINED = "and what it left was not examined"


def examine_all(instance: Instance, tops: tuple[str, ...], record: SessionLog | None, patience: float) -> None:
    """Examine every session that was killed; changes are logged to `record`, or to a log of their own."""
    for path, held in dead_notes(instance.state):
        done = examine(path, held, instance, tops, record, patience)
        (settled if done else unfinished).append(path)


def dead_notes(directory: str) -> Iterator[tuple[str, int]]:
    """Yield the notes of killed sessions, each open and locked."""
    for name in list_names(f"{directory}/{NOTES}"):
        path = f"{directory}/{NOTES}/{name}"
        try:
            with Closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, held
        except (BlockingIOError, FileNotFoundError):  # alive, or another was quicker
            continue


def examine(
    path: str, held: int, instance: Instance, tops: tuple[str, ...], record: SessionLog | None,
    patience: float = float("inf"), *, final: bool = False,
) -> bool:  # fmt: skip
    """Examine a killed session, wherever its directories are now; return whether nothing is left to do.

    Only then is its note deleted. The note of a directory that is gone stays until the user dismisses it (`final`), or
    removes the state of the project. After `patience` seconds the examination goes on in the background.
    """
    note = read_note(path, held, instance.state)
    if note is None:
        os.unlink(path)
        return True
    found = _find(note, tops)
    if found is None:
        console.warn(f"{note.title}, {_UNEXAMINED}: the directory is gone")
        console.note(f"start claudebox where it is now, or dismiss it with `claudebox changes {note.name}`")
        return True
    seen = {at.identity[1] for _, _, at in found.roots}
    lost = [root for root, _, at in note.scope.roots if not final and at.identity[1] not in seen]
    on = f"`claudebox changes {note.name}` continues"
    try:
        body = lambda: _look(note, found, instance, record, "" if lost else path)  # noqa: E731
        done, lines = run_limited(body, EVERYTHING, _MEMORY, patience)
        clear_stubs(note.instance)
        console.write(lines)
        if not note.is_known:
            console.warn(f"{note.title}, and its note cannot be read here: only the project was examined")
        if lost:
            names = ", ".join(console.shorten(root, 200) for root in lost)
            console.warn(f"{note.title}, {_UNEXAMINED} in {names}: gone")
            console.note(f"start claudebox where it is now, or dismiss it with `claudebox changes {note.name}`")
        if done:
            return True
        console.warn(f"{note.title}; not everything that it left was examined: {on}")
    except Pending:
        console.warn(f"{note.title}; what it left is still being examined in the background: {on}")
    except Unfinished as error:
        console.warn(f"{note.title}; what it left could not be examined ({error}): {on}")
    return False


def acknowledge(instance: Instance, name: str, workdir: str) -> bool:
    """Dismiss the killed session that a user names, if there is one; what is left of it is examined."""
    for path, held in dead_notes(instance.state):
        note = read_note(path, held, instance.state)
        if note is not None and note.name == name.removesuffix(SUFFIX):
            places = (*(root for root, *_ in note.scope.roots), workdir)
            if _find(note, places) is not None:
                examine(path, held, note.instance, places, None, final=True)
            else:
                os.unlink(path)
                console.note(f"{note.title}: dismissed")
            return True
    return False


def describe_killed(directory: str) -> Iterator[str]:
    """Yield a line for each killed session that was not examined; `directory` is ~/.claudebox."""
    for path, held in dead_notes(directory):
        note = read_note(path, held, directory)
        if note is not None:
            yield f"{note.title}, {_UNEXAMINED}: a launch there does it, or `claudebox changes {note.name}`"


def _find(note: Note, tops: tuple[str, ...]) -> Scope | None:
    """Return the scope of a session with the paths of today; None if its project is not found."""
    scope = note.scope
    places: dict[str, str] = {}
    identities: dict[str, Identity] = {}
    for root, _, at in scope.roots:
        for path in _candidates(root, tops):
            found = identify(path)
            # The number of a device may have changed.
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
    """Yield where a directory may be now: where it was, or around where the user is."""
    yield root
    for top in tops:
        path = top
        while path.strip("/"):
            yield path
            path = os.path.dirname(path)


def _look(note: Note, scope: Scope, instance: Instance, record: SessionLog | None, path: str) -> tuple[bool, list[str]]:
    """Disarm and report; return whether nothing is left to do, and what to say. Then the note at `path` is deleted."""
    from claudebox.report import log as report_log
    from claudebox.report import screen

    own = instance if scope.workdir != note.scope.workdir else note.instance  # of the project where it is now
    standing = frozenset(
        path for other in (note.instance, instance) for _, path in host_protected.recorded_stubs(other)
    )
    left = Leftovers(scope, own, standing=standing, session=note.name)
    done = left.disarm()
    lines: list[str] = []
    try:
        report = left.look()
    except Exception as error:  # noqa: BLE001 - what was disarmed is reported
        lines += map(console.warning, disarmed.describe(done, scope.workdir))
        return False, [*lines, console.warning(f"looking for changes failed: {type(error).__name__}")]
    if not report.is_empty or done.findings:
        where = f" (now {console.shorten(scope.workdir, 200)})" if own is not note.instance else ""
        lines.append(console.warning(f"{note.title}{where}; what changed since:"))
        table = tuple(disarmed.tabulate(done, scope.workdir))
        lines += screen.lines(screen.Ending(report, disarmed=table, disarmed_more=done.more))
    if not report.is_empty:
        report_log.write_changes(
            record if record is not None and own is instance else SessionLog(own.state, own.name), report
        )
    complete = done.is_complete and not report.is_cut_short
    if complete and path:
        os.unlink(path)
    return complete, lines
