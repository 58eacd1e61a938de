"""Policy + Host → what the broker does with `[[secrets]]`: the values that it holds, and where it answers for hosts.

Off the usual launch path: imported only where somebody has such settings.
"""

from __future__ import annotations

from claudebox.config.domains import Permission, parse_domain
from claudebox.plan import network, own_network
from claudebox.plan.network_model import InjectConfig, Served

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.config.model import Policy, SecretRequest
    from claudebox.facts.host import Host
    from claudebox.plan.network_model import Broker

_OTHER_PORTS = (22, 80)


def served(policy: Policy, host: Host) -> tuple[Served, ...]:
    """Return the listeners inside, one for each host and port."""
    rows = (*_places(host), *_passages(policy, host))
    return tuple(Served(name, "stream", port, address) for name, (_, port), address in rows)


def plan_injection(policy: Policy, host: Host) -> InjectConfig:
    """Return what the broker does with the secrets; their values come when they have been fetched."""
    return InjectConfig(
        host.held_secrets,
        bundle=host.ca_bundle.real if host.ca_bundle is not None else "",
        authorities=host.company.upstream if host.company is not None else b"",
        inside=host.company.bundle if host.company is not None else b"",
        named=host.company.named if host.company is not None else b"",
        ranges=own_network.closed_ranges(policy.addresses),
        proxy=own_network.tunnel_proxy(host.environ),
        listeners=tuple((name, *place) for name, place, _ in _places(host)),
        passages=tuple((name, *place) for name, place, _ in _passages(policy, host)),
        environ=tuple(host.environ.items()) if any(row.source[:8] == "command:" for row in host.held_secrets) else (),
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
    aliases = network.aliases(host)
    places = dict.fromkeys(place for secret in host.held_secrets for place in secret.hosts)
    return [(f"secrets-{index}", place, aliases[place[0]]) for index, place in enumerate(places)]


def _passages(policy: Policy, host: Host) -> Iterable[tuple[str, tuple[str, int], str]]:
    """Return what else these hosts are used for: the address that stands for one inside must lead there too."""
    taken = {place for secret in host.held_secrets for place in secret.hosts}
    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    ports = _OTHER_PORTS if policy.tier.uplink else _OTHER_PORTS[:1]  # of the web, the proxy looks at names
    places = [
        ((name, port), address)
        for name, address in network.aliases(host).items()
        for port in ports
        if (name, port) not in taken and (policy.tier.uplink or permission.rule(name, port) is not None)
    ]
    return [(f"passage-{index}", *row) for index, row in enumerate(places)]
