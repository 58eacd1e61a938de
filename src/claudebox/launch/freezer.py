"""Keeping hold of what runs inside: it ends with us, and it stands still while the user types at the shell.

Signals are not enough for either. The first process inside can be taken over by the others and made to outlive
bwrap (E10). A stopped process can have itself continued by a timer or by the very key that is pressed, two can
continue each other in turn, and one whose first thread has ended looks dead (B06). So threads are held as a debugger
holds them, which nothing but the holder can undo. Only what cannot be held (somebody inside holds it already, or
the machine forbids it, and then it forbids the take-over as well) is stopped by signal.
"""

from __future__ import annotations

import os
import time

from claudebox import syscalls
from claudebox.files import Closing
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SEIZE, _INTERRUPT, _CONTINUE, _DETACH = 0x4206, 0x4207, 7, 17
_DIE_WITH_HOLDER = 1 << 20
_HOLD_CHILDREN = 1 << 1 | 1 << 2 | 1 << 3  # fork, vfork, clone: from their first instruction
_ALL_KINDS = 0x40000000  # __WALL: other people's children and threads, too
_STOPS = frozenset((signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
_FREEZE_LIMIT, _THAW_LIMIT, _PAUSE = 3.0, 1.0, 0.0005  # seconds
_LOOKS = 3


def bind(init: int) -> None:
    """Let the first process inside run, but not after our end."""
    syscalls.call("ptrace", _SEIZE, init, None, _DIE_WITH_HOLDER)


class Freezer:
    """Holds everything that descends from the first process of a sandbox, and that process too."""

    def __init__(self, init: int) -> None:
        self._init = init
        self._own = b"%d" % os.getpid()
        self._stopped: set[int] = set()

    def attend(self) -> None:
        """Let the first process have the signals that it got: whoever is held waits for that."""
        while _resume(self._init, _CONTINUE):
            continue

    def freeze(self) -> bool:
        """Hold everything; return whether there was a moment at which all of it stood still."""
        if not os.path.exists(f"/proc/{self._init}/task/{self._init}/children"):
            return False  # a kernel that does not tell, or the end
        limit = time.monotonic() + _FREEZE_LIMIT
        before: dict[int, tuple[bool, bytes]] = {}
        while time.monotonic() < limit:
            # Two equal looks in a row: nothing ran, came or went between them.
            now = {thread: self._hold(process, thread) for process, thread in _threads(self._init)}
            if now and now == before and all(still for still, _ in now.values()):
                return True
            before = now
            time.sleep(_PAUSE)
        return False

    def thaw(self) -> bool:
        """Let everything go on that ran before; return whether nothing is held any more."""
        limit = time.monotonic() + _THAW_LIMIT
        while time.monotonic() < limit:
            held = [thread for _, thread in _threads(self._init) if self._holds(thread)]
            if not held:
                for process in self._stopped:
                    _signal(process, signal.SIGCONT)
                self._stopped.clear()
                return True
            for thread in held:
                _resume(thread, _CONTINUE if thread == self._init else _DETACH)
            time.sleep(_PAUSE)
        return False

    def _hold(self, process: int, thread: int) -> tuple[bool, bytes]:
        """Make sure that a thread is held or on its way; return whether it stands still, and how often it ran."""
        status = _status(thread)
        letter = _letter(status)
        ran = status.get(b"voluntary_ctxt_switches", b"") + b" " + status.get(b"nonvoluntary_ctxt_switches", b"")
        if letter in b"ZX":
            return True, letter
        held = status.get(b"TracerPid") == self._own
        if held and letter in b"tD":  # one in the midst of a system call (D) is caught when it comes out of it
            return True, ran
        if held or syscalls.call("ptrace", _SEIZE, thread, None, _HOLD_CHILDREN | _DIE_WITH_HOLDER) == 0:
            syscalls.call("ptrace", _INTERRUPT, thread, None, None)
            return False, ran
        if letter in b"Tt" or (letter == b"D" and _pending(status) & _bits(signal.SIGSTOP)):
            return True, ran
        if _signal(process, signal.SIGSTOP):
            self._stopped.add(process)
        return False, ran

    def _holds(self, thread: int) -> bool:
        status = _status(thread)
        return status.get(b"TracerPid") == self._own and (thread != self._init or _letter(status) == b"t")


def alive(init: int) -> bool:
    """Return whether anything that descends from the first process still runs."""
    return any(_letter(_status(thread)) not in b"ZX" for process, thread in _threads(init) if process != init)


def kill(process: int) -> None:
    """End a process and everything that descends from it."""
    for member in reversed([member for member, thread in _threads(process) if member == thread]):
        _signal(member, signal.SIGKILL)


def stopped(process: int) -> bool:
    """Return whether a process has stopped, or will before it does anything else."""
    status = _status(process)
    if _letter(status) != b"D":
        return _letter(status) in b"Tt"
    # It may wait for what it has forked (vfork), and that has stopped before it could become a program.
    own = _set(status, b"SigIgn") | _set(status, b"SigCgt")
    due = _pending(status) & ~own & _bits(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
    children = _read(f"/proc/{process}/task/{process}/children").split()
    return bool(due) and any(_letter(_status(int(child))) == b"T" for child in children)


def is_stopped(process: int) -> bool:
    """Return whether a process was stopped by a signal."""
    return _letter(_status(process)) == b"T"


def parent(process: int) -> int:
    """Return the parent of a process, 0 if there is none."""
    return int(_status(process).get(b"PPid", b"0"))


def is_inside(process: int, init: int) -> bool:
    """Return whether a process descends from the first one inside, which adopts all orphans there."""
    while process > 1:
        if process == init:
            return True
        process = parent(process)
    return False


def has_group(init: int, number: int) -> bool:
    """Return whether a process group is one of the sandbox."""
    if os.path.exists(f"/proc/{number}"):
        return is_inside(number, init)
    # Its leader has ended. Processes come and go while we look, so one look is not enough.
    for _ in range(_LOOKS):
        if any(process == thread and group(process) == number for process, thread in _threads(init)):
            return True
    return False


def group(process: int) -> int:
    """Return the process group of a process, -1 if it has gone."""
    try:
        return os.getpgid(process)
    except OSError:
        return -1


def _threads(process: int) -> Iterator[tuple[int, int]]:
    """Yield process and thread for the process and everything that descends from it."""
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        try:
            own = [int(name) for name in os.listdir(f"/proc/{parent}/task")]
        except OSError:
            continue
        for thread in own:
            yield parent, thread
            waiting += map(int, _read(f"/proc/{parent}/task/{thread}/children").split())


def _resume(thread: int, request: int) -> bool:
    """Let a held thread go on, if it stands still."""
    try:
        _, status = os.waitpid(thread, os.WNOHANG | _ALL_KINDS)
    except ChildProcessError:
        return False
    if not os.WIFSTOPPED(status):
        return False
    number = None if status >> 16 else os.WSTOPSIG(status)  # a signal on its way must not be lost
    if number in _STOPS and request == _DETACH and group(thread) == os.getpgrp():
        number = None  # but one that would have stopped it with the job: the job goes on
    syscalls.call("ptrace", request, thread, None, number)
    return True


def _signal(process: int, number: int) -> bool:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def _letter(status: dict[bytes, bytes]) -> bytes:
    """Return the state as `ps` shows it; X if there is none any more."""
    return status.get(b"State", b"X")[:1]


def _pending(status: dict[bytes, bytes]) -> int:
    return _set(status, b"SigPnd") | _set(status, b"ShdPnd")


def _set(status: dict[bytes, bytes], name: bytes) -> int:
    return int(status.get(name, b"0"), 16)


def _bits(*numbers: int) -> int:
    return sum(1 << (number - 1) for number in numbers)


def _status(thread: int) -> dict[bytes, bytes]:
    """Return what the kernel says about a thread, nothing if it has gone."""
    lines = (line.partition(b":\t") for line in _read(f"/proc/{thread}/status").split(b"\n"))
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
