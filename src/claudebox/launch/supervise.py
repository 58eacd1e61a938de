"""Staying beside a running sandbox: signals, suspension, the end.

The sandbox shares the user's terminal and process group, so the terminal's own signals reach it without help.
What remains is to pass on what was sent to claudebox alone, to suspend the whole of it, and to tidy up.
Whenever the terminal is not that of our job everything inside is frozen, whatever it does with signals (B15).
"""

from __future__ import annotations

import os
import time

from claudebox.launch import freezer
from claudebox.launch.job import Job
from claudebox.launch.start import JOB_CONTROL
from claudebox.plan.bwrap_args import FORWARDED_SIGNALS, IGNORED_SIGNALS
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from claudebox.launch.start import Sandbox
    from claudebox.launch.terminal import Terminal

OUT_OF_TIME = 124  # the status of a session that its limit of time has ended, as `timeout` has it
_GRACE = 10.0  # seconds between a polite end and a forced one
_FOREVER = 3600.0
_FROM_KERNEL = 0x80  # si_code of what a terminal sends to its whole foreground group
_REGULARLY = 0.1  # how often is looked whose terminal it is
# How long and how often is looked after a signal: first at once, then less and less often.
_ATTENTION, _SOONEST, _LATEST = 5.0, 0.001, 0.01
_RETURN = 0.1  # how long a job may take to come back to the foreground after it was continued
_REAPING = 5.0


def wait(sandbox: Sandbox, terminal: Terminal, *, detached: bool, chores: Iterable[Callable[[], float]] = ()) -> int:
    """Wait for the end and return the exit status, as a shell would show it.

    `chores` are done now and then; each returns in how many seconds it wants to be done again.
    """
    supervisor = _Supervisor(sandbox, terminal, detached=detached)
    while True:
        status = supervisor.step(min((chore() for chore in chores), default=_FOREVER))
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
        self._job = Job()
        self._freezer = freezer.Freezer(sandbox.init)
        self._thawing = False
        seconds = sandbox.limits.seconds if sandbox.limits is not None else 0
        self._expiry = time.monotonic() + seconds if seconds else 0.0  # when the time is up; 0: never
        self._deadline = 0.0  # when a polite end becomes a forced one; 0: nobody asked for the end
        # When something last happened that may cost us the terminal; 0: not lately.
        self._alarmed = time.monotonic() if terminal.shared else 0.0
        self._asked = False  # whether the payload may be about to stop
        self._belated = 0.0  # until when a stop of the payload belongs to a suspension that is over
        self._verdict = 0  # the status if we ended it ourselves
        self._receive = self._receiver()

    def _receiver(self) -> Callable[[float], Any]:
        watched = [*self._endings, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL, *self._terminal.signals]
        carriers = [*self._terminal.carriers]
        if not carriers:
            return lambda timeout: signal.sigtimedwait(watched, timeout)
        from claudebox.launch.events import Events

        self._terminal.begin()
        return Events(watched, carriers).wait

    def step(self, timeout: float) -> int | None:
        """Wait for the next event and deal with it; return the status if it was the end."""
        now = time.monotonic()
        for moment in (self._deadline, self._expiry):
            if moment:
                timeout = min(timeout, max(0.0, moment - now))
        if self._alarmed:
            timeout = min(timeout, max(_SOONEST, min(_LATEST, (now - self._alarmed) / 2)))
            if now > self._alarmed + _ATTENTION:
                self._alarmed, self._asked = 0.0, False
        elif self._terminal.shared:
            timeout = min(timeout, _REGULARLY)
        information = self._receive(timeout)
        if information is not None and information.si_signo == signal.SIGCHLD:
            status = self._hear_of_children()
            if status is not None:
                return status
        elif information is not None:
            self._pass_on(information)
        self._look()
        return None

    def _look(self) -> None:
        now = time.monotonic()
        if self._expiry and now >= self._expiry:
            self._expiry, self._verdict = 0.0, OUT_OF_TIME
            self._send(signal.SIGTERM)
            self._deadline = self._deadline or now + _GRACE
        if self._deadline and now >= self._deadline:
            self._deadline = 0.0
            os.kill(self._sandbox.monitor, signal.SIGKILL)
        elif self._terminal.shared and self._job.is_orphaned():
            self._end(signal.SIGHUP)
        elif not self._is_ours():
            self._suspend(by_force=not freezer.stopped(self._sandbox.payload))
        elif (self._asked or now < self._belated) and freezer.stopped(self._sandbox.payload):
            if now < self._belated:
                self._belated = 0.0
                self._send_to_group(signal.SIGCONT)
            else:
                self._suspend()
        else:
            self._terminal.remember()

    def _is_ours(self) -> bool:
        """Return whether the terminal, if there is one, is that of our job or of what runs inside."""
        if not self._terminal.shared:
            return True
        if self._job.is_halted():
            return False
        group = self._terminal.foreground_group()
        return group == os.getpgrp() or freezer.has_group(self._sandbox.init, group)

    def _becomes_ours(self) -> bool:
        """Return whether the terminal is ours again; a shell continues the processes of a job one after the other."""
        limit = time.monotonic() + _RETURN
        while not self._is_ours():
            if time.monotonic() > limit:
                return False
            time.sleep(_SOONEST)
        return True

    def _hear_of_children(self) -> int | None:
        self._freezer.attend()
        if self._thawing:  # a thread that was busy in the kernel has come out of it
            self._thawing = not self._freezer.thaw()
        process, status = os.waitpid(self._sandbox.monitor, os.WNOHANG | os.WUNTRACED)
        if not process:
            for sidecar in self._sandbox.sidecars:
                sidecar.tend()
            return None
        if os.WIFSTOPPED(status):  # so has, or will, the payload: it sent the signal to the whole group
            self._attend()
            return None
        for sidecar in self._sandbox.sidecars:
            if hasattr(sidecar, "hang_up"):
                sidecar.hang_up()
        self._reap()
        code = os.waitstatus_to_exitcode(status)
        return self._verdict or (code if code >= 0 else 128 - code)

    def _pass_on(self, information: Any) -> None:
        number = information.si_signo
        from_kernel = information.si_code == _FROM_KERNEL
        self._alarmed = time.monotonic()
        if number in self._terminal.signals:
            self._terminal.resize()
        elif number in JOB_CONTROL:
            if number == signal.SIGTSTP:
                self._hear_of_stop(from_kernel=from_kernel, sender=information.si_pid)
            elif number == signal.SIGCONT:  # the job was stopped and continued before we could see it
                self._belated = self._alarmed + _ATTENTION
        elif not from_kernel and freezer.is_inside(information.si_pid, self._sandbox.init):
            return  # meant for its group, and this kernel counts us among it
        else:
            self._pass_on_others(number, from_kernel=from_kernel)

    def _hear_of_stop(self, *, from_kernel: bool, sender: int) -> None:
        if self._detached:  # in a session without a terminal nobody stops by himself
            self._suspend()
            return
        if not from_kernel and not freezer.is_inside(sender, self._sandbox.init):
            self._send(signal.SIGTSTP)
        self._belated = 0.0
        self._attend()

    def _pass_on_others(self, number: int, *, from_kernel: bool) -> None:
        if self._detached and from_kernel:
            self._send_to_group(number)
        elif not from_kernel or (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
            # A terminal tells the whole foreground group itself, but the end of the line only the session's leader.
            self._send(number)
        if number in (signal.SIGTERM, signal.SIGHUP) and not self._deadline:
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
        self._alarmed = time.monotonic()
        self._asked = True
        self._continue(self._sandbox.monitor)  # or it could not tell us the end

    def _suspend(self, *, by_force: bool = False) -> None:
        """Hold everything inside, by force if it did not stop itself; then stop the job until it is continued.

        While the user types at the shell, nothing inside may run: a process that left our session could read the
        terminal although it is in the background (B06). A group that the kernel does not stop has nobody who could
        continue it: if the terminal is not ours either, that is a hang-up.
        """
        self._asked = False
        if not self._freezer.freeze():  # it multiplies faster than it can be held: better none than a spy
            os.kill(self._sandbox.monitor, signal.SIGKILL)
            return
        if self._job.is_halted() and freezer.has_group(self._sandbox.init, self._terminal.foreground_group()):
            self._terminal.hand_to(self._job.shell)  # which had it, before it was taken away again from inside
        self._terminal.leave()
        number = signal.SIGTSTP
        # Whoever started us stopped before us, and may have been continued before us as well.
        back = (by_force or signal.SIGCONT in signal.sigpending()) and self._is_ours()
        while not back:
            stopped = self._job.stop(number)
            back = self._becomes_ours()
            ending = signal.sigpending().intersection(self._endings)
            if not back and (ending or not stopped):  # to end politely it would run beside the shell
                self._end(min(ending, default=signal.SIGHUP))
                return
            number = signal.SIGTTIN  # `bg`
        self._terminal.enter(by_force=by_force)
        self._continue(self._sandbox.monitor)
        if self._detached:  # in another group, of which the shell knows nothing
            self._send_to_group(signal.SIGCONT)
        else:
            self._continue(self._sandbox.payload)
        if by_force:  # what was on the screen is not there any more
            self._send(signal.SIGWINCH)
        self._thawing = not self._freezer.thaw()
        self._alarmed = time.monotonic()
        # It may have been on its way to stop for the very signal that stopped the job.
        self._belated = self._alarmed + _ATTENTION if by_force else 0.0

    def _end(self, number: int) -> None:
        """End it at once, for a reason that the status tells."""
        self._verdict = 128 + number
        try:
            signal.pidfd_send_signal(self._sandbox.init_descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.kill(self._sandbox.monitor, signal.SIGKILL)

    def _continue(self, process: int) -> None:
        try:
            os.kill(process, signal.SIGCONT)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        """See that nothing is left, whatever it did to outlive the monitor, not even a dead process (E12)."""
        limit = time.monotonic() + _REAPING
        while time.monotonic() < limit:
            try:
                signal.pidfd_send_signal(self._sandbox.init_descriptor, signal.SIGKILL)
                if os.waitpid(self._sandbox.init, os.WNOHANG)[0]:
                    continue  # once as the one that held it, once as its parent
            except ProcessLookupError:
                break
            except ChildProcessError:
                if not freezer.alive(self._sandbox.init):
                    break
            signal.sigtimedwait([signal.SIGCHLD], 0.005)
