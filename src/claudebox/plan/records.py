"""What will be done, as plain values: `Plan` and the rows that it is made of."""

from __future__ import annotations

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from claudebox.host.records import Identity, KeptOut, KnownFile, StubKind
    from claudebox.network.records import Broker, Link
    from claudebox.settings.records import Policy, SecretRequest

    # What bwrap, or the gate, makes of a row. Something of the host: `bind` (writable), `ro-bind`, `device`. Something
    # new: `tmpfs`, `proc`, `dev`, `dir`, `symlink`, `file`; `closed` is a tmpfs that becomes read-only. Over something
    # that is there: `mask` (/dev/null over a file), `empty` (over a directory), `copy` (other content over a file).
    # From the broker: `socket`, and `late`, a file whose content it writes.
    Kind = Literal[
        "bind", "ro-bind", "tmpfs", "proc", "dev", "dir", "symlink", "file", "mask", "empty", "copy", "socket", "late",
        "closed", "device",
    ]  # fmt: skip
    # What a row is there for; `reason` says it in words, and nothing tests those.
    Role = Literal[
        "system", "project", "protected", "pin", "asked", "client", "state", "toolchain", "masked", "git", "scratch",
        "device", "programs", "drop",
    ]  # fmt: skip


class Deferred(Value):
    """A text that the launcher fills in after the question: nothing is run to show a plan."""

    key: str  # what it is: PACKAGES, GIT_TOKEN, the placeholder of a secret, a socket or a text of the broker
    before: str = ""
    after: str = ""


PACKAGES, GIT_TOKEN = "packages", "git token"
ENTRANCE = "entrance"  # the address of the broker's entrance to the proxy of this machine; made by the launcher itself
MODEL_PLACEHOLDER = "model placeholder"  # what stands for keys of models in tier `full`; made by the launcher itself


def placeholder_key(name: str) -> str:
    """Return the key of what stands for a secret in this variable."""
    return f"placeholder of {name}"


class Mount(Value):
    """One row of the mount table; `dest` is its key."""

    dest: str
    kind: Kind
    reason: str
    source: str = ""  # a host path, what a link points at, or the name of one of the broker's sockets or texts
    role: Role = "system"
    pinned: Identity | None = None  # what is mounted must be this, whatever `source` means by then
    content: bytes = b""
    mode: int = 0o755
    size: int = 0
    deferred: Deferred | None = None  # the content comes later
    stub: StubKind = "directory"  # what takes the place of something protected that the host removes meanwhile

    @property
    def writable(self) -> bool:
        """Return whether the agent can change what is there."""
        return self.kind in ("bind", "tmpfs")


class Variable(Value):
    """One variable of the sandbox."""

    name: str
    value: str
    origin: str  # "host", "claudebox", or what asked for it
    reason: str
    secret: bool = False  # looks like one: its value is never printed
    note: str = ""
    deferred: Deferred | None = None  # the value comes later; `value` is what can be said without it
    loader: bool = False  # changes what programs load
    hidden: bool = False  # never printed, whatever it looks like

    @property
    def printed(self) -> bool:
        return not (self.secret or self.hidden)


class Stub(Value):
    """Something harmless that stands in for a protected path while a session runs."""

    path: str
    kind: StubKind


class Hooks(Value):
    """A directory of hooks in a checkout, and the copy that stands inside in its place."""

    host: str
    identity: Identity | None  # none: there is no such directory
    copy: str


class PrivateGit(Value):
    """A git directory of claudebox's own, which stands inside in the place of the host's."""

    name: str
    private: str  # what the launcher keeps for it, out of the agent's reach but for `directory`
    dest: str  # where it stands
    real: str = ""  # the git directory of the host; nothing where there is no repository yet
    identity: Identity | None = None  # of that
    git_dir: str = ""  # the same, or the part of it that belongs to a linked worktree
    worktree: str = ""
    place: str = ""  # of a submodule: where it lies in the git directory of the repository
    mountpoints: tuple[str, ...] = ()  # where its submodules lie in it
    stores: tuple[tuple[str, str], ...] = ()  # of objects: outside, inside
    config: bytes = b""
    worktree_config: bytes = b""
    object_format: str = "sha1"
    ref_format: str = "files"
    only: str = ""  # of an agent's worktree: the only ref that moves, all others arrive under names of their own
    visible: tuple[str, ...] = ()  # directories whose checkouts can be worked in
    obeyed: tuple[str, ...] = ()  # what git of the host obeys in the checkout by its configuration, relative to it
    hooks: tuple[Hooks, ...] = ()  # that a tool writes into the checkout
    masked: tuple[str, ...] = ()  # files that git must not read, relative to the checkout

    @property
    def directory(self) -> str:
        """Return where it lies on the host; the agent writes to it."""
        return f"{self.private}/own"


class NixAccess(Value):
    """Whether the sandbox talks to the Nix daemon, and why."""

    kind: Literal["daemon", "relay", "off"]
    why: str
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    explicit: bool = False  # the user said so


class NixRelay(Value):
    """A daemon of this session in front of the real one, which trusts nobody."""

    directory: str  # of its socket
    program: str
    remote: str  # where the real one is
    bwrap: str
    home: str  # which it does not see
    needed: tuple[str, ...] = ()  # what it must see, even in the home


class Additions(Value):
    """What one part adds to the plan: asked tools, Nix, the broker."""

    mounts: tuple[Mount, ...] = ()
    variables: tuple[Variable, ...] = ()
    kept: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # directories of programs, in front of those of the system
    packages: bool = False  # in front of these come those of packages, which are fetched
    advice: tuple[str, ...] = ()  # sentences for the agent
    nix: NixAccess | None = None
    relay: NixRelay | None = None
    prefix: tuple[str, ...] = ()  # what stands in front of the command
    arguments: tuple[str, ...] = ()  # of the agent, in front of the user's


def join_additions(parts: Sequence[Additions]) -> Additions:
    """Return what several planners add; only one of them plans Nix."""
    names = ("mounts", "variables", "kept", "warnings", "path", "advice", "prefix", "arguments")
    rows = {name: tuple(row for part in parts for row in getattr(part, name)) for name in names}
    nix = next((part for part in parts if part.nix is not None), Additions())
    return Additions(**rows, packages=any(part.packages for part in parts), nix=nix.nix, relay=nix.relay)


class GroupLimits(Value):
    """The control group that a sandbox gets."""

    way: Literal["direct", "systemd", "none"]
    place: str  # the group above it, or the program that asks systemd
    mount: str  # of the control groups
    controllers: tuple[str, ...]
    memory: int = 0  # bytes
    cpus: int = 0  # hundredths of a processor
    processes: int = 0


class Plan(Value):
    """Everything about one sandbox: audit, dry run, explanation and launch all render this value."""

    policy: Policy  # what was asked for
    bwrap: str
    directory: str  # of the project's state
    mounts: tuple[Mount, ...]
    variables: tuple[Variable, ...]
    namespaces: tuple[str, ...]
    workdir: str
    start: str  # the directory that the payload starts in: the project, or one in it
    command: tuple[str, ...]
    gate: tuple[str, ...]  # the program inside that waits for the launcher's word, then runs the command
    seccomp: bytes
    scoped: bool  # Landlock keeps abstract sockets and signals in
    detached: bool  # no terminal is handed in, so the payload gets a session of its own
    disable_userns: bool
    link: Link | None = None
    hostname: bool = True  # the sandbox has a name of its own
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is worth a line and no warning
    withheld: tuple[str, ...] = ()
    path_outside: tuple[KeptOut, ...] = ()  # programs of the host's PATH that are not inside
    absent: tuple[tuple[str, str], ...] = ()  # those in the home, each with a sentence that says what brings it in
    masked: tuple[str, ...] = ()  # files of the project that hold secrets, with lines: those shown with fake values,
    masked_note: str = ""  # the note about them
    exposed: tuple[str, ...] = ()  # those shown as they are,
    committed: tuple[str, ...] = ()  # and those that git shows anyway
    remembered: tuple[KnownFile, ...] = ()  # files that stay masked wherever they are moved
    inherited: tuple[tuple[str, str], ...] = ()  # what comes along with settings of the host's client: kind and name
    login: str = ""  # how to log in, where nobody is
    state: tuple[str, ...] = ()  # directories that the launcher makes before it starts
    sockets_elsewhere: tuple[str, ...] = ()  # of the host, that need not be searched for again
    stubs: tuple[Stub, ...] = ()  # stubs that the launcher makes, and takes away at the end
    mountpoints: tuple[tuple[str, bool], ...] = ()  # places in the instance that something is mounted on
    seeds: tuple[tuple[str, str, str], ...] = ()  # files of the agent's state: what they must say, the agent's lock
    kept: tuple[str, ...] = ()  # directories of the instance that something inside writes to
    nix: NixAccess | None = None  # on a machine with Nix
    relay: NixRelay | None = None
    secrets: tuple[SecretRequest, ...] = ()  # what the broker puts in on the way; printed without values
    broker: Broker | None = None
    git: tuple[PrivateGit, ...] = ()
    caches: str = ""  # where they lie on the host
    scratch: str = ""  # the directory of this session, where home and /tmp are on disk
    group: GroupLimits | None = None  # where a limit needs one

    @property
    def holds_credential(self) -> bool:
        """Return whether the credential for the model stays outside, with the broker."""
        return self.broker is not None and bool(self.broker.models)

    @property
    def budget(self) -> str:
        """Return what the model may cost, for people."""
        budgets = [model.budget for model in self.broker.models] if self.broker is not None else []
        return str(budgets[0]) if budgets and budgets[0] is not None else ""
