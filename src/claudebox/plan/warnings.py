"""What a plan leaves open, in sentences for the audit."""

from __future__ import annotations

from claudebox.config.model import named
from claudebox.plan import git, masking, network, project
from claudebox.tables import agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.config.model import Policy, SecretRequest
    from claudebox.facts.host import Host


def describe(policy: Policy, host: Host, held: str) -> Iterable[str]:
    """Return what the user should know before saying yes."""
    if not host.hostname:
        yield "the name of this machine is visible inside: a filter of system calls forbids to give the sandbox its own"
    if host.landlock < 6 and policy.tier.shared:
        yield (
            "the kernel is older than 6.12: abstract sockets of the host (X11, D-Bus) stay reachable in tier "
            f"{policy.network}"
        )
    if policy.allow_userns:
        useless = ", and root cannot even make one: the kernel wants capabilities for that" if host.uid == 0 else ""
        yield f"user namespaces are allowed inside: more of the kernel can be attacked{useless}"
    if policy.unsafe_mounts and policy.mounts:
        yield "--unsafe-mounts: mounts were not checked for what they expose"
    yield from git.warnings(policy, host)
    model = policy.program == "client" and not policy.command and not held
    of_network = [*network.warnings(policy, host, needed=agent.API_HOST if model else "")]
    if held:
        from claudebox.plan import broker

        of_network += broker.warnings(policy, host)
    yield from dict.fromkeys(of_network)
    yield from project.warnings(policy, host)
    yield from masking.warnings(policy, host)
    yield from masking.socket_warnings(host)
    yield from _secret_warnings(policy, host)
    for request in policy.names:
        if request.name not in host.environ and request.origin.startswith("--"):
            yield f"{request.origin}: {request.name} is not set on the host"


def _secret_warnings(policy: Policy, host: Host) -> Iterable[str]:
    held = {secret.env for secret in host.held_secrets}
    missing = [secret for secret in policy.secrets if secret.env not in held]
    if missing and policy.tier.isolated:
        names = ", ".join(secret.env for secret in missing)
        tier = policy.network
        yield f"secrets ({names}) are for hosts, and tier {tier} reaches no host: their variables are not set inside"
        return
    reached = {(secret.env, place) for secret in host.held_secrets for place in secret.hosts}
    if policy.tier.listed:
        for secret in policy.secrets:
            closed = [named(place) for place in secret.hosts if (secret.env, place) not in reached]
            if closed and (secret.env in held or _is_set(secret, host)):
                yield f"{secret.origin}: {', '.join(closed)} is not among the domains that are allowed"
        missing = [secret for secret in missing if not _is_set(secret, host)]
    for secret in missing:
        yield f"{secret.origin}: {secret.source} is not set on the host, so {secret.env} is not set inside"


def _is_set(secret: SecretRequest, host: Host) -> bool:
    kind, _, name = secret.source.partition(":")
    return kind != "env" or bool(host.environ.get(name))
