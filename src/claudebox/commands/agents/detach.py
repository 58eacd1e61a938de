"""`--detach`: agree on a session here, then let it run without this terminal.

The plan is shown and the question asked on the user's own terminal. What the session needs of this environment goes
through a pipe that only its owner can open: tmux gets to know nothing of it, and no disk does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import time
from typing import TYPE_CHECKING

from claudebox import console, session
from claudebox.commands.agents import names
from claudebox.commands.agents.records import Agent, Records
from claudebox.commands.agents.runner import END, HANDING
from claudebox.commands.agents.tmux import Tmux
from claudebox.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.facts.host import current_directory, current_home
from claudebox.files import PACKAGE
from claudebox.report import leftovers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.config.settings import Settings

_PROGRAM = (
    f"import gc, sys; gc.disable(); sys.path.insert(0, {PACKAGE!r}); "
    "from claudebox.commands.agents.runner import main; main()"
)
_STARTING, _POLL = 60.0, 0.02  # seconds


def run(flags: Settings, environ: dict[str, str], argv: list[str], *, name: str = "", project: str = "") -> int:
    """Start the session that these flags ask for, and return when its payload runs.

    `project` is the user's own where the session works in a copy of it.
    """
    state = f"{current_home(environ)}/.claudebox"
    tmux = Tmux(state, environ)
    tmux.require()
    if name:
        names.check_name(name)
    planned = session.agree(flags, environ)
    if planned is None:
        return DECLINED
    workdir = current_directory()
    instance = planned.host.instance
    leftovers.catch_up(instance, (workdir,))
    records = Records(state)
    for old in records.prune():
        tmux.kill(old.id)
    with records.locked():
        wanted = name or os.path.basename(workdir)
        given, replaced = names.give_name(records, wanted, project or instance.root, chosen=bool(name))
        agent = Agent(
            id=os.urandom(4).hex(),
            name=given,
            workdir=workdir,
            project=project or instance.root,
            instance=instance.name,
            words=" ".join(flags.words)[:200],
            created=time.time(),
        )
        records.save(agent)
        for old in replaced:
            records.remove(old)
    for old in replaced:
        tmux.kill(old.id)
    handed = {
        "cwd": workdir,
        "start": flags.start,
        "identity": planned.host.workdir.identity,
        "argv": argv,
        "environ": environ,
    }
    try:
        _hand_over(tmux, agent, state, handed)
    except BaseException:
        records.remove(agent)
        raise
    return _await_start(records, tmux, agent)


def _hand_over(tmux: Tmux, agent: Agent, state: str, handed: Mapping[str, object]) -> None:
    """Start the launcher in a terminal of tmux's, and tell it what to do."""
    pipe = f"{tmux.directory}/{agent.id}"
    _clear_pipes(tmux.directory)
    os.mkfifo(pipe, 0o600)
    try:
        columns, rows = shutil.get_terminal_size((100, 30))
        words = [sys.executable, "-IS", "-c", _PROGRAM, state, agent.id, pipe]
        tmux.start(agent.id, (max(columns, 20), max(rows, 5)), words)
        data = json.dumps(handed).encode() + END
        descriptor = _open_writer(pipe)
        try:
            if descriptor < 0:
                raise BrokenPipeError
            os.set_blocking(descriptor, True)
            with open(descriptor, "wb") as file:
                file.write(data)
        except BrokenPipeError:
            tmux.kill(agent.id)
            raise ClaudeboxError("the session did not start: its launcher does not answer") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pipe)


def _clear_pipes(directory: str) -> None:
    """Remove pipes of those who were killed before anybody could read from them."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another was quicker
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISFIFO(status.st_mode) and time.time() - status.st_mtime > 2 * HANDING:
                    os.unlink(entry.path)


def _open_writer(pipe: str) -> int:
    """Open a pipe as soon as somebody reads from it; -1: nobody did."""
    limit = time.monotonic() + HANDING
    while time.monotonic() < limit:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            time.sleep(_POLL / 4)
    return -1


def _await_start(records: Records, tmux: Tmux, agent: Agent) -> int:
    """Wait until the payload runs or the launcher has ended; then say how to come back."""
    limit = time.monotonic() + _STARTING
    while time.monotonic() < limit:
        now = records.get(agent.id)
        if now is None:
            break
        now, alive = records.settle(now)
        if now.begun:
            break
        if not (alive or now.starting):
            console.write(tmux.screen(agent.id, history=200))
            records.remove(now)
            tmux.kill(now.id)
            return now.status if now.status >= 0 else FAILED
        time.sleep(_POLL)
    console.note(f"`{agent.name}` runs without a terminal: `claudebox --attach {agent.name}`, and Ctrl+Z leaves again")
    return 0
