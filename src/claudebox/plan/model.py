"""What will be done, as plain values: `Plan` and the rows that it is made of."""

from __future__ import annotations

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.config.model import NameRequest, Tier
    from claudebox.facts.model import HeldSecret, Identity, StubKind

    Kind = Literal[
        "bind", "ro-bind", "tmpfs", "proc", "dev", "dir", "symlink", "file", "mask", "shadow", "socket", "late"
    ]
    # What a row is there for; `reason` says it in words, and nothing tests those.
    Role = Literal["system", "project", "protected", "pin", "asked", "client", "state", "toolchain", "masked"]
    Uplink = Literal["", "pasta", "slirp4netns"]


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
    role: Role = "system"

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


class Stub(Value):
    """Something harmless that stands in for a protected path while a session runs."""

    path: str
    kind: StubKind


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
    """One thing that the broker does; `claudebox.broker.main` knows its package."""

    name: str
    config: dict[str, object]  # plain values; may hold secrets, so that nothing prints it


class Broker(Value):
    """The process beside a sandbox that holds what must not enter it."""

    services: tuple[Service, ...]
    libraries: tuple[str, ...] = ()  # directories that it imports from
    sockets: tuple[str, ...] = ()  # that programs inside connect to, each bound by a mount of kind `socket`
    awaited: bool = False  # nothing starts before it says that it is ready


class NixAccess(Value):
    """Whether the sandbox talks to the Nix daemon, and why."""

    kind: Literal["daemon", "relay", "off"]
    why: str
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    told: bool = False  # by the person, in plain words


class NixRelay(Value):
    """A daemon of this session in front of the real one, which trusts nobody."""

    directory: str  # of its socket
    program: str
    remote: str  # where the real one is
    bwrap: str
    home: str  # which it does not see
    needed: tuple[str, ...] = ()  # what it must see, even in the home


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
