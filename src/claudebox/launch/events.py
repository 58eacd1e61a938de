"""Waiting for signals while bytes are carried: between a pty and a terminal, or between pipes and files."""

from __future__ import annotations

import os
import select
import time

from claudebox import syscalls
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    class Carrier(Protocol):
        """Something that moves bytes when it can."""

        def wanted(self) -> dict[int, int]:
            """Return what to wait for: descriptor and events of `poll`."""

        def step(self, descriptor: int, events: int) -> None:
            """Move what can be moved now."""


_SIGNAL_SET = 128  # bytes of a sigset_t
_LONGEST = 3600.0


class Events:
    """The signals and the descriptors that one launcher waits for."""

    def __init__(self, numbers: Iterable[int], carriers: Iterable[Carrier]) -> None:
        """Take the numbers of signals that are blocked already."""
        self._numbers = list(numbers)
        self._carriers = list(carriers)
        mask = bytearray(_SIGNAL_SET)
        for number in self._numbers:
            mask[(number - 1) // 8] |= 1 << (number - 1) % 8
        # Readable while a signal is pending; it is still `sigtimedwait` that takes it.
        self._signals = syscalls.call("signalfd", -1, bytes(mask), os.O_CLOEXEC)
        if self._signals < 0:
            raise OSError("signalfd failed")

    def wait(self, timeout: float) -> Any:
        """Wait for a signal as `sigtimedwait` does, and carry bytes meanwhile."""
        deadline = time.monotonic() + timeout
        while True:
            information = signal.sigtimedwait(self._numbers, 0)
            if information is not None:
                return information
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._carry(left)

    def _carry(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        carriers = {}
        for carrier in self._carriers:
            for descriptor, events in carrier.wanted().items():
                poll.register(descriptor, events)
                carriers[descriptor] = carrier
        for descriptor, events in poll.poll(min(timeout, _LONGEST) * 1000):
            if descriptor != self._signals:
                carriers[descriptor].step(descriptor, events)
