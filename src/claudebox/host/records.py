"""What claudebox learns about a machine, as plain values: `Host`, and the parts of it that the finders return."""

from __future__ import annotations

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.agent.facts import Client, Login
    from claudebox.base.errors import ClaudeboxError
    from claudebox.base.state import Instance
    from claudebox.broker.facts import ModelLogin
    from claudebox.git.facts import Nested, Repository, UserSettings
    from claudebox.host.control_groups import ControlGroup
    from claudebox.host.installations import Programs
    from claudebox.host.texts import Texts
    from claudebox.host.tools import Browsers, Devices, ProgramDirectory
    from claudebox.network.facts import CompanyNetwork
    from claudebox.network.uplink import Candidate
    from claudebox.nix.records import Nix
    from claudebox.settings.records import SecretRequest

    StubKind = Literal["directory", "file", "none"]


def ancestors(path: str) -> tuple[str, ...]:
    """Return an absolute path and every directory above it, `/` last."""
    found = [path]
    while path != "/":
        path = path[: path.rfind("/")] or "/"
        found.append(path)
    return tuple(found)


def covers(upper: str, lower: str) -> bool:
    """Return whether `lower` is `upper` or lies in it, as paths without links."""
    return upper == lower or lower.startswith(upper.rstrip("/") + "/")


def between(path: str, top: str) -> tuple[str, ...]:
    """Return the directories above a path that lie below another one, outermost first."""
    inside = top.rstrip("/") + "/"
    return tuple(place for place in reversed(ancestors(path)[1:]) if place.startswith(inside) and place != top)


Identity = tuple[int, int]  # device and inode: what a path is, however it is spelled
KnownFile = tuple[Identity, str]  # a file, and where it was


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


class KeptOut(Value):
    """A directory of programs, or a script, that is not inside."""

    path: str
    why: str
    flags: str = ""  # that bring it in, up to its path


class Hidden(Value):
    """A place of the host that must never be visible inside."""

    fact: PathFact
    why: str


class ProtectedPath(Value):
    """A path of the project that the host's tools obey."""

    name: str  # what `--allow` calls it
    path: str
    reason: str
    stub: StubKind  # what stands in for it where it is missing
    kind: Literal["missing", "present", "link", "whole"] = "missing"  # whole: it is the project itself
    identity: Identity | None = None
    parents: tuple[tuple[str, Identity], ...] = ()  # directories between the project and it
    copy: str = ""  # of hooks that a tool writes: the name of the writable copy that stands inside in its place


class PinnedDirectory(Value):
    """A directory that must stay where it is, because something protected lies in it."""

    path: str
    identity: Identity


class Submount(Value):
    """A mount of the host below the project."""

    path: str
    kind: str  # of filesystem
    directory: bool = True


class SecretFile(Value):
    """A file of the project that holds secrets."""

    path: str
    lines: tuple[int, ...]  # where, if it has lines
    masked: bytes  # the same with fake values; nothing where its content cannot be read
    identity: Identity
    mode: int = 0o644
    links: int = 1  # names that it has
    committed: bool = False  # an index of git has this very content
    stored: bool = False  # only its objects have it: it was staged once, stashed, or committed earlier


class EmptySubmodule(Value):
    """The directory of a submodule that is not initialised on the host."""

    path: str
    name: str  # of the directory that stands for it inside
    missing: bool = False
    above: tuple[str, ...] = ()  # the directories around it that are missing, outermost first


class Bubblewrap(Value):
    """The bwrap program, and what keeps it from being used."""

    path: str = ""
    problem: ClaudeboxError | None = None


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


class Machine(Value):
    """The machine and its kernel."""

    architecture: str = "x86_64"
    gate: bytes = b""  # our program that waits inside, for this architecture
    memory: int = 8 << 30
    landlock: int = 0  # version of its interface
    hostname: bool = True  # the sandbox can have a name of its own
    terminal: bool = False  # standard input and output are terminals
    control_group: ControlGroup | None = None  # looked for where a limit needs one
    kernel_settings: tuple[str, ...] = ()  # parts of /proc that this user could write
    ignored_signals: frozenset[int] = frozenset()


class System(Value):
    """The distribution: programs, libraries, /etc."""

    usr: bool = True  # an ordinary /usr, as opposed to NixOS
    roots: tuple[tuple[str, str], ...] = ()  # /bin and its like: the link's target, or nothing for a directory
    opt: bool = False
    etc: tuple[tuple[str, str, str], ...] = ()  # path, where it really is, reason
    masked: tuple[tuple[str, str], ...] = ()  # path, reason
    store: str = ""  # where what is called /nix/store lies
    store_path: tuple[str, ...] = ()
    store_links: tuple[tuple[str, str], ...] = ()  # /bin/sh and its like, on a machine without /usr
    bash: bool = True
    pager: bool = False  # the one that the user prefers is a program of the system
    ca_bundle: PathFact | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the trees that every sandbox shows, at their own places."""
        roots = (("/usr", self.usr), ("/opt", self.opt), ("/nix/store", self.store))
        return (*(root for root, is_there in roots if is_there), *(root for root, target in self.roots if not target))


class KnownPlaces(Value):
    """Directories that a mount is judged by."""

    home: PathFact = PathFact("", "")
    hidden: tuple[Hidden, ...] = ()
    not_projects: tuple[PathFact, ...] = ()
    not_beneath: tuple[PathFact, ...] = ()
    allowed_beneath: tuple[PathFact, ...] = ()


class Project(Value):
    """The project, besides where it is."""

    linked: str = ""  # the working directory as the user's shell spells it, through a link
    writable: bool = True  # for this user
    owned: bool = True  # by this user
    only_read: bool = False  # in this launch, whoever the user is
    barrier: Barrier = Barrier()  # in the way of root
    protected: tuple[ProtectedPath, ...] = ()
    pinned: tuple[PinnedDirectory, ...] = ()
    submounts: tuple[Submount, ...] = ()  # of the host, below the project
    worktrees: PathFact | None = None  # where the client makes worktrees, if that can be writable
    secret_files: tuple[SecretFile, ...] = ()
    unsearched: str = ""  # where there may be more of them
    masked_before: tuple[KnownFile, ...] = ()  # files that were masked before, and may lie there

    @property
    def hidden_files(self) -> tuple[SecretFile, ...]:
        """Return the files that are masked if files with secrets are."""
        return tuple(row for row in self.secret_files if not row.committed)


class Mounted(Value):
    """What is at the mounts that the user asked for."""

    sources: dict[str, PathFact] = {}  # noqa: RUF012 - values are never changed
    destinations: dict[str, Destination] = {}  # noqa: RUF012 - where something must be already
    repositories: tuple[Repository, ...] = ()  # writable, and at their own place
    protected: tuple[ProtectedPath, ...] = ()


class Git(Value):
    """The user's git settings, and the project's repositories."""

    user: UserSettings
    repository: Repository | None = None
    above: PathFact | None = None  # where the repository starts, if that is not the project
    nested: tuple[Nested, ...] = ()  # repositories of the user's below the project
    empty: str = ""  # the name of what is kept for a project that is no repository, where one can be made
    empty_submodules: tuple[EmptySubmodule, ...] = ()  # that are not initialised


class AgentFacts(Value):
    """The agent's program, login and settings on the host."""

    login: Login
    client: Client | None = None
    client_problem: ClaudeboxError | None = None
    parts: tuple[tuple[str, str, bool], ...] = ()  # entries of its directory in the home: name, place, directory?
    inherited: tuple[tuple[str, str], ...] = ()  # what comes along with its settings: kind and name
    texts: Texts | None = None  # of the user's own that come along
    mcp_servers: bytes = b""  # of the user's own configuration
    managed: tuple[tuple[str, str], ...] = ()  # the administrator's settings, and where they really are
    memory_files: tuple[bytes, ...] = ()  # texts for the agent: the administrator's, the user's


class Network(Value):
    """What the host knows of its network."""

    company: CompanyNetwork | None = None  # authorities and proxies that were named for single programs
    resolv_conf: bytes = b""
    etc_hosts: bytes = b""  # read in tier `full` only
    uplinks: tuple[Candidate, ...] = ()  # looked for in tier `inet` only
    model_ports: tuple[int, ...] = ()  # of the loopback, free for the broker; looked for in tier `full` only


class HostTools(Value):
    """Programs and devices besides those of the system."""

    programs: Programs | None = None  # of the host's PATH, or of the toolchains that were asked for
    toolchains: tuple[tuple[str, tuple[str, ...]], ...] = ()  # that were asked for: name, directories in this home
    choices: bytes = b""  # which versions mise is told to use
    outside: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what of the home's PATH is not inside, with its programs
    program_directories: tuple[ProgramDirectory, ...] = ()
    devices: Devices | None = None
    browsers: Browsers | None = None
    drop: PathFact | None = None  # the directory for files that the user wants to show


class Secrets(Value):
    """What the broker would hold."""

    held: tuple[SecretRequest, ...] = ()  # without their values
    models: tuple[ModelLogin, ...] = ()  # files with keys and logins of the agent
    git_token: bool = False  # there is one for git inside
    libraries: tuple[str, ...] | ClaudeboxError = ()  # the broker's, looked for where it needs them


class Host(Value):
    """Everything that claudebox learns about this machine; nothing is read again after it was made."""

    _unprinted = ("environ",)
    uid: int
    gid: int
    user: str
    home: str
    environ: dict[str, str]
    workdir: PathFact
    instance: Instance
    session: str  # a name that no other session of the project has
    machine: Machine
    system: System
    bwrap: Bubblewrap
    places: KnownPlaces
    project: Project
    mounted: Mounted
    sockets: SocketSearch
    git: Git
    agent: AgentFacts
    network: Network
    tools: HostTools
    secrets: Secrets
    nix: Nix | None = None
