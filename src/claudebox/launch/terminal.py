"""The user's terminal: remembered before the sandbox starts, put back in order after it ends (B08, B16).

What a program can change and nobody can ask for is reset to what every shell expects: a report must not be printed
on a screen that was prepared for it.
"""

from __future__ import annotations

import fcntl
import os
import stat

from claudebox import console
from claudebox.syscalls import signal
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from claudebox.launch.events import Carrier
    from claudebox.launch.streams import Streams

DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, programs expect them
_NULL = os.makedev(1, 3)
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

    def spawn(self, path: str, words: tuple[str, ...], placed: tuple[tuple[int, int], ...]) -> int:
        """Start a program with what is handed in at the places of the standard descriptors, and then with these.

        Each is a descriptor here and its number there. Without a copy of our memory, which would take its time.
        """
        places = (*self._places(), *placed)
        actions = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in places]
        return os.posix_spawn(path, words, {}, file_actions=actions, setsigdef=DEFAULT_SIGNALS)

    def _places(self) -> Iterable[tuple[int, int]]:
        return self._streams.places() if self._streams else ()

    def begin(self) -> None:
        """In the launcher, when the child has been made: get ready to carry."""
        if self._streams:
            self._streams.begin()

    def remember(self) -> None:
        """Note the modes that the payload has set, while the terminal is its own."""
        if not self._terminals:
            return
        from claudebox.launch import terminal_modes

        self._payload_modes = [terminal_modes.modes(state.descriptor) for state in self._terminals]

    def leave(self) -> None:
        """Give the terminal to the shell while everything inside is frozen."""
        from claudebox.launch import terminal_modes

        for state in self._terminals:
            terminal_modes.release(state)

    def enter(self, *, by_force: bool = False) -> None:
        """Take the terminal again; after a suspension by force with the modes that the payload had set."""
        from claudebox.launch import terminal_modes

        if by_force:
            for state, modes in zip(self._terminals, self._payload_modes, strict=False):
                terminal_modes.set_modes(state.replace(modes=modes))

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
        from claudebox.launch import terminal_modes

        for state in self._terminals:
            terminal_modes.release(state)
        alone = len(self._terminals) == len(self._states) or not _has_company()
        self._emit((_RESET + (_TMUX if console.in_tmux() else b"")) if alone else _SHARED_RESET)
        for state in self._terminals:
            if terminal_modes.size(state.descriptor) != state.size:
                terminal_modes.correct_size(state.descriptor)
            # What the terminal has answered to questions from inside is nobody's keystrokes.
            terminal_modes.set_modes(state, forgetting=alone)

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
        from claudebox.launch.pty import PrivateTerminal

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
    from claudebox.launch import streams

    replaced = [descriptor for descriptor in odd if not streams.may_pass(descriptor)]
    return streams.Streams(replaced) if replaced else None


def _is_harmless(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISFIFO(status.st_mode) or status.st_rdev == _NULL or os.isatty(descriptor)


def _remember(descriptor: int) -> Remembered:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not os.isatty(descriptor):
        return Remembered(descriptor, flags)
    from claudebox.launch import terminal_modes as tty

    return Remembered(descriptor, flags, tty.modes(descriptor), tty.size(descriptor), tty.is_exclusive(descriptor))


def _has_company() -> bool:
    """Return whether the process group has other members than us and those that started us."""
    from claudebox.launch import freezer

    known = {os.getpid()}
    process = os.getppid()
    while process > 1:
        known.add(process)
        process = freezer.parent(process)
    group = os.getpgrp()
    processes = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return any(process not in known and freezer.group(process) == group for process in processes)
