"""What of the host must stay hidden, what is no project, and what stands where somebody wants a mount to appear."""

from __future__ import annotations

import os
import stat

from claudebox.facts.model import Hidden
from claudebox.tables import host_paths
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import PathFact
    from claudebox.files import Examiner


class Destination(Value):
    """What stands on the host where somebody wants a mount to appear."""

    exists: bool = False
    directory: bool = False
    through_link: bool = False


def hidden(examiner: Examiner, homes: list[str], environ: dict[str, str]) -> tuple[Hidden, ...]:
    """Return the places that must never be visible inside."""
    rows = [(os.path.join(home, place), why) for home in homes for place, why in host_paths.HIDDEN]
    for name, why in host_paths.AGENT_SOCKETS:
        value = environ.get(name, "")
        socket = value[value.find("/") :].split(",")[0] if "/" in value else ""
        if socket:
            rows.append((socket, why))
    facts = ((examiner.fact(path), why) for path, why in dict(rows).items())
    return tuple(Hidden(fact, why) for fact, why in facts if fact.kind != "missing")


def not_projects(examiner: Examiner, homes: list[str]) -> tuple[PathFact, ...]:
    """Return the directories in which nobody starts an agent."""
    in_homes = [os.path.join(home, place).rstrip("/") for home in homes for place in host_paths.NOT_A_PROJECT_IN_HOME]
    return present(examiner, (*host_paths.NOT_A_PROJECT, *in_homes))


def present(examiner: Examiner, paths: tuple[str, ...]) -> tuple[PathFact, ...]:
    """Return those that exist."""
    facts = (examiner.fact(path, alone=True) for path in paths)
    return tuple(fact for fact in facts if fact.kind != "missing")


def destination(dest: str, seen: dict[str, int]) -> Destination:
    """Walk to a destination without following a link: bwrap would follow it, even out of the sandbox (C01)."""
    current, mode = "", 0
    for part in dest.strip("/").split("/"):
        current = f"{current}/{part}"
        if current not in seen:  # a thousand mounts mostly share what is above them
            try:
                seen[current] = os.lstat(current).st_mode
            except OSError:
                seen[current] = 0
        mode = seen[current]
        if not mode:
            return Destination()
        if stat.S_ISLNK(mode):
            return Destination(through_link=True)
    return Destination(exists=True, directory=stat.S_ISDIR(mode))


def claude_parts(home: str) -> tuple[tuple[str, str, bool], ...]:
    """Return the entries of the host's ~/.claude: name, place, and whether it is a directory."""
    directory = f"{home}/.claude"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    places_of = ((name, os.path.realpath(f"{directory}/{name}")) for name in names)
    return tuple((name, real, os.path.isdir(real)) for name, real in places_of if os.path.exists(real))
