"""Judging what a mount of a host path would give away, by identity and never by spelling (SAND-05, C06-C08, C26).

A path exposes a hidden place if it lies in it, is it, or lies above it.
"""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.host.records import ancestors
from claudebox.plan.records import Mount
from claudebox.tables.paths import COPIES, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host.records import Destination, Hidden, Host, Identity, PathFact
    from claudebox.plan.records import Kind
    from claudebox.settings.records import MountRequest, Policy


# Destinations that are claudebox's own: nothing may stand there, above or beneath (C27).
_RESERVED = ("/bin", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr")

_HINT = "name a narrower path, or add `--set unsafe_mounts=true` if you mean it"
_HINT_PROJECT = "no project can ask for that; if you want it, say it yourself with `--mount-ro`"


def hidden_by(fact: PathFact, host: Host) -> Hidden | None:
    """Return the hidden place that this path would show."""
    for hidden in host.places.hidden:
        if fact.identity in hidden.fact.lineage or (
            hidden.fact.identity in fact.lineage and not _is_copy(fact, hidden)
        ):
            return hidden
    return None


def _is_copy(fact: PathFact, hidden: Hidden) -> bool:
    """Return whether a directory is the copy of a project that claudebox made for an agent, in its own state."""
    place = fact.real.rsplit("/", 3)[-3:-2]
    return place == [COPIES] and hidden.fact.path.endswith(f"/{STATE}") and fact.lineage[3:4] == hidden.fact.lineage[:1]


def check_home(host: Host) -> None:
    """Refuse a home that would take the place of a directory of the system inside."""
    if host.home in ("/etc", "/tmp", *_RESERVED):
        raise ClaudeboxError(
            f"`{host.home}` cannot be the home: inside, a directory of the system is there",
            hint="set HOME to a directory of yours",
        )


def check_workdir(host: Host) -> None:
    """Refuse a working directory that would expose the home or the system."""
    problem = why_no_project(host.workdir, host)
    if problem:
        raise ClaudeboxError(problem, hint="change to the directory of a project")
    barrier = host.project.barrier
    if barrier.path and not barrier.entered:
        raise ClaudeboxError(
            f"`{barrier.path}` belongs to {barrier.owner}, and root cannot enter it in a sandbox, "
            "where it has no power over files of others",
            hint=f"start claudebox as {barrier.owner}, or let others in: `chmod o+rx {barrier.path}`",
        )


def why_no_project(fact: PathFact, host: Host) -> str:
    """Return why a directory cannot be a project, or the repository of one."""
    name = f"`{fact.path}`"
    for place in host.places.not_projects:
        if fact.identity == place.identity:
            return f"{name} cannot be a project: everything in it would be writable"
    if fact.identity in host.places.home.lineage:
        return f"{name} contains your home: everything in it would be writable"
    excepted = any(place.identity in fact.lineage for place in host.places.beneath_after_all)
    for place in host.places.not_beneath:
        if place.identity in fact.lineage and not excepted:
            return f"{name} belongs to the system (`{place.path}`)"
    hidden = hidden_by(fact, host)
    return f"{name} would expose `{hidden.fact.path}` ({hidden.why})" if hidden is not None else ""


def plan_mounts(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows that a user asked for, each checked."""
    if not policy.mounts:
        return
    ground = _survey(policy, host)
    for request in policy.mounts:
        fact = host.mounted.sources[request.source]
        lineage = fact.lineage
        if fact.kind not in ("directory", "file"):
            _check_kind(request, fact)
        if request.programs:
            if fact.kind != "directory":
                raise ClaudeboxError(
                    f"{_name(request)}: this is not a directory", hint="name the directory that the program is in"
                )
            if is_visible(fact, host):
                continue
        if request.untrusted or not policy.unsafe_mounts:  # a project never profits from what the user permits
            _check_source(request, fact, ground)
            if request.writable:
                _check_repositories(request, host.mounted.destinations[request.dest])
        _check_dest(request, fact, ground, host)
        kind: Kind = "bind" if request.writable else "ro-bind"
        yield Mount(request.dest, kind, f"asked for with {request.origin}", fact.real, "asked", lineage[0])


def _name(request: MountRequest) -> str:
    return f"`{request.origin} {request.source}`"


def _check_kind(request: MountRequest, fact: PathFact) -> None:
    if fact.kind == "missing":
        raise ClaudeboxError(f"{_name(request)}: there is no such file or directory")
    if fact.kind == "other" and not request.programs:
        raise ClaudeboxError(
            f"{_name(request)}: only files, directories and sockets can be mounted",
            hint="`devices` shows a device node",
        )


def _check_repositories(request: MountRequest, found: Destination) -> None:
    if found.unsearched:
        raise ClaudeboxError(
            f"{_name(request)}: {found.unsearched} was not searched for repositories, which are open at another place",
            hint=f"mount it at its own place: `{request.origin} {request.source}`",
        )
    root = found.repository
    if root:
        own = root if request.dest == request.source else request.source
        raise ClaudeboxError(
            f"{_name(request)}: git of the host obeys what could be written there (the repository `{root}`)",
            hint=f"mount it at its own place: `{request.origin} {own}`",
        )


class _Ground(Value):
    """What mounts are measured against."""

    hidden: dict[Identity, str]  # what may not be shown
    over_hidden: dict[Identity, str]  # and what contains it
    system: dict[Identity, str]  # nothing beneath may be shown
    excepted: frozenset[Identity]  # but beneath these it may
    reserved: frozenset[str]
    over_reserved: frozenset[str]  # a mount there would cover something reserved
    over_own: dict[str, str]  # a mount there would cover this part of the sandbox
    etc: frozenset[str]  # parts of the host's, which are read-only: nothing can be created in them
    mounts: dict[str, MountRequest]  # by destination


def _survey(policy: Policy, host: Host) -> _Ground:
    hidden = [(row.fact.lineage, f"`{row.fact.path}` ({row.why})") for row in reversed(host.places.hidden)]
    over_hidden = dict.fromkeys(host.places.home.lineage, "your home")
    for lineage, what in hidden:
        over_hidden.update(dict.fromkeys(lineage, what))
    reserved = {*_RESERVED, *(f"{host.home}/{path}" for path, _ in policy.agent.state)}
    if host.git.repository and host.git.repository.common_dir:
        reserved.add(host.git.repository.common_dir)
    own = (("/tmp", "/tmp"), ("/etc", "/etc"), (host.workdir.real, "project"), (host.home, "home"))
    first = {lineage[0]: what for lineage, what in hidden if lineage}
    system = {row.lineage[0]: f"`{row.path}`" for row in host.places.not_beneath if row.lineage and row.path != "/etc"}
    return _Ground(
        hidden=first,
        over_hidden=over_hidden,
        system=system,
        excepted=frozenset(row.lineage[0] for row in host.places.beneath_after_all if row.lineage),
        reserved=frozenset(reserved),
        over_reserved=frozenset(path for place in reserved for path in ancestors(place)),
        over_own={path: what for place, what in own for path in ancestors(place)},
        etc=frozenset(path for path, _, _ in host.system.etc),
        mounts={request.dest: request for request in policy.mounts},
    )


def _check_source(request: MountRequest, fact: PathFact, ground: _Ground) -> None:
    lineage = fact.lineage
    exposed = ground.over_hidden.get(lineage[0]) or _first(lineage, ground.hidden)
    if not exposed and ground.excepted.isdisjoint(lineage):
        exposed = _first(lineage, ground.system)
    if fact.kind == "socket":
        problem = "is a socket: whoever answers it is outside of the sandbox"
    elif exposed:
        problem = f"would expose {exposed}"
    else:
        return
    raise ClaudeboxError(f"{_name(request)} {problem}", hint=_HINT_PROJECT if request.untrusted else _HINT)


def _first(lineage: tuple[Identity, ...], table: dict[Identity, str]) -> str | None:
    for identity in lineage:
        if identity in table:
            return table[identity]
    return None


def _check_dest(request: MountRequest, fact: PathFact, ground: _Ground, host: Host) -> None:
    dest, above = request.dest, ancestors(request.dest)[1:]
    name = f"`{request.origin}`: the destination `{dest}`"
    if dest in ground.over_reserved or not ground.reserved.isdisjoint(above):
        raise ClaudeboxError(f"{name} is claudebox's own", hint="choose another with `SRC:DEST`")
    if dest in ground.over_own:
        what = ground.over_own[dest]
        raise ClaudeboxError(f"{name} would cover the {what} of the sandbox", hint="choose another with `SRC:DEST`")
    around = [ground.mounts[path] for path in above if path in ground.mounts]
    moved = next((other.dest for other in around if other.dest != other.source), "")
    shown = ["the project"] if host.workdir.real in above else ["/opt"] if host.system.opt and "/opt" in above else []
    shown += [f"`{path}`" for path in above if path in ground.etc and not shown][:1]
    for other in around:
        if other.dest == moved:  # what stands there on the host is under another name
            break
        shown.append(f"`{other.dest}`")
    for where in shown:
        _check_stand(name, where, fact, host.mounted.destinations[dest])
    if moved:
        raise ClaudeboxError(f"{name} lies in `{moved}`, which is another mount", hint="choose another")


def _check_stand(name: str, where: str, fact: PathFact, on_host: Destination) -> None:
    """Require what lies under a mount of the host to exist there: bwrap would create it, even behind a link (C01)."""
    if on_host.through_link:
        raise ClaudeboxError(f"{name} leads through a link in {where}")
    if not on_host.exists:
        raise ClaudeboxError(f"{name} would have to be created in {where}", hint="create it first")
    if on_host.directory != (fact.kind == "directory"):
        kind = "a directory" if on_host.directory else "a file"
        raise ClaudeboxError(f"{name} is {kind} and the source is not")


def is_visible(fact: PathFact, host: Host) -> bool:
    """Return whether this is inside already, with the system or the project."""
    roots = (
        ("/usr", host.system.usr),
        ("/opt", host.system.opt),
        ("/nix/store", bool(host.system.store)),
        (host.workdir.real, True),
    )
    return any(present and covers(root, fact.real) for root, present in roots)


def covers(upper: str, lower: str) -> bool:
    """Return whether `lower` is `upper` or lies beneath it, as paths inside."""
    return upper == lower or lower.startswith(upper.rstrip("/") + "/")
