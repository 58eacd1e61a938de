"""What in the project the host's own tools obey, and how it is kept from the agent (SEC-04).

A file that git, an editor or the host's own client executes or obeys is a weapon in the hands of whoever writes it.
*Protected* ones cannot change from inside; *reported* ones may, and the user is told at the end. A protected path
that does not exist cannot be created either: an empty directory, which git does not see and no tool trips over, stands
in its place while a session runs, whether it would be a directory or a file.
"""

from __future__ import annotations

from claudebox.agent import plan as agent_plan
from claudebox.host.records import Host, ProtectedPath, ancestors
from claudebox.plan.records import Mount, Stub
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.records import Policy


def close_unprotectable(policy: Policy, host: Host) -> Host:
    """Return the host, with a project that is only read if no stub can be made in it, or a stub would fail the client.

    Who owns a directory that denies writing can open it, inside too: what no stub can protect must not be written at
    all. Nothing can be created there then, so no stub is needed, nor a place for what an agent makes.
    """
    missing = (row for row in _closed(policy, host) if (row.kind, row.name) == ("missing", tables_paths.SERVERS))
    would_fail = agent_plan.lists_servers(policy) and any(missing)
    if host.project.writable and not would_fail:
        return host
    inside = host.workdir.real.rstrip("/") + "/"
    mounted = tuple(row for row in host.project.protected if not f"{row.path}/".startswith(inside))
    protected = (
        *(row.replace(parents=()) for row in host.project.protected if row.kind != "missing" and row not in mounted),
        *mounted,
    )
    return host.replace(
        project=host.project.replace(only_read=True, protected=protected, pinned=(), worktrees=None),
        git=host.git.replace(empty_submodules=(), empty=""),
    )


def plan_mounts(policy: Policy, host: Host) -> Iterator[Mount]:
    """Return the rows that keep what exists from changing, and stubs from being replaced."""
    closed = tuple(_closed(policy, host))
    for row in closed:
        if is_copied(row, host):
            reason = "hooks that a tool writes: the sandbox's own copy"
            yield Mount(row.path, "bind", reason, place_copy(host, row), role="git", stub=row.stub)
            continue
        reason = f"protected: {row.reason}"
        covered = (row.kind, row.stub) == ("missing", "directory")
        source = row.path
        if covered:
            around = host.project.worktrees is not None and host.project.worktrees.path.startswith(f"{row.path}/")
            source = f"{host.instance.cover}-worktrees" if around else host.instance.cover
        pinned, stub = row.identity, row.stub
        yield Mount(row.path, "ro-bind", reason, source, pinned=pinned, role="protected", stub=stub)
    yield from _ignored(closed, host, masks=policy.masks_secrets)
    # A directory that is a mount cannot be renamed, and take its protected files with it (C22).
    pins = {path: identity for row in closed for path, identity in row.parents}
    pins.update((row.path, row.identity) for row in host.project.pinned)
    taken = {row.path for row in closed}
    for path, identity in pins.items():
        if path not in taken and not _beneath(path, taken, _reopened(host)):
            yield Mount(path, "bind", "holds something protected", path, pinned=identity, role="pin")


def _ignored(closed: tuple[ProtectedPath, ...], host: Host, *, masks: bool) -> Iterator[Mount]:
    """Tell git inside to ignore what the user ignores, and what is a mount: `stash -u` would fail to remove it."""
    project = host.git.repository.root if host.git.repository is not None else host.workdir.real
    roots = [root.rstrip("/") for root in (project, *(row.root for row in host.mounted.repositories))]
    rows = [row.path for row in closed if (row.kind, row.stub) == ("missing", "directory") and "\n" not in row.path]
    masked = [row.path for row in host.project.hidden_files if masks and "\n" not in row.path]
    patterns = [f"{path}/" for path in rows] + masked  # a masked file is not added with its fake values
    below = dict.fromkeys(path[len(root) :] for root in roots for path in patterns if path.startswith(f"{root}/"))
    if below or host.git.user.ignored:
        escaped = ("".join(f"\\{char}" if char in "\\*?[ " else char for char in pattern) for pattern in below)
        content = "".join(f"{pattern}\n" for pattern in escaped).encode("utf-8", "surrogateescape")
        own = host.git.user.ignored
        separated = own + b"\n" if own and not own.endswith(b"\n") else own
        path = f"{host.home}/.config/git/ignore"
        yield Mount(path, "file", "what git ignores", content=separated + content, mode=0o644, role="project")
    if host.git.user.attributes:
        path = f"{host.home}/.config/git/attributes"
        yield Mount(path, "file", "attributes of git", content=host.git.user.attributes, mode=0o644, role="project")


def stubs(policy: Policy, host: Host) -> tuple[Stub, ...]:
    """Return what stands in for missing protected paths."""
    missing = (row for row in _closed(policy, host) if row.kind == "missing")
    return tuple(Stub(row.path, row.stub) for row in missing)


def is_copied(row: ProtectedPath, host: Host) -> bool:
    """Return whether a writable copy stands inside in the place of a directory of hooks, which never reaches the host.

    Not if something is masked in it: the copy would show that.
    """
    masked = (*(row.path for row in host.project.hidden_files), *(mount.path for mount in host.project.submounts))
    return bool(row.copy) and not any(path.startswith(f"{row.path}/") for path in masked)


def find_copied(policy: Policy, host: Host, root: str) -> Iterator[ProtectedPath]:
    """Yield the directories of hooks below a checkout that have a copy inside."""
    rows = (row for row in _closed(policy, host) if row.path.startswith(f"{root.rstrip('/')}/"))
    return (row for row in rows if is_copied(row, host))


def place_copy(host: Host, row: ProtectedPath) -> str:
    """Return where the copy of a directory of hooks lies on the host."""
    return f"{host.instance.directory}/hooks/{row.copy}"


def is_closed(policy: Policy, host: Host, path: str) -> bool:
    """Return whether a path lies in something that is protected as a whole."""
    return _beneath(path, {row.path for row in _closed(policy, host)})


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Say what is open, and what cannot be closed."""
    if host.project.barrier.path:
        owner = host.project.barrier.owner
        yield f"the project belongs to {owner}, and root can only read it inside; start claudebox as {owner} instead"
    elif not host.project.writable:
        hint = "; `chmod u+w .` makes it writable" if host.project.owned else ""
        yield f"{host.workdir.real} cannot be written by you: the agent can read the project and not change it{hint}"
    for request in policy.allow:
        yield f"{request.origin} {request.name}: the agent can change it, and the host's tools obey it"
    for row in host.project.protected:
        if row.name in _opened(policy):
            continue
        if row.kind == "link" and row.name in (tables_paths.GIT, tables_paths.SUBMODULES):
            yield f"{row.path} is a link and cannot be protected: look at it before the host's tools do"
        elif row.kind == "whole":
            yield f"{row.path} as a whole is obeyed by git of the host ({row.reason}) and cannot be protected"
        if row.name == tables_paths.OWN:
            yield f"{row.path} is one of your own settings of claudebox, and read-only inside"


def notes(policy: Policy, host: Host) -> Iterator[str]:
    """Name the links, which cannot be mounted on."""
    obeyed_by_git = (tables_paths.GIT, tables_paths.SUBMODULES)
    for row in host.project.protected:
        if row.kind == "link" and row.name not in (*obeyed_by_git, *_opened(policy)):
            yield f"{row.path} is a link: an agent can replace it, and that is put aside only when the session ends"


def _closed(policy: Policy, host: Host) -> Iterator[ProtectedPath]:
    """Return what is protected in this launch, without what lies in something that is protected as a whole."""
    opened = _opened(policy)
    rows = [
        row
        for row in host.project.protected
        if row.name not in opened and (row.kind == "present" or (row.kind == "missing" and row.stub != "none"))
    ]
    paths = {row.path for row in rows}
    reopened = _reopened(host)
    return (row for row in rows if is_copied(row, host) or not _beneath(row.path, paths, reopened))


def _reopened(host: Host) -> str:
    """Return the directory in something protected that is writable all the same."""
    return host.project.worktrees.path if host.project.worktrees is not None else ""


def _beneath(path: str, others: set[str], reopened: str = "") -> bool:
    nearest = next((place for place in ancestors(path)[1:] if place in others or place == reopened), reopened)
    return nearest != reopened


def _opened(policy: Policy) -> set[str]:
    return {request.name for request in policy.allow}
