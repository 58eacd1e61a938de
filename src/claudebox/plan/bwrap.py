"""Plan → bwrap's options, one tuple each, and the gate. Contents stay symbolic: `launch` makes descriptors of them."""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.host.records import Host, covers
from claudebox.plan.records import Deferred, Mount, Plan
from claudebox.tables.environment import GATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_WORDS = 9000  # bwrap counts no further
# Descriptors of the gate inside; src/gate/gate.c has the same.
GATE_DESCRIPTOR = 3
STDERR_DESCRIPTOR = 4
# bwrap's monitor must survive what the terminal, or a program inside, sends to everybody in the group; the payload must
# not be born deaf to it. The first end a session, the others are merely passed on.
IGNORED_SIGNALS = (1, 2, 3, 15)  # HUP, INT, QUIT, TERM
FORWARDED_SIGNALS = (10, 12)  # USR1, USR2
# Roles of what no session makes.
_STANDING = frozenset(("system", "client", "device", "masked", "toolchain", "programs"))
_PLACED = frozenset(("bind", "ro-bind", "mask", "copy", "empty"))  # kinds that can be mounted by descriptor
STAGE, EMPTY = "/run/claudebox/stage", "empty"
_BINDS = {"bind": "--bind", "ro-bind": "--ro-bind", "device": "--dev-bind"}


# Bytes are the content of a descriptor.
Word = str | bytes | Deferred


class Placed(Value):
    """A row that is mounted by descriptor, when bwrap has built everything else."""

    mount: Mount
    root: Mount | None  # the outermost bind that it lies in; None: it lies in none
    source: str = ""  # in the stage; nothing: it shows what is there already, or nothing at all


def options(plan: Plan, *, by_name: bool = False) -> Iterator[tuple[Word, ...]]:
    """Yield the options of the plan in the order in which bwrap must see them; `by_name`: it makes every mount."""
    yield from _confinement(plan)
    for variable in plan.variables:
        yield "--setenv", variable.name, variable.deferred or variable.value
    rows = [] if by_name else place(plan)
    placed = {row.mount.dest: row for row in rows}
    for mount in plan.mounts:
        if mount.dest not in placed:
            yield from _mount(mount)
        elif placed[mount.dest].root is None:
            yield "--perms", "0755"
            yield "--dir", mount.dest
    yield from _stage(rows)
    for mount in plan.mounts:
        if mount.kind == "closed":
            yield "--remount-ro", mount.dest
    for dest in ("/dev", "/"):  # nothing is added to them from here on (C25)
        yield "--remount-ro", dest
    # Whoever is in the project before everything is mounted stands beneath it; the gate goes there.
    yield "--chdir", plan.start if by_name else "/"


def _confinement(plan: Plan) -> Iterator[tuple[Word, ...]]:
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


def place(plan: Plan) -> list[Placed]:
    """Return what bwrap does not mount: whatever lies in a directory of the host, or is made while bwrap is at work.

    bwrap resolves places by name. An agent of another session that can write there could lead it elsewhere (C30).
    """
    found: list[Placed] = []
    around, root = "\0", None
    for mount in plan.mounts:  # what lies in another follows it
        within = mount.dest.startswith(around)
        if not within and mount.kind in ("bind", "ro-bind") and mount.role != "scratch":  # which no other session has
            around, root = f"{mount.dest.rstrip('/')}/", mount
            if mount.role == "git" and covers(plan.directory, mount.source):
                root = None
                found.append(Placed(mount, None))
        elif within and mount.kind in _PLACED:
            found.append(Placed(mount, root))
        elif within and (root is None or root.role not in _STANDING):
            raise ClaudeboxError(f"nothing of kind `{mount.kind}` can be mounted where agents write: `{mount.dest}`")
    return _find_sources(found, plan)


def _find_sources(rows: list[Placed], plan: Plan) -> list[Placed]:
    """Return the rows with their places in the stage: a directory there serves all rows with sources in it."""
    bases = [plan.directory]
    found = []
    for number, row in enumerate(rows):
        mount, source = row.mount, ""
        if mount.kind == "copy":
            source = f"content-{number}"
        elif mount.kind == "empty":
            source = EMPTY
        elif mount.kind != "mask" and not _shows_itself(mount, row.root):
            around = (row.root.source,) if row.root else ()  # what is in it may be made while bwrap is at work
            base = next((base for base in (*bases, *around) if covers(base, mount.source)), mount.source)
            if base not in bases:
                bases.append(base)
            source = f"{bases.index(base)}{mount.source[len(base) :]}"
        found.append(row.replace(source=source))
    return found


def _shows_itself(mount: Mount, root: Mount | None) -> bool:
    """Return whether a mount shows what its bind shows there; what is read-only there cannot become writable."""
    if root is None or (root.kind, mount.kind) == ("ro-bind", "bind"):
        return False
    return mount.dest[len(root.dest) :] == mount.source[len(root.source) :] and covers(root.source, mount.source)


def _stage(rows: list[Placed]) -> Iterator[tuple[Word, ...]]:
    """Yield the options that put what is mounted by descriptor where it is found; the directory goes away again."""
    if not any(row.source for row in rows):
        return
    yield "--perms", "0700"
    yield "--tmpfs", STAGE
    seen = set()
    for row in rows:
        name, slash, below = row.source.partition("/")
        if not name or name in seen:
            continue
        seen.add(name)
        if row.mount.kind == "copy":
            yield _permissions(row.mount)
            yield "--file", row.mount.content, f"{STAGE}/{name}"
        elif name == EMPTY:
            yield "--perms", "0555"
            yield "--tmpfs", f"{STAGE}/{name}"
        else:
            yield "--bind", row.mount.source.removesuffix(f"{slash}{below}") or "/", f"{STAGE}/{name}"


def _mount(mount: Mount) -> tuple[tuple[Word, ...], ...]:
    dest = mount.dest
    match mount.kind:
        case "bind" | "ro-bind" | "device":
            return ((_BINDS[mount.kind], mount.source, dest),)
        case "mask" | "socket":
            return (("--ro-bind", "/dev/null" if mount.kind == "mask" else Deferred(mount.source), dest),)
        case "copy" | "late":  # over the file; `--file` would write into it
            content = mount.content if mount.kind == "copy" else Deferred(mount.source)
            return _permissions(mount), ("--ro-bind-data", content, dest)
        case "symlink":
            return (("--symlink", mount.source, dest),)
        case "proc" | "dev":
            return ((f"--{mount.kind}", dest),)
        case "dir":
            return _permissions(mount), ("--dir", dest)
        case "tmpfs" | "closed":
            size = (("--size", str(mount.size)),) if mount.size else ()
            return _permissions(mount), *size, ("--tmpfs", dest)
        case "empty":  # over a directory, and nothing can be put into it
            return ("--perms", "0555"), ("--tmpfs", dest), ("--remount-ro", dest)
        case "file":
            return _permissions(mount), ("--file", mount.deferred or mount.content, dest)


def _permissions(mount: Mount) -> tuple[str, str]:
    return "--perms", f"{mount.mode:04o}"


def gate(host: Host, start: str) -> tuple[str, ...]:
    """Return the program inside that waits for the launcher's word, then runs the command in a directory."""
    # What was ignored when we were started stays ignored: `nohup` means it.
    reset = {*IGNORED_SIGNALS, *FORWARDED_SIGNALS} - host.machine.ignored_signals
    return GATE, str(sum(1 << number for number in reset)), f"PWD={start}"
