"""What a sandbox is seen to be from outside, before the payload's first instruction. What does not hold ends it."""

from __future__ import annotations

import os
import stat
import time

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import open_beneath, read_small
from claudebox.plan.bwrap import is_handed_over, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.records import Mount, Plan


_PATIENCE = 30.0
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DROPPED = "run `claudebox --check`; bwrap may be a wrapper that drops options"


def confinement(payload: int, plan: Plan) -> int:
    """See that the process at the gate is confined as planned, and return its parent (E08)."""
    status = _status(payload)
    for field, wanted, protection in (
        ("Seccomp", "2", "the seccomp filter"),
        ("NoNewPrivs", "1", "no_new_privs"),
        ("CapEff", "0" * 16, "the drop of capabilities"),
        ("CapBnd", "0" * 16, "the drop of capabilities"),
    ):
        if status.get(field) != wanted:
            raise ClaudeboxError(f"{protection} is not in force inside; nothing was started", hint=_DROPPED)
    for name in ("mnt", *plan.namespaces):
        if os.readlink(f"/proc/{payload}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            raise ClaudeboxError(f"the sandbox got no {name} namespace of its own; nothing was started", hint=_DROPPED)
    if os.getsid(payload) == os.getsid(0):
        raise ClaudeboxError("the sandbox got no session of its own; nothing was started", hint=_DROPPED)
    init = int(status["PPid"])
    # The filter is the last thing that it puts on. Before it, it did not yet bind its life to bwrap's outside (E10),
    # and the payload could make it do what the filter forbids (H03).
    limit = time.monotonic() + _PATIENCE
    while _status(init).get("Seccomp") != "2":
        if time.monotonic() > limit:
            raise ClaudeboxError("the first process inside did not put on the seccomp filter; nothing was started")
        time.sleep(0.0005)
    return init


def mounts(payload: int, plan: Plan) -> None:
    """See that what bwrap bound by name is what was examined: another session may replace things meanwhile (C10).

    What is masked must show the mask, and cover the very file that was looked at.
    """
    placed = {row.mount.dest for row in place(plan)}
    inside = _Inside(payload)
    try:
        for mount in plan.mounts:
            if mount.dest in placed:
                continue
            if mount.kind in ("mask", "copy") and mount.role == "masked":
                _see_mask(inside.look(mount.dest), mount)
            elif mount.kind in ("bind", "ro-bind", "device") and mount.pinned and not is_handed_over(mount, plan):
                found = inside.look(mount.dest)
                if found is None or (found.st_dev, found.st_ino) != mount.pinned:
                    raise ClaudeboxError(
                        f"`{mount.source}` was replaced by something else while the sandbox was being built"
                    )
    finally:
        inside.close()


class _Inside:
    """The files of a sandbox, looked at from outside; the payload waits meanwhile."""

    def __init__(self, payload: int) -> None:
        self._root = os.open(f"/proc/{payload}/root", _PATH)
        self._above, self._parent = "", os.dup(self._root)  # neighbours follow each other

    def look(self, path: str) -> os.stat_result | None:
        """Return what is at a path, reached through no link."""
        above, _, name = path.rpartition("/")
        try:
            if above != self._above:
                parent = open_beneath(self._root, above.strip("/"))
                os.close(self._parent)
                self._above, self._parent = above, parent
            return os.lstat(name, dir_fd=self._parent)
        except OSError:
            return None

    def close(self) -> None:
        """Let go of everything."""
        os.close(self._parent)
        os.close(self._root)


def _see_mask(inside: os.stat_result | None, mount: Mount) -> None:
    """See that a file is covered inside, and that nothing else lies under its name by now."""
    if inside is None:
        masked = False
    elif mount.kind == "mask":
        masked = stat.S_ISCHR(inside.st_mode)
    else:
        masked = inside.st_size == len(mount.content) and (inside.st_dev, inside.st_ino) != mount.pinned
    if masked and mount.pinned is not None:
        outside = os.lstat(mount.dest)
        masked = (outside.st_dev, outside.st_ino) == mount.pinned
    if not masked:
        raise ClaudeboxError(f"`{mount.dest}` was replaced by something else while it was being masked")


def _status(process: int) -> dict[str, str]:
    text = os.fsdecode(read_small(f"/proc/{process}/status") or b"")
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)
