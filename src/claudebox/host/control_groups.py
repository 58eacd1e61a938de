"""Where this machine lets a sandbox have a control group of its own, for limits of memory and processors (LIMIT-02).

Found by reading files: the group that this process is in, those above it, and what of them can be written. Only
version 2 counts. Where nothing can be written, the user's own systemd can make a group, if it was given the
controllers.
"""

from __future__ import annotations

import os

from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.host import programs
from claudebox.host.machine import read_mounts
from claudebox.host.records import ancestors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal


CONTROLLERS = ("cpu", "memory")


class ControlGroup(Value):
    """How a control group can be had."""

    way: Literal["direct", "systemd", "none"] = "none"
    place: str = ""  # the group that ours is made in; of systemd: its program to be asked with
    mount: str = ""
    problem: str = "this machine has no control groups of version 2"


def find_group(uid: int, path: Sequence[str], wanted: Sequence[str] = CONTROLLERS) -> ControlGroup:
    """Return how a group with these controllers can be had."""
    mount = next((row.place for row in read_mounts() if row.kind == "cgroup2"), "")
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    if not mount or own is None:
        return ControlGroup()
    lacking = [name for name in wanted if name not in _words(f"{mount}/cgroup.controllers")]
    if lacking:
        return ControlGroup(problem=f"cgroup v2 has no controller {' and '.join(lacking)} here")
    for place in ancestors(os.path.normpath(f"{mount}/{own}")):
        if place.startswith(mount) and _can_hold(place, wanted, top=place == mount):
            return ControlGroup("direct", place, mount, "")
    return _find_manager(uid, path, mount, wanted)


def _can_hold(place: str, wanted: Sequence[str], *, top: bool) -> bool:
    """Return whether a group can be made here, its limits set, and a process of ours moved there."""
    if not os.access(place, os.W_OK) or not os.access(f"{place}/cgroup.procs", os.W_OK):
        return False
    enabled = _words(f"{place}/cgroup.subtree_control")
    # Only the true root may hold processes and give controllers to groups below; it has no type.
    root = top and not os.path.exists(f"{place}/cgroup.type") and os.access(f"{place}/cgroup.subtree_control", os.W_OK)
    return root or all(name in enabled for name in wanted)


def _find_manager(uid: int, path: Sequence[str], mount: str, wanted: Sequence[str]) -> ControlGroup:
    program = programs.find_tool("busctl", path)
    if program is None or not os.path.exists(f"/run/user/{uid}/bus"):
        return ControlGroup(problem="no control group can be written here, and no systemd of yours could make one")
    given = _words(f"{mount}/user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers")
    lacking = [name for name in wanted if name not in given]
    if lacking:
        return ControlGroup(problem=f"your systemd was not given the controller {' and '.join(lacking)} (`Delegate=`)")
    return ControlGroup("systemd", program, mount, "")


def _lines(path: str) -> list[str]:
    return (read_small(path) or b"").decode("utf-8", "replace").split("\n")


def _words(path: str) -> list[str]:
    return (read_small(path) or b"").decode("ascii", "replace").split()
