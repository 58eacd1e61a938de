"""The private directory of one repository: `base`, `intended`, `lock`, `journal`, beside `own`, `real`, `layout.json`.

`base` is what both sides last had in common. It is text, in rows:

    OID refs/heads/main           a ref; rows of packed-refs, then those of loose refs: the last one counts
    @ . ref: refs/heads/main      the text of HEAD; `.` is the checkout of the common directory, else `worktrees/ID`

Rows that begin with `#` or `^` do not count, so set-up writes the packed-refs that it has copied, then the loose refs,
then HEAD. `intended` has the same rows, for what an import was about to write: `> OID REF` into the real repository,
`< OID REF` into the agent's, `@> . HEAD` and `@< . HEAD` the same of HEAD; `rows` has such rows of the index. An
import that was cut off is recognised by it, so that the next one does not take our own work for that of somebody else.
"""

from __future__ import annotations

import fcntl
import os
import time

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import mode_of, read_at, read_small, reopen, replace_file
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

REFTABLE_HEAD = "ref: refs/heads/.invalid"  # what the file says where refs are kept in tables
OUT, INTO = ">", "<"  # into the real repository, into the agent's
_LIMIT = 256 << 20
_JOURNAL_LIMIT = 1 << 18
_WAIT, _LOOK = 20.0, 0.02
_MOST_DIRECTORIES = 1000
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

    @property
    def checkout(self) -> str:
        """Return how `base` calls the checkout."""
        return "." if self.git_dir == self.common else os.path.relpath(self.git_dir, self.common)


class Base(Value):
    """What both sides had in common when they were last compared."""

    refs: dict[str, str]
    heads: dict[str, str]

    def rows(self) -> bytes:
        """Return it as text."""
        rows = [f"{value} {name}\n" for name, value in self.refs.items()]
        rows += [f"@ {checkout} {head}\n" for checkout, head in self.heads.items()]
        return "".join(rows).encode("utf-8", "surrogateescape")

    def commit(self, checkout: str) -> str:
        """Return the commit that was checked out."""
        head = self.heads.get(checkout, "")
        return self.refs.get(head[5:], "") if head.startswith("ref: ") else head


def renew(path: str, base: bytes) -> None:
    """Begin anew: set-up has just made the agent's repository, and this is what both sides have in common."""
    for name in os.listdir(path):
        if name in ("intended", "states") or name.startswith("rows"):
            os.unlink(f"{path}/{name}")
    seen = stamp(f"{path}/own", read_layout(path).checkout)  # nothing in it has to come back
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        replace_file(directory, "base", base)
        replace_file(directory, "seen", seen.encode())
    finally:
        os.close(directory)


def parse_base(content: bytes) -> Base:
    """Return what `base` says."""
    refs: dict[str, str] = {}
    heads: dict[str, str] = {}
    for row in content.decode("utf-8", "surrogateescape").split("\n"):
        if row.startswith("@ "):
            _, checkout, head = (*row.split(" ", 2), "", "")[:3]
            heads[checkout] = head
        elif row and row[0] not in "#^":
            value, _, name = row.partition(" ")
            refs[name] = value
    return Base(refs, heads)


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

    def base(self) -> Base | None:
        """Return what both sides had in common, None if that is not known."""
        content = self.read("base")
        return None if content is None else parse_base(content)

    def intended(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return what the last import was about to write: into the real repository, into the agent's."""
        out: dict[str, str] = {}
        into: dict[str, str] = {}
        for row in (self.read("intended") or b"").decode("utf-8", "surrogateescape").split("\n"):
            direction, _, rest = row.partition(" ")
            value, _, name = rest.partition(" ")
            if name and direction in (OUT, INTO):
                (out if direction == OUT else into)[name] = value
        return out, into

    def intend(self, out: dict[str, str], into: dict[str, str]) -> None:
        """Write down what comes next, before it is done."""
        rows = [f"{OUT} {value} {name}\n" for name, value in out.items()]
        rows += [f"{INTO} {value} {name}\n" for name, value in into.items()]
        self.write("intended", "".join(rows).encode("utf-8", "surrogateescape"))

    def intended_head(self, checkout: str, direction: str) -> str:
        """Return the HEAD that the last import was about to write."""
        rows = (self.read("intended") or b"").decode("utf-8", "surrogateescape").split("\n")
        begin = f"@{direction} {checkout} "
        return next((row.removeprefix(begin) for row in rows if row.startswith(begin)), "")

    def intend_head(self, checkout: str, direction: str, head: str) -> None:
        """Add to what comes next that HEAD changes."""
        row = f"@{direction} {checkout} {head}\n".encode("utf-8", "surrogateescape")
        self.write("intended", (self.read("intended") or b"") + row)

    def journal(self, *rows: str) -> None:
        """Add rows to the journal."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open("journal", flags, 0o600, dir_fd=self._directory)
        if rows and rows[0].startswith("begin ") and os.fstat(descriptor).st_size > _JOURNAL_LIMIT:
            os.close(descriptor)  # never in the midst of an import: its rows stay together
            os.rename("journal", "journal.old", src_dir_fd=self._directory, dst_dir_fd=self._directory)
            descriptor = os.open("journal", flags, 0o600, dir_fd=self._directory)
        try:
            stamp = f"{time.time():.3f}"
            os.write(descriptor, "".join(f"{stamp} {row}\n" for row in rows).encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)

    def unfinished(self) -> list[str]:
        """Return the rows of an import that began and did not end."""
        rows = (self.read("journal") or b"").decode("utf-8", "surrogateescape").split("\n")
        begun = next((at for at in range(len(rows) - 1, -1, -1) if " begin " in rows[at]), None)
        if begun is None or any(row.partition(" ")[2] == "end" for row in rows[begun:]):
            return []
        return [row for row in rows[begun:] if row]


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


def unused(path: str) -> bool:
    """Return whether no session uses the repository; each holds a lock on `sessions`."""
    try:
        descriptor = os.open(f"{path}/sessions", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


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
