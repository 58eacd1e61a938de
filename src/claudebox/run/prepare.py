"""Plan → bwrap's options and descriptors.

`prepare` opens what is bound before the user is asked, so that what was shown is what is started (E07); `complete` adds
the rest once they have agreed.
"""

from __future__ import annotations

import fcntl
import os

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.plan import bwrap
from claudebox.plan.bwrap import Pipe, Socket
from claudebox.plan.records import Deferred, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from claudebox.plan.records import Plan


_FIRST_OWN_DESCRIPTOR = 10  # below are the standard ones and those of the gate
_SPARE_DESCRIPTORS = 64


class Prepared(Value):
    """What bwrap gets; `argv` and `pipes` once the user has agreed."""

    plan: Plan
    words: tuple[str | bytes | Socket | Pipe | Deferred, ...]  # of bwrap, with the numbers of what is bound
    descriptors: tuple[int, ...]
    open_files: tuple[int, int] | None  # the original limit, if it had to be raised
    argv: tuple[str, ...] = ()
    pipes: tuple[tuple[str, int], ...] = ()  # by which the broker writes files of the sandbox


def prepare(plan: Plan, *, by_name: bool = False) -> Prepared:
    """Open everything that the plan binds; `by_name`: bwrap makes every mount itself."""
    words: list[Any] = [word for row in bwrap.options(plan, by_name=by_name) for word in row]
    count = len(words) + len(plan.gate) + len(plan.command)
    if count > bwrap.MAX_WORDS:
        raise ClaudeboxError(
            f"the sandbox and its command have {count} words, and bwrap takes {bwrap.MAX_WORDS}",
            hint="pass fewer arguments, for example in a file, or mount fewer paths",
        )
    needed = sum(not isinstance(word, str) for word in words) + _SPARE_DESCRIPTORS
    open_files = _raise_limit(needed) if 0 <= os.sysconf("SC_OPEN_MAX") < needed else None
    descriptors = []
    for number, word in enumerate(words):
        if isinstance(word, Mount):
            descriptors.append(own(_pin(word)))
            words[number] = str(descriptors[-1])
    return Prepared(plan, tuple(words), tuple(descriptors), open_files)


def complete(prepared: Prepared, texts: Mapping[str, str], sockets: Mapping[str, str]) -> Prepared:
    """Return the same with bwrap's command; `texts` are by the key of `Deferred`, `sockets` are paths by name."""
    plan, descriptors = prepared.plan, list(prepared.descriptors)
    pipes, words = [], []

    def hand(descriptor: int) -> str:
        descriptors.append(own(descriptor))
        return str(descriptors[-1])

    for word in prepared.words:
        if isinstance(word, str):
            words.append(word)
        elif isinstance(word, Deferred):
            text = f"{word.before}{texts[word.key]}{word.after}"
            words.append(hand(syscalls.memory_file(os.fsencode(text))) if words[-1] == "--file" else text)
        elif isinstance(word, Socket):
            words.append(sockets[word.name])
        elif isinstance(word, Pipe):
            entry, writer = os.pipe2(os.O_CLOEXEC)
            words.append(hand(entry))
            pipes.append((word.name, own(writer)))
        else:
            words.append(hand(syscalls.memory_file(word)))
    arguments = hand(syscalls.memory_file(os.fsencode("\0".join((*words, "")))))
    argv = ("bwrap", "--args", arguments, "--", *plan.gate, *plan.command)
    return prepared.replace(argv=argv, descriptors=tuple(descriptors), pipes=tuple(pipes))


def _raise_limit(needed: int) -> tuple[int, int]:
    """Raise our limit on open files; return the one before."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, limit[1]))
    except (OSError, ValueError):
        raise ClaudeboxError(
            f"the sandbox needs {needed} open files, and the limit is {limit[1]}", hint="raise it with `ulimit -n`"
        ) from None
    return limit


def own(descriptor: int) -> int:
    """Move a descriptor out of the way of those that the gate gets."""
    if descriptor >= _FIRST_OWN_DESCRIPTOR:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_DESCRIPTOR)
    os.close(descriptor)
    return moved


def _pin(mount: Mount) -> int:
    """Open the very thing that was examined; refuse if its name means something else by now (C10)."""
    try:
        descriptor = os.open(mount.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ClaudeboxError(f"`{mount.source}` cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != mount.pinned:
        raise ClaudeboxError(f"`{mount.source}` was replaced by something else while it was being examined")
    return descriptor


def check_project(prepared: Prepared) -> None:
    """Refuse if the project was replaced since it was examined; stubs are made in it by name (C10, C21)."""
    plan = prepared.plan
    pinned = next(mount.pinned for mount in plan.mounts if mount.dest == plan.workdir)
    try:
        status = os.lstat(plan.workdir)
    except OSError:
        status = None
    if status is None or (status.st_dev, status.st_ino) != pinned:
        raise ClaudeboxError(f"`{plan.workdir}` was replaced by something else since it was shown")
