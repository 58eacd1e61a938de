"""Branches, tags, HEAD and index of the host's repositories: read without git, and restored by an undo.

A session can change nothing else there except where submodules lie. They are written by git in the sandbox of imports,
refs by compare-and-swap, HEAD and index under git's own locks; what moved since the session stays.
"""

from __future__ import annotations

import os
import stat

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import list_names, read_small
from claudebox.base.records import Value
from claudebox.git.facts import read_entries
from claudebox.git.state import parse_refs
from claudebox.undo.manifest import KeptRefs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.git.refs import Move
    from claudebox.git.sandbox import Tools
    from claudebox.git.sides import Side
    from claudebox.git.state import Private
    from claudebox.undo.manifest import Snapshot
    from claudebox.undo.store import SnapshotStore


_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_INDEX_LIMIT = 512 << 20
_STAGE = 0x3000  # in the flags of an index entry
_OTHER = "-"  # the value of a ref of another worktree consists of these


def read_refs(private: str, common: str, git_dir: str, work_tree: str, only: str) -> KeptRefs:
    """Return branches, tags and HEAD of a git directory; in an agent's worktree the session owns `only` one branch.

    Refs of other worktrees have dashes for a value: this session does not change them.
    """
    names = [name for kind in ("heads", "tags") for name in _loose(f"{common}/refs/{kind}", f"refs/{kind}")]
    loose = {name: os.fsdecode((read_small(f"{common}/{name}") or b"").strip()) for name in names}
    # After the loose ones, which a gc may be moving there.
    packed = parse_refs(os.fsdecode(read_small(f"{common}/packed-refs", limit=1 << 28) or b""))
    refs = {name: value for name, value in packed.items() if name.startswith(("refs/heads/", "refs/tags/"))}
    refs |= {name: value for name, value in loose.items() if value}
    others = _list_others(common, git_dir, work_tree, only, refs)
    refs = {
        name: _OTHER * len(value) if name in others else value
        for name, value in refs.items()
        if value and not value.startswith("ref:")
    }
    head = os.fsdecode(read_small(f"{git_dir}/HEAD") or b"").strip()
    return KeptRefs(private, common, head, refs)


def _list_others(common: str, git_dir: str, work_tree: str, only: str, names: Iterable[str]) -> set[str]:
    """Return the refs that are checked out in other worktrees, or arrived from agents there."""
    from claudebox.git.checkout import other_heads
    from claudebox.git.state import Layout

    if only:
        mine = f"-{os.path.basename(git_dir)}/"
        return {name for name in names if name != only and mine not in name}
    places = [f"{common}/worktrees/{name}" for name in list_names(f"{common}/worktrees")]
    top = os.fsencode(f"{work_tree}/")
    inner = (place for place in places if (read_small(f"{place}/gitdir") or b"").startswith(top))
    within = {place: os.fsdecode(read_small(f"{place}/HEAD") or b"").strip() for place in inner}
    arrived = [f"-{os.path.basename(place)}/" for place in places if place != git_dir and place not in within]
    heads = other_heads(Layout(common, git_dir, work_tree, ()), names, within)
    return {
        name for name in names if name in heads or ("/claudebox/" in name and any(mark in name for mark in arrived))
    }


def read_index(git_dir: str) -> tuple[bytes, int]:
    """Return the index of a git directory and its mtime; empty if there is none."""
    try:
        descriptor = os.open(f"{git_dir}/index", _OPEN)
    except OSError:
        return b"", 0
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _INDEX_LIMIT:
            return b"", 0
        return file.read(), status.st_mtime_ns


def with_index(row: KeptRefs, content: bytes, mtime: int, keep: Callable[[bytes], bytes] | None) -> KeptRefs:
    """Add the index to a repository; `keep` stores it."""
    if not content:
        return row
    length = len(next(iter(row.refs.values()), "")) // 2 or 20
    name = keep(content).hex() if keep is not None else syscalls.sha256(content)
    return row.replace(index=name, index_mtime=mtime, staged=_digest_staged(content, length))


def _digest_staged(index: bytes, digest: int) -> str:
    """Return a digest of an index without the times, which `git status` renews; "" for an empty index."""
    if index[:4] != b"DIRC":
        return syscalls.sha256(index)
    found = syscalls.new_sha256()
    try:
        rows = [(name, index[at + 24 : at + 28] + index[at + 40 : at + 40 + digest], flags & _STAGE)
                for name, at, flags in read_entries(index, digest)]  # fmt: skip
    except (IndexError, ValueError):
        return syscalls.sha256(index)
    for name, row, stage in rows:
        found.update(b"%s\0%s%d" % (name, row, stage))
    return found.digest().hex() if rows else ""


def _loose(directory: str, name: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _loose(entry.path, f"{name}/{entry.name}")
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            yield f"{name}/{entry.name}"


def read_present(before: Snapshot, keep: Callable[[bytes], bytes] | None) -> list[KeptRefs]:
    """Return the repositories of a snapshot as they are now; `keep` stores an index."""
    from claudebox.git.state import has_state, read_layout

    found = []
    for row in before.repositories:
        if has_state(row.private):
            layout = read_layout(row.private)
            git_dir = layout.git_dir if layout.common == row.real else row.real
            refs = read_refs(row.private, row.real, git_dir, layout.work_tree, layout.only)
            found.append(with_index(refs, *read_index(git_dir), keep))
    return found


class RefMove(Value):
    """A ref, HEAD or the index of a repository that changed."""

    real: str
    name: str
    before: str  # empty: it was not there
    now: str


def compare_refs(before: Snapshot, now: Snapshot) -> tuple[RefMove, ...]:
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
            and _OTHER not in (row.refs.get(name, "")[:1], other.refs.get(name, "")[:1])
        ]
        if row.head != other.head:
            moves.append(RefMove(row.real, "HEAD", row.head, other.head))
        if row.staged != other.staged:
            moves.append(RefMove(row.real, "index", row.index, other.index))
    return tuple(moves)


class RefComparison:
    """What an undo does to repositories: it moves back what the session moved, unless it moved since or is `held`.

    HEAD, the branch that is checked out and the index go back together or not at all: `bound` stays for that reason.
    """

    def __init__(
        self, start: Snapshot, end: Snapshot | None, now: Snapshot, held: Iterable[tuple[str, str]] = ()
    ) -> None:
        session = compare_refs(start, end if end is not None else now)
        since = compare_refs(end, now) if end is not None else ()
        moved, total = {*held, *((row.real, row.name) for row in since)}, compare_refs(start, now)
        ours = {(row.real, row.name) for row in session}
        self.session = session
        bound: set[tuple[str, str]] = set()
        present = {row.real: row.head for row in now.repositories}
        for row in start.repositories:
            names = {"HEAD", "index", _branch(present.get(row.real, ""))}
            if (row.real, "HEAD") in ours:
                names.add(_branch(row.head))
            group = {(row.real, name) for name in names}
            if group & ours and group & moved:
                bound |= group
        twice = moved & ours | bound
        self.since = tuple(row for row in since if (row.real, row.name) not in ours | bound)
        self.touched_twice = tuple(row for row in total if (row.real, row.name) in twice)
        self.bound = tuple(row for row in total if (row.real, row.name) in bound)
        self.back = tuple(row for row in total if (row.real, row.name) in ours - twice)


def put_back(
    tools: Tools, store: SnapshotStore, before: Snapshot, now: Snapshot, moves: tuple[RefMove, ...]
) -> dict[str, str]:
    """Move these back; return what failed, and why."""
    from claudebox.git.sandbox import GitError
    from claudebox.git.state import Private

    problems: dict[str, str] = {}
    staged = {row.real: row for row in now.repositories}
    for row in before.repositories:
        wanted = [move for move in moves if move.real == row.real]
        if not wanted:
            continue
        try:
            with Private(row.private) as private:
                problems |= _put_back(tools, store, private, (row, staged[row.real]), wanted)
        except (GitError, ClaudeboxError, OSError) as error:
            problems[row.real] = error.message if isinstance(error, ClaudeboxError) else str(error)
    return problems


def _put_back(
    tools: Tools, store: SnapshotStore, private: Private, rows: tuple[KeptRefs, KeptRefs], moves: list[RefMove]
) -> dict[str, str]:
    from claudebox.git.refs import Move, render_updates
    from claudebox.git.sandbox import Limits
    from claudebox.git.sides import host_side

    problems: dict[str, str] = {}
    layout, (before, now) = private.state().layout, rows
    changed = {row.name: row for row in moves if row.name in ("HEAD", "index", _branch(before.head), _branch(now.head))}
    refs = sorted((row for row in moves if row.name.startswith("refs/")), key=lambda row: bool(row.before))
    with host_side(tools, private.path, layout, Limits(), "undo") as real:
        for row in refs:  # deletions first: `a` and `a/b` cannot both be there
            data = render_updates([Move(row.name, row.now, row.before)], len(real.empty_tree))
            if row.name not in changed and real.box.ask("update-ref", "-z", "--stdin", data=data) is None:
                problems[row.name] = real.box.message() or "git update-ref failed"
        if changed:
            together = [Move(row.name, row.now, row.before) for row in refs if row.name in changed]
            if why := _settle(real, store, layout.git_dir, rows, together, back="HEAD" in changed):
                problems |= dict.fromkeys(changed, why)
    return problems


def _settle(
    real: Side, store: SnapshotStore, git_dir: str, rows: tuple[KeptRefs, KeptRefs], moves: list[Move], *, back: bool
) -> str:
    """Move the checked-out branch, HEAD and index back, all of them or none; return why not."""
    from claudebox.git.checkout import CONFLICTED, settle_side
    from claudebox.git.sandbox import GitError

    before, now = rows
    content, _ = read_index(git_dir)
    head = os.fsdecode(read_small(f"{git_dir}/HEAD") or b"").strip()
    if head != now.head or with_index(now, content, 0, None).staged != now.staged:
        return "it has just changed"
    try:
        kept = store.read_content(bytes.fromhex(before.index)) if before.index else b""
        trees = _write_tree(real, content), _write_tree(real, kept)
        if trees[1] == CONFLICTED:
            return "the index had conflicts then"
        return settle_side(real, "undo", trees, (head, before.head if back else ""), moves, "claudebox: undo")[0]
    except (GitError, OSError) as error:
        return str(error)


def _write_tree(real: Side, index: bytes) -> str:
    """Return the tree of an index, "" for none."""
    from claudebox.git.checkout import CONFLICTED

    if not index:
        return ""
    failed = real.box.script("cat >/tmp/index; GIT_INDEX_FILE=/tmp/index git write-tree", data=index)
    return CONFLICTED if failed else os.fsdecode(real.box.output()).strip()


def _branch(head: str) -> str:
    return head.removeprefix("ref:").strip() if head.startswith("ref:") else ""
