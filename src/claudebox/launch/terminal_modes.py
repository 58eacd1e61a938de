"""Modes, size and use of one terminal: what `terminal` remembers of it and puts back. Loaded where there is one."""

from __future__ import annotations

import fcntl
import os
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from claudebox.launch.terminal import Remembered

_TIOCNXCL, _TIOCGEXCL = 0x540D, 0x80045440
_PTY_MAJORS = range(136, 144)
_ANSWER_TIMEOUT = 2  # tenths of a second
_LONGEST_ANSWER = 4096  # what was typed before it included


def release(state: Remembered) -> None:
    """End exclusive use and stopped output, which would stop us as well."""
    try:
        if not state.exclusive:
            fcntl.ioctl(state.descriptor, _TIOCNXCL)
        termios.tcflow(state.descriptor, termios.TCOON)
        if os.major(os.fstat(state.descriptor).st_rdev) not in _PTY_MAJORS:
            termios.tcflow(state.descriptor, termios.TCION)
    except (OSError, termios.error):
        return


def modes(descriptor: int) -> list[Any] | None:
    """Return the modes of a terminal; None of what is none."""
    try:
        return termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        return None


def set_modes(state: Remembered, *, forgetting: bool = False) -> None:
    """Put modes back when everything is written; `forgetting` what was typed meanwhile."""
    try:
        if state.modes is not None:
            termios.tcsetattr(state.descriptor, termios.TCSAFLUSH if forgetting else termios.TCSADRAIN, state.modes)
    except (OSError, termios.error):
        return


def is_exclusive(descriptor: int) -> bool:
    """Return whether nobody else can open it."""
    try:
        return any(fcntl.ioctl(descriptor, _TIOCGEXCL, bytes(4)))
    except OSError:
        return False


def size(descriptor: int) -> bytes:
    """Return rows and columns as the kernel keeps them."""
    try:
        return fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
    except OSError:
        return b""


def correct_size(descriptor: int) -> None:
    """Ask the terminal for its last cell: its size may have been changed from inside. Without an answer it stays."""
    try:
        modes = termios.tcgetattr(descriptor)
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 0, _ANSWER_TIMEOUT
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, modes)
        os.write(descriptor, b"\x1b7\x1b[9999;9999H\x1b[6n\x1b8")
        answer = b""
        while not answer.endswith(b"R") and len(answer) < _LONGEST_ANSWER and (piece := os.read(descriptor, 64)):
            answer += piece
        numbers = answer.rpartition(b"\x1b[")[2].removesuffix(b"R").split(b";")
        if len(numbers) == 2 and all(number.isdigit() and len(number) <= 4 for number in numbers):
            size = b"".join(int(number).to_bytes(2, sys.byteorder) for number in numbers)
            fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size + bytes(4))
    except (OSError, termios.error):
        return
