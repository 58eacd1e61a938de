"""The bwrap program of this machine: where it is and what it can do."""

from __future__ import annotations

import os
import stat

from claudebox.base import syscalls
from claudebox.base.files import read_small
from claudebox.host import programs
from claudebox.host.records import Bubblewrap

# Options of bwrap that some version lacks, and the versions that have them.
NEEDED = ("--args", "--perms", "--seccomp", "--cap-drop", "--die-with-parent", "--remount-ro")
LEAST = "0.5"  # the first version with all of them
USEFUL = ("--bind-fd", "--disable-userns", "--size")
FULL = "0.10"  # the first version with these too


_PR_GET_SECCOMP, _FILTERED = 21, 2
_CLONE_NEWUSER, _CLONE_NEWUTS = 0x10000000, 0x04000000


def find_bwrap(path: tuple[str, ...]) -> Bubblewrap:
    """Find bwrap and read off its own help text, which lies in the binary, what it can do (threat E09)."""
    found = programs.find_tool("bwrap", path)
    if found is None or not os.path.exists(found):  # a package may name one that is gone
        return Bubblewrap(
            problem="bubblewrap is not installed",
            remedy="install the package `bubblewrap` (apt, dnf, pacman), or `nix profile install nixpkgs#bubblewrap`",
        )
    status = os.stat(found)
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return Bubblewrap(
            found,
            problem=f"`{found}` is setuid: it would set the sandbox up with root's powers",
            remedy=f"use user namespaces instead: `sudo chmod u-s {found}`",
        )
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Bubblewrap(
            found,
            problem=f"`{found}` can be replaced by other users",
            remedy=f"`sudo chown root:root {found}; sudo chmod 755 {found}`",
        )
    binary = read_small(found, limit=16 << 20, follow=True) or b""
    return Bubblewrap(found, frozenset(option for option in (*NEEDED, *USEFUL) if f" {option} ".encode() in binary))


def can_name_sandbox() -> bool:
    """Return whether bwrap could give the sandbox a name; filters of containers often forbid that and nothing else.

    Tried in a child, and only where a filter is upon us. Where it gets no namespaces at all, bwrap shall say so.
    """
    if syscalls.call("prctl", _PR_GET_SECCOMP, 0, 0, 0, 0) != _FILTERED:
        return True
    child = os.fork()
    if child == 0:
        made = syscalls.call("unshare", _CLONE_NEWUSER | _CLONE_NEWUTS) == 0
        os._exit(int(made and syscalls.call("sethostname", b"claudebox", 9) != 0))
    return os.waitpid(child, 0)[1] == 0
