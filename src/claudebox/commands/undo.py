"""`--changes` and `--undo`: what has happened to the project since a session began, and putting it back."""

from __future__ import annotations

import os
import time

from claudebox import console, session, state
from claudebox.commands.git_import import find_tools
from claudebox.commands.undo_screen import change_lines, patch_lines
from claudebox.config.model import UndoRequest
from claudebox.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.facts import git, programs
from claudebox.facts.host import current_directory, current_home
from claudebox.launch import undo_git, undo_restore, undo_scan
from claudebox.launch.live_sessions import Presence
from claudebox.launch.undo_store import Snapshot, SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.settings import Settings

_UNDO = "-undo"  # ends the names of snapshots that were taken before an undo
_MOST_LINES = 40


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Show what has changed, and put it back if that is wanted."""
    home, workdir = current_home(environ), current_directory()
    settings, _ = session.read_settings(flags, environ)
    wanted = session.decide_policy(settings.replace(words=()), environ).undo or UndoRequest()
    repository = git.find_repository(workdir, os.getuid(), home, environ)
    instance = state.locate(home, repository.main if repository else workdir)
    directory = f"{instance.directory}/undo"
    undoing = flags.on("undo")
    name, before = _choose(SnapshotStore(directory, writing=False), workdir, flags.words)
    store = SnapshotStore(directory, writing=undoing)
    if undoing:
        _refuse_beside_a_session(instance.state, workdir)
    now = _read_now(before, wanted, store if undoing else None, instance.directory)
    difference = undo_restore.compare(before, now)
    moves = undo_git.compare(before, now)
    most = _MOST_LINES if undoing else 0
    console.write(change_lines(name, before, now, difference, moves, most), descriptor=2 if undoing else 1)
    if flags.on("patch"):
        console.write(patch_lines(store, before, now, difference), descriptor=1)
    if not undoing or (difference.is_empty and not moves):
        return 0
    if not flags.on("yes") and not console.confirm("Put all of this back? [y/N] ", default=False):
        return DECLINED
    present = f"{_moment()}-{instance.name}-{os.getpid()}{_UNDO}"
    store.write_snapshot(present, now)
    tools = find_tools(programs.search_path(environ, workdir), git_needed=bool(moves))
    kept = [row.real for row in before.repositories if row.real.startswith(f"{workdir.rstrip('/')}/")]
    problems = undo_restore.put_back(tools, directory, name, present, workdir, filter(os.path.isdir, kept))
    problems |= undo_git.put_back(tools, store, before, now)
    store.prune(wanted.keep + 1)
    for path, why in sorted(problems.items()):
        console.warn(f"not put back: {console.shorten(path, 300)}: {why}")
    console.note(f"undo: the project is as it was when the session began; `claudebox --undo {present}` takes that back"
                 if not problems else "undo: the rest is as it was when the session began")  # fmt: skip
    return FAILED if problems else 0


def _moment() -> str:
    now = time.time()
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}Z"


def _choose(store: SnapshotStore, workdir: str, words: tuple[str, ...]) -> tuple[str, Snapshot]:
    """Return the snapshot that is meant: the newest of a session here, or the one whose name begins so."""
    if len(words) > 1:
        raise ClaudeboxError("one session can be named, as in the names of `~/.claudebox/log`")
    names = [name for name in store.names() if name.startswith(words[0].removesuffix(".jsonl"))] if words else []
    if words and len(names) != 1:
        problem = f"`{words[0]}` fits {len(names)} snapshots" if names else f"there is no snapshot `{words[0]}`"
        raise ClaudeboxError(problem, hint=f"there are: {', '.join(store.names()) or 'none'}")
    for name in names or [name for name in reversed(store.names()) if not name.endswith(_UNDO)]:
        found = store.read_snapshot(name)
        if found.root == workdir:
            return name, found
        if words:
            raise ClaudeboxError(f"that session was in `{found.root}`", hint="change to that directory")
    raise ClaudeboxError("there is no snapshot of a session in this directory",
                         hint="snapshots are taken at the start of sessions, unless `undo_keep` is 0")  # fmt: skip


def _refuse_beside_a_session(state_directory: str, workdir: str) -> None:
    presence = Presence(state_directory)
    try:
        other = presence.find_writer(workdir)
    finally:
        presence.leave()
    if other:
        raise ClaudeboxError(f"a session is at work in `{other}`", hint="end it first")


def _read_now(before: Snapshot, wanted: UndoRequest, store: SnapshotStore | None, instance_directory: str) -> Snapshot:
    """Read the project as it is; where there is a `store`, so that this can be taken back."""
    skipped = [row.real for row in before.repositories]
    skipped += undo_scan.standing_stubs(instance_directory, before.root)
    scan = undo_scan.Scan(before.root, store, before, most=wanted.most, names=wanted.excluded, skipped=skipped)
    return scan.run(None, undo_git.read_present(before, store))
