"""`review [SESSION or NAME]`: one page to look at what a session did."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, list_names, replace_file
from claudebox.base.state import Instance
from claudebox.git import facts as git_facts
from claudebox.host import programs
from claudebox.host.machine import current_directory, current_home
from claudebox.many.records import Records
from claudebox.many.worktrees import Copies
from claudebox.report import leftovers
from claudebox.report.log import DIRECTORY, SUFFIX, read_lines, records
from claudebox.review.gather import SessionRecord, gather_story
from claudebox.review.page import check_place, write_page
from claudebox.review.search import list_values, require_clean
from claudebox.review.session_page import render_session
from claudebox.run.live_sessions import list_sessions
from claudebox.undo.store import SnapshotStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.review.records import Story
    from claudebox.settings.layers import Settings


_PAGES = "review"  # in the state of a project
_MOST_PAGES, _NAMED = 16, 12


def run(flags: Settings, environ: dict[str, str]) -> int:
    word = flags.words[0] if flags.words else ""
    output = os.path.abspath(flags.one("output").value) if flags.all("output") else ""
    if output:
        check_place(output)
    place = _find_place(word, environ)
    leftovers.catch_up(place.instance, (place.workdir,))
    source = _choose(place, environ)
    story = gather_story(source)
    story.title = place.name or story.title
    _add_commands(story, place, source)
    values, unknown = list_values(story, flags, environ, place.workdir)
    if unknown:
        names = console.list_some(unknown, _NAMED)
        story.missing.append(f"this page was not searched for secrets whose value is unknown: {names}")
    page = render_session(story)
    require_clean(story, page, values)
    if output:
        write_page(output, page)
    path = output or _keep(page, place.instance, source.session)
    opened = not output and _open(path, environ)
    document = {"path": path, "session": source.session, "opened": opened}
    console.write([json.dumps(document) if flags.on("json") else console.clean(path)], descriptor=1)
    if opened:
        console.note("opened in your browser")
    return 0


@dataclass
class _Place:
    """Whose sessions are meant: a project's, or those of one agent."""

    workdir: str
    instance: Instance
    session: str = ""  # the beginning of its name
    name: str = ""
    process: int = 0  # the agent's launcher
    is_copy: bool = False  # it works in a worktree of its own


def _find_place(word: str, environ: dict[str, str]) -> _Place:
    """Return what a word names, an agent or else a session; without one the project here."""
    home, workdir = current_home(environ), current_directory()
    repository = git_facts.find_repository(workdir, os.getuid(), home, environ)
    source = repository.main if repository else workdir
    instance = base_state.locate(home, source)
    copies = Copies(home)
    here = [copy for copy in copies.all() if f"{workdir}/".startswith(f"{copy.path}/")]
    if copies.matching(word) or (here and not word):
        copy = copies.find(word, repository.root if repository is not None else workdir) if word else here[0]
        return _Place(copy.path, base_state.locate(home, copy.path), name=copy.name, is_copy=True)
    known = Records(instance.state).all() if word else []
    agents = [agent for agent in known if word in (agent.name, agent.full_name, agent.id)]
    agents.sort(key=lambda agent: agent.project == source)  # the newest of this project last
    if agents:
        agent = agents[-1]
        place = Instance(agent.project, instance.state, agent.instance)
        return _Place(agent.workdir, place, name=agent.name, process=agent.pid)
    return _Place(workdir, instance, session=word)


def _choose(place: _Place, environ: dict[str, str]) -> SessionRecord:
    """Return the session that is meant."""
    logs = f"{place.instance.state}/{DIRECTORY}"
    known = names = records(logs, place.instance.name)
    if word := place.session:
        names = [name for name in names if name.startswith(word.removesuffix(SUFFIX))]
        if len(names) != 1:
            problem = f"`{word}` fits {len(names)} sessions" if names else f"there is no session or agent `{word}`"
            shown = ", ".join(name.partition("-")[0] for name in (names or known)[-_NAMED:])
            raise ClaudeboxError(problem, hint=f"the last sessions here: {shown or 'none'}")
    elif place.process:
        names = [name for name in names if name.endswith(f"-{place.process}{SUFFIX}")]
    if not names:
        raise ClaudeboxError("there is no log of a session here", hint="start one, or change to its project")
    chosen = names[-1]
    for name in reversed(names):  # several directories of one repository share its state
        start = next(iter(read_lines(logs, name, b'"start"')), {})
        if start.get("project") == place.workdir or place.session:
            chosen, place.workdir = name, str(start.get("project", place.workdir))
            break
    process = chosen.removesuffix(SUFFIX).rpartition("-")[2]
    is_alive = any(str(number) == process for number, _, _ in list_sessions(place.instance.state))
    return SessionRecord(place.instance, logs, chosen, is_alive, programs.search_path(environ, place.workdir))


def _add_commands(story: Story, place: _Place, source: SessionRecord) -> None:
    """Add what can be done with the work; a click copies a command, so it says all of what it does."""
    rows: list[tuple[str, str]] = []
    if place.is_copy:
        word = shlex.quote(place.name)
        rows += [("Keep its branch, remove the worktree", f"claudebox finish {word}"),
                 ("Merge its branch, after that", f"git merge {word}"),
                 ("Delete its branch and its worktree", f"claudebox drop {word}")]  # fmt: skip
    else:
        if console.clean(place.workdir) == place.workdir:
            rows.append(("Go to the project", f"cd {shlex.quote(place.workdir)}"))
        if source.session in _undoable(place.instance):
            name = source.session.partition("-")[0]
            rows += [("Take back what the session did", f"claudebox undo {name}"),
                     ("The same differences on the terminal", f"claudebox changes {name} --patch")]  # fmt: skip
        if source.log == records(source.logs, place.instance.name)[-1]:
            rows += [("Every connection", "claudebox log"), ("Every path", "claudebox log changes")]
    story.commands = [*rows, *story.commands]


def _undoable(instance: Instance) -> list[str]:
    try:
        return SnapshotStore(f"{instance.directory}/undo", writing=False).names()
    except ClaudeboxError:
        return []


def _keep(page: bytes, instance: Instance, session: str) -> str:
    """Write the page into the state of the project, remove the oldest ones, and return its path."""
    place = f"{instance.directory}/{_PAGES}"
    os.makedirs(place, mode=0o700, exist_ok=True)
    with Closing(os.open(place, OPEN_DIRECTORY)) as opened:
        replace_file(opened, f"{session}.html", page)
        by_age = sorted(list_names(place), key=lambda name: os.stat(name, dir_fd=opened).st_mtime)
        for old in by_age[:-_MOST_PAGES]:
            os.unlink(old, dir_fd=opened)
    return f"{place}/{session}.html"


def _open(path: str, environ: dict[str, str]) -> bool:
    """Open a page in the browser of a desktop; return False where there is none."""
    is_desktop = (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")) and "SSH_CONNECTION" not in environ
    opener = programs.find_tool("xdg-open", programs.search_path(environ, "/")) if is_desktop and os.isatty(1) else ""
    if not opener:
        return False
    try:
        subprocess.Popen([opener, path], env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    except OSError:
        return False
    return True
