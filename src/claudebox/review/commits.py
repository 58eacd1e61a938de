"""The commits of a session, read by git in a sandbox that can write nothing; what it prints is untrusted."""

from __future__ import annotations

import hashlib
import os

from claudebox.base.console import clean
from claudebox.base.records import Value
from claudebox.git import state as git_state
from claudebox.git.refs import HEADS, TAGS, shorten_ref
from claudebox.git.sandbox import GitError, Limits
from claudebox.git.sides import host_side_read_only
from claudebox.review.diffs import MOST_PATCH, read_patch
from claudebox.review.pictures import LARGEST, read_picture
from claudebox.review.records import Commit
from claudebox.tables.secrets import file_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.sandbox import Tools
    from claudebox.git.sides import Side
    from claudebox.review.diffs import FileChange
    from claudebox.review.records import Allowance
    from claudebox.undo.manifest import KeptRefs


LIMITS = Limits(seconds=30.0, size=32 << 20)
_MOST_COMMITS, _MOST_FILES = 100, 100
HIDDEN = "not shown: files of this name hold secrets, and it was there before"
_FORMAT = "--format=%H%x00%an <%ae>%x00%ct%x00%S%x00%B%x00"
_PATCH = ("-c", "core.bigFileThreshold=4m", "diff-tree", "-p", "--root", "--no-commit-id", "--full-index", "-M",
          "-l400", "--no-color", "--no-ext-diff", "--no-textconv")  # fmt: skip


class Committed(Value):
    """What a repository says about a session."""

    commits: tuple[Commit, ...] = ()
    cut: int = 0  # older ones that are not shown
    touched: frozenset[str] = frozenset()  # paths in the project that they change
    head: dict[str, str] = {}  # noqa: RUF012 - values are never changed; paths in the project and their blobs
    problem: str = ""


def read_commits(
    before: KeptRefs, after: KeptRefs, root: str, tools: Tools, scratch: str, allowance: Allowance
) -> Committed:
    """Return the commits that branches and tags have now and had not when a session began."""
    commits: list[Commit] = []
    cut, problem = 0, ""
    head: dict[str, str] | None = {}
    moved = {name: value for name, value in after.refs.items()
             if value != before.refs.get(name) and value.strip("-") and name.startswith((HEADS, TAGS))}  # fmt: skip
    try:
        layout = git_state.read_layout(before.private)
        inside = os.path.relpath(layout.work_tree, root)
        prefix = "" if inside == "." else f"{inside}/"
        with host_side_read_only(tools, scratch, layout, LIMITS) as side:
            commits, cut = _list_commits(side, moved, before) if moved else ([], 0)
            head = _read_head(side, after, prefix)
            for commit in commits:
                _read_changes(side, commit, prefix, allowance)
    except (GitError, OSError) as error:
        problem = f"commits cannot be read: {clean(error.strerror or '' if isinstance(error, OSError) else str(error))}"
    if head is None:
        problem = "the last commit has too many files: some that are shown as not committed may be in it"
    touched = {path for commit in commits for change in commit.files for path in (change.path, change.origin)}
    return Committed(tuple(commits), cut, frozenset(touched), head or {}, problem)


def _list_commits(side: Side, moved: dict[str, str], before: KeptRefs) -> tuple[list[Commit], int]:
    """Return the newest commits, oldest first, and how many are left out."""
    known = sorted({value for value in before.refs.values() if side.is_id(value)})
    data = "".join(f"{row}\n" for row in (*sorted(set(moved.values())), *(f"^{value}" for value in known))).encode()
    count = int(side.box.git("rev-list", "--count", "--stdin", data=data) or b"0")
    raw = side.box.git("log", "--stdin", "--topo-order", "-z", _FORMAT, f"-n{_MOST_COMMITS}", data=data)
    words = raw.decode("utf-8", "surrogateescape").split("\0")
    names = {value: shorten_ref(name) for name, value in moved.items()}
    found = []
    for name, author, moment, source, message in zip(*(words[at::6] for at in range(5)), strict=False):
        commit = name.strip("\n")
        seconds = float(moment[:11]) if moment.isascii() and moment.isdigit() else 0.0
        if side.is_id(commit):
            found.append(Commit(commit, names.get(source, ""), author, seconds, message))
    return found[::-1], count - len(found)


def _read_changes(side: Side, commit: Commit, prefix: str, allowance: Allowance) -> None:
    raw = None if allowance.is_late else side.box.ask(*_PATCH, commit.name)
    if raw is None or len(raw) > MOST_PATCH:
        commit.note = "too large, or too late, to be shown here: git show has its changes"
        return
    for change in read_patch(raw, allowance.most_lines()):
        if len(commit.files) >= _MOST_FILES or not allowance.take_files(1):
            commit.cut += 1
            continue
        commit.files.append(change)
        change.path = prefix + change.path
        change.origin = change.origin and prefix + change.origin
        if change.how != "new" and file_looks_secret(os.path.basename(change.path)):
            change.hunks, change.note = [], HIDDEN
        allowance.limit(change)
        if change.sizes is not None:
            _add_pictures(side, change, allowance)
    if not commit.files and not commit.cut:
        commit.note = "no change of its own"


def _add_pictures(side: Side, change: FileChange, allowance: Allowance) -> None:
    sizes, pictures = [], []
    for blob in change.blobs:
        content, size = None, -1
        if side.is_id(blob) and blob.strip("0"):
            size = _size_of(side, blob)
            content = side.box.ask("cat-file", "blob", blob) if 0 <= size <= LARGEST else None
        sizes.append(size)
        pictures.append(allowance.take_picture(read_picture(content) if content else None))
    change.sizes = sizes[0], sizes[1]
    change.before, change.after = pictures


def _size_of(side: Side, blob: str) -> int:
    words = (
        side.box.ask("cat-file", "--batch-check=%(objecttype) %(objectsize)", data=f"{blob}\n".encode()) or b""
    ).split()
    return int(words[1]) if len(words) == 2 and words[0] == b"blob" and words[1].isdigit() else -1


def _read_head(side: Side, after: KeptRefs, prefix: str) -> dict[str, str] | None:
    """Return the files of the commit that was checked out at the end, None if they are too many."""
    value = after.refs.get(after.head.removeprefix("ref:").strip(), after.head)
    if not side.is_id(value):
        return {}
    raw = side.box.ask("ls-tree", "-r", "-z", "--full-tree", value)
    if raw is None:
        return None
    found = {}
    for row in raw.split(b"\0"):
        labels, _, path = row.partition(b"\t")
        found[prefix + os.fsdecode(path)] = labels.rpartition(b" ")[2].decode("ascii", "replace")
    return found


def name_blob(content: bytes, like: str) -> str:
    """Return the name that git gives a content, in the format of another name."""
    new = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return new(b"blob %d\0" % len(content) + content).hexdigest()
