"""Standard input, output and error of a sandbox; the user's terminal is never among them (PTY-01).

If input and output are terminals, the sandbox has a pty (`pty`) and this is what it builds on. Otherwise it has no
terminal at all: input from a terminal is empty, since a pager or whoever stands before or behind a pipe reads the keys,
and output for a terminal is carried there byte by byte (`streams`).
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
import time

from claudebox.agent.claude import CLAUDE
from claudebox.base import console
from claudebox.base.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from claudebox.run.streams import Streams

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
    from claudebox.run import streams

    replaced = [descriptor for descriptor in odd if not streams.may_pass(descriptor)]
    return streams.Streams(replaced, filtered=filtered) if replaced else None


def _is_harmless(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISFIFO(status.st_mode) or status.st_rdev == _NULL


# A terminal of the sandbox's own: a pty whose other end is held here, between the sandbox and the user (B01-B18).
#
# What is typed and what is written pass through as they are, or cleaned by `pty_filter`. The user's terminal is raw
# meanwhile, so that every key is the program's to handle. Two keys in turn are also ours: against a program that
# ignores all of them, they give the shell back.


_PIECE = 65536  # bytes of one read
_ROUNDS = 16  # how often in a row before signals and keys are looked at
_BACKLOG = 262144  # bytes that wait for a slow screen before the writer has to
_TYPED = 4 << 20  # bytes that wait for a program that reads slowly; what is typed beyond that is dropped
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
_HELD = 131072  # bytes that a pty can hold, and some more: the last words
_LAST = 1024  # bytes of them that are kept
# What can make a terminal answer: ENQ, ESC, and the controls of eight bits, which UTF-8 has in two.
_ASKING = (b"\x05", b"\x1b", b"\x90", b"\x9a", b"\x9b", b"\x9d")
_QUIET, _FAR = 0.3, 1.0  # seconds of silence after which no answer is expected any more; the same through ssh
_LONGEST_ANSWER = 64
_PATIENCE = 2.0  # seconds for all answers

# The escape: nothing but Ctrl+C and Ctrl+Z, each at least twice, within so many seconds.
_QUICK, _TWICE = 3.0, 2
_SILENCE = 1.0  # seconds after some of these keys in which nothing was written: say which keys help
_SOME, _MANY = 3, 8  # presses after which it is said if nothing happens, and in any case
_LONGEST_SEQUENCE = 4096
_PASTE = b"\x1b[200~"
_CTRL, _LOCKS = 4, 64 + 128  # modifiers in the protocol of kitty
HELP = "the program does not answer; Ctrl+C Ctrl+Z Ctrl+C Ctrl+Z, pressed quickly, gives you the shell back"


class Pty(Terminal):
    """The standard descriptors of a sandbox that has a pty, and the user's terminal behind it."""

    measures = "t"
    signals = (signal.SIGWINCH,)
    has_pty = True

    def __init__(self, *, filtered: bool = False) -> None:
        ours = {os.fstat(descriptor).st_rdev for descriptor in (0, 1)}
        self._served = [number for number in (0, 1, 2) if os.isatty(number) and os.fstat(number).st_rdev in ours]
        super().__init__(filtered=filtered, served=self._served)
        self._modes = termios.tcgetattr(0)
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        termios.tcsetattr(self._slave, termios.TCSANOW, self._modes)
        self.resize()
        self._keys, self._screen = reopen(0, os.O_RDONLY), reopen(1, os.O_WRONLY)
        self._typing = select.poll()
        self._typing.register(self._keys, select.POLLIN)
        self._filter = None
        if filtered:
            from claudebox.run.terminal_filter import TerminalFilter

            self._filter = TerminalFilter()
        self._to_screen, self._to_payload = bytearray(), bytearray()
        self._open = {self._master, self._keys, self._screen}
        self._last = b""  # what was written last
        self._is_raw = False  # whether the terminal is raw, and its keys are for the program
        self._is_gone = False
        self._is_silent = False  # nothing was written since it was set
        self._is_asked = False  # whether the terminal may have been asked for something
        self._finder = Keys()
        self._pressed: list[tuple[float, str]] = []
        self._doubt = 0.0  # when to say which keys help; 0: never

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """Return what moves bytes while a sandbox runs."""
        return (self, *super().carriers)

    def _places(self) -> Iterable[tuple[int, int]]:
        yield from ((self._slave, number) for number in self._served)
        yield from super()._places()

    def begin(self) -> None:
        """In the launcher, when the sandbox has been let go: get ready to carry."""
        super().begin()
        os.close(self._slave)

    def is_ours(self) -> bool:
        """Return whether the terminal is that of our job."""
        return is_foreground(0)

    def enter(self) -> None:
        """Take the terminal, at first and again."""
        try:
            self._make_raw()
        except (OSError, termios.error):  # it was closed
            self._is_gone = True
            return
        if not self._is_raw:
            self._to_screen += _PUSH_TITLE if reset_sequence() else b""
            self._to_screen += self._filter.redo() if self._filter else b""
        self._is_raw = True
        self.resize()

    def _make_raw(self) -> None:
        modes = termios.tcgetattr(self._keys)
        modes[0] &= ~(
            termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON | termios.INLCR
            | termios.IGNCR
        )  # fmt: skip
        modes[1] &= ~termios.OPOST
        modes[2] = (modes[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._keys, termios.TCSADRAIN, modes)

    def resize(self) -> None:
        """Give the pty the size of the terminal; the kernel tells the programs."""
        try:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            return

    def wanted(self) -> dict[int, int]:
        """Return what to wait for in both directions."""
        wanted = {}
        if self._is_raw and self._keys in self._open:
            wanted[self._keys] = select.POLLIN
        if self._master in self._open:
            reading = select.POLLIN if len(self._to_screen) < _BACKLOG else 0
            if events := reading | (select.POLLOUT if self._to_payload else 0):
                wanted[self._master] = events
        if self._to_screen and self._screen in self._open:
            wanted[self._screen] = select.POLLOUT
        return wanted

    def step(self, descriptor: int, events: int) -> None:
        """Carry what is there."""
        if descriptor == self._screen:
            self._write(self._screen, self._to_screen)
        elif descriptor == self._keys:
            self._type()
        else:
            if events & select.POLLOUT:
                self._write(self._master, self._to_payload)
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                for _ in range(_ROUNDS):
                    if self._has_keys() or not self._show() or self._to_screen:
                        break

    def _has_keys(self) -> bool:
        """Return whether keys wait; they come first, or they would queue behind answers to ever more questions."""
        return self._is_raw and self._keys in self._open and bool(self._typing.poll(0))

    def _show(self) -> int:
        """Carry what the programs have written; return how many bytes there were."""
        piece = self._read(self._master)
        if not piece or not self._is_raw:  # the shell has the terminal until the end: nothing is shown or asked there
            return len(piece)
        self._is_silent = False
        self._last = (self._last + piece)[-_LAST:]
        shown = self._filter.feed(piece) if self._filter else piece
        self._is_asked = self._is_asked or any(byte in shown for byte in _ASKING)
        self._to_screen += shown
        self._write(self._screen, self._to_screen)
        return len(piece)

    def _type(self) -> None:
        """Carry what the user has typed, and look for the escape in it."""
        piece = self._read(self._keys)
        if self._keys not in self._open:
            self._is_gone = True
        if self._notice(self._finder.find(piece)) or len(self._to_payload) >= _TYPED:
            return
        self._to_payload += piece
        self._write(self._master, self._to_payload)

    def _notice(self, letters: str | None) -> bool:
        """Remember keys that the user may have pressed in vain; return whether they are the escape."""
        now = time.monotonic()
        if letters is None:
            self._pressed.clear()
            return False
        self._pressed = [press for press in self._pressed if press[0] > now - _QUICK] + [(now, one) for one in letters]
        if letters and len(self._pressed) >= _SOME and not self._doubt:
            self._is_silent, self._doubt = True, now + _SILENCE
        if len(self._pressed) >= _MANY:
            self._is_silent, self._doubt = True, now
        return self._has_escape()

    def _has_escape(self) -> bool:
        return all(sum(letter == one for _, letter in self._pressed) >= _TWICE for one in "cz")

    def is_left(self) -> bool:
        """Return whether the user wants the shell back, whatever the program does with keys; asked once."""
        if not self._has_escape():
            return False
        self._pressed.clear()
        self._doubt = 0.0
        return True

    def is_gone(self) -> bool:
        """Return whether the terminal cannot be read any more; asked once."""
        gone, self._is_gone = self._is_gone, False
        return gone

    def look(self) -> float:
        """Say which keys help, if it is time; return in how many seconds to look again."""
        if not self._doubt:
            return FOREVER
        left = self._doubt - time.monotonic()
        if left > 0:
            return left
        self._doubt = 0.0
        if self._is_silent:
            self.say(HELP)
        return FOREVER

    def say(self, message: str) -> None:
        """Tell the user something while a program has the screen."""
        write_quickly(self._screen, f"\r\nclaudebox: {message}\r\n".encode())

    def _read(self, descriptor: int) -> bytes:
        try:
            piece = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:  # the other side has gone
            piece = b""
        if not piece:
            self._open.discard(descriptor)
        return piece

    def _write(self, descriptor: int, waiting: bytearray) -> None:
        if descriptor not in self._open:
            waiting.clear()
        if not waiting:
            return
        try:
            del waiting[: os.write(descriptor, waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._open.discard(descriptor)
            waiting.clear()

    def leave(self) -> None:
        """Give the terminal to the shell, in order: it may be that nobody ever continues us in the foreground."""
        self._give_back()

    def restore(self) -> list[str]:
        """Show the last output, undo the modes that were left switched, and give the terminal back."""
        self._give_back(ends=True)
        return super().restore()

    def _give_back(self, *, ends: bool = False) -> None:
        if not self._is_raw or not is_foreground(0):
            return
        left = _HELD
        while left > 0 and (count := self._show()):
            left -= count
        answer = b""
        if reset := reset_sequence():
            columns, rows = _measure(self._screen)
            self._to_screen += _take_back(self._last, columns) if ends else b""
            self._to_screen += (self._filter.undo() if self._filter else reset) + _POP_TITLE
            if self._is_asked:
                question, answer = _ask(rows, columns)
                self._to_screen += question
        self._drop_keys_until(answer)
        self._is_raw = self._is_asked = False
        self._pressed.clear()
        try:
            termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._modes)
        except (OSError, termios.error):
            return

    def _drop_keys_until(self, answer: bytes) -> None:
        """Write what waits, and drop what the terminal sends until it has answered: it is nobody's keystrokes."""
        quiet = _FAR if console.is_far() else _QUIET
        seen, now = b"", time.monotonic()
        deadline, limit = now + quiet, now + _PATIENCE
        while (self._to_screen or answer not in seen) and now < deadline:
            poll = select.poll()
            poll.register(self._keys, select.POLLIN)
            if self._to_screen:
                poll.register(self._screen, select.POLLOUT)
            ready = dict(poll.poll((deadline - now) * 1000))
            now = time.monotonic()
            if ready:
                deadline = min(now + quiet, limit)
            if self._screen in ready:
                self._write(self._screen, self._to_screen)
            if self._keys in ready:
                seen = seen[-_LONGEST_ANSWER:] + self._read(self._keys)
            if not {self._keys, self._screen} <= self._open:  # it was closed
                return


def _measure(screen: int) -> tuple[int, int]:
    """Return columns and rows of a terminal; of one that does not know, or has gone, what is usual."""
    try:
        columns, rows = os.get_terminal_size(screen)
    except OSError:
        columns = rows = 0
    return columns or 80, rows or 24


def _ask(rows: int, columns: int) -> tuple[bytes, bytes]:
    """Return a question that every terminal answers, and an answer that only this question has.

    It is where the cursor stands, which is sent to three places that nobody can foresee, and then back.
    """
    chances = [int.from_bytes(os.urandom(4)) for _ in range(3)]
    places = [(1 + chance % rows, 1 + chance // rows % columns) for chance in chances]
    question = b"".join(b"\x1b[%d;%dH\x1b[6n" % place for place in places)
    return b"\x1b7" + question + b"\x1b8", b"".join(b"\x1b[%d;%dR" % place for place in places)


def _take_back(last: bytes, columns: int) -> bytes:
    """Return what erases how the client says to resume, where that was the last thing on the screen: we say it, too."""
    hint = last[last.rfind(CLAUDE.resume_hint) :] if CLAUDE.resume_hint in last else b""
    first, *parts = hint.split(b"\x1b[")
    text = first + b"".join(part.partition(b"m")[2] for part in parts)
    rows = text.split(b"\r\n")
    if len(rows) != 3 or rows[2] or b" --resume " not in rows[1]:
        return b""
    return b"\x1b[%dA\x1b[J" % (1 + -(-len(rows[1]) // columns))


class Keys:
    """Finds Ctrl+C and Ctrl+Z in what comes from a terminal, however it is cut into pieces.

    Terminals spell them as a control character, or as `ESC [ code ; modifiers u` (kitty) and `ESC [ 27 ; modifiers ;
    code ~` (xterm). Whatever else comes as a sequence is passed over: a program can have the terminal report the mouse
    or answer questions all the time.
    """

    def __init__(self) -> None:
        self._cut = b""  # the beginning of a sequence

    def find(self, piece: bytes) -> str | None:
        """Return which of the two were pressed, as letters; None if there is a text, such as a paste."""
        data, self._cut = self._cut + piece, b""
        letters, at = "", 0
        while at < len(data):
            if data[at] in (0x03, 0x1A):
                letters += chr(data[at] + 0x60)
                at += 1
                continue
            if data[at] != 0x1B:
                return None
            end = _end_of_sequence(data, at)
            if not end:
                self._cut = data[at:] if len(data) - at < _LONGEST_SEQUENCE else b""
                break
            if data[at:end] == _PASTE:
                return None
            letters += _read_sequence(data[at + 2 : end - 1].decode("latin-1"), chr(data[end - 1]))
            at = end
        return letters if len(letters) <= _MANY else None


def _end_of_sequence(data: bytes, at: int) -> int:
    """Return where a sequence ends, 0 if that has not come yet."""
    kind = data[at + 1 : at + 2]
    if kind == b"[":
        end = next((end + 1 for end in range(at + 2, len(data)) if 0x40 <= data[end] < 0x7F), 0)
        if end == at + 3 and data[end - 1 : end] == b"M":  # a report of the mouse in three bytes
            end += 3
    elif kind and kind in b"]P_^X":
        ends = [data.find(mark, at + 2) + len(mark) for mark in (b"\x07", b"\x1b\\") if mark in data[at + 2 :]]
        end = min(ends, default=0)
    else:
        end = at + (3 if kind in (b"O", b"N") else 2)
    return end if end <= len(data) else 0


def _read_sequence(body: str, final: str) -> str:
    """Return the letter if a sequence is one of the two keys with Ctrl, pressed and not let go."""
    fields = [field.split(":") for field in body.split(";")]
    if final == "~" and len(fields) == 3 and fields[0] == ["27"]:
        fields = [fields[2], fields[1]]
    elif final != "u" or len(fields) < 2:
        return ""
    (code, *_), (modifiers, *event) = ([int(part) if part.isdigit() else 0 for part in field] for field in fields[:2])
    pressed = event[:1] != [3] and (modifiers - 1) & ~_LOCKS == _CTRL
    return chr(code) if pressed and code in (ord("c"), ord("z")) else ""
