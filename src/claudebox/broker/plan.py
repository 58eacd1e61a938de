"""Policy + Host → what a broker does for this sandbox: which credential it holds, for whom, and what stands in inside.

The client decides by what it finds in its environment which model it takes and what it can do. So it finds the same
kind of credential as on the host, with a placeholder in its place.
"""

from __future__ import annotations

from claudebox.base.addresses import read_port
from claudebox.base.errors import ClaudeboxError
from claudebox.network import plan as network_plan
from claudebox.network.facts import find_proxy
from claudebox.network.records import ApiConfig, Broker, Budget, Endpoint, InjectConfig, Served, Trust
from claudebox.plan.records import Extras, Mount, Variable
from claudebox.settings.domains import Permission, parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.agent.record import ModelService
    from claudebox.host.records import Host
    from claudebox.network.facts import HostProxy
    from claudebox.plan.records import Plan
    from claudebox.settings.records import Policy, SecretRequest


MODEL_API = "model_api"  # the service, and its socket
_PORTS = {"http": 80, "https": 443}
_ADVICE = (
    "The key or login for the model stays outside: what stands in the environment is a placeholder, and a helper on "
    "the host puts the real one in. It answers the client's own requests to the model and nothing else; do not look "
    "for the key, and do not use the socket for other things."
)
_REASON = "stands in for the real one, which stays outside"


def plan(policy: Policy, host: Host, held: str) -> Broker | None:
    """Return the broker of this sandbox, if it needs one; `held` is the credential that stays outside."""
    check_cloud(policy, host)
    if any(policy.budget) and not held:
        raise ClaudeboxError(
            "`--budget` and `--tokens` need the broker to hold the credential: nobody else counts what the model costs",
            hint="set ANTHROPIC_API_KEY or log in on the host, without `--auth passthrough` and `--env` of the key",
        )
    model_api = _model_api(held, policy, host) if held else None
    proxy = network_plan.plan_proxy(policy, host)
    inject = None
    if host.secrets.held:
        inject = plan_injection(policy, host)
    if model_api is None and proxy is None and inject is None:
        return None
    if isinstance(host.secrets.libraries, ClaudeboxError):
        raise host.secrets.libraries
    sockets = (MODEL_API,) if held else ()
    # With secrets it is waited for: bwrap needs the certificate of its authority.
    return Broker(model_api, proxy, inject, host.secrets.libraries, sockets, awaited=inject is not None)


def _endpoint_of(policy: Policy, host: Host) -> Endpoint:
    """Return where the client would ask; what a project file says about that counts for nothing."""
    upstream = policy.agent.upstream
    said = [row.value for row in policy.constants if row.name == upstream.base_url and not row.untrusted]
    address = (*said, host.environ.get(upstream.base_url, ""))[0] or upstream.official
    return read_endpoint(address, upstream.base_url)


def _model_api(held: str, policy: Policy, host: Host) -> ApiConfig:
    environ, upstream = host.environ, policy.agent.upstream
    endpoint = _endpoint_of(policy, host)
    names = [held] if held in upstream.credentials else []
    if held == "ANTHROPIC_AUTH_TOKEN" and environ.get("ANTHROPIC_API_KEY"):
        names.append("ANTHROPIC_API_KEY")  # the client sends both
    renewing = read_endpoint(upstream.token_url)
    return ApiConfig(
        endpoint=endpoint,
        placeholder=upstream.placeholder,
        credentials=tuple((name, environ[name]) for name in names),
        headers=read_headers(environ.get(upstream.headers, ""), upstream.headers),
        login=host.agent.login.path if held == "login" else "",
        login_owner=host.agent.login.source if held == "login" else "",
        trust=Trust(
            environ.get("SSL_CERT_FILE") or (host.system.ca_bundle.real if host.system.ca_bundle is not None else ""),
            environ.get("SSL_CERT_DIR", ""),
            environ.get("NODE_EXTRA_CA_CERTS", ""),
            *(environ.get(name, "") for name in upstream.certificate),
        ),
        proxy=_proxy_towards(endpoint, environ),
        budget=Budget(*policy.budget) if any(policy.budget) else None,
        login_proxy=_proxy_towards(renewing, environ) if held == "login" else None,
    )


def read_headers(text: str, variable: str) -> tuple[tuple[str, str], ...]:
    """Read what this variable says: `Name: value`, one per line; an error never repeats a value."""
    found = []
    for line in filter(str.strip, text.split("\n")):
        name, colon, value = (part.strip() for part in line.partition(":"))
        plain = name.replace("-", "a").replace("_", "a")
        if not colon or not plain.isascii() or not plain.isalnum() or not (value.isascii() and value.isprintable()):
            raise ClaudeboxError(
                f"`{variable}` has a line that is not `Name: value`",
                hint="write one header per line",
            )
        if name.lower() in _FRAMING:
            raise ClaudeboxError(f"`{variable}`: `{name}` is not for users to set")
        found.append((name.lower(), value))
    return tuple(found)


_FRAMING = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip


def check_cloud(policy: Policy, host: Host) -> None:
    """Refuse to ask somebody else than the client on the host would ask, or nobody: that is for the user to say."""
    if policy.program != "client" or policy.command or policy.cloud:
        return
    denied = {row.name for row in policy.constants}
    for name, cloud, needed in policy.agent.upstream.clouds:
        if host.environ.get(name, "").lower() not in ("", "0", "false", "no", "off") and name not in denied:
            raise ClaudeboxError(
                f"on the host the client asks {cloud} (`{name}`), and inside it would not: the broker cannot sign "
                "requests to it",
                hint=f"let it in with `--env {name}`, and {needed} the same way or as `[[secrets]]` (docs/gateways.md);"
                f" or `--set-env {name}=0` to ask Anthropic's API",
            )


def _proxy_towards(endpoint: Endpoint, environ: dict[str, str]) -> HostProxy | None:
    proxy, _ = find_proxy(environ, endpoint.scheme)
    return proxy if proxy is not None and proxy.serves(endpoint.host, endpoint.port) else None


def read_endpoint(address: str, variable: str = "the address") -> Endpoint:
    """Read an address; an error names the variable that says it."""
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
        or not read_port(number)
        or not set(path) <= _PATH
    ):
        raise ClaudeboxError(
            f"`{variable}` is not an address that claudebox can use",
            hint="`https://HOST[:PORT][/PATH]`, without a name or a password in it; or `--auth passthrough`",
        )
    path = path.rstrip("/")
    return Endpoint(scheme, host.lower(), int(number), f"/{path}" if path else "")


_PATH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/@:")


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Say what is wrong with the proxy of this machine towards the model."""
    _, problem = find_proxy(host.environ, _endpoint_of(policy, host).scheme)
    if problem:
        yield problem


def provide(policy: Policy, host: Host, held: str) -> Extras:
    """Return what the sandbox gets of it: the socket of the client, placeholders, and a word to the agent."""
    if not held:
        return Extras()
    reason = "the way to the model; the key is added outside"
    socket = Mount(policy.agent.upstream.socket, "socket", reason, MODEL_API, role="client")
    advice = (_ADVICE, *_budget_advice(policy))
    return Extras(mounts=(socket,), variables=tuple(_variables(policy, host, held)), advice=advice)


def _budget_advice(policy: Policy) -> Iterator[str]:
    if any(policy.budget):
        yield (
            f"The model may cost {Budget(*policy.budget)} in this session, subagents included; after "
            "that every request ends with a billing error. Commit what is finished as you go, and start no more than "
            "fits."
        )


def _variables(policy: Policy, host: Host, held: str) -> Iterator[Variable]:
    """Return what the client finds instead of a credential."""
    endpoint, upstream = _endpoint_of(policy, host), policy.agent.upstream
    yield Variable(upstream.socket_variable, upstream.socket, "claudebox", "the way to the broker")
    yield Variable(upstream.base_url, upstream.nowhere, "claudebox", f"the broker asks {endpoint} instead")
    if str(endpoint) == upstream.official:
        yield Variable(upstream.first_party, "1", "claudebox", "behind the broker is Anthropic's own API")
    others = held if held in upstream.credentials else upstream.credentials[0]
    name = upstream.login_variable if held == "login" else others
    yield Variable(name, upstream.placeholder, "claudebox", _REASON)
    if held == "login":
        for trait, value in host.agent.login.traits:
            yield Variable(trait, value, "claudebox", "what the login is good for, without the login")


def described(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about the broker of a plan."""
    config = plan.broker.model_api if plan.broker is not None else None
    if config is not None:
        through = f", through the proxy of this machine, {config.proxy}" if config.proxy is not None else ""
        what = _what(config, plan.policy.agent.upstream)
        yield f"{what} stays outside; a broker adds it to requests to {config.endpoint}{through}"
        if config.budget is not None:
            yield f"the model may cost {config.budget} in this session"


def _what(config: ApiConfig, upstream: ModelService) -> str:
    names = [name for name, _ in config.credentials]
    names += [upstream.headers] if config.headers else []
    names += [upstream.certificate[0]] if config.trust.certificate and not config.credentials else []
    if config.credentials or (names and not config.login):
        return " and ".join(names)
    return "the login of the host" if config.login_owner == "host" else "the login"


def as_document(plan: Plan) -> dict[str, object] | None:
    """Return the broker for machines, without what it holds."""
    if plan.broker is None:
        return None
    model_api = plan.broker.model_api
    return {
        "services": [name for name, _ in plan.broker.services],
        "model_api": model_api
        and {
            "endpoint": str(model_api.endpoint),
            "holds": _what(model_api, plan.policy.agent.upstream),
            "through": str(model_api.proxy) if model_api.proxy is not None else "",
            "budget": str(model_api.budget) if model_api.budget is not None else "",
        },
        "secrets": [
            {"env": row.env, "hosts": [f"{host}:{port}" for host, port in row.hosts], "permit": list(row.permit)}
            for row in (plan.broker.inject.secrets if plan.broker.inject is not None else ())
        ],
    }


# Policy + Host → what the broker does with `[[secrets]]`: the values that it holds, and where it answers for hosts.
#
# Off the usual launch path: imported only where somebody has such settings.


_OTHER_PORTS = (22, 80)


def served(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listeners inside, one for each host and port."""
    rows = (*_places(host), *_passages(policy, host))
    return tuple(Served(name, "stream", port, address) for name, (_, port), address in rows)


def plan_injection(policy: Policy, host: Host) -> InjectConfig:
    """Return what the broker does with the secrets; their values come when they have been fetched."""
    return InjectConfig(
        host.secrets.held,
        bundle=host.system.ca_bundle.real if host.system.ca_bundle is not None else "",
        authorities=host.network.company.upstream if host.network.company is not None else b"",
        inside=host.network.company.bundle if host.network.company is not None else b"",
        named=host.network.company.named if host.network.company is not None else b"",
        ranges=network_plan.closed_ranges(policy.addresses),
        proxy=network_plan.usable_proxy(host.environ)[0],
        listeners=tuple((name, *place) for name, place, _ in _places(host)),
        passages=tuple((name, *place) for name, place, _ in _passages(policy, host)),
        environ=tuple(host.environ.items()) if any(row.source[:8] == "command:" for row in host.secrets.held) else (),
        home=host.home,
        workdir=host.workdir.real,
    )


def with_values(broker: Broker, held: tuple[SecretRequest, ...]) -> Broker:
    """Return the broker with the values, which nobody else sees; for whom they are stays what was shown."""
    if broker.inject is None:
        return broker
    fetched = {row.env: row for row in held}
    rows = tuple(
        row.replace(value=fetched[row.env].value, placeholder=fetched[row.env].placeholder)
        for row in broker.inject.secrets
        if row.env in fetched
    )
    return broker.replace(inject=broker.inject.replace(secrets=rows))


def _places(host: Host) -> Iterable[tuple[str, tuple[str, int], str]]:
    aliases = network_plan.aliases(host)
    places = dict.fromkeys(place for secret in host.secrets.held for place in secret.hosts)
    return [(f"secrets-{index}", place, aliases[place[0]]) for index, place in enumerate(places)]


def _passages(policy: Policy, host: Host) -> Iterable[tuple[str, tuple[str, int], str]]:
    """Return what else these hosts are used for: the address that stands for one inside must lead there too."""
    taken = {place for secret in host.secrets.held for place in secret.hosts}
    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    ports = _OTHER_PORTS if policy.tier.uplink else _OTHER_PORTS[:1]  # of the web, the proxy looks at names
    places = [
        ((name, port), address)
        for name, address in network_plan.aliases(host).items()
        for port in ports
        if (name, port) not in taken and (policy.tier.uplink or permission.rule(name, port) is not None)
    ]
    return [(f"passage-{index}", *row) for index, row in enumerate(places)]
