"""Policy + Host → what a broker does for this sandbox: which credential it holds, for whom, and what stands in inside.

The client decides by what it finds in its environment which model it takes and what it can do. So it finds the same
kind of credential as on the host, with a placeholder in its place.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.plan import claude_code, network
from claudebox.plan.model import Broker, Mount, Provision, Service, Variable
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.plan.model import Plan

API = "api"  # the service, and its socket
_CA = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "CLAUDE_CODE_CLIENT_CERT", "CLAUDE_CODE_CLIENT_KEY")
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")
_PORTS = {"http": 80, "https": 443}
_ADVICE = (
    "The key or login for the model stays outside: what stands in the environment is a placeholder, and a helper on "
    "the host puts the real one in. It answers the client's own requests to the model and nothing else; do not look "
    "for the key, and do not use the socket for other things."
)
_REASON = "stands in for the real one, which stays outside"


class Upstream(Value):
    """The one host that the broker speaks to for the client."""

    scheme: str
    host: str
    port: int
    prefix: str  # of every path

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{name}{'' if self.port == _PORTS[self.scheme] else f':{self.port}'}{self.prefix}"


def plan(policy: Policy, host: Host) -> Broker | None:
    """Return the broker of this sandbox, if it needs one."""
    services: list[Service] = []
    sockets: list[str] = []
    kind = holds(policy, host)
    if kind:
        services.append(Service(API, _api(kind, policy, host)))
        sockets.append(API)
    if (outbound := network.plan_service(policy, host)) is not None:
        services.append(outbound)
    if host.held_secrets:
        from claudebox.plan import secrets  # noqa: PLC0415 - only for those who have some

        services.append(secrets.service(policy, host))
    if not services:
        return None
    if isinstance(host.libraries, ClaudeboxError):
        raise host.libraries
    # With secrets it is waited for: bwrap needs the certificate of its authority.
    return Broker(tuple(services), host.libraries, tuple(sockets), awaited=bool(host.held_secrets))


def holds(policy: Policy, host: Host) -> str:
    """Return the kind of credential that the broker holds, or nothing: the variable's name, or `login`."""
    if not claude_code.brokered(policy):
        return ""
    for name in claude_code.CREDENTIALS:
        if host.environ.get(name):
            return name
    return "login" if host.login.usable else ""


def _upstream_of(policy: Policy, host: Host) -> Upstream:
    """Return where the client would ask; what a project file says about that counts for nothing."""
    said = [row.value for row in policy.constants if row.name == claude_code.BASE_URL and not row.foreign]
    return read_upstream((*said, host.environ.get(claude_code.BASE_URL, ""))[0] or claude_code.OFFICIAL)


def _api(kind: str, policy: Policy, host: Host) -> dict[str, object]:
    upstream = _upstream_of(policy, host)
    held = [kind]
    if kind == "ANTHROPIC_AUTH_TOKEN" and host.environ.get("ANTHROPIC_API_KEY"):
        held.append("ANTHROPIC_API_KEY")  # the client sends both
    return {
        "upstream": (upstream.scheme, upstream.host, upstream.port, upstream.prefix),
        "placeholder": claude_code.PLACEHOLDER,
        "credentials": {name: host.environ[name] for name in held if name != "login"},
        "login": host.login.path if kind == "login" else "",
        "login_owner": host.login.source if kind == "login" else "",
        "egress": {name: host.environ[name] for name in (*_CA, *_PROXIES) if host.environ.get(name)},
        "ca_bundle": host.ca_bundle.real if host.ca_bundle is not None else "",
    }


def read_upstream(address: str) -> Upstream:
    """Read an address as `ANTHROPIC_BASE_URL` has it."""
    scheme, slashes, rest = address.partition("://")
    authority, _, path = rest.partition("/")
    name, bracket, after = authority.partition("]")
    host, _, port = (name[1:], "", after[1:]) if bracket and name[:1] == "[" else authority.partition(":")
    plain = host.replace("-", "a").replace(".", "a").replace("_", "a").replace(":", "a")
    number = port or str(_PORTS.get(scheme, 0))
    if (
        scheme not in _PORTS
        or not slashes
        or not (plain.isascii() and plain.isalnum())
        or not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65536)
        or not set(path) <= _PATH
    ):
        raise ClaudeboxError(
            f"`{claude_code.BASE_URL}` is not an address that claudebox can use",
            hint="`https://HOST[:PORT][/PATH]`, without a name or a password in it; or `--auth passthrough`",
        )
    path = path.rstrip("/")
    return Upstream(scheme, host.lower(), int(number), f"/{path}" if path else "")


_PATH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/@:")


def provide(policy: Policy, host: Host) -> Provision:
    """Return what the sandbox gets of it: the socket of the client, placeholders, and a word to the agent."""
    if not holds(policy, host):
        return Provision()
    socket = Mount(
        claude_code.API_SOCKET, "socket", "the way to the model; the key is added outside", API, role="client"
    )
    return Provision(mounts=(socket,), variables=tuple(_variables(policy, host)), advice=(_ADVICE,))


def _variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Return what the client finds instead of a credential."""
    kind = holds(policy, host)
    if not kind:
        return
    upstream = _upstream_of(policy, host)
    yield Variable("ANTHROPIC_UNIX_SOCKET", claude_code.API_SOCKET, "claudebox", "the way to the broker")
    yield Variable(claude_code.BASE_URL, "http://localhost", "claudebox", f"the broker asks {upstream} instead")
    if str(upstream) == claude_code.OFFICIAL:
        yield Variable(claude_code.FIRST_PARTY, "1", "claudebox", "behind the broker is Anthropic's own API")
    name = "CLAUDE_CODE_OAUTH_TOKEN" if kind == "login" else kind
    yield Variable(name, claude_code.PLACEHOLDER, "claudebox", _REASON)
    if kind == "login":
        for trait, value in host.login.traits:
            yield Variable(trait, value, "claudebox", "what the login is good for, without the login")


def described(plan: Plan) -> Iterator[str]:
    """Yield what a person should know about the broker of a plan."""
    for service in plan.broker.services if plan.broker is not None else ():
        if service.name == API:
            yield f"{_what(service)} stays outside; a broker adds it to requests to {_upstream(service)}"


def _what(service: Service) -> str:
    names = list(service.config["credentials"])  # type: ignore[call-overload]
    if names:
        return " and ".join(names)
    return "the login of the host" if service.config["login_owner"] == "host" else "the login"


def _upstream(service: Service) -> Upstream:
    return Upstream(*service.config["upstream"])  # type: ignore[misc]


def as_document(plan: Plan) -> dict[str, object] | None:
    """Return the broker for machines, without what it holds."""
    if plan.broker is None:
        return None
    return {
        "services": [service.name for service in plan.broker.services],
        "upstream": next((str(_upstream(row)) for row in plan.broker.services if row.name == API), None),
        "holds": next((_what(row) for row in plan.broker.services if row.name == API), None),
    }
