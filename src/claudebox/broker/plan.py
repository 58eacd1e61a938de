"""Policy + Host → the broker of a sandbox: the credential for the model, `[[secrets]]`, and what stands in inside.

The client chooses its model and its features by the credential in its environment. So inside it finds the same kind
of credential as on the host, with a placeholder as its value.
"""

from __future__ import annotations

from claudebox.base.addresses import read_port, split_place
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
_PATH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/@:")
_FRAMING = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
_OTHER_PORTS = (22, 80)  # of the hosts of secrets
_ADVICE = (
    "The key or login for the model stays outside: what stands in the environment is a placeholder, and a helper on "
    "the host puts the real one in. It answers the client's own requests to the model and nothing else; do not look "
    "for the key, and do not use the socket for other things."
)


def plan(policy: Policy, host: Host, held: str) -> Broker | None:
    """Return the broker of this sandbox, if it needs one; `held` is the credential that stays outside."""
    check_cloud(policy, host)
    if any(policy.budget) and not held:
        raise ClaudeboxError(
            "`--budget` and `--tokens` need the broker to hold the credential: it counts what the model costs",
            hint="set ANTHROPIC_API_KEY or log in on the host, without `--auth passthrough` and `--env` of the key",
        )
    model_api = _model_api(held, policy, host) if held else None
    proxy = network_plan.plan_proxy(policy, host)
    inject = plan_injection(policy, host) if host.secrets.held else None
    if model_api is None and proxy is None and inject is None:
        return None
    if isinstance(host.secrets.libraries, ClaudeboxError):
        raise host.secrets.libraries
    sockets = (MODEL_API,) if held else ()
    # With secrets the launch waits for it: bwrap needs its certificate.
    return Broker(model_api, proxy, inject, host.secrets.libraries, sockets, awaited=inject is not None)


def _endpoint(policy: Policy, host: Host) -> Endpoint:
    """Return where the client would send requests; project files cannot change that."""
    upstream = policy.agent.upstream
    said = [row.value for row in policy.constants if row.name == upstream.base_url and not row.untrusted]
    address = (*said, host.environ.get(upstream.base_url, ""))[0] or upstream.official
    return read_endpoint(address, upstream.base_url)


def _model_api(held: str, policy: Policy, host: Host) -> ApiConfig:
    environ, upstream = host.environ, policy.agent.upstream
    endpoint = _endpoint(policy, host)
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
            raise ClaudeboxError(f"`{variable}`: `{name}` cannot be set")
        found.append((name.lower(), value))
    return tuple(found)


def check_cloud(policy: Policy, host: Host) -> None:
    """Refuse if the client on the host uses a cloud that the broker cannot serve; the user must choose."""
    if policy.program != "client" or policy.command or policy.cloud:
        return
    denied = {row.name for row in policy.constants}
    for name, cloud, needed in policy.agent.upstream.clouds:
        if host.environ.get(name, "").lower() not in ("", "0", "false", "no", "off") and name not in denied:
            raise ClaudeboxError(
                f"the client on the host uses {cloud} (`{name}`), for which the broker cannot sign requests",
                hint=f"let it in with `--env {name}`, and {needed} the same way or as `[[secrets]]` (docs/gateways.md);"
                f" or `--set-env {name}=0` to ask Anthropic's API",
            )


def _proxy_towards(endpoint: Endpoint, environ: dict[str, str]) -> HostProxy | None:
    proxy, _ = find_proxy(environ, endpoint.scheme)
    return proxy if proxy is not None and proxy.serves(endpoint.host, endpoint.port) else None


def read_endpoint(address: str, variable: str = "the address") -> Endpoint:
    """Parse an address; an error names its variable."""
    scheme, slashes, rest = address.partition("://")
    authority, _, path = rest.partition("/")
    host, port = split_place(authority)
    plain = host.replace("-", "a").replace(".", "a").replace("_", "a").replace(":", "a")
    number = read_port(port) if port is not None else _PORTS.get(scheme, 0)
    if (
        scheme not in _PORTS
        or not slashes
        or not (plain.isascii() and plain.isalnum())
        or (":" in host and authority[0] != "[")
        or not number
        or not set(path) <= _PATH
    ):
        raise ClaudeboxError(
            f"`{variable}` is not an address that claudebox can use",
            hint="`https://HOST[:PORT][/PATH]`, without a name or a password in it; or `--auth passthrough`",
        )
    path = path.rstrip("/")
    return Endpoint(scheme, host.lower(), number, f"/{path}" if path else "")


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Yield the problem with the host's proxy towards the model, if any."""
    _, problem = find_proxy(host.environ, _endpoint(policy, host).scheme)
    if problem:
        yield problem


def provide(policy: Policy, host: Host, held: str) -> Extras:
    """Return the client's socket, placeholders, and advice for the agent."""
    if not held:
        return Extras()
    reason = "the way to the model; the key is added outside"
    socket = Mount(policy.agent.upstream.socket, "socket", reason, MODEL_API, role="client")
    advice = [_ADVICE]
    if any(policy.budget):
        advice.append(
            f"The model may cost {Budget(*policy.budget)} in this session, subagents included; after that every "
            "request ends with a billing error. Commit what is finished as you go, and start no more than fits."
        )
    return Extras(mounts=(socket,), variables=tuple(_variables(policy, host, held)), advice=tuple(advice))


def _variables(policy: Policy, host: Host, held: str) -> Iterator[Variable]:
    """Yield what the client finds instead of the credential."""
    endpoint, upstream = _endpoint(policy, host), policy.agent.upstream
    yield Variable(upstream.socket_variable, upstream.socket, "claudebox", "the way to the broker")
    yield Variable(upstream.base_url, upstream.nowhere, "claudebox", f"the broker asks {endpoint} instead")
    if str(endpoint) == upstream.official:
        yield Variable(upstream.first_party, "1", "claudebox", "behind the broker is Anthropic's own API")
    others = held if held in upstream.credentials else upstream.credentials[0]
    name = upstream.login_variable if held == "login" else others
    yield Variable(name, upstream.placeholder, "claudebox", "stands in for the real one, which stays outside")
    if held == "login":
        for trait, value in host.agent.login.traits:
            yield Variable(trait, value, "claudebox", "features of the login, which stays outside")


def described(plan: Plan) -> Iterator[str]:
    """Yield what the user should know about the broker."""
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
    """Return the broker as JSON, without values."""
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


def served(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listeners inside for the hosts of secrets."""
    rows = (*_places(host), *_passages(policy, host))
    return tuple(Served(name, "stream", port, address) for name, (_, port), address in rows)


def plan_injection(policy: Policy, host: Host) -> InjectConfig:
    """Return the configuration for the secrets, still without their values."""
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
    """Return the broker with the values; the hosts stay those that the user was shown."""
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
    """Return other ports of these hosts: /etc/hosts leads their names to us, so we must pass them on."""
    taken = {place for secret in host.secrets.held for place in secret.hosts}
    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    ports = _OTHER_PORTS if policy.tier.uplink else _OTHER_PORTS[:1]  # the proxy of tier `allow` serves port 80
    places = [
        ((name, port), address)
        for name, address in network_plan.aliases(host).items()
        for port in ports
        if (name, port) not in taken and (policy.tier.uplink or permission.rule(name, port) is not None)
    ]
    return [(f"passage-{index}", *row) for index, row in enumerate(places)]
