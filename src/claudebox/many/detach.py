"""`--detach`: agree on a session on this terminal, then run it in one of tmux's.

The plan is shown and confirmed here. What the launcher in tmux needs of this environment goes through a socket that
only the user can reach, so that neither tmux nor a disk holds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from claudebox import session
from claudebox.base import console
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.files import PACKAGE, parse_object, read_small
from claudebox.base.inotify import Watcher
from claudebox.base.state import Instance
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.many import worktrees
from claudebox.many.records import Agent, Records, boot_id, process_start
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


_PROGRAM = (
    f"import gc, sys; gc.disable(); sys.path.insert(0, {PACKAGE!r}); from claudebox.many.detach import main; main()"
)
_CONNECT_SECONDS, _START_SECONDS, _POLL = 20.0, 60.0, 0.02
_TMUX_VARIABLES = ("TERM", "TMUX", "TMUX_PANE")  # the launcher has those of its own terminal
_TERMINAL_VARIABLES = (*_TMUX_VARIABLES, "COLORTERM", "COLUMNS", "LINES", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")


def run(flags: Settings, environ: dict[str, str], *, name: str = "", project: str = "") -> int:
    """Start a background session and return once its payload runs; `new` gives the `name` and `project` of a copy."""
    state = f"{current_home(environ)}/.claudebox"
    tmux = Tmux(state, environ)
    tmux.require()
    if name:
        worktrees.check_name(name)
    planned = session.agree(flags, environ)
    if planned is None:
        return DECLINED
    workdir, instance = current_directory(), planned.host.instance
    leftovers.catch_up(instance, (workdir,))
    records = Records(state)
    for old in records.prune():
        tmux.kill(old.id)
    project = project or instance.root
    with records.locked():
        wanted = name or os.path.basename(workdir)
        given, replaced = worktrees.choose_name(records, wanted, project, exact=bool(name))
        agent = Agent(os.urandom(4).hex(), given, workdir, project, instance.name, created=time.time())
        records.save(agent)
        for old in replaced:
            records.remove(old)
    for old in replaced:
        tmux.kill(old.id)
    order = {
        "cwd": workdir,
        "start": flags.start,
        "identity": planned.host.workdir.identity,
        "given": {key: [row.as_tuple() for row in values] for key, values in flags.given.items()},
        "words": flags.words,
        "verb": flags.verb,
        "agent": flags.agent.name,
        "environ": environ,
    }
    try:
        _start(tmux, agent, state, order)
    except BaseException:
        records.remove(agent)
        raise
    return _await_payload(records, tmux, agent)


def _start(tmux: Tmux, agent: Agent, state: str, order: Mapping[str, object]) -> None:
    """Start the launcher in tmux and send it its order."""
    path = f"{tmux.directory}/{agent.id}"
    columns, rows = shutil.get_terminal_size((100, 30))
    words = [sys.executable, "-IS", "-c", _PROGRAM, state, agent.id, path]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        try:
            listener.listen(1)
            listener.settimeout(_CONNECT_SECONDS)
            tmux.start(agent.id, (max(columns, 20), max(rows, 5)), words)
            with listener.accept()[0] as connection:
                connection.sendall(json.dumps(order).encode())
        except (TimeoutError, ConnectionError):
            tmux.kill(agent.id)
            raise ClaudeboxError("the session did not start: its launcher does not answer") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _await_payload(records: Records, tmux: Tmux, agent: Agent) -> int:
    """Wait until the payload runs or the launcher has ended."""
    limit = time.monotonic() + _START_SECONDS
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
    console.note(f"`{agent.name}` runs in the background: `claudebox attach {agent.name}`; Ctrl+Z leaves it again")
    return 0


def main() -> NoReturn:
    """Be the launcher in tmux: receive the order, run the session, record its end."""
    state, identifier, path = sys.argv[1:4]
    order = _receive(path)
    records = Records(state)
    known = records.get(identifier)
    if not order or known is None:  # `--detach` was killed, or the user stopped the session already
        os._exit(FAILED)
    own = {name: os.environ[name] for name in _TMUX_VARIABLES if name in os.environ}
    environ = {name: value for name, value in order["environ"].items() if name not in _TERMINAL_VARIABLES}
    environ |= {**own, "COLORTERM": "truecolor"}
    os.environ.clear()
    os.environ.update(environ)
    process = os.getpid()
    agent = dataclasses.replace(known, pid=process, start=process_start(process), boot=boot_id())
    records.save(agent)
    notifier: list[Notifier] = []

    def record_begin() -> None:
        records.save(dataclasses.replace(agent, begun=time.time()))

    def play() -> int:
        from claudebox.settings import files, layers

        os.chdir(order["cwd"])
        status = os.stat(".")
        if [status.st_dev, status.st_ino] != order["identity"]:
            raise ClaudeboxError(f"`{order['cwd']}` was replaced since the session was confirmed")
        given = {key: tuple(layers.SettingValue(*row) for row in rows) for key, rows in order["given"].items()}
        flags = layers.Settings(given, tuple(order["words"]), order["verb"], start=order["start"])
        files.SettingsReader(os.path.dirname(state)).add_agents()
        flags = flags.replace(agent=layers.find_agent(order["agent"]) or flags.agent)
        settings, _ = session.read_settings(flags, environ)
        words = tuple(settings.one("notify").fields.values()) if settings.all("notify") else ()
        instance = Instance(agent.project, state, agent.instance)
        statuses = f"{instance.directory}/{settings.agent.extras.statuses}" if settings.agent.extras.statuses else ""
        notifier.append(Notifier(agent.name, words, environ, statuses, record_begin))
        return session.run(flags, environ, notifier[0])

    status = console.run_guarded(play)
    for one in notifier:
        one.notify(ENDED.format(status, shlex.quote(agent.name)))
    agent, tmux = records.get(identifier) or agent, Tmux(state, environ)
    with contextlib.suppress(OSError, ClaudeboxError):
        if _has_report(state, agent) and not tmux.is_shown(identifier):
            records.mark_seen(agent, seen=False)
    try:
        records.save(dataclasses.replace(agent, ended=time.time(), status=status))
    except OSError as error:  # a full disk: tmux still knows the status
        console.warn(f"the end of this session could not be recorded: {error.strerror}")
    tmux.leave(identifier)
    os._exit(status)


def _receive(path: str) -> dict[str, Any]:
    """Return the order, or nothing if its sender was killed."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_CONNECT_SECONDS)
            client.connect(path)
            data = b"".join(iter(lambda: client.recv(1 << 16), b""))
    except OSError:
        return {}
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return parse_object(data)


def _has_report(state: str, agent: Agent) -> bool:
    """Return whether the log of an ended session holds something that its user should look at."""
    directory = f"{state}/{report_log.DIRECTORY}"
    suffix = f"-{agent.pid}{report_log.SUFFIX}"
    for name in [name for name in report_log.records(directory, agent.instance) if name.endswith(suffix)][-1:]:
        for end in LogReader(directory, name).lines(b'"end"'):
            told = not {*LOOK, "asked"}.isdisjoint(end.get("changed") or {})
            if told or any(end.get(key) for key in ("unseen", "found", "failed")):
                return True
    return False


_NOTIFY_POLL, _NEVER = 1.0, 3600.0  # seconds
_MAX_FILES = 64  # of the client
WAITS, ENDED = "waits for you", "has ended with status {}: claudebox review {}"


class Notifier:
    """Runs the user's `notify` command when a background session begins to wait or has ended.

    The command gets the checked name of the session and fixed words, nothing that an agent wrote. That the client waits
    is read from a file in its state.
    """

    def __init__(
        self, name: str, words: Sequence[str], environ: dict[str, str], statuses: str, begin: Callable[[], object]
    ) -> None:
        self._name, self._environ = name, environ
        self.begin = begin  # called when the payload runs
        self._sessions = statuses
        self._busy, self._next = False, 0.0
        self._running: list[subprocess.Popen[bytes]] = []
        self._watcher = Watcher()
        self.descriptor = self._watcher.descriptor  # readable when the client may have written
        program = words[0] if words else ""
        if program and not program.startswith("/"):
            program = programs.find_tool(program, programs.search_path(environ, os.getcwd())) or ""
        self._words = [program, *words[1:]] if program else []

    def look(self) -> float:
        """Notify if the client has just begun to wait; return the seconds until the next call."""
        if not self._words or not self._sessions:
            return _NEVER
        for _ in self._watcher.events():
            continue
        if (left := self._next - time.monotonic()) > 0:  # an agent can write there as often as it likes
            return left
        self._next = time.monotonic() + _NOTIFY_POLL
        watched = self._watcher.watch(self._sessions)
        self._running = [process for process in self._running if process.poll() is None]
        state = _read_client_state(self._sessions)
        if self._busy and state in ("idle", "waiting"):
            self.notify(WAITS)
        if state:
            self._busy = state == "busy"
        return _NEVER if watched else _NOTIFY_POLL

    def notify(self, what: str) -> None:
        """Run the command without waiting for it."""
        if not self._words:
            return
        with contextlib.suppress(OSError):
            self._running.append(
                subprocess.Popen(
                    [*self._words, "claudebox", f"{self._name} {what}"], env=self._environ, cwd="/", close_fds=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip


def _read_client_state(directory: str) -> str:
    """Return `busy`, `idle` or `waiting` as the client last wrote it, or an empty string."""
    newest, found = 0.0, ""
    try:
        with os.scandir(directory) as entries:
            rows = [entry for _, entry in zip(range(_MAX_FILES), entries, strict=False) if entry.name.endswith(".json")]
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
