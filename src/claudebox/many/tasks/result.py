"""The result of a task: a directory that appears complete, by one rename."""

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

from claudebox.agent.facts import text_at
from claudebox.agent.report import list_conversations
from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import list_names, read_small
from claudebox.base.state import Instance
from claudebox.broker.metering import TokenUsage, parse_document
from claudebox.many.tasks.task import OVER_BUDGET
from claudebox.report import receipt
from claudebox.report.log import find_doubts, read_lines, records
from claudebox.tables.prices import known_maker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.agent.record import AgentKind


FILE = "result.json"
_MAX_COPY = 512 << 20  # bytes of a transcript or a log
_TRANSCRIPTS = (".json", ".jsonl", ".md")
_MAX_RESULT, _MAX_TEXT = 1 << 20, 16 << 20
_MAX_SAID = 2000  # characters
_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKENS = {  # ours, and as the API calls them
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
    changed: dict[str, int] = field(default_factory=dict)  # files, lines added and removed
    files: dict[str, int] = field(default_factory=dict)  # with sizes, to detect incomplete copies
    withheld: list[str] = field(default_factory=list)  # files with a secret of the host
    missing: list[str] = field(default_factory=list)  # why log and costs may be incomplete


class Staging:
    """The directory of a result while it is made, beside its place."""

    def __init__(self, place: str) -> None:
        """Refuse a place that holds anything but an older result."""
        self._place = os.path.abspath(place)
        parent = os.path.dirname(self._place)
        try:
            names = os.listdir(self._place)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise ClaudeboxError(f"`--result {place}`: {error.strerror}") from None
        if names and FILE not in names:
            raise ClaudeboxError(f"`--result {place}` exists and holds no result", hint="name a new directory")
        try:
            os.makedirs(parent, exist_ok=True)
            prefix = f"{os.path.basename(self._place)}."
            self.path = tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent)
        except OSError as error:
            raise ClaudeboxError(f"no result can be written to `{parent}`: {error.strerror}") from None

    def publish(self, result: TaskResult) -> str:
        """Write `result.json` and rename everything into place; return its content as one line."""
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
    """Return a result, or an empty one if it is missing or incomplete."""
    try:
        document = json.loads(read_small(f"{directory}/{FILE}", limit=_MAX_RESULT) or b"")
        whole = all(os.path.getsize(f"{directory}/{name}") == size for name, size in document["files"].items())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return document if whole else {}


def read_answer(path: str, said: str) -> dict[str, Any]:
    """Return the document with the agent's last words, which it may have forged: one, or the last of a list or lines.

    `said` is the field that has them; without it the output is a text.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_TEXT)
    except OSError:
        return {}
    if not said:
        return {"said": content.decode("utf-8", "replace").strip()[-_MAX_SAID:]}
    whole = parse_document(content)
    lines = content.splitlines() if whole is None else ()
    found = [*(whole if isinstance(whole, list) else [whole]), *map(parse_document, lines)]
    documents = [row for row in found if isinstance(row, dict)]
    return next((row for row in reversed(documents) if text_at(row, said)), documents[-1] if documents else {})


def take_over(result: TaskResult, answer: dict[str, Any], said: str) -> None:
    """Copy what the agent says about itself, each value checked; its last words are in the field `said`."""
    cost = answer.get("total_cost_usd")
    if isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0:
        result.cost_usd = round((result.cost_usd or 0) + float(cost), 6)
    if type(answer.get("num_turns")) is int:
        result.turns = answer["num_turns"]
    usage = answer.get("usage")
    for name in _TOKENS.values():
        count = usage.get(name) if isinstance(usage, dict) else None
        if type(count) is int and count >= 0:
            result.tokens[name] = result.tokens.get(name, 0) + count
    if text := text_at(answer, said or "said"):
        result.said = "".join(c for c in text[:_MAX_SAID] if c.isprintable() or c == "\n")
    if isinstance(answer.get("session_id"), str) and _SESSION.fullmatch(answer["session_id"]):
        result.session = answer["session_id"]


def copy_state(state: str, target: str, session: str, agent: AgentKind, answer: str) -> str:
    """Copy log, receipt and conversation, or else what it printed; return the version of the agent."""
    version = ""
    for path in logs(state):
        version = next((str(line.get("version", "")) for line in _lines(path)), "")
        _copy(path, f"{target}/log.jsonl")
        lines = receipt.lines(read_lines(f"{state}/log", os.path.basename(path)), "")
        with open(f"{target}/receipt.txt", "w", encoding="utf-8", errors="backslashreplace") as shown:
            shown.writelines(f"{console.clean(line)}\n" for line in lines)
    instances = [Instance("", state, name) for name in list_names(f"{state}/instances")]
    written = [path for instance in instances for path in list_conversations(agent, instance, 0.0)]
    # A session that was killed did not say which conversation is its own: take the latest.
    plain = [path for path in written if stat.S_ISREG(os.lstat(path).st_mode) and path.endswith(_TRANSCRIPTS)]
    plain = [path for path in plain if session in path] or plain
    for path in sorted(plain, key=lambda each: os.lstat(each).st_mtime)[-1:] or [answer]:  # the rest are databases
        with contextlib.suppress(OSError):
            _copy(path, f"{target}/transcript{os.path.splitext(path)[1] or '.jsonl'}")
    return version


def logs(state: str) -> Iterator[str]:
    """Yield the logs of the agent's sessions, one for each try."""
    for name in records(f"{state}/log"):
        with open(f"{state}/log/{name}", "rb") as file:
            if b'"program":"client"' in file.readline(1 << 20).replace(b": ", b":"):
                yield f"{state}/log/{name}"


def copy_messages(path: str, target: str) -> str:
    """Copy a session's standard error, cleaned; return its last message."""
    last = ""
    with (
        contextlib.suppress(OSError),
        open(path, encoding="utf-8", errors="replace") as file,
        open(target, "w", encoding="utf-8") as copy,
    ):
        for line in file.read(_MAX_TEXT).split("\n"):
            cleaned = console.clean(line.rstrip("\r"))
            copy.write(f"{cleaned}\n")
            last = cleaned if cleaned.strip() and not cleaned.startswith("hint:") else last
    return last[:300]


def _copy(source: str, target: str) -> None:
    """Copy a regular file up to a size, following no link; the session has ended, so it cannot be swapped."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_COPY:
            with open(target, "wb") as copy:
                shutil.copyfileobj(file, copy)


def add_usage(result: TaskResult, state: str) -> float:
    """Put tokens and price of all tries, from the broker's log, into the result; return dollars for the budget.

    For the budget, a model without a price counts as the dearest. What the client says stays in the result only where
    the broker knows nothing: the agent could have forged it.
    """
    logged = [_lines(path) for path in logs(state)]
    lines = [line for rows in logged for line in rows if line.get("kind") == "usage"]
    counted = [
        TokenUsage(str(line.get("model", ""))).replace(maker=known_maker(line.get("maker")), **_numbers(line))
        for line in lines
    ]
    prices = [line["price"] if type(line.get("price")) is int else 0 for line in lines]
    for part, name in _TOKENS.items() if lines else ():
        result.tokens[name] = sum(getattr(usage, part) for usage in counted)
    if lines and all(prices):
        result.cost_usd = sum(prices) / 1_000_000
    most = sum(price or usage.price(unknown=True) for price, usage in zip(prices, counted, strict=True))
    result.missing = list(dict.fromkeys(text for rows in logged for text in find_doubts(rows)))
    accounts = [line for rows in logged for line in rows if line.get("kind") == "broker"]
    unknown = any(line.get("silent") or line.get("lost") for line in accounts)
    return max(most / 1_000_000, result.cost_usd or 0.0, math.inf if unknown else 0.0)


def find_errors(state: str) -> set[int] | None:
    """Return the error statuses that the broker saw in the last try; None if no request went through it.

    The broker's own refusal for the budget, with a status that upstreams use too, is `OVER_BUDGET`.
    """
    last = [line for path in [*logs(state)][-1:] for line in _lines(path) if line.get("service") == "api"]
    own = {OVER_BUDGET for line in last if (line.get("verdict"), line.get("rule")) == ("denied", "billing_error")}
    return own | {line["status"] for line in last if type(line.get("status")) is int} if last else None


def _lines(path: str) -> list[dict[str, Any]]:
    return read_lines(*os.path.split(path))


def _numbers(line: dict[str, Any]) -> dict[str, int]:
    return {part: line[part] for part in _TOKENS if type(line.get(part)) is int}
