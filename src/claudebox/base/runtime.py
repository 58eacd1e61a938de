"""Directories for sockets that are mounted: not in the home, whose path can be too long for one.

Their names have the pid of the launcher; those of launchers that were killed go when another directory is made.
"""

from __future__ import annotations

import os
import time

from claudebox.base.files import is_private, list_names

_PREFIX = "claudebox-run-"
_ABANDONED = 10.0  # seconds


def name_directory(kind: str) -> str:
    """Return a path for a directory of this launcher that nobody can guess."""
    return f"{locate(kind, os.getpid())}-{os.urandom(8).hex()}"


def locate(kind: str, launcher: int) -> str:
    """Return the path of the one directory of this kind that a launcher has."""
    own = f"/run/user/{os.getuid()}"
    return f"{own if is_private(own) else '/tmp'}/{_PREFIX}{kind}-{launcher}"


def make_directory(path: str) -> None:
    """Make such a directory, which only the user can enter."""
    base = os.path.dirname(path)
    for name in list_names(base):
        launcher = name.removeprefix(_PREFIX).split("-")[1:2]
        if not name.startswith(_PREFIX) or not launcher or os.path.exists(f"/proc/{launcher[0]}"):
            continue
        status = os.lstat(f"{base}/{name}")
        if status.st_uid == os.getuid() and time.time() - status.st_mtime > _ABANDONED:
            remove_directory(f"{base}/{name}")
    os.mkdir(path, 0o700)


def remove_directory(path: str) -> None:
    """Remove such a directory, with its sockets."""
    for step, place in (*((os.unlink, f"{path}/{name}") for name in list_names(path)), (os.rmdir, path)):
        try:
            step(place)
        except OSError:
            continue
