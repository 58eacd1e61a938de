"""Processes of ours beside a sandbox: its network, its broker, its relay to the Nix daemon. One mechanism for all.

Each can `open` what bwrap binds, `begin` while bwrap is at work, `attach` before the payload runs, `tend` to the end of
a process of ours, and `finish`, which returns what the user should know. One that has something to do now and then has
a `look`, which returns in how many seconds it wants to be called again; one whose end takes its time a `hang_up`, which
is called as soon as the payload has ended.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from claudebox.plan.model import Plan
    from claudebox.plan.network_model import Broker

    class Sidecar(Protocol):
        """What the launcher asks of each."""

        def open(self) -> None:
            """Make what bwrap binds."""

        def begin(self, files: tuple[tuple[str, int], ...], /) -> None:
            """Start; these are open for the broker to write to: the log, and texts that bwrap waits for."""

        def attach(self, payload: int, /) -> None:
            """Connect with the sandbox whose gate is this process, or raise."""

        def tend(self) -> None:
            """Look after processes, since one of ours may have ended."""

        def finish(self) -> tuple[str, ...]:
            """End."""


def supply(found: Iterable[Sidecar], broker: Broker) -> None:
    """Hand the broker what was fetched when the user had agreed."""
    from claudebox.launch.broker import BrokerSidecar

    for sidecar in found:
        if isinstance(sidecar, BrokerSidecar):
            sidecar.broker = broker


def find_texts(found: Iterable[Sidecar]) -> dict[str, str]:
    """Return what only sidecars know of what stands inside."""
    from claudebox.launch.broker import BrokerSidecar

    return {key: text for row in found if isinstance(row, BrokerSidecar) for key, text in row.texts.items()}


def prepare(plan: Plan) -> tuple[tuple[Sidecar, ...], dict[str, str]]:
    """Return the sidecars in the order in which they attach, and where the sockets are that bwrap binds."""
    found: list[Sidecar] = []
    if plan.undo is not None:
        from claudebox.undo.sidecar import UndoSidecar

        found.append(UndoSidecar(plan, plan.undo))
    if plan.group is not None:
        from claudebox.launch.cgroup import CgroupSidecar

        found.append(CgroupSidecar(plan.group))
    places: dict[str, str] = {}
    handed: Callable[[], list[tuple[str, int]]] = list
    if plan.link is not None:
        from claudebox.launch.network import NetworkSidecar

        network = NetworkSidecar(plan.link)
        handed = network.hand_over
        found.append(network)
    if plan.broker is not None:
        from claudebox.launch.broker import BrokerSidecar

        broker = BrokerSidecar(plan.broker, handed)
        places = broker.sources()
        found.append(broker)
    if plan.relay is not None:
        from claudebox.launch.nix_relay import NixRelaySidecar

        found.append(NixRelaySidecar(plan.relay, plan.seccomp))
    if any(own.real for own in plan.git):
        from claudebox.launch import git_session

        found.append(git_session.follow(plan))
    return tuple(found), places
