"""A terminal of the sandbox's own: a pty whose other end is held here, between the sandbox and the user (B01-B18).

What is typed and what is written pass through as they are, or cleaned by `pty_filter`. The user's terminal is raw
meanwhile, so that every key is the program's to handle. Two keys in turn are also ours: against a program that ignores
all of them, they give the shell back.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time

from claudebox.launch import terminal
from claudebox.launch.terminal import FOREVER, Terminal
from claudebox.syscalls import signal
from claudebox.tables import agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.launch.terminal import Carrier

_PIECE = 65536  # bytes of one read
_ROUNDS = 16  # how often in a row before signals and keys are looked at
_BACKLOG = 262144  # bytes that wait for a slow screen before the writer has to
_TYPED = 4 << 20  # bytes that wait for a program that reads slowly; what is typed beyond that is dropped
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
_DRAIN = 0.5  # seconds for the last words
_LAST = 1024  # bytes of them that are kept

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
        self._keys, self._screen = terminal.reopen(0, os.O_RDONLY), terminal.reopen(1, os.O_WRONLY)
        self._filter = None
        if filtered:
            from claudebox.launch.pty_filter import TerminalFilter

            self._filter = TerminalFilter()
        self._to_screen, self._to_payload = bytearray(), bytearray()
        self._open = {self._master, self._keys, self._screen}
        self._last = b""  # what was written last
        self._is_raw = False  # whether the terminal is raw, and its keys are for the program
        self._is_gone = False
        self._is_silent = False  # nothing was written since it was set
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
        self._to_screen += _PUSH_TITLE if terminal.reset_sequence() else b""

    def is_ours(self) -> bool:
        """Return whether the terminal is that of our job."""
        return terminal.is_foreground(0)

    def enter(self) -> None:
        """Take the terminal, at first and again."""
        try:
            self._make_raw()
        except (OSError, termios.error):  # it was closed
            self._is_gone = True
            return
        if not self._is_raw and self._filter:
            self._to_screen += self._filter.redo()
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
                    if not self._show() or self._to_screen:
                        break

    def _show(self) -> bool:
        """Carry what the programs have written; return whether there was anything."""
        piece = self._read(self._master)
        if not piece:
            return False
        self._is_silent = False
        self._last = (self._last + piece)[-_LAST:]
        self._to_screen += self._filter.feed(piece) if self._filter else piece
        self._write(self._screen, self._to_screen)
        return True

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
        terminal.write_quickly(self._screen, f"\r\nclaudebox: {message}\r\n".encode())

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

    def _flush(self) -> None:
        """Bring what the payload has written, and what waits, to the screen, as far as that goes quickly."""
        deadline = time.monotonic() + _DRAIN
        poll = select.poll()
        poll.register(self._screen, select.POLLOUT)
        while time.monotonic() < deadline:
            shown = len(self._to_screen) < _BACKLOG and self._show()
            if self._to_screen:
                poll.poll(50)
                self._write(self._screen, self._to_screen)
            elif not shown:
                return

    def leave(self, *, forced: bool) -> None:
        """Give the terminal to the shell; `forced`: the program inside has not put it in order."""
        self._flush()
        if self._filter:
            self._to_screen += self._filter.undo()
        elif forced:
            self._to_screen += terminal.reset_sequence()
        self._put_back()

    def _put_back(self) -> None:
        self._flush()
        self._is_raw = False
        self._pressed.clear()
        try:
            termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._modes)  # late answers are nobody's keystrokes
        except (OSError, termios.error):
            return

    def restore(self) -> list[str]:
        """Show the last output, undo the modes that were left switched, and give the terminal back."""
        if self._is_raw and terminal.is_foreground(0):
            self._flush()
            if reset := terminal.reset_sequence():
                self._to_screen += _take_back(self._last, os.get_terminal_size(self._screen).columns)
                self._to_screen += (self._filter.undo() if self._filter else reset) + _POP_TITLE
            self._put_back()
        return super().restore()


def _take_back(last: bytes, columns: int) -> bytes:
    """Return what erases how the client says to resume, where that was the last thing on the screen: we say it, too."""
    hint = last[last.rfind(agent.RESUME_HINT) :] if agent.RESUME_HINT in last else b""
    first, *parts = hint.split(b"\x1b[")
    text = first + b"".join(part.partition(b"m")[2] for part in parts)
    rows = text.split(b"\r\n")
    if len(rows) != 3 or rows[2] or b" --resume " not in rows[1]:
        return b""
    return b"\x1b[%dA\x1b[J" % (1 + -(-len(rows[1]) // max(columns, 1)))


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
