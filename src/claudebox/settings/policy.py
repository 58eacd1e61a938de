"""Settings → `Policy`: what a user wants, checked as far as possible without reading the machine."""

from __future__ import annotations

from claudebox import build_paths
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.network.tiers import TIERS
from claudebox.settings import parsers
from claudebox.settings.parsers import AUTO, NONE
from claudebox.settings.records import Constant, LimitRequest, NameRequest, Policy, UndoRequest
from claudebox.settings.table import SETTINGS
from claudebox.tables.environment import RESERVED_PORTS
from claudebox.tables.paths import UNKEPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from claudebox.agent.record import AgentKind
    from claudebox.network.tiers import Tier
    from claudebox.settings.layers import Settings, SettingValue
    from claudebox.settings.records import Program


def decide_policy(settings: Settings, *, home: str, workdir: str) -> Policy:
    """Return what the settings ask for."""
    workdir = settings.start or workdir
    program: Program = "exec" if settings.on("exec") else "shell" if settings.on("shell") else "client"
    if program == "exec" and not settings.words:
        raise ClaudeboxError("`--exec` needs a command", hint="write it after `--`: `claudebox --exec -- make test`")
    if program == "exec" and settings.words[0].startswith("-"):
        raise ClaudeboxError(
            f"`--exec`: `{settings.words[0]}` is not the name of a program",
            hint="write `./-name` for a file of the project",
        )
    if program == "client":
        _check_words(settings.agent, settings.words)
    network, asked = settings.one("network"), _read_fields(settings)
    limits, undo, budget = (_record(asked, name) for name in ("limits", "undo", "budget"))
    mounts = (parsers.resolve(request, home, workdir) for request in asked.pop("mounts", ()))
    shows_path, toolchains = _decide_toolchains(asked.pop("toolchains", ()))
    policy = Policy(
        program=program,
        agent=settings.agent,
        agent_named=bool(settings.all("agent")),
        words=settings.words,
        client=settings.client,
        start=settings.start,
        network_origin=network.origin,
        nix_origin=settings.one("nix").origin,
        domains=_domains(settings, network),
        mounts=_distinct(mounts),
        hides_path=not shows_path,
        toolchains=toolchains,
        budget=(budget.get("dollars", 0), budget.get("tokens", 0)),
        refuse_secrets=settings.on("yes") and settings.one("secret_variables").value == "refuse",
        limits=LimitRequest(**limits) if limits else None,
        undo=_undo(undo, program),
        **asked,
    )
    _check_network(settings, policy)
    for request in policy.inherit:
        if request.name in policy.agent.not_inherited:
            raise ClaudeboxError(f"`{request.origin}`: `{request.name}` is state of the host's client and stays there")
    if not (policy.tier.uplink or policy.tier.listed):
        policy = policy.replace(addresses=())
    if settings.all("scratch_size") and policy.scratch == "disk":
        raise ClaudeboxError(
            "`scratch_size` limits memory, and `--set scratch=disk` takes none", hint="use one of them"
        )
    if settings.all("secrets"):
        from claudebox.settings import secrets as settings_secrets

        policy = policy.replace(
            secrets=settings_secrets.decide_secrets(settings, network, policy.names, policy.constants)
        )
    return policy


def _decide_toolchains(requests: Iterable[NameRequest]) -> tuple[bool, tuple[NameRequest, ...]]:
    """Return whether the host's PATH is shown, and toolchains by name; what a project adds takes nothing away.

    The package for Nix has a PATH of its own, and shows another by choice only.
    """
    shows_path, untouched = not build_paths.STORE_PATH, True
    named: list[NameRequest] = []
    for request in requests:
        if request.name in (AUTO, NONE) or (untouched and not request.untrusted):
            shows_path = request.name == AUTO
            named = named if shows_path else [row for row in named if row.untrusted]
        untouched = untouched and request.untrusted
        if request.name not in (AUTO, NONE):
            named.append(request)
    return shows_path, tuple(named)


def _read_fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of the policy that rows of the table fill."""
    found: dict[str, Any] = {}
    for row in SETTINGS:
        given = settings.all(row.key)
        if not row.field or not given or (row.shape == "switch" and not settings.on(row.key)):
            continue
        if row.grows:
            read = tuple(row.parse(value) if row.parse else value.value for value in given)
            found[row.field] = _distinct((*found.get(row.field, ()), *read))
        elif row.parse is not None:
            found[row.field] = row.parse(given[-1])
        else:
            found[row.field] = row.shape == "switch" or given[-1].value
    return found


def _record(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove the fields of one record, and return them."""
    keys = [key for key in asked if key.startswith(f"{name}.")]
    return {key.removeprefix(f"{name}."): asked.pop(key) for key in keys}


def _distinct(requests: Iterable[Any]) -> tuple[Any, ...]:
    """Return each request once: the user's before a project's, but the last value of a variable."""
    found: dict[object, Any] = {}
    for request in requests:
        subject = _subject(request)
        first = found.get(subject)
        if isinstance(request, Constant) or first is None or (first.untrusted and not request.untrusted):
            found[subject] = request
        if getattr(request, "programs", False) or getattr(first, "programs", False):
            found[subject] = found[subject].replace(programs=True)
    return tuple(found.values())


def _subject(request: Any) -> object:
    """Return what requests for the same thing have in common."""
    if not isinstance(request, Value):
        return request
    rest = ("origin", "untrusted", "programs", "value")
    return tuple(getattr(request, name) for name in type(request).__annotations__ if name not in rest)


def _check_words(agent: AgentKind, words: tuple[str, ...]) -> None:
    """Refuse what the agent cannot do inside, before it fails there with advice for another machine."""
    for number, word in enumerate(words):
        name = word.partition("=")[0]
        if name in agent.not_inside and (not number or name.startswith("-")):
            why, instead = agent.not_inside[name]
            raise ClaudeboxError(f"`{agent.name} {name}` is switched off: {why}", hint=instead)


def _undo(asked: dict[str, Any], program: Program) -> UndoRequest | None:
    """Return what a snapshot keeps; a command or a shell gets one only if `undo_keep` was set."""
    if program != "client" and "keep" not in asked:
        return None
    excluded = (*UNKEPT, *asked.pop("excluded", ()))
    undo = UndoRequest(**asked, excluded=excluded, patient=program == "client")
    return undo if undo.keep else None


def _check_network(settings: Settings, policy: Policy) -> None:
    """Refuse flags without effect in this tier; addresses and domains in files are for other tiers."""
    tier = policy.tier
    opened = [(given, parsers.port(given)) for given in settings.all("allow_host_port")]
    opened += [(given, parsers.published(given).inside) for given in settings.all("publish")]
    for given, port in opened:
        if tier.shared:
            hint = "remove it, or choose `--network inet`, `allow` or `none`"
            raise _no_effect(given, tier, "host and sandbox share all ports", hint)
        if tier.listed and port in RESERVED_PORTS:
            raise parsers.refusal(given, f"port {port} inside is claudebox's own in tier `{tier.name}`")
    for port in policy.host_ports:
        if any(port == row.inside for row in policy.published):
            problem = f"port {port} cannot be both the host's and the sandbox's"
            raise ClaudeboxError(problem, hint="publish another port")
    for given in settings.all("allow_address"):
        if given.origin.startswith("-") and not (tier.uplink or tier.listed):
            raise _no_effect(given, tier, tier.closed, "add `--network inet`")
    for given in settings.all("allow_domain"):
        if given.origin.startswith("-") and not tier.listed:
            raise _no_effect(given, tier, "no domains are listed", "add `--network allow`")


def _no_effect(given: SettingValue, tier: Tier, why: str, hint: str) -> ClaudeboxError:
    return ClaudeboxError(f"`{given.origin}` has no effect with `--network {tier.name}`: {why}", hint=hint)


def _domains(settings: Settings, network: SettingValue) -> tuple[NameRequest, ...]:
    wanted = settings.all("allow_domain")
    if not wanted or not TIERS[network.value].listed:
        return ()
    from claudebox.settings import domains as settings_domains

    groups = read_groups(settings)
    found = (
        NameRequest(str(domain), origin, given.untrusted)
        for given in wanted
        for domain, origin in settings_domains.expand(((given.value, given.origin),), groups)
    )
    return _distinct(found)


def read_groups(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the user's own groups of domains."""
    groups: dict[str, tuple[str, ...]] = {}
    for given in settings.all("domains"):
        group, _, host = given.value.partition("=")
        groups[group] = (*groups.get(group, ()), host)
    return groups
