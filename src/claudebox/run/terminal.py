"""Standard input, output and error of a sandbox; the user's terminal is never among them (A21, PTY-01).

If input and output are terminals, the sandbox has a pty of its own (`pty`). Otherwise it has no terminal at all: a
pager before or behind a pipe reads the keys, so input from a terminal is empty, and output for one is carried there.
Files are not handed in either: whoever holds a descriptor on a file can open it again through `/proc/self/fd`, read all
of it and rewrite it. Only pipes, devices without content and sockets that lead to one peer pass; everything else
becomes a pipe whose other end is served here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.syscalls import signal, socket
from claudebox.run.prepare import move_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    class Carrier(Protocol):
        """Something that moves bytes when it can."""

        def wanted(self) -> dict[int, int]:
            """Return what to wait for: descriptor and events of `poll`."""

        def step(self, descriptor: int, events: int) -> None:
            """Move what can be moved now."""


FOREVER = 3600.0
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, programs expect them
_NAMES = ("standard input", "standard output", "standard error")
_WITHOUT_CONTENT = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))  # null, zero, full, random, urandom
_CAPACITY = 1 << 20
_F_SETPIPE_SZ = 1031
_PATIENCE = 1000  # milliseconds between two looks whether we were asked to end

# What puts the user's terminal in order.
# End an unfinished string or sequence, printing, and VT52.
_END_SEQUENCE = b"\x18\x1b\\\x1b[4i\x1b[?4i\x1b<"
# Margins and origin; both move the cursor, which is restored. DECSTR is for terminals that restore the origin with it.
_MARGINS = b"\x1b7\x1b[?69l\x1b[?6l\x1b[r\x1b8\x1b[!p"
# Links, protection, colours and concealment, character sets, UTF-8.
_ATTRIBUTES = b'\x1b]8;;\x1b\\\x1b[0"q\x1b[0m\x0f\x1b(B\x1b)B\x1b*B\x1b+B\x1b%G'
# Keys: cursor and keypad, modifyOtherKeys, the protocol of kitty, which is kept per screen.
_KEYS = b"\x1b[?1l\x1b[?66l\x1b>\x1b[>4;0m\x1b[<99u\x1b[=0u"
# Insertion, a locked keyboard, local echo, line ends, reverse video, wrapping, the cursor and its shape, tab stops;
# reports of the mouse, the focus, pasted text, the scheme and the size; synchronised output.
_MODES = (
    b"\x1b[4l\x1b[2l\x1b[12h\x1b[20l\x1b[?5l\x1b[?7h\x1b[?45l\x1b[?25h\x1b[0 q\x1b[?5W"
    b"\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    b"\x1b[?1004l\x1b[?2004l\x1b[?2031l\x1b[?2048l\x1b[?2026l"
)
# Enter the alternate screen before leaving it: leaving it alone would move the cursor to where it was when that screen
# was last entered.
_SCREEN = b"\x1b[?1049h" + _KEYS + b"\x1b[?1049l"
# tmux has no DECSTR, and restores the origin with the cursor, but not with the screen.
_TMUX = b"\x1b[?1049h\x1b[?6l\x1b[?1049l"
# Colours of the palette, of text, background and cursor: our report could be black on black.
_PALETTE = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\"
# What is safe while another program, such as a pager behind a pipe, has the same screen.
_SHARED_RESET = _END_SEQUENCE + _MARGINS + _ATTRIBUTES
# Erases below the cursor, too.
_RESET = _END_SEQUENCE + _MARGINS + _SCREEN + _KEYS + _MODES + _MARGINS + _ATTRIBUTES + _PALETTE + b"\x1b[J"


class Terminal:
    """The standard descriptors of a sandbox without a terminal."""

    measures = "n"  # for the gate: a session of its own
    signals: tuple[int, ...] = ()  # to take, beside those of every session
    has_pty = False

    def __init__(self, *, filtered: bool = False, served: Iterable[int] = ()) -> None:
        """Replace what must not be handed in, except for the `served` descriptors of a pty."""
        self._flags = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in (0, 1, 2)]
        others = [descriptor for descriptor in (0, 1, 2) if descriptor not in served]
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) if 0 in others and os.isatty(0) else -1
        self._streams = _carry([number for number in others if number or self._null < 0], filtered=filtered)

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """Return what moves bytes while a sandbox runs."""
        return (self._streams,) if self._streams else ()

    def spawn(self, path: str, words: tuple[str, ...], placed: tuple[tuple[int, int], ...]) -> int:
        """Start a program with the standard descriptors and those of `placed`: number here, number there."""
        actions = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in (*self._places(), *placed)]
        return os.posix_spawn(path, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS)

    def _places(self) -> Iterable[tuple[int, int]]:
        if self._null >= 0:
            yield self._null, 0
        if self._streams:
            yield from self._streams.places()

    def begin(self) -> None:
        """Close our copies of what the sandbox has."""
        if self._streams:
            self._streams.begin()

    def look(self) -> float:
        """Do what is due; return in how many seconds to look again."""
        return FOREVER

    def is_left(self) -> bool:
        """Return, once, whether the user has pressed the escape."""
        return False

    def is_gone(self) -> bool:
        """Return, once, whether the terminal was closed."""
        return False

    def say(self, message: str) -> None:
        """Tell the user something while a program has the screen."""
        console.note(message)

    def is_ours(self) -> bool:
        """Return whether our job is in the foreground of the terminal, if the sandbox has one."""
        return True

    def leave(self) -> None:
        """Give the terminal to the shell."""

    def enter(self) -> None:
        """Take the terminal, at first and again."""

    def resize(self) -> None:
        """Pass on the size of the window."""

    def restore(self) -> list[str]:
        """Undo what the programs inside have left behind, before anything is printed; return what was lost."""
        lost = self._streams.finish() if self._streams else []
        for descriptor, flags in enumerate(self._flags):
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        for screen in self._streams.screens() if self._streams else ():
            if is_foreground(screen):
                write_quickly(screen, reset_sequence(alone=screen == 1))
                if screen == 1:
                    import termios

                    termios.tcflush(screen, termios.TCIFLUSH)  # answers to questions, which nobody typed
        return lost


def open_terminal(*, pty: bool, filtered: bool, hint: bytes = b"") -> Terminal:
    """Return the standard descriptors of a session, with or without a terminal of its own."""
    if not pty:
        return Terminal(filtered=filtered)
    from claudebox.run.pty import Pty

    return Pty(filtered=filtered, hint=hint)


def reset_sequence(*, alone: bool = True) -> bytes:
    """Return what puts a terminal in order; not `alone`: another program has the same screen."""
    if console.is_dumb():
        return b""
    return (_RESET + (_TMUX if console.in_tmux() else b"")) if alone else _SHARED_RESET


def is_foreground(descriptor: int) -> bool:
    """Return whether our process group is in the foreground of a terminal."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not our controlling terminal: no shell reads commands there
        return True


def write_quickly(descriptor: int, data: bytes) -> None:
    """Write what is of use only if it arrives."""
    try:
        os.write(descriptor, data)
    except OSError:
        pass


def reopen(descriptor: int, mode: int) -> int:
    """Return a descriptor on a terminal that can be made non-blocking without affecting the shell's own (B08)."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it belongs to another user, as after `su`
        return os.dup(descriptor)


def _carry(descriptors: list[int], *, filtered: bool) -> Streams | None:
    """Return pipes for those standard descriptors that must not be handed in as they are."""
    replaced = [descriptor for descriptor in descriptors if not _may_pass(descriptor)]
    return Streams(replaced, filtered=filtered) if replaced else None


def _may_pass(descriptor: int) -> bool:
    """Return whether a standard descriptor leads to nothing but the bytes that are meant for it."""
    status = os.fstat(descriptor)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH:
        raise ClaudeboxError(f"{_NAMES[descriptor]} is a directory, or leads to no bytes", hint="redirect it to a file")
    if kind == stat.S_IFCHR:
        return status.st_rdev in _WITHOUT_CONTENT
    return kind == stat.S_IFIFO or (kind == stat.S_IFSOCK and _is_one_connection(descriptor))


def _is_one_connection(descriptor: int) -> bool:
    """Return whether a socket leads to one peer for good; others can be connected anew, in the host's network."""
    borrowed = socket.socket(fileno=os.dup(descriptor))
    try:
        return (borrowed.family, borrowed.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
    finally:
        borrowed.close()


class Streams:
    """The pipes in place of some standard descriptors, for one sandbox."""

    def __init__(self, descriptors: Iterable[int], *, filtered: bool = False) -> None:
        """Make a pipe for each of these; two for the same file share one, which keeps their order.

        `filtered`: what goes to a terminal is cleaned.
        """
        self._inside: dict[int, int] = {}  # number → its end inside
        self._inputs: list[_Input] = []
        self._outputs: list[_Output] = []
        files: dict[tuple[int, int, int], int] = {}
        for number in descriptors:
            status = os.fstat(number)
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            mode = flags & os.O_ACCMODE
            reads = mode == os.O_RDONLY or (mode == os.O_RDWR and number == 0)
            file = (status.st_dev, status.st_ino, flags)
            if not reads and file in files:
                self._inside[number] = self._inside[files[file]]
                continue
            reader, writer = (move_up(end) for end in os.pipe2(os.O_CLOEXEC))
            try:
                fcntl.fcntl(writer, _F_SETPIPE_SZ, _CAPACITY)
            except OSError:  # the user has many large pipes already
                pass
            if reads:
                self._inside[number] = reader
                self._inputs.append(_Input(number, writer, os.dup(reader)))
            else:
                files[file] = number
                self._inside[number] = writer
                self._outputs.append(_Output(number, reader, filtered=filtered))

    def places(self) -> list[tuple[int, int]]:
        """Return the ends inside, and the number of each there."""
        return [(end, number) for number, end in self._inside.items()]

    def begin(self) -> None:
        """Close our copies of the ends inside."""
        for end in set(self._inside.values()):
            os.close(end)
        self._inside = {}

    def wanted(self) -> dict[int, int]:
        wanted: dict[int, int] = {}
        for source in self._inputs:
            wanted |= source.wanted()
        for target in self._outputs:
            wanted |= target.wanted()
        return wanted

    def step(self, _descriptor: int, _events: int) -> None:
        for source in self._inputs:
            source.step()
        for target in self._outputs:
            target.step()

    def screens(self) -> list[int]:
        """Return the terminals to which anything was written."""
        return [target.number for target in self._outputs if target.is_screen and target.is_used]

    def finish(self) -> list[str]:
        """Write what is left, after the end of everything inside; return what was lost and why."""
        for source in self._inputs:
            source.give_back()
        for target in self._outputs:
            target.drain()
        return [target.problem for target in self._outputs if target.problem]


class _Input:
    """A file that is read for the payload."""

    def __init__(self, number: int, pipe: int, reader: int) -> None:
        self._number = number
        self._pipe = pipe
        self._reader = reader  # the end inside, to see what was not read
        self._waiting = memoryview(b"")
        self._is_ready = stat.S_IFMT(os.fstat(number).st_mode) in (stat.S_IFREG, stat.S_IFBLK)
        os.set_blocking(pipe, False)

    def wanted(self) -> dict[int, int]:
        if self._pipe < 0:
            return {}
        return {self._pipe: select.POLLOUT} if self._waiting or self._is_ready else {self._number: select.POLLIN}

    def step(self) -> None:
        if self._pipe < 0 or not (self._waiting or self._is_ready or select.select([self._number], [], [], 0)[0]):
            return
        try:
            self._waiting = self._waiting or memoryview(os.read(self._number, _CAPACITY))
            if self._waiting:
                self._waiting = self._waiting[os.write(self._pipe, self._waiting) :]
                return
        except BlockingIOError:
            return
        except OSError:  # it cannot be read, or the reader has gone
            pass
        os.close(self._pipe)
        self._pipe = -1

    def give_back(self) -> None:
        """Set the file's offset to where the payload has stopped reading."""
        import termios

        unread = int.from_bytes(fcntl.ioctl(self._reader, termios.FIONREAD, bytes(4)), sys.byteorder)
        try:
            os.lseek(self._number, -len(self._waiting) - unread, os.SEEK_CUR)
        except OSError:  # not a file
            pass


class _Output:
    """A file that the payload writes to."""

    def __init__(self, number: int, pipe: int, *, filtered: bool) -> None:
        self.number = number
        self._pipe = pipe
        self._waiting = memoryview(b"")
        self.problem = ""
        self.is_screen, self.is_used = os.isatty(number), False
        self._target = reopen(number, os.O_WRONLY) if self.is_screen else number
        self._is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        self._clean: Callable[[bytes], bytes] | None = None
        if self.is_screen and filtered:
            from claudebox.run.terminal_filter import TerminalFilter

            self._clean = TerminalFilter().feed
        os.set_blocking(pipe, False)

    def wanted(self) -> dict[int, int]:
        if self._pipe < 0:
            return {}
        return {self._target: select.POLLOUT} if self._waiting else {self._pipe: select.POLLIN}

    def step(self) -> bool:
        """Carry one piece; return whether there was one."""
        if self._pipe < 0:
            return False
        try:
            if not self._waiting:
                piece = os.read(self._pipe, _CAPACITY)
                if not piece:
                    self._close()
                    return False
                self._waiting = memoryview(self._clean(piece) if self._clean else piece)
                self.is_used = True
            while self._waiting:
                self._waiting = self._waiting[self._write(self._waiting) :]
        except BlockingIOError:
            return False
        except OSError as error:
            self._waiting = memoryview(b"")
            if error.errno != errno.EPIPE:
                self.problem = f"{_NAMES[self.number]} could not be written: {error.strerror}"
            self._close()
        return True

    def _write(self, data: memoryview) -> int:
        if not self._is_socket:
            return os.write(self._target, data)
        borrowed = socket.socket(fileno=os.dup(self._target))
        try:
            return borrowed.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        finally:
            borrowed.close()

    def _close(self) -> None:
        os.close(self._pipe)
        self._pipe = -1

    def drain(self) -> None:
        """Write everything; wait for a slow reader until a signal asks us to end."""
        while self.step() or self._waiting:
            if self._waiting:
                poll = select.poll()
                poll.register(self._target, select.POLLOUT)
                if not poll.poll(_PATIENCE) and signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
                    return
