"""The mounts that a user or a project asks for: what each would expose or cover (C06-C08, C26)."""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.host.records import Destination, Host, PathFact, ancestors, covers
from claudebox.plan import mount_checks
from claudebox.plan.mount_checks import RESERVED, is_visible
from claudebox.plan.records import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.plan.records import Kind
    from claudebox.settings.records import MountRequest, Policy


_HINT = "name a narrower path, or add `--set unsafe_mounts=true` if you mean it"
_HINT_PROJECT = "no project can ask for that; if you want it, say it yourself with `--mount-ro`"


def plan_mounts(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows that a user asked for, each checked."""
    for request in policy.mounts:
        fact = host.mounted.sources[request.source]
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
            _check_source(request, fact, host)
            if request.writable:
                _check_repositories(request, host.mounted.destinations[request.dest])
        _check_dest(request, fact, policy, host)
        kind: Kind = "bind" if request.writable else "ro-bind"
        yield Mount(request.dest, kind, f"asked for with {request.origin}", fact.real, "asked", fact.identity)


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


def _check_source(request: MountRequest, fact: PathFact, host: Host) -> None:
    hidden, system = mount_checks.hidden_by(fact, host), mount_checks.system_above(fact, host)
    if fact.kind == "socket":
        problem = "is a socket of a program outside of the sandbox"
    elif fact.identity in host.places.home.lineage:
        problem = "would expose your home"
    elif hidden is not None:
        problem = f"would expose `{hidden.fact.path}` ({hidden.why})"
    elif system and system != "/etc":
        problem = f"would expose `{system}`"
    else:
        return
    raise ClaudeboxError(f"{_name(request)} {problem}", hint=_HINT_PROJECT if request.untrusted else _HINT)


def _check_dest(request: MountRequest, fact: PathFact, policy: Policy, host: Host) -> None:
    dest, above = request.dest, ancestors(request.dest)[1:]
    name = f"`{request.origin}`: the destination `{dest}`"
    reserved = [*RESERVED, *(f"{host.home}/{path}" for path, _ in policy.agent.state)]
    if host.git.repository and host.git.repository.common_dir:
        reserved.append(host.git.repository.common_dir)
    if any(covers(dest, place) or place in above for place in reserved):
        raise ClaudeboxError(f"{name} is claudebox's own", hint="choose another with `SRC:DEST`")
    own = (("/tmp", "/tmp"), ("/etc", "/etc"), (host.workdir.real, "project"), (host.home, "home"))
    for place, what in own:
        if covers(dest, place):
            raise ClaudeboxError(f"{name} would cover the {what} of the sandbox", hint="choose another with `SRC:DEST`")
    around = sorted((other for other in policy.mounts if other.dest in above), key=lambda other: -len(other.dest))
    moved = next((other.dest for other in around if other.dest != other.source), "")
    shown = ["the project"] if host.workdir.real in above else ["/opt"] if host.system.opt and "/opt" in above else []
    shown += [f"`{path}`" for path, _, _ in host.system.etc if path in above and not shown][:1]
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
