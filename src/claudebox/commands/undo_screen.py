"""What has changed since a session began, in lines: what is gone first."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from claudebox.console import clean, paint
from claudebox.files import open_beneath, read_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.launch.undo_compare import Comparison
    from claudebox.launch.undo_git import RefMove
    from claudebox.launch.undo_manifest import KeptEntry, Snapshot
    from claudebox.launch.undo_store import SnapshotStore

_MOST_TEXT = 1 << 20  # bytes of a file that is compared line by line


def change_lines(
    name: str, before: Snapshot, comparison: Comparison, moves: Iterable[RefMove], now: Snapshot, most: int
) -> Iterator[str]:
    """Yield what has changed; at `most` so many paths of a kind, if that is not 0."""
    difference = comparison.difference
    yield f"since {clean(name)}:"
    titles = (("deleted", "red"), ("overwritten", "yellow"), ("created", "green"))
    for title, style in titles:
        paths = [_shown(path, comparison, now) for path in _tops(title, comparison)]
        if paths:
            yield paint(f"{title} ({len(getattr(difference, title))})", style)
            yield from (f"  {path}" for path in (paths[:most] if most else paths))
            if most and len(paths) > most:
                yield f"  … and {len(paths) - most} more: `claudebox --changes` shows them"
    rows = [_move(move) for move in moves]
    if rows:
        yield "git"
        yield from (f"  {row}" for row in rows)
    if difference.is_empty and not rows:
        yield "nothing has changed" + (" that a snapshot keeps" if difference.left else "")
    if difference.left:
        yield "not kept, stays as it is"
        yield from (f"  {clean(path)}: {clean(why)}" for path, why in sorted(difference.left.items()))
    for path in before.late:
        yield f"  {clean(path)}: changed before the snapshot reached it; something in it may be missing"


def _tops(title: str, comparison: Comparison) -> Iterator[str]:
    """Yield paths without those in a directory that came or went as a whole."""
    paths = getattr(comparison.difference, title)
    entries = comparison.before if title == "deleted" else comparison.now
    found = set(paths)
    for path in paths:
        above = os.path.dirname(path)
        if title == "overwritten" or above not in found or entries[above].kind != "d":
            yield path


def _shown(path: str, comparison: Comparison, now: Snapshot) -> str:
    old, new = comparison.before.get(path), comparison.now.get(path)
    entry = old or new
    text = clean(path) + ("/" if entry is not None and entry.kind == "d" else "")
    if old is not None and new is not None and old.kind == new.kind and old.content == new.content:
        return f"{text} ({_nuance(old, new)})"
    if path in now.left_out:
        return f"{text} ({clean(now.left_out[path].text)}: cannot be brought back after an undo)"
    return text


def _nuance(old: KeptEntry, new: KeptEntry) -> str:
    if old.mode != new.mode:
        return f"mode {old.mode:04o}, now {new.mode:04o}"
    if old.owner != new.owner:
        return "owner {}:{}, now {}:{}".format(*old.owner, *new.owner)
    return "extended attributes" if old.attributes != new.attributes else "hard links"


def _move(move: RefMove) -> str:
    short = clean(move.name.removeprefix("refs/heads/"))
    if move.name == "index":
        return "index: other contents"
    if move.name == "HEAD":
        return f"HEAD: {clean(move.before)}, now {clean(move.now)}"
    if not move.now:
        return f"deleted {short} ({move.before[:7]})"
    return f"created {short}" if not move.before else f"moved {short} {move.before[:7]}..{move.now[:7]}"


def patch_lines(store: SnapshotStore, comparison: Comparison, place: str) -> Iterator[str]:
    """Yield the differences of texts, as `diff -u` has them."""
    difference = comparison.difference
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in (*difference.deleted, *difference.overwritten, *difference.created):
            old, new = comparison.before.get(path), comparison.now.get(path)
            if not any(entry is not None and entry.kind in "fl" for entry in (old, new)):
                continue
            texts = [_kept(store, old), _present(root, new, path)]
            if any(text is None or b"\0" in text for text in texts):
                yield f"Binary or large files a/{clean(path)} and b/{clean(path)} differ"
                continue
            first, then = (_rows(text or b"") for text in texts)
            names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
            yield from map(clean, difflib.unified_diff(first, then, *names, lineterm=""))
    finally:
        os.close(root)


def _rows(text: bytes) -> list[str]:
    return text.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n") if text else []


def _kept(store: SnapshotStore, entry: KeptEntry | None) -> bytes | None:
    if entry is None or entry.kind in "dp":
        return b""
    if entry.kind == "l":
        return os.fsencode(entry.content)
    return b"".join(store.read_content(entry.content)) if entry.size <= _MOST_TEXT else None


def _present(root: int, entry: KeptEntry | None, path: str) -> bytes | None:
    if entry is None or entry.kind != "f":
        return os.fsencode(entry.content) if entry is not None else None if _is_there(root, path) else b""
    directory = open_beneath(root, os.path.dirname(path))
    try:
        return read_at(directory, os.path.basename(path), limit=_MOST_TEXT)
    finally:
        os.close(directory)


def _is_there(root: int, path: str) -> bool:
    """Return whether something is there that was left out."""
    try:
        os.lstat(path, dir_fd=root)
    except OSError:
        return False
    return True
