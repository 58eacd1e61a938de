"""Our processes beside a sandbox: network, broker, relay to the Nix daemon, follower of git, snapshots."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.plan.records import Plan


_NEVER = 3600.0


class Sidecar:
    """The stages of each, in order; a sidecar overrides those that concern it."""

    title = "a process beside the sandbox"  # names it if `finish` fails
    texts: dict[str, str] = {}  # noqa: RUF012 - replaced as a whole; texts for inside, by `Deferred.key`
    sockets: dict[str, str] = {}  # noqa: RUF012 - replaced as a whole; what bwrap binds, by name
    moved: tuple[str, ...] = ()  # branches that were moved, after `finish`

    def listen(self) -> None:
        """Make the sockets and directories that bwrap binds."""

    def begin(self, files: tuple[tuple[str, int], ...] = ()) -> None:
        """Start; `files` are descriptors to write to: the log, and texts that bwrap waits for."""

    def attach(self, payload: int) -> None:
        """Connect to the sandbox, whose payload waits at the gate, or raise."""

    def tend(self) -> None:
        """Handle the end of a child; called whenever one was reaped."""

    def look(self) -> float:
        """Do what is due; return in how many seconds to look again."""
        return _NEVER

    def hang_up(self) -> None:
        """Begin to end; the payload has ended."""

    def finish(self) -> tuple[str, ...]:
        """End, and return what the user should know."""
        return ()


def make_sidecars(plan: Plan) -> tuple[Sidecar, ...]:
    """Return the sidecars that a plan needs, in the order in which they attach."""
    found: list[Sidecar] = []
    if plan.policy.undo is not None:
        from claudebox.undo.snapshot import UndoSidecar

        found.append(UndoSidecar(plan, plan.policy.undo))
    if plan.group is not None:
        from claudebox.run.control_group import CgroupSidecar

        found.append(CgroupSidecar(plan.group))
    handed: Callable[[], list[tuple[str, int]]] = list
    if plan.link is not None:
        from claudebox.network.sidecar import NetworkSidecar

        network = NetworkSidecar(plan.link, os.path.dirname(os.path.dirname(plan.directory)))
        handed = network.hand_over
        found.append(network)
    if plan.broker is not None:
        from claudebox.broker.sidecar import BrokerSidecar

        found.append(BrokerSidecar(plan.broker, handed))
    if plan.relay is not None:
        from claudebox.nix.relay import NixRelaySidecar

        found.append(NixRelaySidecar(plan.relay, plan.seccomp))
    if any(own.real for own in plan.git):
        from claudebox.git import sidecar as git_sidecar

        found.append(git_sidecar.follow(plan))
    return tuple(found)
