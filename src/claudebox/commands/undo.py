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
from claudebox.launch import undo_git, undo_refs, undo_restore
from claudebox.launch.live_sessions import Presence
from claudebox.launch.undo_compare import Comparison
from claudebox.launch.undo_scan import Scan
from claudebox.launch.undo_store import SnapshotStore
from claudebox.report import killed, leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.settings import Settings
    from claudebox.launch.git_sandbox import Tools
    from claudebox.launch.undo_manifest import Snapshot

_UNDO = "-undo"  # ends the names of snapshots that were taken before an undo
_MOST_LINES = 40


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Show what has changed, and put it back if that is wanted."""
    home, workdir = current_home(environ), current_directory()
    settings, _ = session.read_settings(flags, environ)
    wanted = session.decide_policy(settings.replace(words=()), environ).undo or UndoRequest()
    repository = git.find_repository(workdir, os.getuid(), home, environ)
    instance = state.locate(home, repository.main if repository else workdir)
    leftovers.catch_up(instance, (workdir,))
    undoing = flags.on("undo")
    if not undoing and flags.words and killed.acknowledge(instance, flags.words[0]):
        return 0
    directory = f"{instance.directory}/undo"
    name, before = _choose(SnapshotStore(directory, writing=False), workdir, flags.words)
    undo = _Undo(name, before, wanted, SnapshotStore(directory, writing=undoing), instance)
    if not undoing:
        undo.show(patch=flags.on("patch"))
        return 0
    presence = Presence(instance.state)
    try:
        presence.claim(workdir)
        tools = find_tools(programs.search_path(environ, workdir), git_needed=bool(before.repositories))
        return undo.run(tools, flags)
    finally:
        presence.leave()


class _Undo:
    """A snapshot, and the project as it is."""

    def __init__(
        self, name: str, before: Snapshot, wanted: UndoRequest, store: SnapshotStore, instance: state.Instance
    ) -> None:
        self._name, self._before, self._wanted, self._store, self._instance = name, before, wanted, store, instance

    def show(self, *, patch: bool, most: int = 0, descriptor: int = 1, keep: bool = False) -> Snapshot | None:
        """Show what has changed; return the present if it is not the same."""
        now = self._read_now(self._store if keep else None)
        comparison, moves = Comparison(self._before, now), undo_git.compare(self._before, now)
        console.write(change_lines(self._name, self._before, comparison, moves, now, most), descriptor=descriptor)
        if patch:
            console.write(patch_lines(self._store, comparison, self._before.root), descriptor=1)
        return None if comparison.difference.is_empty and not moves else now

    def run(self, tools: Tools, flags: Settings) -> int:
        """Show it, ask, and put it back."""
        now = self.show(patch=flags.on("patch"), most=_MOST_LINES, descriptor=2, keep=True)
        if now is None:
            return 0
        if not flags.on("yes") and not console.confirm("Put all of this back? [y/N] ", default=False):
            return DECLINED
        before, root = self._before, self._before.root
        present = f"{_moment()}-{self._instance.name}-{os.getpid()}{_UNDO}"
        self._store.write_snapshot(present, now)
        kept = [row.real for row in before.repositories if row.real.startswith(f"{root.rstrip('/')}/")]
        owners = any(entry.owner != (os.getuid(), os.getgid()) for entry in before.entries().values())
        problems = undo_restore.put_back(
            tools, self._store.directory, self._name, present, root, filter(os.path.isdir, kept), owners=owners
        )
        problems |= undo_git.put_back(tools, self._store, before, now)
        remaining, unreached = _remaining(before, self._read_now(None))
        for path in remaining:
            problems.setdefault(path, "it is not as it was")
        self._store.prune(self._wanted.keep + 1)
        for path, why in sorted(problems.items()):
            console.warn(f"not put back: {console.shorten(path, 300)}: {why}")
        back = f"`claudebox --undo {present}` takes that back"
        if unreached:
            console.note("undo: the rest is as it was when the session began; what changed before the snapshot reached "
                         f"it stays as it is ({unreached}, named by `claudebox --changes`); {back}")  # fmt: skip
        else:
            whole = "the rest is as it was" if problems else "the project is as it was"
            console.note(f"undo: {whole} when the session began; {back}")
        return FAILED if problems or unreached else 0

    def _read_now(self, store: SnapshotStore | None) -> Snapshot:
        """Read the project as it is; where there is a `store`, so that this can be taken back."""
        before, wanted = self._before, self._wanted
        skipped = [row.real for row in before.repositories]
        skipped += undo_refs.standing_stubs(self._instance.directory, before.root)
        scan = Scan(before.root, store.contents if store is not None else None, before, most=wanted.most,
                    names=wanted.excluded, skipped=skipped)  # fmt: skip
        return scan.run(undo_git.read_present(before, store))


def _remaining(before: Snapshot, now: Snapshot) -> tuple[list[str], int]:
    """Return what is not as it was, and of how much nobody can say that it is."""
    difference = Comparison(before, now).difference
    moves = (f"{move.real} {move.name}" for move in undo_git.compare(before, now))
    unkept = [*difference.deleted, *difference.overwritten, *difference.created, *moves]
    return unkept, len(difference.unreached)


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
    elsewhere: dict[str, None] = {}
    for name in names or [name for name in reversed(store.names()) if not name.endswith(_UNDO)]:
        found = store.read_snapshot(name)
        elsewhere[found.root] = None
        if found.root == workdir:
            return name, found
        if words:
            raise ClaudeboxError(f"that session was in `{found.root}`", hint="change to that directory")
    usual = "they are taken at the start of sessions of an agent; of `--exec` and `--shell` where `undo_keep` is set"
    others = ", ".join(f"`{root}`" for root in elsewhere)  # other checkouts, or the repository as a whole
    raise ClaudeboxError("there is no snapshot of a session in this directory",
                         hint=f"there are some of {others}: change to that directory" if others else usual)  # fmt: skip
