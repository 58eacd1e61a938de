"""`--import`: bring what was committed inside into the real repositories of this project now."""

from __future__ import annotations

import os
import time

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import FAILED, ClaudeboxError
from claudebox.git import facts as git_facts
from claudebox.git import importer
from claudebox.git import report as git_report
from claudebox.git import state as git_state
from claudebox.git.sandbox import Limits, Tools
from claudebox.host import bubblewrap, programs
from claudebox.host.machine import current_directory, current_home
from claudebox.plan import seccomp
from claudebox.report import leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


_LIMITS = Limits(seconds=3600.0, size=16 << 30)  # the user waits for it, and can end it


def run(_flags: Settings, environ: dict[str, str]) -> int:
    """Import, and say what came; where nothing waits, say that."""
    home, workdir = current_home(environ), current_directory()
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    instance = base_state.locate(home, repository.main if repository else workdir)
    leftovers.catch_up(instance, (workdir,))
    tools = find_tools(programs.search_path(environ, workdir))
    done, failed = import_all(instance, tools)
    lines = git_report.lines(done, again=True)
    for line in lines:
        console.note(line)
    if not lines and not failed:
        console.note("git: nothing has to be brought back")
    return FAILED if failed else 0


def import_all(instance: base_state.Instance, tools: Tools) -> tuple[dict[str, importer.ImportResult], bool]:
    """Import what waits in the state of a project; return what came, and whether something failed."""
    done: dict[str, importer.ImportResult] = {}
    failed = False
    for path in importer.private_directories(f"{instance.directory}/git"):
        if not git_state.is_known(path):
            continue
        name = time.strftime("%Y%m%d-%H%M%S")
        try:
            with git_state.Alone(path) as final:
                common = git_state.read_layout(path).common
                if not os.path.lexists(common):
                    done |= importer.adopt(path, tools, name)
                elif not git_state.settled(path):
                    done |= importer.finish(path, tools, name, limits=_LIMITS, final=final)
        except ClaudeboxError as error:
            console.report(error)
            failed = True
    return done, failed


def find_tools(path: tuple[str, ...], *, git_needed: bool = True) -> Tools:
    """Return the programs that it takes to run git in a sandbox."""
    found, program = bubblewrap.find_bwrap(path), programs.find_tool("git", path)
    if found.problem:
        raise ClaudeboxError(found.problem, hint=found.remedy)
    if program is None and git_needed:
        raise ClaudeboxError("git is not installed", hint="install the package `git`")
    directories = (os.path.dirname(program or "/usr/bin/git"), "/usr/bin", "/bin")
    return Tools(found.path, ":".join(directories), seccomp.build(os.uname().machine) or b"")
