"""Plan → what bwrap is handed: bound paths opened by identity, contents in memory, and the list of its options.

`prepare` opens everything before the user is asked, so that what was shown is what is started (E07); `complete` adds
what is fetched when they have agreed.
"""

from __future__ import annotations

import fcntl
import os

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.plan import bwrap_args
from claudebox.plan.model import Fetched, Mount
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from claudebox.launch.sidecars import Sidecar
    from claudebox.plan.model import Plan

_FIRST_OWN_DESCRIPTOR = 10  # below are the standard ones and those of the gate
_SPARE_DESCRIPTORS = 64


class Prepared(Value):
    """Everything that bwrap will be handed, already open."""

    plan: Plan
    arguments: tuple[str | Fetched, ...]  # of bwrap
    descriptors: tuple[int, ...]
    open_files: tuple[int, int] | None  # the limit that the user's shell gave us, if it had to be raised
    sidecars: tuple[Sidecar, ...] = ()  # processes of ours beside the sandbox
    pipes: tuple[tuple[str, int], ...] = ()  # through which the broker writes what bwrap puts into files
    argv: tuple[str, ...] = ()


def prepare(plan: Plan, *, by_name: bool = False) -> Prepared:
    """Open every descriptor that the plan needs; `by_name`: bwrap makes every mount itself."""
    arguments: list[Any] = [word for row in bwrap_args.options(plan, by_name=by_name) for word in row]
    special = [(number, word) for number, word in enumerate(arguments) if not isinstance(word, str)]
    count = len(arguments) + len(plan.gate) + len(plan.command)
    if count > bwrap_args.MAX_WORDS:
        raise ClaudeboxError(
            f"the sandbox and its command have {count} words, and bwrap takes {bwrap_args.MAX_WORDS}",
            hint="pass fewer arguments, for example in a file, or mount fewer paths",
        )
    needed = len(special) + _SPARE_DESCRIPTORS
    open_files = _raise_limit(needed) if 0 <= os.sysconf("SC_OPEN_MAX") < needed else None
    low = _fill_low()
    sidecars, places = _sidecars(plan)
    descriptors: list[int] = []
    pipes: list[tuple[str, int]] = []
    for number, word in special:
        if isinstance(word, Mount):
            descriptors.append(_pin(word))
        elif isinstance(word, Fetched):
            continue
        elif isinstance(word, bwrap_args.Socket):
            arguments[number] = places[word.name]
            continue
        elif isinstance(word, bwrap_args.Pipe):
            entry, writer = os.pipe2(os.O_CLOEXEC)
            descriptors.append(own(entry))
            pipes.append((word.name, own(writer)))
        else:
            descriptors.append(own(syscalls.memory_file(word)))
        arguments[number] = str(descriptors[-1])
    for descriptor in low:
        os.close(descriptor)
    return Prepared(plan, tuple(arguments), tuple(descriptors), open_files, sidecars, tuple(pipes))


def complete(prepared: Prepared, texts: Mapping[str, str]) -> Prepared:
    """Return the same with what was fetched when the user had agreed, and with that bwrap's command."""
    plan = prepared.plan
    descriptors = list(prepared.descriptors)
    arguments: list[str] = []
    if plan.broker is not None:
        from claudebox.launch import sidecars

        sidecars.supply(prepared.sidecars, plan.broker)
        texts = {**texts, **sidecars.find_texts(prepared.sidecars)}
    for word in prepared.arguments:
        text = f"{word.before}{texts[word.key]}{word.after}" if isinstance(word, Fetched) else word
        if isinstance(word, Fetched) and arguments[-1] == "--file":
            descriptors.append(own(syscalls.memory_file(os.fsencode(text))))
            text = str(descriptors[-1])
        arguments.append(text)
    descriptors.append(own(syscalls.memory_file(os.fsencode("\0".join((*arguments, ""))))))
    argv = ("bwrap", "--args", str(descriptors[-1]), "--", *plan.gate, *plan.command)
    return prepared.replace(argv=argv, descriptors=tuple(descriptors))


def _sidecars(plan: Plan) -> tuple[tuple[Sidecar, ...], dict[str, str]]:
    wanted = (plan.link, plan.broker, plan.relay, plan.undo, plan.policy.limits)
    if not any(wanted) and not any(own.real for own in plan.git):
        return (), {}
    from claudebox.launch import sidecars

    return sidecars.prepare(plan)


def _raise_limit(needed: int) -> tuple[int, int]:
    """Permit ourselves that many open files, and return what was permitted before."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, limit[1]))
    except (OSError, ValueError):
        raise ClaudeboxError(
            f"the sandbox needs {needed} open files, and the limit is {limit[1]}", hint="raise it with `ulimit -n`"
        ) from None
    return limit


def _fill_low() -> list[int]:
    """Take the descriptors that the gate gets, so that what is opened now need not be moved."""
    low = [os.dup(0)]
    while low[-1] < _FIRST_OWN_DESCRIPTOR - 1:
        low.append(os.dup(0))
    return low


def own(descriptor: int) -> int:
    """Move a descriptor out of the way of those that the gate gets."""
    if descriptor >= _FIRST_OWN_DESCRIPTOR:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_DESCRIPTOR)
    os.close(descriptor)
    return moved


def _pin(mount: Mount) -> int:
    """Open the very thing that was checked; its name may mean something else by now (C10)."""
    try:
        descriptor = os.open(mount.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ClaudeboxError(f"`{mount.source}` cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != mount.pinned:
        raise ClaudeboxError(f"`{mount.source}` was replaced by something else while it was being examined")
    return descriptor


def check_project(prepared: Prepared) -> None:
    """Refuse if the project was replaced while the user was asked and values were fetched.

    Stubs are made in it by name (C10, C21).
    """
    plan = prepared.plan
    pinned = next(mount.pinned for mount in plan.mounts if mount.dest == plan.workdir)
    try:
        status = os.lstat(plan.workdir)
    except OSError:
        status = None
    if status is None or (status.st_dev, status.st_ino) != pinned:
        raise ClaudeboxError(f"`{plan.workdir}` was replaced by something else since it was shown")
