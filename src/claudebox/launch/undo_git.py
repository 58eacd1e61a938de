"""Branches, tags, HEAD and index of the host's repositories, put back as a snapshot has them.

A session can change nothing else there but where submodules lie. Written by git in the sandbox of imports, each ref by
compare-and-swap.
"""

from __future__ import annotations

import hashlib
import os

from claudebox.errors import ClaudeboxError
from claudebox.launch import git_locks, git_moved
from claudebox.launch.git_sandbox import GitError, Limits
from claudebox.launch.git_sides import real_side
from claudebox.launch.git_state import Private, read_layout
from claudebox.launch.undo_refs import read_index, read_refs
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools
    from claudebox.launch.undo_manifest import KeptRefs, Snapshot
    from claudebox.launch.undo_store import SnapshotStore


class RefMove(Value):
    """A ref, HEAD or the index of a repository that is not what it was."""

    real: str
    name: str
    before: str  # nothing: it was not there
    now: str


def read_present(before: Snapshot, store: SnapshotStore | None) -> list[KeptRefs]:
    """Return the repositories of a snapshot as they are now."""
    found = []
    for row in before.repositories:
        if os.path.isfile(f"{row.private}/layout.json"):
            layout = read_layout(row.private)
            git_dir = layout.git_dir if layout.common == row.real else row.real
            content, mtime = read_index(git_dir)
            index = hashlib.sha256(content).hexdigest() if content else ""
            if store is not None and content:
                store.contents.keep_bytes(content)
            found.append(read_refs(row.private, row.real, git_dir).replace(index=index, index_mtime=mtime))
    return found


def compare(before: Snapshot, now: Snapshot) -> tuple[RefMove, ...]:
    """Return what has moved."""
    present = {row.real: row for row in now.repositories}
    moves = []
    for row in before.repositories:
        other = present.get(row.real)
        if other is None:
            continue
        moves += [
            RefMove(row.real, name, row.refs.get(name, ""), other.refs.get(name, ""))
            for name in sorted({*row.refs, *other.refs})
            if row.refs.get(name) != other.refs.get(name)
        ]
        if row.head != other.head:
            moves.append(RefMove(row.real, "HEAD", row.head, other.head))
        if row.index != other.index:
            moves.append(RefMove(row.real, "index", row.index, other.index))
    return tuple(moves)


def put_back(tools: Tools, store: SnapshotStore, before: Snapshot, now: Snapshot) -> dict[str, str]:
    """Put all of it back; return what was not, and why."""
    problems: dict[str, str] = {}
    moves = compare(before, now)
    for row in before.repositories:
        wanted = [move for move in moves if move.real == row.real]
        if not wanted:
            continue
        try:
            with Private(row.private) as private:
                problems |= _put_back(tools, store, private, row, wanted)
        except (GitError, ClaudeboxError, OSError) as error:
            problems[row.real] = error.message if isinstance(error, ClaudeboxError) else str(error)
    for row in before.repositories:
        if os.path.isfile(f"{row.private}/layout.json") and read_layout(row.private).module:
            git_moved.follow(row.private)  # its directory may be where it was before
    return problems


def _put_back(
    tools: Tools, store: SnapshotStore, private: Private, row: KeptRefs, moves: list[RefMove]
) -> dict[str, str]:
    problems: dict[str, str] = {}
    layout = private.layout()
    with real_side(tools, private.path, layout, Limits(), "undo") as real:
        # Deletions first: `a` and `a/b` cannot both be there.
        for move in sorted(moves, key=lambda move: bool(move.before)):
            if not move.name.startswith("refs/"):
                continue
            zero = "0" * len(move.before or move.now)
            words = (f"update {move.name}", move.before or zero, move.now or zero, "")
            if real.box.run("git", "update-ref", "-z", "--stdin", data=os.fsencode("\0".join(words))):
                problems[move.name] = real.box.message() or "git update-ref failed"
    for move in moves:
        try:
            if move.name == "HEAD":
                _replace(private, f"{layout.git_dir}/HEAD", os.fsencode(f"{move.before}\n"))
            elif move.name == "index" and move.before:
                content = b"".join(store.read_content(move.before))
                _replace(private, f"{layout.git_dir}/index", content, row.index_mtime)
        except (GitError, OSError) as error:
            problems[move.name] = str(error)
    private.journal(*(f"undo {move.name} {move.now or '-'} {move.before or '-'}" for move in moves))
    return problems


def _replace(private: Private, path: str, content: bytes, mtime: int = 0) -> None:
    git_locks.replace_locked(private, path, content, lambda: True, mtime)
