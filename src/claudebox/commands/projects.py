"""`claudebox projects`: list the projects with state here, and prune those that no longer exist."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from claudebox.base import console, trees
from claudebox.base.errors import FAILED, ClaudeboxError
from claudebox.base.files import list_names, read_small
from claudebox.host.machine import current_home
from claudebox.report.log import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.layers import Settings


_MIN_CACHES = 1 << 20  # bytes of caches worth showing


@dataclass(frozen=True)
class Entry:
    """One instance directory."""

    directory: str
    project: str
    size: int
    complete: bool  # `size` is exact
    used: float
    caches: int  # bytes of package caches in it

    @property
    def gone(self) -> bool:
        """Return whether the project no longer exists."""
        return not os.path.isdir(self.project)


def run(settings: Settings, environ: dict[str, str]) -> int:
    state = f"{current_home(environ)}/.claudebox/instances"
    entries = sorted(_entries(state), key=lambda entry: -entry.used)
    if not settings.words:
        return _list(entries, as_json=settings.on("json"))
    if settings.words != ("prune",):
        hint = "`claudebox projects` or `claudebox projects prune`"
        raise ClaudeboxError(f"`claudebox projects`: unexpected argument `{settings.words[0]}`", hint=hint)
    return _prune([entry for entry in entries if entry.gone], asked=settings.on("yes"))


def _entries(state: str) -> Iterator[Entry]:
    for name in list_names(state):
        directory = os.path.join(state, name)
        manifest = os.path.join(directory, "project")
        project = read_small(manifest)
        if project is not None:
            size, complete = _size(directory)
            used = os.lstat(manifest).st_mtime
            yield Entry(directory, os.fsdecode(project), size, complete, used, _size(f"{directory}/caches")[0])


def _size(directory: str) -> tuple[int, bool]:
    """Return the disk usage of a directory, and whether all of it could be read."""
    unseen: list[tuple[str, str]] = []
    return sum(status.st_blocks * 512 for _, status in trees.walk(directory, unseen)), not unseen


def _list(entries: list[Entry], *, as_json: bool) -> int:
    if as_json:
        rows = [
            {
                "project": e.project,
                "directory": e.directory,
                "bytes": e.size,
                "complete": e.complete,
                "caches": e.caches,
                "used": int(e.used),
                "gone": e.gone,
            }
            for e in entries
        ]
        console.write([json.dumps(rows, indent=2)], descriptor=1)
    elif not entries:
        console.write(["claudebox has not been started in any project yet"], descriptor=1)
    else:
        console.write((_line(entry) for entry in entries), descriptor=1)
    return 0


def _line(entry: Entry) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    gone = console.paint("  (gone)", "yellow", descriptor=1) if entry.gone else ""
    size = ("" if entry.complete else "> ") + human(entry.size)
    caches = f"  ({human(entry.caches)} caches)" if entry.caches > _MIN_CACHES else ""
    return f"{size:>9}  {used}  {os.path.basename(entry.directory)}  {console.clean(entry.project)}{caches}{gone}"


def _prune(gone: list[Entry], *, asked: bool) -> int:
    if not gone:
        console.write(["nothing to remove: every project still exists"], descriptor=1)
        return 0
    console.write((_line(entry) for entry in gone), descriptor=1)
    if not asked and not console.confirm(
        f"Remove state and conversations of {len(gone)} projects? [y/N] ", default=False
    ):
        return 130
    failed = False
    for entry in gone:
        try:
            trees.remove(*os.path.split(entry.directory))
            console.write([f"removed {entry.directory}"], descriptor=1)
        except OSError as error:
            failed = True
            console.warn(f"`{entry.directory}` could not be removed: {error.strerror or error}")
    return FAILED if failed else 0
