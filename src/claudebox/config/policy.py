"""Settings → `Policy`: what a user wants, with everything checked that needs no look at the machine."""

from __future__ import annotations

from claudebox.config import parsers
from claudebox.config.model import Constant, MountRequest, NameRequest, Policy, UndoRequest
from claudebox.errors import ClaudeboxError
from claudebox.tables.agent import NOT_INSIDE
from claudebox.tables.inside import RESERVED_PORTS
from claudebox.tables.project_paths import UNKEPT
from claudebox.tables.tiers import TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.config.model import AddressRequest, LimitRequest, Program, SecretRequest
    from claudebox.config.settings import Given, Settings


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
    if program == "client" and not settings.all("command"):
        _check_words(settings.words)
    network = settings.one("network")
    names = tuple(NameRequest(parsers.name(given), given.origin, given.untrusted) for given in settings.all("env"))
    constants = tuple({row.name: row for row in map(parsers.constant, settings.all("set_env"))}.values())
    host_ports, published = (_ports(settings.all(key), network) for key in ("allow_host_port", "publish"))
    domains = _domains(settings, network)
    for port in host_ports:
        if port in published:
            raise ClaudeboxError(
                f"port {port} cannot be both the host's and the sandbox's", hint="publish another port"
            )
    return Policy(
        program=program,
        words=settings.words,
        client=settings.client,
        network=network.value,
        network_origin=network.origin,
        uplink=settings.one("uplink").value,
        host_ports=host_ports,
        published=published,
        domains=domains,
        addresses=_addresses(settings, network),
        names=names,
        mounts=_once(
            (
                *(parsers.mount_row(given, home=home, workdir=workdir) for given in settings.all("mounts")),
                *(
                    parsers.mount(given, writable=key == "mount_rw", home=home, workdir=workdir)
                    for key in ("mount_ro", "mount_rw")
                    for given in settings.all(key)
                ),
                *(parsers.program_directory(given, home=home, workdir=workdir) for given in settings.all("path")),
            )
        ),
        unsafe_mounts=settings.on("unsafe_mounts"),
        allow_userns=settings.on("allow_userns"),
        inherit=tuple(NameRequest(parsers.part(given), given.origin) for given in settings.all("inherit")),
        allow=tuple(NameRequest(parsers.protected(given), given.origin) for given in settings.all("allow")),
        shared_home=settings.one("claude_home").value == "shared",
        project_secrets=settings.one("project_secrets").value,  # type: ignore[arg-type]  # the table has checked it
        submounts=settings.one("submounts").value,  # type: ignore[arg-type]  # the table has checked it
        constants=constants,
        toolchains=_names(settings, "toolchain", parsers.toolchain),
        packages=_names(settings, "package", parsers.package),
        credential=parsers.credential(settings.one("git_credential")) if settings.all("git_credential") else None,
        secrets=_secrets(settings, names, constants) if settings.all("secrets") else (),
        budget=(
            parsers.dollars(settings.one("budget")) if settings.all("budget") else 0,
            parsers.tokens(settings.one("tokens")) if settings.all("tokens") else 0,
        ),
        command=tuple(settings.one("command").fields.values()) if settings.all("command") else (),
        kept_names=_kept_names(settings),
        refuse_secrets=settings.on("yes") and settings.one("secret_variables").value == "refuse",
        auth=settings.one("auth").value,  # type: ignore[arg-type]  # the table has checked it
        filter_terminal=settings.one("terminal").value == "filtered",
        nix=settings.one("nix").value,  # type: ignore[arg-type]  # the table has checked it
        nix_origin=settings.one("nix").origin,
        nixpkgs=parsers.nixpkgs(settings.one("nixpkgs")) if settings.all("nixpkgs") else "",
        packages_optional=settings.on("packages_optional"),
        devshell=settings.one("devshell").origin if settings.on("devshell") else "",
        start=settings.start,
        git_import=settings.one("git_import").value,  # type: ignore[arg-type]  # the table has checked it
        undo=_undo(settings, program),
        browser=settings.one("browser").origin if settings.on("browser") else "",
        gpu=settings.one("gpu").origin if settings.on("gpu") else "",
        devices=_names(settings, "device", parsers.device),
        limits=_limits(settings),
        caches=settings.one("caches").value,  # type: ignore[arg-type]  # the table has checked it
        cache_limit=(parsers.number(settings.one("cache_size"), 1 << 20) if settings.all("cache_size") else 10) << 30,
        scratch=settings.one("scratch").value,  # type: ignore[arg-type]  # the table has checked it
    )


def _check_words(words: tuple[str, ...]) -> None:
    """Refuse what the client cannot do inside, before it fails there with advice for another machine."""
    for number, word in enumerate(words):
        name = word.partition("=")[0]
        if name in NOT_INSIDE and (not number or name.startswith("-")):
            why, instead = NOT_INSIDE[name]
            raise ClaudeboxError(f"`claude {name}` is switched off: {why}", hint=instead)


def _undo(settings: Settings, program: Program) -> UndoRequest | None:
    """Return what a snapshot keeps: of sessions of an agent, and of a command or a shell where that is asked for."""
    if program != "client" and not settings.all("undo_keep"):
        return None
    keep, size = (
        parsers.number(settings.one(key), most) if settings.all(key) else default
        for key, most, default in (("undo_keep", 1000, 10), ("undo_size", 1 << 20, 64))
    )
    names = tuple(parsers.undo_pattern(given) for given in settings.all("undo_exclude"))
    return UndoRequest(keep, size << 20, (*UNKEPT, *names), program == "client") if keep else None


def _limits(settings: Settings) -> LimitRequest | None:
    if settings.given.keys().isdisjoint(("time_limit", "pids", "scratch_size", "memory", "cpus")):
        return None
    from claudebox.config import agent_parsers

    return agent_parsers.decide_limits(settings)


def _once(requests: Iterable[MountRequest]) -> tuple[MountRequest, ...]:
    """Return the requests without what another layer has asked for already; the user's own come first."""
    found: dict[tuple[str, str, bool], MountRequest] = {}
    for request in requests:
        key = request.source, request.dest, request.writable
        first = found.setdefault(key, request)
        if request.programs and not first.programs:
            found[key] = first.replace(programs=True)
    return tuple(found.values())


def _names(settings: Settings, key: str, check: Callable[[Given], str]) -> tuple[NameRequest, ...]:
    requests = (NameRequest(check(given), given.origin, given.untrusted) for given in settings.all(key))
    return tuple({request.name: request for request in requests}.values())


def _ports(wanted: Iterable[Given], network: Given) -> tuple[int, ...]:
    ports: list[int] = []
    tier = TIERS[network.value]
    for given in wanted:
        if tier.shared:
            raise ClaudeboxError(
                f"`{given.origin}` means nothing in tier `{tier.name}`: host and sandbox share all ports there",
                hint="remove it, or choose `--network inet`, `allow` or `none`",
            )
        if not (given.value.isascii() and given.value.isdigit() and 1 <= int(given.value[:6]) <= 65535):
            raise ClaudeboxError(f"`{given.origin}` is a port from 1 to 65535, not `{given.value}`")
        ports.append(int(given.value))
        if tier.listed and ports[-1] in RESERVED_PORTS:
            raise ClaudeboxError(f"`{given.origin}`: port {ports[-1]} inside is claudebox's own in tier `{tier.name}`")
    return tuple(dict.fromkeys(ports))


def _addresses(settings: Settings, network: Given) -> tuple[AddressRequest, ...]:
    wanted, tier = settings.all("allow_address"), TIERS[network.value]
    if tier.uplink or tier.listed:
        return tuple({(row.prefix, row.port): row for row in map(parsers.address, wanted)}.values())
    for given in wanted:
        if given.origin.startswith("-"):  # in files they wait for their tier
            raise ClaudeboxError(
                f"`{given.origin}` means nothing in tier `{tier.name}`: {tier.closed}", hint="add `--network inet`"
            )
    return ()


def _domains(settings: Settings, network: Given) -> tuple[NameRequest, ...]:
    wanted = settings.all("allow_domain")
    if not TIERS[network.value].listed:
        for given in wanted:
            if given.origin.startswith("-"):  # in files they wait for their tier
                raise ClaudeboxError(
                    f"`{given.origin}` means nothing in tier `{network.value}`", hint="add `--network allow`"
                )
        return ()
    from claudebox.config import domains

    groups: dict[str, tuple[str, ...]] = {}
    for given in settings.all("domains"):
        group, _, host = given.value.partition("=")
        groups[group] = (*groups.get(group, ()), host)
    found: dict[str, NameRequest] = {}
    for given in wanted:
        for domain, origin in domains.expand(((given.value, given.origin),), groups):
            found.setdefault(str(domain), NameRequest(str(domain), origin, given.untrusted))
    return tuple(found.values())


def _secrets(
    settings: Settings, names: tuple[NameRequest, ...], constants: tuple[Constant, ...]
) -> tuple[SecretRequest, ...]:
    from claudebox.config import secrets

    return secrets.decide_secrets(settings, settings.one("network"), names, constants)


def _kept_names(settings: Settings) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(parsers.kept_name(given) for given in settings.all("state")))
    for given in settings.all("state"):
        if any(given.value.startswith(f"{name}/") for name in names):  # a mount on what an agent can write (C01)
            raise ClaudeboxError(f"`{given.origin}`: `{given.value}` lies in another of these names")
    return names
