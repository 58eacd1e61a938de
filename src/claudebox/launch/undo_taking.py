"""Taking the snapshot of a session, in a process beside it: the project, its repositories, what is not kept."""

from __future__ import annotations

import os
import select

from claudebox.launch import undo_refs, undo_seed
from claudebox.launch.git_sandbox import GitError, Tools
from claudebox.launch.undo_manifest import LeftOut
from claudebox.launch.undo_scan import Scan
from claudebox.launch.undo_store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import UndoRequest
    from claudebox.launch.undo_seed import Seed
    from claudebox.plan.model import Plan

_SMALL = 5000  # names: so few are written down before the payload runs


class CutOffError(Exception):
    """The session has ended, and the snapshot has to."""


class Taking:
    """The steps, one after the other."""

    def __init__(self, plan: Plan, wanted: UndoRequest, gate: int) -> None:
        self._plan, self._wanted, self._gate = plan, wanted, gate
        self._since = 0
        self._store = SnapshotStore(wanted.directory)
        rows = [own for own in plan.git if own.real]
        self._indexes = {own.private: undo_refs.read_index(own.git_dir or own.real) for own in rows}
        self._refs = [
            undo_refs.read_refs(own.private, own.real, own.git_dir or own.real)
            for own in rows
            if own.ref_format == "files"
        ]
        skipped = [own.real for own in rows]
        skipped += [stub.path for stub in plan.stubs]
        skipped += undo_refs.standing_stubs(os.path.dirname(wanted.directory), plan.workdir)
        home = wanted.directory.rpartition("/.claudebox/")[0]
        seeds = [
            undo_seed.Seed(own, plan.workdir, *self._indexes[own.private])
            for own in rows
            if own.worktree and own.stores and not undo_seed.converts(own, home)
        ]
        known = self._store.newest_like(plan.workdir)
        self._scan = Scan(plan.workdir, self._store.contents, known, most=wanted.most, names=wanted.excluded,
                          skipped=skipped, seeds=seeds)  # fmt: skip

    def look(self) -> bool:
        """Look at everything, and read what git does not have; return whether little is left to do."""
        return not self._scan.look(self._released) and self._scan.size < _SMALL

    def complete(self) -> None:
        """Read the rest, while the agent runs."""
        self._scan.complete(self._released, self._fetch)

    def _released(self) -> int:
        """Return since when the agent has been running."""
        if select.select([self._gate], [], [], 0)[0]:
            said = os.read(self._gate, 64)
            if not said:
                raise CutOffError
            self._since = int(said)
        return self._since

    def _fetch(self, seed: Seed, wanted: list[tuple[str, int]]) -> Iterator[bytes | None]:
        path = next((row.value for row in self._plan.variables if row.name == "PATH"), "/usr/bin:/bin")
        tools = Tools(self._plan.bwrap, path, self._plan.seccomp)
        try:
            yield from undo_seed.read_objects(tools, seed.own, self._wanted.directory, wanted)
        except GitError:
            return

    def write(self, session: str) -> None:
        """Write it down, with all that it does not keep."""
        refs = []
        for row in self._refs:
            content, mtime = self._indexes[row.private]
            index = self._store.contents.keep_bytes(content).hex() if content else ""
            refs.append(row.replace(index=index, index_mtime=mtime))
        snapshot = self._scan.snapshot(refs)
        left_out = dict(snapshot.left_out)
        for mount in self._plan.mounts:
            if mount.kind == "bind" and mount.role == "asked":
                left_out[mount.source] = LeftOut("outside", "let in with `--mount-rw`: nothing in it is kept")
        for own in self._plan.git:
            if own.real and own.ref_format != "files":
                left_out[own.real] = LeftOut("outside", f"its branches, in the {own.ref_format} format, are not kept")
        self._store.write_snapshot(session, snapshot.replace(left_out=left_out))

    def write_partial(self) -> None:
        """Keep what was read for the next snapshot."""
        self._store.write_partial(self._scan.snapshot())

    def prune(self) -> None:
        """Forget the oldest snapshots."""
        self._store.prune(self._wanted.keep)
