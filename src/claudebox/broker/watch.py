"""The thread that notices a loop that does not turn: one that spins, or waits for the kernel in a call.

It wakes once a second while the loop has work, and not at all while the loop waits for events.
"""

from __future__ import annotations

import selectors
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK = 1.0  # seconds
PATIENCE = 15  # ticks without a turn; ticks, since a suspended machine makes none


class WatchedSelector(selectors.DefaultSelector):
    """What the loop waits in; tells the thread whether it does."""

    def __init__(self, stuck: Callable[[], None], patience: int = PATIENCE) -> None:
        """Call `stuck`, in the thread, when the loop has made no turn for so many ticks."""
        super().__init__()
        self._stuck, self._patience = stuck, patience
        self._turns = 0
        self._waits = False  # the loop, for events
        self._asleep = True  # the thread, for a turn
        self._bell = threading.Event()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        self._waits = True
        try:
            return super().select(timeout)
        finally:
            self._waits = False
            self._turns += 1
            if self._asleep:
                self._asleep = False
                self._bell.set()

    def _watch(self) -> None:
        while True:
            self._bell.wait()
            self._bell.clear()
            seen, missed = self._turns, 0
            while missed < self._patience:
                time.sleep(_TICK)
                if self._turns != seen:
                    seen, missed = self._turns, 0
                elif self._waits:
                    break
                else:
                    missed += 1
            else:
                self._stuck()
                return
            self._asleep = True
            if self._turns != seen:  # it turned just now, and did not ring
                self._bell.set()
