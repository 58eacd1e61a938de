"""Judging what a mount of a host path would give away, by identity and never by spelling (SAND-05, C06-C08, C26).

A path exposes a hidden place if it lies in it, is it, or lies above it.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.model import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host import Destination, Host
    from claudebox.model import Hidden, MountRequest, PathFact, Policy

# Destinations that are claudebox's own: nothing may stand there, above or beneath (C27).
_RESERVED = ("/bin", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr")


def hidden_by(fact: PathFact, host: Host) -> Hidden | None:
    """Return the hidden place that this path would show."""
    for hidden in host.hidden:
        if fact.identity in hidden.fact.lineage or hidden.fact.identity in fact.lineage:
            return hidden
    return None


def check_workdir(host: Host) -> None:
    """Refuse a working directory that would expose the home or the system."""
    workdir = host.workdir
    hint = "change to the directory of a project"
    name = f"`{workdir.path}`"
    for place in host.not_projects:
        if workdir.identity == place.identity:
            raise ClaudeboxError(f"{name} is no project: everything in it would be writable", hint=hint)
    if workdir.identity in host.home_fact.lineage:
        raise ClaudeboxError(f"{name} contains your home: everything in it would be writable", hint=hint)
    excepted = any(place.identity in workdir.lineage for place in host.beneath_after_all)
    for place in host.not_beneath:
        if place.identity in workdir.lineage and not excepted:
            raise ClaudeboxError(f"{name} belongs to the system (`{place.path}`)", hint=hint)
    hidden = hidden_by(workdir, host)
    if hidden is not None:
        raise ClaudeboxError(f"{name} would expose `{hidden.fact.path}` ({hidden.why})", hint=hint)


def plan_mounts(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows that a person asked for, each checked."""
    for request in policy.mounts:
        fact = host.sources[request.source]
        name = f"`{request.origin} {request.source}`"
        if fact.kind == "missing":
            raise ClaudeboxError(f"{name}: there is no such file or directory")
        if fact.kind == "other":
            raise ClaudeboxError(f"{name}: only files, directories and sockets can be mounted")
        if not policy.unsafe_mounts or request.foreign:
            _check_source(name, fact, host)
        _check_dest(request, fact, policy, host)
        kind = "bind" if request.writable else "ro-bind"
        reason = f"asked for with {request.origin}"
        yield Mount(request.dest, kind, reason, fact.real, pinned=fact.identity)  # type: ignore[arg-type]


def _check_source(name: str, fact: PathFact, host: Host) -> None:
    hint = "name a narrower path, or add `--unsafe-mounts` if you mean it"
    if fact.kind == "socket":
        raise ClaudeboxError(f"{name} is a socket: whoever answers it is outside of the sandbox", hint=hint)
    hidden = hidden_by(fact, host)
    if hidden is not None:
        raise ClaudeboxError(f"{name} would expose `{hidden.fact.path}` ({hidden.why})", hint=hint)
    if fact.identity in host.home_fact.lineage:
        raise ClaudeboxError(f"{name} would expose your home", hint=hint)
    excepted = any(place.identity in fact.lineage for place in host.beneath_after_all)
    for place in host.not_beneath:
        if place.path != "/etc" and place.identity in fact.lineage and not excepted:
            raise ClaudeboxError(f"{name} would expose `{place.path}`", hint=hint)


def _check_dest(request: MountRequest, fact: PathFact, policy: Policy, host: Host) -> None:
    dest = request.dest
    name = f"`{request.origin}`: the destination `{dest}`"
    elsewhere = host.repository.common_dir if host.repository and host.repository.linked else ""
    for reserved in (*_RESERVED, f"{host.home}/.claude", *([elsewhere] if elsewhere else [])):
        if covers(dest, reserved) or covers(reserved, dest):
            raise ClaudeboxError(f"{name} is claudebox's own", hint="choose another with `SRC:DEST`")
    for own, what in ((host.home, "home"), (host.workdir.real, "project"), ("/etc", "/etc"), ("/tmp", "/tmp")):
        if covers(dest, own):
            raise ClaudeboxError(f"{name} would cover the {what} of the sandbox", hint="choose another with `SRC:DEST`")
    if covers(host.workdir.real, dest):
        _check_stand(name, "the project", fact, host.destinations[dest])
    elif host.opt and covers("/opt", dest):
        _check_stand(name, "/opt", fact, host.destinations[dest])
    for other in policy.mounts:
        if other.dest != dest and covers(other.dest, dest):
            if other.dest != other.source:  # what stands there on the host is under another name
                raise ClaudeboxError(f"{name} lies in `{other.dest}`, which is another mount", hint="choose another")
            _check_stand(name, f"`{other.dest}`", fact, host.destinations[dest])


def _check_stand(name: str, where: str, fact: PathFact, on_host: Destination) -> None:
    """Require what lies under a mount of the host to exist there: bwrap would create it, even behind a link (C01)."""
    if on_host.through_link:
        raise ClaudeboxError(f"{name} leads through a link in {where}")
    if not on_host.exists:
        raise ClaudeboxError(f"{name} would have to be created in {where}", hint="create it first")
    if on_host.directory != (fact.kind == "directory"):
        kind = "a directory" if on_host.directory else "a file"
        raise ClaudeboxError(f"{name} is {kind} and the source is not")


def covers(upper: str, lower: str) -> bool:
    """Tell whether `lower` is `upper` or lies beneath it, as paths inside."""
    return upper == lower or lower.startswith(upper.rstrip("/") + "/")
