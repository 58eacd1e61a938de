"""Policy + Host → the broker of a sandbox: credentials for models, `[[secrets]]`, and what stands in for them inside.

The client chooses its model and its features by the credential in its environment. So inside it finds the same kind
of credential as on the host, with a placeholder as its value.
"""

from __future__ import annotations

from claudebox.base.addresses import read_port, split_place
from claudebox.base.errors import ClaudeboxError
from claudebox.network import plan as network_plan
from claudebox.network.facts import find_proxy
from claudebox.network.records import (
    ApiConfig,
    Broker,
    Budget,
    Credential,
    Endpoint,
    InjectConfig,
    Served,
    Trust,
)
from claudebox.plan.records import MODEL_PLACEHOLDER, Additions, Deferred, Mount, Variable
from claudebox.settings.domains import Permission, parse_domain
from claudebox.tables.environment import MODEL_PORT
from claudebox.tables.network import FRAMING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.agent.record import LoginFile, Upstream
    from claudebox.broker.facts import ModelLogin
    from claudebox.host.records import Host
    from claudebox.network.facts import HostProxy
    from claudebox.plan.records import Plan
    from claudebox.settings.records import Policy, SecretRequest


MODEL_API = "model_api"  # the service, and its socket
PLACEHOLDER = "claudebox-placeholder"  # what an agent holds instead of a key, where only it reaches the broker
_PORTS = {"http": 80, "https": 443}
_PATH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/@:")
_OTHER_PORTS = (22, 80)  # of the hosts of secrets
_ADVICE = (
    "The key or login for the model stays outside: what stands in the environment is a placeholder, and a helper on "
    "the host puts the real one in. It answers the client's own requests to the model and nothing else; do not look "
    "for the key, and do not use the socket for other things."
)


def plan(policy: Policy, host: Host, held: str) -> Broker | None:
    """Return the broker of this sandbox, if it needs one; `held` is the credential that stays outside."""
    check_cloud(policy, host)
    models = (*([_model_api(held, policy, host)] if held else []), *_models(policy, host))
    if any(policy.budget) and not models:
        names = " or ".join(policy.agent.upstream.credentials[1:2] or [row.keys[0] for row in policy.agent.upstreams])
        raise ClaudeboxError(
            "`--budget` and `tokens` need the broker to hold the credential: it counts what the model costs",
            hint=f"set {names} or log in on the host, without `--set auth=passthrough` and `--env` of the key",
        )
    proxy = network_plan.plan_proxy(policy, host)
    inject = plan_injection(policy, host) if host.secrets.held else None
    if not models and proxy is None and inject is None:
        return None
    if isinstance(host.secrets.libraries, ClaudeboxError):
        raise host.secrets.libraries
    sockets = (MODEL_API,) if held else ()
    # With secrets the launch waits for it: bwrap needs its certificate.
    return Broker(models, proxy, inject, host.secrets.libraries, sockets, awaited=inject is not None)


def held_models(policy: Policy, host: Host) -> tuple[tuple[Upstream, str, ModelLogin | None], ...]:
    """Return the APIs that are reached by a base URL and whose key the broker holds: its variable, or its file.

    One that takes nothing but a login is asked if no other is held.
    """
    if policy.auth != "broker":
        return ()
    named = {row.name for row in policy.names if not row.untrusted}
    named |= {row.name for row in policy.constants if not row.untrusted}
    files = {row.api: row for row in host.secrets.models}
    found: list[tuple[Upstream, str, ModelLogin | None]] = []
    for api in policy.agent.upstreams:
        name = next((name for name in api.keys if host.environ.get(name)), "")
        if (name or api.name in files) and named.isdisjoint(api.keys) and (api.keys or not found):
            found.append((api, name, None if name else files[api.name]))
    return tuple(found)


def _ports(policy: Policy, host: Host) -> Iterator[int]:
    """Yield the ports of the loopback where models are served: inside, or of the host where it is the same."""
    if policy.tier.shared:
        yield from host.network.model_ports
        return
    taken = {*policy.host_ports, *(row.inside for row in policy.published)}
    yield from (port for port in range(MODEL_PORT, MODEL_PORT + 100) if port not in taken)


def _models(policy: Policy, host: Host) -> Iterator[ApiConfig]:
    environ, shared = host.environ, policy.tier.shared
    for (api, name, file), port in zip(held_models(policy, host), _ports(policy, host), strict=False):
        kind = api.login if file is not None and not file.field else None
        endpoint = _endpoint_of(api.base_url, api.official, policy, host)
        if file is not None and file.address:  # a key belongs to the address beside it
            endpoint = read_endpoint(file.address, f"{api.base_url} in {_spell(file.path, host)}")
        credential = Credential(name, _header(environ, name) if name else "", api.header, api.prefix)
        if kind is not None and kind.official:
            endpoint = read_endpoint(kind.official)
        if file is not None and file.field:
            credential = credential.replace(name=_spell(file.path, host), file=file.path, field=file.field)
        yield ApiConfig(
            endpoint,
            api.placeholder if shared else api.placeholder + PLACEHOLDER,
            api,
            credentials=() if kind is not None else (credential,),
            headers=tuple((field, _header(environ, name)) for name, field in api.headers if environ.get(name)),
            login=file.path if file is not None and kind is not None else "",
            login_kind=kind,
            login_owner=f"the login in {_spell(file.path, host)}" if file is not None else "",
            trust=_trust(host),
            proxy=_proxy_towards(endpoint, environ),
            budget=Budget(*policy.budget) if any(policy.budget) else None,
            login_proxy=_renewal_proxy(kind, environ),
            port=port,
            shared=shared,
        )


def _spell(path: str, host: Host) -> str:
    return f"~{path.removeprefix(host.home)}" if path.startswith(f"{host.home}/") else path


def _header(environ: dict[str, str], name: str) -> str:
    """Return the value of a header; refuse one that none can carry, which could smuggle others."""
    value = environ[name].strip()
    if not value.isascii() or not value.isprintable():
        raise ClaudeboxError(f"`{name}` has characters that no HTTP header can carry")
    return value


def urls(policy: Policy, host: Host) -> dict[str, str]:
    """Return the addresses inside of the APIs that are reached by a base URL, by their names."""
    return {model.api.name: _url(model) for model in _models(policy, host)}


def _url(model: ApiConfig) -> str:
    return f"http://127.0.0.1:{model.port}{read_endpoint(model.api.official).prefix}"


def _endpoint(policy: Policy, host: Host) -> Endpoint:
    """Return where the client would send requests."""
    return _endpoint_of(policy.agent.upstream.base_url, policy.agent.upstream.official, policy, host)


def _endpoint_of(variable: str, official: str, policy: Policy, host: Host) -> Endpoint:
    """Return the address that a variable names, else the official one; project files cannot change that."""
    said = [row.value for row in policy.constants if row.name == variable and not row.untrusted]
    address = (*said, host.environ.get(variable, ""))[0] or official
    return read_endpoint(address, variable)


def _model_api(held: str, policy: Policy, host: Host) -> ApiConfig:
    environ, upstream = host.environ, policy.agent.upstream
    endpoint = _endpoint(policy, host)
    names = [held] if held in upstream.credentials else []
    if held == "ANTHROPIC_AUTH_TOKEN" and environ.get("ANTHROPIC_API_KEY"):
        names.append("ANTHROPIC_API_KEY")  # the client sends both
    assert upstream.api is not None  # noqa: S101 - there is a credential for it
    return ApiConfig(
        endpoint=endpoint,
        api=upstream.api,
        placeholder=upstream.placeholder,
        credentials=tuple(_credential(name, _header(environ, name)) for name in names),
        headers=read_headers(environ.get(upstream.headers, ""), upstream.headers),
        login=host.agent.login.path if held == "login" else "",
        login_kind=upstream.login if held == "login" else None,
        login_owner=host.agent.login.source if held == "login" else "",
        trust=_trust(host, upstream.certificate),
        proxy=_proxy_towards(endpoint, environ),
        budget=Budget(*policy.budget) if any(policy.budget) else None,
        login_proxy=_renewal_proxy(upstream.login, environ) if held == "login" else None,
    )


def _credential(name: str, value: str) -> Credential:
    return Credential(name, value, "x-api-key", "") if name == "ANTHROPIC_API_KEY" else Credential(name, value)


def _trust(host: Host, certificate: tuple[str, ...] = ()) -> Trust:
    environ = host.environ
    return Trust(
        environ.get("SSL_CERT_FILE") or (host.system.ca_bundle.real if host.system.ca_bundle is not None else ""),
        environ.get("SSL_CERT_DIR", ""),
        environ.get("NODE_EXTRA_CA_CERTS", ""),
        *(environ.get(name, "") for name in certificate),
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
        if name.lower() in FRAMING:
            raise ClaudeboxError(f"`{variable}`: `{name}` cannot be set")
        found.append((name.lower(), value))
    return tuple(found)


def check_cloud(policy: Policy, host: Host) -> None:
    """Refuse if the client on the host uses a cloud that the broker cannot serve; the user must choose."""
    if policy.program != "client" or policy.cloud:
        return
    denied = {row.name for row in policy.constants}
    for name, cloud, needed in policy.agent.upstream.clouds:
        if host.environ.get(name, "").lower() not in ("", "0", "false", "no", "off") and name not in denied:
            raise ClaudeboxError(
                f"the client on the host uses {cloud} (`{name}`), for which the broker cannot sign requests",
                hint=f"let it in with `--env {name}`, and {needed} the same way or as `[[secrets]]` (docs/network.md);"
                f" or `--env {name}=0` to ask Anthropic's API",
            )


def _renewal_proxy(login: LoginFile | None, environ: dict[str, str]) -> HostProxy | None:
    return _proxy_towards(read_endpoint(login.url), environ) if login is not None else None


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
            hint="`https://HOST[:PORT][/PATH]`, without a name or a password in it; or `--set auth=passthrough`",
        )
    path = path.rstrip("/")
    return Endpoint(scheme, host.lower(), number, f"/{path}" if path else "")


def warnings(policy: Policy, host: Host, held: str) -> Iterator[str]:
    """Yield the problem with the host's proxy towards the models, if any."""
    endpoints = [_endpoint(policy, host)] if held else []
    for endpoint in (*endpoints, *(model.endpoint for model in _models(policy, host))):
        _, problem = find_proxy(host.environ, endpoint.scheme)
        if problem:
            yield problem


def provide(policy: Policy, host: Host, held: str) -> Additions:
    """Return the client's socket, placeholders, and advice for the agent."""
    models = tuple(_models(policy, host))
    if not held and not models:
        return Additions()
    reason = "the way to the model; the key is added outside"
    mounts = (Mount(policy.agent.upstream.socket, "socket", reason, MODEL_API, role="client"),) if held else ()
    advice = [_ADVICE]
    if any(policy.budget):
        advice.append(
            f"The model may cost {Budget(*policy.budget)} in this session, subagents included; after that every "
            "request ends with a billing error. Commit what is finished as you go, and start no more than fits."
        )
    variables = (*(_variables(policy, host, held) if held else ()), *_model_variables(models))
    arguments = tuple(word.replace("{url}", _url(model)) for model in models for word in model.api.args)
    return Additions(mounts=mounts, variables=variables, advice=tuple(advice), arguments=arguments)


def _model_variables(models: tuple[ApiConfig, ...]) -> Iterator[Variable]:
    """Yield what an agent finds instead of keys and addresses."""
    for model in models:
        for name, template in model.api.env:
            text = template.replace("{url}", _url(model))
            first, stands, last = text.partition("{placeholder}")
            secret = Deferred(MODEL_PLACEHOLDER, first + model.placeholder, last) if stands and model.shared else None
            value = text.replace("{placeholder}", "" if secret else model.placeholder)
            reason = (
                f"stands in for {_name_source(model)}, which stays outside" if stands else
                f"the broker asks {model.endpoint} instead"
            )  # fmt: skip
            yield Variable(name, value, "claudebox", reason, deferred=secret)


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
    models = plan.broker.models if plan.broker is not None else ()
    places: dict[str, list[str]] = {}
    for config in models:
        through = f", through the proxy of this machine, {config.proxy}" if config.proxy is not None else ""
        places.setdefault(_name_credential(config, plan), []).append(f"{config.endpoint}{through}")
    towards = [" and ".join(rows) for rows in places.values()]
    if len(places) > 1:
        yield f"{', '.join(places)} stay outside; a broker adds each to requests to its service: {', '.join(towards)}"
    elif places:
        yield f"{next(iter(places))} stays outside; a broker adds it to requests to {towards[0]}"
    if models and models[0].budget is not None:
        yield f"the model may cost {models[0].budget} in this session"


def _name_source(model: ApiConfig) -> str:
    return " and ".join(row.name for row in model.credentials) or model.login_owner


def _name_credential(config: ApiConfig, plan: Plan) -> str:
    upstream, names = plan.policy.agent.upstream, [row.name for row in config.credentials]
    if config.port:
        return _name_source(config)
    names += [upstream.headers] if config.headers else []
    names += [upstream.certificate[0]] if config.trust.certificate and not config.credentials else []
    if config.credentials or (names and not config.login):
        return " and ".join(names)
    return "the login of the host" if config.login_owner == "host" else "the login"


def as_document(plan: Plan) -> dict[str, object] | None:
    """Return the broker as JSON, without values."""
    if plan.broker is None:
        return None
    return {
        "services": [name for name, _ in plan.broker.services],
        "models": [
            {
                "name": model.api.name,
                "endpoint": str(model.endpoint),
                "holds": _name_credential(model, plan),
                "through": str(model.proxy) if model.proxy is not None else "",
                "budget": str(model.budget) if model.budget is not None else "",
                "address": _url(model) if model.port else "",
            }
            for model in plan.broker.models
        ],
        "secrets": [
            {"env": row.env, "hosts": [f"{host}:{port}" for host, port in row.hosts], "permit": list(row.permit)}
            for row in (plan.broker.inject.secrets if plan.broker.inject is not None else ())
        ],
    }


def served(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listeners inside for models and for the hosts of secrets."""
    models = (Served(model.listener, "stream", model.port) for model in _models(policy, host))
    return (*models, *(Served(name, "stream", port, alias) for name, _, port, alias in _stand_in(policy, host)))


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
        listeners=tuple(row[:3] for row in _stand_in(policy, host)),
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


def _stand_in(policy: Policy, host: Host) -> Iterator[tuple[str, str, int, str]]:
    """Yield the listeners for hosts of secrets: a name, host and port, and the address inside that stands for it.

    /etc/hosts leads their names to us, so other ports of them must be passed on.
    """
    held = [place for secret in host.secrets.held for place in secret.hosts]
    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    ports = _OTHER_PORTS if policy.tier.uplink else _OTHER_PORTS[:1]  # the proxy of tier `allow` serves port 80
    others = [(name, port) for name, _ in held for port in ports
              if policy.tier.uplink or permission.rule(name, port) is not None]  # fmt: skip
    for index, (name, port) in enumerate(dict.fromkeys((*held, *others))):
        yield f"secrets-{index}", name, port, network_plan.aliases(host)[name]
