"""Standard input, output and error of a sandbox; the user's terminal is never among them (PTY-01).

If input and output are terminals, the sandbox has a pty (`pty`) and this is what it builds on. Otherwise it has no
terminal at all: input from a terminal is empty, since a pager or whoever stands before or behind a pipe reads the keys,
and output for a terminal is carried there byte by byte (`streams`).
"""

from __future__ import annotations

import fcntl
import os
import stat

from claudebox import console
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from claudebox.launch.streams import Streams

    class Carrier(Protocol):
        """Something that moves bytes when it can."""

        def wanted(self) -> dict[int, int]:
            """Return what to wait for: descriptor and events of `poll`."""

        def step(self, descriptor: int, events: int) -> None:
            """Move what can be moved now."""


FOREVER = 3600.0
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, programs expect them
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


class Terminal:
    """The standard descriptors of a sandbox without a terminal."""

    measures = "n"  # what the gate does before bwrap starts: a session of its own
    signals: tuple[int, ...] = ()  # beside those of every session
    has_pty = False

    def __init__(self, *, filtered: bool = False, served: Iterable[int] = ()) -> None:
        """Replace what must not be handed in; `served` are those for which somebody else provides."""
        self._flags = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in (0, 1, 2)]
        others = [descriptor for descriptor in (0, 1, 2) if descriptor not in served]
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) if 0 in others and os.isatty(0) else -1
        self._streams = _carry([number for number in others if number or self._null < 0], filtered=filtered)

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """Return what moves bytes while a sandbox runs."""
        return (self._streams,) if self._streams else ()

    def spawn(self, path: str, words: tuple[str, ...], placed: tuple[tuple[int, int], ...]) -> int:
        """Start a program with what is handed in at the places of the standard descriptors, and then with these.

        Each is a descriptor here and its number there. Without a copy of our memory, which would take its time.
        """
        places = (*self._places(), *placed)
        actions = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in places]
        return os.posix_spawn(path, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS)

    def _places(self) -> Iterable[tuple[int, int]]:
        if self._null >= 0:
            yield self._null, 0
        if self._streams:
            yield from self._streams.places()

    def begin(self) -> None:
        """In the launcher, when the sandbox has been let go: get ready to carry."""
        if self._streams:
            self._streams.begin()

    def look(self) -> float:
        """Do what is due; return in how many seconds to look again."""
        return FOREVER

    def is_left(self) -> bool:
        """Return whether the user wants the shell back, whatever the program does with keys; asked once."""
        return False

    def is_gone(self) -> bool:
        """Return whether the terminal cannot be read any more; asked once."""
        return False

    def say(self, message: str) -> None:
        """Tell the user something while a program has the screen."""
        console.note(message)

    def is_ours(self) -> bool:
        """Return whether the terminal, if there is one for the sandbox, is that of our job."""
        return True

    def leave(self) -> None:
        """Give the terminal to the shell."""

    def enter(self) -> None:
        """Take the terminal again."""

    def resize(self) -> None:
        """Take notice of a new size of the window."""

    def restore(self) -> list[str]:
        """Undo what the programs inside have left behind, before anything is printed; return what was lost."""
        lost = self._streams.finish() if self._streams else []
        for descriptor, flags in enumerate(self._flags):
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        for screen in self._streams.screens() if self._streams else ():
            if not is_foreground(screen):
                continue
            write_quickly(screen, reset_sequence(alone=screen == 1))
            if screen == 1:
                import termios

                termios.tcflush(screen, termios.TCIFLUSH)  # what it has answered to questions is nobody's keystrokes
        return lost


def open_terminal(*, pty: bool, filtered: bool) -> Terminal:
    """Return the standard descriptors of a session, with a terminal of its own or without one."""
    if pty:
        from claudebox.launch.pty import Pty

        return Pty(filtered=filtered)
    return Terminal(filtered=filtered)


def reset_sequence(*, alone: bool = True) -> bytes:
    """Return what puts a terminal in order; not `alone`: another program has the same screen."""
    if console.is_dumb():
        return b""
    return (_RESET + (_TMUX if console.in_tmux() else b"")) if alone else _SHARED_RESET


def is_foreground(descriptor: int) -> bool:
    """Return whether a terminal is that of our process group."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not our controlling terminal: nobody types commands there
        return True


def write_quickly(descriptor: int, data: bytes) -> None:
    """Write what is of use only if it arrives."""
    try:
        os.write(descriptor, data)
    except OSError:
        return


def reopen(descriptor: int, mode: int) -> int:
    """Return a descriptor on a terminal that can be made non-blocking without touching the shell's own (B08)."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it belongs to somebody else, as after `su`
        return os.dup(descriptor)


def _carry(descriptors: list[int], *, filtered: bool) -> Streams | None:
    """Return pipes for those standard descriptors that must not be handed in as they are."""
    odd = [descriptor for descriptor in descriptors if not _is_harmless(descriptor)]
    if not odd:
        return None
    from claudebox.launch import streams

    replaced = [descriptor for descriptor in odd if not streams.may_pass(descriptor)]
    return streams.Streams(replaced, filtered=filtered) if replaced else None


def _is_harmless(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISFIFO(status.st_mode) or status.st_rdev == _NULL
