"""`claudebox sessions`, `attach` and `stop`: list, show and end sessions.

The list is made from our own records and the processes of this machine; tmux adds the last line and the title.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.base.formats import describe_age
from claudebox.host.machine import current_home
from claudebox.host.programs import spell
from claudebox.many.records import Agent, Records, process_start
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copies
from claudebox.network import published
from claudebox.report import log as report_log
from claudebox.report.log import human, read_lines, sum_usage
from claudebox.run.live_sessions import list_sessions
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.many.tmux import Pane
    from claudebox.network.published import PublishedPort
    from claudebox.settings.layers import Settings


_IDLE = "✳"  # the client's title begins with this while it waits for the user
_STATUS = "⏵⏵"  # its last line does, always
_COLUMNS = ("NAME", "STATE", "SINCE", "MEMORY", "SPENT", "PROJECT", "LAST LINE")
_LOG_LEAD = 1.0  # seconds that a log may have been opened before the session is listed
_TERM_SECONDS, _KILL_SECONDS = 14.0, 5.0  # the launcher itself gives its payload ten
_POLL = 0.05


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Run `sessions`, `attach` or `stop`, or `drop` of a session that has no worktree."""
    words = flags.words
    state = f"{current_home(environ)}/.claudebox"
    records, tmux = Records(state), Tmux(state, environ)
    if flags.verb == "sessions":
        return _list(records, tmux, as_json=flags.on("json"))
    workdir = _current_directory()
    agent = records.find(words[0], workdir) if words else records.find_only(workdir)
    return _attach(records, tmux, agent) if flags.verb == "attach" else _stop(records, tmux, agent)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # a session can be stopped even if the project is gone
        return "/"


def _attach(records: Records, tmux: Tmux, agent: Agent) -> int:
    if agent.alive or agent.starting:
        if not os.isatty(0) or not os.isatty(1):
            raise ClaudeboxError("`claudebox attach` needs a terminal")
        tmux.attach(agent.id)
        agent = _await_record(records, agent)
    if agent.alive or agent.starting:
        console.note(f"`{agent.name}` runs on: `claudebox attach {agent.name}` returns to it")
        return 0
    console.write(tmux.screen(agent.id, history=2000) if tmux.program else [], descriptor=1)
    records.mark_seen(agent)
    console.note(f"`{agent.name}` {describe_end(agent, tmux.panes().get(agent.id))}")
    return 0


def _await_record(records: Records, agent: Agent) -> Agent:
    """Return the record once a launcher that has recorded its end is gone: it lets go of terminals last."""
    limit = time.monotonic() + 1.0
    while True:
        now = records.get(agent.id) or agent
        if not now.ended or not process_start(now.pid) or time.monotonic() > limit:
            return now
        time.sleep(_POLL)


def _stop(records: Records, tmux: Tmux, agent: Agent) -> int:
    see = f"`claudebox review {shlex.quote(agent.name)}` shows what it did"
    if not agent.alive:
        if agent.starting:
            raise ClaudeboxError(f"`{agent.name}` is still starting", hint="try again in a moment")
        records.remove(agent)
        tmux.kill(agent.id)
        console.note(f"`{agent.name}` had already ended; removed it from the list")
        return 0
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        _send(agent, number)
        if (ended := _await_end(records, agent, seconds)) is not None:
            console.note(f"`{agent.name}` {describe_end(ended, None)}; {see}")
            return 0
    raise ClaudeboxError(f"`{agent.name}` did not end: process {agent.pid}")


def _await_end(records: Records, agent: Agent, seconds: float) -> Agent | None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        time.sleep(_POLL)
        now, alive = records.settle(records.get(agent.id) or agent)
        if not alive:
            return now
    return None


def _send(agent: Agent, number: int) -> None:
    """Signal the launcher, and never a process that got its number later."""
    try:
        with Closing(os.pidfd_open(agent.pid)) as descriptor:
            if process_start(agent.pid) == agent.start:
                signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return


def describe_end(agent: Agent, pane: Pane | None) -> str:
    status = agent.status if agent.status >= 0 else pane.status if pane is not None and pane.dead else -1
    if status >= 0:
        return f"ended with status {status}"
    return "was killed, or this machine was restarted" if agent.pid else "did not start"


@dataclass(frozen=True)
class Spent:
    """Tokens of one session by kind, their price in millionths of a dollar, and its budget as text."""

    usage: dict[str, int]
    budget: str = ""

    def __str__(self) -> str:
        usage, budget = self.usage, self.budget
        if not usage["answers"] and not budget:
            return ""
        price, tokens = f"${as_dollars(usage['price'])}", usage["input"] + usage["output"] + usage["cached"]
        amounts = [price] if "$" in budget or usage["price"] else []
        amounts += [f"{tokens} tokens"] if "tokens" in budget or not amounts else []
        return f"{', '.join(amounts)} of {budget}" if budget else ", ".join(amounts)


@dataclass(frozen=True)
class SessionRow:
    """One row of the list."""

    name: str
    state: str  # starting, working, waiting, ended; terminal: in a terminal of its own; copy: a worktree without one
    project: str
    since: float
    process: int
    agent: Agent | None = None
    directory: str = ""  # that it works in, if that is not the project
    how: str = ""  # it ended
    memory: int = 0
    last: str = ""
    ports: tuple[PublishedPort, ...] = ()
    spent: Spent = field(default_factory=lambda: Spent(sum_usage(())))

    def document(self) -> dict[str, Any]:
        """Return it for `--json`."""
        agent = self.agent
        return {
            "name": self.name,
            "id": agent.id if agent else "",
            "project": self.project,
            "directory": self.directory or self.project,
            "state": self.state,
            "status": agent.status if agent and self.state == "ended" and agent.status >= 0 else None,
            "since": int(self.since),
            "process": self.process,
            "memory": self.memory,
            "usage": self.spent.usage,
            "budget": self.spent.budget,
            "ports": [{"host": row.host, "inside": row.inside} for row in self.ports],
            "last": self.last,
        }


def look(records: Records, tmux: Tmux) -> list[SessionRow]:
    """Return the list of sessions."""
    panes = tmux.panes()
    logs = f"{records.state}/{report_log.DIRECTORY}"
    names = report_log.records(logs)
    sessions = list_sessions(records.state)  # before the records: a session that is listed has one
    children = list_children()
    ports: dict[int, list[PublishedPort]] = {}
    for port in published.list_ports(records.state):
        ports.setdefault(port.launcher, []).append(port)
    rows = []
    agents = records.all()
    for agent, alive in map(records.settle, agents):
        pane = panes.get(agent.id)
        if alive:
            state = "working" if agent.begun else "starting"
            if state == "working" and pane is not None and pane.title.startswith(_IDLE):
                state = "waiting"
        else:
            state = "starting" if agent.starting else "ended"
        rows.append(
            SessionRow(
                agent.name,
                state,
                agent.project,
                since=(agent.begun if alive else agent.ended) or agent.created,
                process=agent.pid if alive else 0,
                agent=agent,
                directory=agent.workdir,
                how="" if alive else describe_end(agent, pane),
                memory=_measure_memory(agent.pid, children) if alive else 0,
                last=_find_last_line(tmux.screen(agent.id)) if pane else "",
                ports=tuple(ports.get(agent.pid, ())) if alive else (),
                spent=_find_spent(logs, names, agent.pid, agent.created),
            )
        )
    copies = {copy.path: copy for copy in Copies(os.path.dirname(records.state)).all()}
    worked_in = {agent.workdir for agent in agents} | {workdir for _, workdir, _ in sessions}
    known = {(agent.pid, agent.start) for agent in agents}
    for process, workdir, since in sessions:
        start = process_start(process)
        if start and (process, start) not in known:
            memory, spent = _measure_memory(process, children), _find_spent(logs, names, process, since)
            own = tuple(ports.get(process, ()))
            copy = copies.get(workdir)
            name, project = (copy.name, copy.source) if copy is not None else ("", workdir)
            rows.append(
                SessionRow(name, "terminal", project, since, process, directory=workdir, memory=memory, spent=spent,
                           ports=own)
            )  # fmt: skip
    idle = (copy for path, copy in copies.items() if path not in worked_in)
    rows += [SessionRow(copy.name, "copy", copy.source, copy.created, 0) for copy in idle]
    return rows


def _find_spent(directory: str, names: list[str], process: int, since: float) -> Spent:
    """Return what the session of a launcher, begun at this time, has spent according to its log."""
    begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime(since - _LOG_LEAD))
    own = (name for name in names if name >= begun and name.endswith(f"-{process}{report_log.SUFFIX}"))
    name = next(own, "") if process else ""
    rows = read_lines(directory, name, b'"start"', b'"usage"') if name else []
    budget = next((row.get("budget") for row in rows if row.get("kind") == "start"), "")
    return Spent(sum_usage(rows), budget if isinstance(budget, str) else "")


def _find_last_line(lines: list[str]) -> str:
    texts = (line.strip() for line in reversed(lines) if any(map(str.isalnum, line)))
    return next((text for text in texts if not text.startswith(_STATUS)), "")


def list_children() -> dict[int, list[int]]:
    """Return the children of every process."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            found.setdefault(parent, []).append(int(name))
    return found


def _measure_memory(process: int, children: dict[int, list[int]]) -> int:
    """Return the proportional set size of a launcher and its descendants."""
    total, waiting = 0, [process]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, ())
        try:
            with open(f"/proc/{process}/smaps_rollup", "rb") as file:
                total += next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), 0)
        except OSError:
            continue
    return total


def _list(records: Records, tmux: Tmux, *, as_json: bool) -> int:
    rows = look(records, tmux)
    if as_json:
        console.write([json.dumps([row.document() for row in rows], indent=2)], descriptor=1)
    else:
        console.write(_format(rows, os.path.dirname(records.state)), descriptor=1)
    return 0


def _format(rows: list[SessionRow], home: str) -> Iterator[str]:
    if not rows:
        yield "no session is running: `claudebox --detach` starts one in the background"
        return
    table = [
        (
            row.name or "-",
            row.how.replace("ended with status", "ended,") if row.state == "ended" else row.state,
            describe_age(row.since),
            human(row.memory) if row.memory else "-",
            str(row.spent) or "-",
            spell(row.project, home),
            row.last,
        )
        for row in rows
    ]
    filled = [column for column in zip(_COLUMNS, *table, strict=True) if {*column[1:]} - {"-", ""}]
    width = console.columns()
    head, *below = (console.shorten(line, width) for line in console.table([*zip(*filled, strict=True)]))
    yield console.paint(head, "bold", descriptor=1)
    yield from below
    for row in rows:
        name = row.name or os.path.basename(row.project)
        yield from (
            f"{published.address(port, name)}  port {port.inside} of {console.clean(name)}" for port in row.ports
        )
