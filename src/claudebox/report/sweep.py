"""Finding everything in a tree that changed since a moment, for the price of one `find`.

The time at which an inode changed cannot be set by a program inside, so each entry is asked for its own. A name that
moved into place with its directory keeps its time: in a directory that is new at its path everything counts. Large
trees are divided among the processors.
"""

from __future__ import annotations

import marshal
import os
import time

from claudebox.report import tree
from claudebox.syscalls import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Names = tuple[str, ...] | None  # None: not known
    Listing = dict[str, tuple[int, Names]]  # directory -> its inode and what stands in it
    Waiting = list[tuple[str, int, int, bool, bool]]  # directory, device, inode; is it new at its path; has it changed

BUDGET = 3.0  # seconds
_ALONE = 4000  # entries that one process reads before it asks for help
_WIDE = 8  # directories for each process, so that all have about the same to do
_MOST_PROCESSES = 8  # starting one takes a millisecond
_LETTERS = {0o040000: "/d", 0o120000: "/l", 0o140000: "/s", 0o010000: "/p", 0o020000: "/c", 0o060000: "/b"}


def coded(name: str, mode: int) -> str:
    """Return a name with what it is: a file as it is, `/x` behind a program, `/d` behind a directory, ..."""
    return name + (_LETTERS.get(mode & tree.KIND, "") or ("/x" if mode & 0o111 else ""))


class Sweep:
    """One look at one tree."""

    def __init__(
        self,
        root: str,
        since: float,
        before: Mapping[str, tuple[int, Names]],
        deadline: float,
        passed_over: str | None = None,
        reopened: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Take what is known of directories from before; paths are relative to the root, which itself is empty."""
        self._passed_over = passed_over
        self._root, self._since, self._before, self._deadline = root, since, before, deadline
        self._top = -1
        self._entries = 0
        self._closed = tree.Closed(since, reopened)
        self.changed: list[tuple[str, int, bool]] = []  # path, mode, whether its own time is new
        self.gone: list[tuple[str, str]] = []  # path and letter
        self.unlisted: list[str] = []  # directories that may have lost something, nobody knows what
        self.listing: Listing = {}
        self.unseen: list[tuple[str, str]] = []  # path, why
        self.opened = self._closed.opened  # directories that denied us reading since: path, mode

    def run(self) -> Sweep:
        """Look at everything, or until the time is up."""
        if not os.access(self._root, os.R_OK | os.X_OK):
            self._closed.open(None, self._root, (None, self._before.get("", (0, None))[0]))
            self.opened[:] = (("", mode) for _, mode in self.opened)
        try:
            self._top = os.open(self._root, tree.DIRECTORY)
        except OSError as error:
            self.unseen.append(("", error.strerror or str(error)))
            return self
        try:
            status = os.fstat(self._top)
            new = status.st_ctime >= self._since
            waiting: Waiting = [("", status.st_dev, status.st_ino, False, new)]
            parts = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
            while waiting:
                wide = _WIDE if self._entries < 4 * _ALONE else 1
                if parts > 1 and self._entries > _ALONE and len(waiting) >= wide * parts:
                    self._divide(waiting, parts)
                    return self
                waiting = self._level(waiting, most=_ALONE if parts > 1 else 0)
        finally:
            self._closed.close()
            os.close(self._top)
        return self

    def _level(self, waiting: Waiting, *, most: int = 0) -> Waiting:
        """Look at directories, and return those that stand in them; a long level is given back in part."""
        below: Waiting = []
        first = self._entries
        for number, (path, device, inode, moved, new) in enumerate(waiting):
            if time.monotonic() > self._deadline:
                self.unseen += ((row[0], tree.OUT_OF_TIME) for row in waiting[number:])
                return below
            if most and self._entries - first > most:
                return waiting[number:] + below
            rows, problem = tree.read_directory(self._top, path, self._deadline, (device, inode), self._closed)
            if problem:
                self.unseen.append((path, problem))
            self._entries += len(rows) + 1
            names = self._directory(path, rows, below, moved=moved)
            if not problem:
                self.listing[path] = (inode, names)
                if new or moved:
                    self._compare(path, names)
        return below

    def _directory(self, path: str, rows: list[tree.Row], below: Waiting, *, moved: bool) -> tuple[str, ...]:
        since, changed, before = self._since, self.changed, self._before
        prefix = f"{path}/" if path else ""
        names: list[str] = []
        for name, status in rows:
            mode = status.st_mode
            new = status.st_ctime >= since
            if mode & tree.KIND == tree.IS_DIRECTORY:
                where = prefix + name
                names.append(f"{name}/d")
                if where == self._passed_over:
                    continue
                known = before.get(where)
                elsewhere = moved or (new and (known is None or known[0] != status.st_ino))
                below.append((where, status.st_dev, status.st_ino, elsewhere, new))
                if new or moved:
                    changed.append((where, mode, new))
            else:
                names.append(name if mode & 0o170111 == tree.IS_FILE else coded(name, mode))
                if new or moved:
                    changed.append((prefix + name, mode, new))
        return tuple(names)

    def _compare(self, path: str, names: tuple[str, ...]) -> None:
        """Note what a directory that changed has lost; without a change of its own it has lost nothing."""
        known = self._before.get(path, (0, None))[1]
        if known is None:
            self.unlisted.append(path)
            return
        present = {name.partition("/")[0] for name in names}
        prefix = f"{path}/" if path else ""
        rows = (name.partition("/") for name in known)
        self.gone += ((prefix + bare, letter) for bare, _, letter in rows if bare not in present)

    def _divide(self, waiting: Waiting, parts: int) -> None:
        """Look at what is left in several processes; what one of them does not bring back was not looked at."""
        helpers: dict[int, tuple[int, Waiting]] = {}
        for part in range(1, parts):
            share = waiting[part::parts]
            outlet, inlet = os.pipe()
            try:
                process = os.fork()
            except OSError:  # no room for another process: this one does it all
                os.close(outlet)
                os.close(inlet)
                waiting = waiting[0::parts] + [row for rest in range(part, parts) for row in waiting[rest::parts]]
                break
            if not process:
                self._help(share, inlet)
            os.close(inlet)
            helpers[outlet] = (process, share)
        else:
            waiting = waiting[0::parts]
        while waiting:
            waiting = self._level(waiting)
        for outlet, (process, share) in helpers.items():
            self._collect(outlet, process, share)

    def _help(self, waiting: Waiting, inlet: int) -> None:
        status = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            self.changed, self.gone, self.unlisted, self.listing, self.unseen = [], [], [], {}, []
            self._closed = tree.Closed(self._since)
            while waiting:
                waiting = self._level(waiting)
            self._closed.close()
            opened = self._closed.opened
            found = (self.changed, self.gone, self.unlisted, self.listing, self.unseen, opened)
            view = memoryview(marshal.dumps(found))
            while view:
                view = view[os.write(inlet, view) :]
            status = 0
        finally:
            os._exit(status)

    def _collect(self, outlet: int, process: int, share: Waiting) -> None:
        import select

        pieces: list[bytes] = []
        waiting = select.poll()
        waiting.register(outlet, select.POLLIN)
        while waiting.poll(max(0.0, self._deadline + 1 - time.monotonic()) * 1000):
            piece = os.read(outlet, 1 << 20)
            if not piece:
                break
            pieces.append(piece)
        else:
            os.kill(process, signal.SIGKILL)
        os.close(outlet)
        _, status = os.waitpid(process, 0)
        if status:
            self.unseen += ((row[0], "the process that looked at it failed") for row in share)
            return
        changed, gone, unlisted, listing, unseen, opened = marshal.loads(b"".join(pieces))  # noqa: S302 - our own child
        self.changed += changed
        self.gone += gone
        self.unlisted += unlisted
        self.listing.update(listing)
        self.unseen += unseen
        self.opened += opened
