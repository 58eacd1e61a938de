"""Plan → bwrap's command line, and the descriptors that it names."""

from __future__ import annotations

import fcntl
import os

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.plan import bwrap
from claudebox.plan.records import Deferred, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from claudebox.run.sidecars import Sidecar


_FIRST_OWN_DESCRIPTOR = 10  # below are the standard ones and those of the gate
_SPARE_DESCRIPTORS = 64


class Prepared(Value):
    """What bwrap gets."""

    argv: tuple[str, ...]
    descriptors: tuple[int, ...]
    open_files: tuple[int, int] | None  # the original limit, if it had to be raised


def prepare(
    plan: Plan, texts: Mapping[str, str], sidecars: Iterable[Sidecar] = (), *, by_name: bool = False
) -> Prepared:
    """Make what bwrap reads, with what sidecars have for it; `texts` are by the key of `Deferred`.

    `by_name`: bwrap makes every mount itself.
    """
    texts = dict(texts)
    pipes: list[tuple[str, int]] = []
    for sidecar in sidecars:
        texts |= {**sidecar.texts, **sidecar.sockets}
        pipes += sidecar.pipes
    rows = tuple(bwrap.options(plan, by_name=by_name))
    count = sum(map(len, rows)) + len(plan.gate) + len(plan.command)
    if count > bwrap.MAX_WORDS:
        raise ClaudeboxError(
            f"the sandbox and its command have {count} words, and bwrap takes {bwrap.MAX_WORDS}",
            hint="pass fewer arguments, for example in a file, or mount fewer paths",
        )
    needed = sum(not isinstance(word, str) for row in rows for word in row) + _SPARE_DESCRIPTORS
    open_files = _raise_limit(needed) if 0 <= os.sysconf("SC_OPEN_MAX") < needed else None
    descriptors: list[int] = []

    def hand(descriptor: int) -> str:
        descriptors.append(move_up(descriptor))
        return str(descriptors[-1])

    def fill(option: bwrap.Word, word: bwrap.Word) -> str:
        if isinstance(word, bytes):
            return hand(syscalls.memory_file(word))
        if not isinstance(word, Deferred):
            return word
        if option == "--ro-bind-data":
            pipe = next(pipe for pipe in pipes if pipe[0] == word.key)
            pipes.remove(pipe)
            return hand(pipe[1])
        text = f"{word.before}{texts[word.key]}{word.after}"
        return hand(syscalls.memory_file(os.fsencode(text))) if option == "--file" else text

    words = [fill(row[0], word) for row in rows for word in row]
    arguments = hand(syscalls.memory_file(os.fsencode("\0".join((*words, "")))))
    argv = ("bwrap", "--args", arguments, "--", *plan.gate, *plan.command)
    return Prepared(argv, tuple(descriptors), open_files)


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


def move_up(descriptor: int) -> int:
    """Move a descriptor out of the way of those that the gate gets."""
    if descriptor >= _FIRST_OWN_DESCRIPTOR:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_DESCRIPTOR)
    os.close(descriptor)
    return moved


def check_project(plan: Plan) -> None:
    """Refuse if the project was replaced since it was examined; stubs are made in it by name (C10, C21)."""
    pinned = next(mount.pinned for mount in plan.mounts if mount.dest == plan.workdir)
    try:
        status = os.lstat(plan.workdir)
    except OSError:
        status = None
    if status is None or (status.st_dev, status.st_ino) != pinned:
        raise ClaudeboxError(f"`{plan.workdir}` was replaced by something else since it was shown")
