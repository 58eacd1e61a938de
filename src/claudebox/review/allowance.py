"""How much a page may hold: whatever is beyond is counted, and the count is shown."""

from __future__ import annotations

import time
from dataclasses import dataclass

from claudebox.review.pictures import MOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.review.diffs import FileChange
    from claudebox.review.pictures import Picture


@dataclass
class Allowance:
    """What is left for one page."""

    lines: int = 12_000
    lines_of_file: int = 400
    files: int = 600
    pictures: int = MOST  # bytes
    seconds: float = 10.0  # for comparing texts

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    def take_files(self, count: int) -> int:
        """Return how many of so many files can be shown."""
        taken = min(count, self.files)
        self.files -= taken
        return taken

    def most_lines(self) -> int:
        return max(0, min(self.lines, self.lines_of_file))

    def limit(self, change: FileChange) -> None:
        """Count the lines of a file, and drop those that are too many."""
        kept = []
        for hunk in change.hunks:
            room = max(0, self.lines)
            change.cut += sum(mark != " " for mark, _, _ in hunk.lines[room:])
            hunk.lines = hunk.lines[:room]
            self.lines -= len(hunk.lines)
            if hunk.lines:
                kept.append(hunk)
        change.hunks = kept

    def take_picture(self, picture: Picture | None) -> Picture | None:
        """Return a picture if there is room for it."""
        if picture is None or len(picture.content) > self.pictures:
            return None
        self.pictures -= len(picture.content)
        return picture
