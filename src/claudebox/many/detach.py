"""`--detach`: agree on a session here, then let it run without this terminal.

The plan is shown and the question asked on the user's own terminal. What the session needs of this environment goes
through a pipe that only its owner can open: tmux gets to know nothing of it, and no disk does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import stat
import subprocess
import sys
import time

from claudebox import session
from claudebox.base import console
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.files import PACKAGE, Closing, parse_object, read_small
from claudebox.base.state import Instance
from claudebox.git.sidecar import Watcher
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.many import worktrees
from claudebox.many.records import Agent, Records, boot_id, mark_begun, process_start
from claudebox.many.tmux import Tmux
from claudebox.report import leftovers
from claudebox.report import log as report_log
from claudebox.report.kinds import LOOK
from claudebox.report.log import LogReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from claudebox.settings.layers import Settings


# Telling the user that a session without a terminal waits for them, or has ended: by a command of theirs.
#
# It gets fixed words: the name of the session, which we checked, and what happened. Nothing that an agent wrote is
# among them. Whether the client waits, it says itself, in a file of its state.


_NOTIFY_POLL, _NEVER = 1.0, 3600.0  # seconds between two looks, before there is something to watch and after
_MOST = 64  # files of the client that are looked at
WAITS, ENDED = "waits for you", "has ended with status {}"


class Notifier:
    """Watches one session and runs the user's command, if they have one."""

    def __init__(
        self, name: str, words: Sequence[str], environ: dict[str, str], claude: str, begun: Callable[[], object]
    ) -> None:
        self._name, self._environ, self._begun = name, environ, begun
        self._sessions = f"{claude}/sessions"
        self._busy, self._next = False, 0.0
        self._running: list[subprocess.Popen[bytes]] = []
        self._watcher = Watcher()
        self.descriptor = self._watcher.descriptor  # readable when the client may have said something
        program = words[0] if words else ""
        if program and not program.startswith("/"):
            program = programs.find_tool(program, programs.search_path(environ, os.getcwd())) or ""
        self._words = [program, *words[1:]] if program else []

    def begin(self) -> None:
        """Hear that the session runs."""
        self._begun()

    def look(self) -> float:
        """Tell if the client has just begun to wait; return in how many seconds to look again."""
        if not self._words:
            return _NEVER
        for _ in self._watcher.events():
            continue
        if (left := self._next - time.monotonic()) > 0:  # an agent can write there as often as it likes
            return left
        self._next = time.monotonic() + _NOTIFY_POLL
        watched = self._watcher.watch(self._sessions)
        self._running = [process for process in self._running if process.poll() is None]
        state = read_state(self._sessions)
        if self._busy and state in ("idle", "waiting"):
            self.tell(WAITS)
        if state:
            self._busy = state == "busy"
        return _NEVER if watched else _NOTIFY_POLL

    def tell(self, what: str) -> None:
        """Run the command, and do not wait for it."""
        if not self._words:
            return
        try:
            self._running.append(
                subprocess.Popen(
                    [*self._words, "claudebox", f"{self._name} {what}"], env=self._environ, cwd="/", close_fds=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip
        except OSError:  # a notice that cannot be given is no reason to end a session
            return


def read_state(directory: str) -> str:
    """Return what the client says of itself: `busy`, `idle`, `waiting`; nothing if it does not say."""
    newest, found = 0.0, ""
    try:
        with os.scandir(directory) as entries:
            rows = [entry for _, entry in zip(range(_MOST), entries, strict=False) if entry.name.endswith(".json")]
    except OSError:
        return ""
    for entry in rows:
        try:
            written = entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            continue
        state = parse_object(read_small(entry.path)).get("status")
        if written > newest and state in ("busy", "idle", "waiting"):
            newest, found = written, str(state)
    return found


# The launcher of a session without a terminal: what tmux starts. Writes down that it runs, and how it ended.


END = b"\0"  # after the last byte of what is handed over
HANDING, _RUNNER_POLL = 20.0, 0.005  # seconds
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
                time.sleep(_RUNNER_POLL)
    return b""


def _left_something(state: str, agent: Agent) -> bool:
    """Return whether the end of a session said something that its user should look at."""
    directory = f"{state}/{report_log.DIRECTORY}"
    suffix = f"-{agent.pid}{report_log.SUFFIX}"
    for name in [name for name in report_log.records(directory, agent.instance) if name.endswith(suffix)][-1:]:
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
        from claudebox.settings import layers

        os.chdir(handed["cwd"])
        status = os.stat(".")
        if [status.st_dev, status.st_ino] != handed["identity"]:
            raise ClaudeboxError(f"`{handed['cwd']}` was replaced by something else since it was shown")
        flags = layers.parse_arguments(handed["argv"]).replace(start=handed["start"])
        settings, _ = session.read_settings(flags, environ)
        words = tuple(settings.one("notify").fields.values()) if settings.all("notify") else ()
        claude = Instance(agent.project, state, agent.instance).claude
        notifier.append(Notifier(agent.name, words, environ, claude, lambda: mark_begun(records, agent)))
        return session.run(flags, environ, notifier[0])

    status = console.run_guarded(play)
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


_PROGRAM = (
    f"import gc, sys; gc.disable(); sys.path.insert(0, {PACKAGE!r}); from claudebox.many.detach import main; main()"
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
        worktrees.check_name(name)
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
        given, replaced = worktrees.give_name(records, wanted, project or instance.root, chosen=bool(name))
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
