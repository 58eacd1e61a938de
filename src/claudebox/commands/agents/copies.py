"""Copies of projects for agents: ~/.claudebox/work/PROJECT/NAME, and beside each a file that says what it is a copy of.

A copy is a linked worktree of the project's repository, or files where there is none. An agent can write to its copy
and to nothing beside it, so what stands in that file is ours.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass

from claudebox import syscalls
from claudebox.commands.agents import names
from claudebox.errors import ClaudeboxError
from claudebox.files import OPEN_DIRECTORY, Closing, list_names, read_small, real_path, replace_file
from claudebox.launch.live_sessions import list_sessions
from claudebox.report import tree
from claudebox.state import locate, open_state
from claudebox.tables.host_paths import COPIES

_LONGEST = 40  # characters of the name of a project


@dataclass(frozen=True)
class Copy:
    """One copy."""

    name: str
    path: str
    source: str  # the project
    base: str = ""  # the commit that it began with; nothing: the project is no repository
    created: float = 0.0
    linked: bool = False  # a worktree of the project's repository, not a clone of version 0.2
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
            path, linked = f"{directory}/{name}", bool(base and branch)
            return Copy(branch or name, path, source, base, float(created or 0), linked, tuple(filter(None, brought)))
        except ValueError:
            return None
