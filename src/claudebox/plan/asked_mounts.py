"""The mounts that a user or a project asks for: what each would expose or cover (C06-C08, C26)."""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.host.records import ancestors
from claudebox.plan.mount_checks import RESERVED, is_visible
from claudebox.plan.records import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host.records import Destination, Host, Identity, PathFact
    from claudebox.plan.records import Kind
    from claudebox.settings.records import MountRequest, Policy


_HINT = "name a narrower path, or add `--set unsafe_mounts=true` if you mean it"
_HINT_PROJECT = "no project can ask for that; if you want it, say it yourself with `--mount-ro`"


def plan_mounts(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows that a user asked for, each checked."""
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
    reserved = {*RESERVED, *(f"{host.home}/{path}" for path, _ in policy.agent.state)}
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
