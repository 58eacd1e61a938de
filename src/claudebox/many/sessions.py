"""`--sessions`, `--attach`, `--stop`: what a user does with sessions without a terminal."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.base.formats import _ago
from claudebox.host.machine import current_home
from claudebox.many.records import Agent, Records, process_start
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copies
from claudebox.report import log as report_log
from claudebox.report.log import human, read_lines, sum_usage
from claudebox.run.live_sessions import list_sessions
from claudebox.tables.prices import as_dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.many.tmux import Pane
    from claudebox.settings.layers import Settings


# The list of sessions, from our own records and the processes of this machine; tmux adds last line and title.


_IDLE = "✳"  # what the client's title begins with while it waits for the user
_WIDTH = 60
_TITLES = ("NAME", "STATE", "SINCE", "MEMORY", "SPENT", "PROJECT", "LAST LINE")
_EARLIER = 1.0  # seconds that a log may have been opened before the session says that it runs


@dataclass(frozen=True)
class Spent:
    """The tokens of one session, by kind, their price in millionths of a dollar, and its budget in words."""

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
    """One session."""

    name: str
    state: str  # starting, working, waiting, ended; terminal: it has one of its own; copy: without any session
    project: str
    since: float
    process: int
    agent: Agent | None = None
    how: str = ""  # it ended
    memory: int = 0
    last: str = ""
    spent: Spent = field(default_factory=lambda: Spent(sum_usage(())))

    def document(self) -> dict[str, Any]:
        """Return it for `--json`."""
        agent = self.agent
        return {
            "name": self.name,
            "id": agent.id if agent else "",
            "project": self.project,
            "directory": agent.workdir if agent else self.project,
            "state": self.state,
            "status": agent.status if agent and self.state == "ended" and agent.status >= 0 else None,
            "since": int(self.since),
            "process": self.process,
            "memory": self.memory,
            "usage": self.spent.usage,
            "budget": self.spent.budget,
            "last": self.last,
        }


def look(records: Records, tmux: Tmux) -> list[SessionRow]:
    """Return the sessions as they are now."""
    panes = tmux.panes()
    logs = f"{records.state}/{report_log.DIRECTORY}"
    names = report_log.records(logs)
    sessions = list_sessions(records.state)  # before the records: who is there has written one
    children = _children()
    rows = []
    agents = records.all()
    for agent, alive in map(records.settle, agents):
        pane = panes.get(agent.id)
        state = "starting" if agent.starting or (alive and not agent.begun) else _state(pane) if alive else "ended"
        since = (agent.begun if alive else agent.ended) or agent.created
        last = _last_line(tmux.screen(agent.id)) if pane else ""
        process, how, memory = agent.pid, "", 0
        if alive:
            memory = _memory(process, children)
        else:
            process, how = 0, ending(agent, pane)
        spent = _find_spent(logs, names, agent.pid, agent.created)
        rows.append(SessionRow(agent.name, state, agent.project, since, process, agent, how, memory, last, spent))
    worked_in = {agent.workdir for agent in agents} | {workdir for _, workdir, _ in sessions}
    known = {(agent.pid, agent.start) for agent in agents}
    for process, workdir, since in sessions:
        start = process_start(process)
        if start and (process, start) not in known:
            memory, spent = _memory(process, children), _find_spent(logs, names, process, since)
            rows.append(SessionRow("", "terminal", workdir, since, process, memory=memory, spent=spent))
    left = (copy for copy in Copies(os.path.dirname(records.state)).all() if copy.path not in worked_in)
    rows += [SessionRow(copy.name, "copy", copy.source, copy.created, 0) for copy in left]
    return rows


def _find_spent(directory: str, names: list[str], process: int, since: float) -> Spent:
    """Return what the session of this launcher has spent that began at this moment."""
    begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime(since - _EARLIER))
    own = (name for name in names if name >= begun and name.endswith(f"-{process}{report_log.SUFFIX}"))
    name = next(own, "") if process else ""
    rows = read_lines(directory, name, b'"start"', b'"usage"') if name else []
    budget = next((row.get("budget") for row in rows if row.get("kind") == "start"), "")
    return Spent(sum_usage(rows), budget if isinstance(budget, str) else "")


def _last_line(lines: list[str]) -> str:
    """Return the last line of a screen that says something."""
    return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")


def _state(pane: Pane | None) -> str:
    return "waiting" if pane is not None and pane.title.startswith(_IDLE) else "working"


def ending(agent: Agent, pane: Pane | None) -> str:
    """Return how a session ended, in words."""
    status = agent.status if agent.status >= 0 else pane.status if pane is not None and pane.dead else -1
    if status >= 0:
        return f"ended with status {status}"
    return "was killed, or this machine was restarted" if agent.pid else "did not start"


def listing_lines(rows: list[SessionRow]) -> Iterator[str]:
    """Yield the list for people."""
    if not rows:
        yield "no session runs here: `claudebox --detach` starts one without a terminal"
        return
    table = [
        (
            row.name or "-",
            row.how.replace("ended with status", "ended,") if row.state == "ended" else row.state,
            _ago(row.since),
            human(row.memory) if row.memory else "-",
            str(row.spent) or "-",
            os.path.basename(row.project) if row.agent else row.project,
            console.shorten(row.last, _WIDTH),
        )
        for row in rows
    ]
    head, *lines_below = console.table((_TITLES, *table))
    yield console.paint(head, "bold", descriptor=1)
    yield from lines_below


def _children() -> dict[int, list[int]]:
    """Return every process with its children."""
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


def _memory(process: int, children: dict[int, list[int]]) -> int:
    """Return the memory of a launcher and all that descends from it, shared pages in equal parts."""
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


_PATIENCE, _FORCE = 14.0, 5.0  # seconds: the launcher itself gives its payload ten
_POLL = 0.05


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Do what one of these flags asks for."""
    verb = next(key for key in ("sessions", "attach", "stop", "drop") if flags.on(key))  # to drop is to stop here
    state = f"{current_home(environ)}/.claudebox"
    records, tmux = Records(state), Tmux(state, environ)
    words = flags.words
    if len(words) > (0 if verb == "sessions" else 1):
        raise ClaudeboxError(f"`--{verb}` does not know `{words[-1]}`")
    if verb == "sessions":
        return _list(records, tmux, as_json=flags.on("json"))
    if verb in ("stop", "drop") and not words:
        raise ClaudeboxError("`--stop` needs the name of a session", hint="`claudebox --sessions` lists them")
    workdir = _current_directory()
    agent = records.find(words[0], workdir) if words else records.find_only(workdir)
    return _attach(records, tmux, agent) if verb == "attach" else _stop(records, tmux, agent)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # a session can be stopped even if the project is gone
        return "/"


def _list(records: Records, tmux: Tmux, *, as_json: bool) -> int:
    rows = look(records, tmux)
    if as_json:
        console.write([json.dumps([row.document() for row in rows], indent=2)], descriptor=1)
    else:
        console.write(listing_lines(rows), descriptor=1)
    return 0


def _attach(records: Records, tmux: Tmux, agent: Agent) -> int:
    if agent.alive or agent.starting:
        if not os.isatty(0) or not os.isatty(1):
            raise ClaudeboxError("`--attach` needs a terminal")
        tmux.attach(agent.id)
        agent = _settled(records, agent)
    if agent.alive or agent.starting:
        console.note(f"`{agent.name}` runs on: `claudebox --attach {agent.name}` brings it back")
        return 0
    console.write(tmux.screen(agent.id, history=2000) if tmux.program else [], descriptor=1)
    records.mark_seen(agent)
    console.note(f"`{agent.name}` {ending(agent, tmux.panes().get(agent.id))}")
    return 0


def _settled(records: Records, agent: Agent) -> Agent:
    """Return the record after the terminal was let go of, which a launcher does as its last act."""
    limit = time.monotonic() + 1.0
    while True:
        now = records.get(agent.id) or agent
        if not now.ended or not process_start(now.pid) or time.monotonic() > limit:
            return now
        time.sleep(_POLL)


def _stop(records: Records, tmux: Tmux, agent: Agent) -> int:
    if not agent.alive:
        if agent.starting:
            raise ClaudeboxError(f"`{agent.name}` is just being started", hint="try again in a moment")
        records.remove(agent)
        tmux.kill(agent.id)
        console.note(f"`{agent.name}` had ended already, and is off the list; {_report(agent)}")
        return 0
    for number, patience in ((signal.SIGTERM, _PATIENCE), (signal.SIGKILL, _FORCE)):
        _send(agent, number)
        if (ended := _await_end(records, agent, patience)) is not None:
            console.note(f"`{agent.name}` {ending(ended, None)}; {_report(agent)}")
            return 0
    raise ClaudeboxError(f"`{agent.name}` does not end: process {agent.pid}")


def _report(agent: Agent) -> str:
    """Say where the report is that nobody has seen."""
    return f"`claudebox --log changes` in {console.clean(agent.workdir)} lists what it left"


def _await_end(records: Records, agent: Agent, patience: float) -> Agent | None:
    limit = time.monotonic() + patience
    while time.monotonic() < limit:
        time.sleep(_POLL)
        now, alive = records.settle(records.get(agent.id) or agent)
        if not alive:
            return now
    return None


def _send(agent: Agent, number: int) -> None:
    """Send a signal to the launcher, and to no process that has got its number since."""
    try:
        with Closing(os.pidfd_open(agent.pid)) as descriptor:
            if process_start(agent.pid) == agent.start:
                signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
