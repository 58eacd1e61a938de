"""Processes of ours: none keeps anything of the launcher, none outlives it; and what /proc says about others."""

from __future__ import annotations

import os
import time

from claudebox.base import syscalls
from claudebox.base.files import Closing, read_small, write_all
from claudebox.base.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


_PR_SET_PDEATHSIG = 1
_SEIZE, _CONTINUE = 0x4206, 7  # of ptrace
_DIE_WITH_TRACER = 1 << 20
_CAPABILITY_VERSION = (0x20080522).to_bytes(4, "little")
_ALL = signal.valid_signals()
_CATCHABLE = tuple(number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP))
_STOPPING = sum(1 << (number - 1) for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
MEMORY = 1 << 30  # bytes that limited work may take
_LISTEN, _BELATED = 0.1, 0.5  # seconds between two looks for signals; for so long Ctrl+C was meant for the agent
_ATTEMPTS, _PAUSE = 5, 0.2

_ended: dict[int, int | None] = {}  # children of ours → how they ended, as `waitpid` says; None: they run


EVERYTHING: tuple[int, ...] = (-1,)  # stands for all descriptors that are open


class Pending(Exception):  # noqa: N818 - not an error
    """Limited work goes on in the background."""


class Unfinished(Exception):  # noqa: N818 - not an error
    """Limited work was interrupted, or failed; the text says why."""


def run_limited(
    body: Callable[[], Any], keep: Iterable[int] = (), memory: int = MEMORY, patience: float = float("inf")
) -> Any:
    """Run a function in a process with limited memory that a signal ends, and return its result; or raise Unfinished.

    For work on what an agent wrote: however much that is, the launcher itself only waits. It keeps these descriptors.
    After so many seconds of `patience` it raises Pending, and the process goes on for as long as we live.
    """
    import marshal
    import select

    outlet, inlet = os.pipe()
    with Closing(outlet):
        try:
            kept = map(int, os.listdir("/proc/self/fd")) if keep is EVERYTHING else keep
            child = _fork_patiently(lambda: _answer(body, inlet, memory), (inlet, *kept))
        finally:
            os.close(inlet)
        answer, begun, ended = b"", time.monotonic(), True
        try:
            while True:
                if not select.select([outlet], [], [], _LISTEN)[0]:
                    passed = time.monotonic() - begun
                    if _is_asked_to_end(belated=passed < _BELATED):
                        raise Unfinished("it was interrupted")
                    if passed > patience:
                        ended = False
                        raise Pending
                    continue
                piece = os.read(outlet, 1 << 16)
                if not piece:
                    break
                answer += piece
        finally:
            if ended:
                _end_for_certain(child)
    done, result = marshal.loads(answer) if answer else (False, "its process was killed")  # noqa: S302 - of our own
    if not done:
        raise Unfinished(result)
    return result


def _end_for_certain(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):  # somebody has reaped it already
        pass


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
        return register(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(parent: int, keep: Iterable[int], body: Callable[[], object]) -> None:
    status = 1
    try:
        _ended.clear()
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


def register(child: int) -> int:
    """Keep the status of this child for `poll`, whoever reaps it; return it."""
    _ended[child] = None
    return child


def note_end(child: int, status: int) -> None:
    """Take the status of a child that was reaped. The launcher adopts orphans, and reaps those with all others."""
    if child in _ended and not os.WIFSTOPPED(status):
        _ended[child] = status


def poll(child: int) -> int | None:
    """Return the exit code of a registered child, None while it runs."""
    status = _ended.get(child)
    if status is None:
        found, status = os.waitpid(child, os.WNOHANG)
        if not found:
            return None
        note_end(child, status)
    return os.waitstatus_to_exitcode(status)


def end(child: int) -> int | None:
    """End a registered child and return its exit code if it had ended by itself before."""
    code = poll(child)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _ended.pop(child, None)
    return code


def bind(init: int) -> None:
    """Have the kernel kill the first process of a sandbox, and so all of it, when this process ends (E10).

    A signal to its parent's death can be taken back by whoever takes it over from inside; a tracer cannot.
    """
    syscalls.call("ptrace", _SEIZE, init, None, _DIE_WITH_TRACER)


def let_on(init: int, status: int) -> None:
    """Let a bound process have the signal for which it was stopped, as `waitpid` told it."""
    number = None if status >> 16 else os.WSTOPSIG(status)  # an event of ptrace itself, or a signal
    syscalls.call("ptrace", _CONTINUE, init, None, number)


def parent(process: int) -> int:
    """Return the parent of a process, 0 if there is none."""
    return int(_status(process).get(b"PPid", b"0"))


def is_stopped(process: int) -> bool:
    """Return whether a process has stopped, or will before it does anything else."""
    status = _status(process)
    if _letter(status) != b"D":
        return _letter(status) in b"Tt"
    # It may wait for what it has forked (vfork), and that has stopped before it could become a program.
    handled, pending = (
        int(status.get(one, b"0"), 16) | int(status.get(other, b"0"), 16)
        for one, other in ((b"SigIgn", b"SigCgt"), (b"SigPnd", b"ShdPnd"))
    )
    return bool(pending & ~handled & _STOPPING) and any(_letter(_status(child)) == b"T" for child in _children(process))


def has_descendants(process: int) -> bool:
    """Return whether anything runs that descends from a process."""
    return any(_letter(_status(child)) not in b"ZX" or has_descendants(child) for child in _children(process))


def kill_tree(process: int) -> None:
    """End a process and everything that descends from it, the youngest first."""
    found = [process]
    for member in found:
        found += _children(member)
    for member in reversed(found):
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _children(process: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{process}/task/{thread}/children").split()]


def _letter(status: dict[bytes, bytes]) -> bytes:
    """Return the state as `ps` shows it; X if there is none any more."""
    return status.get(b"State", b"X")[:1]


def _status(process: int) -> dict[bytes, bytes]:
    """Return what the kernel says about a process, nothing if it has gone."""
    lines = (line.partition(b":\t") for line in _read(f"/proc/{process}/status").split(b"\n"))
    return {name: value for name, _, value in lines}


def _read(path: str) -> bytes:
    """Return the content of a file of the kernel, however long; nothing if there is none."""
    content = b""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            while piece := os.read(descriptor, 65536):
                content += piece
    except OSError:
        return b""
    return content
