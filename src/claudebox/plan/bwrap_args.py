"""Plan → bwrap's options, one tuple each, and the gate. Contents stay symbolic: `launch` makes descriptors of them."""

from __future__ import annotations

from claudebox.plan.model import Fetched, Mount
from claudebox.tables.inside import GATE
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.host import Host
    from claudebox.plan.model import Plan

MAX_WORDS = 9000  # bwrap counts no further
# Descriptors of the gate inside; src/gate/gate.c has the same.
GATE_DESCRIPTOR = 3
STDERR_DESCRIPTOR = 4
# bwrap's monitor must survive what the terminal, or a program inside, sends to everybody in the group; the payload must
# not be born deaf to it. The first end a session, the others are merely passed on.
IGNORED_SIGNALS = (1, 2, 3, 15)  # HUP, INT, QUIT, TERM
FORWARDED_SIGNALS = (10, 12)  # USR1, USR2
_STANDING = frozenset(("system", "client", "device", "masked", "toolchain"))  # roles of what no session makes
PIPE = 4096  # bytes that any pipe takes before somebody reads
_BY_NAME = {"bind": "--bind", "ro-bind": "--ro-bind", "device": "--dev-bind"}
_BY_DESCRIPTOR = {"bind": "--bind-fd", "ro-bind": "--ro-bind-fd"}


class Socket(Value):
    """A word that is the path of a socket which the launcher makes."""

    name: str


class Pipe(Value):
    """A word that is the number of a descriptor from which a text comes that the broker writes."""

    name: str


class Hold(Value):
    """A word that is the number of a descriptor which ends when the launcher has made what later options need."""

    content: bytes


# Bytes are the content of a descriptor; a mount is one on the very thing that it shows.
Word = str | bytes | Mount | Socket | Pipe | Hold | Fetched


def options(plan: Plan) -> Iterator[tuple[Word, ...]]:
    """Yield the options of the plan in the order in which bwrap must see them."""
    yield ("--die-with-parent",)
    for namespace in plan.namespaces:
        yield (f"--unshare-{namespace}",)
    if plan.disable_userns:
        yield ("--disable-userns",)
    yield "--cap-drop", "ALL"
    if plan.hostname:
        yield "--hostname", "claudebox"
    if plan.detached:
        yield ("--new-session",)
    yield "--seccomp", plan.seccomp
    for variable in plan.variables:
        yield "--setenv", variable.name, variable.fetched or variable.value
    early, last, late = divide(plan.mounts)
    for mount in early:
        yield from _mount(mount, plan)
    if last is not None:
        yield "--perms", f"{last.mode:04o}"
        yield "--file", Hold(last.content), last.dest
    for mount in late:
        yield from _mount(mount, plan)
    for mount in plan.mounts:
        if mount.kind == "closed":
            yield "--remount-ro", mount.dest
    for dest in ("/dev", "/"):  # nothing is added to them from here on (C25)
        yield "--remount-ro", dest
    yield "--chdir", plan.start


def divide(mounts: Iterable[Mount]) -> tuple[list[Mount], Mount | None, list[Mount]]:
    """Return mounts that are there already, and those that rest on what is made for a session, with all within them.

    bwrap puts the first in place while the launcher is still at work. The file between them is what it waits for: it
    reads that to its end, which comes when everything is made.
    """
    early: list[Mount] = []
    late: list[Mount] = []
    within = "\0"
    for mount in mounts:  # what lies in another follows it
        if mount.dest.startswith(within):
            late.append(mount)
        elif mount.role in _STANDING:
            early.append(mount)
        else:
            late.append(mount)
            within = f"{mount.dest}/"
    files = [mount for mount in early if mount.kind == "file" and not mount.fetched and len(mount.content) <= PIPE]
    last = files[-1] if files else None
    return [mount for mount in early if mount is not last], last, late


def _mount(mount: Mount, plan: Plan) -> tuple[tuple[Word, ...], ...]:
    dest = mount.dest
    match mount.kind:
        case "bind" | "ro-bind" | "device":
            if is_handed_over(mount, plan):
                return ((_BY_DESCRIPTOR[mount.kind], mount, dest),)
            return ((_BY_NAME[mount.kind], mount.source, dest),)
        case "mask" | "socket":
            return (("--ro-bind", "/dev/null" if mount.kind == "mask" else Socket(mount.source), dest),)
        case "copy" | "late":  # over the file; `--file` would write into it
            content = mount.content if mount.kind == "copy" else Pipe(mount.source)
            return _permissions(mount), ("--ro-bind-data", content, dest)
        case "symlink":
            return (("--symlink", mount.source, dest),)
        case "proc" | "dev":
            return ((f"--{mount.kind}", dest),)
        case "dir":
            return _permissions(mount), ("--dir", dest)
        case "tmpfs" | "closed":
            size = (("--size", str(mount.size)),) if plan.sizes and mount.size else ()
            return _permissions(mount), *size, ("--tmpfs", dest)
        case "empty":  # over a directory, and nothing can be put into it
            return ("--perms", "0555"), ("--tmpfs", dest), ("--remount-ro", dest)
        case "file":
            return _permissions(mount), ("--file", mount.fetched or mount.content, dest)


def is_handed_over(mount: Mount, plan: Plan) -> bool:
    """Return whether bwrap gets a descriptor on what it binds; what it binds by name is looked at later."""
    return plan.pin and mount.pinned is not None and mount.kind in _BY_DESCRIPTOR


def _permissions(mount: Mount) -> tuple[str, str]:
    return "--perms", f"{mount.mode:04o}"


def gate(host: Host) -> tuple[str, ...]:
    """Return the program inside that waits for the launcher's word, then runs the command."""
    # What was ignored when we were started stays ignored: `nohup` means it.
    reset = {*IGNORED_SIGNALS, *FORWARDED_SIGNALS} - host.ignored_signals
    return GATE, str(sum(1 << number for number in reset))
