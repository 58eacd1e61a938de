"""The terminal of a sandbox: a pty whose other end is held here, between the sandbox and the user (B01-B18).

What is typed and what is written pass through as they are, or cleaned by `terminal_filter`. The user's terminal is raw,
so that the program gets every key. Against a program that ignores all of them there is an escape: Ctrl+C and Ctrl+Z in
quick succession give the shell back.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time

from claudebox.base import console
from claudebox.base.syscalls import signal
from claudebox.run.terminal import FOREVER, Terminal, is_foreground, reopen, reset_sequence, write_quickly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.run.terminal import Carrier


_PIECE = 65536  # bytes of one read
_ROUNDS = 16  # of reading before signals and keys get their turn
_BACKLOG = 262144  # bytes that wait for a slow screen before the writer has to
_TYPED = 4 << 20  # bytes that wait for a slow program; what is typed beyond that is dropped
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
_HELD = 131072  # bytes: more than a pty can hold
_LAST = 1024  # bytes of the last output that are kept
# What can make a terminal answer: ENQ, ESC, and the controls of eight bits, which UTF-8 has in two.
_ASKING = (b"\x05", b"\x1b", b"\x90", b"\x9a", b"\x9b", b"\x9d")
_QUIET, _FAR = 0.3, 1.0  # seconds of silence after which no answer is expected any more, here and through ssh
_LONGEST_ANSWER = 64
_PATIENCE = 2.0  # seconds for all answers

# The escape: only Ctrl+C and Ctrl+Z, each at least twice, within `_QUICK` seconds.
_QUICK, _TWICE = 3.0, 2
_SILENCE = 1.0  # seconds without output after `_SOME` of these keys, until the hint
_SOME, _MANY = 3, 8  # presses until the hint if nothing happens, and in any case
_LONGEST_SEQUENCE = 4096
_PASTE = b"\x1b[200~"
_CTRL, _LOCKS = 4, 64 + 128  # modifiers in the protocol of kitty
HELP = "the program does not answer; Ctrl+C Ctrl+Z Ctrl+C Ctrl+Z, pressed quickly, gives you the shell back"


class Pty(Terminal):
    """The standard descriptors of a sandbox that has a pty, and the user's terminal behind it."""

    measures = "t"
    signals = (signal.SIGWINCH,)
    has_pty = True

    def __init__(self, *, filtered: bool = False, hint: bytes = b"") -> None:
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
        self._hint, self._filter = hint, None
        if filtered:
            from claudebox.run.terminal_filter import TerminalFilter

            self._filter = TerminalFilter()
        self._to_screen, self._to_payload = bytearray(), bytearray()
        self._open = {self._master, self._keys, self._screen}
        self._last = b""  # what was written last
        self._is_raw = False  # the terminal is raw, and its keys are for the program
        self._is_gone = False
        self._is_silent = False  # nothing was written since it was set
        self._is_asked = False  # the terminal may have been asked for something
        self._finder = Keys()
        self._pressed: list[tuple[float, str]] = []
        self._doubt = 0.0  # when to print the hint; 0: never

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        return (self, *super().carriers)

    def _places(self) -> Iterable[tuple[int, int]]:
        yield from ((self._slave, number) for number in self._served)
        yield from super()._places()

    def begin(self) -> None:
        super().begin()
        os.close(self._slave)

    def is_ours(self) -> bool:
        return is_foreground(0)

    def enter(self) -> None:
        try:
            self._make_raw()
        except (OSError, termios.error):  # it was closed
            self._is_gone = True
            return
        if not self._is_raw:
            self._to_screen += _PUSH_TITLE if reset_sequence() else b""
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
        try:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            return

    def wanted(self) -> dict[int, int]:
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
        """Return whether keys wait; they come before output, which can make the terminal answer without end."""
        return self._is_raw and self._keys in self._open and bool(self._typing.poll(0))

    def _show(self) -> int:
        """Carry output to the screen; return how many bytes there were."""
        piece = self._read(self._master)
        if not piece or not self._is_raw:  # the shell has the terminal
            return len(piece)
        self._is_silent = False
        self._last = (self._last + piece)[-_LAST:]
        shown = self._filter.feed(piece) if self._filter else piece
        self._is_asked = self._is_asked or any(byte in shown for byte in _ASKING)
        self._to_screen += shown
        self._write(self._screen, self._to_screen)
        return len(piece)

    def _type(self) -> None:
        """Carry input to the program, and look for the escape in it."""
        piece = self._read(self._keys)
        if self._keys not in self._open:
            self._is_gone = True
        if self._notice(self._finder.find(piece)) or len(self._to_payload) >= _TYPED:
            return
        self._to_payload += piece
        self._write(self._master, self._to_payload)

    def _notice(self, letters: str | None) -> bool:
        """Record presses of Ctrl+C and Ctrl+Z; return whether they make the escape."""
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
        if not self._has_escape():
            return False
        self._pressed.clear()
        self._doubt = 0.0
        return True

    def is_gone(self) -> bool:
        gone, self._is_gone = self._is_gone, False
        return gone

    def look(self) -> float:
        """Print the hint if it is due; return in how many seconds to look again."""
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
        """Give the terminal to the shell, in order: we may never be continued in the foreground."""
        self._give_back()

    def restore(self) -> list[str]:
        """Show the last output, undo the modes that were left on, and give the terminal back."""
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
            self._to_screen += _erase_hint(self._last, self._hint, columns) if ends else b""
            self._to_screen += reset + _POP_TITLE
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
        """Write what waits, and drop what the terminal sends until it has answered: the user did not type it."""
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
    """Return columns and rows of a terminal; the usual ones if it does not know or has gone."""
    try:
        columns, rows = os.get_terminal_size(screen)
    except OSError:
        columns = rows = 0
    return columns or 80, rows or 24


def _ask(rows: int, columns: int) -> tuple[bytes, bytes]:
    """Return a question that every terminal answers, and the answer to it: the cursor's position at random places."""
    chances = [int.from_bytes(os.urandom(4)) for _ in range(3)]
    places = [(1 + chance % rows, 1 + chance // rows % columns) for chance in chances]
    question = b"".join(b"\x1b[%d;%dH\x1b[6n" % place for place in places)
    return b"\x1b7" + question + b"\x1b8", b"".join(b"\x1b[%d;%dR" % place for place in places)


def _erase_hint(last: bytes, hint: bytes, columns: int) -> bytes:
    """Return what erases the client's own hint how to resume, if that was its last output: ours replaces it."""
    hint = last[last.rfind(hint) :] if hint and hint in last else b""
    hint, *titles = hint.split(b"\x1b]")  # one may be set after the hint
    hint += b"".join(title.partition(b"\x07")[2] for title in titles)
    first, *parts = hint.split(b"\x1b[")
    text = first + b"".join(part.partition(b"m")[2] for part in parts)
    rows = text.split(b"\r\n")
    if len(rows) < 3 or any(rows[2:]) or b" --resume " not in rows[1]:
        return b""
    wrapped = (len(rows[1]) - 1) // columns
    return b"\x1b[%dA\x1b[J" % (len(rows) - 1 + wrapped)


class Keys:
    """Finds Ctrl+C and Ctrl+Z in input from a terminal, however it is cut into pieces.

    Terminals spell them as a control character, `ESC [ code ; modifiers u` (kitty) or `ESC [ 27 ; modifiers ; code ~`
    (xterm). Other sequences are skipped: a program can make the terminal report the mouse all the time.
    """

    def __init__(self) -> None:
        self._cut = b""  # the beginning of a sequence

    def find(self, piece: bytes) -> str | None:
        """Return which of the two were pressed, as letters; None if there is other text, such as a paste."""
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
    """Return where a sequence ends, 0 if it is incomplete."""
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
    """Return the letter if a sequence is one of the two keys, pressed with Ctrl; a release is not."""
    fields = [field.split(":") for field in body.split(";")]
    if final == "~" and len(fields) == 3 and fields[0] == ["27"]:
        fields = [fields[2], fields[1]]
    elif final != "u" or len(fields) < 2:
        return ""
    (code, *_), (modifiers, *event) = ([int(part) if part.isdigit() else 0 for part in field] for field in fields[:2])
    pressed = event[:1] != [3] and (modifiers - 1) & ~_LOCKS == _CTRL
    return chr(code) if pressed and code in (ord("c"), ord("z")) else ""
