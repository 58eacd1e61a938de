"""After a session: what changed in the project that the host could execute, in bounded time (D11-D13, D17-D22, C17).

The time at which an inode changed cannot be set by a program, so nothing needs to be remembered from before: whatever
changed since the session began is looked at. A directory that did not change and has no directories in it is skipped
at first; if time is left, files in such directories are looked at too, for those that were changed in their place.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.console import clean, shorten
from claudebox.tables import project_paths
from claudebox.tables.secret_patterns import file_looks_secret
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.model import Guarded

BUDGET = 0.2  # seconds
_SLACK = 0.02  # the clock of a filesystem is a tick behind
_SHOWN = 3  # of each kind, so that everything fits on a screen
_MOST_CHANGED = 20000
_CHECK_EVERY = 256  # files between two looks at the clock
_HEAVY = frozenset((
    "node_modules", ".venv", "venv", "target", "vendor", "__pycache__", ".cache", ".tox", ".mypy_cache", "dist",
    "build",
))  # fmt: skip
_BARE = frozenset(("objects", "refs"))
# In the git directory: what a later command of the person would go on with.
_UNDER_WAY = (
    ("rebase-merge/git-rebase-todo", "a rebase is under way: going on with it runs what is listed there"),
    ("rebase-apply", "a rebase is under way"),
    ("sequencer/todo", "a sequence of commits is under way"),
    ("objects/info/alternates", "git borrows objects from there"),
)
_KINDS = (  # in the order of their danger
    ("protected", "protected, and changed by something outside of the sandbox, or since it was opened"),
    ("repository", "repositories that are new or changed: git of the host runs what they name, even from above"),
    ("git", "left in the git directory"),
    ("privilege", "files that run with somebody else's rights"),
    ("socket", "sockets and pipes"),
    ("link", "links that lead out of the project"),
    ("secret", "files that are named like secrets"),
    ("obeyed", "files that tools of the host obey"),
    ("program", "programs and scripts"),
)


class Report(Value):
    """What was found, by kind."""

    found: dict[str, set[str]]
    complete: bool
    changed: tuple[str, ...] = ()  # every file that changed, for those who look into them

    def lines(self) -> Iterator[str]:
        """Yield one screen, cleaned; nothing if there is nothing to say."""
        if any(self.found.values()):
            yield "claudebox: changed during the session; look at it before tools of the host use it:"
        for kind, meaning in _KINDS:
            rows = sorted(self.found.get(kind, ()))
            if rows:
                more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
                shown = [f"    {shorten(row, 100)}" for row in rows[:_SHOWN]]
                yield f"  {meaning}:"
                yield from shown[:-1]
                yield shown[-1] + more
        if not self.complete:
            yield "claudebox: the project is too large to look at every file: there may be more changes"


class Sweep:
    """One look at a project."""

    def __init__(self, workdir: str, started: float, *, budget: float = BUDGET) -> None:
        self._workdir = workdir.rstrip("/")
        self._since = started - _SLACK
        self._deadline = time.monotonic() + budget
        self._names = {path: why for path, why in project_paths.REPORTED if "/" not in path}
        self._found: dict[str, set[str]] = {kind: set() for kind, _ in _KINDS}
        self._standing: frozenset[str] = frozenset()
        self._files_changed: list[str] = []

    def run(self, guarded: Iterable[Guarded], git_dir: str, standing: frozenset[str]) -> Report:
        """Look, until everything was seen or the time is up; `standing` are stand-ins of other sessions."""
        self._standing = standing
        for row in guarded:
            self._protected(row)
        for path, why in project_paths.REPORTED:
            if "/" in path and self._changed(f"{self._workdir}/{path}"):
                self._add("obeyed", f"{self._workdir}/{path}", why)
        for part, why in _UNDER_WAY if git_dir else ():
            if self._changed(f"{git_dir}/{part}"):
                self._add("git", f"{git_dir}/{part}", why)
        later, complete = self._walk(git_dir)
        if complete:
            complete = all(self._files(directory) for directory in later)
        return Report(self._found, complete, tuple(self._files_changed))

    def _add(self, kind: str, path: str, why: str = "") -> None:
        shown = path[len(self._workdir) + 1 :] if path.startswith(f"{self._workdir}/") else path
        self._found[kind].add(f"{clean(shown)}: {why}" if why else clean(shown))

    def _changed(self, path: str) -> bool:
        try:
            return os.lstat(path).st_ctime >= self._since
        except OSError:
            return False

    def _protected(self, row: Guarded) -> None:
        if row.kind == "whole" or row.path in self._standing:
            return
        try:
            status = os.lstat(row.path)
        except OSError:
            if row.kind == "present":
                self._add("protected", row.path, f"is gone; {row.reason}")
            return
        directory = stat.S_ISDIR(status.st_mode)
        replaced = row.identity is not None and (status.st_dev, status.st_ino) != row.identity
        # A directory also changes when something harmless in it does: the names in it tell more.
        changed = status.st_ctime >= self._since
        if row.kind == "missing" or replaced or (changed and (row.kind == "link" or not directory)):
            self._add("protected", row.path, row.reason)
        elif directory and row.kind == "present":
            self._protected_names(row)

    def _protected_names(self, row: Guarded) -> None:
        try:
            with os.scandir(row.path) as entries:
                for _, entry in zip(range(_CHECK_EVERY), entries, strict=False):
                    if entry.stat(follow_symlinks=False).st_ctime >= self._since:
                        self._add("protected", entry.path, row.reason)
        except OSError:
            return

    def _walk(self, git_dir: str) -> tuple[list[str], bool]:
        """Look at every directory that changed; return those that did not, and whether time sufficed."""
        waiting = [self._workdir or "/"]
        heavy: list[str] = []  # last, because a person's own files are elsewhere
        later: list[str] = []
        while waiting or heavy:
            if time.monotonic() > self._deadline:
                return later, False
            directory = waiting.pop() if waiting else heavy.pop()
            try:
                status = os.lstat(directory)
                changed = status.st_ctime >= self._since
                if not changed:
                    later.append(directory)
                    if status.st_nlink == 2:  # no directories in it, on filesystems that count them
                        continue
                names: set[str] = set()
                with os.scandir(directory) as entries:
                    for entry in entries:
                        name = entry.name
                        if name == ".git":
                            if entry.path != git_dir and entry.path not in self._standing:
                                self._nested(entry.path)
                        elif entry.is_dir(follow_symlinks=False):
                            names.add(name)
                            (heavy if name in _HEAVY else waiting).append(entry.path)
                        elif changed or name in self._names:
                            self._file(entry)
                            names.add(name)
                if names >= _BARE and (changed or self._changed(f"{directory}/config")):
                    self._bare(directory)
            except OSError:
                continue
        return later, True

    def _files(self, directory: str) -> bool:
        """Look at files in a directory that itself did not change; return whether time sufficed."""
        if time.monotonic() > self._deadline:
            return False
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries, 1):
                    if not entry.is_dir(follow_symlinks=False):
                        self._file(entry)
                    if number % _CHECK_EVERY == 0 and time.monotonic() > self._deadline:
                        return False
        except OSError:
            pass
        return True

    def _file(self, entry: os.DirEntry[str]) -> None:
        try:
            self._look(entry, entry.stat(follow_symlinks=False))
        except OSError:  # it has gone meanwhile
            return

    def _look(self, entry: os.DirEntry[str], status: os.stat_result) -> None:
        if status.st_ctime < self._since or entry.path in self._standing:
            return
        mode = status.st_mode
        if stat.S_ISREG(mode) and len(self._files_changed) < _MOST_CHANGED:
            self._files_changed.append(entry.path)
        if stat.S_ISLNK(mode):
            target = os.path.normpath(os.path.join(os.path.dirname(entry.path), os.readlink(entry.path)))
            if not f"{target}/".startswith(f"{self._workdir}/"):
                self._add("link", entry.path, f"leads to {target}")
        elif not stat.S_ISREG(mode):
            self._add("socket", entry.path)
        elif mode & (stat.S_ISUID | stat.S_ISGID):
            self._add("privilege", entry.path)
        elif file_looks_secret(entry.name) and entry.name not in self._names:
            self._add("secret", entry.path)
        elif entry.name in self._names:
            self._add("obeyed", entry.path, self._names[entry.name])
        elif any(entry.path.startswith(f"{self._workdir}/{tree}/") for tree, _ in project_paths.REPORTED_TREES):
            self._add("obeyed", entry.path, next(w for t, w in project_paths.REPORTED_TREES if f"/{t}/" in entry.path))
        elif mode & 0o111 and not entry.name.endswith(".sample"):
            self._add("program", entry.path)

    def _nested(self, path: str) -> None:
        parts = ("", "/config", "/hooks", "/commondir", "/config.worktree")
        if any(self._changed(f"{path}{part}") for part in parts) or self._changed_within(f"{path}/hooks"):
            self._add("repository", path)

    def _changed_within(self, directory: str) -> bool:
        try:
            return any(self._changed(f"{directory}/{name}") for name in os.listdir(directory)[:_CHECK_EVERY])
        except OSError:
            return False

    def _bare(self, directory: str) -> None:
        if os.path.lexists(f"{directory}/HEAD") and not directory.endswith("/.git"):
            self._add("repository", directory, "has the shape of a bare repository")
