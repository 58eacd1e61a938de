"""The launcher of a session without a terminal: what tmux starts. Writes down that it runs, and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from claudebox import cli, console
from claudebox.commands import log
from claudebox.commands.agents.notify import ENDED, Notifier
from claudebox.commands.agents.records import Agent, Records, boot_id, mark_begun, process_start
from claudebox.commands.agents.tmux import Tmux
from claudebox.errors import FAILED, ClaudeboxError
from claudebox.files import Closing
from claudebox.report import session_log
from claudebox.report.kinds import LOOK
from claudebox.report.session_log import LogReader
from claudebox.state import Instance

if TYPE_CHECKING:
    from typing import NoReturn

END = b"\0"  # after the last byte of what is handed over
HANDING, _POLL = 20.0, 0.005  # seconds
# What belongs to the terminal: that of tmux now.
_OF_THE_TERMINAL = ("TERM", "TMUX", "TMUX_PANE")
_NOT_OURS = (*_OF_THE_TERMINAL, "COLORTERM", "COLUMNS", "LINES", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")


def _receive(pipe: str) -> bytes:
    """Return what comes through a pipe, all of it or nothing; nobody waits for ever on a user who is gone."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data, limit = b"", time.monotonic() + HANDING
    with Closing(descriptor):
        while (left := limit - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
            try:
                piece = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                continue
            if piece:
                data += piece
            elif data.endswith(END):
                return data.removesuffix(END)
            elif data:  # it broke off
                return b""
            else:  # nobody writes as yet
                time.sleep(_POLL)
    return b""


def _left_something(state: str, agent: Agent) -> bool:
    """Return whether the end of a session said something that its user should look at."""
    directory = f"{state}/{session_log.DIRECTORY}"
    suffix = f"-{agent.pid}{session_log.SUFFIX}"
    for name in [name for name in log.records(directory, agent.instance) if name.endswith(suffix)][-1:]:
        for end in LogReader(directory, name).lines(b'"end"'):
            told = not {*LOOK, "asked"}.isdisjoint(end.get("changed") or {})
            if told or any(end.get(key) for key in ("unseen", "found", "failed")):
                return True
    return False


def main() -> NoReturn:
    """Take over what was handed, run the session, and leave its status behind."""
    state, identifier, pipe = sys.argv[1:4]
    data = _receive(pipe)
    if not data:  # whoever started us was killed
        os._exit(FAILED)
    handed = json.loads(data)
    own = {name: os.environ[name] for name in _OF_THE_TERMINAL if name in os.environ}
    environ = {name: value for name, value in handed["environ"].items() if name not in _NOT_OURS}
    environ |= {**own, "COLORTERM": "truecolor"}
    os.environ.clear()
    os.environ.update(environ)
    records = Records(state)
    known = records.get(identifier)
    if known is None:  # the user has changed their mind
        os._exit(0)
    process = os.getpid()
    agent = dataclasses.replace(known, pid=process, start=process_start(process), boot=boot_id())
    records.save(agent)

    notifier: list[Notifier] = []

    def play() -> int:
        from claudebox import session
        from claudebox.config import settings as table

        os.chdir(handed["cwd"])
        status = os.stat(".")
        if [status.st_dev, status.st_ino] != handed["identity"]:
            raise ClaudeboxError(f"`{handed['cwd']}` was replaced by something else since it was shown")
        flags = table.parse_arguments(handed["argv"]).replace(start=handed["start"])
        settings, _ = session.read_settings(flags, environ)
        words = tuple(settings.one("notify").fields.values()) if settings.all("notify") else ()
        claude = Instance(agent.project, state, agent.instance).claude
        notifier.append(Notifier(agent.name, words, environ, claude, lambda: mark_begun(records, agent)))
        return session.run(flags, environ, notifier[0])

    status = cli.guarded(play)
    for told in notifier:
        told.tell(ENDED.format(status))
    agent, tmux = records.get(identifier) or agent, Tmux(state, environ)
    with contextlib.suppress(OSError, ClaudeboxError):
        if _left_something(state, agent) and not tmux.is_shown(identifier):
            records.mark_seen(agent, seen=False)
    try:
        records.save(dataclasses.replace(agent, ended=time.time(), status=status))
    except OSError as error:  # a full disk: what tmux remembers of us has to do
        console.warn(f"the end of this session is not written down: {error.strerror}")
    tmux.leave(identifier)
    os._exit(status)
