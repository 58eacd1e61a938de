"""What a page shows of a session, as it was found: nothing in it is trusted or cleaned."""

from __future__ import annotations

from dataclasses import dataclass, field

from claudebox.review.diffs import Hunk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    from claudebox.review.diffs import FileChange

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
    place: str = ""
    state: str = ""  # how it ended
    is_good: bool = True
    facts: list[tuple[str, str]] = field(default_factory=list)  # what it ran in
    began: float = 0.0
    ended: float = 0.0
    asked: list[str] = field(default_factory=list)
    said: str = ""
    outcome: list[str] = field(default_factory=list)  # as on the screen at its end
    look: list[tuple[str, str, str]] = field(default_factory=list)  # path, how, why
    commits: list[Commit] = field(default_factory=list)
    commits_cut: int = 0
    files: list[FileChange] = field(default_factory=list)
    files_cut: int = 0
    files_title: str = "Changed files"
    output: list[tuple[str, int]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
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
