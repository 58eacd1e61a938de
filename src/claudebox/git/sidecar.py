"""The sidecar that follows git in both directions while a session runs, and imports everything at its end (GIT-03).

A commit or a switch inside shows on the host within a second, and the other way round. A process of its own does the
work. It starts a moment after the session, so that neither a launch nor a short session pays for it.
"""

from __future__ import annotations

import os
import select
import time

from claudebox.base import console
from claudebox.base.console import shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import identify, list_names, write_all
from claudebox.base.syscalls import socket
from claudebox.git import private as git_private
from claudebox.git import state as git_state
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from claudebox.git.importer import ImportResult
    from claudebox.git.sandbox import Tools
    from claudebox.plan.records import Plan

    Import = Literal["auto", "ask", "manual"]


_DELAY, _NEVER = 0.7, 3600.0  # seconds before the process starts; until the launcher calls `look` again
_END_TIMEOUT = 300.0
_MOVED = "+ "  # begins lines of the process about branches that moved
_MAX_TEXT = 1 << 20  # bytes of an answer


class Follower(Sidecar):
    """Follows from before the sandbox starts until everything has come back."""

    title = "importing commits"

    def __init__(
        self,
        repositories: tuple[str, ...],
        tools: Callable[[], Tools],
        session: str,
        mode: Import,
    ) -> None:
        self._repositories, self._tools, self._session, self._mode = repositories, tools, session, mode
        self._child = 0
        self._line = -1
        self._due = 0.0  # when the process is started
        self._seen: dict[str, str] = {}  # the stamps at the start
        self._host: dict[str, str] = {}  # and those of the host's repositories
        self._settings: dict[str, tuple[bytes, list[str]]] = {}  # the configuration and the hooks at the start

    def begin(self, log: int = -1) -> None:  # noqa: ARG002 - nothing is logged
        """Take the stamps of both sides."""
        self._seen = {path: git_state.read_state(path).seen for path in self._repositories}
        self._host = {path: git_state.stamp_host(path) for path in self._repositories}
        self._settings = {path: git_private.read_settings(path) for path in self._repositories}
        for path in self._repositories:
            try:
                git_private.remove(f"{path}/old")  # what set-up has replaced
            except OSError:  # left to the next set-up
                continue

    def attach(self, payload: int) -> None:  # noqa: ARG002 - not needed here
        """Start the delay timer."""
        self._due = time.monotonic() + _DELAY

    def look(self) -> float:
        """Start the process when it is due; return in how many seconds to look again."""
        left = self._due - time.monotonic()
        if self._child or left > 0:
            return _NEVER if self._child else left
        self._start(following=True)
        return _NEVER

    def _start(self, *, following: bool) -> None:
        from claudebox.base import process

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line, line = ours.detach(), theirs.detach()

        def body() -> None:
            work = _Following(line, self._repositories, self._tools(), self._session, self._mode)
            stamps = {path: self._host[path] + seen for path, seen in self._seen.items()}
            work.run(stamps) if following else work.serve()

        try:
            self._child = process.fork(body, (line,))
        except OSError:
            os.close(self._line)
            raise
        finally:
            os.close(line)

    def finish(self) -> tuple[str, ...]:
        """Import everything, after a question in mode `ask`; return what to tell."""
        if not self._due:
            return ()
        try:
            brought = () if self._is_untouched() else self._finish()
            return (*brought, *self._describe_settings())
        finally:
            if self._child:
                from claudebox.base import process

                process.end(self._child)
                self._child = 0
                os.close(self._line)

    def _describe_settings(self) -> list[str]:
        """Return the lines about configuration and hooks that were made in this session, and stay inside."""
        changed = {path: before for path, before in self._settings.items() if git_private.read_settings(path) != before}
        if not changed:
            return []
        from claudebox.git import report as git_report

        return [line for path, before in changed.items() for line in git_report.describe_settings(path, *before)]

    def _is_untouched(self) -> bool:
        """Return whether nothing has happened in any repository."""
        return all(
            git_state.read_state(path).seen == seen and git_state.settled(path) for path, seen in self._seen.items()
        )

    def _finish(self) -> tuple[str, ...]:
        if self._mode == "manual":
            waits = not all(map(git_state.settled, self._repositories))
            return ("git: commits made inside were not imported; `claudebox sync` does it",) if waits else ()
        if not self._child:
            self._start(following=False)
        if self._mode == "ask":
            found = self._ask(b"show\n")
            if not found:
                return ()
            console.write(console.clean(line) for line in found)
            try:
                agreed = console.confirm("Bring these commits into your repository? [Y/n] ", default=True)
            except ClaudeboxError:
                agreed = False
            if not agreed:
                return ("git: nothing was imported; `claudebox sync` does it",)
        lines = self._ask(b"end\n")
        self.moved = tuple(line.removeprefix(_MOVED) for line in lines if line.startswith(_MOVED))
        return tuple(line for line in lines if not line.startswith(_MOVED))

    def _ask(self, word: bytes) -> tuple[str, ...]:
        """Send a word and return the lines of the answer."""
        from claudebox.base import process

        try:
            os.write(self._line, word)
        except OSError:
            pass  # it has ended, as `read` tells below
        answer, begun = b"", time.monotonic()
        while not answer.endswith(b"\0") and len(answer) < _MAX_TEXT:
            if not select.select([self._line], [], [], process.SIGNAL_POLL)[0]:
                passed = time.monotonic() - begun
                if process.is_asked_to_end(passed):
                    return ("git: the import was interrupted; `claudebox sync` continues it",)
                if passed > _END_TIMEOUT:
                    return ("git: the import takes too long; `claudebox sync` continues it",)
                continue
            piece = os.read(self._line, 65536)
            if not piece:
                return ("git: the importing process ended; `claudebox sync` continues its work",)
            answer += piece
        return tuple(line for line in answer[:-1].decode("utf-8", "surrogateescape").split("\n") if line)


_QUIET, _PAUSE = 0.3, 1.0  # seconds between an event and the import, since few come alone; and after an import
_POLL = 2.0  # between looks where not everything can be watched
_MOST_WATCHES = 400
_UNFINISHED = ("rebase-merge", "rebase-apply", "sequencer")
# Files that the other side follows, besides everything below `refs`.
_FOLLOWED = ("HEAD", "packed-refs", "tables.list")


class _Following:
    """The process: imports while a session runs, and at its end."""

    def __init__(self, line: int, repositories: tuple[str, ...], tools: Tools, session: str, mode: Import) -> None:
        self._line, self._tools, self._session, self._mode = line, tools, session, mode
        self._repositories = repositories
        from claudebox.base.inotify import Watcher

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
            if (news := self._has_news()) or not self._is_complete:
                if not self._wait(_QUIET):
                    return
                self._look(again=news)
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

    def _look(self, *, again: bool = False) -> None:
        """Import where something has changed on either side; `again`, also where an import may have met a lock."""
        for path in self._repositories:
            stamp = git_state.stamp_host(path) + git_state.stamp_own(path)
            if again or stamp != self._stamps[path]:
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
            lines = [*(f"{_MOVED}{row}" for row in moved), *rest]
        elif word.startswith(b"show"):
            lines = [line for path in self._repositories for line in git_report.preview(path, self._tools)]
        else:
            return False
        text = "\n".join(lines).replace("\0", "")
        write_all(self._line, text.encode("utf-8", "surrogateescape")[: _MAX_TEXT - 1] + b"\0")
        return word.startswith(b"show")

    def _hear(self) -> bytes:
        try:
            return os.read(self._line, 64)
        except OSError:
            return b""


# Git for one session: the work of a killed one is imported, git directories are made, a sidecar follows them.


def follow(plan: Plan) -> Follower:
    """Return the sidecar for a session."""
    return Follower(_repositories(plan), lambda: _tools(plan), _name(), plan.policy.git_import)


def set_up(plan: Plan) -> list[int]:
    """Make the agent's git directories; they are in use while the descriptors that are returned are open."""
    for own in plan.git:
        if own.real:
            git_private.find_moved(own)
    for private in dict.fromkeys((*_repositories(plan), *_left(plan))):
        if git_state.is_known(private) and not git_state.settled(private):
            with git_state.Alone(private) as final:
                if final:
                    _recover(plan, private)
    held = [git_private.set_up(own, git_state.settled) for own in plan.git if own.real]
    for own in plan.git:
        if own.real and own.ref_format != "files":
            _read_base(plan, own.private)
    return held


def _read_base(plan: Plan, private: str) -> None:
    """Ask git for the refs that both sides start with: only git reads this format."""
    from claudebox.git import importer

    try:
        importer.read_base(private, _tools(plan))
    except ClaudeboxError as error:
        console.warn(f"git: {error.message}")


def adopt(plan: Plan) -> tuple[list[str], list[str]]:
    """Import a repository that the agent made where there was none; return its branches, and lines to tell."""
    for own in plan.git:
        if own.real or not os.path.lexists(f"{own.directory}/HEAD"):
            continue
        from claudebox.git import importer
        from claudebox.git import report as git_report

        with git_state.Alone(own.private) as final:
            if not final:
                continue
            pinned = next((row.pinned for row in plan.mounts if row.source == own.worktree and row.pinned), None)
            if pinned not in (None, identify(own.worktree)):
                place = shorten(own.worktree, 200)
                return [], [f"git: a repository was made inside, and stays there: `{place}` was replaced or moved"]
            git_private.write_layout(own)
            if plan.policy.git_import != "auto":
                return [], ["git: a repository was made inside; `claudebox sync` brings it here"]
            try:
                return git_report.divide(importer.adopt(own.private, _tools(plan), _name()))
            except ClaudeboxError as error:
                return [], [f"git: {error.message}"]
            except OSError as error:
                return [], [f"git: {git_state.describe_error(error, own.private)}; `claudebox sync` goes on"]
    return [], []


def _left(plan: Plan) -> Iterator[str]:
    """Yield private directories of repositories under earlier names, and of one that was being adopted."""
    for directory in dict.fromkeys(os.path.dirname(own.private) for own in plan.git):
        for name in list_names(directory):
            private = f"{directory}/{name}"
            if git_state.has_state(private) and os.path.lexists(git_state.read_layout(private).common):
                yield private


def _recover(plan: Plan, private: str) -> None:
    """Import the work of a killed session."""
    from claudebox.git import importer
    from claudebox.git import report as git_report

    try:
        outward = plan.policy.git_import == "auto"
        if outward:
            done = importer.finish(private, _tools(plan), _name())
        else:
            done = {private: importer.bring_back(private, _tools(plan), _name(), outward=False, final=True)}
    except ClaudeboxError as error:
        console.warn(f"git: {error.message}")
    except OSError as error:
        console.warn(f"git: {git_state.describe_error(error, private)}")
    else:
        # What still stays inside is named at the end of each session.
        for line in git_report.lines({path: result.replace(refused=()) for path, result in done.items()}):
            console.note(line)


def _repositories(plan: Plan) -> tuple[str, ...]:
    """Return the private directories, submodules before what is around them."""
    rows = sorted((own for own in plan.git if own.real), key=lambda own: -own.place.count("modules/"))
    return tuple(own.private for own in rows)


def _tools(plan: Plan) -> Tools:
    from claudebox.git.sandbox import Tools

    path = next((row.value for row in plan.variables if row.name == "PATH"), "/usr/bin:/bin")
    return Tools(plan.bwrap, path, plan.seccomp)


def _name() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
