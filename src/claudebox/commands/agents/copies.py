"""Worktrees for agents: ~/.claudebox/work/PROJECT/NAME, and beside each a file that says what it is a copy of.

An agent can write to its worktree and to nothing beside it, so what stands in that file is ours.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import time
from dataclasses import dataclass

from claudebox import syscalls
from claudebox.commands.agents import names
from claudebox.errors import ClaudeboxError
from claudebox.files import OPEN_DIRECTORY, Closing, list_names, open_beneath, read_small, real_path, replace_file
from claudebox.launch import git_copy
from claudebox.launch.live_sessions import list_sessions
from claudebox.report import tree
from claudebox.state import locate, open_state
from claudebox.tables.host_paths import COPIES

_LONGEST = 40  # characters of the name of a project
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Copy:
    """One copy."""

    name: str
    path: str
    source: str  # the project
    base: str = ""  # the commit that it began with
    created: float = 0.0
    brought: tuple[str, ...] = ()  # ignored files and directories that came along

    @property
    def project(self) -> str:
        """Return the directory with all copies of the project."""
        return os.path.dirname(self.path)

    @property
    def scratch(self) -> str:
        """Return where git in a sandbox has room for what it says: ~/.claudebox, which may be another file system."""
        return self.path.rsplit("/", 3)[0]

    @property
    def ref(self) -> str:
        """Return the branch that its agent works on."""
        return f"refs/heads/{self.name}"


class Copies:
    """All copies of a user."""

    def __init__(self, home: str) -> None:
        self.home = home = real_path(home)
        self.state = f"{home}/.claudebox"
        self.directory = f"{self.state}/{COPIES}"

    def place(self, name: str, source: str) -> Copy:
        """Return where a copy lies, or would."""
        names.check_name(name)
        project = f"{names.slug(os.path.basename(source))[:_LONGEST]}-{syscalls.sha256(os.fsencode(source))[:6]}"
        directory = names.directory_name(name)
        found = self._read(f"{self.directory}/{project}", directory)
        if found is not None and found.name != name:
            raise ClaudeboxError(f"`{found.name}` is called nearly the same", hint="choose another name")
        return found or Copy(name, f"{self.directory}/{project}/{directory}", source)

    def all(self) -> list[Copy]:
        """Return every copy that there is."""
        found = []
        for project in list_names(self.directory):
            directory = f"{self.directory}/{project}"
            rows = (self._read(directory, name[1:]) for name in list_names(directory) if name.startswith("."))
            found += [row for row in rows if row is not None]
        return sorted(found, key=lambda copy: (copy.created, copy.path))

    def matching(self, name: str) -> list[Copy]:
        """Return the copies that have a name: NAME, or PROJECT/NAME."""
        return [copy for copy in self.all() if name in (copy.name, f"{os.path.basename(copy.source)}/{copy.name}")]

    def find(self, name: str, source: str) -> Copy:
        """Return the copy that a user means in this project: by name, or PROJECT/NAME."""
        found = self.matching(name)
        here = [copy for copy in found if copy.source == source] or found
        if len(here) == 1:
            return here[0]
        if here:
            known = ", ".join(f"`{os.path.basename(copy.source)}/{copy.name}`" for copy in here[:8])
            raise ClaudeboxError(f"several copies are called `{name}`: {known}", hint="give the longer name")
        raise ClaudeboxError(f"there is no copy `{name}`", hint="`claudebox --sessions` lists them")

    def create(self, copy: Copy) -> None:
        """Make the directory of a copy, which must not be there yet."""
        os.close(open_state(self.state, COPIES))
        os.makedirs(copy.project, 0o700, exist_ok=True)
        try:
            os.mkdir(copy.path, 0o755)
        except FileExistsError:
            raise ClaudeboxError(f"`{copy.path}` is in the way", hint="remove it, or choose another name") from None

    def save(self, copy: Copy) -> None:
        """Write down what a copy is."""
        with Closing(os.open(copy.project, OPEN_DIRECTORY)) as directory:
            row = "\0".join((copy.source, copy.base, repr(time.time()), copy.name, *copy.brought))
            replace_file(directory, f".{os.path.basename(copy.path)}", os.fsencode(row))

    def remove(self, copy: Copy) -> None:
        """Remove a copy with the state that it has as a project."""
        with contextlib.suppress(FileNotFoundError):
            tree.remove(*os.path.split(copy.path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{copy.project}/.{os.path.basename(copy.path)}")
        instance = locate(self.home, copy.path)
        with contextlib.suppress(FileNotFoundError):
            tree.remove(os.path.dirname(instance.directory), instance.name)
        with contextlib.suppress(OSError):
            os.rmdir(copy.project)

    def require_idle(self, copy: Copy) -> None:
        """Refuse while an agent is at work in a copy."""
        alive = [process for process, workdir, _ in list_sessions(self.state) if workdir == copy.path]
        if alive:
            raise ClaudeboxError(
                f"an agent is at work in `{copy.name}` (process {alive[0]})",
                hint=f"`claudebox --stop {shlex.quote(copy.name)}`",
            )

    def _read(self, directory: str, name: str) -> Copy | None:
        content = read_small(f"{directory}/.{name}")
        if content is None:
            return None
        source, base, created, branch, *brought = (*os.fsdecode(content).split("\0"), "", "", "", "")
        try:
            path = f"{directory}/{name}"
            return Copy(branch, path, source, base, float(created), tuple(filter(None, brought))) if branch else None
        except ValueError:
            return None


def bring(source: str, target: str, relative: str, most: float) -> bool:
    """Copy what stands at a path of a project into a worktree, up to so many bytes; return whether there is anything.

    An agent may have made it: no link is followed, nothing is hard-linked, and what is neither file, directory nor link
    is left out. What came with the branch stays.
    """
    parent, _, name = relative.rpartition("/")
    place = f"{target}/{parent}".rstrip("/")
    if not os.path.lexists(f"{source}/{relative}") or real_path(place) != place:
        return False
    os.makedirs(place, exist_ok=True)
    waiting: list[tuple[str, list[str]]] = [(parent, [name])]
    with Closing(os.open(source, OPEN_DIRECTORY)) as old_top, Closing(os.open(target, OPEN_DIRECTORY)) as new_top:
        while waiting:
            path, names_in_it = waiting.pop()
            with contextlib.ExitStack() as stack:
                try:
                    old = stack.enter_context(Closing(open_beneath(old_top, path, listed=True)))
                except PermissionError:  # what the user cannot read, no agent needs
                    continue
                new = stack.enter_context(Closing(open_beneath(new_top, path, listed=True)))
                for name in names_in_it or os.listdir(old):
                    status = os.lstat(name, dir_fd=old)
                    if stat.S_ISDIR(status.st_mode):
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, status.st_mode & 0o777 | 0o700, dir_fd=new)
                        waiting.append((os.path.join(path, name), []))
                    elif os.path.lexists(f"/proc/self/fd/{new}/{name}"):
                        continue
                    elif stat.S_ISLNK(status.st_mode):
                        os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
                    elif stat.S_ISREG(status.st_mode):
                        most -= status.st_size
                        if most < 0:
                            raise ClaudeboxError("it is too large; name it with `--copy` to have it all the same")
                        _copy_file(old, new, name)
    return True


def _copy_file(old: int, new: int, name: str) -> None:
    try:
        source = os.open(name, _READ, dir_fd=old)
    except PermissionError:
        return
    with Closing(source):
        status = os.fstat(source)
        with Closing(os.open(name, _WRITE, status.st_mode & 0o777, dir_fd=new)) as target:
            git_copy.copy_range(source, target, status.st_size)  # which shares blocks where the file system can
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
