"""`claudebox sync`: bring commits made inside into the real repositories of this project now."""

from __future__ import annotations

import os

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import FAILED
from claudebox.git import facts as git_facts
from claudebox.git import importer
from claudebox.git import report as git_report
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.report import leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


def run(_flags: Settings, environ: dict[str, str]) -> int:
    home, workdir = current_home(environ), current_directory()
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    instance = base_state.locate(home, repository.main if repository else workdir)
    leftovers.catch_up(instance, (workdir,))
    done, failed = importer.import_all(instance, importer.find_tools(programs.search_path(environ, workdir)))
    lines = git_report.lines(done)
    for line in lines:
        console.note(line)
    if not lines and not failed:
        console.note("git: nothing to import")
    return FAILED if failed else 0
