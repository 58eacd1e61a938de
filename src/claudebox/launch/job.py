"""The job of the user's shell that claudebox is a part of: who started it in the same process group, and stopping it.

A shell looks at the process that it started itself. If that is a script, `make` or `npm`, it may stop or end alone,
and the shell takes the terminal back although claudebox runs on (B15).
"""

from __future__ import annotations

import os

from claudebox import syscalls
from claudebox.launch import freezer
from claudebox.syscalls import signal

_PR_SET_PDEATHSIG = 1


class Job:
    """The process group of claudebox, as it was at the start."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._starters: list[int] = []  # the programs between the shell and us
        process = self._parent
        while process > 1 and freezer.group(process) == os.getpgrp():
            self._starters.append(process)
            process = freezer.parent(process)
        self.shell = freezer.group(process) if process > 1 else -1  # the group that gets the terminal after us
        if self._starters:  # wakes us up; whether it is the end of the process or of a thread is looked at then
            syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)

    def is_halted(self) -> bool:
        """Return whether one of those that started us has stopped: the shell has, or will have, the terminal."""
        return any(freezer.is_stopped(process) for process in self._starters)

    def is_orphaned(self) -> bool:
        """Return whether the one that started us has ended: nobody waits for us any more."""
        return bool(self._starters) and os.getppid() != self._parent

    def stop(self, number: int) -> bool:
        """Stop the whole group until it is continued; return whether anybody could stop it.

        The stop signals are blocked as yet, so that one that is pending already does not stop us twice. SIGCONT is
        blocked as well: it tells afterwards that we were continued. The kernel stops no group that nobody controls.
        """
        while signal.sigtimedwait([signal.SIGCONT], 0) is not None:
            continue
        os.kill(0, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        return signal.sigtimedwait([signal.SIGCONT], 0) is not None
