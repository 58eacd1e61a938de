"""Sockets of the host that lie in what the sandbox shows: whoever answers one is outside, and would obey (C19).

Network namespaces do not cover sockets that have a path. The kernel lists those that are bound, however deep they lie;
the top of the project is looked at as well, for those that were bound under another name or by another container.
"""

from __future__ import annotations

import os
import stat

from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SCAN_LIMIT = 4096  # entries of the project that are looked at
_TABLE_LIMIT = 16 << 20


def find_sockets(workdir: str, sources: Iterable[str], ours: Iterable[str]) -> tuple[str, ...]:
    """Return the sockets in the project and in the sources, but for the stand-ins that are ours."""
    skipped = {os.path.join(workdir, name) for name in ours}
    found = {path for path in _in_top(workdir) if path not in skipped}
    roots = tuple(f"{root.rstrip('/')}/" for root in (workdir, *sources))
    found.update(path for path in _bound(workdir) if path.startswith(roots) and _is_socket(path))
    return tuple(sorted(found))


def _in_top(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for _, entry in zip(range(_SCAN_LIMIT), entries, strict=False):
                if entry.is_symlink() or entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                    continue
                if _is_socket(entry.path):
                    yield entry.path
    except OSError:
        return


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _bound(workdir: str) -> Iterator[str]:
    """Yield the real paths of bound sockets; one that was bound by a relative path is taken to lie in the project."""
    table = read_small("/proc/net/unix", limit=_TABLE_LIMIT) or b""
    reals: dict[str, str] = {}
    for line in set(table.split(b"\n")[1:]):
        fields = line.split(None, 7)
        if len(fields) != 8 or fields[7].startswith(b"@"):
            continue
        parent, name = os.path.split(os.path.join(workdir, os.fsdecode(fields[7])))
        if parent not in reals:
            reals[parent] = os.path.realpath(parent)
        yield os.path.join(reals[parent], name)
