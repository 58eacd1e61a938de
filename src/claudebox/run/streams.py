"""Files and terminals as standard input and output become pipes, whose other ends are served here (A21, PTY-01).

Whoever holds a descriptor on a file can open the file again through `/proc/self/fd`, read all of it and rewrite it.
So `claudebox <prompt >>log` hands in no file, and `claudebox | less` no terminal for its errors. What may pass is a
list: pipes, devices without content, and sockets that lead to one peer; everything else is carried byte by byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import termios

from claudebox.base.errors import ClaudeboxError
from claudebox.base.syscalls import signal, socket
from claudebox.run import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_NAMES = ("standard input", "standard output", "standard error")
_WITHOUT_CONTENT = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))  # null, zero, full, random, urandom
_CAPACITY = 1 << 20
_F_SETPIPE_SZ = 1031
_PATIENCE = 1000  # milliseconds between two looks whether somebody wants the end


def may_pass(descriptor: int) -> bool:
    """Return whether nothing but the bytes that are meant for it can be had through a standard descriptor."""
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
        """Make a pipe for each of these; two for the same file share one, so that their order is kept.

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
            reader, writer = os.pipe2(os.O_CLOEXEC)
            try:
                fcntl.fcntl(writer, _F_SETPIPE_SZ, _CAPACITY)
            except OSError:  # the user has many large pipes already
                pass
            if reads:
                self._inside[number] = _high(reader)
                self._inputs.append(_Input(number, _high(writer), os.dup(self._inside[number])))
            else:
                files[file] = number
                self._inside[number] = _high(writer)
                self._outputs.append(_Output(number, _high(reader), filtered=filtered))

    def places(self) -> list[tuple[int, int]]:
        """Return the pipes and the numbers of the files in whose places they are put in the child."""
        return [(end, number) for number, end in self._inside.items()]

    def begin(self) -> None:
        """In the launcher: let go of the ends that are inside."""
        for end in set(self._inside.values()):
            os.close(end)
        self._inside = {}

    def wanted(self) -> dict[int, int]:
        """Return what to wait for."""
        wanted: dict[int, int] = {}
        for source in self._inputs:
            wanted |= source.wanted()
        for target in self._outputs:
            wanted |= target.wanted()
        return wanted

    def step(self, _descriptor: int, _events: int) -> None:
        """Carry what is there."""
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
        self._reader = reader  # the end inside, to see what nobody has read
        self._waiting = memoryview(b"")
        self._is_ready = stat.S_IFMT(os.fstat(number).st_mode) in (stat.S_IFREG, stat.S_IFBLK)
        os.set_blocking(pipe, False)

    def wanted(self) -> dict[int, int]:
        if self._pipe < 0:
            return {}
        return {self._pipe: select.POLLOUT} if self._waiting or self._is_ready else {self._number: select.POLLIN}

    def step(self) -> None:
        if self._pipe < 0 or not (self._waiting or self._is_ready or _is_readable(self._number)):
            return
        try:
            self._waiting = self._waiting or memoryview(os.read(self._number, _CAPACITY))
            if self._waiting:
                self._waiting = self._waiting[os.write(self._pipe, self._waiting) :]
                return
        except BlockingIOError:
            return
        except OSError:  # it cannot be read, or nobody reads any more
            pass
        os.close(self._pipe)
        self._pipe = -1

    def give_back(self) -> None:
        """Let whoever reads the file next begin where the payload has stopped, as if it had read it itself."""
        unread = int.from_bytes(fcntl.ioctl(self._reader, termios.FIONREAD, bytes(4)), sys.byteorder)
        try:
            os.lseek(self._number, -len(self._waiting) - unread, os.SEEK_CUR)
        except OSError:  # not a file
            return


class _Output:
    """A file that the payload writes to."""

    def __init__(self, number: int, pipe: int, *, filtered: bool) -> None:
        self.number = number
        self._pipe = pipe
        self._waiting = memoryview(b"")
        self.problem = ""
        self.is_screen, self.is_used = os.isatty(number), False
        self._target = terminal.reopen(number, os.O_WRONLY) if self.is_screen else number
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
        """Write everything; a peer that does not read is waited for until somebody asks us to end."""
        while self.step() or self._waiting:
            if self._waiting:
                poll = select.poll()
                poll.register(self._target, select.POLLOUT)
                if not poll.poll(_PATIENCE) and signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
                    return


def _high(descriptor: int) -> int:
    """Move a descriptor out of the way of those that the gate gets."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
