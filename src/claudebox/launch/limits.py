"""Limits that only count from inside, set from outside before the payload's first instruction."""

from __future__ import annotations

import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import LimitRequest

_MAX_PROCESSES = 16384  # of the sandbox alone: set inside its user namespace (H08)


def set_limits(payload: int, open_files: tuple[int, int] | None, limits: LimitRequest | None) -> None:
    """Limit the number of processes, and give back the limit of open files that the user's shell gave us."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = limits.processes if limits is not None and limits.processes else _MAX_PROCESSES
    ceiling = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.prlimit(payload, resource.RLIMIT_NPROC, (ceiling, ceiling))
    if open_files is not None:
        resource.prlimit(payload, resource.RLIMIT_NOFILE, open_files)
