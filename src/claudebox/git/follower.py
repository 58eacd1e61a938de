"""The process beside a session that imports what moves on either side, until the launcher asks for the end (GIT-03)."""

from __future__ import annotations

import os
import select
import time

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import write_all
from claudebox.base.inotify import Watcher
from claudebox.git import state as git_state
from claudebox.git.sidecar import MAX_TEXT, MOVED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.importer import ImportResult
    from claudebox.git.sandbox import Tools
    from claudebox.git.sidecar import Import


_QUIET, _MOST_WAIT, _PAUSE = 0.2, 0.8, 1.0  # seconds after the last event; after the first; between imports
_POLL = 2.0  # between polls where not everything can be watched
_MOST_WATCHES = 400
_UNFINISHED = ("rebase-merge", "rebase-apply", "sequencer")
# Files that the other side follows, besides everything below `refs`.
_FOLLOWED = ("HEAD", "packed-refs", "tables.list")


class Following:
    """Imports while a session runs, and at its end."""

    def __init__(self, line: int, repositories: tuple[str, ...], tools: Tools, session: str, mode: Import) -> None:
        self._line, self._tools, self._session, self._mode = line, tools, session, mode
        self._repositories = repositories
        self._watcher = Watcher()
        self._complete = False
        self._stamps: dict[str, str] = {}  # of both sides, where not everything can be watched
        self._done: dict[str, ImportResult] = {}

    def run(self, host: dict[str, str]) -> None:
        """Follow until the launcher asks for the end, or is gone; `host` has the stamps of the start."""
        self._complete = self._watch()
        for path in self._repositories:
            if not git_state.settled(path) or git_state.stamp_host(path) != host[path]:
                self._import(path)  # it happened before anything was watched
        first = last = 0.0  # of events that nothing has been done about
        imported = 0.0
        while True:
            now = time.monotonic()
            due = min(last + _QUIET, first + _MOST_WAIT) if first else now + _POLL if not self._complete else 0.0
            due = max(due, imported + _PAUSE) if due else 0.0
            heard = [self._line, *([self._watcher.descriptor] if self._watcher.descriptor >= 0 else [])]
            ready = select.select(heard, [], [], max(0.0, due - now) if due else None)[0]
            if self._line in ready:
                if not self._answer(self._hear()):
                    return
                continue
            if ready:
                if self._has_news():
                    last = time.monotonic()
                    first = first or last
                continue
            polled, first = not first, 0.0
            for path in self._repositories:
                seen = git_state.stamp_host(path) + git_state.stamp_own(path)
                if not polled or not seen or seen != self._stamps.get(path):
                    self._import(path)
                    self._stamps[path] = git_state.stamp_host(path) + git_state.stamp_own(path)
            imported = time.monotonic()

    def serve(self) -> None:
        """Answer the launcher, without following: the session is over."""
        while self._answer(self._hear()):
            pass

    def _watch(self) -> bool:
        """Watch both sides of every repository; return whether everything is watched."""
        complete = True
        for path in self._repositories:
            layout = git_state.read_layout(path)
            for directory in (f"{path}/own", layout.common):
                places = {directory, os.path.normpath(f"{directory}/{layout.checkout}")}
                for place in places:
                    complete &= self._watcher.watch(place)
                    self._watcher.watch(f"{place}/reftable")
                complete &= self._watcher.watch_below(f"{directory}/refs", _MOST_WATCHES)
        return complete

    def _has_news(self) -> bool:
        """Read all events; return whether one concerns the other side."""
        found = again = False
        for directory, name, is_directory in self._watcher.events():
            again |= is_directory
            found |= not name.endswith(".lock") and ("/refs" in directory or is_directory or name in _FOLLOWED)
        if again:
            self._complete = self._watch()
        return found

    def _import(self, path: str) -> None:
        """Import while the session runs; an operation under way moves HEAD to and fro, and its end is an event."""
        if not any(os.path.lexists(f"{path}/own/{name}") for name in _UNFINISHED):
            self._bring(path, at_end=False)

    def _bring(self, path: str, *, at_end: bool) -> None:
        from claudebox.git import importer  # an idle session never loads it

        known = self._done.get(path, importer.ImportResult())
        try:
            if at_end:
                with git_state.Alone(path) as final:
                    done = importer.finish(path, self._tools, self._session, final=final)
            else:
                done = {path: importer.bring_back(path, self._tools, self._session, outward=self._mode == "auto")}
        except (ClaudeboxError, OSError) as error:
            said = error.message if isinstance(error, ClaudeboxError) else git_state.describe_error(error, path)
            self._done[path] = known.replace(refused=(), notes=(said,))
        else:
            for place, result in done.items():
                self._done[place] = importer.join(self._done.get(place, importer.ImportResult()), result)

    def _answer(self, word: bytes) -> bool:
        """Answer a request of the launcher; return whether to go on."""
        from claudebox.git import report as git_report

        lines: list[str] = []
        if word.startswith(b"end"):
            for path in self._repositories:
                if not git_state.settled(path):
                    self._bring(path, at_end=True)
            moved, rest = git_report.divide(self._done)
            lines = [*(f"{MOVED}{row}" for row in moved), *rest]
        elif word.startswith(b"show"):
            lines = [line for path in self._repositories for line in git_report.preview(path, self._tools)]
        else:
            return False
        text = "\n".join(lines).replace("\0", "")
        write_all(self._line, text.encode("utf-8", "surrogateescape")[: MAX_TEXT - 1] + b"\0")
        return word.startswith(b"show")

    def _hear(self) -> bytes:
        try:
            return os.read(self._line, 64)
        except OSError:
            return b""
