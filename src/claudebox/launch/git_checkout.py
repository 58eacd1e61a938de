"""HEAD and index of one checkout: compared on both sides with what they last had in common, and brought in step.

Never the index file of the agent: a forged one lies to `git status` about what the next commit contains. Its rows that
differ from a commit are read, checked and written into a copy of the real index, by a git that sees no work tree.
"""

from __future__ import annotations

import os
import time

from claudebox.files import read_small
from claudebox.launch import git_locks, git_operations
from claudebox.launch.git_merge import APART, COMMITTED, IndexRow, merge_rows
from claudebox.launch.git_names import HEADS, objection, objection_to_new, remote_names, shorten_ref
from claudebox.launch.git_sandbox import GitError
from claudebox.launch.git_state import INTO, OUT
from claudebox.launch.git_submodules import GITLINK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.launch.git_sides import Side
    from claudebox.launch.git_state import Base, Layout, Private

    Rows = dict[bytes, IndexRow]

_MODES = ("100644", "100755", "120000", "160000", "000000")
_ATTEMPTS = 5
_MOST_ROWS = 2000
# The real index is compared and changed as a copy, and put in place if it is still the same by then.
_COPY = 'rm -f /tmp/index; cp -p "$GIT_DIR/index" /tmp/index 2>/dev/null; GIT_INDEX_FILE=/tmp/index'
_WRITE_INSIDE = (
    'touch -r "$GIT_DIR/index" /tmp/time; git update-index -z --index-info && touch -r /tmp/time "$GIT_DIR/index"'
)


class Checkout:
    """One checkout in one import."""

    def __init__(
        self,
        private: Private,
        layout: Layout,
        agent: Side,
        real: Side,
        writer: Callable[[], Side],
        *,
        outward: bool = True,
    ) -> None:
        self._private, self._layout = private, layout
        self._agent, self._real = agent, real
        self._writer = writer  # opens the agent's repository to be written
        self._outward = outward
        self.head = ""  # the new HEAD of the real repository, if it changed
        self.notes: list[str] = []
        name = layout.checkout
        self._file = "rows" if name == "." else f"rows.{os.path.basename(name)}"
        self._reference = ""  # the commit that both indexes are compared with
        self._saved: Rows = {}  # what they had in common, in comparison with it
        self._intended: dict[str, Rows] = {}  # what an import that was cut off was about to write, by direction
        self._mine: Rows | None = None
        self._theirs: Rows | None = None
        self._status: tuple[int, ...] | None = None  # of the real index that was read

    def compare(self, start: str) -> None:
        """Compare the agent's index with a commit that both sides know: that of the last time, or the `start`."""
        loaded = self._load()
        if loaded is None:  # at once: what the base says of refs goes on before the index does
            self._save(start, {})
        self._reference, self._saved, self._intended = loaded or (start, {}, {})
        self._begin_theirs()
        self._mine = self._agent.rows(self._reference)
        if self._mine is None:  # the host may have pruned it
            self._real.read_rows()
            self._reference, self._saved, self._intended = self._real.head()[1], {}, {}
            self._begin_theirs()
            self._mine = self._agent.rows(self._reference)

    def read_theirs(self) -> None:
        """Take up the comparison of the real index, which went on meanwhile."""
        self._theirs = self._real.read_rows()

    def _begin_theirs(self) -> None:
        self._status = _identity(f"{self._layout.git_dir}/index")
        self._real.begin_rows(self._reference, _COPY)

    def staged_modes(self) -> dict[bytes, str]:
        """Return paths and modes of what the agent's index has otherwise than the real one, and than both had."""
        theirs, saved = ({path: row.now for path, row in rows.items()} for rows in (self._theirs or {}, self._saved))
        rows = (self._mine or {}).items()
        return {path: row.mode for path, row in rows if row.now not in (theirs.get(path), saved.get(path))}

    def staged_objects(self) -> set[str]:
        """Return the objects that the agent's index or its detached HEAD need."""
        found = {row.oid for row in (self._mine or {}).values() if row.mode != GITLINK and row.oid.strip("0")}
        head, commit = self._agent.head()
        if commit and head == commit and commit not in self._real.refs.values():
            found.add(commit)
        return found

    def sync(self, base: Base, refused: frozenset[bytes]) -> bool:
        """Bring HEAD and index in step; return whether the agent's have come back entirely.

        `refused` are paths of the agent's index that the real one must not have. While there are any, both stay as
        they are: a HEAD that has them, and an index that has not, would look as if the user had removed them.
        """
        if refused:
            return False
        inside = git_operations.under_way(f"{self._private.path}/own/{self._layout.checkout}")
        if inside:
            self.notes.append(git_operations.describe(inside))
            git_operations.remember(self._private, self._layout)
            return False
        try:
            if not git_operations.put_aside(self._private, self._layout, self.notes) or not self._sync_head(base):
                return False
            base.heads[self._layout.checkout], commit = self._real.head()
            return self._sync_index(commit)
        except GitError as error:  # the branches have come back all the same
            self.notes.append(f"HEAD and index stay as they are: {error}")
            return False

    def remember(self) -> None:
        """Write down the index as both sides have it at the start of a session."""
        commit = self._real.head()[1]
        if self._private.read(self._file) is None:
            rows = self._real.rows(commit)
            if rows is not None:
                self._save(commit, rows)

    def _sync_head(self, base: Base) -> bool:
        """Bring HEAD in step; return whether both sides are at the same commit, by the same way."""
        before = base.heads.get(self._layout.checkout)
        (mine, my_commit), (theirs, their_commit) = self._agent.head(), self._real.head()
        if not mine:
            self.notes.append(f"HEAD inside names no branch and no commit: write `{theirs}` into `.git/HEAD` there")
        elif mine != theirs and theirs == before:
            if self._outward and self._acceptable(mine, my_commit):
                self._private.intend_head(self._layout.checkout, OUT, mine)
                self._write_head(theirs, their_commit, mine, my_commit)
        elif mine != theirs and mine == before:
            self._private.intend_head(self._layout.checkout, INTO, theirs)
            self._write_head_inside(theirs)
        elif mine != theirs:
            self.notes.append("HEAD moved on both sides: yours stays")
        return self._agent.head() == self._real.head()

    def _acceptable(self, head: str, commit: str) -> bool:
        if not head.startswith("ref: "):
            return bool(commit) and not self._real.lacks([commit]) and not self._layout.only
        name = head[5:]
        refs = self._real.refs
        if name in refs:
            reason = objection(name)
        else:  # the next commit would make it
            reason = objection_to_new(name, map(shorten_ref, refs), remote_names(self._layout.common, refs))
        if reason or not name.startswith(HEADS) or self._layout.only not in ("", name):
            self.notes.append(f"HEAD inside is `{name}`: yours stays")
            return False
        return refs.get(name, "") == commit

    def _write_head(self, before: str, commit_before: str, head: str, commit: str) -> None:
        path = f"{self._layout.git_dir}/HEAD"
        if self._layout.ref_format != "files":
            words = ("symbolic-ref", "-m", "claudebox", "HEAD", head[5:])
            self._real.box.git(*(words if head.startswith("ref: ") else ("update-ref", "--no-deref", "HEAD", commit)))
            self.head = head
            return
        expected = f"{before}\n".encode("utf-8", "surrogateescape")
        content = f"{head}\n".encode("utf-8", "surrogateescape")
        if git_locks.replace_locked(self._private, path, content, lambda: read_small(path) == expected):
            self._private.journal(f"head {self._layout.checkout} {before} {head}")
            self._write_reflog(before, commit_before, head, commit)
            self.head = head

    def _write_reflog(self, before: str, commit_before: str, head: str, commit: str) -> None:
        """Add what `git switch -` looks for."""
        names = (text.removeprefix(f"ref: {HEADS}") for text in (before, head))
        old, new = (value or "0" * len(commit or commit_before) for value in (commit_before, commit))
        move = "checkout: moving from {} to {}".format(*names)
        row = f"{old} {new} claudebox <session@claudebox> {int(time.time())} +0000\t{move}\n"
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(f"{self._layout.git_dir}/logs/HEAD", flags)
        except OSError:
            return
        os.write(descriptor, row.encode("utf-8", "surrogateescape"))
        os.close(descriptor)

    def _write_head_inside(self, head: str) -> None:
        if objection(head.removeprefix("ref: ")) and head.startswith("ref: "):
            return
        with self._writer() as side:
            if head.startswith("ref: "):
                side.box.ask("symbolic-ref", "-m", "claudebox: host", "HEAD", head[5:])
            else:
                side.box.ask("update-ref", "--no-deref", "-m", "claudebox: host", "HEAD", head)

    def _sync_index(self, commit: str) -> bool:
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._begin_theirs()
                self.read_theirs()
            mine, theirs = self._mine, self._theirs
            if mine is None or theirs is None:
                why = "holds a conflict, or cannot be read (then remove it inside, and `git reset` makes it anew)"
                self.notes.append(f"the index inside {why}: yours stays")
                return False
            self._reconcile(mine, theirs)
            out, into, parted = merge_rows(mine, theirs, self._saved)
            lacking = self._lacking(out) if self._outward else ()
            strange = [path for path in out if path in lacking or not _is_sane(path, *out[path])]
            for path in strange:
                del out[path]
            if out or into:
                self._intend({path: mine.get(path) for path in out}, {path: theirs.get(path) for path in into})
            if not out or not self._outward or self._write_index(out):
                break
        else:
            self.notes.append("the index of your repository changes all the time: it stays as it is")
            return False
        if (into and not self._write_index_inside(into)) or (out and not self._outward):
            return False  # the base stays as it was: that is still to be done
        if parted:
            self.notes.append(f"staged on both sides, yours stay: {len(parted)} paths")
        common = {path: row for path, row in mine.items() if path not in into}
        common |= {path: theirs[path] for path in into if path in theirs}
        reference = self._reference
        if len(common) > _MOST_ROWS:  # another commit is nearer by now
            reference, common = commit, self._real.rows(commit) or {}
        self._intended = {}
        self._save(reference, {**common, **dict.fromkeys((*parted, *strange), APART)})
        return not parted and not strange

    def _lacking(self, rows: dict[bytes, tuple[str, str]]) -> set[bytes]:
        """Return the paths whose content has not come back: an index that names it could not be committed."""
        wanted = {path: oid for path, (mode, oid) in rows.items() if mode not in (GITLINK, "000000")}
        missing = set(self._real.lacks(sorted(set(wanted.values()))))
        return {path for path, oid in wanted.items() if oid in missing}

    def _write_index(self, rows: dict[bytes, tuple[str, str]]) -> bool:
        """Write rows into the copy of the real index and put it in place, if that is still what was read."""
        path, status = f"{self._layout.git_dir}/index", self._status
        box = self._real.box
        line = "GIT_INDEX_FILE=/tmp/index git update-index -z --index-info && cat /tmp/index"
        if box.script(line, data=_rows_to_write(rows)):
            raise GitError(f"the index cannot be written: {box.message()}")
        content = box.output()
        # With the time of the old one: an entry as young as that may have changed within its second, and git looks.
        mtime = status[2] if status is not None else 0
        return git_locks.replace_locked(self._private, path, content, lambda: _identity(path) == status, mtime)

    def _write_index_inside(self, rows: dict[bytes, tuple[str, str]]) -> bool:
        """Write rows into the agent's index; its time stays, for the same reason."""
        with self._writer() as side:
            return side.box.script(_WRITE_INSIDE, data=_rows_to_write(rows)) == 0

    def _intend(self, out: dict[bytes, IndexRow | None], into: dict[bytes, IndexRow | None]) -> None:
        """Write down the rows that both indexes will have in common, before they are written."""
        rows = {OUT: out, INTO: into}
        self._intended = {way: {path: row or COMMITTED for path, row in rows[way].items()} for way in rows}
        self._save(self._reference, self._saved)

    def _reconcile(self, mine: Rows, theirs: Rows) -> None:
        """Take up into what both have in common the rows that were written by an import before it was cut off."""
        for way, seen in ((OUT, theirs), (INTO, mine)):
            for path, row in self._intended.pop(way, {}).items():
                found = seen.get(path, COMMITTED)
                if found.now == row.now:
                    self._saved.pop(path, None)
                    self._saved |= {path: found} if found != COMMITTED else {}

    def _load(self) -> tuple[str, Rows, dict[str, Rows]] | None:
        words = (self._private.read(self._file) or b"").split(b"\0")
        if len(words) < 2:
            return None
        found: dict[str, Rows] = {"": {}, OUT: {}, INTO: {}}
        for word in words[1:-1]:
            head, _, path = word.partition(b"\t")
            *way, mode, oid, mode_before, oid_before = head.decode().split(" ")
            found["".join(way)][path] = IndexRow(mode, oid, mode_before, oid_before)
        return words[0].decode(), found.pop(""), found

    def _save(self, reference: str, rows: Rows) -> None:
        """Write down what both indexes have in common now, as a difference to a commit, and what is intended."""
        content = b"".join(
            f"{way}{row.mode} {row.oid} {row.mode_before} {row.oid_before}".encode() + b"\t" + path + b"\0"
            for way, some in (("", rows), *((f"{way} ", some) for way, some in self._intended.items()))
            for path, row in some.items()
        )
        self._private.write(self._file, reference.encode() + b"\0" + content)


def _is_sane(path: bytes, mode: str, oid: str) -> bool:
    """Return whether a row can stand in the user's index; `update-index` checks paths too, but stops at a bad one."""
    parts = path.split(b"/")
    folded = {part.lower().rstrip(b" .") for part in parts}
    return mode in _MODES and oid.isalnum() and not folded & {b"", b".git", b"git~1"}  # `.` and `..` fold to b""


def _rows_to_write(rows: dict[bytes, tuple[str, str]]) -> bytes:
    removed = [path for path, (mode, _) in rows.items() if mode == "000000"]  # first: a file may make room
    kept = {path: row for path, row in rows.items() if row[0] != "000000"}
    zero = "0" * len(next(iter(rows.values()))[1])
    return b"".join(
        [f"0 {zero}".encode() + b"\t" + path + b"\0" for path in removed]
        + [f"{mode} {oid} 0".encode() + b"\t" + path + b"\0" for path, (mode, oid) in kept.items()]
    )


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
