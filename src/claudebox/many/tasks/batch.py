"""`claudebox tasks`: run many tasks on one machine with GNU parallel, and list their results."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
from typing import Any

from claudebox.base import console, syscalls
from claudebox.base.errors import NOT_FOUND, ClaudeboxError
from claudebox.base.files import PACKAGE, read_small
from claudebox.host import programs
from claudebox.many.tasks.result import read_result
from claudebox.many.tasks.task import DONE, FAILED, Task, read_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.layers import Settings


_MOST_JOBS = 1000
_AGENT_BYTES = 260 << 20  # of memory, while it waits for the model
_LOG = "joblog"
_TERMSEQ = "TERM,60000,KILL,1000"  # a task exports its work after SIGTERM
_PR_SET_PDEATHSIG = 1


def run(flags: Settings, environ: dict[str, str]) -> int:
    if not flags.all("results"):
        raise ClaudeboxError("`claudebox tasks` needs `--results DIR`", hint="each task gets a directory there")
    page, as_json = _page_of(flags), flags.on("json")
    if not flags.words:
        return _show(flags.one("results").value, page, environ, as_json=as_json)
    results = os.path.abspath(flags.one("results").value)
    paths = _find_files(flags.words)
    tasks = _read_tasks(paths)
    status = _parallel(tasks, results, _fitting(_read_jobs(flags), _free_memory()), environ)
    _show(results, page, environ, as_json=as_json)
    return status


def _page_of(flags: Settings) -> str:
    """Return where the page is wanted; refuse a place that cannot be written before anything runs."""
    page = os.path.abspath(flags.one("page").value) if flags.all("page") else ""
    if page:
        from claudebox.review.page import check_place

        check_place(page)
    return page


def _find_files(patterns: Iterable[str]) -> list[str]:
    paths: list[str] = []
    for pattern in patterns:
        found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(os.path.expanduser(pattern)))
        if not found:
            raise ClaudeboxError(f"`{pattern}` matches no file")
        paths += [os.path.abspath(path) for path in found]
    return list(dict.fromkeys(paths))


def _read_tasks(paths: list[str]) -> dict[str, str]:
    """Return the files by id; all are checked before the first starts."""
    tasks: dict[str, str] = {}
    for path in paths:
        task: Task = read_task(path)
        if task.id in tasks:
            raise ClaudeboxError(f"`{tasks[task.id]}` and `{path}` have the same id `{task.id}`")
        tasks[task.id] = path
    return tasks


def _read_jobs(flags: Settings) -> int:
    text = flags.one("jobs").value if flags.all("jobs") else "2"
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_JOBS:
        raise ClaudeboxError(f"`--jobs` is a number from 1 to {_MOST_JOBS}, not `{text}`")
    return int(text)


def _fitting(jobs: int, free: int) -> int:
    """Return the number of jobs, lowered to what fits into free memory."""
    most = max(free // _AGENT_BYTES, 1)
    if free and most < jobs:
        console.note(f"memory holds {most} agents at once: `--jobs {jobs}` is lowered")
        return most
    return jobs


def _free_memory() -> int:
    """Return the available bytes, or 0 if unknown."""
    content = read_small("/proc/meminfo") or b""
    found = [line.split() for line in content.splitlines() if line.startswith(b"MemAvailable:")]
    return int(found[0][1]) << 10 if found else 0


def _parallel(tasks: dict[str, str], results: str, jobs: int, environ: dict[str, str]) -> int:
    parallel = programs.find_tool("parallel", programs.search_path(environ, os.getcwd()))
    if not parallel or b"GNU" not in _version(parallel):
        raise ClaudeboxError(
            "`claudebox tasks` needs GNU parallel", hint="install the package `parallel`, not the one of moreutils",
            status=NOT_FOUND,
        )  # fmt: skip
    try:
        os.makedirs(results, exist_ok=True)
    except OSError as error:
        raise ClaudeboxError(f"`--results {results}` cannot be made: {error.strerror}") from None
    left = {name: path for name, path in tasks.items() if not _is_final(f"{results}/{name}")}
    if len(left) < len(tasks):
        console.note(f"{len(tasks) - len(left)} of {len(tasks)} tasks are done already")
    if not left:
        return DONE
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from claudebox.cli import entry; entry()"
    options = ["--will-cite", "--jobs", str(jobs), "--joblog", f"{results}/{_LOG}", "--colsep", "\t", "--quote"]
    options += ["--termseq", _TERMSEQ]
    if os.isatty(2):
        options.append("--bar")
    line = [parallel, *options, sys.executable, "-IS", "-c", program, PACKAGE,
            "task", "{2}", "--result", f"{results}/{{1}}"]  # fmt: skip
    console.note(f"parallel --jobs {jobs} --joblog {results}/{_LOG} claudebox task {{2}} --result {results}/{{1}}")
    rows = "".join(f"{name}\t{path}\n" for name, path in left.items())
    if any("\n" in path or "\t" in path for path in left.values()):
        raise ClaudeboxError("the name of a task file holds a tab or a line break", hint="rename it")
    return DONE if _run(line, environ, rows.encode("utf-8", "surrogateescape")) == 0 else FAILED


def _run(line: list[str], environ: dict[str, str], rows: bytes) -> int:
    """Run parallel; a signal for us, or our death, ends it and all its tasks."""

    def follow() -> None:
        syscalls.call("prctl", _PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    # In a process group of its own, so that Ctrl+C reaches it only through `cancel`, and tasks have time to end.
    environ = {**environ, "TMPDIR": environ.get("TMPDIR") or "/var/tmp"}  # by default /tmp, which may be in memory
    process = subprocess.Popen(
        line, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0,
        preexec_fn=follow,  # noqa: PLW1509 - there are no threads
    )  # fmt: skip

    def cancel(_number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, cancel)
    process.communicate(rows)
    return process.returncode


def _version(parallel: str) -> bytes:
    try:
        return subprocess.run([parallel, "--version"], capture_output=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""


def _is_final(directory: str) -> bool:
    """Return whether there is a result not worth another try."""
    found = read_result(directory)
    return bool(found) and found.get("retry") is False


def _show(results: str, page: str, environ: dict[str, str], *, as_json: bool) -> int:
    try:
        names = sorted(name for name in os.listdir(results) if os.path.isdir(f"{results}/{name}"))
    except OSError as error:
        raise ClaudeboxError(f"`--results {results}`: {error.strerror}") from None
    missing = {"status": "incomplete", "retry": True, "why": "some of its files are missing"}
    names = [name for name in names if not name.endswith((".partial", ".old"))]
    rows = [(name, read_result(f"{results}/{name}") or {"id": name, **missing}) for name in names]
    lines = [json.dumps([row for _, row in rows], indent=2)] if as_json else _table(rows)
    console.write(lines, descriptor=1)
    if page:
        _write_page(rows, results, page, environ)
    return DONE if all(row.get("exit") == DONE for _, row in rows) else FAILED


def _write_page(rows: list[tuple[str, dict[str, Any]]], results: str, page: str, environ: dict[str, str]) -> None:
    from claudebox.many.tasks.run import list_secrets
    from claudebox.review.batch_page import list_rows, render_batch
    from claudebox.review.page import write_page
    from claudebox.review.search import require_clean

    shown = list_rows(rows, results, page)
    content = render_batch(shown, os.path.basename(os.path.abspath(results)))
    require_clean(shown, content, list_secrets(environ))
    write_page(page, content)
    console.note(f"page: {page}")


def _table(rows: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    table = [("task", "status", "cost", "time", "why")]
    for name, row in rows:
        cost, seconds = row.get("cost_usd"), row.get("seconds")
        shown = f"${cost:.2f}" if isinstance(cost, int | float) else "-"
        took = f"{seconds:.0f} s" if isinstance(seconds, int | float) else "-"
        why = console.shorten(str(row.get("why", "")), 100)
        table.append((name, str(row.get("status", "?")), shown, took, why))
    yield from console.table(table, right=(2, 3), most=100)
    total = sum(row["cost_usd"] for _, row in rows if isinstance(row.get("cost_usd"), int | float))
    done = sum(row.get("exit") == DONE for _, row in rows)
    again = sum(row.get("retry") is True for _, row in rows)
    failed = len(rows) - done - again
    parts = [f"{failed} failed"] * bool(failed) + [f"{again} worth another try"] * bool(again)
    yield ", ".join((f"{done} of {len(rows)} done", *parts, f"${total:.2f}"))
