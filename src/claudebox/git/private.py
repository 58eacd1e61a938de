"""Making the git directory that stands inside in the place of a real one: by hand, without running git.

The real one may be hostile: nothing in it is followed if it is a link, only regular files are taken, and there is an
end to how many. What is written lies in the state of the project, out of the agent's reach until it is mounted.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    Closing,
    identify,
    list_names,
    mode_of,
    open_beneath,
    open_up,
    read_at,
    read_small,
    reopen,
    replace_file,
    write_all,
)
from claudebox.git import state as git_state
from claudebox.git.refs import find_hidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.git.state import Layout, Private
    from claudebox.host.records import Identity
    from claudebox.plan.records import OwnGit


# Copying parts of a git directory that may be hostile into one of ours.


LIMIT = 256 << 20  # of packed-refs and the like
MOST_FILES = 200_000
_SMALL = 1 << 16
_DEPTH = 32
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_PACKED = b"# pack-refs with: sorted \n"


class Copier:
    """Takes files out of one directory, by names that are followed through no link."""

    def __init__(self, source: str, target: str, identity: Identity | None) -> None:
        self._source = os.open(source, DIRECTORY)
        self._target = target
        self._left = MOST_FILES
        self._made = {target}
        status = os.fstat(self._source)
        if identity is not None and (status.st_dev, status.st_ino) != identity:
            os.close(self._source)
            raise ClaudeboxError(f"`{source}` was replaced by something else since it was shown")

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._source)

    def files(self, names: Iterable[str]) -> None:
        """Copy those that are regular files, with their times."""
        for name in names:
            descriptor, status = self._open(name)
            if descriptor >= 0:
                try:
                    self._copy(descriptor, status, name)  # type: ignore[arg-type]
                finally:
                    os.close(descriptor)

    def tree(self, name: str) -> None:
        """Copy the files in a directory and beneath."""
        self.files(self.below(name))

    def hooks(self) -> None:
        """Copy the hooks, without the examples that git brings."""
        self.files(f"hooks/{name}" for name in self.names("hooks") if not name.endswith(".sample"))

    def content(self, name: str, limit: int = _SMALL) -> bytes | None:
        """Return what is in a regular file."""
        descriptor, status = self._open(name)
        if descriptor < 0:
            return None
        try:
            return os.read(descriptor, limit) if status is not None and status.st_size <= limit else None
        finally:
            os.close(descriptor)

    def contents(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names and the trimmed contents of all files beneath a directory."""
        for path in self.below(name):
            content = self.content(path)
            if content and content.strip() and b"\n" not in content.strip():
                yield path, content.strip()

    def names(self, name: str) -> list[str]:
        """Return what is in a directory."""
        descriptor = self._enter(name)
        if descriptor < 0:
            return []
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def below(self, name: str) -> list[str]:
        """Return the files beneath a directory, without locks."""
        descriptor = self._enter(name)
        if descriptor < 0:
            return []
        try:
            return [f"{name}/{path}" for path in walk(descriptor, self._left) if not path.endswith(".lock")]
        finally:
            os.close(descriptor)

    def _enter(self, name: str) -> int:
        """Return a descriptor on a directory, -1 if there is none or a link is in the way."""
        try:
            return open_beneath(self._source, name, listed=True)
        except OSError:
            return -1

    def _open(self, name: str) -> tuple[int, os.stat_result | None]:
        parent, _, last = name.rpartition("/")
        directory = self._enter(parent)
        if directory < 0:
            return -1, None
        try:
            descriptor = os.open(last, _READ, dir_fd=directory)
        except OSError:
            return -1, None
        finally:
            os.close(directory)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor, status
        os.close(descriptor)
        return -1, None

    def _copy(self, source: int, status: os.stat_result, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise ClaudeboxError(f"the git directory has more than {MOST_FILES} files besides objects")
        path = f"{self._target}/{name}"
        parent = os.path.dirname(path)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        target = os.open(path, _WRITE, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
        try:
            if status.st_size <= _SMALL:
                write_all(target, os.read(source, _SMALL))
            else:
                copy_range(source, target, status.st_size)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)


def copy_range(source: int, target: int, size: int) -> None:
    """Let the kernel copy, or do it ourselves where it cannot."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, size - done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            piece = os.read(source, 1 << 20)
            write_all(target, piece)
            count = len(piece)
        if not count:
            return
        done += count


def write(path: str, content: bytes) -> None:
    """Write a file of ours, with the directories above it."""
    try:
        descriptor = os.open(path, _WRITE, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _WRITE, 0o644)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def fold(path: str, refs: dict[str, bytes]) -> None:
    """Write refs into `packed-refs`, over what stands there."""
    try:
        with open(path, "rb") as file:
            rows = file.read(LIMIT).split(b"\n")
    except FileNotFoundError:
        rows = []
    merged = {os.fsencode(name): value for name, value in refs.items()}
    known: dict[bytes, bytes] = {}
    peeled: dict[bytes, bytes] = {}
    name = b""
    for row in rows:
        if row.startswith(b"^"):
            peeled[name] = row + b"\n"
        elif row and not row.startswith(b"#"):
            value, _, name = row.partition(b" ")
            known[name] = value
    every = {**known, **merged}
    lines = (
        every[name] + b" " + name + b"\n" + (peeled.get(name, b"") if name not in merged else b"")
        for name in sorted(every)
    )
    write(path, _PACKED + b"".join(lines))


def signature(path: str) -> str:
    """Return what changes when the files in a directory do."""
    rows = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
                rows.append(f"{entry.name}\0{status.st_ino}\0{status.st_size}\0{times}\0{status.st_mode:o}")
    except OSError:
        return ""
    return "\n".join(sorted(rows))


def walk(top: int, most: int) -> list[str]:
    """Return the regular files beneath a directory, relative to it."""
    found: list[str] = []
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        descriptor = top
        try:
            if prefix:
                descriptor = open_beneath(top, prefix, listed=True)
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{prefix}/{entry.name}" if prefix else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending += [(path, depth + 1)] if depth < _DEPTH else []
                    elif entry.is_file(follow_symlinks=False):
                        found.append(path)
        except OSError:
            continue
        finally:
            if descriptor != top and descriptor >= 0:
                os.close(descriptor)
        if len(found) > most:
            raise ClaudeboxError(f"the git directory has more than {MOST_FILES} files besides objects")
    return sorted(found)


# Putting in order what an agent has left in a git directory of the sandbox's own, through no link of its making.


_READ_BY_GIT = ("objects", "refs", "reftable", "logs", "info", "worktrees")
_DAEMON = "fsmonitor--daemon.ipc"  # a socket of git's own, which it does not read
_MOST_ENTRIES, _DEEPEST = 1 << 20, 32


def renew_alternates(objects: str, stores: list[str]) -> None:
    """Name the stores in a directory of objects."""
    directory = os.open(objects, DIRECTORY)
    try:
        for name in ("info", "pack"):
            if not _is_directory(directory, name):
                if name in os.listdir(directory):
                    os.unlink(name, dir_fd=directory)
                os.mkdir(name, 0o755, dir_fd=directory)
        info = os.open("info", DIRECTORY, dir_fd=directory)
        try:
            if _is_directory(info, "alternates"):
                os.rename("alternates", f"alternates.{os.getpid()}", src_dir_fd=info, dst_dir_fd=info)
            content = b"".join(os.fsencode(store) + b"\n" for store in stores)
            if read_at(info, "alternates") != content:
                replace_file(info, "alternates", content)
        finally:
            os.close(info)
    finally:
        os.close(directory)


def _is_directory(directory: int, name: str) -> bool:
    return stat.S_ISDIR(mode_of(name, directory))


def remove_special(own: str) -> list[str]:
    """Remove pipes, sockets and devices from where git reads, links among objects, deep refs; return their paths.

    Git would wait for ever to open a pipe. What denies us reading is ours all the same, and is opened up; objects are
    too many to look at each.
    """
    removed: list[str] = []
    pending, count = [""], 0
    try:
        top = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # whoever reads it says so
        return removed
    try:
        while pending and count < _MOST_ENTRIES:  # beyond, the limits of time are left
            path = pending.pop()
            try:
                with _Opened(top, path) as directory, os.scandir(directory) as found:
                    entries = list(found)
                    count += len(entries)
                    for entry in entries:
                        name = f"{path}/{entry.name}" if path else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            if path.startswith("refs/") and name.count("/") >= _DEEPEST:  # no ref that comes back
                                os.rename(entry.name, f"deep.{time.time_ns()}", src_dir_fd=directory, dst_dir_fd=top)
                                removed.append(name)
                                continue
                            follow = name.count("/") < _DEEPEST if path else name in _READ_BY_GIT
                            pending += [name] if follow else []
                        elif _is_special(entry, name):
                            os.unlink(entry.name, dir_fd=directory)
                            removed.append(name)
                        elif not name.startswith("objects/") and entry.is_file(follow_symlinks=False):
                            _let_read(directory, entry)
            except OSError:
                continue
    finally:
        os.close(top)
    return sorted(removed)


def _is_special(entry: os.DirEntry[str], name: str) -> bool:
    if entry.is_symlink():
        return name.partition("/")[0] == "objects"
    return not entry.is_file(follow_symlinks=False) and entry.name != _DAEMON


def _let_read(directory: int, entry: os.DirEntry[str]) -> None:
    mode = entry.stat(follow_symlinks=False).st_mode
    if not mode & stat.S_IRUSR:
        with Closing(os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as held:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)


class _Opened:
    """A directory that is open to be listed and changed, which its mode may forbid."""

    def __init__(self, top: int, path: str) -> None:
        held = open_beneath(top, path)
        try:
            open_up(held)
            self._descriptor = os.open(".", DIRECTORY, dir_fd=held)
        finally:
            os.close(held)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def remove(path: str) -> None:
    """Remove a tree that an agent has made, however deep: directories move to the top before they are emptied."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    reopen(path)
    top = os.open(path, DIRECTORY)
    try:
        pending = [""]
        count = 0
        while pending:
            name = pending.pop()
            directory = os.open(name, DIRECTORY, dir_fd=top) if name else os.dup(top)
            try:
                for entry in os.listdir(directory):
                    if not _is_directory(directory, entry):
                        os.unlink(entry, dir_fd=directory)
                        continue
                    os.chmod(entry, 0o700, dir_fd=directory)
                    count += 1
                    moved = f".{count}.{os.getpid()}.removed" if name else entry
                    if name:
                        os.rename(entry, moved, src_dir_fd=directory, dst_dir_fd=top)
                    pending.append(moved)
            finally:
                os.close(directory)
            if name:
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


# Stashes and notes that were made inside: they come back to no repository, so they stay from session to session.


NAMES = _STASH, _NOTES = "refs/stash", "refs/notes"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
_HEX = frozenset(b"0123456789abcdef")


def find_kept(own: str, before: dict[str, str]) -> dict[str, bytes]:
    """Return those of a git directory of the sandbox's own that differ from what both sides had in common."""
    copier = Copier(own, own, None)
    try:
        packed = git_state.parse_refs(os.fsdecode(copier.content("packed-refs", LIMIT) or b""))
        found = {name: os.fsencode(value) for name, value in packed.items()}
        found |= dict(copier.contents(_NOTES))
        found |= {_STASH: value} if (value := (copier.content(_STASH) or b"").strip()) else {}
    finally:
        copier.close()
    return {
        name: value
        for name, value in found.items()
        if _is_plain(name, value) and before.get(name) != str(value, "ascii")
    }


def _is_plain(name: str, value: bytes) -> bool:
    ours = name == _STASH or name.startswith(f"{_NOTES}/")
    parts = name.split("/")
    dotted = any(not part or part[0] == "." or part.endswith(".lock") for part in parts)
    return ours and not dotted and _PLAIN.issuperset(name) and _HEX.issuperset(value) and len(value) in (40, 64)


def take_along(own: str, base: dict[str, str], new: str) -> None:
    """Put them into the git directory that replaces this one."""
    kept = find_kept(own, base)
    for name, value in kept.items():
        write(f"{new}/{name}", value + b"\n")
    if _STASH in kept:
        copier = Copier(own, new, None)
        try:
            copier.files((f"logs/{_STASH}",))  # the older ones stand there
        finally:
            copier.close()


def describe(own: str, base: dict[str, str]) -> list[str]:
    """Return what the user should know at the end."""
    kept = find_kept(own, base)
    notes = ["stashes made inside stay there: `claudebox --exec -- git stash list`"] if kept.pop(_STASH, b"") else []
    return notes + [f"{name.removeprefix('refs/')} made inside stay there" for name in sorted(kept)][:3]


# Operations of git that are under way, a rebase or a merge: on which side, and what becomes of the host's.
#
# While one is under way git moves HEAD and index to and fro, and some of its files name commands; none comes back.


_NAMES = {
    "rebase-merge": "rebase", "rebase-apply": "rebase", "sequencer": "cherry-pick", "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "BISECT_START": "bisect",
}  # fmt: skip


def under_way(directory: str) -> str:
    """Return which operation is under way in a git directory, nothing if there is none."""
    return next((_NAMES[name] for name in _states(directory)), "")


def describe_operations(operation: str) -> str:
    """Return what the user should know of an operation that is under way inside."""
    words = "bisect reset" if operation == "bisect" else f"{operation} --abort"
    return (
        f"a {operation} is under way inside; the next session can go on with it, and "
        f" `claudebox --exec -- git {words}` ends it"
    )


def _states(directory: str) -> list[str]:
    return [name for name in _NAMES if os.path.lexists(f"{directory}/{name}")]


def find_states(git_dir: str) -> list[str]:
    """Return what tells whether an operation of the host is still where it was."""
    found = ((name, os.lstat(f"{git_dir}/{name}")) for name in _states(git_dir))
    return [f"{name} {status.st_ino} {status.st_mtime_ns}" for name, status in found]


def find_ongoing(private: Private) -> str:
    """Return which operation of the host is under way that the agent has not ended, nothing if none is."""
    state = private.state()
    rows = (row for row in find_states(state.layout.git_dir) if row not in state.operations)
    return next((_NAMES[row.partition(" ")[0]] for row in rows), "")


def put_aside(private: Private, layout: Layout) -> list[str]:
    """Take away what was under way on the host and the agent has finished; return what the user should know.

    If it stayed, `git rebase --abort` on the host would throw the result away.
    """
    notes = []
    for name in _states(layout.git_dir):
        aside = f"{layout.git_dir}/claudebox.{name}.{time.time_ns()}"
        try:
            os.rename(f"{layout.git_dir}/{name}", aside)
        except OSError as error:
            notes.append(f"`{name}` cannot be put aside: {error.strerror}")
        else:
            notes.append(f"the {_NAMES[name]} that was under way has ended inside; its state is in `{aside}`")
    if notes:
        private.update(operations=())
    return notes


_FOLDED = 200  # so many loose refs are written as one file
_MOST_LOGS = 200
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
# Of a checkout. The index keeps its time: git compares it with those of files.
_CHECKOUT_FILES = (
    "HEAD", "index", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "MERGE_RR",
    "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "AUTO_MERGE", "BISECT_LOG", "BISECT_START",
    "BISECT_TERMS", "BISECT_NAMES", "BISECT_EXPECTED_REV", "BISECT_ANCESTORS_OK", "BISECT_FIRST_PARENT",
    "COMMIT_EDITMSG", "info/sparse-checkout",
)  # fmt: skip
_CHECKOUT_TREES = ("rebase-merge", "rebase-apply", "sequencer", "refs/bisect", "refs/worktree", "refs/rewritten")
_COMMON_FILES = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes", "info/grafts")
_COMMON_TREES = ("rr-cache", "reftable")
_TAKEN = ("objects", "lfs", "hooks")  # of the directory before
_ENTRY = ("HEAD", "gitdir", "commondir", "locked")  # of a worktree that is not visible inside


def set_up(own: OwnGit, settled: Callable[[str], bool]) -> int:
    """Make the git directory, and return a descriptor that says for as long as it is open that it is in use.

    It stays as it is while another session uses it.
    """
    lock, alone = git_state.hold(own.private, alone=True)
    if not alone:
        return lock
    try:
        unchanged = settled(own.private)  # asked once: an attempt that fails changes the directory itself
        try:
            _refresh(own, settled=unchanged)
        except PermissionError:  # an agent has closed something of it
            remove_special(own.own)
            _refresh(own, settled=unchanged)
    except OSError as error:
        raise ClaudeboxError(
            f"the git directory of `{own.worktree}` cannot be set up in `{own.private}`: {error.strerror}",
            hint="free disk space or fix the directory's permissions",
        ) from None
    git_state.share(lock)
    return lock


def _refresh(own: OwnGit, *, settled: bool) -> None:
    """Build the git directory anew, from the real one or from what has not come back: nothing that was broken lasts."""
    directory = os.open(own.private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kept = not settled and stat.S_ISDIR(mode_of(own.own)) and os.path.lexists(f"{own.own}/HEAD")
        known = git_state.has_state(own.private)
        layout = describe_layout(own)
        state = git_state.read_state(own.private) if known else git_state.State(layout)
        if not known or state.layout != layout:
            state = state.replace(layout=layout)
            git_state.write_state(own.private, state)
        new = f"{own.private}/new"
        _give_back(own, new)
        remove(new)
        os.mkdir(new, 0o700)
        hooks = signature(f"{own.real}/hooks")
        taken = _find_taken(own, same_hooks=kept or hooks == state.hooks)
        if kept:
            remove_special(own.own)
        base, head, index = _make(own, new, taken, kept=kept)
        _take_along(own, new, taken, state)
        if read_at(directory, "config") != own.config:
            replace_file(directory, "config", own.config)
        old = f"{own.private}/old"
        remove(old)
        _put_in_place(new, own.own, old)
        state = state.replace(hooks=hooks)
        if not kept:
            git_state.write_synced(own.private, head=head, index=index)
            seen = git_state.stamp(own.own, layout.checkout)  # nothing in it has to come back
            operations = tuple(find_states(own.git_dir))
            state = state.replace(base=os.fsdecode(base), seen=seen, operations=operations)
        git_state.write_state(own.private, state)
    finally:
        os.close(directory)


def _mend(own: OwnGit, new: str, checkout: str) -> None:
    """Take HEAD and index of the host where the agent's are none."""
    copier = Copier(own.real, new, own.identity)
    try:
        head = (read_small(f"{new}/HEAD") or b"").strip()
        if not head.startswith(b"ref: refs/") and len(head) not in (40, 64):
            copier.files(("HEAD",))
        place = os.path.normpath(f"{checkout}/index")
        if not (read_small(f"{new}/{place}", limit=LIMIT) or b"DIRC").startswith(b"DIRC"):
            copier.files((place,))
    finally:
        copier.close()


def _put_in_place(new: str, place: str, old: str) -> None:
    """Replace a directory at once, where the file system can: bwrap may look whether it is there at any moment."""
    if os.path.lexists(place):
        names = os.fsencode(new), os.fsencode(place)
        try:
            exchanged = syscalls.call("renameat2", _HERE, names[0], _HERE, names[1], _EXCHANGE) == 0
        except OSError:  # another C library
            exchanged = False
        os.rename(new if exchanged else place, old)
        if exchanged:
            return
    os.rename(new, place)


def _make(own: OwnGit, new: str, taken: tuple[str, ...], *, kept: bool) -> tuple[bytes, bytes, bytes]:
    """Fill a new directory from the real one, but for what is `taken`; return refs, HEAD and index that both have.

    What is `kept` has not come back: it is taken from the agent's own, as far as git can read it.
    """
    copier = Copier(own.own, new, None) if kept else Copier(own.real, new, own.identity)
    try:
        for path in ("objects/info", "objects/pack", "hooks", "info", "refs"):
            if path.partition("/")[0] not in taken:  # a directory takes longer to make than most files
                os.makedirs(f"{new}/{path}")
        linked = own.git_dir != own.real
        copier.files(("HEAD", *_COMMON_FILES) if linked else (*_CHECKOUT_FILES, *_COMMON_FILES))
        hidden = find_hidden(own.worktree, own.git_dir) if own.only else None
        if hidden is not None:
            _hide_packed(f"{new}/packed-refs", hidden)
        for tree in _COMMON_TREES if linked else (*_CHECKOUT_TREES, *_COMMON_TREES):
            copier.tree(tree)
        copier.files(name for name in copier.names("") if name.startswith("sharedindex."))
        checkout = "." if not linked else os.path.relpath(own.git_dir, own.real)
        if kept:
            _mend(own, new, checkout)
        head = read_small(f"{new}/HEAD") or b""
        loose = _refs(copier, new, head, own.ref_format, hidden)
        if own.only:  # reflogs of the user's other branches stay outside
            copier.files((f"logs/{own.only}",))
        else:
            _logs(copier, head)
        if "hooks" not in taken:
            copier.hooks()
        _worktrees(own, copier, new)
        write(f"{new}/config", own.config)
        if own.worktree_config:
            write(f"{new}/{checkout}/config.worktree", own.worktree_config)
        for submodule in own.mountpoints:
            os.makedirs(f"{new}/{submodule}", exist_ok=True)
        head = read_small(f"{new}/{checkout}/HEAD") or b""
        packed = read_small(f"{new}/packed-refs", limit=LIMIT) or b""
        index = read_small(f"{new}/{checkout}/index", limit=LIMIT) or b""
        return b"".join((packed, *loose)), head.strip(), index
    finally:
        copier.close()


def _hide_packed(path: str, hidden: Callable[[str], bool]) -> None:
    """Take what an agent does not see out of a copy of `packed-refs`."""
    rows, kept, shown = (read_small(path, limit=LIMIT) or b"").splitlines(keepends=True), [], True
    for row in rows:
        if not row.startswith((b"#", b"^")):  # a row with `^` belongs to the one before it
            shown = not hidden(os.fsdecode(row.rstrip(b"\n").partition(b" ")[2]))
        kept += [row] if shown else []
    if len(kept) < len(rows):
        write(path, b"".join(kept))


def _refs(
    copier: Copier, new: str, head: bytes, ref_format: str, hidden: Callable[[str], bool] | None
) -> Iterable[bytes]:
    """Copy loose refs, or fold them into `packed-refs` where there are many; return them as rows."""
    if ref_format == "reftable":
        copier.files(("refs/heads",))
        return ()
    os.makedirs(f"{new}/refs/heads", exist_ok=True)
    os.makedirs(f"{new}/refs/tags", exist_ok=True)
    skipped = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
    found = {name: value for name, value in copier.contents("refs") if not name.startswith(skipped)}
    if hidden is not None:
        found = {name: value for name, value in found.items() if not hidden(name)}
    plain = {name: value for name, value in found.items() if not value.startswith(b"ref:")}
    current = os.fsdecode(head.removeprefix(b"ref: ").strip())
    if len(plain) > _FOLDED:
        fold(f"{new}/packed-refs", plain)
        written = {name: value for name, value in found.items() if name == current or name not in plain}
    else:
        written = found
    for name, value in written.items():
        write(f"{new}/{name}", value + b"\n")
    return (value + b" " + os.fsencode(name) + b"\n" for name, value in plain.items())


def _logs(copier: Copier, head: bytes) -> None:
    current = os.fsdecode(head.removeprefix(b"ref: ").strip())
    names = copier.below("logs")
    few = ("logs/HEAD", "logs/refs/stash", f"logs/{current}")
    copier.files(names if len(names) <= _MOST_LOGS else (name for name in names if name in few))


def _worktrees(own: OwnGit, copier: Copier, new: str) -> None:
    """Copy what belongs to linked worktrees; those that are not visible inside are locked, so that git leaves them."""
    for name in copier.names("worktrees"):
        place = f"worktrees/{name}"
        where = os.path.dirname(os.fsdecode(copier.content(f"{place}/gitdir") or b"").strip())
        mine = f"{own.real}/{place}" == own.git_dir
        if own.only and not mine:
            continue
        if mine or any(where == base or where.startswith(f"{base}/") for base in own.visible):
            copier.files(f"{place}/{part}" for part in (*_CHECKOUT_FILES, *_ENTRY[1:], "logs/HEAD", "refs/heads"))
            for tree in (*_CHECKOUT_TREES, "reftable"):
                copier.tree(f"{place}/{tree}")
        else:
            copier.files(f"{place}/{part}" for part in _ENTRY)
            if not os.path.lexists(f"{new}/{place}/locked") and os.path.lexists(f"{new}/{place}/HEAD"):
                write(f"{new}/{place}/locked", b"not visible in this sandbox\n")


def _give_back(own: OwnGit, new: str) -> None:
    """Put back what a set-up had taken along that was killed before it was complete: it is nowhere else."""
    for name in _TAKEN if stat.S_ISDIR(mode_of(own.own)) else ():
        if not os.path.lexists(f"{own.own}/{name}") and os.path.isdir(f"{new}/{name}"):
            os.rename(f"{new}/{name}", f"{own.own}/{name}")


def _find_taken(own: OwnGit, *, same_hooks: bool) -> tuple[str, ...]:
    """Return what is kept of the one before: objects, and hooks that the host has not changed since."""
    names = _TAKEN if same_hooks else _TAKEN[:2]
    if os.path.islink(own.own):
        return ()
    return tuple(name for name in names if stat.S_ISDIR(mode_of(f"{own.own}/{name}")))


def _take_along(own: OwnGit, new: str, taken: tuple[str, ...], state: git_state.State) -> None:
    """Keep of the one before what is only inside."""
    for name in taken:
        reopen(f"{own.own}/{name}")  # a directory that cannot be written cannot be moved either
        os.rename(f"{own.own}/{name}", f"{new}/{name}")
    if os.path.isdir(own.own) and not os.path.islink(own.own):
        take_along(own.own, state.refs(), new)
    renew_alternates(f"{new}/objects", [inside for _, inside in own.stores])


def find_moved(own: OwnGit) -> None:
    """Take over what was kept for a git directory whose project has been renamed since."""
    name, instance = os.path.basename(own.private), os.path.dirname(os.path.dirname(own.private))
    if git_state.has_state(own.private):
        return
    for other in list_names(os.path.dirname(instance)):
        place = f"{os.path.dirname(instance)}/{other}/git/{name}"
        if not git_state.has_state(place):
            continue
        layout = git_state.read_layout(place)
        if os.path.lexists(layout.common) and not git_state.is_replaced(layout):
            continue
        with git_state.Alone(place) as unused:
            if unused and not os.path.lexists(f"{own.private}/sessions"):
                remove(own.private)  # made for this launch
                os.rename(place, own.private)
                write_layout(own)
                return


def write_layout(own: OwnGit) -> None:
    """Write down where a repository is that was made inside."""
    layout = describe_layout(own)
    state = git_state.read_state(own.private) if git_state.has_state(own.private) else git_state.State(layout)
    git_state.write_state(own.private, state.replace(layout=layout))


def describe_layout(own: OwnGit) -> git_state.Layout:
    """Return what an import has to know."""
    return git_state.Layout(
        common=own.real,
        git_dir=own.git_dir,
        work_tree=own.worktree,
        stores=tuple(outside for outside, _ in own.stores),
        object_format=own.object_format,
        ref_format=own.ref_format,
        depth=own.place.count("modules/"),
        module=own.place.rpartition("modules/")[2],
        unmapped=own.unmapped,
        only=own.only,
        obeyed=own.obeyed,
        identities=git_state.describe_identities(own.identity, identify(own.worktree)),
    )
