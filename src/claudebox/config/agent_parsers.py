"""Values that are about several agents: branches, paths to copy, sizes, times."""

from __future__ import annotations

from claudebox.config.model import LimitRequest
from claudebox.errors import ClaudeboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.config.settings import Given, Settings

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NEVER = frozenset(" :?*[\\{")  # in no name of a commit


def parse_branch(given: Given) -> str:
    """Return what names a commit: a branch, a tag, or its digits."""
    value = given.value
    if not value or not value.isprintable() or set(value) & _NEVER or value[0] in "-/." or ".." in value:
        raise ClaudeboxError(f"`{given.origin}`: `{value}` does not name a branch, a tag or a commit")
    return value


def parse_copied_path(given: Given) -> str:
    """Return a path in the project."""
    parts = given.value.rstrip("/").split("/")
    if given.value.startswith("/") or any(part in ("", ".", "..") for part in parts) or parts[0] == ".git":
        raise ClaudeboxError(f"`{given.origin}` is a path in the project, as `node_modules`, not `{given.value}`")
    return "/".join(parts)


def parse_size(given: Given) -> int:
    """Return a number of bytes."""
    value = given.value.upper().removesuffix("B").removesuffix("I")
    digits, unit = (value[:-1], value[-1:]) if value[-1:] in _UNITS else (value, "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) > 0):
        raise ClaudeboxError(f"`{given.origin}` is a size, as `512M` or `8G`, not `{given.value}`")
    return int(digits) * _UNITS[unit]


def parse_time(given: Given) -> int:
    """Return a number of seconds."""
    value = given.value
    digits, unit = (value[:-1], value[-1:]) if value[-1:] in _SECONDS else (value, "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 8 and int(digits) > 0):
        raise ClaudeboxError(f"`{given.origin}` is a time, as `90s`, `30m` or `8h`, not `{given.value}`")
    return int(digits) * _SECONDS[unit]


def parse_count(given: Given) -> int:
    """Return a number of processes: few enough to be a limit, enough for a program to start."""
    if not (given.value.isascii() and given.value.isdigit() and 16 <= int(given.value[:9]) <= 1 << 20):
        raise ClaudeboxError(f"`{given.origin}` is a number from 16 to {1 << 20}, not `{given.value}`")
    return int(given.value)


def parse_processors(given: Given) -> int:
    """Return hundredths of a processor."""
    whole, _, part = given.value.partition(".")
    if not ((whole + part).isascii() and (whole + part).isdigit() and len(whole) < 5 and len(part) < 3):
        raise ClaudeboxError(f"`{given.origin}` is a number of processors, as `2` or `0.5`, not `{given.value}`")
    found = int(whole or 0) * 100 + int((part + "00")[:2])
    if not found:
        raise ClaudeboxError(f"`{given.origin}` is more than 0")
    return found


def decide_limits(settings: Settings) -> LimitRequest:
    """Return the limits that are asked for."""

    def read(key: str, parse: Callable[[Given], int]) -> int:
        return parse(settings.one(key)) if settings.all(key) else 0

    if settings.all("scratch_size") and settings.one("scratch").value == "disk":
        raise ClaudeboxError("`--scratch-size` limits memory, and `--scratch disk` takes none", hint="use one of them")
    return LimitRequest(
        seconds=read("time_limit", parse_time),
        processes=read("pids", parse_count),
        scratch=read("scratch_size", parse_size),
        memory=read("memory", parse_size),
        cpus=read("cpus", parse_processors),
    )
