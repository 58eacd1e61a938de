"""How much a session may take, and how that is enforced: by the launcher, by bwrap, or by a control group."""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.plan.records import GroupLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.host.records import Host
    from claudebox.settings.records import LimitRequest


def plan_group(limits: LimitRequest, host: Host) -> GroupLimits | None:
    """Return the control group of the sandbox, if one is needed; refuse what this machine cannot enforce."""
    controllers = limits.controllers(host.uid)
    if not controllers:
        return None
    group = host.machine.control_group
    if group is None or group.problem:
        names = {"cpu": "`cpus`", "memory": "`--memory`", "pids": "`pids` of root"}
        flags = " and ".join(names[name] for name in controllers)
        reason = group.problem if group is not None else "it was not looked for"
        raise ClaudeboxError(
            f"{flags} cannot be enforced on this machine: {reason}",
            hint="remove it, or see docs/guide.md#limits for what it takes",
        )
    processes = limits.processes if "pids" in controllers else 0
    return GroupLimits(group.way, group.place, group.mount, controllers, limits.memory, limits.cpus, processes)


def spell_limits(limits: LimitRequest) -> str:
    """Return limits in words."""
    rows = (
        (limits.seconds, f"{limits.seconds:.0f} s"),
        (limits.processes, f"{limits.processes} processes"),
        (limits.scratch, f"{limits.scratch >> 20} MiB for each of /tmp, the home and /dev/shm"),
        (limits.memory, f"{limits.memory >> 20} MiB of memory"),
        (limits.cpus, f"{limits.cpus / 100:g} processors"),
    )
    return ", ".join(text for value, text in rows if value)
