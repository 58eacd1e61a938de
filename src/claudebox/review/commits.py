"""The commits of a session, read by git in a sandbox that can write nothing; what it prints is untrusted."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from claudebox.base.console import clean
from claudebox.git.refs import HEADS, TAGS, shorten_ref
from claudebox.git.sandbox import GitError, Limits
from claudebox.git.sides import host_side_read_only
from claudebox.review.diffs import MOST_PATCH, read_patch
from claudebox.review.pictures import LARGEST, read_picture
from claudebox.review.records import Commit
from claudebox.tables.secrets import file_looks_secret
from claudebox.undo.contents import MOST_TEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.git.sandbox import Tools
    from claudebox.git.sides import Side
    from claudebox.git.state import Layout
    from claudebox.review.diffs import FileChange
    from claudebox.review.records import Allowance
    from claudebox.undo.manifest import KeptRefs


LIMITS = Limits(seconds=30.0, size=32 << 20)
_MOST_COMMITS, _MOST_FILES = 100, 100
HIDDEN = "not shown: files of this name hold secrets, and it was there before"
_FORMAT = "--format=%H%x00%an <%ae>%x00%ct%x00%S%x00%B%x00"
_PATCH = ("-c", "core.bigFileThreshold=4m", "diff-tree", "-p", "--root", "--no-commit-id", "--full-index", "-M",
          "-l400", "--no-color", "--no-ext-diff", "--no-textconv")  # fmt: skip


@dataclass
class Committed:
    """What a repository says about a session; paths are those in the project."""

    commits: list[Commit] = field(default_factory=list)
    cut: int = 0  # older ones that are not shown
    touched: set[str] = field(default_factory=set)  # paths that they change
    head: dict[str, str] = field(default_factory=dict)  # paths of the commit that was checked out, and their blobs
    contents: dict[str, bytes | None] = field(default_factory=dict)  # of those that were touched, by blob
    problems: list[str] = field(default_factory=list)


def add_commits(
    found: Committed, layout: Layout, before: KeptRefs, after: KeptRefs, root: str, tools: Tools, scratch: str,
    allowance: Allowance,
) -> None:  # fmt: skip
    """Add the commits that branches and tags of a repository have now and had not when a session began."""
    moved = {name: value for name, value in after.refs.items()
             if value != before.refs.get(name) and value.strip("-") and name.startswith((HEADS, TAGS))}  # fmt: skip
    try:
        inside = os.path.relpath(layout.work_tree, root)
        prefix = "" if inside == "." else f"{inside}/"
        with host_side_read_only(tools, scratch, layout, LIMITS) as side:
            commits, cut = _list_commits(side, moved, before) if moved else ([], 0)
            for commit in commits:
                _read_changes(side, commit, prefix, allowance)
            found.commits += commits
            found.cut += cut
            head = _read_head(side, after, prefix)
            if head is None:
                found.problems.append("the last commit has too many files: what is shown as not committed may be in it")
                return
            found.head |= head
            files = (change for commit in commits for change in commit.files)
            touched = {path for change in files for path in (change.path, change.origin) if path}
            found.touched |= touched
            blobs = _read_blobs(side, (head.get(path, "") for path in touched), MOST_TEXT)
            found.contents |= {name: content for name, (_, content) in blobs.items()}
    except (GitError, OSError) as error:
        why = clean(error.strerror or "" if isinstance(error, OSError) else str(error))
        found.problems.append(f"commits cannot be read: {why}")


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
        if len(commit.files) >= _MOST_FILES or not allowance.take_file():
            commit.cut += 1
            continue
        commit.files.append(change)
        change.path = prefix + change.path
        change.origin = change.origin and prefix + change.origin
        hide_secrets(change)
        allowance.limit(change)
    binary = [change for change in commit.files if change.sizes is not None]
    blobs = _read_blobs(side, (name for change in binary for name in change.blobs), LARGEST)
    for change in binary:
        (old, before), (new, after) = (blobs.get(name, (-1, None)) for name in change.blobs)
        change.sizes = old, new
        change.before, change.after = (allowance.take_picture(read_picture(row or b"")) for row in (before, after))
    if not commit.files and not commit.cut:
        commit.note = "no change of its own"


def hide_secrets(change: FileChange) -> bool:
    """Show nothing of a file that was there before, if files of its name hold secrets; return whether it is so."""
    if change.how != "new" and any(file_looks_secret(os.path.basename(path)) for path in (change.path, change.origin)):
        change.hunks, change.sizes, change.note = [], None, HIDDEN
        return True
    return False


def _read_blobs(side: Side, names: Iterable[str], most: int) -> dict[str, tuple[int, bytes | None]]:
    """Return sizes of blobs, and the contents of those that are not too large."""
    wanted = [name for name in dict.fromkeys(names) if side.is_id(name) and name.strip("0")]
    raw = side.box.ask("cat-file", "--batch-check", data="".join(f"{name}\n" for name in wanted).encode()) or b""
    found: dict[str, tuple[int, bytes | None]] = {}
    small, room = [], LIMITS.size // 2
    for words in map(bytes.split, raw.split(b"\n")):
        if len(words) == 3 and words[1] == b"blob":
            name, size = words[0].decode("ascii", "replace"), int(words[2])
            found[name] = size, None
            if size <= min(most, room):
                small.append(name)
                room -= size
    raw = side.box.ask("cat-file", "--batch", data="".join(f"{name}\n" for name in small).encode()) or b""
    at = 0
    for name in small:
        size, at = found[name][0], raw.find(b"\n", at) + 1
        found[name] = size, raw[at : at + size]
        at += size + 1
    return found


def _read_head(side: Side, after: KeptRefs, prefix: str) -> dict[str, str] | None:
    """Return the files of the commit that was checked out at the end, None if they are too many."""
    value = after.refs.get(after.head.removeprefix("ref:").strip(), after.head)
    if not side.is_id(value):
        return {}
    if (raw := side.box.ask("ls-tree", "-r", "-z", "--full-tree", value)) is None:
        return None
    rows = (row.partition(b"\t") for row in raw.split(b"\0"))
    return {
        prefix + os.fsdecode(path): labels.rpartition(b" ")[2].decode("ascii", "replace") for labels, _, path in rows
    }


def name_blob(content: bytes, like: str) -> str:
    """Return the name that git gives a content, in the format of another name."""
    new = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return new(b"blob %d\0" % len(content) + content).hexdigest()
