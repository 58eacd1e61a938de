"""The contents of snapshots: many in one pack, compressed together, each found by its SHA-256.

A pack is a row of frames, each of them the length and the compressed bytes of about a quarter of a MiB. A content is a
stretch of what the frames hold together. A pack counts only when its index is there, which is written last.
"""

from __future__ import annotations

import marshal
import os
import time
import zlib

from claudebox import syscalls
from claudebox.files import read_small, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator

    Place = tuple[int, int, int]  # where its first frame begins, where it begins in what that holds, its length

FORMAT = 2  # of marshal: the oldest that holds all we write, read by every Python
_PACK, _INDEX = ".pack", ".index"
_FRAME = 1 << 18
_SMALL = 1 << 20
_PIECE = 1 << 20
_LONGEST = 1 << 30  # bytes of an index
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_bytes_by_own = [1 << 20]  # of contents, until OpenSSL is worth its loading
_DAMAGED = "its content in the snapshot is damaged"


class Contents:
    """A directory of packs: all of them to be read, one of our own to be written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[bytes, tuple[str, Place]] | None = None
        self._own = f"{time.time_ns():020d}.{os.getpid()}"
        self._new: dict[bytes, Place] = {}
        self._target = -1
        self._buffer = bytearray()
        self._frame = 0  # where in the pack the buffer will be
        self._last: tuple[str, int, bytes] | None = None

    def packs(self) -> list[str]:
        """Return the packs that are complete, oldest first."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX))

    def keep(self, descriptor: int, length: int) -> bytes:
        """Keep all that can be read from a descriptor, which should be so much; return its digest."""
        piece = os.read(descriptor, min(length + 1, _PIECE))
        if len(piece) < _PIECE and len(piece) <= length:  # nearly all are small
            return self.keep_bytes(piece)
        name, size = _read_digest(descriptor, piece, length)
        if name in self._new or name in self._places():
            return name
        os.lseek(descriptor, 0, os.SEEK_SET)
        start, digest = (self._frame, len(self._buffer)), new_digest(length)
        while piece := os.read(descriptor, _PIECE):
            digest.update(piece)
            self._add(piece)
        if digest.digest() != name:
            raise OSError("it changed while it was read")
        self._new[name] = (*start, size)
        return name

    def keep_bytes(self, content: bytes) -> bytes:
        """Keep a content that is not here yet; return its digest."""
        digest = new_digest(len(content))
        digest.update(content)
        name = digest.digest()
        if name not in self._new and name not in self._places():
            self._new[name] = (self._frame, len(self._buffer), len(content))
            self._add(content)
        return name

    def save(self) -> None:
        """Complete the pack that was begun."""
        if not self._new:
            return
        self._write_frame()
        directory = os.open(self._directory, _DIRECTORY)
        try:
            replace_file(directory, self._own + _INDEX, marshal.dumps(self._new, FORMAT))
        finally:
            os.close(directory)
        os.close(self._target)
        self._target = -1
        self._places().update({name: (self._own, place) for name, place in self._new.items()})
        self._new = {}
        self._own = f"{time.time_ns():020d}.{os.getpid()}"
        self._frame = 0

    def read(self, name: bytes) -> Iterator[bytes]:
        """Yield the pieces of a content; raise if it is not what it was."""
        found = self._places().get(name)
        if found is None:
            raise OSError("its content is not in the snapshots")
        pack, (offset, start, left) = found
        digest = new_digest(left)
        descriptor = os.open(f"{self._directory}/{pack}{_PACK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while left:
                plain, offset = self._read_frame(descriptor, pack, offset)
                piece = plain[start : start + left]
                if not piece:
                    raise OSError(_DAMAGED)
                digest.update(piece)
                yield piece
                start, left = 0, left - len(piece)
        finally:
            os.close(descriptor)
        if digest.digest() != name:
            raise OSError(_DAMAGED)

    def tidy(self) -> None:
        """Remove what was begun and given up, while nobody else writes."""
        complete = set(self.packs())
        for entry in os.listdir(self._directory):
            if os.path.splitext(entry)[0] not in complete:
                _remove(f"{self._directory}/{entry}")

    def sweep(self, used: set[bytes]) -> None:
        """Drop what is not used, while nobody else writes; a pack that is small or hardly used is written anew."""
        kept = set()
        for pack in self.packs():
            places = self._load(pack)
            wanted = [name for name in places if name in used]
            size = sum(place[2] for place in places.values())
            if size > _SMALL and 2 * sum(places[name][2] for name in wanted) >= size:
                kept.add(pack)
                continue
            for name in wanted:
                content = b"".join(self.read(name))
                self._new[name] = (self._frame, len(self._buffer), len(content))
                self._add(content)
        kept.add(self._own)
        self.save()
        for entry in sorted(os.listdir(self._directory)):  # an index before its pack
            if os.path.splitext(entry)[0] not in kept:
                _remove(f"{self._directory}/{entry}")
        self._known = None

    def _add(self, piece: bytes) -> None:
        self._buffer += piece
        if len(self._buffer) >= _FRAME:
            self._write_frame()

    def _write_frame(self) -> None:
        if not self._buffer and self._target >= 0:
            return
        if self._target < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._target = os.open(f"{self._directory}/{self._own}{_PACK}", flags, 0o600)
        packed = zlib.compress(self._buffer, 1)
        view = memoryview(len(packed).to_bytes(4, "little") + packed)
        self._frame += len(view)
        while view:
            view = view[os.write(self._target, view) :]
        self._buffer = bytearray()

    def _read_frame(self, descriptor: int, pack: str, offset: int) -> tuple[bytes, int]:
        """Return what a frame holds, and where the next one begins."""
        length = int.from_bytes(os.pread(descriptor, 4, offset), "little")
        if self._last is None or self._last[:2] != (pack, offset):  # neighbours are often read together
            try:
                self._last = (pack, offset, zlib.decompress(os.pread(descriptor, length, offset + 4)))
            except zlib.error:
                raise OSError(_DAMAGED) from None
        return self._last[2], offset + 4 + length

    def _places(self) -> dict[bytes, tuple[str, Place]]:
        if self._known is None:
            self._known = {}
            for pack in self.packs():
                self._known.update({name: (pack, place) for name, place in self._load(pack).items()})
        return self._known

    def _load(self, pack: str) -> dict[bytes, Place]:
        try:
            found = marshal.loads(read_small(f"{self._directory}/{pack}{_INDEX}", limit=_LONGEST) or b"")  # noqa: S302
        except (EOFError, ValueError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}


def _read_digest(descriptor: int, piece: bytes, length: int) -> tuple[bytes, int]:
    """Return the digest and the size of what follows a piece, and that itself."""
    digest, size = new_digest(length), 0
    while piece:
        digest.update(piece)
        size += len(piece)
        piece = os.read(descriptor, _PIECE)
    return digest.digest(), size


def new_digest(length: int) -> hashlib._Hash:
    """Begin the digest of a content; loading OpenSSL takes 4 ms, in which Python's own has done a megabyte."""
    if _bytes_by_own[0] < length:
        import hashlib

        return hashlib.sha256()
    _bytes_by_own[0] -= length
    return syscalls.new_sha256()


def _remove(path: str) -> None:
    """Remove a file, or what an older version has left."""
    import shutil

    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
