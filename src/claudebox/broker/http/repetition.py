"""Requests that may have to be sent a second time, since a login can end between two of them."""

from __future__ import annotations

_REPLAY = 4 << 20  # bytes of a body that are kept for a second attempt
_REPLAY_ALL = 8 << 20  # of all bodies together


class Kept:
    """The beginning of a request's body, while it may have to be sent again."""

    total = 0

    def __init__(self, *, wanted: bool) -> None:
        self.pieces: list[bytes] | None = [] if wanted else None
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Keep one more piece, or give up."""
        if self.pieces is None:
            return
        if self._size + len(piece) > _REPLAY or Kept.total + len(piece) > _REPLAY_ALL:
            self.drop()
            return
        self.pieces.append(piece)
        self._size += len(piece)
        Kept.total += len(piece)

    def drop(self) -> None:
        """Keep nothing any more."""
        Kept.total -= self._size
        self._size, self.pieces = 0, None
