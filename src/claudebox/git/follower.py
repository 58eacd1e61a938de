"""The process beside a session that imports what moves on either side, until the launcher asks for the end (GIT-03)."""

from __future__ import annotations

import os
import select

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


_QUIET, _PAUSE = 0.3, 1.0  # seconds between an event and the import, since few come alone; and after an import
_POLL = 2.0  # between looks where not everything can be watched
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
        self._is_complete = False  # everything is watched
        self._stamps: dict[str, str] = {}  # of both sides, as they were last imported
        self._done: dict[str, ImportResult] = {}

    def run(self, stamps: dict[str, str]) -> None:
        """Follow until the launcher asks for the end, or is gone; `stamps` are those of the start."""
        self._stamps = stamps
        self._watch()
        self._look()
        while self._wait(None if self._is_complete else _POLL, self._watcher.descriptor):
            if self._has_news() or not self._is_complete:
                if not self._wait(_QUIET):
                    return
                self._look()
                if not self._wait(_PAUSE):
                    return

    def serve(self) -> None:
        """Answer the launcher, without following: the session is over."""
        self._wait(None)

    def _wait(self, seconds: float | None, other: int = -1) -> bool:
        """Wait for the `other` descriptor or for the time to pass, and answer the launcher; False at the end."""
        heard = [descriptor for descriptor in (self._line, other) if descriptor >= 0]
        while self._line in select.select(heard, [], [], seconds)[0]:
            if not self._answer(self._hear()):
                return False
        return True

    def _watch(self) -> None:
        """Watch both sides of every repository."""
        complete = True
        for path in self._repositories:
            layout = git_state.read_layout(path)
            for directory in (f"{path}/own", layout.common):
                for place in {directory, os.path.normpath(f"{directory}/{layout.checkout}")}:
                    complete &= self._watcher.watch(place)
                    self._watcher.watch(f"{place}/reftable")
                complete &= self._watcher.watch_below(f"{directory}/refs", _MOST_WATCHES)
        self._is_complete = complete

    def _has_news(self) -> bool:
        """Read all events; return whether one concerns the other side."""
        found = again = False
        for directory, name, is_directory in self._watcher.events():
            again |= is_directory
            found |= not name.endswith(".lock") and ("/refs" in directory or is_directory or name in _FOLLOWED)
        if again:
            self._watch()
        return found

    def _look(self) -> None:
        """Import where something has changed on either side."""
        for path in self._repositories:
            stamp = git_state.stamp_host(path) + git_state.stamp_own(path)
            if stamp != self._stamps[path]:
                self._stamps[path] = stamp  # from before the import, which changes it, or meets a change meanwhile
                self._import(path)

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
