"""`claudebox allow DOMAIN...`: permit domains in the session of tier `allow` that runs in this project."""

from __future__ import annotations

import os
import socket

from claudebox import session
from claudebox.base import console
from claudebox.base.errors import DECLINED, ClaudeboxError
from claudebox.broker import wire
from claudebox.broker.sidecar import control_directory
from claudebox.host.machine import current_directory, current_home
from claudebox.run.live_sessions import list_sessions
from claudebox.settings import domains as settings_domains
from claudebox.settings.layers import read_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


_PATIENCE = 5.0


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Ask, and tell the broker of every such session."""
    settings, _ = session.read_settings(flags, environ)
    requests = [(word, f"claudebox {flags.verb}") for word in flags.words]
    names = tuple(dict.fromkeys(str(domain) for domain, _ in settings_domains.expand(requests, read_groups(settings))))
    workdir = current_directory()
    found = find_brokers(f"{current_home(environ)}/.claudebox")
    if not found:
        raise ClaudeboxError(
            f"no session of tier `allow` runs in `{workdir}`",
            hint=f"start one: `claudebox --network allow {' '.join(f'--allow-domain {text}' for text, _ in requests)}`",
        )
    question = f"Let {', '.join(names)} into the session that runs in {console.clean(workdir)}? [y/N] "
    if not flags.on("yes") and not console.confirm(question, default=False):
        return DECLINED
    for process in found:
        _tell(process, names)
    console.note(f"reachable from now on: {', '.join(names)}")
    return 0


def find_brokers(state: str) -> list[int]:
    """Return the launchers of sessions of tier `allow` that run in this project."""
    here = (process for process, project, _ in list_sessions(state) if project == current_directory())
    return [process for process in here if os.path.isdir(control_directory(process))]


def _tell(process: int, names: tuple[str, ...]) -> None:
    """Send the names to one broker, and wait for its answer."""
    directory = control_directory(process)
    status = os.lstat(directory)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClaudeboxError(f"`{directory}` is not yours alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(_PATIENCE)
        try:
            channel.connect(f"{directory}/{wire.CONTROL}")
            channel.sendall(" ".join(names).encode("ascii"))
            answer = channel.recv(4096)
        except OSError as error:
            raise ClaudeboxError(f"the session does not answer: {error.strerror or error}") from None
    if answer != wire.READY:
        raise ClaudeboxError(f"the session refused: {console.clean(answer.decode('utf-8', 'replace'))}")
