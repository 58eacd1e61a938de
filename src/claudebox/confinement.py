"""Seen from outside: a process at the gate is confined as planned, before its first own instruction."""

from __future__ import annotations

import os
import resource
import time

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.model import Plan

_PATIENCE = 30.0
_MAX_PROCESSES = 16384  # of the sandbox alone: set inside its user namespace (H08)
_DROPPED = "run `claudebox --check`; bwrap may be a wrapper that drops options"


def check(payload: int, plan: Plan, open_files: tuple[int, int]) -> int:
    """See from outside that the process at the gate is confined as planned, limit it, and return its parent (E08)."""
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
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    ceiling = _MAX_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _MAX_PROCESSES)
    resource.prlimit(payload, resource.RLIMIT_NPROC, (ceiling, ceiling))
    if resource.getrlimit(resource.RLIMIT_NOFILE) != open_files:
        resource.prlimit(payload, resource.RLIMIT_NOFILE, open_files)
    init = int(status["PPid"])
    # The filter is the last thing that it puts on. Before it, it did not yet bind its life to bwrap's outside (E10),
    # and the payload could make it do what the filter forbids (H03).
    limit = time.monotonic() + _PATIENCE
    while _status(init).get("Seccomp") != "2":
        if time.monotonic() > limit:
            raise ClaudeboxError("the first process inside did not put on the seccomp filter; nothing was started")
        time.sleep(0.0005)
    return init


def _status(process: int) -> dict[str, str]:
    text = os.fsdecode(read_small(f"/proc/{process}/status") or b"")
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)
