"""The private directory of one repository, in the state of the project.

`own` is the agent's git directory, `state` what is known of both sides, `synced` the index and HEAD that both
sides had, which scripts of git replace. An import holds `lock`; each session holds `sessions`, shared.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import time

from claudebox.base import syscalls
from claudebox.base.console import shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_LOCK, identify, mode_of, parse_object, read_small, reopen, write_file
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from claudebox.host.records import Identity
    from claudebox.plan.records import Plan


REFTABLE_HEAD = "ref: refs/heads/.invalid"  # what the file HEAD says where refs are kept in tables
_LIMIT = 256 << 20
_LOCK_TIMEOUT, _LOCK_POLL = 20.0, 0.02  # seconds
_MOST_DIRECTORIES = 1 << 16
_STAMPED = ("HEAD", "packed-refs", "index", "reftable", "worktrees")
_STAMPED_MODES = ("config", "info", "logs", "objects")  # git has to be able to read them
_FILE, _OLD_FILE = "state", "layout.json"  # the latter of 0.2.0, with the refs in `base`


class Layout(Value):
    """Where the parts of one repository are; written by set-up."""

    common: str  # the host's git directory
    git_dir: str  # that of this checkout: the same, or `worktrees/ID` in it
    work_tree: str
    stores: tuple[str, ...]  # directories of objects that the host's uses, its own first
    object_format: str = "sha1"
    ref_format: str = "files"
    depth: int = 0  # of a submodule: how many repositories are around it
    module: str = ""  # of a submodule: its name
    only: str = ""  # of an agent's worktree: the only ref that moves
    obeyed: tuple[str, ...] = ()  # paths that no commit may change: git obeys them, or they are masked
    common_inode: int = 0  # when it was set up; 0: not known. A device may have another number after a reboot.
    work_tree_inode: int = 0

    @property
    def checkout(self) -> str:
        """The git directory of the checkout, relative to `common`."""
        return "." if self.git_dir == self.common else os.path.relpath(self.git_dir, self.common)


def find_inode(path: str) -> int:
    """Return the inode of the directory at a path, 0 if there is none, or a link."""
    return (identify(path) or (0, 0))[1]


def is_replaced(layout: Layout, found: int = 0) -> bool:
    """Return whether the git directory is another than set-up saw: the one at its path, or the one `found`."""
    return layout.common_inode not in (0, found or find_inode(layout.common))


def find_work_tree(layout: Layout) -> Identity | None:
    """Return device and inode that the work tree must have; None for a submodule, which an agent may move."""
    if layout.module or not layout.work_tree_inode:
        return None
    found = identify(layout.work_tree)
    return found[0] if found is not None else 0, layout.work_tree_inode


def render_refs(refs: dict[str, str]) -> str:
    return "".join(f"{value} {name}\n" for name, value in refs.items())


def parse_refs(content: str) -> dict[str, str]:
    """Return the refs in the text of `State.base` or of a file `packed-refs`."""
    refs: dict[str, str] = {}
    for row in content.split("\n"):
        value, _, name = row.partition(" ")
        if name and value[0] not in "#^@":
            refs[name] = value
    return refs


class State(Value):
    """What is known of one repository."""

    layout: Layout
    # The refs that both sides last had in common, in rows of packed-refs and loose refs: the last one counts. Rows that
    # begin with `#` or `^` do not, so set-up takes the packed-refs that it has copied, then the loose refs.
    base: str = ""
    seen: str = ""  # the stamp of the agent's repository when nothing in it had to come back
    operations: tuple[str, ...] = ()  # of the host that were under way when its git directory was copied
    hooks: tuple[str, ...] = ()  # of the host that were copied, each with its directory

    def refs(self) -> dict[str, str]:
        """Return the refs that both sides had in common."""
        return parse_refs(self.base)


def has_state(path: str) -> bool:
    """Return whether a private directory has been set up."""
    return os.path.isfile(f"{path}/{_FILE}") or os.path.isfile(f"{path}/{_OLD_FILE}")


def read_state(path: str) -> State:
    """Return what is known of the repository of a private directory."""
    is_old = not os.path.lexists(f"{path}/{_FILE}")
    name = _OLD_FILE if is_old else _FILE
    content = read_small(f"{path}/{name}", limit=_LIMIT) or b""
    try:
        if is_old:
            layout = parse_object(content)
            found = {"base": os.fsdecode(read_small(f"{path}/base", limit=_LIMIT) or b"")}
        else:
            found = marshal.loads(content)  # noqa: S302 - no agent can write it
            layout = found.pop("layout")
        return State(Layout(**_select(Layout, layout)), **_select(State, found))
    except (AttributeError, EOFError, KeyError, TypeError, ValueError):
        raise ClaudeboxError(f"`{path}/{name}` cannot be read", hint="move that directory away") from None


def _select(kind: type[Value], found: Any) -> dict[str, Any]:
    rows = ((name, found[name]) for name in kind._fields if name in found)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in rows}


def read_layout(path: str) -> Layout:
    return read_state(path).layout


def write_state(path: str, state: State) -> None:
    """Write the state, marshalled: every launch reads it, and `json` costs one 9 ms."""
    fields = {**_fields(state), "layout": _fields(state.layout)}
    write_file(f"{path}/{_FILE}", marshal.dumps(fields, 4))


def _fields(value: Value) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value._fields}


def update(path: str, **changes: Any) -> None:
    """Change some of what is known of a repository."""
    write_state(path, read_state(path).replace(**changes))


def write_synced(path: str, **parts: bytes) -> None:
    """Write `head` and `index` of the checkout as both sides have them."""
    os.makedirs(f"{path}/synced", exist_ok=True)
    for name, content in parts.items():
        write_file(f"{path}/synced/{name}", content)


class Private:
    """A private directory, locked for one import."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = -1

    def __enter__(self) -> Self:
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.lock = os.open(f"{self.path}/lock", flags, 0o600)
        os.makedirs(f"{self.path}/synced", exist_ok=True)
        limit = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                if time.monotonic() > limit:
                    self.__exit__()
                    raise ClaudeboxError(
                        f"another import holds `{self.path}/lock` for {_LOCK_TIMEOUT:.0f} seconds"
                    ) from None
                time.sleep(_LOCK_POLL)

    def __exit__(self, *_: object) -> None:
        os.close(self.lock)

    def state(self) -> State:
        return read_state(self.path)

    def update(self, **changes: Any) -> None:
        update(self.path, **changes)

    def read_head(self) -> str:
        """Return the text of HEAD that both sides had in common."""
        return os.fsdecode(read_small(f"{self.path}/synced/head") or b"").rstrip("\n")

    def write_head(self, head: str) -> None:
        write_synced(self.path, head=os.fsencode(head))


# Whether anything changed, and whether everything has come back.


def stamp(own: str, checkout: str) -> str:
    """Return a digest that changes with any ref, HEAD or index of a git directory, and if parts of it are closed.

    A few calls of `stat`: a loose ref that changes is renamed into its directory, whose time changes with it. Of more
    directories than can be examined each stamp is another.
    """
    rows: list[tuple[str, os.stat_result]] = []
    waiting = [f"{own}/refs"]
    for name in (*_STAMPED, f"{checkout}/HEAD", f"{checkout}/index", f"{checkout}/reftable"):
        try:
            rows.append((name, os.lstat(f"{own}/{name}")))
        except OSError:
            continue
    while waiting:
        directory = waiting.pop()
        if len(rows) > _MOST_DIRECTORIES:
            return str(time.time_ns())
        try:
            rows.append((directory, os.lstat(directory)))
            with os.scandir(directory) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    text = "".join(f"{name} {at.st_mode} {at.st_ino} {at.st_size} {at.st_mtime_ns}\n" for name, at in sorted(rows))
    text += "".join(f"{name} {mode_of(f'{own}/{name}')}\n" for name in _STAMPED_MODES)
    return syscalls.sha256(text.encode("utf-8", "surrogateescape"))


def stamp_own(path: str) -> str:
    """Return the stamp of the agent's repository, given the private directory."""
    return stamp(f"{path}/own", read_layout(path).checkout)


def stamp_host(path: str) -> str:
    """Return the stamp of the host's repository, given the private directory."""
    layout = read_layout(path)
    return stamp(layout.common, layout.checkout)


def is_known(path: str) -> bool:
    """Return whether the agent has had a repository here."""
    reopen(f"{path}/own")
    return has_state(path) and os.path.isfile(f"{path}/own/HEAD")


def settled(path: str) -> bool:
    """Return whether everything in the agent's repository has come back, judged by its stamp."""
    state = read_state(path) if has_state(path) else None
    return state is not None and bool(state.seen) and state.seen == stamp(f"{path}/own", state.layout.checkout)


def describe_error(error: OSError, path: str) -> str:
    """Return what failed and where; a full disk is that of the project, or that of our state."""
    place = error.filename or read_layout(path).common
    if error.errno == errno.ENOSPC and not error.filename and not os.statvfs(path).f_bavail:
        place = path
    return f"{error.strerror}: {shorten(os.fsdecode(place), 200)}"


# Which sessions use a private directory: a lock that ends with the process.


class Alone:
    """Keep sessions away from a repository while it is open, if none uses it now."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, -1

    def __enter__(self) -> bool:
        """Return whether no session uses it."""
        try:
            self._descriptor = os.open(f"{self._path}/sessions", OPEN_LOCK, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def hold(private: str, *, alone: bool = False) -> tuple[int, bool]:
    """Return a descriptor that holds the lock, shared with other sessions, and whether it is held `alone` as wanted."""
    descriptor = os.open(f"{private}/sessions", OPEN_LOCK, 0o600)
    for _ in range(2 if alone else 0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor, True
        except BlockingIOError:
            share(descriptor)  # an import at the end of another session may have it: wait for that, and try again
    share(descriptor)
    return descriptor, False


def share(descriptor: int) -> None:
    """Let other sessions use the directory too."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def set_up(plan: Plan) -> list[int]:
    """Make the agent's git directories; they are in use while the descriptors that are returned are open."""
    in_use = [hold(own.private)[0] for own in plan.git if not own.real]
    if len(in_use) == len(plan.git):
        return in_use
    from claudebox.git import sidecar

    return in_use + sidecar.set_up(plan)


def release(in_use: list[int]) -> None:
    for descriptor in in_use:
        os.close(descriptor)
