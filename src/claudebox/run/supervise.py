"""The event loop beside a running sandbox: bytes, signals, suspension, chores, the end.

The sandbox has a session of its own, so the user's terminal does not reach it: signals to claudebox are passed on. An
idle session wakes nothing here.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.base import process, syscalls
from claudebox.base.syscalls import signal
from claudebox.plan.bwrap import FORWARDED_SIGNALS, IGNORED_SIGNALS
from claudebox.run.start import JOB_CONTROL, Sandbox
from claudebox.run.terminal import FOREVER, Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol

    from claudebox.run.sidecars import Sidecar
    from claudebox.run.terminal import Carrier

    class Chore(Protocol):
        """Periodic work; if it has a `descriptor`, it also runs whenever that is readable."""

        def look(self) -> float:
            """Do what is due; return in how many seconds to look again."""


OUT_OF_TIME = 124  # the status of a session that its time limit has ended, as for `timeout`
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_FROM_KERNEL = 0x80  # si_code of what a terminal sends to its whole foreground group
_SIGNAL_SET = 128  # bytes of a sigset_t
_AGAIN = 5.0  # seconds until a failed chore is tried again
# How long to wait for a program to stop, which may restore its screen first, and the shortest and longest interval.
_STOPPING, _FIRST_LOOK, _LAST_LOOK = 5.0, 0.001, 0.05
_AGAIN_ENDS = 10.0  # seconds in which the escape, pressed again, ends what cannot be suspended
_REAPING = 5.0


class Supervisor:
    """Waits for the end of one sandbox; `complain` takes what the user should know afterwards."""

    def __init__(
        self,
        sandbox: Sandbox,
        terminal: Terminal,
        sidecars: Iterable[Sidecar],
        chores: Iterable[Chore],
        complain: Callable[[str], None],
    ) -> None:
        self._sandbox, self._terminal, self._complain = sandbox, terminal, complain
        self._sidecars = tuple(sidecars)
        self._chores: list[Any] = [*chores, *self._sidecars]
        self._due = [0.0 for _ in self._chores]
        self._numbers = [*IGNORED_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL, *terminal.signals]
        # What our caller ignores stays ignored, as `nohup` wants it.
        self._endings = [number for number in IGNORED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._numbers = [number for number in self._numbers if number not in IGNORED_SIGNALS] + self._endings
        self._expiry = time.monotonic() + sandbox.seconds if sandbox.seconds else 0.0  # of the time limit; 0: never
        self._deadline = 0.0  # when SIGKILL follows; 0: not asked to end
        self._asked, self._pause = 0.0, 0.0  # since when a stop is expected, and the interval
        self._unheeded = 0.0  # when the escape was pressed and there was no shell to return to
        self._verdict = 0  # the status if the time limit ended it
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        terminal.begin()
        self._take_terminal()
        watched = [chore.descriptor for chore in self._chores if getattr(chore, "descriptor", -1) >= 0]
        self._events = _Events(self._numbers, terminal.carriers, watched)

    def wait(self) -> int:
        """Run until the end; return the exit status as a shell would show it."""
        while True:
            for information in self._events.wait(self._run_chores()):
                if information.si_signo != signal.SIGCHLD:
                    self._pass_on(information)
                elif (status := self._reap_children()) is not None:
                    return status
            self._look()

    def _run_chores(self) -> float:
        """Do the chores that are due; return the seconds until something else is."""
        now = time.monotonic()
        for number, chore in enumerate(self._chores):
            if self._due[number] <= now or getattr(chore, "descriptor", -1) in self._events.ready:
                self._due[number] = now + self._attempt(chore.look)
        moments = [now + self._terminal.look(), *self._due]
        moments += [moment for moment in (self._deadline, self._expiry) if moment]
        moments += [now + self._pause] if self._asked else []
        return max(0.0, min(moments) - now)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Do what must not end the session if it fails, such as a fork at the limit of processes (EAGAIN)."""
        try:
            return action()
        except OSError:
            return _AGAIN
        except Exception as error:  # noqa: BLE001 - a broken chore must not end the session
            self._complain(f"{type(error).__name__} beside the session: {error}")
            return FOREVER

    def _look(self) -> None:
        now = time.monotonic()
        if self._expiry and now >= self._expiry:
            self._expiry, self._verdict = 0.0, OUT_OF_TIME
            self._end(signal.SIGTERM)
        if self._deadline and now >= self._deadline:
            self._deadline = 0.0
            os.kill(self._sandbox.monitor, signal.SIGKILL)
        elif self._terminal.is_gone():
            self._end(signal.SIGHUP, everybody=True)
        elif self._terminal.is_left():
            self._suspend(forced=True)
        elif self._asked:
            self._pause = min(2 * self._pause, _LAST_LOOK)
            if process.is_stopped(self._sandbox.payload):
                self._suspend(forced=False)
            elif now > self._asked + _STOPPING:  # it ignores the key
                self._asked = 0.0

    def _reap_children(self) -> int | None:
        """Reap all children, adopted orphans included; return the status if the sandbox has ended."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if not child:
                break
            if child == self._sandbox.init and os.WIFSTOPPED(status):
                process.resume(child, status)
            elif child == self._sandbox.monitor and os.WIFSTOPPED(status):
                self._expect_stop()  # its group was told to stop
                os.kill(child, signal.SIGCONT)  # stopped, it could not report the end
            elif child == self._sandbox.monitor:
                return self._conclude(status)
            else:
                process.note_end(child, status)
        for sidecar in self._sidecars:
            self._attempt(sidecar.tend)
        return None

    def _conclude(self, status: int) -> int:
        for sidecar in self._sidecars:
            self._attempt(sidecar.hang_up)
        self._kill_rest()
        code = os.waitstatus_to_exitcode(status)
        return self._verdict or (code if code >= 0 else 128 - code)

    def _pass_on(self, information: Any) -> None:
        number = information.si_signo
        from_kernel = information.si_code == _FROM_KERNEL
        if number == signal.SIGWINCH:
            self._terminal.resize()
        elif number == signal.SIGCONT:  # we were stopped and continued; the shell may have used the terminal
            self._take_terminal()
        elif number == signal.SIGTSTP and self._terminal.has_pty:
            self._send_to_group(signal.SIGTSTP)
            self._expect_stop()
        elif number == signal.SIGTSTP:
            self._suspend(forced=True)
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._end(number, everybody=from_kernel)
        elif from_kernel:
            self._send_to_group(number)
        else:
            self._send(number)

    def _end(self, number: int, *, everybody: bool = False) -> None:
        """Ask the program to end; SIGKILL follows after `_GRACE`, which asking again does not extend."""
        (self._send_to_group if everybody else self._send)(number)
        self._deadline = self._deadline or time.monotonic() + _GRACE

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._sandbox.payload_descriptor, number)
        except ProcessLookupError:
            pass  # it has ended, as the monitor will report

    def _send_to_group(self, number: int) -> None:
        try:
            os.killpg(os.getpgid(self._sandbox.payload), number)
        except ProcessLookupError:
            pass

    def _expect_stop(self) -> None:
        """Start polling whether the program stops; it may ignore the signal, or restore its screen first."""
        self._asked, self._pause = time.monotonic(), _FIRST_LOOK

    def _suspend(self, *, forced: bool) -> None:
        """Stop our job until the shell continues it; `forced`: the program did not stop by itself."""
        self._asked = 0.0
        if forced:
            self._send_to_group(signal.SIGSTOP)
        self._terminal.leave()
        stopped = _stop_job(signal.SIGTSTP)
        self._take_terminal()
        self._send_to_group(signal.SIGCONT)
        if forced:  # have the program redraw the screen
            self._send(signal.SIGWINCH)
            if not stopped and self._terminal.has_pty:
                self._offer_end()

    def _take_terminal(self) -> None:
        """Take the terminal; while our job is in the background, stop it, as the kernel stops what reads a terminal."""
        while not self._terminal.is_ours():
            if self._deadline or signal.sigpending().intersection(self._endings):  # do not delay the end
                return
            if not _stop_job(signal.SIGTTOU):  # there is no shell to continue us
                self._end(signal.SIGHUP, everybody=True)
                return
        self._terminal.enter()

    def _offer_end(self) -> None:
        """Offer to end what cannot be suspended, because no shell with job control started us."""
        now = time.monotonic()
        if self._unheeded and now < self._unheeded + _AGAIN_ENDS:
            self._end(signal.SIGHUP, everybody=True)
            return
        self._unheeded = now
        self._terminal.say("there is no shell to return to; the same keys again end the session")

    def _kill_rest(self) -> None:
        """Kill and reap whatever has outlived the monitor (E12)."""
        limit = time.monotonic() + _REAPING
        while time.monotonic() < limit:
            try:
                signal.pidfd_send_signal(self._sandbox.init_descriptor, signal.SIGKILL)
                if os.waitpid(self._sandbox.init, os.WNOHANG)[0]:
                    continue  # once as its tracer, once as its parent
            except ProcessLookupError:
                break
            except ChildProcessError:
                if not process.has_descendants(self._sandbox.init):
                    break
            signal.sigtimedwait([signal.SIGCHLD], 0.005)


def _stop_job(number: int) -> bool:
    """Stop our process group, with the script or `make` that started us, until it is continued.

    Return whether it was stopped: the kernel stops no orphaned group. SIGCONT is blocked, so that it is pending
    afterwards if we were continued.
    """
    while signal.sigtimedwait([signal.SIGCONT], 0) is not None:
        continue
    os.kill(0, number)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return signal.sigtimedwait([signal.SIGCONT], 0) is not None


class _Events:
    """The signals and descriptors that one launcher waits for."""

    def __init__(self, numbers: list[int], carriers: Iterable[Carrier], others: Iterable[int]) -> None:
        """`numbers` are signals, blocked already; `others` are descriptors of chores."""
        self._numbers, self._carriers = numbers, tuple(carriers)
        mask = bytearray(_SIGNAL_SET)
        for number in numbers:
            mask[(number - 1) // 8] |= 1 << (number - 1) % 8
        # Readable while a signal is pending; it is still `sigtimedwait` that takes it.
        self._signals = syscalls.call("signalfd", -1, bytes(mask), os.O_CLOEXEC)
        if self._signals < 0:
            raise OSError("signalfd failed")
        self._poll = select.poll()
        self._poll.register(self._signals, select.POLLIN)
        self._watched: dict[int, int] = {}  # descriptor → events
        self._owners: dict[int, Carrier] = {}
        for descriptor in others:
            self._poll.register(descriptor, select.POLLIN)
        self.ready: set[int] = set()  # those of the others that are readable

    def wait(self, timeout: float) -> list[Any]:
        """Wait until something happens, carry bytes, and return the signals that came."""
        self._watch()
        self.ready.clear()
        signals = False
        for descriptor, events in self._poll.poll(min(timeout, FOREVER) * 1000):
            if descriptor == self._signals:
                signals = True
            elif descriptor in self._watched:
                self._owners[descriptor].step(descriptor, events)
            else:
                self.ready.add(descriptor)
        found = []
        while signals and (information := signal.sigtimedwait(self._numbers, 0)) is not None:
            found.append(information)
        return found

    def _watch(self) -> None:
        """Register what the carriers want by now, if it has changed."""
        wanted: dict[int, int] = {}
        for carrier in self._carriers:
            for descriptor, events in carrier.wanted().items():
                wanted[descriptor] = events
                if self._watched.get(descriptor) != events:
                    self._poll.register(descriptor, events)
                    self._owners[descriptor] = carrier
        for descriptor in self._watched.keys() - wanted.keys():
            self._poll.unregister(descriptor)
        self._watched = wanted
