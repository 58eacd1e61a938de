"""The plain values that the rooms of claudebox hand to one another."""

from __future__ import annotations

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.nix.model import NixAccess, NixRelay

    Kind = Literal[
        "bind", "ro-bind", "tmpfs", "proc", "dev", "dir", "symlink", "file", "mask", "shadow", "socket", "late"
    ]
    Program = Literal["client", "exec", "shell"]
    Tier = Literal["full", "inet", "allow", "none"]
    Uplink = Literal["", "pasta", "slirp4netns"]
    Nix = Literal["auto", "daemon", "relay", "off"]
    ProjectSecrets = Literal["warn", "mask", "allow"]
    StubKind = Literal["directory", "socket", "dot", "file", "none"]

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


class Mount(Value):
    """One row of the mount table; `dest` is its key."""

    dest: str
    kind: Kind
    reason: str
    source: str = ""  # a host path, what a link points at, or the name of one of the broker's sockets or texts
    content: bytes = b""
    mode: int = 0o755
    size: int = 0
    pinned: Identity | None = None  # the source must still be this when it is opened
    secret: bool = False  # the content is never printed

    @property
    def writable(self) -> bool:
        """Tell whether the agent can change what is there."""
        return self.kind in ("bind", "tmpfs")


class Variable(Value):
    """One variable of the sandbox."""

    name: str
    value: str
    origin: str  # "host", "claudebox", or what asked for it
    reason: str
    secret: bool = False  # looks like one: its value is never printed
    note: str = ""


class Guarded(Value):
    """A path of the project that the host's tools obey."""

    name: str  # what `--allow` calls it
    path: str
    reason: str
    stub: StubKind  # what stands in for it where it is missing
    kind: Literal["missing", "present", "link", "whole"] = "missing"  # whole: it is the project itself
    identity: Identity | None = None
    parents: tuple[tuple[str, Identity], ...] = ()  # directories between the project and it


class Held(Value):
    """A directory that must stay where it is, because something protected lies in it."""

    path: str
    identity: Identity


class Stub(Value):
    """Something harmless that stands in for a protected path while a session runs."""

    path: str
    kind: StubKind


class Leak(Value):
    """A file of the project that holds secrets."""

    path: str
    lines: tuple[int, ...]  # where, if it has lines
    shadow: bytes  # the same without them


class MountRequest(Value):
    """A mount that a person asked for."""

    source: str
    dest: str
    writable: bool
    origin: str
    foreign: bool = False  # a project file asks: it is checked whatever the person permits themselves


class NameRequest(Value):
    """A variable that a person asked for."""

    name: str
    origin: str
    foreign: bool = False


class Constant(Value):
    """A variable with a value that a person wrote down."""

    name: str
    value: str
    origin: str
    foreign: bool = False


class GitCredential(Value):
    """The one host that git inside can log in to."""

    host: str
    token: str  # `env:NAME` or `command:WORDS`
    username: str
    origin: str


def named(place: tuple[str, int]) -> str:
    """Return a host with its port, as a person would write it who means HTTPS."""
    return place[0] if place[1] == 443 else f"{place[0]}:{place[1]}"


class Secret(Value):
    """A variable whose value stays outside."""

    env: str
    hosts: tuple[tuple[str, int], ...]  # name and port
    source: str  # `env:NAME`, `file:PATH` or `command:WORDS`
    origin: str

    @property
    def places(self) -> tuple[str, ...]:
        """Return the hosts as a person would write them."""
        return tuple(named(place) for place in self.hosts)


class HeldSecret(Secret):
    """The same with its value, for the broker, and with what stands for it inside."""

    value: str = ""
    placeholder: str = ""


class Barred(Value):
    """A range of addresses to which the tier `inet` does not lead."""

    prefix: str
    reason: str


class Served(Value):
    """A listener in the sandbox's own network that the broker serves from outside."""

    name: str
    kind: Literal["stream", "datagram"]
    port: int
    address: str = "127.0.0.1"


class Link(Value):
    """What connects the sandbox's own network with anything else."""

    program: Uplink = ""  # carries packets to the internet; nothing does in tier `none`
    path: str = ""
    forwarder: str = ""  # the address inside at which names are asked for
    barred: tuple[Barred, ...] = ()  # besides these, every address of the host itself, followed while it runs
    host_ports: tuple[int, ...] = ()  # of the host's loopback, reachable inside
    published: tuple[int, ...] = ()  # of the sandbox's loopback, reachable on the host's
    served: tuple[Served, ...] = ()  # at the sandbox's loopback, answered by the broker
    domains: tuple[NameRequest, ...] = ()  # that can be reached in tier `allow`
    named: bool = False  # programs that know no proxy are led to the broker, by names that it invents addresses for
    through: str = ""  # the proxy by which this machine itself gets out


class Service(Value):
    """One thing that the broker does; its module is `claudebox.broker.NAME`."""

    name: str
    config: dict[str, object]  # plain values; may hold secrets, so that nothing prints it


class Broker(Value):
    """The process beside a sandbox that holds what must not enter it."""

    services: tuple[Service, ...]
    libraries: tuple[str, ...] = ()  # directories that it imports from
    sockets: tuple[str, ...] = ()  # that programs inside connect to, each bound by a mount of kind `socket`
    awaited: bool = False  # nothing starts before it says that it is ready


class Policy(Value):
    """What a person wants, checked as far as that goes without looking at the machine."""

    program: Program
    words: tuple[str, ...] = ()
    network: Tier = "full"
    network_origin: str = "default"
    uplink: str = "auto"
    host_ports: tuple[int, ...] = ()
    published: tuple[int, ...] = ()
    domains: tuple[NameRequest, ...] = ()
    names: tuple[NameRequest, ...] = ()
    mounts: tuple[MountRequest, ...] = ()
    unsafe_mounts: bool = False
    allow_userns: bool = False
    inherit: tuple[NameRequest, ...] = ()
    allow: tuple[NameRequest, ...] = ()
    shared_home: bool = False
    project_secrets: ProjectSecrets = "warn"
    record: bool = True  # findings may be remembered in claudebox's state
    constants: tuple[Constant, ...] = ()
    toolchains: tuple[NameRequest, ...] = ()
    packages: tuple[NameRequest, ...] = ()
    credential: GitCredential | None = None
    secrets: tuple[Secret, ...] = ()
    command: tuple[str, ...] = ()  # another agent
    kept_names: tuple[str, ...] = ()  # what it keeps in its home, per project
    refuse_secrets: bool = False
    private_terminal: bool = False
    nix: Nix = "auto"
    nix_origin: str = "default"
    nixpkgs: str = ""  # the package set that the person chose
    packages_optional: bool = False
    devshell: str = ""  # what asked for the project's dev shell
    auth: Literal["broker", "passthrough"] = "passthrough"
    showing: bool = False  # nothing will be started, so nothing may be run or written to find out


class Provision(Value):
    """What profiles add to a sandbox."""

    mounts: tuple[Mount, ...] = ()
    variables: tuple[Variable, ...] = ()
    kept: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # directories of programs, in front of those of the system
    advice: tuple[str, ...] = ()  # sentences for the agent
    nix: NixAccess | None = None
    relay: NixRelay | None = None
    prefix: tuple[str, ...] = ()  # what stands in front of the command


class Plan(Value):
    """Everything about one sandbox: audit, dry run, explanation and launch all render this value."""

    bwrap: str
    mounts: tuple[Mount, ...]
    variables: tuple[Variable, ...]
    namespaces: tuple[str, ...]
    workdir: str
    command: tuple[str, ...]
    gate: tuple[str, ...]  # the program inside that waits for the launcher's word, then runs the command
    seccomp: bytes
    scoped: bool  # Landlock keeps abstract sockets and signals in
    detached: bool  # no terminal is handed in, so the payload gets a session of its own
    pin: bool  # bwrap can bind by descriptor
    disable_userns: bool
    allow_userns: bool
    sizes: bool  # bwrap can limit a tmpfs
    network: Tier
    link: Link | None = None
    warnings: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    state: tuple[str, ...] = ()  # directories that the launcher makes before it starts
    stubs: tuple[Stub, ...] = ()  # stand-ins that the launcher makes, and takes away at the end
    mountpoints: tuple[tuple[str, bool], ...] = ()  # names in the client's directory that something is mounted on
    private: bool = False  # the payload gets a terminal of its own
    kept: tuple[str, ...] = ()  # directories of the instance that something inside writes to
    nix: NixAccess | None = None  # on a machine with Nix
    relay: NixRelay | None = None
    secrets: tuple[HeldSecret, ...] = ()  # what the broker puts in on the way; printed without values
    broker: Broker | None = None
