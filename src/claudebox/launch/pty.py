"""A terminal of the sandbox's own: a pty whose other end is held here, between the sandbox and the user (B01-B11).

The payload never holds the user's terminal. It has the pty as the controlling terminal of a session of its own, in
which a leader stays beside it, so that job control works as at any shell; what the leader sees of a suspension it
passes on to `supervise`, which stops everything. What the payload writes goes through `screen`.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time

from claudebox import syscalls
from claudebox.launch.pty_filter import TerminalFilter
from claudebox.launch.terminal import DEFAULT_SIGNALS, Terminal
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PIECE = 65536
_BACKLOG = 262144  # bytes that wait for a slow reader before the writer has to
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
_PR_SET_PDEATHSIG = 1
_DRAIN = 0.5  # seconds for the last words


class PrivateTerminal(Terminal):
    """The user's terminal, with a pty in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self._launcher = os.getpid()
        self._real = next(state.descriptor for state in self._states if state.modes is not None)
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        termios.tcsetattr(self._slave, termios.TCSANOW, termios.tcgetattr(self._real))
        self.resize()
        self._tty = self._reopen()
        self._filter = TerminalFilter()
        self._to_screen = bytearray()
        self._to_payload = bytearray()
        self._entered = False
        self.signals = (signal.SIGWINCH,)
        self.carriers = (self, *self.carriers)
        self._alive = {self._master, self._tty}

    def _reopen(self) -> int:
        """Return a descriptor on the terminal that can be made non-blocking without touching the shell's own (B08)."""
        try:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{self._real}", flags)
        except OSError:  # it belongs to somebody else, as after `su`
            return os.dup(self._real)

    def spawn(self, path: str, words: tuple[str, ...], placed: tuple[tuple[int, int], ...]) -> int:
        """Start a program in a session of its own, with the pty as its terminal."""
        process = os.fork()
        if process:
            return process
        try:
            for here, there in self._places():
                os.dup2(here, there)
            self._make_session()
            for here, there in placed:
                os.dup2(here, there)
            for number in DEFAULT_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.execve(path, words, {})
        except BaseException as error:  # noqa: BLE001 - nothing may return from here
            os.write(2, f"claudebox: {error}\n".encode("utf-8", "backslashreplace"))
        os._exit(125)

    def _make_session(self) -> None:
        """In the child: become the leader of a session, and return in the process that goes on beside it."""
        os.setsid()
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)
        for state in self._states:
            if state.modes is not None:
                os.dup2(self._slave, state.descriptor)
        syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._launcher:
            os._exit(125)
        process = os.fork()
        if process:
            _lead(process)
        os.setpgid(0, 0)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        os.tcsetpgrp(self._slave, os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def begin(self) -> None:
        """In the launcher, when the child has been made: take the terminal."""
        super().begin()
        self._entered = True
        os.close(self._slave)
        signal.pthread_sigmask(signal.SIG_BLOCK, self.signals)
        self._to_screen += _PUSH_TITLE
        self._raw()
        self.resize()

    def enter(self, *, by_force: bool = False) -> None:  # noqa: ARG002 - the pty keeps its modes
        """Take the terminal again."""
        self._alive.add(self._tty)  # it may have been refused in the background
        self._to_screen += self._filter.redo()
        self._raw()
        self.resize()

    def _raw(self) -> None:
        modes = termios.tcgetattr(self._tty)
        modes[0] &= ~(
            termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON | termios.INLCR
            | termios.IGNCR
        )  # fmt: skip
        modes[1] &= ~termios.OPOST
        modes[2] = (modes[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._tty, termios.TCSADRAIN, modes)

    def resize(self) -> None:
        """Give the pty the size of the terminal."""
        try:
            size = fcntl.ioctl(self._real, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)  # the kernel tells the payload
        except OSError:
            return

    def wanted(self) -> dict[int, int]:
        """Return what to wait for in both directions."""
        sides = {
            self._tty: (len(self._to_payload) < _BACKLOG, self._to_screen),
            self._master: (len(self._to_screen) < _BACKLOG, self._to_payload),
        }
        wanted = {
            descriptor: (select.POLLIN if readable else 0) | (select.POLLOUT if waiting else 0)
            for descriptor, (readable, waiting) in sides.items()
        }
        return {descriptor: events for descriptor, events in wanted.items() if events and descriptor in self._alive}

    def step(self, descriptor: int, events: int) -> None:
        """Carry what is there."""
        if events & select.POLLOUT:
            self._write(descriptor)
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            piece = self._read(descriptor)
            if descriptor == self._master:
                self._to_screen += self._filter.feed(piece)
                self._write(self._tty)
            else:
                self._to_payload += piece
                self._write(self._master)

    def _read(self, descriptor: int) -> bytes:
        try:
            piece = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:  # the other side has gone
            piece = b""
        if not piece:
            self._alive.discard(descriptor)
        return piece

    def _write(self, descriptor: int) -> None:
        waiting = self._to_screen if descriptor == self._tty else self._to_payload
        if descriptor not in self._alive:
            waiting.clear()
        if not waiting:
            return
        try:
            del waiting[: os.write(descriptor, waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._alive.discard(descriptor)

    def _flush(self) -> None:
        """Bring what the payload has written, and what waits, to the screen, as far as that goes quickly."""
        deadline = time.monotonic() + _DRAIN
        while self._master in self._alive and (piece := self._read(self._master)):
            self._to_screen += self._filter.feed(piece)
        poll = select.poll()
        poll.register(self._tty, select.POLLOUT)
        while self._to_screen and self._tty in self._alive and time.monotonic() < deadline:
            poll.poll(50)
            self._write(self._tty)

    def leave(self) -> None:
        """Give the terminal back while everything inside is frozen."""
        self._to_screen += self._filter.undo()
        self._flush()
        self._put_back()

    def _put_back(self) -> None:
        modes = next(state.modes for state in self._states if state.modes is not None)
        try:
            termios.tcsetattr(self._tty, termios.TCSAFLUSH, modes)  # answers that come late are nobody's keystrokes
        except (OSError, termios.error):
            return

    def restore(self) -> list[str]:
        """Show the last output, undo the modes that were left switched, and give the terminal back."""
        lost = self._streams.finish() if self._streams else []
        if self._entered and self.foreground_group() == os.getpgrp():
            self._flush()
            self._to_screen += self._filter.undo() + _POP_TITLE
            self._flush()
            self._put_back()
        self._restore_flags()
        return lost


def _lead(process: int) -> NoReturn:
    """Stay beside bwrap as the leader of its session: without one its group is orphaned and cannot be suspended."""
    try:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, 1 << 20)
        while True:
            _, status = os.waitpid(process, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
            os.kill(os.getpid(), signal.SIGSTOP)  # tells the launcher; goes on when it lets us
            os.kill(process, signal.SIGCONT)
    except BaseException:  # noqa: BLE001 - nothing may return from here
        os._exit(125)
