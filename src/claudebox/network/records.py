"""What connects a sandbox with anything else: `Link` and `Broker` of a plan."""

from __future__ import annotations

from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.agent.record import LoginFile, Upstream
    from claudebox.network.facts import HostProxy
    from claudebox.settings.records import Published, SecretRequest

    Uplink = Literal["", "pasta", "slirp4netns"]


class Barred(Value):
    """A range of addresses that a sandbox does not reach, and why."""

    prefix: str
    reason: str
    always: bool = False  # even if a user opens it


class OpenedAddress(Value):
    """An address or a network that a user opened."""

    prefix: str
    port: int  # 0: every port
    origin: str


class Ranges(Value):
    """Which addresses are closed: enforced by the netns holder in tier `inet`, by the broker in tier `allow`."""

    barred: tuple[Barred, ...] = ()  # and every address of the host itself, followed while the sandbox runs
    open6: tuple[str, ...] = ()  # over IPv6, only these prefixes are open, except what is barred
    opened: tuple[OpenedAddress, ...] = ()  # in spite of `barred`, but not what is always barred nor the host itself


class Served(Value):
    """A listener in the sandbox's own network that the broker serves from outside."""

    name: str
    kind: Literal["stream", "datagram"]
    port: int
    address: str = "127.0.0.1"
    redirected: bool = False  # needs a kernel that redirects connections to it


class Link(Value):
    """What connects the sandbox's own network."""

    program: Uplink = ""  # carries packets to the internet, in tier `inet`
    path: str = ""
    forwarder: str = ""  # the DNS server inside
    ranges: Ranges = Ranges()  # closed by the netns holder
    host_ports: tuple[int, ...] = ()  # of the host's loopback, reachable inside
    published: tuple[Published, ...] = ()  # of the sandbox's loopback, reachable on the host's
    served: tuple[Served, ...] = ()  # at the sandbox's loopback, answered by the broker
    redirect: str = ""  # the name of the one to which connections of programs without a proxy are redirected


class Endpoint(Value):
    """The model API."""

    scheme: str
    host: str
    port: int
    prefix: str = ""  # of every path

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return f"{self.scheme}://{name}{'' if self.port == usual else f':{self.port}'}{self.prefix}"


class Trust(Value):
    """The certificates that the broker trusts for the model API, as files of the host."""

    bundle: str = ""
    directory: str = ""
    extra: str = ""
    _unprinted = ("passphrase",)
    certificate: str = ""  # of the client, for servers that ask for one
    key: str = ""
    passphrase: str = ""  # of that key


class Budget(Value):
    """What a session may spend on the model; 0: no limit."""

    dollars: int = 0  # in millionths
    tokens: int = 0

    def __str__(self) -> str:
        cents = f"{self.dollars // 1_000_000}.{self.dollars % 1_000_000 // 10_000:02d}"
        parts = ([f"${cents}"] if self.dollars else []) + ([f"{self.tokens} tokens"] if self.tokens else [])
        return " and ".join(parts)


class Credential(Value):
    """A key, and how it is sent."""

    _unprinted = ("value",)
    name: str  # of the variable that it comes from
    value: str
    header: str = "authorization"
    prefix: str = "Bearer "
    file: str = ""  # that the value is read from instead, by the broker
    field: str = ""  # of that


class ApiConfig(Value):
    """One model API: the credential that the broker holds, where it is sent, and what passes."""

    _unprinted = ("headers",)
    endpoint: Endpoint
    placeholder: str
    api: Upstream  # what of it is open
    credentials: tuple[Credential, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()  # for every request; never printed
    login: str = ""  # or the credentials file of a login
    login_kind: LoginFile | None = None
    login_owner: str = ""
    trust: Trust = Trust()
    proxy: HostProxy | None = None  # towards the endpoint
    budget: Budget | None = None
    login_proxy: HostProxy | None = None  # towards the server that renews the login
    port: int = 0  # of the loopback where it is served; 0: a Unix socket
    shared: bool = False  # that loopback is the host's, where other accounts can ask: the launcher makes a placeholder

    @property
    def listener(self) -> str:
        """Return the name of its listener."""
        return f"model-{self.api.name}" if self.port else self.api.name

    @property
    def official(self) -> bool:
        """Return whether the credential goes where it goes if nobody names another address."""
        of_login = self.login_kind.official if self.login_kind is not None else ""
        return str(self.endpoint) == (of_login or self.api.official)


class AllowedDomain(Value):
    """A name that the proxy connects to, or all names beneath one."""

    name: str
    origin: str


class ProxyConfig(Value):
    """The broker's proxy: to listed domains (tier `allow`), or to the proxy of the host."""

    _unprinted = ("password",)
    domains: tuple[AllowedDomain, ...]
    ranges: Ranges = Ranges()  # closed, also for listed names
    proxy: HostProxy | None = None  # of the host, which then resolves the names
    reach: Literal["listed", "internet", "everything"] = "listed"
    password: str = ""  # of the entrance on the host's loopback, which other users can reach; made at the launch


class InjectConfig(Value):
    """The broker's service for `[[secrets]]`."""

    _unprinted = ("environ",)
    secrets: tuple[SecretRequest, ...]
    bundle: str = ""  # file of the host's certificate authorities
    authorities: bytes = b""  # or these, with those of a company
    inside: bytes = b""  # those that programs inside trust, if different
    named: bytes = b""  # the named ones alone, for programs that bring the usual ones
    ranges: Ranges = Ranges()
    proxy: HostProxy | None = None  # of this machine
    listeners: tuple[tuple[str, str, int], ...] = ()  # name of the listener inside, host and port that it stands for
    environ: tuple[tuple[str, str], ...] = ()  # of the host, for `command:` sources
    home: str = ""
    workdir: str = ""


class Broker(Value):
    """The process that holds credentials; a service that is None is not started."""

    models: tuple[ApiConfig, ...] = ()  # they share one budget
    proxy: ProxyConfig | None = None
    inject: InjectConfig | None = None
    libraries: tuple[str, ...] = ()  # directories that it imports from
    sockets: tuple[str, ...] = ()  # that programs inside connect to, each mounted with kind `socket`
    awaited: bool = False  # the sandbox starts only when it is ready

    @property
    def services(self) -> tuple[tuple[str, tuple[ApiConfig, ...] | ProxyConfig | InjectConfig], ...]:
        """Return the services that are started, with their configuration."""
        rows = (("model_api", self.models or None), ("proxy", self.proxy), ("inject", self.inject))
        return tuple((name, config) for name, config in rows if config is not None)
