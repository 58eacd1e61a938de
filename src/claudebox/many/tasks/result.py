"""The result of a task: a directory that is there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.broker.metering import TokenUsage
from claudebox.many.tasks.task import OVER_BUDGET
from claudebox.report import receipt
from claudebox.report.log import find_doubts, read_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


FILE = "result.json"
_LARGEST = 512 << 20  # bytes of a transcript or a log
_LARGEST_RESULT = 1 << 20
_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SAID = 2000
_MESSAGES = 16 << 20
_NAMES = {
    "input": "input_tokens", "output": "output_tokens", "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}  # fmt: skip


@dataclass
class TaskResult:
    """What `result.json` holds."""

    id: str
    status: str = "failed"  # done, failed, retry, over time, over budget, cancelled, refused
    exit: int = 1
    retry: bool = False
    why: str = ""
    said: str = ""  # the beginning of the agent's last words
    cost_usd: float | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    turns: int | None = None
    tries: int = 0
    base: str = ""
    head: str = ""
    session: str = ""
    host: str = ""
    started: str = ""
    ended: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)  # and their sizes, to tell a copy that was cut short
    withheld: list[str] = field(default_factory=list)  # files that held a secret of the host
    missing: list[str] = field(default_factory=list)  # why the log may not tell everything that was reached and spent


class Staging:
    """The directory of a result while it is being made, beside its place."""

    def __init__(self, place: str) -> None:
        """Refuse a place that holds something else than an older result."""
        self._place = os.path.abspath(place)
        parent = os.path.dirname(self._place)
        try:
            names = os.listdir(self._place)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise ClaudeboxError(f"`--result {place}`: {error.strerror}") from None
        if names and FILE not in names:
            raise ClaudeboxError(
                f"`--result {place}` is there and holds no result", hint="name a directory that does not exist"
            )
        try:
            os.makedirs(parent, exist_ok=True)
            prefix = f"{os.path.basename(self._place)}."
            self.path = tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent)
        except OSError as error:
            raise ClaudeboxError(f"no result can be written to `{parent}`: {error.strerror}") from None

    def publish(self, result: TaskResult) -> str:
        """Write `result.json` and put everything in its place, with one rename; return its content as one line."""
        mask = _umask()
        for name in sorted(os.listdir(self.path)):
            result.files[name] = os.path.getsize(f"{self.path}/{name}")
            os.chmod(f"{self.path}/{name}", 0o644 & ~mask)
        with open(f"{self.path}/{FILE}", "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(self.path, 0o755 & ~mask)
        old = ""
        if os.path.lexists(self._place):
            old = tempfile.mkdtemp(suffix=".old", dir=os.path.dirname(self._place))
            os.rename(self._place, f"{old}/result")
        os.rename(self.path, self._place)
        if old:
            shutil.rmtree(old, ignore_errors=True)
        return json.dumps(asdict(result))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_result(directory: str) -> dict[str, Any]:
    """Return a result, or nothing if there is none or if its files are not all there: copying was cut short."""
    try:
        document = json.loads(read_small(f"{directory}/{FILE}", limit=_LARGEST_RESULT) or b"")
        whole = all(os.path.getsize(f"{directory}/{name}") == size for name, size in document["files"].items())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return document if whole else {}


def read_answer(path: str) -> dict[str, Any]:
    """Return what the client printed at its end, with `--output-format json`; it may have been written by the agent."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        document = json.loads(file.read(16 << 20))
        if isinstance(document, dict):
            return document
    return {}


def take_over(result: TaskResult, answer: dict[str, Any]) -> None:
    """Copy what the client says of itself, number by number."""
    cost = answer.get("total_cost_usd")
    if isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0:
        result.cost_usd = round((result.cost_usd or 0) + float(cost), 6)
    if type(answer.get("num_turns")) is int:
        result.turns = answer["num_turns"]
    usage = answer.get("usage")
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        count = usage.get(name) if isinstance(usage, dict) else None
        if type(count) is int and count >= 0:
            result.tokens[name] = result.tokens.get(name, 0) + count
    if isinstance(answer.get("result"), str):
        result.said = "".join(c for c in answer["result"][:_SAID] if c.isprintable() or c == "\n")
    if isinstance(answer.get("session_id"), str) and _SESSION.fullmatch(answer["session_id"]):
        result.session = answer["session_id"]


def copy_state(state: str, target: str, session: str) -> str:
    """Copy the log and the conversation of the agent; return the version of the client that wrote it."""
    for path in logs(state):
        _copy(path, f"{target}/log.jsonl")
        lines = receipt.lines(read_lines(f"{state}/log", os.path.basename(path)), "")
        with open(f"{target}/receipt.txt", "w", encoding="utf-8", errors="backslashreplace") as shown:
            shown.writelines(f"{console.clean(line)}\n" for line in lines)
    # One that was ended from outside did not say which is its own: the last that was written.
    written = [*_files(f"{state}/instances", ("*", "claude", "projects", "*"), f"{session}.jsonl")]
    plain = [path for path in written if stat.S_ISREG(os.lstat(path).st_mode)]  # a link of the agent's is none
    for path in sorted(plain, key=lambda each: os.lstat(each).st_mtime)[-1:]:
        with contextlib.suppress(OSError):
            _copy(path, f"{target}/transcript.jsonl")
    with contextlib.suppress(OSError), open(f"{target}/transcript.jsonl", "rb") as file:
        for _ in range(20):
            found = re.search(rb'"version":"([0-9][0-9A-Za-z.+-]{0,40})"', file.readline(1 << 20))
            if found:
                return found[1].decode("ascii")
    return ""


def logs(state: str) -> Iterator[str]:
    """Yield the logs of the agent's sessions, one for each try."""
    for path in _files(f"{state}/log", (), ".jsonl"):
        with open(path, "rb") as file:
            if b'"program":"client"' in file.readline(1 << 20).replace(b": ", b":"):
                yield path


def copy_messages(path: str, target: str) -> str:
    """Copy what a session said on its standard error, the agent's own words among it, cleaned; return the last line."""
    last = ""
    with (
        contextlib.suppress(OSError),
        open(path, encoding="utf-8", errors="replace") as file,
        open(target, "w", encoding="utf-8") as copy,
    ):
        for line in file.read(_MESSAGES).split("\n"):
            cleaned = console.clean(line.rstrip("\r"))
            copy.write(f"{cleaned}\n")
            last = cleaned if cleaned.strip() and not cleaned.startswith("hint:") else last
    return last[:300]


def _files(top: str, between: tuple[str, ...], ending: str) -> Iterator[str]:
    """Yield files whose names end so, some directories deep, without following a link of the agent's."""
    directories = [top]
    for part in between:
        names = []
        for directory in directories:
            with contextlib.suppress(OSError):
                names += [f"{directory}/{name}" for name in (os.listdir(directory) if part == "*" else [part])]
        directories = [name for name in names if os.path.isdir(name) and not os.path.islink(name)]
    for directory in directories:
        with contextlib.suppress(OSError):
            yield from (f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.endswith(ending))


def _copy(source: str, target: str) -> None:
    """Copy a plain file, not a link, up to a size; the session has ended, so nobody exchanges it any more."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            with open(target, "wb") as copy:
                shutil.copyfileobj(file, copy)


def add_usage(result: TaskResult, state: str) -> float:
    """Put the tokens of all tries into the result, and their price if it is known; return what a budget counts.

    Towards a budget a model without a price counts as the dearest, and what the client says of itself is in the result
    only where nothing better is known: the agent could have said it.
    """
    lines = [line for path in logs(state) for line in _usage_lines(path)]
    counted = [TokenUsage(str(line.get("model", "")), **_numbers(line)) for line in lines]
    prices = [line["price"] if type(line.get("price")) is int else 0 for line in lines]
    for part, name in _NAMES.items() if lines else ():
        result.tokens[name] = sum(getattr(usage, part) for usage in counted)
    if lines and all(prices):
        result.cost_usd = sum(prices) / 1_000_000
    most = sum(price or usage.price(unknown=True) for price, usage in zip(prices, counted, strict=True))
    doubts = [find_doubts(_lines(path)) for path in logs(state)]
    result.missing = list(dict.fromkeys(text for found in doubts for text in found))
    accounts = [line for path in logs(state) for line in _lines(path) if line.get("kind") == "broker"]
    unknown = any(line.get("silent") or line.get("lost") for line in accounts)
    return max(most / 1_000_000, result.cost_usd or 0.0, math.inf if unknown else 0.0)  # nobody knows what else it took


def find_errors(state: str) -> set[int] | None:
    """Return the statuses of errors that the broker saw in the last try; None if no request went through it.

    Its own refusal for the budget counts as `OVER_BUDGET`: an upstream refuses with the same status.
    """
    last = [line for path in [*logs(state)][-1:] for line in _lines(path) if line.get("service") == "api"]
    own = {OVER_BUDGET for line in last if (line.get("verdict"), line.get("rule")) == ("denied", "billing_error")}
    return own | {line["status"] for line in last if type(line.get("status")) is int} if last else None


def _usage_lines(path: str) -> list[dict[str, Any]]:
    return [line for line in _lines(path) if line.get("kind") == "usage"]


def _lines(path: str) -> list[dict[str, Any]]:
    return read_lines(*os.path.split(path))


def _numbers(line: dict[str, Any]) -> dict[str, int]:
    return {part: line[part] for part in _NAMES if type(line.get(part)) is int}
