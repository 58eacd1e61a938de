"""A row of the table of settings; `Policy` and its requests."""

from __future__ import annotations

from claudebox.agent import kinds
from claudebox.base.records import Value
from claudebox.network.tiers import TIERS, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from claudebox.agent.record import AgentKind
    from claudebox.settings.layers import SettingValue

    Program = Literal["client", "exec", "shell"]
    Nix = Literal["auto", "daemon", "relay", "off"]
    ProjectSecrets = Literal["show", "mask"]
    Shape = Literal["switch", "choice", "text", "list", "words", "table", "record", "rows", "groups"]
    Group = Literal["Starting", "Agents", "Showing", "Profiles", "What enters", "Restrictions", "Limits", "Tasks"]
    Files = Literal["none", "user", "profile", "project"]


class Field(Value):
    """One key of a setting that is a table."""

    name: str
    help: str
    choices: tuple[str, ...] = ()
    default: str | None = None  # None: it must be given
    example: str = ""
    many: bool = False  # an array of strings, joined by line feeds
    spaced: bool = False  # whose strings may contain spaces


class Setting(Value):
    """One row: what it is called, what it takes, what it does, and where its value goes."""

    key: str
    flags: tuple[str, ...]
    shape: Shape
    group: Group
    help: str  # in a line
    details: str = ""  # the rest of it
    brief: str = ""  # in three words, for `claudebox --help`; nothing: it is not shown there
    metavar: str = ""
    choices: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()  # values that decide about all of a list: the default, then narrower ones
    default: str = ""
    example: str = ""  # in the file of `init`, for a text without a default
    variable: str = ""  # an environment variable of the host that sets it, comma-separated for lists
    runs: str = ""  # a verb: the module whose `run(flags, environ)` does it; two verbs contradict each other
    in_files: Files = "none"  # `user`: only in files of the user; `profile`: in profiles; `project`: everywhere
    name: str = ""  # its key in files, where that is not `key`
    instead: str = ""  # what to write in a file instead
    assigned: str = ""  # the key of the row that takes `NAME=VALUE` given to this flag
    fields: tuple[Field, ...] = ()  # of a record, or of each of several rows
    parse: Callable[[SettingValue], object] | None = None  # checks a value and returns its meaning
    field: str = ""  # of `Policy`, `limits.seconds` for one in a record; several rows may fill a field that is a list
    needs: tuple[str, ...] = ()  # flags, of which one must be there, too
    # A project file may tighten without approval. `widest`: the end of `choices` that permits most; without it every
    # change needs approval. `effect`: what any other setting does when it is given.
    widest: Literal["first", "last", ""] = ""
    effect: Literal["widens", "tightens"] = "widens"

    @property
    def file_key(self) -> str:
        return self.name or self.key

    @property
    def described(self) -> str:
        """Return all of its help, as sentences."""
        return sentences(self.help, self.details)

    @property
    def grows(self) -> bool:
        """Return whether layers add to it instead of replacing it."""
        return self.shape in ("list", "rows", "table", "groups")


def sentences(*texts: str) -> str:
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts if text)


class MountRequest(Value):
    """A mount that a user asked for."""

    source: str
    dest: str
    writable: bool
    origin: str
    untrusted: bool = False  # a project file asks: it is checked whatever the user permits themselves
    programs: bool = False  # a directory of programs, for PATH


class NameRequest(Value):
    """Something that a user asked for by its name."""

    name: str
    origin: str
    untrusted: bool = False


class AddressRequest(Value):
    """An address or a network that a user opened."""

    prefix: str
    port: int  # 0: every port
    origin: str
    untrusted: bool = False


class Published(Value):
    """A port of the sandbox that the host reaches at a port of its own."""

    host: int
    inside: int
    fixed: bool = False  # that port of the host and no other

    def __str__(self) -> str:
        return f"{self.inside}" if self.host == self.inside else f"{self.host}:{self.inside}"


class Constant(Value):
    """A variable with a value that a user wrote down."""

    name: str
    value: str
    origin: str
    untrusted: bool = False
    hidden: bool = False  # of an `--env-file`: the value is never printed


class GitCredential(Value):
    """The one host that git inside can log in to."""

    host: str
    token: str  # `env:NAME` or `command:WORDS`
    username: str
    origin: str


def named(place: tuple[str, int]) -> str:
    """Return a host with its port, if that is not the one of HTTPS."""
    return place[0] if place[1] == 443 else f"{place[0]}:{place[1]}"


class SecretRequest(Value):
    """A variable whose value stays outside, with the broker; inside it is a placeholder."""

    _unprinted = ("value",)
    env: str
    hosts: tuple[tuple[str, int], ...]  # name and port
    source: str  # `env:NAME`, `file:PATH` or `command:WORDS`
    origin: str
    headers: tuple[str, ...] = ()  # fields that may carry it beside the usual ones, in lower case
    weak: bool = False  # a value that can be guessed is accepted
    permit: tuple[str, ...] = ()  # methods and paths that it is good for, `GET /repos/acme/**`; none: all of them
    value: str = ""  # fetched when the user has agreed, as is the placeholder
    placeholder: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """Return the hosts as a user would write them."""
        return tuple(named(place) for place in self.hosts)


class UndoRequest(Value):
    """How sessions can be undone: what a snapshot keeps, and how many there are."""

    keep: int = 10  # sessions
    most: int = 64 << 20  # bytes of a file
    excluded: tuple[str, ...] = ()  # names of directories, patterns
    patient: bool = False  # the payload is the client, which takes a while until it acts


class LimitRequest(Value):
    """How much a session may take; 0: as much as there is."""

    seconds: int = 0
    processes: int = 0
    scratch: int = 0  # bytes of each file system in memory
    memory: int = 0  # bytes
    cpus: int = 0  # hundredths of a processor

    def controllers(self, uid: int) -> tuple[str, ...]:
        """Return the cgroup controllers that these limits need; RLIMIT_NPROC does not bind root."""
        rows = (("cpu", self.cpus), ("memory", self.memory), ("pids", self.processes if uid == 0 else 0))
        return tuple(name for name, value in rows if value)


class Policy(Value):
    """What a user wants."""

    program: Program
    words: tuple[str, ...] = ()
    agent: AgentKind = kinds.find_kind(kinds.USUAL)
    agent_named: bool = False  # the user has chosen it
    client: str = ""  # the client that an editor names
    network: str = "full"  # the name of a tier
    network_origin: str = "default"
    uplink: str = "auto"
    host_ports: tuple[int, ...] = ()
    published: tuple[Published, ...] = ()
    domains: tuple[NameRequest, ...] = ()
    addresses: tuple[AddressRequest, ...] = ()
    names: tuple[NameRequest, ...] = ()
    mounts: tuple[MountRequest, ...] = ()
    unsafe_mounts: bool = False
    allow_userns: bool = False
    inherit: tuple[NameRequest, ...] = ()
    allow: tuple[NameRequest, ...] = ()
    shared_home: bool = False
    project_secrets: ProjectSecrets = "mask"
    project_secrets_origin: str = "default"
    submounts: Literal["show", "mask"] = "show"
    constants: tuple[Constant, ...] = ()
    toolchains: tuple[NameRequest, ...] = ()
    hides_path: bool = False  # the programs of the host's PATH stay out
    packages: tuple[NameRequest, ...] = ()
    credential: GitCredential | None = None
    secrets: tuple[SecretRequest, ...] = ()
    budget: tuple[int, int] = (0, 0)  # what the model may cost: millionths of a dollar, tokens
    refuse_secrets: bool = False
    filter_terminal: bool = False
    nix: Nix = "auto"
    nix_origin: str = "default"
    nixpkgs: str = ""  # the package set that the user chose
    packages_optional: bool = False
    devshell: str = ""  # what asked for the project's dev shell
    auth: Literal["broker", "passthrough"] = "passthrough"
    start: str = ""  # where the payload starts, if that is not the project itself
    git_import: Literal["auto", "ask", "manual"] = "auto"  # when commits made inside come back
    undo: UndoRequest | None = None
    browser: str = ""  # what asked for browsers
    gpu: str = ""  # what asked for graphics processors
    devices: tuple[NameRequest, ...] = ()  # nodes, by path
    limits: LimitRequest | None = None
    caches: Literal["own", "shared", "off"] = "own"
    cache_limit: int = 10 << 30  # bytes
    scratch: Literal["auto", "memory", "disk"] = "auto"

    @property
    def tier(self) -> Tier:
        """Return what the network grants; raises for an unknown name."""
        return TIERS[self.network]

    @property
    def masks_secrets(self) -> bool:
        """Return whether files of the project that hold secrets are masked inside."""
        return self.project_secrets == "mask"

    @property
    def refuses_unsearched(self) -> bool:
        """Return whether a launch is refused that cannot search the whole project for them."""
        return self.masks_secrets and self.project_secrets_origin != "default"

    @property
    def brokered(self) -> bool:
        """Return whether a credential for the model stays outside."""
        named = {request.name for request in self.names if not request.untrusted}
        named |= {constant.name for constant in self.constants if not constant.untrusted}
        named.intersection_update(self.agent.upstream.credentials)
        return self.auth == "broker" and not (named or self.cloud)

    @property
    def cloud(self) -> str:
        """Return the variable by which the client inside is told to ask a cloud instead of Anthropic's API."""
        told = {row.name for row in self.names}
        told |= {row.name for row in self.constants if row.value.lower() not in ("", "0", "false", "no", "off")}
        return next((name for name, *_ in self.agent.upstream.clouds if name in told), "")
