"""`--sessions`, `--attach`, `--stop`: what a user does with sessions without a terminal."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from claudebox import console
from claudebox.commands.agents import listing
from claudebox.commands.agents.records import Agent, Records, process_start
from claudebox.commands.agents.tmux import Tmux
from claudebox.errors import ClaudeboxError
from claudebox.facts.host import current_home
from claudebox.files import Closing

if TYPE_CHECKING:
    from claudebox.config.settings import Settings

_PATIENCE, _FORCE = 14.0, 5.0  # seconds: the launcher itself gives its payload ten
_POLL = 0.05


def run(verb: str, flags: Settings, environ: dict[str, str]) -> int:
    """Do what one of these flags asks for."""
    state = f"{current_home(environ)}/.claudebox"
    records, tmux = Records(state), Tmux(state, environ)
    words = flags.words
    if len(words) > (0 if verb == "sessions" else 1):
        raise ClaudeboxError(f"`--{verb}` does not know `{words[-1]}`")
    if verb == "sessions":
        return _list(records, tmux, as_json=flags.on("json"))
    if verb == "stop" and not words:
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
    rows = listing.look(records, tmux)
    if as_json:
        console.write([json.dumps([row.document() for row in rows], indent=2)], descriptor=1)
    else:
        console.write(listing.lines(rows), descriptor=1)
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
    console.note(f"`{agent.name}` {listing.ending(agent, tmux.panes().get(agent.id))}")
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
            console.note(f"`{agent.name}` {listing.ending(ended, None)}; {_report(agent)}")
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
