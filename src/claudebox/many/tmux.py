"""The tmux server that holds the terminals of background sessions, with its own socket and settings.

The socket lies in a directory that only its owner can enter and no sandbox sees. tmux knows sessions by our ids, so it
never interprets a name that the user chose.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import is_private, write_file
from claudebox.base.state import open_state
from claudebox.host import programs

_MAX_SOCKET_PATH = 95  # bytes; the kernel takes 107, and a launcher's socket has a longer name than tmux's
_FALLBACK = "xterm-256color"
_SECONDS = 20
_ENDED = "this session has ended; Ctrl+Z leaves"
# The terminal stays protected: no passthrough, no clipboard, and no keys but one to leave and one to scroll back. An
# ended session keeps its last screen.
_SETTINGS = f"""\
set -gq default-terminal "tmux-256color"
set -asq terminal-features ",*:RGB:hyperlinks:extkeys:focus:title:usstyle:sync"
set -sq escape-time 0
set -sq extended-keys on
set -sq set-clipboard external
set -gq allow-passthrough off
set -gq status off
set -gq prefix None
set -gq prefix2 None
set -gq mouse off
set -gq remain-on-exit on
set -gq remain-on-exit-format "{_ENDED}"
set -gq window-size latest
set -gq history-limit 20000
set -gq focus-events on
set -gq set-titles on
set -gq set-titles-string "#T"
set -gq update-environment ""
set -gq automatic-rename off
set -gq allow-rename off
set -gq default-command ""
set -gq bell-action any
unbind -a
unbind -a -T root
bind -n C-z detach-client
bind -n S-PPage copy-mode -eu
"""


@dataclass(frozen=True)
class Pane:
    """What tmux reports about one session."""

    dead: bool
    status: int  # -1: unknown
    title: str


class Tmux:
    """The server, which starts with its first session and ends with its last."""

    def __init__(self, state: str, environ: dict[str, str]) -> None:
        self._environ = environ
        self.directory = run_directory(state)
        self.program = programs.find_tool("tmux", programs.search_path(environ, os.getcwd())) or ""

    def require(self) -> None:
        if not self.program:
            raise ClaudeboxError(
                "background sessions need `tmux`, which was not found", hint="install the package `tmux`"
            )

    def start(self, identifier: str, size: tuple[int, int], words: list[str]) -> None:
        """Start a session that runs this program, with no variables of this environment."""
        self.require()
        write_file(f"{self.directory}/tmux.conf", _SETTINGS.encode())
        columns, rows = size
        result = self._run(
            "new-session", "-d", "-s", identifier, "-x", str(columns), "-y", str(rows), "-c", "/", "--", *words
        )
        if result.returncode:
            raise ClaudeboxError(f"tmux did not start the session: {result.stderr.strip()[-200:]}")

    def attach(self, identifier: str) -> None:
        """Show a session on this terminal until the user leaves or it ends."""
        self.require()
        term = self._environ.get("TERM") or _FALLBACK
        words = [*self._words(), "-u", "attach-session", "-t", f"={identifier}"]
        for name in dict.fromkeys((term, _FALLBACK)):
            result = subprocess.run(words, env={**self._variables(), "TERM": name}, stderr=subprocess.PIPE, check=False)
            message = result.stderr.decode("utf-8", "replace").strip()
            if not result.returncode:
                return
            if "unsuitable terminal" not in message or name == _FALLBACK:
                raise ClaudeboxError(f"tmux: {message[-200:]}")

    def is_shown(self, identifier: str) -> bool:
        return bool(self._run("list-clients", "-t", f"={identifier}").stdout.strip())

    def leave(self, identifier: str) -> None:
        """Detach every terminal from a session."""
        self._run("detach-client", "-s", f"={identifier}")

    def kill(self, identifier: str) -> None:
        """Remove a session; what runs in it gets SIGHUP."""
        if self.program:
            self._run("kill-session", "-t", f"={identifier}")

    def end(self) -> None:
        """End the server, with the last screens of sessions that have ended."""
        if self.program and os.path.lexists(f"{self.directory}/tmux"):
            self._run("kill-server")

    def panes(self) -> dict[str, Pane]:
        """Return all sessions by id."""
        if not self.program or not os.path.lexists(f"{self.directory}/tmux"):
            return {}
        form = "#{session_name}\t#{pane_dead}\t#{pane_dead_status}\t#{pane_dead_signal}\t#{pane_title}"
        result = self._run("list-panes", "-a", "-F", form)
        found = {}
        for line in result.stdout.splitlines():
            name, dead, status, signal, title = (*line.split("\t", 4), "", "", "", "")[:5]
            code = int(status) if status.isdigit() else 128 + int(signal) if signal.isdigit() else -1
            found[name] = Pane(dead == "1", code, title)
        return found

    def screen(self, identifier: str, *, history: int = 0) -> list[str]:
        """Return the text on the screen of a session, cleaned, without trailing empty lines."""
        result = self._run("capture-pane", "-p", "-J", "-S", f"-{history}", "-t", f"={identifier}:")
        lines = [console.clean(line.rstrip()) for line in result.stdout.split("\n")]
        while lines and lines[-1] in ("", _ENDED):
            lines.pop()
        return lines

    def _words(self) -> list[str]:
        return [self.program, "-S", f"{self.directory}/tmux", "-f", f"{self.directory}/tmux.conf"]

    def _variables(self) -> dict[str, str]:
        """Return the whole environment of the server and its clients."""
        return {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8", "TERM": _FALLBACK, "SHELL": "/bin/sh"}

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self._words(), "-u", *words], env=self._variables(), capture_output=True, encoding="utf-8",
                errors="replace", stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False, cwd="/",
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise ClaudeboxError(f"tmux does not answer: {type(error).__name__}") from None


def run_directory(state: str) -> str:
    """Create and return the directory of the socket: in our state, or elsewhere if that path is too long."""
    path = f"{state}/run"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        os.close(open_state(state, "run"))
        return path
    runtime, name = f"/run/user/{os.getuid()}", syscalls.sha256(os.fsencode(state))[:8]
    path = f"{runtime}/claudebox-{name}" if is_private(runtime) else f"/tmp/claudebox-{os.getuid()}-{name}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    if not is_private(path):
        raise ClaudeboxError(f"`{path}` is not a directory that only you can enter", hint="have it removed")
    return path
