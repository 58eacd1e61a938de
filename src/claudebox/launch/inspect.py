"""What a sandbox is seen to be from outside, before the payload's first instruction. What does not hold ends it."""

from __future__ import annotations

import os
import time

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.facts.model import Identity
    from claudebox.plan.model import Plan

_PATIENCE = 30.0
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
    init = int(status["PPid"])
    # The filter is the last thing that it puts on. Before it, it did not yet bind its life to bwrap's outside (E10),
    # and the payload could make it do what the filter forbids (H03).
    limit = time.monotonic() + _PATIENCE
    while _status(init).get("Seccomp") != "2":
        if time.monotonic() > limit:
            raise ClaudeboxError("the first process inside did not put on the seccomp filter; nothing was started")
        time.sleep(0.0005)
    return init


def mounts(payload: int, plan: Plan, standing: Mapping[str, Identity]) -> None:
    """See that what was bound by name is what was examined: another session may replace things meanwhile (C10, C21).

    What stands in for a missing path was made after the plan; `standing` tells what was made.
    """
    stubs = {stub.path for stub in plan.stubs}
    for mount in plan.mounts:
        if mount.kind not in ("bind", "ro-bind") or (mount.pinned is not None and plan.pin):
            continue  # a pinned one was bound by descriptor
        if mount.pinned is None and mount.dest not in stubs:
            continue
        wanted = mount.pinned or standing.get(mount.dest)
        if wanted is None or _identity(f"/proc/{payload}/root{mount.dest}") != wanted:
            raise ClaudeboxError(f"`{mount.source}` was replaced by something else while the sandbox was being built")


def _identity(path: str) -> Identity | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _status(process: int) -> dict[str, str]:
    text = os.fsdecode(read_small(f"/proc/{process}/status") or b"")
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)
