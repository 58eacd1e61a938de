"""Processes beside the sandbox: none keeps anything of the launcher, none outlives it."""

from __future__ import annotations

import os

from claudebox import syscalls
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION = (0x20080522).to_bytes(4, "little")
_ALL = signal.valid_signals()
_CATCHABLE = tuple(number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP))


def fork(body: Callable[[], object], keep: Iterable[int]) -> int:
    """Run a function in a process of its own that has these descriptors and no others; return its number."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)  # no handler of ours may run over there
    try:
        child = os.fork()
        if child == 0:
            _become(parent, keep, body)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(parent: int, keep: Iterable[int], body: Callable[[], object]) -> None:
    status = 1
    try:
        os.chdir("/")
        os.setsid()  # the terminal's signals are meant for the sandbox
        defaults()
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            if descriptor not in keep:
                os.dup2(null, descriptor)
        last = 2
        for descriptor in sorted(keep):
            if descriptor > 2:
                os.closerange(last + 1, descriptor)
                last = descriptor
        os.closerange(last + 1, 1 << 20)
        end_with(parent)
        body()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may return from here; whoever waits for us sees the end
        status = 1
    os._exit(status)


def defaults() -> None:
    """Take every signal as a fresh program does; Python has changed some and the launcher others."""
    for number in _CATCHABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, which may have happened already."""
    if syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take that back."""
    syscalls.call("prctl", _PR_SET_PDEATHSIG, 0, 0, 0, 0)


def renounce() -> None:
    """Give up every capability, here and in all that follows."""
    if syscalls.call("capset", _CAPABILITY_VERSION + bytes(4), bytes(24)) != 0:
        raise OSError("capabilities could not be given up")


def spawn(words: tuple[str, ...], inherited: dict[int, int], environ: dict[str, str] | None = None) -> int:
    """Start a program with next to no environment and these descriptors: number there → number here."""
    parent = os.getpid()

    def body() -> None:
        for there, here in inherited.items():
            if there == here:
                os.set_inheritable(here, True)  # noqa: FBT003
            else:
                os.dup2(here, there)
        end_with(parent)
        os.execve(words[0], words, {"PATH": "/usr/bin:/bin"} if environ is None else environ)

    return fork(body, inherited.values())


def end(process: int) -> int | None:
    """End a child and return its status if it had ended by itself before."""
    found, status = os.waitpid(process, os.WNOHANG)
    if found:
        return os.waitstatus_to_exitcode(status)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None
