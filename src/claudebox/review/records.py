"""What a page shows of a session, as it was found, and how much: nothing in it is trusted or cleaned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from claudebox.review.diffs import Hunk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    from claudebox.review.diffs import FileChange
    from claudebox.review.pictures import Picture

    Lane = Literal["model", "tools", "commits", "allowed", "denied"]


@dataclass
class Event:
    """Something that happened at one moment."""

    time: float
    lane: Lane
    text: str


@dataclass
class Commit:
    """A commit that came back."""

    name: str
    branch: str
    author: str
    time: float
    message: str
    files: list[FileChange] = field(default_factory=list)
    cut: int = 0  # files that are not shown
    note: str = ""  # why no files are shown


@dataclass
class HostTraffic:
    """What passed between the session and one host."""

    place: str
    verdict: str  # reached or denied
    count: int = 0
    up: int = 0
    down: int = 0
    rule: str = ""
    secrets: tuple[str, ...] = ()  # names


@dataclass
class Spending:
    """One answer of the model."""

    time: float
    model: str
    price: int  # millionths of a dollar
    given: int  # tokens
    said: int
    cached: int


@dataclass
class Story:
    """One session, or one task."""

    name: str
    title: str
    what: str = "session"  # or task
    agent: str = ""
    place: str = ""
    state: str = ""  # how it ended
    is_good: bool = True
    facts: list[tuple[str, str]] = field(default_factory=list)  # what it ran in
    began: float = 0.0
    ended: float = 0.0
    asked: list[str] = field(default_factory=list)
    asked_cut: int = 0
    said: str = ""
    outcome: list[str] = field(default_factory=list)  # as on the screen at its end
    look: list[tuple[str, str, str]] = field(default_factory=list)  # path, how, why
    commits: list[Commit] = field(default_factory=list)
    commits_cut: int = 0
    files: list[FileChange] = field(default_factory=list)
    files_cut: int = 0
    changed: dict[str, int] = field(default_factory=dict)  # files and lines of a task
    files_title: str = "Changed files"
    output: list[tuple[str, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    events_cut: int = 0
    spending: list[Spending] = field(default_factory=list)
    budget: str = ""
    hosts: list[HostTraffic] = field(default_factory=list)
    unrecorded: str = ""  # what the tier does not tell about hosts
    entered: list[tuple[str, str]] = field(default_factory=list)  # variable and where it came from
    withheld: list[str] = field(default_factory=list)  # variables
    withheld_count: int = 0
    secrets: list[tuple[str, str]] = field(default_factory=list)  # variable and hosts that get the value
    found: list[str] = field(default_factory=list)  # withheld values that the session wrote somewhere
    commands: list[tuple[str, str]] = field(default_factory=list)  # what it does, and the command
    missing: list[str] = field(default_factory=list)  # what is not known

    @property
    def changes(self) -> list[FileChange]:
        """Return every file, those of commits first."""
        return [*(change for commit in self.commits for change in commit.files), *self.files]


_COSTLY = 32  # a character that has to be named takes so much more room


@dataclass
class Allowance:
    """How much a page may still hold. What is left out is counted, and the count is shown."""

    lines: int = 12_000
    lines_of_file: int = 400
    characters: int = 2_000_000
    files: int = 600
    pictures: int = 8 << 20  # bytes
    pixels: int = 64_000_000  # a browser takes four bytes for each
    seconds: float = 20.0  # for reading and comparing

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def take_file(self) -> bool:
        """Return whether one more file can be shown."""
        self.files -= 1
        return self.files >= 0

    def most_lines(self) -> int:
        return max(0, min(self.lines, self.lines_of_file))

    def limit(self, change: FileChange) -> None:
        """Count the lines of a file, and drop those that are too many."""
        for hunk in change.hunks:
            kept = []
            for row in hunk.lines:
                if self.lines <= 0 or self.characters <= 0:
                    change.cut += row[0] != " "
                    continue
                self.lines -= 1
                self.characters -= len(row[2]) * (1 if row[2].isprintable() else _COSTLY)
                kept.append(row)
            hunk.lines = kept
        change.hunks = [hunk for hunk in change.hunks if hunk.lines]

    def take_picture(self, picture: Picture | None) -> Picture | None:
        """Return a picture if there is room for it."""
        if picture is None or len(picture.content) > self.pictures or picture.pixels > self.pixels:
            return None
        self.pictures -= len(picture.content)
        self.pixels -= picture.pixels
        return picture


def list_texts(value: Any) -> Iterator[str]:
    """Yield every text in a record, as it came."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "surrogateescape")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from list_texts(item)
    elif isinstance(value, Hunk):  # a value may have several lines
        yield value.heading
        for side in "-+":
            yield "\n".join(text for mark, _, text in value.lines if mark in (" ", side))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from list_texts(getattr(value, name))
