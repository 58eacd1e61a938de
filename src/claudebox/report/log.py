"""The session log: one file per session in ~/.claudebox/log, written and read here.

The launcher writes how a session began and ended; the broker appends its decisions to the same file, a line each.
Names, numbers and verdicts only: never a value, a header, a body or the path of an address. The oldest files go when
there are too many, or when they are too large.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from claudebox.report.changes import Report

    Line = dict[str, Any]
    Plain = str | int | float | bool | tuple["Plain", ...] | Mapping[str, "Plain"]


DIRECTORY = "log"
SUFFIX = ".jsonl"
MOST_FILES, MOST_BYTES = 256, 64 << 20
_EVERY = 16  # files between two looks at their size
LINE = 1 << 19  # the longest line
DOUBTFUL = (b'"broker"', b'"full"')  # in the lines that `find_doubts` needs
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CHANGES = "changes"
_CHANGES_BYTES = 8 << 20
_NAMES = 20_000  # characters of names in a line; each takes up to twelve bytes there
_LONGEST = 8192


class SessionLog:
    """The log of one session; where it cannot be written, the session runs without."""

    def __init__(self, state: str, name: str) -> None:
        """Open it; `state` is ~/.claudebox, `name` is that of the project's instance."""
        self.descriptor = -1
        self.name = ""
        self._directory = -1
        self._begun = time.time()
        try:
            self._directory = open_state(state, DIRECTORY)
            names = sort_names(os.listdir(self._directory))
            self._prune(names)
            number = _number(names[-1]) + 1 if names else 1
            self.name = f"{name_moment(self._begun)}-{name}-n{number}-{os.getpid()}{SUFFIX}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.descriptor = os.open(self.name, flags, 0o600, dir_fd=self._directory)
        except (OSError, ClaudeboxError) as error:
            problem = error.strerror if isinstance(error, OSError) else str(error)
            console.warn(f"this session is not recorded in {state}/{DIRECTORY}: {problem}")

    def write(self, kind: str, content: Mapping[str, Plain]) -> int:
        """Append a line, whole or not at all; return its length."""
        if self.descriptor < 0:
            return 0
        line = syscalls.render_json({"time": round(time.time(), 3), "kind": kind, **content}) + "\n"
        if len(line) > LINE:  # no reader takes more
            line = syscalls.render_json({"time": round(time.time(), 3), "kind": kind, "too_long": len(line)}) + "\n"
        try:
            os.write(self.descriptor, line.encode("ascii"))
        except OSError as error:
            console.warn(f"the log of this session ends here: {error.strerror}")
            self.close()
        return len(line)

    def close(self) -> None:
        for descriptor in (self.descriptor, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._directory = -1

    def _prune(self, names: list[str]) -> None:
        """Remove the oldest files where there are too many, some at a time."""
        if len(names) < MOST_FILES and len(names) % _EVERY != _EVERY - 1:
            return
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


def name_moment(now: float) -> str:
    """Return a time in UTC for the name of a session."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}Z"


def _number(name: str) -> int:
    """Return the number of a log: greater than any before it, whatever the clock said. Earlier versions have none."""
    number = name.rsplit("-", 2)[-2] if name.count("-") > 1 else ""
    return int(number[1:]) if number.startswith("n") and number[1:].isdecimal() else 0


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the logs among these names, oldest first."""
    return sorted((name for name in names if name.endswith(SUFFIX)), key=lambda name: (_number(name), name))


def write_changes(record: SessionLog, report: Report) -> None:
    """Log every path that changed, the most dangerous first, until the limit."""
    left = _CHANGES_BYTES
    for labels, names in _rows(report):
        piece: list[str] = []
        size = 0
        for name in (*names, ""):
            if piece and (not name or size + len(name) > _NAMES):
                left -= record.write(_CHANGES, {**labels, "names": tuple(piece)})
                piece, size = [], 0
                if left < 0:
                    record.write(_CHANGES, {"what": "full", "in": "", "names": ()})
                    return
            piece.append(name[-_LONGEST:])
            size += len(name)


def _rows(report: Report) -> Iterator[tuple[dict[str, Plain], list[str]]]:
    """Yield kind, directory and who runs it; and names with what happened to them."""
    from claudebox.report.kinds import HEADINGS

    for path, why in report.unseen:
        yield {"what": "not looked at", "in": path[-_LONGEST:]}, [why]
    for kind in HEADINGS:
        grouped: dict[tuple[int, str, str, str], list[str]] = {}
        for change in report.changes:
            if change.kind.name == kind:
                path = change.path.rstrip("/")
                directory = path.rpartition("/")[0]
                name = change.path[len(directory) + 1 if directory else 0 :]
                key = (change.kind.rank, change.kind.why, change.kind.group, directory)
                grouped.setdefault(key, []).append(f"{name} ({change.how})" if change.how else name)
        for key in sorted(grouped, key=lambda key: (key[0], *_depth(key[3]), key[1:3])):
            rank, why, group, directory = key
            labels: dict[str, Plain] = {"what": kind, "in": directory[-_LONGEST:]}
            labels |= {"rank": rank} if rank else {}
            labels |= {"why": why[:_LONGEST]} if why else {}
            labels |= {"of": group[-_LONGEST:]} if group else {}
            yield labels, grouped[key]


def read_changes(lines: Iterable[Line]) -> Report:
    """Return what `write_changes` has logged; earlier versions did not log who runs something."""
    from claudebox.report.changes import ChangedPath, Report
    from claudebox.report.kinds import HEADINGS, Kind

    changes: list[ChangedPath] = []
    unseen: list[tuple[str, str]] = []
    for line in lines:
        names, what, directory = line.get("names"), str(line.get("what")), str(line.get("in", ""))
        if line.get("kind") != _CHANGES or not isinstance(names, list):
            continue
        for name in map(str, names):
            if what in HEADINGS:
                plain, _, how = name.removesuffix(")").rpartition(" (") if name.endswith(")") else (name, "", "")
                rank = line.get("rank")
                kind = Kind(what, str(line.get("of", "")), str(line.get("why", "")),
                            rank if isinstance(rank, int) else 0)  # fmt: skip
                changes.append(ChangedPath(kind, f"{directory}/{plain}" if directory else plain, how))
            elif what != "full":
                unseen.append((directory, name))
    return Report(tuple(changes), tuple(unseen))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/") + bool(path), path


class LogReader:
    """Reads a log that may still be written."""

    def __init__(self, directory: str, name: str) -> None:
        self._rest = b""
        self.damaged = 0  # lines that could not be read
        try:
            self._descriptor = os.open(f"{directory}/{name}", _READ)
        except OSError:
            self._descriptor = -1

    def lines(self, *marks: bytes) -> Iterator[Line]:
        """Yield complete lines, with `marks` only those that contain one; damaged ones are skipped."""
        while self._descriptor >= 0 and (piece := os.read(self._descriptor, 1 << 16)):
            *whole, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > LINE:
                self._rest = b""
                self.damaged += 1
            for text in whole:
                if marks and not any(mark in text for mark in marks):
                    continue
                if isinstance(line := syscalls.parse_json(text), dict):
                    yield line
                else:
                    self.damaged += 1

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def read_lines(directory: str, name: str, *marks: bytes) -> list[Line]:
    reader = LogReader(directory, name)
    try:
        return list(reader.lines(*marks))
    finally:
        reader.close()


def human(size: int) -> str:
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def sum_usage(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the tokens and the price of all answers of the model."""
    total = dict.fromkeys(("answers", "input", "output", "cached", "price", "unpriced"), 0)
    for line in lines:
        if line.get("kind") == "usage":
            numbers = {name: value for name, value in line.items() if isinstance(value, int) and 0 <= value < 1 << 50}
            cached = numbers.get("cache_write", 0) + numbers.get("cache_read", 0)
            price, count = numbers.get("price", 0), numbers.get("count", 1)
            row = (count, numbers.get("input", 0), numbers.get("output", 0), cached, price, 0 if price else count)
            total = {name: amount + more for (name, amount), more in zip(total.items(), row, strict=True)}
    return total


def find_doubts(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why a log may be incomplete, the worst first."""
    kinds = {line.get("kind"): line for line in lines}
    account = kinds.get("broker", {})
    found = []
    if account.get("silent"):
        found.append("the broker ended without a summary: the last connections and costs may be missing in the log")
    if account.get("lost"):
        found.append(f"{account['lost']} connections or answers could not be written to the log")
    if "full" in kinds:
        found.append("the log was full: later connections and answers are in it as sums only")
    return found


def records(directory: str, project: str = "") -> list[str]:
    """Return the names of the logs, oldest first; with a project those of its instance."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ClaudeboxError(f"`{directory}` cannot be read: {error.strerror}") from None
    return [name for name in sort_names(names) if not project or f"-{project}" in name]
