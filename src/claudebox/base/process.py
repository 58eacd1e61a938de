"""Our own processes, which keep nothing of the launcher and end with it; and what /proc says about others."""

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
SIGNAL_POLL = 0.1  # seconds between two checks for signals
_BELATED = 0.5  # seconds in which Ctrl+C was still meant for the agent
_ATTEMPTS, _PAUSE = 5, 0.2
EVERYTHING: tuple[int, ...] = (-1,)  # stands for all open descriptors

_ended: dict[int, int | None] = {}  # registered children → their status from `waitpid`; None: running


class Pending(Exception):  # noqa: N818 - not an error
    """Limited work goes on in the background."""


class Unfinished(Exception):  # noqa: N818 - not an error
    """Limited work was interrupted, or failed; the text says why."""


def run_limited(
    body: Callable[[], Any], keep: Iterable[int] = (), memory: int = MEMORY, patience: float = float("inf")
) -> Any:
    """Run a function in a process with limited memory that a signal ends; return its result or raise Unfinished.

    For work on what an agent wrote, of any size. The process keeps the descriptors `keep`. After `patience` seconds
    this raises Pending, and the process goes on for as long as we live.
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
                if not select.select([outlet], [], [], SIGNAL_POLL)[0]:
                    passed = time.monotonic() - begun
                    if is_asked_to_end(passed):
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
                _kill(child)
    done, result = marshal.loads(answer) if answer else (False, "its process was killed")  # noqa: S302 - of our own
    if not done:
        raise Unfinished(result)
    return result


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):  # it was reaped already
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
    except Exception as error:  # noqa: BLE001 - the launcher reports it
        why = error.strerror if isinstance(error, OSError) else str(error) if isinstance(error, Unfinished) else ""
        answer = marshal.dumps((False, why or type(error).__name__))
    write_all(inlet, answer)


def is_asked_to_end(seconds: float) -> bool:
    """Take a pending signal, and return whether it asks us to give up work that has taken `seconds` so far."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    endings = [number for number in _ENDING if number in blocked and signal.getsignal(number) is not signal.SIG_IGN]
    found = signal.sigtimedwait(endings, 0) if endings else None
    return found is not None and not (seconds < _BELATED and found.si_signo == signal.SIGINT)


def fork(body: Callable[[], object], keep: Iterable[int]) -> int:
    """Run a function in a child with no descriptors but these; return its process number."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)  # no handler of ours may run in the child
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
        reset_signals()
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
    except BaseException:  # noqa: BLE001 - nothing may return from here; the parent sees the status
        status = 1
    os._exit(status)


def reset_signals() -> None:
    """Reset every signal to its default action; Python has changed some and the launcher others."""
    for number in _CATCHABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, which may have happened already."""
    if syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `end_with`."""
    syscalls.call("prctl", _PR_SET_PDEATHSIG, 0, 0, 0, 0)


def drop_capabilities() -> None:
    if syscalls.call("capset", _CAPABILITY_VERSION + bytes(4), bytes(24)) != 0:
        raise OSError("capabilities could not be dropped")


def spawn(words: tuple[str, ...], inherited: dict[int, int], environ: dict[str, str] | None = None) -> int:
    """Start a program with a minimal environment and these descriptors: number there → number here."""
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
    """Keep the status of this child for `poll`, wherever it is reaped; return the child."""
    _ended[child] = None
    return child


def note_end(child: int, status: int) -> None:
    """Record the status of a child that was reaped together with adopted orphans."""
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
    """Kill a registered child; return its exit code if it had ended before."""
    code = poll(child)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _ended.pop(child, None)
    return code


def bind(init: int) -> None:
    """Have the kernel kill the first process of a sandbox, and so all of it, when this process ends (E10).

    By ptrace: code that takes over that process could undo PR_SET_PDEATHSIG.
    """
    syscalls.call("ptrace", _SEIZE, init, None, _DIE_WITH_TRACER)


def resume(init: int, status: int) -> None:
    """Resume a bound process that `waitpid` reported as stopped, with the signal that stopped it."""
    number = None if status >> 16 else os.WSTOPSIG(status)  # a ptrace event, or a signal
    syscalls.call("ptrace", _CONTINUE, init, None, number)


def parent(process: int) -> int:
    """Return the parent of a process, 0 if there is none."""
    return int(_status(process).get(b"PPid", b"0"))


def is_stopped(process: int) -> bool:
    """Return whether a process has stopped, or will before it does anything else."""
    status = _status(process)
    if _letter(status) != b"D":
        return _letter(status) in b"Tt"
    # It may be in `vfork`, whose child was stopped before it could `exec`.
    handled, pending = (
        int(status.get(one, b"0"), 16) | int(status.get(other, b"0"), 16)
        for one, other in ((b"SigIgn", b"SigCgt"), (b"SigPnd", b"ShdPnd"))
    )
    return bool(pending & ~handled & _STOPPING) and any(_letter(_status(child)) == b"T" for child in _children(process))


def has_descendants(process: int) -> bool:
    return any(_letter(_status(child)) not in b"ZX" or has_descendants(child) for child in _children(process))


def kill_tree(process: int) -> None:
    """Kill a process and all its descendants, the youngest first."""
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
    return [
        int(child)
        for thread in threads
        for child in (read_small(f"/proc/{process}/task/{thread}/children", limit=1 << 24) or b"").split()
    ]


def _letter(status: dict[bytes, bytes]) -> bytes:
    """Return the state as `ps` shows it; X if it has gone."""
    return status.get(b"State", b"X")[:1]


def _status(process: int) -> dict[bytes, bytes]:
    """Return the fields of /proc/PROCESS/status; none if it has gone."""
    lines = (line.partition(b":\t") for line in (read_small(f"/proc/{process}/status") or b"").split(b"\n"))
    return {name: value for name, _, value in lines}
