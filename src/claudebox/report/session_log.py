"""The session log: one file in ~/.claudebox/log, opened before the start, ended after the end.

The launcher writes how a session began and ended; the broker writes its decisions in between, to the same file, a line
at a time. Names, numbers and verdicts only: never a value, a header, a body or the path of an address. Old records go
when there are too many or too much of them.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Plain = str | int | float | bool | tuple["Plain", ...] | Mapping[str, "Plain"]

DIRECTORY = "log"
SUFFIX = ".jsonl"
MOST_FILES, MOST_BYTES = 256, 64 << 20
_EVERY = 16  # records between two looks at their size
LINE = 1 << 19  # the longest line


class SessionLog:
    """What is written down about one session; where it cannot be, the session goes on without."""

    def __init__(self, state: str, name: str) -> None:
        """Open the record; `state` is ~/.claudebox, `name` tells the project."""
        self.descriptor = -1
        self.name = ""
        self._directory = -1
        self._begun = time.time()
        try:
            self._directory = open_state(state, DIRECTORY)
            self._prune()
            self.name = _name(self._begun, name)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.descriptor = os.open(self.name, flags, 0o600, dir_fd=self._directory)
        except (OSError, ClaudeboxError) as error:
            problem = error.strerror if isinstance(error, OSError) else str(error)
            console.warn(f"this session is not recorded in {state}/{DIRECTORY}: {problem}")

    def write(self, kind: str, content: Mapping[str, Plain]) -> int:
        """Write one line, whole or not at all; return how long it is."""
        if self.descriptor < 0:
            return 0
        line = render({"time": round(time.time(), 3), "kind": kind, **content}) + "\n"
        if len(line) > LINE:  # no reader takes more, and half a line says nothing
            line = render({"time": round(time.time(), 3), "kind": kind, "too_long": len(line)}) + "\n"
        try:
            os.write(self.descriptor, line.encode("ascii"))
        except OSError as error:
            console.warn(f"the log of this session ends here: {error.strerror}")
            self.close()
        return len(line)

    def close(self) -> None:
        """Stop writing."""
        for descriptor in (self.descriptor, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._directory = -1

    def _prune(self) -> None:
        """Remove the oldest records where there are too many, some at a time; names begin with their time."""
        names = [name for name in os.listdir(self._directory) if name.endswith(SUFFIX)]
        if len(names) < MOST_FILES and len(names) % _EVERY != _EVERY - 1:
            return
        names.sort()
        most = MOST_FILES - min(_EVERY, MOST_FILES // 2)
        size = 0
        for index, name in enumerate(reversed(names)):
            try:
                status = os.lstat(name, dir_fd=self._directory)
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
                if (index >= most and len(names) >= MOST_FILES) or size > MOST_BYTES:
                    os.unlink(name, dir_fd=self._directory)
            except OSError:  # another session was quicker
                continue


def _name(now: float, project: str) -> str:
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return f"{moment}.{int(now * 1000) % 1000:03d}Z-{project}-{os.getpid()}{SUFFIX}"


def render(value: Plain) -> str:
    """Return JSON in ASCII; the module of that name would cost every launch more than the rest of this."""
    if isinstance(value, str):
        plain = value.isascii() and value.isprintable() and '"' not in value and "\\" not in value
        return f'"{value if plain else "".join(map(_escaped, value))}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(render, value))}]"
    return f"{{{', '.join(f'{render(name)}: {render(item)}' for name, item in value.items())}}}"


def _escaped(char: str) -> str:
    code = ord(char)
    if char in '"\\':
        return f"\\{char}"
    if 0x20 <= code < 0x7F:
        return char
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
