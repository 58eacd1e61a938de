"""Telling the user that a session without a terminal waits for them, or has ended: by a command of theirs.

It gets fixed words: the name of the session, which we checked, and what happened. Nothing that an agent wrote is among
them. Whether the client waits, it says itself, in a file of its state.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from claudebox.facts import programs
from claudebox.files import parse_object, read_small
from claudebox.launch.inotify import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_POLL, _NEVER = 1.0, 3600.0  # seconds between two looks, before there is something to watch and after
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
        self._next = time.monotonic() + _POLL
        watched = self._watcher.watch(self._sessions)
        self._running = [process for process in self._running if process.poll() is None]
        state = read_state(self._sessions)
        if self._busy and state in ("idle", "waiting"):
            self.tell(WAITS)
        if state:
            self._busy = state == "busy"
        return _NEVER if watched else _POLL

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
