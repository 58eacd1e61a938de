"""What the machine is like, as plain values."""

from __future__ import annotations

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    StubKind = Literal["directory", "file", "none"]


Identity = tuple[int, int]  # device and inode: what a path is, however it is spelled


class PathFact(Value):
    """What a host path is, by identity."""

    path: str  # absolute, as it was asked for
    real: str  # with every link resolved
    kind: Literal["directory", "file", "socket", "other", "missing"] = "missing"
    lineage: tuple[Identity, ...] = ()  # the thing itself, then its parents up to the root
    owner: int = -1

    @property
    def identity(self) -> Identity | None:
        """Return device and inode, if it exists."""
        return self.lineage[0] if self.lineage else None


class Hidden(Value):
    """A place of the host that must never be visible inside."""

    fact: PathFact
    why: str


class Guarded(Value):
    """A path of the project that the host's tools obey."""

    name: str  # what `--allow` calls it
    path: str
    reason: str
    stub: StubKind  # what stands in for it where it is missing
    # whole: it is the project itself; held: only where it lies counts
    kind: Literal["missing", "present", "link", "whole", "held"] = "missing"
    identity: Identity | None = None
    parents: tuple[tuple[str, Identity], ...] = ()  # directories between the project and it


class Held(Value):
    """A directory that must stay where it is, because something protected lies in it."""

    path: str
    identity: Identity


class Submount(Value):
    """A mount of the host below the project."""

    path: str
    kind: str  # of filesystem
    directory: bool = True


class Leak(Value):
    """A file of the project that holds secrets."""

    path: str
    lines: tuple[int, ...]  # where, if it has lines
    masked: bytes  # the same without them
    identity: Identity | None = None


class EmptySubmodule(Value):
    """The directory of a submodule that is not initialised on the host."""

    path: str
    name: str  # of the directory that stands for it inside
    missing: bool = False
    above: tuple[str, ...] = ()  # the directories around it that are missing, outermost first


class Bubblewrap(Value):
    """The bwrap program and what it can do."""

    path: str = ""
    options: frozenset[str] = frozenset()
    problem: str = ""
    remedy: str = ""


class Destination(Value):
    """What stands on the host where somebody wants a mount to appear."""

    exists: bool = False
    directory: bool = False
    through_link: bool = False
    repository: str = ""  # that a writable mount would leave open
    unsearched: str = ""  # where there may be one


class Barrier(Value):
    """A directory in the way of root, and whose it is."""

    path: str = ""
    owner: str = ""
    entered: bool = True  # it can be read at least


class SocketSearch(Value):
    """What a search for sockets has found."""

    paths: tuple[str, ...] = ()
    note: str = ""  # what was not looked at
    elsewhere: tuple[str, ...] = ()  # those that a whole search has not found, to be remembered
