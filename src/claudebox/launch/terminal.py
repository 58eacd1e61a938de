"""The user's terminal: remembered before the sandbox starts, put back in order after it ends (B08, B16).

What a program can change and nobody can ask for is reset to what every shell expects: a report must not be printed
on a screen that was prepared for it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios

from claudebox import console
from claudebox.syscalls import signal
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from claudebox.launch.events import Carrier
    from claudebox.launch.streams import Streams

_TIOCNXCL, _TIOCGEXCL = 0x540D, 0x80045440
_NULL = os.makedev(1, 3)
_PTY_MAJORS = range(136, 144)
_ANSWER_TIMEOUT = 2  # tenths of a second
_LONGEST_ANSWER = 4096  # what was typed before it included
# Ends a string or a sequence that was begun, the printer as a screen, and VT52.
_END_SEQUENCE = b"\x18\x1b\\\x1b[4i\x1b[?4i\x1b<"
# Margins and origin; both move the cursor, which is put back. DECSTR is for those who put the origin back with it.
MARGINS = b"\x1b7\x1b[?69l\x1b[?6l\x1b[r\x1b8\x1b[!p"
# Links, protection, colours and concealment, character sets, UTF-8.
ATTRIBUTES = b'\x1b]8;;\x1b\\\x1b[0"q\x1b[0m\x0f\x1b(B\x1b)B\x1b*B\x1b+B\x1b%G'
# Keys: cursor and keypad, modifyOtherKeys, the protocol of kitty, which each screen has for itself.
_KEYS = b"\x1b[?1l\x1b[?66l\x1b>\x1b[>4;0m\x1b[<99u\x1b[=0u"
# Insertion, a locked keyboard, local echo, line ends, reverse video, wrapping, the cursor and its shape, tab stops;
# reports of the mouse, the focus, pasted text, the scheme and the size; synchronised output.
_MODES = (
    b"\x1b[4l\x1b[2l\x1b[12h\x1b[20l\x1b[?5l\x1b[?7h\x1b[?45l\x1b[?25h\x1b[0 q\x1b[?5W"
    b"\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    b"\x1b[?1004l\x1b[?2004l\x1b[?2031l\x1b[?2048l\x1b[?2026l"
)
# Entering the alternate screen first costs nothing where we are in it, and elsewhere it keeps the cursor in its
# place: leaving alone would move it to wherever it was when the screen was last entered.
_SCREEN = b"\x1b[?1049h" + _KEYS + b"\x1b[?1049l"
# tmux knows no DECSTR, and puts the origin back with the cursor, but not with the screen.
_TMUX = b"\x1b[?1049h\x1b[?6l\x1b[?1049l"
# Colours of the palette, of text, background and cursor: a report could be written black on black.
_PALETTE = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\"
# What harms no other program that has the same screen, such as the pager behind a pipe.
_SHARED_RESET = _END_SEQUENCE + MARGINS + ATTRIBUTES
# Below the cursor is nothing, unless somebody has written there for others to read.
_RESET = _END_SEQUENCE + MARGINS + _SCREEN + _KEYS + _MODES + MARGINS + ATTRIBUTES + _PALETTE + b"\x1b[J"


class Remembered(Value):
    """State of one standard descriptor."""

    descriptor: int
    flags: int
    modes: list[Any] | None = None  # None: not a terminal
    size: bytes = b""
    exclusive: bool = False


class Terminal:
    """What the standard descriptors were like."""

    signals: tuple[int, ...] = ()  # that it wants to hear of

    def __init__(self) -> None:
        self._streams = _replace_files()
        self.carriers: tuple[Carrier, ...] = (self._streams,) if self._streams else ()
        self._states = [_remember(descriptor) for descriptor in (0, 1, 2)]
        self._terminals = [state for state in self._states if state.modes is not None]
        self._payload_modes: list[list[Any] | None] = []
        self.shared = bool(self._terminals)  # whether somebody types here what is not meant for the sandbox

    def prelude(self) -> None:
        """In the child that becomes bwrap: put what is handed in into the places of the standard descriptors."""
        if self._streams:
            self._streams.place()

    def begin(self) -> None:
        """In the launcher, when the child has been made: get ready to carry."""
        if self._streams:
            self._streams.begin()

    def remember(self) -> None:
        """Note the modes that the payload has set, while the terminal is its own."""
        self._payload_modes = [_modes(state.descriptor) for state in self._terminals]

    def leave(self) -> None:
        """Give the terminal to the shell while everything inside is frozen."""
        for state in self._terminals:
            _release(state)

    def enter(self, *, by_force: bool = False) -> None:
        """Take the terminal again; after a suspension by force with the modes that the payload had set."""
        if by_force:
            for state, modes in zip(self._terminals, self._payload_modes, strict=False):
                _set_modes(state.replace(modes=modes), termios.TCSADRAIN)

    def resize(self) -> None:
        """Take notice of a new size of the window; here the kernel tells the payload itself."""

    def foreground_group(self) -> int:
        """Return the process group that has the terminal; our own if there is none, or it has no members any more."""
        for state in self._terminals:
            try:
                group = os.tcgetpgrp(state.descriptor)
            except OSError:  # not our controlling terminal: nobody types commands there
                continue
            return group if group <= 0 or _has_members(group) else os.getpgrp()
        return os.getpgrp()

    def hand_to(self, group: int) -> None:
        """Make another process group the foreground one."""
        for state in self._terminals:
            try:
                os.tcsetpgrp(state.descriptor, group)
            except OSError:  # of another session, or not our controlling terminal
                continue

    def restore(self) -> list[str]:
        """Undo what the programs inside have left behind, before anything is printed; return what was lost."""
        lost = self._streams.finish() if self._streams else []
        self._restore_flags()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        self._reclaim()
        if self._terminals and self.foreground_group() == os.getpgrp():
            self._reset()
        return lost

    def _reset(self) -> None:
        for state in self._terminals:
            _release(state)
        alone = len(self._terminals) == len(self._states) or not _has_company()
        self._emit((_RESET + (_TMUX if console.in_tmux() else b"")) if alone else _SHARED_RESET)
        for state in self._terminals:
            if _size(state.descriptor) != state.size:
                _correct_size(state.descriptor)
            # What the terminal has answered to questions from inside is nobody's keystrokes.
            _set_modes(state, termios.TCSAFLUSH if alone else termios.TCSADRAIN)

    def _restore_flags(self) -> None:
        for state in self._states:
            fcntl.fcntl(state.descriptor, fcntl.F_SETFL, state.flags)

    def _emit(self, sequences: bytes) -> None:
        """Write to each terminal once."""
        written: set[int] = set()
        for state in self._terminals:
            device = os.fstat(state.descriptor).st_rdev
            if device in written or console.is_dumb():
                continue
            try:
                os.write(state.descriptor, sequences)
            except OSError:  # opened for reading only
                continue
            written.add(device)

    def _reclaim(self) -> None:
        """Take the terminal back if its group has died: a shell inside cannot see whom to return it to."""
        for state in self._terminals:
            try:
                if not _has_members(os.tcgetpgrp(state.descriptor)):
                    os.tcsetpgrp(state.descriptor, os.getpgrp())
            except OSError:
                continue


def open_terminal(*, private: bool) -> Terminal:
    """Return the terminal of a session: the user's, or one of its own."""
    if private:
        from claudebox.launch.pty import PrivateTerminal  # noqa: PLC0415 - only for those who want one

        return PrivateTerminal()
    return Terminal()


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _replace_files() -> Streams | None:
    """Return pipes for those standard descriptors that must not be handed in as they are."""
    odd = [descriptor for descriptor in (0, 1, 2) if not _is_harmless(descriptor)]
    if not odd:
        return None
    from claudebox.launch import streams  # noqa: PLC0415 - only for those who redirect to files

    replaced = [descriptor for descriptor in odd if not streams.may_pass(descriptor)]
    return streams.Streams(replaced) if replaced else None


def _is_harmless(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISFIFO(status.st_mode) or status.st_rdev == _NULL or os.isatty(descriptor)


def _remember(descriptor: int) -> Remembered:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not os.isatty(descriptor):
        return Remembered(descriptor, flags)
    return Remembered(descriptor, flags, _modes(descriptor), _size(descriptor), _is_exclusive(descriptor))


def _release(state: Remembered) -> None:
    """End exclusive use and stopped output, which would stop us as well."""
    try:
        if not state.exclusive:
            fcntl.ioctl(state.descriptor, _TIOCNXCL)
        termios.tcflow(state.descriptor, termios.TCOON)
        if os.major(os.fstat(state.descriptor).st_rdev) not in _PTY_MAJORS:
            termios.tcflow(state.descriptor, termios.TCION)
    except (OSError, termios.error):
        return


def _modes(descriptor: int) -> list[Any] | None:
    try:
        return termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        return None


def _set_modes(state: Remembered, when: int) -> None:
    try:
        if state.modes is not None:
            termios.tcsetattr(state.descriptor, when, state.modes)
    except (OSError, termios.error):
        return


def _is_exclusive(descriptor: int) -> bool:
    try:
        return any(fcntl.ioctl(descriptor, _TIOCGEXCL, bytes(4)))
    except OSError:
        return False


def _size(descriptor: int) -> bytes:
    try:
        return fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
    except OSError:
        return b""


def _has_company() -> bool:
    """Return whether the process group has other members than us and those that started us."""
    from claudebox.launch import freezer  # noqa: PLC0415 - it is there by then

    known = {os.getpid()}
    process = os.getppid()
    while process > 1:
        known.add(process)
        process = freezer.parent(process)
    group = os.getpgrp()
    processes = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return any(process not in known and freezer.group(process) == group for process in processes)


def _correct_size(descriptor: int) -> None:
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
