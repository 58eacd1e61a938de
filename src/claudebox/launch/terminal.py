"""The person's terminal: remembered before the sandbox starts, put back in order after it ends (B08)."""

from __future__ import annotations

import fcntl
import os
import termios

from claudebox.syscalls import signal
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Leave the alternate screen; show the cursor; end mouse, focus and paste reporting, keyboard modes, colours.
# Entering the alternate screen first costs nothing where we are in it, and elsewhere it keeps the cursor in its
# place: leaving alone would move it to wherever it was when the screen was last entered.
_RESET = (
    b"\x1b[?1049h\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l"
    b"\x1b[>4;0m\x1b[<u\x1b[0m"
)


class Remembered(Value):
    """State of one standard descriptor."""

    descriptor: int
    flags: int
    modes: list[Any] | None = None  # None: not a terminal


class Terminal:
    """What the standard descriptors were like."""

    def __init__(self) -> None:
        self._states = [
            Remembered(
                descriptor,
                fcntl.fcntl(descriptor, fcntl.F_GETFL),
                termios.tcgetattr(descriptor) if os.isatty(descriptor) else None,
            )
            for descriptor in (0, 1, 2)
        ]

    def receive(self, watched: Iterable[int], timeout: float) -> Any:
        """Wait for a signal; None if none came in time."""
        return signal.sigtimedwait(watched, timeout)

    def leave(self) -> None:
        """Give the terminal back for the time of a suspension; here it was never taken."""

    def enter(self) -> None:
        """Take the terminal again."""

    def foreground(self) -> bool:
        """Tell whether the terminal, if there is one, is ours at the moment."""
        for state in self._states:
            if state.modes is not None:
                try:
                    return os.tcgetpgrp(state.descriptor) == os.getpgrp()
                except OSError:
                    continue
        return True

    def restore(self, *, abnormal: bool) -> None:
        """Undo what a program left behind; after an abnormal end also what it could not take back itself."""
        for state in self._states:
            fcntl.fcntl(state.descriptor, fcntl.F_SETFL, state.flags)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        self._reclaim()
        if not self.foreground():
            return
        for state in self._states:
            if state.modes is None:
                continue
            try:
                if abnormal:
                    os.write(state.descriptor, _RESET)
                    abnormal = False
                termios.tcsetattr(state.descriptor, termios.TCSADRAIN, state.modes)
            except (OSError, termios.error):
                continue

    def _reclaim(self) -> None:
        """Take the terminal back if its group has died: a shell inside cannot see whom to return it to."""
        for state in self._states:
            if state.modes is not None:
                try:
                    os.killpg(os.tcgetpgrp(state.descriptor), 0)
                except ProcessLookupError:
                    os.tcsetpgrp(state.descriptor, os.getpgrp())
                except OSError:
                    continue
