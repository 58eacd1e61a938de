"""Reading session logs: line by line, as far as they go."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from claudebox.report import session_log

if TYPE_CHECKING:
    from collections.abc import Iterator

Line = dict[str, Any]
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class LogReader:
    """Reads one record, as far as it goes."""

    def __init__(self, directory: str, name: str) -> None:
        self._rest = b""
        try:
            self._descriptor = os.open(f"{directory}/{name}", _READ)
        except OSError:
            self._descriptor = -1

    def lines(self) -> Iterator[Line]:
        """Yield the lines that are complete by now; a damaged one is passed over."""
        while self._descriptor >= 0 and (piece := os.read(self._descriptor, 1 << 16)):
            *whole, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > session_log.LINE:
                self._rest = b""
            for text in whole:
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    yield line

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def human(size: int) -> str:
    """Return a number of bytes for people."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"
