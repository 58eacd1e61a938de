"""Policy + Host → where what is not the project is kept: caches that last, a home and a /tmp that do not."""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.plan.records import Mount, Variable
from claudebox.tables import environment as tables_environment
from claudebox.tables.environment import CLIENT_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host, PathFact
    from claudebox.settings.records import Policy


_SMALLEST = 256 << 20
_LITTLE = 2 << 30  # for a home or /tmp in memory: a checkout with its packages is larger
# Below the directory of the instance: of this project alone, or of all that share them.
_CACHES: dict[str, tuple[str, ...]] = {"own": ("caches",), "shared": ("../../caches",), "off": ()}
_ELSEWHERE = "/run/claudebox/cache"
# The client asks this program for the picture of a clipboard, as PNG; it finds out itself what a picture really is.
_PASTE = b"""\
#!/bin/sh
# Ctrl+V in the client: the newest picture that the user has shown within an hour.
cd "$HOME/.claudebox/drop" 2>/dev/null || exit 1
picture=$(find . -maxdepth 1 -mmin -60 -printf '%T@ %p\\n' | grep -iE '\\.(png|jpe?g|gif|webp)$' | sort -n | tail -n 1)
[ "$picture" ] || exit 1
case " $* " in
  *' TARGETS -o '*) echo image/png ;;
  *' image/png -o '*) exec cat -- "${picture#* }" ;;
  *) exit 1 ;;
esac
"""


def find_caches(policy: Policy, host: Host) -> str:
    """Return where caches lie on the host."""
    if policy.caches == "off":
        return ""
    return f"{host.instance.directory if policy.caches == 'own' else host.instance.state}/caches"


def kept(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the directories that must exist, below that of the instance."""
    return (*_CACHES[policy.caches], *(("scratch",) if find_scratch(policy, host) else ()))


def caches_inside(policy: Policy, host: Host) -> str:
    """Return where caches are inside: `~/.cache`, or out of the way where the user has mounted something there.

    Nothing is mounted below a directory that an agent of an earlier session could write to (C01).
    """
    if policy.caches == "off":
        return ""
    usual, below = f"{host.home}/.cache", f"{host.home}/.cache/"
    asked = (*(request.dest for request in policy.mounts), *(f"{host.home}/{path}" for path, _ in policy.agent.state))
    return _ELSEWHERE if any(dest == usual or dest.startswith(below) for dest in asked) else usual


def plan_mounts(policy: Policy, host: Host) -> Iterator[Mount]:
    """Return the rows of /tmp, the home and the caches."""
    for dest, name, mode, reason in (
        ("/tmp", "tmp", 0o1777, "temporary files"),
        (host.home, "home", 0o700, "a home of its own, empty and gone at the end"),
    ):
        if scratch := find_scratch(policy, host):
            yield Mount(dest, "bind", f"{reason}; on disk", f"{scratch}/{name}", mode=mode, role="scratch")
        else:
            yield Mount(dest, "tmpfs", reason, mode=mode, size=size_of(policy, host, 4))
    if host.tools.drop is not None:
        yield _drop(host, host.tools.drop)
        reason = "Ctrl+V in the client shows the newest picture of the directory for what you want to show"
        yield Mount(f"{CLIENT_DIRECTORY}/xclip", "file", reason, content=_PASTE, mode=0o755)
    if place := caches_inside(policy, host):
        whose = "of this project" if policy.caches == "own" else "shared by all projects that say so"
        yield Mount(place, "bind", f"caches of packages, {whose}", find_caches(policy, host), role="state")


def _drop(host: Host, fact: PathFact) -> Mount:
    """Return the row of the directory for what the user wants to show; it may be a link to one of theirs."""
    from claudebox.plan import mount_checks

    hidden = mount_checks.hidden_by(fact, host) if fact.real != fact.path else None
    if hidden is not None or fact.identity in host.places.home.lineage:
        raise ClaudeboxError(f"`{fact.path}` leads to `{fact.real}`, which stays hidden", hint="remove the link")
    reason = "files that you want to show to the agent"
    return Mount(fact.path, "ro-bind", reason, fact.real, pinned=fact.identity, role="asked")


def find_scratch(policy: Policy, host: Host) -> str:
    """Return the directory on disk for the home and /tmp: where asked for, or where memory would hold little."""
    limited = policy.limits is not None and policy.limits.scratch
    on_disk = policy.scratch == "disk" or (
        policy.scratch == "auto" and host.machine.memory // 4 < _LITTLE and not limited
    )
    return f"{host.instance.directory}/scratch/{host.session}" if on_disk else ""


def size_of(policy: Policy, host: Host, part: int) -> int:
    """Return how much a file system in memory holds: what was asked for, or a part of the memory."""
    return policy.limits.scratch if policy.limits is not None and policy.limits.scratch else share_memory(host, part)


def share_memory(host: Host, part: int) -> int:
    """Return a part of the memory; each tmpfs would take half of it unless told otherwise (H09)."""
    return max(_SMALLEST, host.machine.memory // part)


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Return what leads programs to their caches; a user may set each of them."""
    place = caches_inside(policy, host)
    # In caches that other projects share, one agent could leave code for another's sources.
    bytecode = f"{place}/pycache" if place and policy.caches == "own" else "/tmp/pycache"
    reason = "where python keeps bytecode: not beside your sources"
    yield Variable(tables_environment.BYTECODE, bytecode, "claudebox", reason)
    if not place:
        return
    for name, value in tables_environment.CACHES + (
        tables_environment.CACHES_BY_DEFAULT if place == _ELSEWHERE else ()
    ):
        yield Variable(name, value.replace("~", place), "claudebox", "where this program keeps its cache")
