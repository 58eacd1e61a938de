"""`claudebox log`, `denied` and `cost`: what sessions reached, were denied, changed and spent."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import write_all
from claudebox.base.records import Value
from claudebox.commands.allow import find_brokers
from claudebox.git import facts as git_facts
from claudebox.host.machine import current_directory, current_home
from claudebox.report import denied, killed
from claudebox.report import log as report_log
from claudebox.report.log import LogReader, find_doubts, human, read_lines, records, sum_usage
from claudebox.tables import prices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.layers import Settings


Line = dict[str, Any]
VERDICTS = ("opened", "allowed", "denied", "failed")
_STYLES = {"opened": "green", "allowed": "green", "denied": "red", "failed": "yellow"}
_FLAGS = 8  # that are shown
_SAME = ("verdict", "host", "port", "service", "rule", "secrets")  # of decisions that share a line


class Filter(Value):
    """Selects logs, and lines of them."""

    project: str  # the name of an instance; empty: every project
    verdict: str = ""
    host: str = ""  # a part of its name
    changes: bool = False  # paths that changed instead of decisions

    def takes(self, line: Line) -> bool:
        kind = line.get("kind")
        if kind == "changes" or self.changes:
            return self.changes and kind != "decision"
        if kind != "decision":
            return not self.verdict and not self.host
        return (not self.verdict or line.get("verdict") == self.verdict) and self.host in str(line.get("host", ""))


def run(settings: Settings, environ: dict[str, str]) -> int:
    """Show the session log, or what models have cost."""
    if settings.verb == "cost":
        return _show_spending(settings, environ)
    home, as_json = current_home(environ), settings.on("json")
    directory = f"{home}/.claudebox/{report_log.DIRECTORY}"
    wanted = _wanted(("denied",) if settings.verb == "denied" else settings.words, home, environ)
    found, denials = False, []
    try:
        for line in _read(directory, wanted, joined=not as_json):
            found = True
            if denied.is_denial(line):
                denials.append(line)
            if as_json or settings.verb != "denied":
                _show(line, as_json=as_json)
        if denials and not as_json:
            _show_denials(denials, home, listing=settings.verb == "denied")
    except BrokenPipeError:
        return 0
    for text in killed.describe_killed(f"{home}/.claudebox"):
        console.warn(text)
    if not found and wanted.project and not records(directory, wanted.project):
        console.note("no session of this directory is in the log")
    elif not found:
        what = "was denied" if wanted.verdict == "denied" else "in the log matches"
        console.note(f"nothing {what}{' in the last session here' * bool(wanted.project)}")
    return 0


def _read(directory: str, wanted: Filter, *, joined: bool) -> Iterator[Line]:
    """Yield the lines of the last session of a project, or of all sessions."""
    names = records(directory, wanted.project)
    for name in names[-1:] if wanted.project else names:
        lines = filter(wanted.takes, LogReader(directory, name).lines())
        yield from _join(lines) if joined else lines


def _join(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines with one for all decisions of a kind about a place, at the time of the first."""
    places: dict[str, Line] = {}
    for line in lines:
        if line.get("kind") != "decision":
            yield from places.values()
            places.clear()
            yield line
            continue
        known = places.setdefault(json.dumps([line.get(name) for name in _SAME]), line)
        if known is not line:
            known["count"] = _count(known) + _count(line)
            known.update({name: _number(known.get(name)) + _number(line.get(name)) for name in ("up", "down")})
    yield from places.values()


def _show_denials(denials: list[Line], home: str, *, listing: bool) -> None:
    """Say what would permit what was denied; `listing`: name each place once before."""
    counts: dict[tuple[str, str], int] = {}
    for line in denials if listing else ():
        row = _place(line), _why(line)
        counts[row] = counts.get(row, 0) + _count(line)
    for text in console.table([(*row, f"{count} times" if count > 1 else "") for row, count in counts.items()]):
        _out(text)
    domains = dict.fromkeys(filter(None, map(denied.find_domain, denials)))
    flags = dict.fromkeys(filter(None, map(denied.find_flag, denials)))
    if domains and find_brokers(home):
        _out(f"to permit it in the session that runs here: `claudebox allow {_some(domains)}`")
    if flags:
        _out(f"to permit it at the next start: `{_some(flags)}`")


def _some(words: Iterable[str]) -> str:
    shown = list(words)
    return " ".join(shown[:_FLAGS]) + (f" and {len(shown) - _FLAGS} more" if len(shown) > _FLAGS else "")


def _wanted(words: tuple[str, ...], home: str, environ: dict[str, str]) -> Filter:
    workdir = current_directory()
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    project = base_state.locate(home, repository.main if repository else workdir).name
    wanted = Filter(project)
    for word in words:
        if word == "all":
            wanted = wanted.replace(project="")
        elif word == "changes":
            wanted = wanted.replace(changes=True)
        elif word in VERDICTS:
            wanted = wanted.replace(verdict=word)
        elif word.startswith("-") or not word.isprintable() or not word:
            raise ClaudeboxError(
                f"`claudebox log`: unexpected argument `{word}`",
                hint=f"`claudebox log [all] [changes|{'|'.join(VERDICTS)}] [PART OF A HOST'S NAME]`",
            )
        else:
            wanted = wanted.replace(host=word.lower())
    return wanted


def _out(text: str, start: str = "") -> None:
    lines = console.wrap(text, start) if os.isatty(1) else (start + text,)
    write_all(1, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def _show(line: Line, *, as_json: bool) -> None:
    if as_json:
        return _out(json.dumps(line, ensure_ascii=True))
    day, moment = _moment(line.get("time"))
    match line.get("kind"):
        case "start":
            ran = line.get("agent") or line.get("program", "")
            what = f"{ran} in {line.get('project', '')}, network {line.get('network', '')}"
            _out(f"{day} {moment}  {console.paint('session', 'bold', descriptor=1)}  {console.shorten(what, 200)}")
        case "end":
            _out(f"{moment}  end, status {_number(line.get('status'))}")
        case "changes":
            _out_changes(line)
        case "opened":
            names = line.get("names")
            shown = ", ".join(map(str, names)) if isinstance(names, list) else ""
            _out(f"{moment}  permitted by the user: {console.shorten(shown, 200)}")
        case "full":
            _out(f"{moment}  the log is full: later entries are sums only")
        case "broker" if line.get("silent"):
            _out(f"{moment}  the broker ended without a summary: the last entries may be missing")
        case "broker" if lost := _number(line.get("lost")):
            _out(f"{moment}  {lost} connections or answers could not be logged")
        case "decision":
            _out(_row(line), f"{moment}  ")
        case _:  # of a later version
            pass
    return None


def _out_changes(line: Line) -> None:
    what, directory, names = line.get("what"), line.get("in"), line.get("names")
    where = f"{directory}/" if directory else ""
    for name in names if isinstance(names, list) else ():
        _out(console.clean(f"  {what}: {where}{name}"))
    if what == "full":
        _out("  the log is full: there are more changes")


def _row(line: Line) -> str:
    verdict = console.shorten(str(line.get("verdict", "")), 7)
    up, down = _number(line.get("up")), _number(line.get("down"))
    parts = [_why(line), *([f"{_count(line)} times"] if _count(line) > 1 else [])]
    parts += [f"{human(up)} up, {human(down)} down"] if up or down else []
    names = line.get("secrets")
    parts += [f"with {', '.join(map(str, names))}"] if isinstance(names, list) and names else []
    painted = console.paint(f"{verdict:<7}", _STYLES.get(verdict, "dim"), descriptor=1)
    return f"{painted}  {_place(line):<30} {console.shorten(', '.join(parts), 160)}"


def _place(line: Line) -> str:
    return console.shorten(denied.spell_place(line).removesuffix(":443"), 50)


def _why(line: Line) -> str:
    service, why = str(line.get("service", "")), denied.explain(str(line.get("rule", "")))
    return console.shorten(service if why in (service, line.get("host")) else f"{service}: {why}")


def _count(line: Line) -> int:
    return max(_number(line.get("count")), 1)


def _moment(value: object) -> tuple[str, str]:
    """Return day and time of day."""
    if not isinstance(value, int | float) or not 0 <= value < 1 << 33:
        return "?", "?"
    then = time.localtime(value)
    return time.strftime("%Y-%m-%d", then), time.strftime("%H:%M:%S", then)


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) and abs(value) < 1 << 62 else 0


_TITLES = ("day", "project", "sessions", "answers", "input", "output", "cached", "dollars")


def _show_spending(settings: Settings, environ: dict[str, str]) -> int:
    """Print a row for each day and project."""
    directory = f"{current_home(environ)}/.claudebox/{report_log.DIRECTORY}"
    rows = _rows(directory)
    if settings.on("json"):
        console.write([json.dumps(rows, ensure_ascii=True)], descriptor=1)
        return 0
    if not rows:
        console.note("no usage of a model is recorded; the broker counts where it holds the key or login")
        return 0
    table = (_TITLES, *(_shown(row) for row in rows))
    console.write(console.table(table, right=range(2, len(_TITLES))), descriptor=1)
    console.write([f"dollars by the prices of {prices.AS_OF}; `?`: a model without a price"], descriptor=1)
    if missing := sum(row["missing"] for row in rows):
        console.warn(f"the logs of {missing} sessions are incomplete: more was spent; see their receipts")
    return 0


def _rows(directory: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in records(directory):
        lines = read_lines(directory, name)
        start = next((line for line in lines if line.get("kind") == "start"), {})
        project, sessions = str(start.get("project", "")), set[tuple[str, str]]()
        for line in lines:
            if line.get("kind") != "usage" or not isinstance(line.get("time"), int | float):
                continue
            key = time.strftime("%Y-%m-%d", time.localtime(line["time"])), project
            row = found.setdefault(
                key, {"day": key[0], "project": project, "sessions": 0, "missing": 0, **sum_usage(())}
            )
            for part, amount in sum_usage((line,)).items():
                row[part] += amount
            sessions.add(key)
        doubtful = bool(find_doubts(lines))
        for key in sessions:
            found[key]["sessions"] += 1
            found[key]["missing"] += doubtful
    return [found[key] for key in sorted(found)]


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    unknown = "?" if row["unpriced"] else ""
    return (
        row["day"], os.path.basename(row["project"]) or "?", str(row["sessions"]),
        str(row["answers"]), str(row["input"]), str(row["output"]), str(row["cached"]),
        prices.as_dollars(row["price"]) + unknown,
    )  # fmt: skip
