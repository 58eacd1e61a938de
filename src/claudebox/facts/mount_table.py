"""What is mounted on this machine, and what of it lies below the project."""

from __future__ import annotations

import os
import stat

from claudebox.facts.model import Submount
from claudebox.files import Closing, mode_of, read_small
from claudebox.values import Value

_LIMIT = 16 << 20
_REMOTE = ("fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "autofs")
_ESCAPED = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class MountRow(Value):
    """A mount of the host, as the kernel lists it."""

    number: int
    device: int  # as the kernel numbers it; some filesystems give programs another one
    place: str
    kind: str  # of filesystem
    root: str = "/"  # what of the filesystem is mounted


def read_mounts() -> tuple[MountRow, ...]:
    """Return the mounts that this process sees."""
    text = os.fsdecode(read_small("/proc/self/mountinfo", limit=_LIMIT) or b"")
    return tuple(_parse(line) for line in text.split("\n") if line)


def _parse(line: str) -> MountRow:
    words = line.split(" ")
    major, _, minor = words[2].partition(":")
    root, place = map(_unescape, words[3:5])
    return MountRow(int(words[0]), int(major) << 20 | int(minor), place, words[words.index("-") + 1], root)


def _unescape(path: str) -> str:
    if "\\" in path:
        for escape, char in _ESCAPED:
            path = path.replace(escape, char)
    return path


def mount_of(path: str) -> int:
    """Return the number of the mount that a path lies in, -1 if it cannot be told."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    with Closing(descriptor):
        lines = (read_small(f"/proc/self/fdinfo/{descriptor}") or b"").split(b"\n")
    return next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"mnt_id:")), -1)


def find_submounts(mounts: tuple[MountRow, ...], workdir: str) -> tuple[Submount, ...]:
    """Return what is mounted below the project: it comes along with it (C34)."""
    below = workdir.rstrip("/") + "/"
    found: dict[str, str] = {}
    for row in mounts:  # a later one covers an earlier one
        if row.place.startswith(below):
            found[row.place] = row.kind
    return tuple(Submount(path, kind, _is_directory(path, kind)) for path, kind in sorted(found.items()))


def _is_directory(path: str, kind: str) -> bool:
    if kind.startswith(_REMOTE):  # a server that does not answer would keep us waiting
        return True
    mode = mode_of(path)
    return not mode or stat.S_ISDIR(mode)
