"""`claudebox allow DOMAIN...`: permit domains in the sessions of tier `allow` that run in this project."""

from __future__ import annotations

import os
import socket

from claudebox import session
from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.broker import wire
from claudebox.broker.sidecar import control_directory
from claudebox.host.machine import current_directory, current_home
from claudebox.many.worktrees import Copies
from claudebox.run.live_sessions import list_sessions
from claudebox.settings import domains as settings_domains
from claudebox.settings.layers import read_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


_PATIENCE = 5.0


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Tell the broker of every such session."""
    if any(map(settings_domains.is_group, flags.words)):
        flags = flags.replace(reader=None)  # it may be the user's own: a broken file stops it, else it only warns
    settings, _ = session.read_settings(flags, environ)
    requests = [(word, f"claudebox {flags.verb}") for word in flags.words]
    names = tuple(dict.fromkeys(str(domain) for domain, _ in settings_domains.expand(requests, read_groups(settings))))
    found = find_brokers(current_home(environ))
    if not found:
        raise ClaudeboxError(
            f"no session of tier `allow` runs in `{current_directory()}`",
            hint=f"start one: `claudebox --network allow {' '.join(f'--allow-domain {text}' for text, _ in requests)}`",
        )
    for process in found:
        _tell(process, names)
    where = ", ".join(sorted({os.path.basename(place) for place in found.values()}))
    console.note(f"{', '.join(names)} can be reached in {where} until the session ends")
    return 0


def find_brokers(home: str) -> dict[int, str]:
    """Return launcher and directory of the sessions of tier `allow` in this project and in worktrees made of it."""
    workdir = current_directory()
    places = {workdir, *(copy.path for copy in Copies(home).all() if copy.source == workdir)}
    here = ((process, place) for process, place, _ in list_sessions(f"{home}/.claudebox") if place in places)
    return {process: place for process, place in here if os.path.isdir(control_directory(process))}


def _tell(process: int, names: tuple[str, ...]) -> None:
    """Send the names to one broker, and wait for its answer."""
    directory = control_directory(process)
    status = os.lstat(directory)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClaudeboxError(f"other users can enter `{directory}`")
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
