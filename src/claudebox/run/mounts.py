"""Mounts by descriptor: what lies in a directory that an agent can write is mounted by the gate program, not by bwrap.

The program enters the mounts of the sandbox while the payload waits, and resolves every target once, through no link.
"""

from __future__ import annotations

import errno
import os

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.plan import bwrap
from claudebox.run.prepare import own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from claudebox.host.records import Identity
    from claudebox.plan.bwrap import Placed
    from claudebox.plan.records import Plan


LARGEST_TABLE, MOST_ROWS = 4 << 20, 1 << 15  # src/gate/gate.c has the same
_MESSAGE = 8192
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_DENIED = (errno.ENOSYS, errno.EPERM)


def mount_all(payload: int, plan: Plan, standing: Mapping[str, Identity], program: int) -> None:
    """Make every mount that bwrap did not make, and let no mount appear inside that the host makes later (C34).

    `standing` tells which stubs were made, `program` is a descriptor on the gate.
    """
    rows = bwrap.place(plan)
    stage = (bwrap.STAGE.lstrip("/"),) if any(row.source for row in rows) else ()
    _run(payload, _make_table(rows, standing), program, stage)


def mount_again(process: int, row: Placed, how: str, found: Identity, program: int) -> None:
    """Mount one row in a running sandbox, on what was found there just now; `how` is as gate.c reads it."""
    root = row.root.dest if row.root else "/"
    target = row.mount.dest[len(root.rstrip("/")) + 1 :]
    fields = ("R", root.strip("/"), "", "", "", how, target, "", _name(found), _name(found))
    _run(process, os.fsencode("".join(f"{field}\0" for field in fields)), program, ())


def _make_table(rows: Iterable[Placed], standing: Mapping[str, Identity]) -> bytes:
    """Return the table as gate.c reads it."""
    fields: list[str] = []
    within: object = ()
    around = "\0"
    for row in rows:
        mount, root = row.mount, row.root
        nested = mount.dest.startswith(around)  # in another of these, which may show something else there
        around = around if nested else f"{mount.dest}/"
        if root is not within:
            within = root
            fields += ["R", root.dest.strip("/") if root else "", "", _name(root.pinned if root else None), ""]
        target = mount.dest[len(root.dest.rstrip("/")) + 1 if root else 1 :]
        if mount.kind in ("mask", "copy", "empty"):
            where = {"mask": "nr", "copy": "sr", "empty": "sr"}[mount.kind]
            fields += [where, target, row.source, _name(mount.pinned), ""]
        else:
            identity = _name(mount.pinned or standing.get(mount.dest))
            where = "s" if row.source else "i"
            itself = identity if where == "i" and not nested else ""
            fields += [where + ("w" if mount.kind == "bind" else "r"), target, row.source, itself, identity]
    table = os.fsencode("".join(f"{field}\0" for field in fields))
    if len(table) > LARGEST_TABLE or len(fields) > MOST_ROWS * 5:
        raise ClaudeboxError("too many paths are mounted or protected in the project", hint="mount fewer of them")
    return table


def _name(identity: Identity | None) -> str:
    return f"{os.major(identity[0])}:{os.minor(identity[0])}:{identity[1]}" if identity else ""


def _run(process: int, table: bytes, program: int, words: tuple[str, ...]) -> None:
    """Run the gate program in the mounts of a process, or raise with what it says."""
    entry, messages_end = os.pipe2(os.O_CLOEXEC)
    with Closing(entry) as messages:
        try:
            with (
                Closing(own(messages_end)) as errors,
                Closing(own(syscalls.memory_file(table))) as rows,
                Closing(own(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))) as mounts,
            ):
                places = [
                    (os.POSIX_SPAWN_DUP2, rows, 0),
                    (os.POSIX_SPAWN_DUP2, errors, 2),
                    (os.POSIX_SPAWN_DUP2, mounts, bwrap.GATE_DESCRIPTOR),
                ]
                child = os.posix_spawn(f"/proc/self/fd/{program}", ("mount", *words), {}, file_actions=places)
            status = os.waitpid(child, 0)[1]
        except OSError as error:
            raise ClaudeboxError(f"the mounts of the sandbox cannot be entered: {error.strerror}") from None
        if status != 0:
            raise _explain(os.read(messages, _MESSAGE))


def _explain(message: bytes) -> ClaudeboxError:
    call, _, rest = os.fsdecode(message).partition(" ")
    number, _, path = rest.partition(" ")
    code = int(number or errno.EIO)
    if code in _DENIED:
        return ClaudeboxError(
            f"nothing can be protected here: the system call `{call}` is denied: {os.strerror(code)}",
            hint="claudebox needs Linux 5.13; in a container, a filter that permits setns, mount, openat2, open_tree, "
            "mount_setattr and move_mount",
        )
    if code in _GONE:
        return ClaudeboxError(f"`{path}` was moved, or became a link, while it was being protected")
    if code == 0:
        return ClaudeboxError(f"`{path}` was replaced by something else while the sandbox was being built")
    return ClaudeboxError(f"`{path}` could not be protected: {call}: {os.strerror(code)}")
