"""Contents of files as a session found and left them: from the snapshots, or as they are now."""

from __future__ import annotations

import os

from claudebox.base.files import Closing, open_beneath, read_at
from claudebox.undo.manifest import find_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.undo.manifest import KeptEntry
    from claudebox.undo.store import SnapshotStore


MOST_TEXT = 1 << 20  # bytes of a file that is compared line by line


def read_kept(store: SnapshotStore, entry: KeptEntry | None) -> bytes | None:
    """Return a file or the target of a link as it was kept; nothing for what was not there, None if it is unknown."""
    if entry is None or entry.kind not in "fl":
        return b""
    if entry.kind == "l":
        return entry.content
    if not entry.content or entry.size > MOST_TEXT:
        return None
    try:
        return store.read_content(entry.content)
    except OSError:  # the present is not kept
        return None


def read_present(root: int, path: str) -> bytes | None:
    """Return a file as it is now, given a descriptor of the project; through no link."""
    try:
        with Closing(open_beneath(root, os.path.dirname(path))) as directory:
            return read_at(directory, os.path.basename(path), limit=MOST_TEXT)
    except OSError:
        return None


def read_left(store: SnapshotStore, root: int, path: str, entry: KeptEntry) -> tuple[bytes | None, bool]:
    """Return a file as a session left it, and whether it has not changed since: what was not kept is read now."""
    kept = read_kept(store, entry)
    if kept is not None:
        return kept, True
    content = read_present(root, path)
    return content, content is None or not entry.content or find_digest(content) == entry.content
