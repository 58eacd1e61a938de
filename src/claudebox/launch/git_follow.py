"""The sidecar that follows git in both directions while a session runs, and brings everything back at its end (GIT-03).

A commit or a switch inside shows on the host within a second, one on the host shows inside. The work is done in a
process of its own, which is started when the session has lasted for a moment: a launch is not held up, a short session
does not pay for it, and the user's terminal never waits for it but at the end.
"""

from __future__ import annotations

import os
import time

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.launch import git_cleanup, git_state
from claudebox.launch.sidecars import Sidecar
from claudebox.plan.bwrap_args import IGNORED_SIGNALS
from claudebox.syscalls import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from claudebox.launch.git_result import ImportResult
    from claudebox.launch.git_sandbox import Tools

    Import = Literal["auto", "ask", "manual"]

_QUIET, _MOST_WAIT, _PAUSE = 0.2, 0.8, 1.0  # seconds: after the last event; after the first; between two imports
_FIRST, _NEVER = 0.7, 3600.0  # after which it is started; after which the launcher need not look again
_POLL = 2.0  # between two looks where nothing can be watched
_MOST_WATCHES = 400
_PATIENCE = 300.0  # seconds that the end may take
_MOVED = "+ "  # begins lines of the child that say what became of a branch
_LISTEN, _BELATED = 0.1, 0.5  # between two looks for signals; for so long Ctrl+C was meant for the agent
_UNFINISHED = ("rebase-merge", "rebase-apply", "sequencer")
# Files whose change concerns the other side; besides everything below `refs`.
_TOLD = ("HEAD", "packed-refs", "tables.list")
_MAX_TEXT = 1 << 20


class Follower(Sidecar):
    """The process, from before the sandbox starts until everything has come back."""

    title = "bringing commits back"

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
        self._host: dict[str, str] = {}  # and those of the real repositories

    def begin(self, _files: tuple[tuple[str, int], ...] = ()) -> None:
        """Write down what both sides are like."""
        self._seen = {path: git_state.read_state(path).seen for path in self._repositories}
        self._host = {path: git_state.stamp_host(path) for path in self._repositories}
        for path in self._repositories:
            try:
                git_cleanup.remove(f"{path}/old")  # what set-up has replaced, now that nobody waits
            except OSError:  # another session does it, or the next set-up
                continue

    def attach(self, payload: int) -> None:  # noqa: ARG002 - a sidecar is told; this one has nothing to do with it
        """Take the time: the sandbox is complete."""
        self._due = time.monotonic() + _FIRST

    def look(self) -> float:
        """Start the process when it is time; return in how many seconds to look again."""
        left = self._due - time.monotonic()
        if self._child or left > 0:
            return _NEVER if self._child else left
        self._start(following=True)
        return _NEVER

    def _start(self, *, following: bool) -> None:
        from claudebox.launch import process

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line, line = ours.detach(), theirs.detach()

        def body() -> None:
            work = _Following(line, self._repositories, self._tools(), self._session, self._mode)
            work.run(self._host) if following else work.serve()

        try:
            self._child = process.fork(body, (line,))
        except OSError:
            os.close(self._line)
            raise
        finally:
            os.close(line)

    def finish(self) -> tuple[str, ...]:
        """Bring everything back, after a question if that is wanted, and say what came."""
        if not self._due:
            return ()
        try:
            return () if self._is_untouched() else self._finish()
        finally:
            if self._child:
                from claudebox.launch import process

                process.end(self._child)
                self._child = 0
                os.close(self._line)

    def _is_untouched(self) -> bool:
        """Return whether nothing has happened in any repository; then nobody has to be asked."""
        return all(
            git_state.read_state(path).seen == seen and git_state.settled(path) for path, seen in self._seen.items()
        )

    def _finish(self) -> tuple[str, ...]:
        if not self._child:
            self._start(following=False)
        if self._mode == "manual":
            return self._ask(b"left\n")
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
                return ("git: nothing was brought back; `claudebox --import` does it",)
        lines = self._ask(b"end\n")
        self.moved = tuple(line.removeprefix(_MOVED) for line in lines if line.startswith(_MOVED))
        return tuple(line for line in lines if not line.startswith(_MOVED))

    def _ask(self, word: bytes) -> tuple[str, ...]:
        """Send a word and return the lines of the answer."""
        import select

        try:
            os.write(self._line, word)
        except OSError:
            pass  # it has ended, which the answer says
        answer, begun = b"", time.monotonic()
        while not answer.endswith(b"\0") and len(answer) < _MAX_TEXT:
            if not select.select([self._line], [], [], _LISTEN)[0]:
                passed = time.monotonic() - begun
                if _is_asked_to_end(belated=passed < _BELATED):
                    return ("git: bringing back was interrupted; `claudebox --import` goes on with it",)
                if passed > _PATIENCE:
                    return ("git: bringing back takes too long; `claudebox --import` goes on with it",)
                continue
            piece = os.read(self._line, 65536)
            if not piece:
                return ("git: the process that brings back has ended; `claudebox --import` goes on with it",)
            answer += piece
        return tuple(line for line in answer[:-1].decode("utf-8", "surrogateescape").split("\n") if line)


def _is_asked_to_end(*, belated: bool) -> bool:
    """Take a signal that waits, if one does, and return whether it ends us; all are blocked since the session began."""
    endings = [number for number in IGNORED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    found = signal.sigtimedwait(endings, 0)
    return found is not None and not (belated and found.si_signo == signal.SIGINT)


class _Following:
    """In the process: what is watched, and what has come back so far."""

    def __init__(self, line: int, repositories: tuple[str, ...], tools: Tools, session: str, mode: Import) -> None:
        from claudebox.launch.inotify import Watcher

        self._line, self._tools, self._session, self._mode = line, tools, session, mode
        self._repositories = repositories
        self._watcher = Watcher()
        self._complete = False
        self._stamps: dict[str, str] = {}  # of both sides, where not everything can be watched
        self._done: dict[str, ImportResult] = {}

    def serve(self) -> None:
        """Do what the launcher asks for, and no more: the session is over."""
        while self._answer(self._hear()):
            pass

    def run(self, host: dict[str, str]) -> None:
        """Follow until the end is asked for, or the launcher has gone; `host` is what was there at the start."""
        import select

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
                word = self._hear()
                if not self._answer(word):
                    return
                continue
            if ready:
                if self._concerned():
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

    def _watch(self) -> bool:
        """Watch both sides of every repository; return whether that is all that has to be watched."""
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

    def _concerned(self) -> bool:
        """Read all events and return whether one of them concerns the other side."""
        concerned = again = False
        for directory, name, is_directory in self._watcher.events():
            again |= is_directory
            concerned |= not name.endswith(".lock") and ("/refs" in directory or is_directory or name in _TOLD)
        if again:
            self._complete = self._watch()
        return concerned

    def _import(self, path: str) -> None:
        from claudebox.launch import git_import, git_result

        if any(os.path.lexists(f"{path}/own/{name}") for name in _UNFINISHED):
            return  # HEAD moves to and fro; the end of it is an event

        def bring(path: str) -> None:
            result = git_import.bring_back(path, self._tools, self._session, outward=self._mode == "auto")
            self._done[path] = git_result.join(self._done[path], result) if path in self._done else result

        self._attempt(path, bring)

    def _end(self, path: str) -> None:
        from claudebox.launch import git_import, git_result

        with git_state.Alone(path) as final:
            done = git_import.finish(path, self._tools, self._session, final=final)
        for module, result in done.items():
            self._done[module] = git_result.join(self._done[module], result) if module in self._done else result

    def _attempt(self, path: str, action: Callable[[str], None]) -> None:
        from claudebox.launch import git_result

        try:
            action(path)
        except (ClaudeboxError, OSError) as error:
            said = error.message if isinstance(error, ClaudeboxError) else git_state.describe_error(error, path)
            before = self._done.get(path, git_result.ImportResult())
            self._done[path] = before.replace(refused=(), notes=(said,))

    def _answer(self, word: bytes) -> bool:
        """Do what the launcher asks for; return whether to go on."""
        from claudebox.launch import git_report

        lines: list[str] = []
        if word.startswith(b"end"):
            for path in self._repositories:
                if not git_state.settled(path):
                    self._attempt(path, self._end)
            moved, rest = git_report.divide(self._done)
            lines = [*(f"{_MOVED}{row}" for row in moved), *rest]
        elif word.startswith(b"show"):
            lines = [line for path in self._repositories for line in git_report.preview(path, self._tools)]
        elif word.startswith(b"left"):
            lines = git_report.left(self._repositories)
        else:
            return False
        text = "\n".join(lines).replace("\0", "")
        view = memoryview(text.encode("utf-8", "surrogateescape")[: _MAX_TEXT - 1] + b"\0")
        while view:
            view = view[os.write(self._line, view) :]
        return word.startswith(b"show")

    def _hear(self) -> bytes:
        try:
            return os.read(self._line, 64)
        except OSError:
            return b""
