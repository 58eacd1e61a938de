"""What connects a sandbox with anything else, as plain values: `Link` and `Broker` of a plan."""

from __future__ import annotations

import marshal

from claudebox.base.records import Value
from claudebox.network.facts import HostProxy
from claudebox.settings.records import SecretRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Uplink = Literal["", "pasta", "slirp4netns"]


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
    _unprinted = ("passphrase",)
    certificate: str = ""  # of our own, for servers that ask for one
    key: str = ""
    passphrase: str = ""  # of that key


class Budget(Value):
    """What a session may spend on the model; 0: as much as it wants."""

    dollars: int = 0  # in millionths
    tokens: int = 0

    def __str__(self) -> str:
        cents = f"{self.dollars // 1_000_000}.{self.dollars % 1_000_000 // 10_000:02d}"
        parts = ([f"${cents}"] if self.dollars else []) + ([f"{self.tokens} tokens"] if self.tokens else [])
        return " and ".join(parts)


class ApiConfig(Value):
    """What the broker does for the model API: the credential that it holds, and where it is sent."""

    _unprinted = ("credentials", "headers")
    endpoint: Endpoint
    placeholder: str
    credentials: tuple[tuple[str, str], ...] = ()  # variable and value; never printed
    headers: tuple[tuple[str, str], ...] = ()  # that the user wants on every request; never printed
    login: str = ""  # or the file of a login
    login_owner: str = ""
    trust: Trust = Trust()
    proxy: HostProxy | None = None  # of this machine, towards the endpoint
    budget: Budget | None = None
    login_proxy: HostProxy | None = None  # of this machine, towards those who renew the login


class AllowedDomain(Value):
    """A name that the proxy leads to, or all names beneath one."""

    name: str
    origin: str


class ProxyConfig(Value):
    """What the broker's proxy does: it leads to these domains (tier `allow`), or to the proxy of this machine."""

    _unprinted = ("password",)
    domains: tuple[AllowedDomain, ...]
    ranges: Ranges = Ranges()  # closed, whatever a name resolves to
    proxy: HostProxy | None = None  # of this machine, which resolves the names then
    reach: Literal["listed", "internet", "everything"] = "listed"
    password: str = (
        ""  # of the entrance on this machine's loopback, where other users could come too; made at the launch
    )


class InjectConfig(Value):
    """What the broker does with `[[secrets]]`."""

    _unprinted = ("environ",)
    secrets: tuple[SecretRequest, ...]
    bundle: str = ""  # the authorities of the host
    authorities: bytes = b""  # or these, with those of a company
    inside: bytes = b""  # those that programs inside trust, if they are others
    named: bytes = b""  # only what was named of them, for programs that have authorities of their own
    ranges: Ranges = Ranges()
    proxy: HostProxy | None = None  # of this machine
    listeners: tuple[tuple[str, str, int], ...] = ()  # name of the listener inside, host and port that it stands for
    passages: tuple[tuple[str, str, int], ...] = ()  # the same for ports where nothing is put in
    environ: tuple[tuple[str, str], ...] = ()  # of this machine, for commands that print a value
    home: str = ""
    workdir: str = ""


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


# What the launcher and the broker say to each other: a few words on a socket, and the services as plain data.


READY, FAILED, LISTENERS, TOTALS = b"ready", b"failed ", b"listeners ", b"totals "
CONTROL = "control"  # the name of the socket by which the user, outside, lets domains in
_TYPES: dict[str, type[Value]] = {
    kind.__name__: kind
    for kind in (
        AllowedDomain, ApiConfig, Barred, Budget, Endpoint, InjectConfig,
        OpenedAddress, ProxyConfig, Ranges, Trust, HostProxy, SecretRequest,
    )
}  # fmt: skip


def pack(message: object) -> bytes:
    """Return the bytes that carry a message: values become their fields, under the name of their type."""
    return marshal.dumps(_plain(message))


def unpack(data: bytes) -> Any:
    """Return the message again, with the very values that were packed; only the launcher can have written it."""
    return _values(marshal.loads(data))  # noqa: S302 - the launcher wrote it, and nobody else could


def _plain(part: object) -> Any:
    if isinstance(part, Value):
        name = type(part).__name__
        return {name: tuple(map(_plain, part.as_tuple()))}
    if isinstance(part, tuple | list):
        return tuple(_plain(one) for one in part)
    return part


def _values(part: object) -> object:
    if isinstance(part, dict):
        ((name, fields),) = part.items()
        return _TYPES[name](*(_values(field) for field in fields))
    if isinstance(part, tuple):
        return tuple(_values(one) for one in part)
    return part
