"""Settings → `Policy`: what a person wants, with everything checked that needs no look at the machine."""

from __future__ import annotations

import os

from claudebox import client, guard
from claudebox.environment import MADE
from claudebox.errors import ClaudeboxError
from claudebox.model import Constant, GitCredential, MountRequest, NameRequest, Policy
from claudebox.network import RESERVED_PORTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.model import Program, Secret
    from claudebox.settings import Given, Settings


def decide(settings: Settings, *, home: str, workdir: str) -> Policy:
    """Return what the settings ask for."""
    program: Program = "exec" if settings.on("exec") else "shell" if settings.on("shell") else "client"
    if program == "exec" and not settings.words:
        raise ClaudeboxError("`--exec` needs a command", hint="write it after `--`: `claudebox --exec -- make test`")
    if program == "exec" and settings.words[0].startswith("-"):
        raise ClaudeboxError(
            f"`--exec`: `{settings.words[0]}` is not the name of a program",
            hint="write `./-name` for a file of the project",
        )
    network = settings.one("network")
    names = tuple(NameRequest(_name(given), given.origin, given.foreign) for given in settings.all("env"))
    constants = tuple({row.name: row for row in map(_constant, settings.all("set_env"))}.values())
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
        network=network.value,  # type: ignore[arg-type]  # the table has checked it
        network_origin=network.origin,
        uplink=settings.one("uplink").value,
        host_ports=host_ports,
        published=published,
        domains=domains,
        names=names,
        mounts=_once(
            (
                *(_mount_row(given, home=home, workdir=workdir) for given in settings.all("mounts")),
                *(
                    _mount(given, writable=key == "mount_rw", home=home, workdir=workdir)
                    for key in ("mount_ro", "mount_rw")
                    for given in settings.all(key)
                ),
            )
        ),
        unsafe_mounts=settings.on("unsafe_mounts"),
        allow_userns=settings.on("allow_userns"),
        inherit=tuple(NameRequest(_part(given), given.origin) for given in settings.all("inherit")),
        allow=tuple(NameRequest(_protected(given), given.origin) for given in settings.all("allow")),
        shared_home=settings.one("claude_home").value == "shared",
        project_secrets=settings.one("project_secrets").value,  # type: ignore[arg-type]  # the table has checked it
        record=not (settings.on("dry_run") or settings.on("explain")),
        constants=constants,
        toolchains=_names(settings, "toolchain", _toolchain),
        packages=_names(settings, "package", _package),
        credential=_credential(settings.one("git_credential")) if settings.all("git_credential") else None,
        secrets=_secrets(settings, names, constants) if settings.all("secrets") else (),
        command=tuple(settings.one("command").fields.values()) if settings.all("command") else (),
        kept_names=_kept_names(settings),
        refuse_secrets=settings.on("yes") and settings.one("secret_variables").value == "refuse",
        auth=settings.one("auth").value,  # type: ignore[arg-type]  # the table has checked it
        private_terminal=settings.one("terminal").value == "private",
        nix=settings.one("nix").value,  # type: ignore[arg-type]  # the table has checked it
        nix_origin=settings.one("nix").origin,
        nixpkgs=_nixpkgs(settings.one("nixpkgs")) if settings.all("nixpkgs") else "",
        packages_optional=settings.on("packages_optional"),
        devshell=settings.one("devshell").origin if settings.on("devshell") else "",
        showing=settings.on("dry_run") or settings.on("explain"),
    )


def _once(requests: Iterable[MountRequest]) -> tuple[MountRequest, ...]:
    """Return the requests without what another layer has asked for already; the person's own come first."""
    found: dict[tuple[str, str, bool], MountRequest] = {}
    for request in requests:
        found.setdefault((request.source, request.dest, request.writable), request)
    return tuple(found.values())


def _names(settings: Settings, key: str, check: Callable[[Given], str]) -> tuple[NameRequest, ...]:
    requests = (NameRequest(check(given), given.origin, given.foreign) for given in settings.all(key))
    return tuple({request.name: request for request in requests}.values())


def valid_name(name: str) -> bool:
    """Tell whether every program agrees that this is the name of a variable (A14)."""
    return name.isascii() and name.replace("_", "a").isalnum() and not name[:1].isdigit()


def _name(given: Given) -> str:
    if not valid_name(given.value):
        raise ClaudeboxError(
            f"`{given.origin}`: `{given.value}` is not the name of a variable",
            hint="letters, digits and `_`, and no value: claudebox takes the value from the environment",
        )
    return given.value


def _ports(wishes: Iterable[Given], network: Given) -> tuple[int, ...]:
    ports: list[int] = []
    for given in wishes:
        if network.value == "full":
            raise ClaudeboxError(
                f"`{given.origin}` means nothing in tier `full`: host and sandbox share all ports there",
                hint="leave it away, or choose `--network inet`, `allow` or `none`",
            )
        if not (given.value.isascii() and given.value.isdigit() and 1 <= int(given.value[:6]) <= 65535):
            raise ClaudeboxError(f"`{given.origin}` is a port from 1 to 65535, not `{given.value}`")
        ports.append(int(given.value))
        if network.value == "allow" and ports[-1] in RESERVED_PORTS:
            raise ClaudeboxError(f"`{given.origin}`: port {ports[-1]} inside is claudebox's own in tier `allow`")
    return tuple(dict.fromkeys(ports))


def _domains(settings: Settings, network: Given) -> tuple[NameRequest, ...]:
    wishes = settings.all("allow_domain")
    if network.value != "allow":
        for given in wishes:
            if given.origin.startswith("-"):  # in files they wait for their tier
                raise ClaudeboxError(
                    f"`{given.origin}` means nothing in tier `{network.value}`", hint="add `--network allow`"
                )
        return ()
    from claudebox import domains  # noqa: PLC0415 - other tiers need nothing of it

    groups: dict[str, tuple[str, ...]] = {}
    for given in settings.all("domains"):
        group, _, host = given.value.partition("=")
        groups[group] = (*groups.get(group, ()), host)
    found: dict[str, NameRequest] = {}
    for given in wishes:
        for domain, origin in domains.expand(((given.value, given.origin),), groups):
            found.setdefault(str(domain), NameRequest(str(domain), origin, given.foreign))
    return tuple(found.values())


def _domain(given: Given) -> None:
    from claudebox import domains  # noqa: PLC0415

    domains.check(given.value, given.origin)


def _group(given: Given) -> None:
    from claudebox import domains  # noqa: PLC0415

    name, _, host = given.value.partition("=")
    if not domains.is_group(name):
        raise ClaudeboxError(
            f"`{given.origin}`: `{name}` cannot be the name of a group", hint="one word: letters, digits, `-` and `_`"
        )
    domains.parse(host, given.origin)


def _part(given: Given) -> str:
    if "/" in given.value or given.value in (".", ".."):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not a name in ~/.claude", hint="one name, no `/`")
    if given.value in client.NOT_INHERITED:
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is state of the host's client and stays there")
    return given.value


def _protected(given: Given) -> str:
    names = (guard.GIT, *(name for name, _, _ in guard.PROTECTED))
    if given.value not in names:
        known = ", ".join(f"`{name}`" for name in names)
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not protected", hint=f"protected are {known}")
    return given.value


def _constant(given: Given) -> Constant:
    name, assigned, value = given.value.partition("=")
    if not assigned or not valid_name(name):
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is not the name of a variable", hint="write `NAME=VALUE`")
    if name in MADE:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is made by claudebox")
    return Constant(name, value, given.origin, given.foreign)


def _toolchain(given: Given) -> str:
    from claudebox.toolchains import TOOLCHAINS  # noqa: PLC0415 - only for those who ask for one

    if given.value not in TOOLCHAINS:
        known = ", ".join(f"`{name}`" for name in TOOLCHAINS)
        raise ClaudeboxError(f"`{given.origin}`: there is no toolchain `{given.value}`", hint=f"there are {known}")
    return given.value


def _package(given: Given) -> str:
    plain = given.value.translate({ord(char): "a" for char in "._+-"})
    if not plain.isascii() or not plain.isalnum() or given.value[0] in ".-+":
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not the name of a package of nixpkgs")
    return given.value


def _nixpkgs(given: Given) -> str:
    from claudebox.nix.references import well_formed  # noqa: PLC0415 - only for those who choose one

    if not well_formed(given.value):
        raise ClaudeboxError(
            f"`{given.origin}`: `{given.value}` is not a package set",
            hint="`github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or a name of your registry: `flake:NAME`",
        )
    return given.value


def _credential(given: Given) -> GitCredential:
    host, token, username = (given.fields[name] for name in ("host", "token", "username"))
    name, _, port = host.partition(":")
    if not name.replace("-", "a").replace(".", "a").isalnum() or not name.isascii() or (port and not port.isdigit()):
        raise ClaudeboxError(f"`{given.origin}`: `{host}` is not the name of a host", hint="`github.com`, say")
    kind, _, rest = token.partition(":")
    if not (kind == "env" and valid_name(rest)) and not (kind == "command" and rest.strip()):
        raise ClaudeboxError(
            f"`{given.origin}`: the token does not come from `env:NAME` or `command:WORDS`",
            hint="never write the token itself into a file",
        )
    if not username.isprintable():
        raise ClaudeboxError(f"`{given.origin}`: `{username}` is not a user name")
    return GitCredential(host, token, username, given.origin)


def _secrets(settings: Settings, names: tuple[NameRequest, ...], constants: tuple[Constant, ...]) -> tuple[Secret, ...]:
    from claudebox import withholding  # noqa: PLC0415 - only for those who have some

    return withholding.decide(settings, settings.one("network"), names, constants)


def _secret(given: Given) -> Secret:
    from claudebox import withholding  # noqa: PLC0415

    return withholding.read(given)


def _kept_name(given: Given) -> str:
    parts = given.value.split("/")
    if given.value.startswith("/") or any(part in ("", ".", "..") for part in parts) or not given.value.isprintable():
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not a name in the home", hint="`.codex`, say")
    if parts[0] in (".claude", ".claude.json", ".gitconfig", ".claudebox"):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is claudebox's own")
    return given.value


def _kept_names(settings: Settings) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_kept_name(given) for given in settings.all("state")))
    for given in settings.all("state"):
        if any(given.value.startswith(f"{name}/") for name in names):  # a mount on what an agent can write (C01)
            raise ClaudeboxError(f"`{given.origin}`: `{given.value}` lies in another of these names")
    return names


def _mount_row(given: Given, *, home: str = "/", workdir: str = "/") -> MountRequest:
    """Read one of `mounts`; what is relative in a file of the person would mean something else in each project."""
    source, dest = given.fields["host"], given.fields["sandbox"]
    if not given.foreign and not source.startswith(("/", "~/")):
        raise ClaudeboxError(f"`{given.origin}`: `{source}` is relative", hint="write it absolute, or with `~/`")
    joined = ":".join(path.replace(":", "\\:") for path in ((source, dest) if dest else (source,)))
    request = _mount(given.replace(value=joined), writable=given.fields["mode"] == "rw", home=home, workdir=workdir)
    return request.replace(foreign=given.foreign)


def _mount(given: Given, *, writable: bool, home: str, workdir: str) -> MountRequest:
    r"""Read SRC[:DEST]; `\:` is a colon of a path."""
    source, dest = _split(given.value)

    def absolute(path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return "/" + os.path.normpath(os.path.join(workdir, path)).lstrip("/")  # normpath keeps two slashes in front

    if not source:
        raise ClaudeboxError(f"`{given.origin} {given.value}` names no source", hint=f"`{given.origin} SRC[:DEST]`")
    if dest is not None and not dest.startswith(("/", "~/")):
        raise ClaudeboxError(
            f"`{given.origin}`: the destination `{dest}` is not an absolute path",
            hint="write a colon that belongs to a path as `\\:`",
        )
    if dest is not None and ".." in dest.split("/"):
        raise ClaudeboxError(f"`{given.origin}`: the destination `{dest}` contains `..`")
    return MountRequest(absolute(source), absolute(source if dest is None else dest), writable, given.origin)


def _split(value: str) -> tuple[str, str | None]:
    if "\\" not in value:
        source, colon, dest = value.partition(":")
        return source, dest if colon else None
    parts = [""]
    escaped = False
    for char in value:
        if escaped:
            parts[-1] += char if char == ":" else "\\" + char
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == ":" and len(parts) == 1:
            parts.append("")
        else:
            parts[-1] += char
    parts[-1] += "\\" if escaped else ""
    return parts[0], parts[1] if len(parts) > 1 else None


# What a value must be like, for those who read files.
RULES: dict[str, Callable[[Given], object]] = {
    "allow_domain": _domain,
    "domains": _group,
    "env": _name,
    "set_env": _constant,
    "mounts": _mount_row,
    "toolchain": _toolchain,
    "package": _package,
    "nixpkgs": _nixpkgs,
    "git_credential": _credential,
    "secrets": _secret,
    "inherit": _part,
    "allow": _protected,
    "state": _kept_name,
}
