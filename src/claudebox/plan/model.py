"""What will be done, as plain values: `Plan` and the rows that it is made of."""

from __future__ import annotations

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.config.model import Tier, UndoRequest
    from claudebox.facts.model import HeldSecret, Identity, StubKind
    from claudebox.host_proxy import HostProxy

    Kind = Literal[
        "bind", "ro-bind", "tmpfs", "proc", "dev", "dir", "symlink", "file", "mask", "empty", "copy", "socket", "late",
        "closed",
    ]  # fmt: skip
    # What a row is there for; `reason` says it in words, and nothing tests those.
    Role = Literal["system", "project", "protected", "pin", "asked", "client", "state", "toolchain", "masked", "git"]
    Uplink = Literal["", "pasta", "slirp4netns"]


class Fetched(Value):
    """A text that the launcher fetches when the user has agreed: nothing is run to show a plan."""

    key: str  # what it is: PACKAGES, GIT_TOKEN, or the placeholder of a secret
    before: str = ""
    after: str = ""


PACKAGES, GIT_TOKEN = "packages", "git token"


def placeholder_key(name: str) -> str:
    """Return the key of what stands for a secret in this variable."""
    return f"placeholder of {name}"


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
    fetched: Fetched | None = None  # the content comes later
    role: Role = "system"

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
    fetched: Fetched | None = None  # the value comes later; `value` is what can be said without it
    loader: bool = False  # changes what programs load


class Stub(Value):
    """Something harmless that stands in for a protected path while a session runs."""

    path: str
    kind: StubKind


class OwnGit(Value):
    """A git directory of claudebox's own, which stands inside in the place of a real one."""

    name: str
    private: str  # what the launcher keeps for it, out of the agent's reach but for `own`
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
    unmapped: bool = False  # files of the checkout have another owner inside
    visible: tuple[str, ...] = ()  # directories whose checkouts can be worked in

    @property
    def own(self) -> str:
        """Return where it lies on the host."""
        return f"{self.private}/own"


class Barred(Value):
    """A range of addresses that a sandbox does not reach, and why."""

    prefix: str
    reason: str
    always: bool = False  # whatever a user opens


class OpenedAddress(Value):
    """An address or a network that a user opened, and what asked for it."""

    prefix: str
    port: int  # 0: every port
    origin: str


class Ranges(Value):
    """Which addresses are closed, whoever asks: by the netns holder in tier `inet`, by the broker in tier `allow`."""

    barred: tuple[Barred, ...] = ()  # besides these, every address of the host itself, followed while it runs
    open6: tuple[str, ...] = ()  # over IPv6, only these prefixes are open, without what is barred
    opened: tuple[OpenedAddress, ...] = ()  # in spite of that, but neither what is always barred nor the host itself


class Served(Value):
    """A listener in the sandbox's own network that the broker serves from outside."""

    name: str
    kind: Literal["stream", "datagram"]
    port: int
    address: str = "127.0.0.1"
    redirected: bool = False  # of use only where the kernel leads programs to the broker


class Link(Value):
    """What connects the sandbox's own network with anything else."""

    program: Uplink = ""  # carries packets to the internet; nothing does in tier `none`
    path: str = ""
    forwarder: str = ""  # the address inside at which names are asked for
    ranges: Ranges = Ranges()  # closed by the netns holder
    host_ports: tuple[int, ...] = ()  # of the host's loopback, reachable inside
    published: tuple[int, ...] = ()  # of the sandbox's loopback, reachable on the host's
    served: tuple[Served, ...] = ()  # at the sandbox's loopback, answered by the broker
    redirect: str = ""  # the one of them to which the kernel leads programs that know no proxy


class Endpoint(Value):
    """Where the model is asked."""

    scheme: str
    host: str
    port: int
    prefix: str = ""  # of every path

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return f"{self.scheme}://{name}{'' if self.port == usual else f':{self.port}'}{self.prefix}"


class Trust(Value):
    """Which certificates the broker believes towards the model, as files of the host."""

    bundle: str = ""
    directory: str = ""
    extra: str = ""
    certificate: str = ""  # of our own, for servers that ask for one
    key: str = ""


class ApiConfig(Value):
    """What the broker does for the model API: the credential that it holds, and where it is sent."""

    _unprinted = ("credentials",)
    endpoint: Endpoint
    placeholder: str
    credentials: tuple[tuple[str, str], ...] = ()  # variable and value; never printed
    login: str = ""  # or the file of a login
    login_owner: str = ""
    trust: Trust = Trust()
    proxy: HostProxy | None = None  # of this machine, towards the endpoint
    login_proxy: HostProxy | None = None  # of this machine, towards those who renew the login


class AllowedDomain(Value):
    """A name that the proxy leads to, or all names beneath one."""

    name: str
    origin: str


class ProxyConfig(Value):
    """What the broker does in tier `allow`: it leads to these domains, and to nothing else."""

    domains: tuple[AllowedDomain, ...]
    ranges: Ranges = Ranges()  # closed, whatever a name resolves to
    proxy: HostProxy | None = None  # of this machine, which resolves the names then


class InjectedSecret(Value):
    """A value that the broker puts in on the way to its hosts; never printed."""

    _unprinted = ("value",)
    env: str
    value: str
    placeholder: str
    hosts: tuple[tuple[str, int], ...]
    headers: tuple[str, ...] = ()  # fields that may carry it beside the usual ones


class InjectConfig(Value):
    """What the broker does with `[[secrets]]`."""

    secrets: tuple[InjectedSecret, ...]
    bundle: str = ""  # the authorities of the host
    ranges: Ranges = Ranges()
    proxy: HostProxy | None = None  # of this machine
    listeners: tuple[tuple[str, str, int], ...] = ()  # name of the listener inside, host and port that it stands for
    passages: tuple[tuple[str, str, int], ...] = ()  # the same for ports where nothing is put in


class Broker(Value):
    """The process beside a sandbox that holds what must not enter it; a service that is None is not started."""

    model_api: ApiConfig | None = None
    proxy: ProxyConfig | None = None
    inject: InjectConfig | None = None
    libraries: tuple[str, ...] = ()  # directories that it imports from
    sockets: tuple[str, ...] = ()  # that programs inside connect to, each bound by a mount of kind `socket`
    awaited: bool = False  # nothing starts before it says that it is ready

    @property
    def services(self) -> tuple[tuple[str, ApiConfig | ProxyConfig | InjectConfig], ...]:
        """Return the services that are started, by name, with what each is handed."""
        rows = (("model_api", self.model_api), ("proxy", self.proxy), ("inject", self.inject))
        return tuple((name, config) for name, config in rows if config is not None)


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


class Provision(Value):
    """What profiles add to a sandbox."""

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
    network_origin: str = "default"  # what chose the tier
    link: Link | None = None
    warnings: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()  # files of the project that hold secrets, with lines
    exposed_masked: bool = False  # they are masked inside
    inherited: tuple[tuple[str, str], ...] = ()  # what comes along with settings of the host's client: kind and name
    state: tuple[str, ...] = ()  # directories that the launcher makes before it starts
    stubs: tuple[Stub, ...] = ()  # stubs that the launcher makes, and takes away at the end
    mountpoints: tuple[tuple[str, bool], ...] = ()  # names in the client's directory that something is mounted on
    private: bool = False  # the payload gets a terminal of its own
    kept: tuple[str, ...] = ()  # directories of the instance that something inside writes to
    nix: NixAccess | None = None  # on a machine with Nix
    relay: NixRelay | None = None
    secrets: tuple[HeldSecret, ...] = ()  # what the broker puts in on the way; printed without values
    broker: Broker | None = None
    git: tuple[OwnGit, ...] = ()
    git_import: Literal["auto", "ask", "manual"] = "auto"  # when commits made inside come back
    undo: UndoRequest | None = None

    @property
    def holds_credential(self) -> bool:
        """Return whether the credential for the model stays outside, with the broker."""
        return self.broker is not None and self.broker.model_api is not None
