"""Disarm the repositories that an agent made or changed, so that git on the host runs nothing of theirs.

Git takes two things for a repository: a `.git` of any kind, which it enters wherever the user is or a gitlink leads,
and a directory of any name that holds `HEAD` and `objects`. Each that changed since a session began keeps only
configuration that git itself writes, and no hooks. In any doubt it is renamed, so that git does not enter it.

The walk goes by descriptor and by names only. Neither depth nor number ends it, only a signal; it runs in a process of
its own with limited memory (`run_limited`), so that its failure is the caller's to report.
"""

from __future__ import annotations

import errno
import os
import stat

from claudebox.base.console import shorten
from claudebox.base.files import (
    LOST,
    OPEN_DIRECTORY,
    Closing,
    close_again,
    identify,
    open_known,
    open_up,
    read_at,
    read_small,
    real_path,
    replace_file,
)
from claudebox.base.process import run_limited
from claudebox.git import config as git_config
from claudebox.git.disarmed import (
    CLOSED,
    DISARMED,
    LED_AWAY,
    OTHERWISE,
    RENAMED,
    TOLD,
    Area,
    Disarmed,
    describe,
    rename_aside,
)
from claudebox.tables import git_keys
from claudebox.tables.paths import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.git.disarmed import Finding
    from claudebox.git.facts import Nested
    from claudebox.host.records import Identity


_HELD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER, _SEARCH = 0o700, 0o100
_CONFIGS = ("config", "config.worktree")
_STATES = ("rebase-merge", "rebase-apply", "sequencer")  # going on with them runs what is listed there
_INNER = ("modules", "worktrees")
_LISTED = ("hooks", "remotes", "branches")  # the latter two hold addresses, in the manner of old versions of git
_PARTS = frozenset((".git", "head", "objects", "refs", "commondir", *_LISTED, *_CONFIGS, *_STATES, *_INNER))
_OBEYED = frozenset(("commondir", *_LISTED, *_CONFIGS, *_STATES, *_INNER))
_PARENT = b"../..\n"  # the `commondir` of a linked worktree
_CONFIG_LIMIT = 1 << 20
_GITFILE_LIMIT = 8192
_ADDRESS = b"gitdir: "  # begins a file that leads to a git directory
_BUDGET = 64 << 20  # bytes of configurations that are rewritten; beyond, repositories are renamed instead
_LONGEST = 4000  # bytes of a path by which something can be opened
_MOST_FINDINGS = 20
_MOST_WALKS = 3
_MOVED = "a directory was moved meanwhile"
_MOST_KEPT = 512
_LARGEST = 1 << 20  # of a file that is compared
_STATE = ("HEAD", "index", "packed-refs", "logs/HEAD")  # what changes with commits and the index


def disarm_paths(
    work_tree: str, paths: Iterable[bytes], known: tuple[str, ...], identity: Identity | None = None
) -> tuple[list[str], frozenset[bytes]]:
    """Disarm what stands at gitlinks of a work tree, no matter who made it; return lines, and paths not examined.

    Git on the host enters these directories as soon as a branch with the gitlinks is checked out. With `identity`, the
    work tree has to be that directory.
    """
    wanted = sorted(set(paths))
    if not wanted:
        return [], frozenset()
    mounts = (("", "bind", ""), *((path, "closed", path) for path in known))
    area = Area(((work_tree, float("-inf"), identity),), mounts, known)
    findings, closed = run_limited(lambda: Pass(area).run_at(work_tree, wanted))
    return describe(Disarmed(tuple(findings)), work_tree), frozenset(closed)


def has_shape(names: Iterable[str] | None) -> bool:
    """Return whether git could take a directory with these names for a repository; True if it could not be listed."""
    if names is None:
        return True
    present = {name.partition("/")[0].lower() for name in names}
    return ("head" in present and not present.isdisjoint(("objects", "commondir"))) or present >= {"objects", "refs"}


class _Doubt(Exception):  # noqa: N818 - not an error
    """A place has to be renamed."""


class _Frame:
    """A directory that is being walked."""

    __slots__ = ("changed", "identity", "mode", "name", "path", "pending", "writable")

    def __init__(self, name: str, path: str | None, status: os.stat_result, *, changed: bool, writable: bool) -> None:
        self.name, self.path = name, path  # path is None if too long for a system call
        self.identity = (status.st_dev, status.st_ino)
        self.mode: int | None = None  # to be put back
        self.changed, self.writable = changed, writable
        self.pending: list[str] = []  # directories in it


class Pass:
    """One pass."""

    def __init__(self, area: Area) -> None:
        self._area, self._reach, self._since = area, Reach(area), 0.0
        self._strict = False  # what belongs to others counts, too
        self._identities = {root: identity for root, _, identity in area.roots}
        self._nested = {row.path: row for row in area.nested}
        self._frames: list[_Frame] = []
        self._vanished = self._moved = False  # whether an entry, or a directory that was entered, was during this walk
        self._budget = _BUDGET
        self._found: dict[str, list[Finding]] = {}
        self._count: dict[str, int] = {}
        self._kept: list[str] = []
        self._reopened: list[tuple[int, int]] = []
        self._by_user: tuple[str, ...] = ()  # what git obeys in every checkout, by the user's configuration
        self._by_project: tuple[str, ...] = ()  # and in worktrees of the project
        self._special: dict[str, bool] = {}  # what is mounted in a root, and whether it can be written
        self._entered: set[str] = set()  # the same, and the directories above

    def run(self) -> tuple[object, ...]:
        """Walk all roots, and return the fields of `Disarmed`."""
        if self._area.home and not self._area.opened:
            files = git_config.user_files(self._area.home, dict(os.environ))
            self._by_user = self._find_named(files)
            self._by_project = self._find_named((*files, *(f"{path}/config" for path in self._area.known)))
        for root, since, _ in self._area.roots:
            self._since = since
            self._learn(root)
            self._walk_all(root)
        for root, identity in self._identities.items():  # names in it were gone by
            if identity is not None and identify(root) != identity and not self._count.get(CLOSED):
                self._add(root, CLOSED, LOST)
        return *self._result(), tuple(self._kept), self._count.get(CLOSED, 0), tuple(self._reopened)

    def run_at(self, work_tree: str, paths: list[bytes]) -> tuple[object, ...]:
        """Examine the directories at some paths only; return findings, and paths that could not be examined."""
        self._since, self._strict = float("-inf"), True
        closed: list[bytes] = []
        for path in paths:
            before = self._count.get(CLOSED, 0)
            parts = os.fsdecode(path).split("/")
            if any(part.lower() in ("", ".", "..", ".git") for part in parts):  # no tree has been checked by now
                self._add(os.fsdecode(path), CLOSED, os.strerror(errno.EINVAL))
            else:
                self._walk(work_tree, parts)
                if self._moved:
                    self._add(os.fsdecode(path), CLOSED, _MOVED)
            if self._count.get(CLOSED, 0) > before:
                closed.append(path)
        return self._result()[0], closed

    def _result(self) -> tuple[tuple[Finding, ...], int]:
        rows = [row for how in (CLOSED, TOLD, OTHERWISE, LED_AWAY, RENAMED, DISARMED)  # what is still dangerous first
                for row in self._found.get(how, ())][:_MOST_FINDINGS]  # fmt: skip
        return tuple(rows), sum(self._count.values()) - len(rows)

    def _add(self, path: str, how: str, *parts: str) -> None:
        rows, row = self._found.setdefault(how, []), (path, how, tuple(part[:300] for part in parts[:10]))
        if row in rows:  # from an earlier walk
            return
        self._count[how] = self._count.get(how, 0) + 1
        if len(rows) < _MOST_FINDINGS:
            rows.append(row)

    def _where(self, name: str = "") -> str:
        """Return the path of the current directory, shortened in the middle if it is very long."""
        known = next((frame.path for frame in reversed(self._frames) if frame.path is not None), "")
        inner = "" if self._frames and self._frames[-1].path is not None else f"/…/{self._frames[-1].name}"
        return f"{known}{inner}/{name}" if name else f"{known}{inner}"

    # The walk.

    def _learn(self, root: str) -> None:
        for dest, kind, source in self._area.mounts:
            if kind == "bind" and source == root:
                inside = (row[0] for row in self._area.mounts if row[0].startswith(f"{dest}/"))
                for path in (root + other[len(dest) :] for other in inside):
                    self._special[path] = self._reach.is_writable(path)
                    above = path
                    while above != root:
                        self._entered.add(above)
                        above = above.rpartition("/")[0]

    def _walk_all(self, root: str) -> None:
        """Walk a directory, and again if an entry vanished: it may have moved to where the walk has been.

        A few walks are enough: only another session moves a repository on purpose, and its own end examines all that
        changed since the first of the two began (`leftovers.share`).
        """
        for _ in range(_MOST_WALKS):
            self._vanished = False
            self._walk(root)
            if not (self._vanished or self._moved):
                break
        if self._moved:
            self._add(root, CLOSED, _MOVED)

    def _walk(self, root: str, only: Iterable[str] = ()) -> None:
        """Walk a directory; with `only`, just the `.git` in the directory that these names lead to."""
        wanted = list(only)
        current = -1
        self._frames, self._moved = [], False
        try:
            current = self._enter(None, root, root)
            for name in wanted:
                if current < 0:
                    return
                current = self._descend(current, name)
            if current < 0:
                return
            bottom = len(self._frames)
            self._visit(current)
            if wanted:
                self._frames[-1].pending = [name for name in self._frames[-1].pending if name.lower() == ".git"]
            while len(self._frames) >= bottom:
                pending = self._frames[-1].pending
                if not pending:
                    current = self._leave(current)
                    continue
                below = self._descend(current, pending.pop(), stay=True)
                if below >= 0:
                    current = below
                    self._visit(current)
        finally:
            while self._frames and current >= 0:
                current = self._leave(current)
            if current >= 0:
                os.close(current)

    def _descend(self, current: int, name: str, *, stay: bool = False) -> int:
        """Open a directory in the current one, and close that; -1 if there is none to examine."""
        above = self._frames[-1].path
        path = f"{above}/{name}" if above is not None and len(os.fsencode(above)) + len(name) < _LONGEST else None
        below = self._enter(current, name, path)
        if below >= 0:
            os.close(current)
        elif not stay:
            while self._frames:
                current = self._leave(current)
        return below

    def _enter(self, parent: int | None, name: str, path: str | None) -> int:
        """Open a directory whatever its mode, through no link; -1 if no agent could have changed it."""
        try:
            with Closing(self._open_root(name) if parent is None else os.open(name, _HELD, dir_fd=parent)) as held:
                status = os.fstat(held)
                ours = status.st_uid == os.geteuid()
                changed = status.st_ctime >= self._since
                if os.geteuid() and ours and not changed and not status.st_mode & _SEARCH:
                    return -1  # the agent could not enter it
                mode = open_up(held) if os.geteuid() and status.st_mode & _OWNER != _OWNER else None
                try:
                    opened = os.open(".", OPEN_DIRECTORY, dir_fd=held)
                except PermissionError:
                    if not ours and not self._strict:
                        return -1  # nor could the agent
                    raise
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._vanished = True
            else:
                self._add(path or self._where(name), CLOSED, error.strerror or str(error))
            return -1
        writable = self._frames[-1].writable if self._frames else True
        if path is not None:
            writable = self._special.get(path, writable)
        frame = _Frame(name, path, status, changed=changed, writable=writable)
        frame.mode = mode
        if mode is not None and not changed and len(self._reopened) < _MOST_KEPT:
            self._reopened.append(frame.identity)
        self._frames.append(frame)
        return opened

    def _open_root(self, root: str) -> int:
        return open_known(root, _HELD, self._identities[root])

    def _leave(self, current: int) -> int:
        """Go back to the directory above, and return its descriptor; -1 at the top, and where it is another one."""
        frame = self._frames.pop()
        try:
            if not self._frames:
                return -1
            with Closing(os.open("..", OPEN_DIRECTORY, dir_fd=current)) as above:
                status = os.fstat(above)
                if (status.st_dev, status.st_ino) != self._frames[-1].identity:
                    raise OSError(_MOVED)
                return os.dup(above)
        except OSError:
            self._frames, self._moved = [], True
            return -1
        finally:
            try:
                close_again(current, frame.mode)
            except OSError:  # no longer ours
                pass
            os.close(current)

    def _visit(self, current: int) -> None:
        """Examine one directory, and note which directories stand in it."""
        frame = self._frames[-1]
        present: dict[str, list[str]] = {}
        links: list[str] = []
        files: list[str] = []
        inner: list[str] = []
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    name = entry.name
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if (part := name.lower()) in _PARTS:
                        present.setdefault(part, []).append(name)
                        inner += [name] if is_directory else []
                    elif is_directory:
                        frame.pending.append(name)
                    elif entry.is_symlink():
                        links.append(name)
                    else:
                        files.append(name)
        except OSError as error:
            self._add(self._where(), CLOSED, error.strerror or str(error))
            return
        if not frame.writable:
            frame.pending = [name for name in (*frame.pending, *inner) if f"{frame.path}/{name}" in self._entered]
            return
        renamed: dict[str, str] = {}
        if frame.name.lower() == ".git" or has_shape(present):
            self._examine(current, frame, present, renamed)
        if len(self._frames) == 1 and self._special.get(f"{frame.path}/.git") is False:
            self._examine_top(frame.path)
        for name in present.get(".git", ()):
            self._attempt(current, name, self._examine_dot)
        is_top = ".git" in present or has_shape(present) or len(self._frames) == 1
        actions = [(name, self._examine_link) for name in links]
        actions += [(name, self._examine_address) for name in files if is_top]
        for name, action in actions:
            self._attempt(current, name, action)
        frame.pending += (renamed.get(name, name) for name in inner)

    def _attempt(self, current: int, name: str, action: Callable[[int, str], None]) -> None:
        """Examine one entry; on any failure it is renamed, and if that fails it counts as not examined."""
        try:
            action(current, name)
        except FileNotFoundError:
            self._vanished = True
        except Exception as error:  # noqa: BLE001 - whatever an agent has found to break this
            if self._quarantine(current, (name,)):
                self._add(self._where(name), RENAMED, _why(error))

    def _quarantine(self, directory: int, names: Iterable[str]) -> dict[str, str]:
        """Rename entries of a directory, and return their new names."""
        renamed: dict[str, str] = {}
        for name in names:
            try:
                renamed[name] = rename_aside(directory, name)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._add(self._where(name), CLOSED, error.strerror or str(error))
        return renamed

    # A git directory.

    def _examine(self, current: int, frame: _Frame, present: dict[str, list[str]], renamed: dict[str, str]) -> None:
        """Disarm a git directory, or what could become one; in doubt its `HEAD` and name are put aside."""
        aside: list[str] = []
        try:
            own = self._find_own(frame)
            fresh = frame.changed and own is None
            for part, names in present.items():
                for name in names:
                    for entry, new in self._examine_part(current, part, name, own, fresh=fresh):
                        aside.append(entry)
                        renamed[entry] = new
            # Git takes a relative name from the git directory where there is no checkout, or where it stands in it.
            self._put_aside(frame.path, self._by_user, fresh=fresh)
            if frame.name.lower() == ".git" and len(self._frames) > 1:
                self._examine_checkout(current, fresh=fresh)
        except Exception as error:  # noqa: BLE001 - whatever an agent has found to break this
            doubtful = (name for part in ("head", *_CONFIGS, "commondir", "hooks") for name in present.get(part, ()))
            renamed.update(self._quarantine(current, doubtful))
            self._add(self._where(), RENAMED, _why(error))
            if frame.name.lower() == ".git" and len(self._frames) > 1:
                with Closing(os.open("..", _HELD, dir_fd=current)) as above:
                    self._quarantine(above, (frame.name,))
        if aside:
            self._add(self._where(), DISARMED, *aside)

    def _find_own(self, frame: _Frame) -> Nested | None:
        row = self._nested.get(frame.path) if frame.path is not None else None
        return row if row is not None and row.identity == frame.identity else None

    def _examine_part(
        self, current: int, part: str, name: str, own: Nested | None, *, fresh: bool
    ) -> Iterator[tuple[str, str]]:
        """Put aside what git would obey of one entry of a git directory; yield old and new names."""
        status = os.lstat(name, dir_fd=current)
        is_directory = stat.S_ISDIR(status.st_mode)
        changed = fresh or status.st_ctime >= self._since
        if part in _LISTED and is_directory:
            whole = fresh or (part == "hooks" and own is not None and own.hooks != status.st_ino)
            yield from self._examine_listed(current, name, whole=whole)
            return
        if part in _CONFIGS and stat.S_ISREG(status.st_mode):
            if changed:
                yield from self._clean(current, name, own if part == "config" else None)
            return
        plain = (part in _INNER and is_directory) or (
            part == "commondir" and self._is_worktree() and read_at(current, name) == _PARENT
        )
        if changed and not plain and part == "commondir" and self._frames[-1].name.lower() == ".git":
            raise _Doubt("it leads elsewhere")
        if changed and not plain and part in _OBEYED:
            yield name, rename_aside(current, name)

    def _is_worktree(self) -> bool:
        return len(self._frames) > 1 and self._frames[-2].name.lower() == "worktrees"

    def _examine_listed(self, current: int, name: str, *, whole: bool) -> Iterator[tuple[str, str]]:
        """Put hooks or addresses aside: all of them in a directory that is new, else those that changed."""
        with _Opened(current, name) as hooks:
            armed = [entry for entry in os.listdir(hooks) if not entry.lower().endswith((".sample", ASIDE))]
            if not whole:
                for entry in armed:
                    if os.lstat(entry, dir_fd=hooks).st_ctime >= self._since:
                        yield f"{name}/{entry}", rename_aside(hooks, entry)
                return
        if armed:
            yield name, rename_aside(current, name)

    def _clean(self, current: int, name: str, own: Nested | None) -> Iterator[tuple[str, str]]:
        """Reduce a configuration to what the user had before and what git itself writes."""
        place, content = self._where(), self._read(current, name)
        before = own.config if own is not None else b""
        plain = self._render(content, place)
        if before:
            plain = before if content == before else _merge(before, content, plain)
        if own is not None and content != before and (addresses := read_addresses(self._render(content, place))):
            self._add(place, OTHERWISE, *addresses)
        if content != plain:
            new = rename_aside(current, name)
            replace_file(current, name, plain)
            os.chmod(name, 0o644, dir_fd=current)
            yield name, new

    def _render(self, content: bytes, place: str) -> bytes:
        module = place if "/.git/modules/" in place else ""
        return clean_config(content, module, lambda url: self._leads_away(place, url))

    def _read(self, directory: int, name: str) -> bytes:
        content = read_at(directory, name, limit=_CONFIG_LIMIT)
        if content is None:
            raise _Doubt("its configuration cannot be read")
        self._budget -= len(content)
        if self._budget < 0:
            raise _Doubt("there is too much configuration")
        return content

    def _leads_away(self, place: str, address: str) -> bool:
        """Return whether an address leads to where the agent could write and nothing is examined."""
        local = address.removeprefix("file://")
        if "://" in local or ":" in local.partition("/")[0]:
            return False
        if "/" in local and not local.startswith("/"):
            return True  # from the home, or from a checkout that may stand anywhere; git itself writes a whole path
        target = real_path(os.path.join(os.path.dirname(place), local))
        gitfiles = (read_small(real_path(path), limit=_GITFILE_LIMIT) for path in (target, f"{target}.git"))
        return self._reach.is_hidden(target) or any((content or b"").startswith(_ADDRESS) for content in gitfiles)

    # A checkout.

    def _examine_top(self, path: str | None) -> None:
        """Put aside what git will obey in a project without a repository, once one that the agent made comes back."""
        try:
            self._put_aside(path, self._by_user, fresh=False)
        except Exception as error:  # noqa: BLE001 - whatever an agent has found to break this
            self._add(self._where(), CLOSED, _why(error))

    def _examine_checkout(self, current: int, *, fresh: bool) -> None:
        """Put aside what git obeys in the checkout around a `.git`, whose own configuration has been examined."""
        base, names = self._frames[-2].path, self._by_user
        content = read_at(current, "config", limit=_CONFIG_LIMIT) or b""
        if base is not None and not fresh and not self._area.opened and content != clean_config(content):
            place = self._where()
            if len(self._kept) < _MOST_KEPT and place not in self._kept:
                self._kept.append(place)
            named = git_config.find_named(base, (f"{place}/config", f"{place}/config.worktree"), self._area.home)
            own = tuple(map(os.path.normpath, named))
            self._tell_moved(current, base, own)
            names = (*names, *own)
        self._put_aside(base, names, fresh=fresh)

    def _tell_moved(self, git_dir: int, base: str, names: tuple[str, ...]) -> None:
        """Report that commits or index of the user's own repository may bring back what git obeys."""
        inner = [name[len(base) + 1 :] for name in names if name.startswith(f"{base}/") and os.path.lexists(name)]
        if inner and any(_changed(git_dir, name) >= self._since for name in _STATE):
            what = ", ".join(f"`{shorten(name, 80)}`" for name in inner)
            self._add(base, TOLD, f"has new commits or a changed index, and git obeys {what} there: look before "
                                  "you check out")  # fmt: skip

    def _examine_dot(self, current: int, name: str) -> None:
        """Examine a `.git` that is a file or a link, and what git obeys in the checkout because of it."""
        frame = self._frames[-1]
        if frame.path is not None and self._special.get(f"{frame.path}/{name}") is False:
            return  # the host's: another was mounted there
        status = os.lstat(name, dir_fd=current)
        if stat.S_ISDIR(status.st_mode):
            return
        fresh, names = status.st_ctime >= self._since, self._by_user
        target = self._read_target(current, name)
        ours = any(target.startswith((f"{known}/modules/", f"{known}/worktrees/")) for known in self._area.known)
        if ours and not self._reach.is_writable(target):
            names = self._by_project
        elif fresh and not self._is_new(target):
            rename_aside(current, name)
            self._add(self._where(name), DISARMED, name)
        elif not fresh and frame.path is not None and os.path.isdir(target) and not self._area.opened:
            # The user's worktree or submodule: the configuration is elsewhere, what it names stands here.
            common = os.path.join(target, os.fsdecode(read_small(f"{target}/commondir") or b".").strip())
            files = (f"{common}/config", f"{target}/config.worktree")
            own = tuple(map(os.path.normpath, git_config.find_named(frame.path, files, self._area.home)))
            with Closing(os.open(target, _HELD)) as git_dir:
                self._tell_moved(git_dir, frame.path, own)
            names = (*names, *own)
        self._put_aside(frame.path, names, fresh=fresh)

    def _examine_address(self, current: int, name: str) -> None:
        """Put aside a new file that leads to a repository: git takes the name of an unknown remote for a path."""
        status = os.lstat(name, dir_fd=current)
        if status.st_ctime < self._since or not stat.S_ISREG(status.st_mode):
            return
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with Closing(os.open(name, flags, dir_fd=current)) as file:
                content = os.read(file, len(_ADDRESS))
        except PermissionError:  # nor can git read it
            return
        if content == _ADDRESS:
            rename_aside(current, name)
            self._add(self._where(name), DISARMED, name)

    def _read_target(self, current: int, name: str) -> str:
        """Return where a `.git` file leads, through no link; "" if git would not have written it like that."""
        content = os.fsdecode(read_at(current, name, limit=_GITFILE_LIMIT) or b"").rstrip("\r\n")
        base = self._frames[-1].path
        if base is None or not content.startswith("gitdir: ") or not content.isprintable():
            return ""
        target = os.path.normpath(os.path.join(base, content[8:]))
        return target if real_path(target) == target else ""

    def _is_new(self, git_dir: str) -> bool:
        """Return whether this pass disarms a git directory as one that the agent made, and its common one as well."""
        if self._strict or not self._reach.is_seen(git_dir) or not self._reach.is_writable(git_dir):
            return False
        try:
            status = os.lstat(git_dir)
        except OSError:
            return False
        own = self._nested.get(git_dir)
        is_users = own is not None and own.identity == (status.st_dev, status.st_ino)
        if is_users or status.st_ctime < max(since for _, since, _ in self._area.roots):
            return False
        above, name = os.path.split(os.path.dirname(git_dir))
        return not os.path.lexists(f"{git_dir}/commondir") or (name == "worktrees" and self._is_new(above))

    def _find_named(self, files: tuple[str, ...]) -> tuple[str, ...]:
        """Return what configurations would name in the project, relative to it."""
        top = f"{self._area.roots[0][0]}/"
        found = git_config.find_named(top[:-1], files, self._area.home)
        return tuple(dict.fromkeys(os.path.normpath(path[len(top) :]) for path in found if path.startswith(top)))

    def _put_aside(self, base: str | None, names: tuple[str, ...], *, fresh: bool) -> None:
        """Put aside what the agent has made or changed of the paths that names in a directory lead to.

        All of it where the repository is `fresh`: then older files become what git obeys.
        """
        if base is None:
            if names:
                raise _Doubt("its path is too long")
            return
        done: list[str] = []
        for name in names:
            path = os.path.normpath(os.path.join(base, name))
            root = next((root for root in self._identities if path.startswith(f"{root}/")), "")
            if root and not f"{base}/".startswith(f"{path}/"):  # which would be all of the checkout
                with Closing(self._open_root(root)) as top:
                    done += self._put_path_aside(top, root, path[len(root) + 1 :].split("/"), base, fresh=fresh)
        if done:
            self._add(base, DISARMED, *done)

    def _put_path_aside(self, top: int, here: str, parts: list[str], base: str, *, fresh: bool) -> Iterator[str]:
        """Put aside a file, or all that stands in a directory, or the link on the way; yield what was renamed."""
        directory = os.dup(top)
        try:
            for number, part in enumerate(parts, 1):
                mode = os.lstat(part, dir_fd=directory).st_mode
                if not stat.S_ISDIR(mode):
                    if stat.S_ISLNK(mode) or (number == len(parts) and stat.S_ISREG(mode)):
                        yield from self._put_entry_aside(directory, f"{here}/{part}", base, fresh=fresh)
                    return
                here = f"{here}/{part}"
                below = os.open(part, _HELD, dir_fd=directory)
                os.close(directory)
                directory = below
            with _Opened(directory, ".") as listed:
                for entry in sorted(os.listdir(listed)):
                    yield from self._put_entry_aside(listed, f"{here}/{entry}", base, fresh=fresh)
        except OSError as error:  # a name may be a whole command, longer than that of a file
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                raise
        finally:
            os.close(directory)

    def _put_entry_aside(self, directory: int, path: str, base: str, *, fresh: bool) -> Iterator[str]:
        name = os.path.basename(path)
        new = fresh or _changed(directory, name) >= self._since
        if new and not name.endswith(ASIDE) and not self._is_users(directory, name, path, base):
            with _Opened(directory, ".") as opened:
                rename_aside(opened, name)
            yield path.removeprefix(f"{base}/")

    def _is_users(self, directory: int, name: str, path: str, base: str) -> bool:
        """Return whether the agent could not change a file, or left it as the same file of the project is."""
        if not self._reach.is_writable(path):
            return True
        inner = path[len(base) :] if path.startswith(f"{base}/") else ""
        twin = f"{self._area.roots[0][0]}{inner}"
        if not inner or self._reach.is_writable(twin):
            return False
        if os.path.islink(twin):  # where it leads to is judged by itself
            try:
                return os.readlink(name, dir_fd=directory) == os.readlink(twin)
            except OSError:
                return False
        content = read_at(directory, name, limit=_LARGEST)
        return content is not None and content == read_small(twin, limit=_LARGEST)

    def _examine_link(self, current: int, name: str) -> None:
        """Rename a link that leads to where the agent could write and nothing is examined."""
        if os.lstat(name, dir_fd=current).st_ctime < self._since:
            return
        try:
            with Closing(os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=current)) as opened:
                target = os.readlink(f"/proc/self/fd/{opened}")
        except OSError:  # it leads nowhere yet
            base = self._frames[-1].path or "/"
            target = real_path(os.path.join(base, os.readlink(name, dir_fd=current)))
        if self._reach.is_hidden(target):
            self._add(self._where(name), LED_AWAY, rename_aside(current, name))


class _Opened:
    """A directory in another, opened for listing and changes whatever its mode."""

    def __init__(self, parent: int, name: str) -> None:
        with Closing(os.open(name, _HELD, dir_fd=parent)) as held:
            self._mode = open_up(held)
            self._descriptor = os.open(".", OPEN_DIRECTORY, dir_fd=held)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_reason: object) -> None:
        close_again(self._descriptor, self._mode)
        os.close(self._descriptor)


def _changed(directory: int, name: str) -> float:
    """Return when an entry of a directory was changed last; 0 where there is none."""
    try:
        return os.lstat(name, dir_fd=directory).st_ctime
    except OSError:
        return 0.0


def _why(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else str(error) if isinstance(error, _Doubt) else ""
    return said or type(error).__name__


class Reach:
    """Which paths of the host the agent could change."""

    def __init__(self, area: Area) -> None:
        self._mounts = {dest: (kind, source) for dest, kind, source in area.mounts}
        self._roots = tuple(f"{root}/" for root, *_ in area.roots)

    def is_writable(self, path: str) -> bool:
        """Return whether the agent could change a path."""
        for dest, (kind, source) in self._mounts.items():
            if kind != "bind" or not f"{path}/".startswith(f"{source}/"):
                continue
            inside = dest + path[len(source) :]
            while inside not in self._mounts:  # the innermost mount is what is there
                inside = inside.rpartition("/")[0]
            if inside == dest:
                return True
        return False

    def is_seen(self, path: str) -> bool:
        """Return whether a path is examined."""
        return f"{path}/".startswith(self._roots)

    def is_hidden(self, path: str) -> bool:
        """Return whether the agent could change a path that is not examined."""
        return self.is_writable(path) and not self.is_seen(path)


# What a configuration of the agent's may keep: lines that git itself writes.


_DIGITS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NOT_IN_A_VALUE = frozenset('"\\#;')
_ADDRESSES = ("url", "pushurl", "remote", "pushremote")


def is_in_git(path: str) -> bool:
    """Return whether a path is a `.git`, or lies in one."""
    lower = path.lower()
    return lower.endswith(".git") or ".git/" in lower


def clean_config(content: bytes, module: str = "", is_hidden: Callable[[str], bool] | None = None) -> bytes:
    """Return the lines of a configuration that git itself writes and that name no program and no other place.

    Not parsed: a line has to be spelled as git spells it. `module` is the git directory of a submodule, the only kind
    that names its checkout. `is_hidden`: an address leads to where the agent could write and nothing is examined.
    """
    kept: list[str] = []
    keys: tuple[str, ...] | None = None
    for line in content.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        if line.startswith("["):
            keys = _keys(line)
            kept += [line] if keys is not None else []
            continue
        key, equals, value = line.removeprefix("\t").partition(" = ")
        if not line.startswith("\t") or not equals or not _is_plain(value) or keys is None:
            continue
        if key.lower() in _ADDRESSES and is_hidden is not None and is_hidden(value):
            continue
        if key.lower() in keys or (key == "worktree" and keys is git_keys.PLAIN["core"] and _is_within(module, value)):
            kept.append(line)
    return "".join(f"{line}\n" for line in kept).encode("utf-8", "surrogateescape")


def _keys(header: str) -> tuple[str, ...] | None:
    """Return the keys that a section may have; None for one that is not spelled as git does, or may not be there."""
    section, _, name = header[1:-1].partition(" ")
    quoted = name[:1] == '"' == name[-1:] and len(name) > 2 and _is_plain(name[1:-1])
    if header[-1:] != "]" or (name and not quoted) or not _DIGITS.issuperset(section):
        return None
    return (git_keys.PLAIN_NAMED if name else git_keys.PLAIN).get(section)


def _is_plain(value: str) -> bool:
    return (
        value.isprintable()
        and _NOT_IN_A_VALUE.isdisjoint(value)
        and value[:1] not in ("", "-", "!")
        and "::" not in value
    )


def _is_within(module: str, value: str) -> bool:
    """Return whether a submodule has its checkout beside the repository that it is a submodule of."""
    top, found, _ = module.partition("/.git/")
    place = os.path.normpath(os.path.join(module, value))
    return (
        bool(found) and place.startswith(f"{top}/") and not is_in_git(place[len(top) :]) and real_path(place) == place
    )


def read_addresses(plain: bytes) -> list[str]:
    """Return the addresses of remotes in a configuration that `clean_config` returned."""
    found, name = [], ""
    for line in plain.decode("utf-8", "surrogateescape").split("\n"):
        section, _, rest = line.partition(" ")
        key, _, value = line.strip().partition(" = ")
        if line.startswith("["):
            name = rest.strip('"]') if section in ("[remote", "[branch") else ""
        elif name and key.lower() in _ADDRESSES and (key.lower() != "remote" or "/" in value):
            found.append(f"{name} leads to {value}" if key.lower() == "url" else f"{name} {key.lower()} to {value}")
    return found


def _merge(before: bytes, content: bytes, plain: bytes) -> bytes:
    """Return the lines that a configuration had before, in their order, and plain ones of new sections."""
    rows, now = list(_split_lines(before)), set(_split_lines(content))
    known = {section for section, _ in rows}
    kept = [line for section, line in rows if (section, line) in now]  # of two lines with one key the last one counts
    return b"".join((*kept, *(line for section, line in _split_lines(plain) if section not in known)))


def _split_lines(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of a configuration, with what continues them, each with the line that begins its section."""
    section = line = b""
    for part in content.removesuffix(b"\n").split(b"\n"):
        line += part + b"\n"
        if part.rstrip(b"\r").endswith(b"\\"):
            continue
        section = line if line.lstrip().startswith(b"[") else section
        yield section, line
        line = b""
