"""The running sessions, and what each can write; a session and a command such as `undo` exclude each other."""

from __future__ import annotations

import fcntl
import os
import time

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_LOCK, Closing, read_at, real_path, write_all
from claudebox.base.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Identity
    from claudebox.plan.records import Plan

    Lineage = tuple[Identity, ...]  # a directory and those above it


DIRECTORY = "live"
_LOCK = "lock"
_CLAIM = ".claim"  # suffix of entries of commands
_LIMIT = 4 << 20


class Presence:
    """One entry, locked for as long as the launcher lives."""

    def __init__(self, state: str) -> None:
        self._directory = open_state(state, DIRECTORY)
        self._name = f"{os.getpid()}.{time.monotonic_ns()}"
        self._entry = -1

    def enter(self, plan: Plan) -> None:
        """Record what this session can write; refuse while a command such as `undo` is at work there."""
        written = (mount.source for mount in plan.mounts if mount.kind == "bind" and mount.role != "pin")
        self._add((plan.workdir, *written))

    def claim(self, path: str, *more: str) -> None:
        """Keep sessions away from directories; refuse while one can write to them."""
        self._name += _CLAIM
        self._add((path, *more))

    def _add(self, paths: tuple[str, ...]) -> None:
        lineages = [_lineage(real_path(path)) for path in paths]
        with Closing(self._turn()):
            for workdir, others, claimed in self._others():
                if (claimed or self._name.endswith(_CLAIM)) and _overlap(lineages, others):
                    who = "a claudebox command" if claimed else "a session"
                    hint = "wait for its end, or end it; `claudebox sessions` lists sessions"
                    raise ClaudeboxError(f"{who} is at work in `{workdir}`", hint=hint)
            self._entry = os.open(self._name, OPEN_LOCK | os.O_TRUNC, 0o600, dir_fd=self._directory)
            fcntl.flock(self._entry, fcntl.LOCK_EX)
            rows = (" ".join(f"{device}:{inode}" for device, inode in lineage) for lineage in lineages)
            write_all(self._entry, os.fsencode("\0".join((paths[0], *rows))))

    def list_sessions(self) -> list[tuple[int, str, float]]:
        """Return the running launchers: process, project, and start time."""
        with Closing(self._turn()):
            names = [
                name
                for name in os.listdir(self._directory)
                if name != _LOCK and not name.endswith(_CLAIM) and self._is_alive(name)
            ]
            rows = [(name, read_at(self._directory, name, limit=_LIMIT)) for name in names]
            return [
                (int(name.partition(".")[0]), os.fsdecode(content).partition("\0")[0],
                 os.lstat(name, dir_fd=self._directory).st_mtime)
                for name, content in rows if content is not None
            ]  # fmt: skip

    def _turn(self) -> int:
        """Take the lock of the directory: an entry that is being made is not locked yet, and would look dead."""
        lock = os.open(_LOCK, OPEN_LOCK, 0o600, dir_fd=self._directory)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def leave(self) -> None:
        if self._entry >= 0:
            try:
                os.unlink(self._name, dir_fd=self._directory)
            except FileNotFoundError:
                pass
            os.close(self._entry)
        os.close(self._directory)

    def _others(self) -> Iterator[tuple[str, list[Lineage], bool]]:
        """Yield project and writable directories of the others, and whether each is a command; remove dead entries."""
        for name in os.listdir(self._directory):
            if name == _LOCK or not self._is_alive(name):
                continue
            content = read_at(self._directory, name, limit=_LIMIT)
            if content is None:  # fail closed, unless it has just ended
                if not self._is_alive(name):
                    continue
                raise ClaudeboxError(f"`{DIRECTORY}/{name}` in claudebox's state cannot be read", hint="remove it")
            workdir, *rows = os.fsdecode(content).split("\0")
            yield (
                workdir,
                [tuple(_identity(word) for word in row.split()) for row in rows if row],
                name.endswith(_CLAIM),
            )

    def _is_alive(self, name: str) -> bool:
        try:
            entry = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(entry, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=self._directory)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        finally:
            os.close(entry)
        return False


def _identity(word: str) -> Identity:
    device, _, inode = word.partition(":")
    return int(device), int(inode)


def _lineage(path: str) -> Lineage:
    """Return a directory and those above it; none if it does not exist yet: no other session can write to it."""
    lineage = []
    try:
        while True:
            status = os.stat(path)
            lineage.append((status.st_dev, status.st_ino))
            if path == "/":
                return tuple(lineage)
            path = os.path.dirname(path)
    except OSError:
        return ()


def _overlap(ours: list[Lineage], theirs: list[Lineage]) -> bool:
    return any(one and other and (one[0] in other or other[0] in one) for one in ours for other in theirs)


def list_sessions(state: str) -> list[tuple[int, str, float]]:
    """Return the running launchers, without becoming one of them."""
    presence = Presence(state)
    try:
        return presence.list_sessions()
    finally:
        presence.leave()


def is_in_use(state: str) -> bool:
    try:
        return bool(set(os.listdir(f"{state}/{DIRECTORY}")) - {_LOCK})
    except OSError:
        return False
