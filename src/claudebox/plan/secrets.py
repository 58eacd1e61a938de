"""Settings of secrets that stay outside → what the broker is to hold, checked for contradictions.

Off the usual launch path: imported only where somebody has such settings.
"""

from __future__ import annotations

from claudebox.config.domains import Permission, parse
from claudebox.config.model import Secret
from claudebox.config.parsers import valid_name
from claudebox.errors import ClaudeboxError
from claudebox.plan import network
from claudebox.plan.environment import AUTHORITIES, MADE
from claudebox.plan.model import InjectConfig, InjectedSecret, Served

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.config.model import Constant, NameRequest, Policy
    from claudebox.config.settings import Given, Settings
    from claudebox.facts.host import Host

PORT = 443
_OTHER_PORTS = (22, 80)
_OF_THE_CLIENT = frozenset(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"))
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def read(given: Given) -> Secret:
    """Return one of the rows, or say what is wrong with it."""
    name, source = given.fields["env"], given.fields["from"]
    if not valid_name(name):
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is not the name of a variable")
    if name in MADE or name in AUTHORITIES:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is made by claudebox")
    if name in _OF_THE_CLIENT:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is the client's key, which has its own way in")
    kind, _, rest = source.partition(":")
    if (
        not (kind == "env" and valid_name(rest))
        and not (kind == "file" and rest.startswith(("/", "~/")))
        and not (kind == "command" and rest.strip())
    ):
        raise ClaudeboxError(
            f"`{given.origin}`: the value does not come from `env:NAME`, `file:/PATH` or `command:WORDS`",
            hint="never write the value itself into a file of settings",
        )
    hosts = tuple(dict.fromkeys(_host(word, given.origin) for word in given.fields["hosts"].split()))
    return Secret(name, hosts, source, given.origin)


def _host(word: str, origin: str) -> tuple[str, int]:
    """Return name and port; each host is named in full, since any other would get the value too."""
    name, colon, port = word.lower().partition(":")
    labels = name.split(".")
    if "*" in name:
        raise ClaudeboxError(
            f"`{origin}`: `{word}` would give the value to hosts that anybody may have named",
            hint="name each host in full",
        )
    if (
        len(name) > 253
        or len(labels) < 2
        or not all(0 < len(label) < 64 and set(label) <= _LETTERS and label.strip("-") == label for label in labels)
        or labels[-1].isdigit()
    ):
        raise ClaudeboxError(f"`{origin}`: `{word}` is not the name of a host", hint="`api.github.com`, say")
    if colon and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise ClaudeboxError(f"`{origin}`: `{port}` is not a port from 1 to 65535")
    return name, int(port) if colon else PORT


def decide(
    settings: Settings, network: Given, names: Iterable[NameRequest], constants: Iterable[Constant]
) -> tuple[Secret, ...]:
    """Return the secrets of these settings; a later file replaces what an earlier one says about a variable."""
    found: dict[str, Secret] = {}
    for secret in map(read, settings.all("secrets")):
        other = found.get(secret.env)
        if other is not None and _file(other.origin) == _file(secret.origin):
            raise ClaudeboxError(f"`{secret.origin}`: `{secret.env}` is there twice", hint="name all hosts in one row")
        found[secret.env] = secret
    secrets = tuple(found.values())
    if network.value == "full":
        first = secrets[0]
        raise ClaudeboxError(
            f"`{first.origin}`: secrets cannot be kept outside in tier `full`: the sandbox has no network of its own",
            hint="choose `--network inet` or `--network allow`",
        )
    asked = {request.name: request.origin for request in names} | {row.name: row.origin for row in constants}
    for secret in secrets:
        for name in (secret.env, secret.source.removeprefix("env:")):
            if name in asked:
                raise ClaudeboxError(
                    f"`{asked[name]}` lets `{name}` in, and `{secret.origin}` keeps its value out",
                    hint="leave one of them away",
                )
    return secrets


def _file(origin: str) -> str:
    return origin.rpartition(":")[0]


def served(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listeners inside, one for each host and port."""
    rows = (*_places(host), *_passages(policy, host))
    return tuple(Served(name, "stream", port, address) for name, (_, port), address in rows)


def plan_injection(policy: Policy, host: Host) -> InjectConfig:
    """Return what the broker does with the secrets; nobody else sees the values."""
    return InjectConfig(
        tuple(InjectedSecret(row.env, row.value, row.placeholder, row.hosts) for row in host.held_secrets),
        bundle=host.ca_bundle.real if host.ca_bundle is not None else "",
        ranges=network.closed_ranges(),
        proxy=network.tunnel_proxy(host.environ)[0],
        listeners=tuple((name, *place) for name, place, _ in _places(host)),
        passages=tuple((name, *place) for name, place, _ in _passages(policy, host)),
    )


def _places(host: Host) -> Iterable[tuple[str, tuple[str, int], str]]:
    aliases = network.aliases(host)
    places = dict.fromkeys(place for secret in host.held_secrets for place in secret.hosts)
    return [(f"secrets-{index}", place, aliases[place[0]]) for index, place in enumerate(places)]


def _passages(policy: Policy, host: Host) -> Iterable[tuple[str, tuple[str, int], str]]:
    """Return what else these hosts are used for: the address that stands for one inside must lead there too."""
    taken = {place for secret in host.held_secrets for place in secret.hosts}
    permission = Permission(parse(row.name, row.origin) for row in policy.domains)
    ports = _OTHER_PORTS if policy.network == "inet" else _OTHER_PORTS[:1]  # of the web, the proxy looks at names
    places = [
        ((name, port), address)
        for name, address in network.aliases(host).items()
        for port in ports
        if (name, port) not in taken and (policy.network == "inet" or permission.rule(name, port) is not None)
    ]
    return [(f"passage-{index}", *row) for index, row in enumerate(places)]
