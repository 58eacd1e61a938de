"""Settings → `Policy`: what a person wants, with everything checked that needs no look at the machine."""

from __future__ import annotations

import os

from claudebox import client, guard
from claudebox.errors import ClaudeboxError
from claudebox.model import MountRequest, NameRequest, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.model import Program
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
    host_ports, published = (_ports(settings.all(key), network) for key in ("allow_host_port", "publish"))
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
        names=tuple(NameRequest(_name(given), given.origin) for given in settings.all("env")),
        mounts=tuple(
            _mount(given, writable=key == "mount_rw", home=home, workdir=workdir)
            for key in ("mount_ro", "mount_rw")
            for given in settings.all(key)
        ),
        unsafe_mounts=settings.on("unsafe_mounts"),
        allow_userns=settings.on("allow_userns"),
        inherit=tuple(NameRequest(_part(given), given.origin) for given in settings.all("inherit")),
        allow=tuple(NameRequest(_protected(given), given.origin) for given in settings.all("allow")),
        shared_home=settings.one("claude_home").value == "shared",
        project_secrets=settings.one("project_secrets").value,  # type: ignore[arg-type]  # the table has checked it
        record=not (settings.on("dry_run") or settings.on("explain")),
    )


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
                hint="leave it away, or choose `--network inet` or `--network none`",
            )
        if not (given.value.isascii() and given.value.isdigit() and 1 <= int(given.value[:6]) <= 65535):
            raise ClaudeboxError(f"`{given.origin}` is a port from 1 to 65535, not `{given.value}`")
        ports.append(int(given.value))
    return tuple(dict.fromkeys(ports))


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
