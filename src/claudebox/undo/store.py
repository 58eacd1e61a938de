"""The snapshots of a project: for each session a manifest of its start and one of its end, and contents in packs.

Nothing of it is mounted in a sandbox of an agent. A manifest appears complete or not at all. Sessions are ordered by
the number that each draws at its start: clocks are set back. Contents that no manifest names are swept away after the
oldest manifests.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import zlib

from claudebox.errors import ClaudeboxError
from claudebox.files import OPEN_LOCK, Closing, read_small, replace_file, write_all
from claudebox.undo import manifest
from claudebox.undo.contents import FORMAT, Contents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.undo.manifest import Snapshot

VERSION = 3
UNDO = "-undo"  # ends the names of snapshots that were taken before an undo
_READABLE = (2, 3)  # 2 has no ends
_START, _END, _FORMER = ".start", ".end", ".snapshot"
_PARTIAL, _CONTENTS, _LOCK, _NUMBER = "partial", "contents", "lock", "number"
_LONGEST = 1 << 30  # bytes of a manifest
_PACKS = 4  # contents are swept when there are so many more packs than snapshots
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotStore:
    """The directory of a project's snapshots."""

    def __init__(self, directory: str, *, writing: bool = True) -> None:
        self.directory = directory
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        if writing:
            os.makedirs(f"{directory}/{_CONTENTS}", mode=0o700, exist_ok=True)
            flags |= os.O_CREAT
        try:
            self._lock = os.open(f"{directory}/{_LOCK}", flags, 0o600)
        except FileNotFoundError:  # nothing was ever written
            self._lock = -1
        else:
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # nothing is swept away meanwhile
        self.contents = Contents(f"{directory}/{_CONTENTS}")

    def close(self) -> None:
        """Let others sweep."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def draw_number(self) -> int:
        """Return the number of a session that begins: greater than any before, whatever the clock says."""
        with Closing(os.open(f"{self.directory}/{_NUMBER}", OPEN_LOCK, 0o600)) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            known = os.pread(held, 32, 0)
            last = max((int(known) if known.isdigit() else 0, *(number for number, _ in self._stems())), default=0)
            os.ftruncate(held, 0)
            write_all(held, b"%d" % (last + 1))
            return last + 1

    def _stems(self) -> list[tuple[int, str]]:
        """Return the sessions whose start is known, by their numbers; those of earlier versions come first."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        found = [(0, name.removesuffix(_FORMER)) for name in names if name.endswith(_FORMER)]
        for name in names:
            number, _, session = name.removesuffix(_START).partition(".")
            if name.endswith(_START) and number.isdigit():
                found.append((int(number), session))
        return sorted(found)

    def names(self) -> list[str]:
        """Return the names of the sessions that have a snapshot, oldest first."""
        return [session for _, session in self._stems()]

    def _stem(self, session: str) -> str:
        number = next((number for number, name in self._stems() if name == session), 0)
        return f"{number:08d}.{session}" if number else session

    def read_snapshot(self, session: str) -> Snapshot:
        """Return the project as it was when a session began."""
        stem = self._stem(session)
        return self._read(stem + (_FORMER if stem == session else _START))

    def read_end(self, session: str) -> Snapshot | None:
        """Return the project as it was when a session ended; nothing if nobody has looked."""
        name = self._stem(session) + _END
        return self._read(name) if os.path.lexists(f"{self.directory}/{name}") else None

    def read_unfinished(self, but: str = "") -> Snapshot | None:
        """Return the present of an undo that was killed, the first of several; nothing if a session has begun since."""
        first = ""
        for name in reversed([name for name in self.names() if name != but]):
            if not name.endswith(UNDO) or self.read_end(name) is not None:
                break
            first = name
        return self.read_snapshot(first) if first else None

    def _read(self, name: str) -> Snapshot:
        packed = b""
        try:
            packed = zlib.decompress(read_small(f"{self.directory}/{name}", limit=_LONGEST) or b"")
            version, plain = marshal.loads(packed)  # noqa: S302 - nobody else writes it
            if version in _READABLE:
                return manifest.unpack(plain)
        except (EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            version = 1 if packed.startswith(b"{") else 0
        if version:
            other = "an earlier" if version < VERSION else "a later"
            raise ClaudeboxError(f"the snapshot `{name}` is of {other} version of claudebox (format {version}), and "
                                 "cannot be read by this one", hint=f"it lies in `{self.directory}`")  # fmt: skip
        raise ClaudeboxError(f"the snapshot `{name}` in `{self.directory}` cannot be read")

    def write_snapshot(self, session: str, snapshot: Snapshot, number: int = 0) -> None:
        """Keep the start of a session, with the contents that were added for it; draws a number if there is none."""
        stem = self._stem(session)
        if stem == session:
            stem = f"{number or self.draw_number():08d}.{session}"
        self._write(stem + _START, snapshot)
        try:
            os.unlink(f"{self.directory}/{_PARTIAL}")
        except FileNotFoundError:
            pass

    def write_end(self, session: str, snapshot: Snapshot) -> None:
        """Keep the end of a session whose start is known."""
        self._write(self._stem(session) + _END, snapshot)

    def write_partial(self, snapshot: Snapshot) -> None:
        """Keep what a snapshot has that was cut off, for the next one to begin with."""
        self._write(_PARTIAL, snapshot)

    def _write(self, name: str, snapshot: Snapshot) -> None:
        self.contents.save()
        packed = zlib.compress(marshal.dumps((VERSION, manifest.pack(snapshot)), FORMAT), 1)
        with Closing(os.open(self.directory, _DIRECTORY)) as directory:
            replace_file(directory, name, packed)

    def newest_like(self, root: str) -> Snapshot | None:
        """Return the newest snapshot of a project directory, which saves reading what has not changed since."""
        names = [_PARTIAL]
        for session in reversed(self.names()):
            stem = self._stem(session)
            names += [stem + _END, stem + (_FORMER if stem == session else _START)]
        for name in names:
            try:
                found = self._read(name)
            except ClaudeboxError:
                continue
            if found.root == root:
                return found
        return None

    def read_content(self, name: str) -> Iterator[bytes]:
        """Yield the pieces of a content; raise if it is not what it was."""
        return self.contents.read(bytes.fromhex(name))

    def _remove(self, session: str) -> None:
        """Forget a session; its contents go with the next sweep."""
        stem = self._stem(session)
        for ending in (_END, _START, _FORMER):
            try:
                os.unlink(f"{self.directory}/{stem}{ending}")
            except FileNotFoundError:
                continue

    def prune(self, keep: int) -> None:
        """Forget all but the newest sessions, and sweep from time to time, unless somebody else writes."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            for session in self.names()[:-keep]:
                self._remove(session)
            names = self.names()
            self.contents.tidy()
            if len(self.contents.packs()) > 2 * len(names) + _PACKS:
                used: set[bytes] = set()
                for session in names:
                    end = self.read_end(session)
                    used |= self.read_snapshot(session).contents() | (end.contents() if end is not None else set())
                self.contents.sweep(used)
        except ClaudeboxError:  # one that cannot be read stops the sweep, not the session
            return
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
