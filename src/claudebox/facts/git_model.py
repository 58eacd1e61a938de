"""What a repository of the host is, as plain values."""

from __future__ import annotations

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.git_config import Row
    from claudebox.facts.model import Identity, StubKind


class Executed(Value):
    """A path in a checkout that the user's git executes, or takes configuration from."""

    path: str
    stub: StubKind
    reason: str
    passed: bool = False  # a directory that `..` leaves: only where it lies counts


class Store(Value):
    """A directory of git objects."""

    path: str
    identity: Identity
    borrowed: bool = False  # another repository's, which this one names in `alternates`
    chained: bool = False  # it has `alternates` itself
    lfs: Identity | None = None  # of the directory for large files beside it


class GitDirectory(Value):
    """A git directory of the host."""

    path: str
    identity: Identity
    name: str  # of what claudebox keeps for it
    worktree: str = ""  # its checkout
    place: str = ""  # of a submodule: where it lies in the git directory of the repository
    rows: tuple[Row, ...] = ()  # of its configuration
    worktree_rows: tuple[Row, ...] = ()  # of `config.worktree`
    stores: tuple[Store, ...] = ()
    before: tuple[Row, ...] = ()  # what was written into the configuration inside, when it was last made
    inside: tuple[Row, ...] = ()  # and what stands there now


class EmptySubmodule(Value):
    """The directory of a submodule that is not initialised on the host."""

    path: str
    name: str  # of the directory that stands for it inside
    missing: bool = False
    above: tuple[str, ...] = ()  # the directories around it that are missing, outermost first


class Nested(Value):
    """A repository of the user's below a project, as it was when a session began."""

    path: str  # of its git directory
    identity: Identity
    hooks: int = 0  # inode
    config: bytes = b""


class Repository(Value):
    """The repository of a directory."""

    root: str  # of the checkout
    main: str = ""  # what stands for the project in all of its worktrees
    directory: GitDirectory | None = None  # with objects, refs and configuration
    git_dir: str = ""  # of this checkout: the same, or that of a linked worktree
    gitfile: Identity | None = None  # `.git` is a file that names it
    branch: str = ""  # of an agent's worktree: the only ref of the repository that its sessions move
    problem: str = ""  # why it was not believed; then git does not work inside
    submodules: tuple[GitDirectory, ...] = ()
    checkouts: tuple[str, ...] = ()  # directories of submodules, relative to the root
    nested: tuple[Repository, ...] = ()  # submodules that have their git directory in their checkout
    executed: tuple[Executed, ...] = ()  # what the host executes in the checkout
    obeyed: tuple[str, ...] = ()  # the same in all checkouts of the repository, relative to them
    owner: Identity = (-1, -1)  # uid and gid of the checkout

    @property
    def common_dir(self) -> str:
        """Return the path of the git directory, if the repository is believed."""
        return self.directory.path if self.directory else ""
