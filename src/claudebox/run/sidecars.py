"""Our processes beside a sandbox: network, broker, relay to the Nix daemon, follower of git, snapshots."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.plan.records import Plan
    from claudebox.settings.records import SecretRequest


_NEVER = 3600.0


class Sidecar:
    """The stages of each, in order; a sidecar overrides those that concern it."""

    title = "a process beside the sandbox"  # names it if `finish` fails
    # What bwrap gets, once it has begun; each is replaced as a whole.
    texts: dict[str, str] = {}  # noqa: RUF012 - by `Deferred.key`
    sockets: dict[str, str] = {}  # noqa: RUF012 - paths by name
    pipes: tuple[tuple[str, int], ...] = ()  # descriptors on texts that it waits for
    moved: tuple[str, ...] = ()  # branches that were moved, after `finish`

    def begin(self, log: int = -1) -> None:
        """Start before bwrap does, and make what that binds; `log` is a descriptor to write decisions to."""

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


class _Adoption(Sidecar):
    """Imports at the end a repository that was made inside, where there was none."""

    title = "a repository that was made inside"

    def __init__(self, plan: Plan) -> None:
        self._plan, self._has_run = plan, False

    def attach(self, payload: int) -> None:  # noqa: ARG002
        self._has_run = True

    def finish(self) -> tuple[str, ...]:
        made = (own for own in self._plan.git if not own.real and os.path.lexists(f"{own.directory}/HEAD"))
        if not self._has_run or not any(made):
            return ()
        from claudebox.git import sidecar as git_sidecar

        moved, notes = git_sidecar.adopt(self._plan)
        self.moved = tuple(moved)
        return tuple(notes)


def make_sidecars(plan: Plan, secrets: tuple[SecretRequest, ...]) -> tuple[Sidecar, ...]:
    """Return the sidecars that a plan needs, in the order in which they begin and attach; `secrets` have values."""
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
        from claudebox.broker.plan import with_values
        from claudebox.broker.sidecar import BrokerSidecar

        texts = tuple(row.source for row in plan.mounts if row.kind == "late")
        broker = with_values(plan.broker, secrets) if secrets else plan.broker
        found.append(BrokerSidecar(broker, handed, texts))
    if plan.relay is not None:
        from claudebox.nix.relay import NixRelaySidecar

        found.append(NixRelaySidecar(plan.relay, plan.seccomp))
    if any(own.real for own in plan.git):
        from claudebox.git import sidecar as git_sidecar

        found.append(git_sidecar.follow(plan))
    return (*found, _Adoption(plan))
