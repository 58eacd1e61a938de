"""Limits that only count from inside, set from outside before the payload's first instruction."""

from __future__ import annotations

import os
import resource

from claudebox.errors import ClaudeboxError
from claudebox.files import Closing, read_small
from claudebox.plan.bwrap_args import GATE_DESCRIPTOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.config.model import LimitRequest

_MOUNT_TABLE = 16 << 20  # bytes
_MAX_PROCESSES = 16384  # of the sandbox alone: set inside its user namespace (H08)


def set_limits(payload: int, open_files: tuple[int, int] | None, limits: LimitRequest | None) -> None:
    """Limit the number of processes, and give back the limit of open files that the user's shell gave us."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = limits.processes if limits is not None and limits.processes else _MAX_PROCESSES
    ceiling = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.prlimit(payload, resource.RLIMIT_NPROC, (ceiling, ceiling))
    if open_files is not None:
        resource.prlimit(payload, resource.RLIMIT_NOFILE, open_files)


def _read_table(process: str) -> bytes:
    return read_small(f"/proc/{process}/mountinfo", limit=_MOUNT_TABLE) or b" shared: master:"


def keep_mounts_out(payload: int, make_program: Callable[[], int]) -> None:
    """Let no mount appear inside that the host makes from now on: bwrap would take it along, writable (C34).

    `make_program` gives a descriptor on the gate, which does it.
    """
    ours = _read_table("self")  # what there is inside comes from these
    if b" shared:" not in ours and b" master:" not in ours:
        return  # nothing is shared on this machine
    if b" master:" not in _read_table(str(payload)):
        return  # nothing of what is shown
    try:
        opened = os.open(f"/proc/{payload}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        with Closing(opened) as mounts, Closing(make_program()) as program:
            place = [(os.POSIX_SPAWN_DUP2, mounts, GATE_DESCRIPTOR)]
            process = os.posix_spawn(f"/proc/self/fd/{program}", ("alone",), {}, file_actions=place)
        failed = os.waitpid(process, 0)[1] != 0
    except OSError:
        failed = True
    if failed:
        raise ClaudeboxError(
            "mounts that the host makes later could not be kept out of the sandbox",
            hint="permit the system calls `setns` and `mount`; or, in a container, make its mounts private",
        )
