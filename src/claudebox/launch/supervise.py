"""Staying beside a running sandbox: signals, suspension, the end.

The sandbox shares the person's terminal and process group, so the terminal's own signals reach it without help.
What remains is to pass on what was sent to claudebox alone, to suspend the whole of it, and to tidy up.
"""

from __future__ import annotations

import os
import time

from claudebox.launch import freezer
from claudebox.plan.bwrap_args import FORWARDED_SIGNALS, IGNORED_SIGNALS
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.launch.start import Sandbox
    from claudebox.launch.terminal import Terminal

_GRACE = 10.0  # seconds between a polite end and a forced one
_FOREVER = 3600.0
_FROM_KERNEL = 0x80  # si_code of what a terminal sends to its whole foreground group
_ATTENTION, _LOOK = 5.0, 0.01  # how long and how often the payload is watched after it was asked to stop
_BURIAL = 5.0


def wait(sandbox: Sandbox, terminal: Terminal, *, detached: bool, chore: Callable[[], float] | None = None) -> int:
    """Wait for the end and return the exit status, as a shell would show it.

    `chore` is done now and then, and returns in how many seconds it wants to be done again.
    """
    supervisor = _Supervisor(sandbox, terminal, detached=detached)
    while True:
        status = supervisor.step(chore() if chore else _FOREVER)
        if status is not None:
            return status


class _Supervisor:
    """One running sandbox and what is to happen to it."""

    def __init__(self, sandbox: Sandbox, terminal: Terminal, *, detached: bool) -> None:
        self._sandbox = sandbox
        self._terminal = terminal
        self._detached = detached
        # What was ignored when we were started is no business of ours: `nohup` means it.
        self._endings = [number for number in IGNORED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._custody = freezer.Custody(sandbox.init)
        self._thawing = False
        self._deadline = 0.0  # when a polite end becomes a forced one; 0: nobody asked for the end
        self._attentive = 0.0  # until when the payload may be about to stop
        self._verdict = 0  # the status if we ended it ourselves

    def step(self, timeout: float) -> int | None:
        """Wait for the next event and deal with it; return the status if it was the end."""
        now = time.monotonic()
        if self._deadline:
            timeout = min(timeout, max(0.0, self._deadline - now))
        if self._attentive > now:
            timeout = min(timeout, _LOOK)
        watched = [*self._endings, *FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGTSTP]
        information = self._terminal.receive(watched, timeout)
        if information is None:
            self._look()
        elif information.si_signo == signal.SIGCHLD:
            return self._hear_of_children()
        else:
            self._pass_on(information.si_signo, from_kernel=information.si_code == _FROM_KERNEL)
        return None

    def _look(self) -> None:
        now = time.monotonic()
        if self._deadline and now >= self._deadline:
            self._deadline = 0.0
            os.kill(self._sandbox.monitor, signal.SIGKILL)
        elif self._attentive and freezer.stopped(self._sandbox.payload):
            self._suspend()

    def _hear_of_children(self) -> int | None:
        self._custody.attend()
        if self._thawing:  # a thread that was busy in the kernel has come out of it
            self._thawing = not self._custody.thaw()
        process, status = os.waitpid(self._sandbox.monitor, os.WNOHANG | os.WUNTRACED)
        if not process:
            for sidecar in self._sandbox.sidecars:
                sidecar.tend()
            return None
        if os.WIFSTOPPED(status):  # so has, or will, the payload: it sent the signal to the whole group
            self._attend()
            return None
        self._reap()
        code = os.waitstatus_to_exitcode(status)
        return self._verdict or (code if code >= 0 else 128 - code)

    def _pass_on(self, number: int, *, from_kernel: bool) -> None:
        if number == signal.SIGTSTP and self._detached:  # in a session without a terminal nobody stops by himself
            self._suspend()
            return
        if self._detached and from_kernel:
            self._send_to_group(number)
        elif not from_kernel or (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
            # A terminal tells the whole foreground group itself, but the end of the line only the session's leader.
            self._send(number)
        if number == signal.SIGTSTP:
            self._attend()
        elif number in (signal.SIGTERM, signal.SIGHUP) and not self._deadline:
            self._deadline = time.monotonic() + _GRACE

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._sandbox.payload_descriptor, number)
        except ProcessLookupError:
            return  # it has ended: the monitor will tell

    def _send_to_group(self, number: int) -> None:
        try:
            os.killpg(os.getpgid(self._sandbox.payload), number)
        except ProcessLookupError:
            return

    def _attend(self) -> None:
        """Watch whether the payload stops: it may ignore the signal, or tidy up first and then stop itself."""
        self._attentive = time.monotonic() + _ATTENTION
        self._continue(self._sandbox.monitor)  # or it could not tell us the end

    def _suspend(self) -> None:
        """Hold everything inside, then stop ourselves until we are continued.

        While the person types at the shell, nothing inside may run: a process that left our session could read the
        terminal although it is in the background (B06).
        """
        self._attentive = 0.0
        if not self._custody.freeze():  # it multiplies faster than it can be held: better none than a spy
            os.kill(self._sandbox.monitor, signal.SIGKILL)
            return
        self._terminal.leave()
        reason = signal.SIGTSTP
        while True:
            # The whole group: a script that started us stops as well, as it would with the client (0 is the group).
            # Blocked as yet, so that one that is pending already does not stop us twice.
            os.kill(os.getpid() if reason == signal.SIGSTOP else 0, reason)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
            if self._terminal.foreground():
                break
            ending = signal.sigpending().intersection(self._endings)
            if ending:  # it cannot be asked to end without letting it run beside the shell
                self._verdict = 128 + min(ending)
                os.kill(self._sandbox.monitor, signal.SIGKILL)
                return
            # `bg`; in a group that nobody controls any more only the last of these stops us
            reason = signal.SIGTTIN if reason == signal.SIGTSTP else signal.SIGSTOP
        self._terminal.enter()
        self._continue(self._sandbox.monitor)
        self._continue(self._sandbox.payload)
        self._thawing = not self._custody.thaw()

    def _continue(self, process: int) -> None:
        try:
            os.kill(process, signal.SIGCONT)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        """See that nothing is left, whatever it did to outlive the monitor (E12)."""
        limit = time.monotonic() + _BURIAL
        while time.monotonic() < limit:
            try:
                signal.pidfd_send_signal(self._sandbox.init_descriptor, signal.SIGKILL)
            except ProcessLookupError:
                return
            if not freezer.alive(self._sandbox.init):
                return
            time.sleep(0.0005)
