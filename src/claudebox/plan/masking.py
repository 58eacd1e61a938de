"""Policy + Host → what is masked: files that hold secrets (A20), mounts of the host in the project (C34), sockets."""

from __future__ import annotations

from claudebox.base.console import list_some
from claudebox.host.records import Host, SecretFile, ancestors
from claudebox.plan.records import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.records import Policy


_LINES = 6  # that are named per file
_FILES = 12

_SOCKETS = 6  # that are named
_SOCKET = "a socket of a program outside"


def plan_mounts(policy: Policy, host: Host) -> Iterator[Mount]:
    """Return a row per file that is shown with harmless values; what the host has stays as it is."""
    if policy.submounts == "mask":
        for row in host.project.submounts:
            yield Mount(
                row.path, "empty" if row.directory else "mask", f"a mount of the host ({row.kind})", role="masked"
            )
    if not policy.masks_secrets:
        return
    for leak in host.project.leaks:
        reason = "a masked copy: the same with fake values"
        content, pinned = leak.masked, leak.identity
        yield Mount(leak.path, "copy", reason, content=content, mode=0o644, pinned=pinned, role="masked")


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Name files and lines, never values."""
    if host.project.submounts:
        named = list_some([f"{row.path} ({row.kind})" for row in host.project.submounts], _FILES)
        if policy.submounts == "mask":
            yield f"mounts of the host below the project are empty inside: {named}"
        else:
            yield f"mounts of the host below the project come along: {named}; `--set submounts=mask` hides them"
    if host.project.leaks_note:
        yield f"the search for secrets in the project: {host.project.leaks_note}"


def find_exposed(host: Host) -> tuple[str, ...]:
    """Return the files that hold secrets, each with its lines."""
    return tuple(_place(leak, host.workdir.real) for leak in host.project.leaks)


def _place(leak: SecretFile, workdir: str) -> str:
    shown = leak.path[len(workdir) + 1 :] if leak.path.startswith(f"{workdir}/") else leak.path
    if not leak.lines:
        return shown
    numbers = ",".join(str(line) for line in leak.lines[:_LINES]) + (",…" if len(leak.lines) > _LINES else "")
    return f"{shown}:{numbers}"


def mask_sockets(policy: Policy, host: Host, rows: Iterable[Mount]) -> Iterable[Mount]:
    """Return a mask wherever one of the rows shows a socket of the host, and no other lies over that."""
    if not host.sockets.paths:
        return
    table = {row.dest: row for row in rows}
    permitted = {request.dest for request in policy.mounts if policy.unsafe_mounts and not request.untrusted}
    binds = [row for row in table.values() if row.kind in ("bind", "ro-bind") and row.dest not in permitted]
    for path in host.sockets.paths:
        for row in binds:
            if f"{path}/".startswith(f"{row.source}/"):  # a protected file may be a socket itself
                dest = row.dest + path[len(row.source) :]
                if row.dest == next(place for place in ancestors(dest) if place in table):
                    yield Mount(dest, "mask", _SOCKET, role="masked")


def socket_warnings(host: Host) -> Iterable[str]:
    """Name the sockets of the host that are masked."""
    for path in host.sockets.paths[:_SOCKETS]:
        yield f"{path} is a socket of the host; it is masked inside"
    if len(host.sockets.paths) > _SOCKETS:
        yield f"{len(host.sockets.paths) - _SOCKETS} more sockets of the host are masked inside"
    if host.sockets.note:
        yield host.sockets.note
