"""Whether a path can be the project or the home, and what it would expose: by identity, never by spelling (SAND-05).

A path exposes a hidden place if it lies in it, is it, or lies above it.
"""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.host.records import Hidden, Host, PathFact, covers
from claudebox.tables.paths import COPIES, STATE

# Destinations that are claudebox's own: nothing may stand there, above or beneath (C27).
RESERVED = ("/bin", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr")


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
    if host.home in ("/etc", "/tmp", *RESERVED):
        raise ClaudeboxError(
            f"`{host.home}` cannot be the home: inside, it is a directory of the system",
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
    if system := system_above(fact, host):
        return f"{name} belongs to the system (`{system}`)"
    hidden = hidden_by(fact, host)
    return f"{name} would expose `{hidden.fact.path}` ({hidden.why})" if hidden is not None else ""


def system_above(fact: PathFact, host: Host) -> str:
    """Return the directory of the system that this lies in and that nothing is taken from; nothing if there is none."""
    if any(place.identity in fact.lineage for place in host.places.allowed_beneath):
        return ""
    return next((place.path for place in host.places.not_beneath if place.identity in fact.lineage), "")


def is_visible(fact: PathFact, host: Host) -> bool:
    """Return whether this is inside already, with the system or the project."""
    return any(covers(root, fact.real) for root in (*host.system.shown, host.workdir.real))
