"""What claudebox can change in a git directory of the host, read without git; and the stubs that stand in a project."""

from __future__ import annotations

import os
import stat

from claudebox import stub_journal
from claudebox.files import read_small
from claudebox.launch.undo_manifest import KeptRefs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_INDEX_LIMIT = 1 << 30


def read_refs(private: str, common: str, git_dir: str) -> KeptRefs:
    """Return branches, tags and HEAD of a git directory."""
    refs: dict[str, str] = {}
    for row in (
        (read_small(f"{common}/packed-refs", limit=1 << 28) or b"").decode("utf-8", "surrogateescape").split("\n")
    ):
        value, _, name = row.partition(" ")
        if row[:1] not in ("#", "^") and name.startswith(("refs/heads/", "refs/tags/")):
            refs[name] = value
    for kind in ("heads", "tags"):
        for name in _loose(f"{common}/refs/{kind}", f"refs/{kind}"):
            refs[name] = os.fsdecode((read_small(f"{common}/{name}") or b"").strip())
    refs = {name: value for name, value in refs.items() if value and not value.startswith("ref:")}
    head = os.fsdecode(read_small(f"{git_dir}/HEAD") or b"").strip()
    return KeptRefs(private, common, head, refs)


def read_index(git_dir: str) -> tuple[bytes, int]:
    """Return the index of a git directory with the time at which it was written; nothing if there is none."""
    try:
        descriptor = os.open(f"{git_dir}/index", _OPEN)
    except OSError:
        return b"", 0
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _INDEX_LIMIT:
            return b"", 0
        return file.read(), status.st_mtime_ns


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


def standing_stubs(instance_directory: str, root: str) -> list[str]:
    """Return the stubs that stand in a project, which are not the user's: nothing is in them."""
    content = read_small(f"{instance_directory}/{stub_journal.STUBS}", limit=stub_journal.STUBS_LIMIT) or b""
    rows = {row.path for row in stub_journal.parse_stubs(content) if row.path.startswith(f"{root.rstrip('/')}/")}
    return sorted(filter(_is_empty, rows))


def _is_empty(path: str) -> bool:
    try:
        status = os.lstat(path)
        return not (os.listdir(path) if stat.S_ISDIR(status.st_mode) else status.st_size)
    except OSError:
        return False
