"""The snapshots of a project in one SQLite database: start and end of each session, and contents by SHA-256.

No sandbox of an agent sees it. Sessions are ordered by number, because clocks are set back. SQLite rolls back what a
killed process was writing.
"""

from __future__ import annotations

import fcntl
import marshal
import os

from claudebox.base.errors import ClaudeboxError
from claudebox.undo import manifest
from claudebox.undo.manifest import find_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    from claudebox.undo.manifest import Snapshot


DATABASE = "snapshots.sqlite"
UNDO = "-undo"  # suffix of snapshots that were taken before an undo
_VERSION = 6  # before: other rows, and files of our own format
_MARSHAL = 2  # the oldest format that holds all we write, read by every Python
_LOCK = "lock"
_BATCH = 8 << 20  # bytes written at once
_WAIT = 2.0  # seconds for other sessions of this project; the end of a session waits as well
_SWEEP = 8  # contents are swept with every so many sessions
_UNCHANGED = 2  # in `whole`, for 1, of a session that changed nothing
_SCHEMA = (
    "PRAGMA auto_vacuum = FULL",
    "DROP TABLE IF EXISTS session",
    """CREATE TABLE session (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, root TEXT, whole INTEGER,
    start BLOB, finish BLOB)""",
    "DROP TABLE IF EXISTS content",
    "CREATE TABLE content (digest BLOB PRIMARY KEY, data BLOB)",
    f"PRAGMA user_version = {_VERSION}",
)
_REMEDY = "if they are damaged, move the directory away; the next session begins a new one"


class SnapshotStore:
    """The database of a project."""

    def __init__(self, directory: str, *, writing: bool = True) -> None:
        self.directory = directory
        self._known: set[bytes] | None = None  # digests
        self._new: list[tuple[object, ...]] = []  # contents that are not written yet
        self._size = 0
        self._lock = -1
        try:
            import sqlite3
        except ImportError:  # Python can be built without
            raise ClaudeboxError("undo is not available: this Python has no `sqlite3` module") from None
        self._error = sqlite3.Error
        if writing:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        if writing or os.path.exists(f"{directory}/{DATABASE}"):
            flags = os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY)
            self._lock = os.open(f"{directory}/{_LOCK}", flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # no sweep meanwhile
        place = f"{directory}/{DATABASE}" if self._lock >= 0 else ":memory:"
        try:
            self._db = sqlite3.connect(place, timeout=_WAIT, isolation_level=None)
        except self._error as error:
            raise ClaudeboxError(f"the snapshots in `{directory}` cannot be opened: {error}") from None
        version = self._read("PRAGMA user_version")[0][0]
        if version > _VERSION:
            raise ClaudeboxError(f"the snapshots in `{directory}` are of a later version of claudebox")
        self._run("PRAGMA synchronous = NORMAL")
        if version < _VERSION:
            self._create()

    def _create(self) -> None:
        """Make the tables, in the place of what an earlier version left."""
        import shutil

        for name in os.listdir(self.directory) if self._lock >= 0 else ():
            if name != _LOCK and not name.startswith(DATABASE):
                path = f"{self.directory}/{name}"
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)
        for words in _SCHEMA:
            self._run(words)

    def close(self) -> None:
        self._db.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _run(self, words: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._db.execute(words, values)
        except self._error as error:
            raise ClaudeboxError(f"the snapshots in `{self.directory}` cannot be used: {error}", hint=_REMEDY) from None

    def _read(self, words: str, *values: object) -> list[Any]:
        cursor = self._run(words, *values)
        try:
            return cursor.fetchall()
        except self._error as error:
            raise ClaudeboxError(f"the snapshots in `{self.directory}` cannot be read: {error}", hint=_REMEDY) from None

    def _run_all(self, words: str, rows: list[tuple[object, ...]]) -> None:
        """Execute for many rows, all of them or none."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(words, rows)
            self._db.execute("COMMIT")
        except self._error as error:
            self._db.rollback()
            self._known = None
            raise ClaudeboxError(f"the snapshots in `{self.directory}` cannot be written: {error}") from None

    def save(self) -> None:
        """Write the contents that were kept."""
        rows, self._new, self._size = self._new, [], 0
        if rows:
            self._run_all("INSERT OR REPLACE INTO content VALUES (?, ?)", rows)

    def draw_number(self) -> int:
        """Return a number for a new session, greater than any before."""
        return self._run("INSERT INTO session (whole) VALUES (0)").lastrowid or 0

    def names(self) -> list[str]:
        """Return the names of the sessions that have a snapshot, oldest first."""
        return [name for (name,) in self._read("SELECT name FROM session WHERE whole ORDER BY number")]

    def find_start(self, session: str) -> Snapshot | None:
        """Return the project when a session began, also if its snapshot was cut off."""
        for (content,) in self._read("SELECT start FROM session WHERE name = ?", session):
            return self._unpack(session, content)
        return None

    def read_snapshot(self, session: str) -> Snapshot:
        """Return the project when a session began."""
        if (found := self.find_start(session)) is None:
            raise ClaudeboxError(f"there is no snapshot of `{session}` in `{self.directory}`")
        return found

    def read_end(self, session: str) -> Snapshot | None:
        """Return the project when a session ended; None if that was not recorded."""
        for (content,) in self._read("SELECT finish FROM session WHERE name = ?", session):
            return self._unpack(session, content) if content is not None else None
        return None

    def read_unfinished(self, but: str = "") -> Snapshot | None:
        """Return the state before the first of several killed undos; None if a session has begun since."""
        first = ""
        for name in reversed([name for name in self.names() if name != but]):
            if not name.endswith(UNDO) or self.read_end(name) is not None:
                break
            first = name
        return self.read_snapshot(first) if first else None

    def _unpack(self, session: str, content: bytes) -> Snapshot:
        import zlib

        try:
            return manifest.unpack(marshal.loads(zlib.decompress(content)))  # noqa: S302 - nobody else writes it
        except (EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            raise ClaudeboxError(f"the snapshot `{session}` in `{self.directory}` cannot be read") from None

    def write_snapshot(self, session: str, snapshot: Snapshot, number: int = 0) -> None:
        """Write the start of a session and its contents; draws a number if there is none."""
        for (known,) in self._read("SELECT number FROM session WHERE name = ?", session):
            number = number or known
        self._replace(number or self.draw_number(), session, snapshot)

    def write_partial(self, session: str, snapshot: Snapshot, number: int = 0) -> None:
        """Keep what a snapshot that was cut off has: all names, and some contents. It cannot be undone."""
        self._replace(number or self.draw_number(), session, snapshot, whole=False)

    def _replace(self, number: int, session: str, snapshot: Snapshot, *, whole: bool = True) -> None:
        words = "INSERT OR REPLACE INTO session (number, name, root, whole, start) VALUES (?, ?, ?, ?, ?)"
        self.save()
        self._run(words, number, session, os.fsencode(snapshot.root), whole, _pack(snapshot))

    def write_end(self, session: str, snapshot: Snapshot, *, changed: bool = True) -> None:
        """Write the end of a session whose start is known."""
        self.save()
        words = "UPDATE session SET finish = ?, whole = whole * ? WHERE name = ?"
        self._run(words, _pack(snapshot), 1 if changed else _UNCHANGED, session)

    def newest_like(self, root: str) -> Snapshot | None:
        """Return the newest snapshot of a directory: what has not changed since is not read again."""
        words = "SELECT coalesce(finish, start) FROM session WHERE root = ? ORDER BY number DESC LIMIT 1"
        for (content,) in self._read(words, os.fsencode(root)):
            return self._unpack(root, content)
        return None

    def keep(self, content: bytes) -> bytes:
        """Keep a content; return its digest."""
        import zlib

        name = find_digest(content)
        if name not in self._digests():
            packed = zlib.compress(content, 1)
            self._digests().add(name)
            self._new.append((name, packed))
            self._size += len(packed)
            if self._size > _BATCH:
                self.save()
        return name

    def _digests(self) -> set[bytes]:
        if self._known is None:
            self._known = {digest for (digest,) in self._read("SELECT digest FROM content")}
        return self._known

    def read_content(self, name: bytes) -> bytes:
        """Return a content, given its digest; raise OSError if it is missing or damaged."""
        import zlib

        try:
            for (packed,) in self._read("SELECT data FROM content WHERE digest = ?", name):
                content = zlib.decompress(packed)
                if find_digest(content) == name:
                    return content
        except (ClaudeboxError, zlib.error):
            pass
        raise OSError("its content is missing in the snapshots, or damaged there")

    def prune(self, keep: int) -> None:
        """Delete all but the newest sessions and sweep from time to time, unless another process uses the store.

        Those that changed nothing take no place: of them only the last session stays, for `claudebox changes`.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the kernel has dropped the shared lock
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return
        try:
            words = "DELETE FROM session WHERE whole = ? AND number < (SELECT max(number) FROM session)"
            self._run(words, _UNCHANGED)
            kept = self._read("SELECT number FROM session WHERE whole ORDER BY number DESC LIMIT ?", keep)
            if kept and self._read("SELECT 1 FROM session WHERE number < ?", kept[-1][0]):
                self._run("DELETE FROM session WHERE number < ?", kept[-1][0])
                if kept[0][0] % _SWEEP == 0:
                    self.sweep()
        except (ClaudeboxError, OSError):  # damaged: no sweep; the snapshot of this session is written
            return
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def sweep(self) -> None:
        """Remove contents that no snapshot needs; the caller has an exclusive lock."""
        used: set[bytes] = set()
        for row in self._read("SELECT start, finish FROM session"):
            for content in filter(None, row):
                used |= self._unpack("", content).contents()
        self._run_all("DELETE FROM content WHERE digest = ?", [(digest,) for digest in self._digests() - used])
        self._known = None


def _pack(snapshot: Snapshot) -> bytes:
    import zlib

    return zlib.compress(marshal.dumps(manifest.pack(snapshot), _MARSHAL), 1)
