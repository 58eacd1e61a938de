"""Processes of ours beside a sandbox: its network, its broker, its relay to the Nix daemon. One mechanism for all.

Each can `open` what bwrap binds, `begin` while bwrap is at work, `attach` before the payload runs, `tend` to the end of
a process of ours, and `finish`, which returns what the person should know.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from claudebox.plan.model import Plan

    class Companion(Protocol):
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


def prepare(plan: Plan) -> tuple[tuple[Companion, ...], dict[str, str]]:
    """Return the companions in the order in which they attach, and where the sockets are that bwrap binds."""
    found: list[Companion] = []
    places: dict[str, str] = {}
    handed: Callable[[], list[tuple[str, int]]] = list
    if plan.link is not None:
        from claudebox.launch.network import Attachment  # noqa: PLC0415

        attachment = Attachment(plan.link)
        handed = attachment.hand_over
        found.append(attachment)
    if plan.broker is not None:
        from claudebox.launch.broker import Companion as Broker  # noqa: PLC0415

        broker = Broker(plan.broker, handed)
        places = broker.sources()
        found.append(broker)
    if plan.relay is not None:
        from claudebox.launch.nix_relay import Relay  # noqa: PLC0415

        found.append(Relay(plan.relay, plan.seccomp))
    return tuple(found), places
