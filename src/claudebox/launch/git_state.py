"""The private directory of one repository: `base`, `synced`, `lock`, beside `own`, `real`, `layout.json`.

`base` is the refs that both sides last had in common, in rows of packed-refs and loose refs: the last one counts. Rows
that begin with `#` or `^` do not count, so set-up writes the packed-refs that it has copied, then the loose refs.
`synced` holds the index and the HEAD that both had.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from claudebox import syscalls
from claudebox.console import shorten
from claudebox.errors import ClaudeboxError
from claudebox.files import identify, mode_of, read_at, read_small, reopen, replace_file
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from claudebox.facts.model import Identity

REFTABLE_HEAD = "ref: refs/heads/.invalid"  # what the file says where refs are kept in tables
_LIMIT = 256 << 20
_WAIT, _LOOK = 20.0, 0.02
_MOST_DIRECTORIES = 1 << 16
_READ = ("config", "info", "logs", "objects")  # by git, besides


class Layout(Value):
    """Where the parts of one repository are; written by set-up."""

    common: str  # the real git directory
    git_dir: str  # that of this checkout: the same, or `worktrees/ID` in it
    work_tree: str
    stores: tuple[str, ...]  # directories of objects that the real one uses, its own first
    object_format: str = "sha1"
    ref_format: str = "files"
    depth: int = 0  # of a submodule: how many repositories are around it
    module: str = ""  # of a submodule: its name
    unmapped: bool = False
    only: str = ""  # of an agent's worktree: the only ref that moves
    obeyed: tuple[str, ...] = ()  # paths of the work tree that git of the host obeys by its configuration
    # The boot in which devices have these numbers, then `device:inode` of common and work_tree, if known.
    identities: tuple[str, ...] = ()

    @property
    def checkout(self) -> str:
        """Return how `base` calls the checkout."""
        return "." if self.git_dir == self.common else os.path.relpath(self.git_dir, self.common)


def describe_identities(*found: Identity | None) -> tuple[str, ...]:
    """Return what `Layout.identities` keeps."""
    return (_boot(), *(f"{row[0]}:{row[1]}" if row is not None else "" for row in found))


def _boot() -> str:
    return os.fsdecode(read_small("/proc/sys/kernel/random/boot_id") or b"").strip()


def is_replaced(layout: Layout, found: str = "") -> bool:
    """Return whether the git directory is not the one that set-up saw, by its name or as it was `found`."""
    known = layout.identities[1] if layout.identities else ""  # an earlier version wrote none
    now = found or describe_identities(identify(layout.common))[1]
    skipped = 0 if layout.identities[:1] == (_boot(),) else 1  # devices may have other numbers since
    return bool(known) and known.split(":")[skipped:] != now.split(":")[skipped:]


def find_work_tree(layout: Layout) -> Identity | None:
    """Return which directory the work tree is, if that is known; an agent may move that of a submodule."""
    if layout.module or layout.identities[:1] != (_boot(),) or not layout.identities[2]:
        return None
    device, _, inode = layout.identities[2].partition(":")
    return int(device), int(inode)


def render_refs(refs: dict[str, str]) -> bytes:
    """Return the text of `base`."""
    return "".join(f"{value} {name}\n" for name, value in refs.items()).encode("utf-8", "surrogateescape")


def parse_refs(content: bytes) -> dict[str, str]:
    """Return the refs that `base` or a file `packed-refs` has."""
    refs: dict[str, str] = {}
    for row in content.decode("utf-8", "surrogateescape").split("\n"):
        value, _, name = row.partition(" ")
        if name and value[0] not in "#^@":
            refs[name] = value
    return refs


def renew(path: str, base: bytes, head: bytes, index: bytes) -> None:
    """Reset what both sides have in common: set-up has just made the agent's repository."""
    seen = stamp(f"{path}/own", read_layout(path).checkout)  # nothing in it has to come back
    write_synced(path, head=head, index=index)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, content in (("base", base), ("states", b""), ("seen", seen.encode())):
            replace_file(directory, name, content)
    finally:
        os.close(directory)


class Private:
    """The directory, open and locked; `with` opens it for one import."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._directory = self.lock = -1

    def __enter__(self) -> Self:
        """Wait for those who are at it already."""
        self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.lock = os.open("lock", flags, 0o600, dir_fd=self._directory)
        os.makedirs(f"{self.path}/synced", exist_ok=True)
        limit = time.monotonic() + _WAIT
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                if time.monotonic() > limit:
                    self.__exit__()
                    raise ClaudeboxError(f"another import holds `{self.path}/lock` for {_WAIT:.0f} seconds") from None
                time.sleep(_LOOK)

    def __exit__(self, *_: object) -> None:
        """Let others in."""
        os.close(self.lock)
        os.close(self._directory)

    def layout(self) -> Layout:
        """Return where everything is."""
        return read_layout(self.path)

    def read(self, name: str) -> bytes | None:
        """Return a file of ours."""
        return read_at(self._directory, name, limit=_LIMIT)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file of ours."""
        replace_file(self._directory, name, content)

    def refs(self) -> dict[str, str]:
        """Return the refs that both sides had in common."""
        return parse_refs(self.read("base") or b"")

    def read_head(self) -> str:
        """Return the text of HEAD that both sides had in common."""
        return os.fsdecode(read_small(f"{self.path}/synced/head") or b"").rstrip("\n")

    def write_head(self, head: str) -> None:
        """Write down the HEAD that both sides have."""
        write_synced(self.path, head=os.fsencode(head))


def write_synced(path: str, **parts: bytes) -> None:
    """Write down `head` and `index` of the checkout as both sides have them."""
    os.makedirs(f"{path}/synced", exist_ok=True)
    directory = os.open(f"{path}/synced", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, content in parts.items():
            replace_file(directory, name, content)
    finally:
        os.close(directory)


def stamp(own: str, checkout: str) -> str:
    """Return what changes whenever a ref, HEAD or the index of the agent's repository does, or git's files are closed.

    A few calls of `stat`: a loose ref that changes is renamed into its directory, whose time changes with it.
    """
    rows: list[tuple[str, os.stat_result]] = []
    waiting = [f"{own}/refs"]
    names = ("HEAD", "packed-refs", "index", "reftable", "worktrees")
    for name in (*names, f"{checkout}/HEAD", f"{checkout}/index", f"{checkout}/reftable"):
        try:
            rows.append((name, os.lstat(f"{own}/{name}")))
        except OSError:
            continue
    while waiting:
        directory = waiting.pop()
        if len(rows) > _MOST_DIRECTORIES:
            return ""
        try:
            rows.append((directory, os.lstat(directory)))
            with os.scandir(directory) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    text = "".join(f"{name} {at.st_mode} {at.st_ino} {at.st_size} {at.st_mtime_ns}\n" for name, at in sorted(rows))
    text += "".join(f"{name} {mode_of(f'{own}/{name}')}\n" for name in _READ)
    return syscalls.sha256(text.encode("utf-8", "surrogateescape"))


def stamp_own(path: str) -> str:
    """Return the stamp of the agent's repository, given the private directory."""
    return stamp(f"{path}/own", read_layout(path).checkout)


def describe_error(error: OSError, path: str) -> str:
    """Return what failed and where; a full disk is that of the project, or that of our state."""
    place = error.filename or read_layout(path).common
    if error.errno == errno.ENOSPC and not error.filename and not os.statvfs(path).f_bavail:
        place = path
    return f"{error.strerror}: {shorten(os.fsdecode(place), 200)}"


def stamp_host(path: str) -> str:
    """Return the same of the real repository, given the private directory."""
    layout = read_layout(path)
    return stamp(layout.common, layout.checkout)


def is_known(path: str) -> bool:
    """Return whether the agent has had a repository here."""
    reopen(f"{path}/own")
    return os.path.isfile(f"{path}/layout.json") and os.path.isfile(f"{path}/own/HEAD")


def settled(path: str) -> bool:
    """Return whether everything in the agent's repository has come back, for all that can be seen from outside."""
    seen = read_private(path, "seen").decode()
    return bool(seen) and seen == stamp(f"{path}/own", read_layout(path).checkout)


class Alone:
    """Keeps sessions away from a repository, if none uses it now; each holds a lock on `sessions`."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, -1

    def __enter__(self) -> bool:
        """Return whether none uses it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(f"{self._path}/sessions", flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        """Let sessions begin."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def read_private(path: str, name: str) -> bytes:
    """Return a file of a private directory, empty if there is none."""
    return read_small(f"{path}/{name}", limit=_LIMIT) or b""


def render_layout(layout: Layout) -> bytes:
    """Return the text of `layout.json`."""
    rows = []
    for name in Layout._fields:
        value = getattr(layout, name)
        if isinstance(value, bool | int):
            text = str(value).lower()
        elif isinstance(value, tuple):
            text = f"[{', '.join(map(syscalls.quote_json, value))}]"
        else:
            text = syscalls.quote_json(value)
        rows.append(f'"{name}": {text}')
    return ("{" + ",\n ".join(rows) + "}\n").encode("ascii")


def read_layout(path: str) -> Layout:
    """Return where the parts of a repository are, from its private directory."""
    found = syscalls.parse_json(read_small(f"{path}/layout.json", limit=1 << 20) or b"")
    if not isinstance(found, dict):
        raise ClaudeboxError(f"`{path}/layout.json` cannot be read", hint="move that directory away")
    known = {name: found[name] for name in Layout._fields if name in found}
    known.update((name, tuple(value)) for name, value in known.items() if isinstance(value, list))
    try:
        return Layout(**known)
    except TypeError:
        raise ClaudeboxError(f"`{path}/layout.json` is not complete", hint="move that directory away") from None
