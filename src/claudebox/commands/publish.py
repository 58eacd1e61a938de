"""`claudebox publish`: open ports of a running session at the host's localhost, or list those that are open."""

from __future__ import annotations

import json
import os
import signal

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.host.machine import current_directory, current_home
from claudebox.many import sessions
from claudebox.many.records import Records
from claudebox.many.worktrees import Copies
from claudebox.network import published
from claudebox.run.live_sessions import list_sessions
from claudebox.settings import parsers
from claudebox.settings.layers import SettingValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.network.published import PublishedPort
    from claudebox.settings.layers import Settings


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Publish ports of the session here, or of the one that is named first."""
    state = f"{current_home(environ)}/.claudebox"
    names = [word for word in flags.words if not word.replace(":", "").isdigit()]
    ports = [word for word in flags.words if word not in names]
    if len(names) > 1:
        raise ClaudeboxError(f"`{names[1]}` is not a port", hint="`claudebox publish [AGENT] [HOST:]PORT...`")
    wanted = [parsers.published(SettingValue(word, "PORT")) for word in ports]
    launcher, name = _find_session(state, names[0] if names else "")
    open_now = [row for row in published.list_ports(state) if row.launcher == launcher]
    if flags.on("off"):
        _close(state, [row for row in open_now if not ports or row.inside in {one.inside for one in wanted}])
        return 0
    if not wanted:
        _show(open_now, name, as_json=flags.on("json"))
        if not open_now:
            console.note("this session has no published port: `claudebox publish 3000` opens one")
        return 0
    inner = _find_inner(launcher)
    opened = []
    for one in wanted:
        known = next((row for row in open_now if row.inside == one.inside), None)
        if known is None or one.fixed:
            port = published.start_relay(state, one, launcher, inner)
            known = published.PublishedPort(port, one.inside, launcher, 0)
        opened.append(known)
    _show(opened, name, as_json=flags.on("json"))
    return 0


def _show(rows: list[PublishedPort], name: str, *, as_json: bool) -> None:
    document = [{"url": published.address(row, name), "host": row.host, "inside": row.inside} for row in rows]
    lines = [json.dumps(document, indent=2)] if as_json else [describe(row, name) for row in rows]
    console.write(lines, descriptor=1)


def describe(row: PublishedPort, name: str) -> str:
    return f"{published.address(row, name)}  port {row.inside} of the session, until it ends"


def _find_session(state: str, name: str) -> tuple[int, str]:
    """Return the launcher of a session, and what it is called: that of this name, or the last one that began here."""
    workdir, records = current_directory(), Records(state)
    copies = {copy.path: copy for copy in Copies(os.path.dirname(state)).all()}
    running = [(since, process, place) for process, place, since in list_sessions(state)]
    agents = [(since, process, copies[place]) for since, process, place in running if place in copies]
    own = {agent.pid: agent.name for agent in records.all() if agent.alive}
    if name:
        if found := [(since, process) for since, process, copy in agents if copy.name == name]:
            return max(found)[1], name
        agent = records.find(name, workdir)
        if not agent.alive:
            raise ClaudeboxError(f"`{name}` is not running", hint="`claudebox sessions` lists what is")
        return agent.pid, agent.name
    if here := [(since, process) for since, process, place in running if place == workdir]:
        process = max(here)[1]
        return process, own.get(process, os.path.basename(workdir))
    started = [(process, copy.name) for _, process, copy in agents if copy.source == workdir]
    if len(started) == 1:
        return started[0]
    hint = "name another one: `claudebox publish AGENT PORT`; `claudebox sessions` lists them"
    raise ClaudeboxError(f"no session runs in `{workdir}`", hint=hint)


def _find_inner(launcher: int) -> int:
    """Return the outermost process in the network of a session's sandbox."""
    own = os.stat(f"/proc/{launcher}/ns/net").st_ino
    children, waiting = sessions.list_children(), [launcher]
    for process in waiting:  # grows meanwhile
        try:
            if os.stat(f"/proc/{process}/ns/net").st_ino != own:
                return process
        except OSError:  # it has ended, or is none of ours
            continue
        waiting += sorted(children.get(process, ()))
    raise ClaudeboxError(
        "this session shares the network of this machine (tier `full`)",
        hint="its ports are at localhost already; the tiers `inet`, `allow` and `none` have ports of their own",
    )


def _close(state: str, rows: list[PublishedPort]) -> None:
    if not rows:
        raise ClaudeboxError("this session has no such published port")
    for row in rows:
        if row.relay == row.launcher:
            raise ClaudeboxError(f"port {row.inside} was published at the start, and is open until the session ends")
        with Closing(os.pidfd_open(row.relay)) as relay:
            if row in published.list_ports(state):  # still that process
                signal.pidfd_send_signal(relay, signal.SIGTERM)
        console.note(f"closed http://localhost:{row.host}")
