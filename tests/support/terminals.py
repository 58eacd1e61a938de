"""An interactive bash on a real terminal, as a user has it, and bounded waiting for what it shows.

`Terminal` is a pty whose other end is held by the test; `Multiplexer` is a window of tmux, which understands what
programs write as a terminal emulator does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.conftest import PATIENCE, configure, need, wait_until

if TYPE_CHECKING:
    from tests.conftest import Box

CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"
_PROMPT = "<$?>host$ "  # shows the status of the last command
_AT_PROMPT = r"<(\d+)>host\$ "
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]|[\r\x0f\x18]")
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_BASH = ("/bin/bash", "--norc", "--noprofile", "-i")

# Like the real client: it reads the key itself, puts the terminal in order and stops its whole group.
CLIENT = """\
import os, signal, sys, termios, time, tty
modes = termios.tcgetattr(0)
tty.setraw(0)
signal.signal(signal.SIGCONT, lambda *_: None)
os.write(1, b"ready\\r\\n")
while True:
    key = os.read(0, 1)
    if key == b"\\x1a":
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        os.kill(0, signal.SIGTSTP)
        tty.setraw(0)
        os.write(1, b"back again\\r\\n")
    elif key == b"q":
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        raise SystemExit(3)
"""


def content(path: str) -> str:
    """Return what a file says, nothing if there is none yet."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def marked(marker: str) -> list[int]:
    """Return the processes of the host that have this text in their command line."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line:
            found.append(int(process))
    return found


def state(process: int) -> str:
    """Return the state of a process as one letter, as `ps` shows it; X if it has gone."""
    try:
        return content(f"/proc/{process}/stat").rpartition(")")[2].split()[0]
    except (IndexError, ProcessLookupError):
        return "X"


def dead(*processes: int) -> bool:
    """Return whether none of these runs any more; whether anybody has noticed it is another matter."""
    return all(state(process) in "ZX" for process in processes)


def descendants(process: int) -> list[int]:
    """Return a process and all that descends from it."""
    found, waiting = [], [process]
    while waiting:
        found.append(waiting.pop())
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
                waiting += map(int, task.read_text(encoding="ascii").split())
    return found


def put_down(marker: str) -> None:
    """End every process that has this text in its command line."""
    for process in marked(marker):
        with contextlib.suppress(ProcessLookupError):  # one of the others took it along
            os.kill(process, signal.SIGKILL)


def use_terminal(box: Box, kind: str) -> Box:
    """Give a box a terminal of this kind from now on: `plain` or `filtered`."""
    box.write(f"{box.home}/.claudebox/config.toml", f'network = "full"\nterminal = "{kind}"\n', mode=0o600)
    os.chmod(f"{box.home}/.claudebox", 0o700)
    return box


def command(box: Box, *words: str) -> str:
    """Return the command line that runs these words in the sandbox."""
    return shlex.join((box.program, "-y", "--exec", "--", *words))


class Terminal:
    """A pty with an interactive bash of the account of a box, in its project."""

    def __init__(self, box: Box, *, argv: tuple[str, ...] = _BASH, configured: bool = True) -> None:
        self.box = box
        if configured:
            configure(box)
        self._everything = self._text = ""
        self._seen = 0
        self.master, slave = pty.openpty()
        self.name = os.ttyname(slave)
        os.fchown(slave, box.account.uid, box.account.gid)
        self.resize(24, 80)
        self.first_modes = self.modes()
        self.process = subprocess.Popen(
            argv, cwd=box.project, env=box.variables({"PS1": _PROMPT, "HISTFILE": "/dev/null"}),
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - there are no threads
            **box.account.demotion,
        )  # type: ignore[call-overload]  # fmt: skip
        self.slave: int | None = slave
        if argv == _BASH:
            self.prompt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        for descriptor in (self.slave, self.master):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self.slave = None
        self.master = -1

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type without a line end."""
        os.write(self.master, keys.encode())

    def type(self, line: str) -> None:
        """Type a line."""
        self.press(line + "\r")

    def claudebox(self, *words: str) -> None:
        """Type a command line that runs these words in the sandbox."""
        self.type(command(self.box, *words))

    def python(self, program: str) -> None:
        """Run a Python program in the sandbox, and wait until it has said that it is ready."""
        self.claudebox("python3", self.box.write("program.py", program))
        self.expect("\nready\n")

    def resume(self) -> None:
        """Continue the job that was suspended, and wait until it has the terminal and runs."""
        self.type("fg")
        self.expect("fg\n")
        jobs = marked(self.box.project)
        wait_until(lambda: os.tcgetpgrp(self.master) in jobs, "the job has the terminal")
        wait_until(lambda: not any(state(job) in "Tt" for job in jobs), "the job runs")

    def expect(self, pattern: str, *, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until the pattern appears behind what was expected before."""
        deadline = time.monotonic() + patience
        while True:
            found = re.compile(pattern).search(self._text, self._seen)
            if found:
                self._seen = found.end()
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} on the terminal after {self._text[self._seen :]!r}")
            self._read(min(0.2, patience))

    def prompt(self, *, patience: float = PATIENCE) -> int:
        """Wait for the prompt of the host's shell and return the status that it shows."""
        return int(self.expect(_AT_PROMPT, patience=patience)[1])

    def shown(self, *, during: float = 0.0) -> str:
        """Return what has appeared behind what was expected last, after so many seconds."""
        deadline = time.monotonic() + during
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)
        self._read(0)
        return self._text[self._seen :]

    def raw(self) -> str:
        """Return everything that has appeared, control sequences included."""
        self._read(0)
        return self._everything

    def modes(self) -> list[object]:
        """Return the modes of the terminal."""
        return termios.tcgetattr(self.master)

    def flags(self) -> int:
        """Return the flags of the descriptors that the programs on the terminal share."""
        assert self.slave is not None
        return fcntl.fcntl(self.slave, fcntl.F_GETFL)

    def _read(self, patience: float) -> None:
        if select.select([self.master], [], [], patience)[0]:
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the last one on the other side has gone
                piece = b""
                time.sleep(min(patience, 0.05))
            self._everything += piece.decode(errors="replace")
            self._text = _ESCAPES.sub("", _UNFINISHED.sub("", self._everything))


class Multiplexer:
    """A window of a tmux server of its own, with an interactive bash in it."""

    def __init__(self, box: Box) -> None:
        need(shutil.which("tmux"), "tmux")
        self.box = box
        configure(box)
        self._socket = f"{box.mkdir(f'{box.base}/tmux')}/{uuid.uuid4().hex[:8]}"
        shell = shlex.join(("env", f"PS1={_PROMPT}", "HISTFILE=/dev/null", *_BASH))
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", shell)
        self.expect(_AT_PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def press(self, *keys: str) -> None:
        """Press keys by the names that tmux has for them."""
        self._tmux("send-keys", *keys)

    def type(self, line: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def claudebox(self, *words: str) -> None:
        """Type a command line that runs these words in the sandbox."""
        self.type(command(self.box, *words))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def open(self, name: str, line: str) -> None:
        """Open another window in which there is nothing but this command."""
        self._tmux("new-window", "-d", "-n", name, "-c", self.box.project, f"exec {line}")

    def close(self, name: str) -> None:
        """Close another window."""
        self._tmux("kill-window", "-t", name)

    def screen(self, name: str = "") -> str:
        """Return what a user sees."""
        return self._tmux("capture-pane", "-p", "-J", *(("-t", name) if name else ()))

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows the pattern."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.screen())
            found.extend([match] if match else [])
            return match is not None

        wait_until(look, f"{pattern!r} on the screen of tmux")
        return found[0]

    def rows(self) -> list[str]:
        """Return the rows of the window down to the last that is not empty."""
        return self._tmux("capture-pane", "-p").rstrip().split("\n")

    def state(self, *names: str) -> list[str]:
        """Return what tmux says about the window, by the names that it has for it."""
        return self._tmux("display-message", "-p", " ".join(f"#{{{name}}}" for name in names)).split()

    def _tmux(self, *words: str) -> str:
        return self.box.host("tmux", "-S", self._socket, *words).stdout
