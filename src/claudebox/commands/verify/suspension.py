"""The promise that nothing inside reads the terminal while it is somebody else's, tried at a terminal made for it.

The processes are those of a user's day: a shell, a script that it starts, and claudebox in the script. The script is
stopped alone, the shell takes the terminal, and what is typed then must not be read by a program inside that ignores
every signal of job control and has left the session (B15).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Reads on in a session of its own, whatever becomes of the job, and tells what it has read.
SPY = "trap '' TSTP TTIN TTOU INT HUP; exec 3<&0; setsid cat <&3 & echo the spy is ready; while :; do sleep 1; done"
_PATIENCE, _TYPING = 20.0, 0.4  # seconds to start, and for a spy to read what is typed


def examine(launch: Callable[[], object]) -> dict[str, str]:
    """Launch with `SPY` as the program inside; return what became of the promise, as the probe does."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        detail = f"no terminal can be made for it here (/dev/ptmx, /dev/pts): {error.strerror}"
        return {"promise": "suspension", "status": "untestable", "detail": detail}
    heard, said = os.pipe()
    shell = os.fork()
    if shell == 0:
        try:
            _be_shell(slave, said, launch)
        finally:
            os._exit(1)
    os.close(slave)
    os.close(said)
    try:
        status, detail = _type(master, heard, shell)
        return {"promise": "suspension", "status": status, "detail": detail}
    finally:
        os.kill(shell, signal.SIGTERM)  # it ends the rest
        os.waitpid(shell, 0)
        os.close(master)
        os.close(heard)


def _type(master: int, heard: int, shell: int) -> tuple[str, str]:
    if b"the spy is ready" not in _hear(heard, b"ready", _PATIENCE):
        return "untestable", "a program that leaves its session could not be started inside"
    os.write(master, b"first\n")
    if b"first" not in _hear(heard, b"first", _PATIENCE):
        return "untestable", "a program inside does not read the terminal made for it"
    os.kill(shell, signal.SIGUSR1)  # stop the script, take the terminal
    if b"taken" not in _hear(heard, b"taken", _PATIENCE):
        return "broken", "the job could not be stopped"
    os.write(master, b"second\n")
    if b"second" in _hear(heard, b"second", _TYPING):
        return "broken", "a program inside reads what is typed at the shell"
    return "held", ""


def _hear(heard: int, text: bytes, patience: float) -> bytes:
    got = b""
    deadline = time.monotonic() + patience
    while text not in got and (left := deadline - time.monotonic()) > 0:
        if not select.select([heard], [], [], left)[0] or not (piece := os.read(heard, 4096)):
            break
        got += piece
    return got


def _be_shell(slave: int, said: int, launch: Callable[[], object]) -> None:
    """Lead a session at the terminal, start a script in the foreground, and stop it when asked to."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    for number, descriptor in enumerate((slave, said, os.open(os.devnull, os.O_WRONLY))):
        os.dup2(descriptor, number)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    asked = {signal.SIGUSR1, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    script = os.fork()
    if script == 0:
        try:
            _be_script(launch)
        finally:
            os._exit(1)
    os.setpgid(script, script)
    os.tcsetpgrp(0, script)
    if signal.sigwait(asked) == signal.SIGUSR1:
        os.kill(script, signal.SIGSTOP)
        os.waitpid(script, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpid())
        time.sleep(_TYPING)  # as long as it takes to begin to type
        os.write(1, b"taken\n")
        signal.sigwait([signal.SIGTERM])
    os.killpg(script, signal.SIGTERM)
    os.killpg(script, signal.SIGCONT)
    os.waitpid(script, 0)
    os._exit(0)


def _be_script(launch: Callable[[], object]) -> None:
    """Start claudebox and wait for its end, whoever ends it."""
    os.setpgid(0, 0)
    while os.tcgetpgrp(0) != os.getpid():
        time.sleep(0.001)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGTERM])
    signal.signal(signal.SIGTERM, lambda *_: None)  # claudebox tidies up
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        launch()
        os._exit(0)
    os.waitpid(child, 0)
    os._exit(0)
