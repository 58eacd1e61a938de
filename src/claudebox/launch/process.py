"""Processes beside the sandbox: none keeps anything of the launcher, none outlives it."""

from __future__ import annotations

import os
import time

from claudebox import syscalls
from claudebox.files import Closing, read_small, write_all
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION = (0x20080522).to_bytes(4, "little")
_ALL = signal.valid_signals()
_CATCHABLE = tuple(number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP))
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
MEMORY = 1 << 30  # bytes that limited work may take
_LISTEN, _BELATED = 0.1, 0.5  # seconds between two looks for signals; for so long Ctrl+C was meant for the agent
_ATTEMPTS, _PAUSE = 5, 0.2


class Unfinished(Exception):  # noqa: N818 - not an error
    """Limited work was interrupted, or failed; the text says why."""


def run_limited(body: Callable[[], Any], keep: Iterable[int] = (), memory: int = MEMORY) -> Any:
    """Run a function in a process with limited memory that a signal ends, and return its result; or raise Unfinished.

    For work on what an agent wrote: however much that is, the launcher itself only waits.
    """
    import marshal
    import select

    outlet, inlet = os.pipe()
    with Closing(outlet):
        try:
            child = _fork_patiently(lambda: _answer(body, inlet, memory), (inlet, *keep))
        finally:
            os.close(inlet)
        answer, begun = b"", time.monotonic()
        try:
            while True:
                if not select.select([outlet], [], [], _LISTEN)[0]:
                    if _is_asked_to_end(belated=time.monotonic() - begun < _BELATED):
                        raise Unfinished("it was interrupted")
                    continue
                piece = os.read(outlet, 1 << 16)
                if not piece:
                    break
                answer += piece
        finally:
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except (ProcessLookupError, ChildProcessError):  # somebody has reaped it already
                pass
    done, result = marshal.loads(answer) if answer else (False, "its process was killed")  # noqa: S302 - of our own
    if not done:
        raise Unfinished(result)
    return result


def _fork_patiently(body: Callable[[], object], keep: tuple[int, ...]) -> int:
    for left in range(_ATTEMPTS, 0, -1):
        try:
            return fork(body, keep)
        except OSError as error:
            if left == 1:
                raise Unfinished(f"no process could be started: {error.strerror}") from None
            time.sleep(_PAUSE)
    raise AssertionError


def _answer(body: Callable[[], Any], inlet: int, memory: int) -> None:
    import marshal
    import resource

    used = int((read_small("/proc/self/statm") or b"0").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = used + memory if hard == resource.RLIM_INFINITY else min(hard, used + memory)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        answer = marshal.dumps((True, body()))
    except Exception as error:  # noqa: BLE001 - the launcher says what it was
        why = error.strerror if isinstance(error, OSError) else str(error) if isinstance(error, Unfinished) else ""
        answer = marshal.dumps((False, why or type(error).__name__))
    write_all(inlet, answer)


def _is_asked_to_end(*, belated: bool) -> bool:
    """Take a signal that waits because it is blocked, and return whether it ends us."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    endings = [number for number in _ENDING if number in blocked and signal.getsignal(number) is not signal.SIG_IGN]
    found = signal.sigtimedwait(endings, 0) if endings else None
    return found is not None and not (belated and found.si_signo == signal.SIGINT)


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
