"""Policy + Host → what is masked: files that hold secrets (A20), mounts of the host in the project (C34), sockets."""

from __future__ import annotations

from claudebox.base.console import list_some
from claudebox.host.records import Host, SecretFile, ancestors
from claudebox.plan.records import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.settings.records import Policy


_LINES = 6  # that are named per file
_FILES = 12
_MOST_COPIES = 1000  # bwrap takes no more options; what is beyond is empty inside

_SOCKETS = 6  # that are named
_SOCKET = "a socket of a program outside"
_COPY, _EMPTY = "a masked copy: the same with fake values", "masked: it is empty inside"


def plan_mounts(policy: Policy, host: Host) -> Iterator[Mount]:
    """Return a row per mount of the host below the project, if they are masked."""
    if policy.submounts == "mask":
        for row in host.project.submounts:
            yield Mount(
                row.path, "empty" if row.directory else "mask", f"a mount of the host ({row.kind})", role="masked"
            )


def cover(policy: Policy, host: Host, rows: Iterable[Mount]) -> Iterator[Mount]:
    """Return a mask wherever one of the rows shows a socket or a file to be masked, and no other lies over that."""
    table = {row.dest: row for row in rows}
    binds = [row for row in table.values() if row.kind in ("bind", "ro-bind")]
    asked = [request for request in policy.mounts if not request.untrusted]
    sockets = {request.dest for request in asked if policy.unsafe_mounts}
    named = {host.mounted.sources[row.source].real for row in asked if row.source in host.mounted.sources}
    masks = [Mount(path, "mask", _SOCKET, role="masked") for path in host.sockets.paths]
    files = [_mask_file(row, number) for number, row in enumerate(find_masked(policy, host))]
    for mask in (*masks, *files):
        for row in binds:
            permitted = row.dest in sockets if mask.pinned is None else row.role == "asked" and mask.dest in named
            if f"{mask.dest}/".startswith(f"{row.source}/") and not permitted:  # a protected file may be one itself
                dest = row.dest + mask.dest[len(row.source) :]
                if row.dest == next(place for place in ancestors(dest) if place in table):
                    yield mask.replace(dest=dest)


def find_masked(policy: Policy, host: Host) -> tuple[SecretFile, ...]:
    """Return the files that are shown with fake values."""
    return host.project.hidden_files if policy.masks_secrets else ()


def find_readable(policy: Policy, host: Host) -> tuple[SecretFile, ...]:
    """Return the files that can be read in git's objects, masked or not."""
    return tuple(row for row in host.project.secret_files if row.committed or (row.stored and policy.masks_secrets))


def _mask_file(row: SecretFile, number: int) -> Mount:
    if number < _MOST_COPIES:
        return Mount(row.path, "copy", _COPY, content=row.masked, mode=row.mode, pinned=row.identity, role="masked")
    return Mount(row.path, "mask", _EMPTY, pinned=row.identity, role="masked")


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Say what of the host comes along, and what was not searched."""
    if host.project.submounts:
        named = list_some([f"{row.path} ({row.kind})" for row in host.project.submounts], _FILES)
        if policy.submounts == "mask":
            yield f"mounts of the host below the project are empty inside: {named}"
        else:
            yield f"mounts of the host below the project come along: {named}; `--set submounts=mask` hides them"
    if host.project.unsearched:
        yield f"{host.project.unsearched} was not searched for secrets: what lies there can be read inside"
    if len(files := find_masked(policy, host)) > _MOST_COPIES:
        yield f"{len(files)} files hold secrets: all but the first {_MOST_COPIES}, in order of names, are empty inside"


def describe(names: Sequence[str]) -> str:
    """Return the line about masked files, and how to show them; nothing if there are none."""
    shown = f"masked inside: {list_some(names, _FILES)}; `--project-secrets show` shows them in this project"
    return shown if names else ""


def name_files(files: Iterable[SecretFile], host: Host, *, lines: bool = True) -> tuple[str, ...]:
    """Return the names of files as a user knows them, with the lines that hold secrets; never values."""
    return tuple(_place(row, host.workdir.real, lines=lines) for row in files)


def _place(row: SecretFile, workdir: str, *, lines: bool) -> str:
    shown = row.path[len(workdir) + 1 :] if row.path.startswith(f"{workdir}/") else row.path
    if not row.lines or not lines:
        return shown
    numbers = ",".join(str(line) for line in row.lines[:_LINES]) + (",…" if len(row.lines) > _LINES else "")
    return f"{shown}:{numbers}"


def socket_warnings(host: Host) -> Iterable[str]:
    """Name the sockets of the host that are masked."""
    for path in host.sockets.paths[:_SOCKETS]:
        yield f"{path} is a socket of the host; it is masked inside"
    if len(host.sockets.paths) > _SOCKETS:
        yield f"{len(host.sockets.paths) - _SOCKETS} more sockets of the host are masked inside"
    if host.sockets.note:
        yield host.sockets.note
