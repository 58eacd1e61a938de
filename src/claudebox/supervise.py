"""Staying beside a running sandbox: signals, suspension, the end.

The sandbox shares the person's terminal and process group, so the terminal's own signals reach it without help.
What remains is to pass on what was sent to claudebox alone, to suspend the whole of it, and to tidy up.
"""

from __future__ import annotations

import os
import time

from claudebox.files import read_small
from claudebox.kernel import signal
from claudebox.launch import FORWARDED
from claudebox.plan import IGNORED_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.launch import Sandbox
    from claudebox.terminal import Terminal

_GRACE = 10.0  # seconds between a polite end and a forced one
_FOREVER = 3600.0
_FROM_KERNEL = 0x80  # si_code of what a terminal sends to its whole foreground group
_FREEZE_ROUNDS = 200
_STOP_POLLS, _STOP_POLL = 20, 0.005


def wait(sandbox: Sandbox, terminal: Terminal, *, detached: bool, chore: Callable[[], float] | None = None) -> int:
    """Wait for the end and return the exit status, as a shell would show it.

    `chore` is done now and then, and returns in how many seconds it wants to be done again.
    """
    watched = [*IGNORED_SIGNALS, *FORWARDED, signal.SIGCHLD, signal.SIGTSTP]
    deadline: float | None = None
    while True:
        timeout = chore() if chore else _FOREVER
        if deadline is not None:
            timeout = min(timeout, max(0.0, deadline - time.monotonic()))
        information = terminal.receive(watched, timeout)
        if information is None:
            if deadline is not None and time.monotonic() >= deadline:
                os.kill(sandbox.monitor, signal.SIGKILL)
                deadline = None
            continue
        number = information.si_signo
        if number == signal.SIGCHLD:
            process, status = os.waitpid(sandbox.monitor, os.WNOHANG | os.WUNTRACED)
            if process and not os.WIFSTOPPED(status):
                return _shell_status(status)
            if process:
                _follow_suspension(sandbox, terminal)
            continue
        if detached or information.si_code != _FROM_KERNEL:  # the terminal has told the payload itself
            _send(sandbox, number)
        if number == signal.SIGTSTP:
            _follow_suspension(sandbox, terminal)
        elif number in (signal.SIGTERM, signal.SIGHUP) and deadline is None:
            deadline = time.monotonic() + _GRACE


def _shell_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _send(sandbox: Sandbox, number: int) -> None:
    try:
        signal.pidfd_send_signal(sandbox.payload_descriptor, number)
    except ProcessLookupError:
        return  # it has ended: the monitor will tell


def _follow_suspension(sandbox: Sandbox, terminal: Terminal) -> None:
    """If the payload has stopped, stop everything inside and then ourselves, until we are continued.

    While the person types at the shell, nothing inside may run: a process that left our session could read the
    terminal although it is in the background (B06).
    """
    if not _has_stopped(sandbox.payload):  # it ignores the signal, or tidies up first and sends its own
        _kill((sandbox.monitor,), signal.SIGCONT)
        return
    stopped = _freeze(sandbox)
    terminal.leave()
    reason = signal.SIGTSTP
    while True:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
        os.kill(os.getpid(), reason)  # returns when somebody continues us
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
        if terminal.foreground():
            break
        stopped |= _freeze(sandbox)  # `bg`: the shell has woken our whole group
        reason = signal.SIGTTIN
    terminal.enter()
    _kill((sandbox.monitor, *stopped, sandbox.payload), signal.SIGCONT)


def _has_stopped(process: int) -> bool:
    for _ in range(_STOP_POLLS):
        if _state(process) in "Tt":
            return True
        time.sleep(_STOP_POLL)
    return False


def _freeze(sandbox: Sandbox) -> set[int]:
    """Stop every process of the sandbox and return those that were running."""
    stopped: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):
        running = {process for process in _descendants(sandbox.init) if _state(process) not in "TtZX"}
        if not running:
            return stopped
        _kill(running, signal.SIGSTOP)
        stopped |= running
        time.sleep(0.001)
    _kill((sandbox.monitor,), signal.SIGKILL)  # it forks faster than it can be stopped: better none than a spy
    return stopped


def _kill(processes: Iterable[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def _descendants(process: int) -> Iterator[int]:
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        lists = (read_small(f"/proc/{parent}/task/{thread}/children") or b"" for thread in threads)
        children = [int(child) for words in lists for child in words.split()]
        waiting += children
        yield from children


def _state(process: int) -> str:
    """Return the state of a process as one letter; X if it has gone."""
    fields = (read_small(f"/proc/{process}/stat") or b"").rpartition(b")")[2].split()
    return chr(fields[0][0]) if fields else "X"
