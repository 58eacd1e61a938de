"""Reading session logs: line by line, as far as they go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from claudebox.files import parse_object
from claudebox.report import session_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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

    def lines(self, *marks: bytes) -> Iterator[Line]:
        """Yield the lines that are complete by now, or those with one of these marks; a damaged one is passed over."""
        while self._descriptor >= 0 and (piece := os.read(self._descriptor, 1 << 16)):
            *whole, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > session_log.LINE:
                self._rest = b""
            for text in whole:
                if marks and not any(mark in text for mark in marks):
                    continue
                if line := parse_object(text):
                    yield line

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def read_lines(directory: str, name: str, *marks: bytes) -> list[Line]:
    """Return the lines of one record that are complete by now."""
    reader = LogReader(directory, name)
    try:
        return list(reader.lines(*marks))
    finally:
        reader.close()


def human(size: int) -> str:
    """Return a number of bytes for people."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def sum_usage(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return what the answers of a model took and cost together."""
    total = dict.fromkeys(("answers", "input", "output", "cached", "price", "unpriced"), 0)
    for line in lines:
        if line.get("kind") == "usage":
            numbers = {name: value for name, value in line.items() if isinstance(value, int) and 0 <= value < 1 << 50}
            cached = numbers.get("cache_write", 0) + numbers.get("cache_read", 0)
            price, count = numbers.get("price", 0), numbers.get("count", 1)
            row = (count, numbers.get("input", 0), numbers.get("output", 0), cached, price, 0 if price else count)
            total = {name: amount + more for (name, amount), more in zip(total.items(), row, strict=True)}
    return total


DOUBTFUL = (b'"broker"', b'"full"')  # marks of the lines that `find_doubts` looks at


def find_doubts(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why a log does not tell everything that was reached and spent; the worst first."""
    kinds = {line.get("kind"): line for line in lines}
    account = kinds.get("broker", {})
    found = []
    if account.get("silent"):
        found.append("the broker gave no account at its end: what was reached and spent last may be missing in the log")
    if account.get("lost"):
        found.append(f"{account['lost']} connections or answers could not be written to the log")
    if "full" in kinds:
        found.append("the log was full: later connections and answers are in it as sums only")
    return found
