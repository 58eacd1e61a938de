"""`claudebox uninstall`: show what claudebox has left on this machine, ask, and remove it.

The program itself stays: who installed it removes it, and is named with the command for that.
"""

from __future__ import annotations

import contextlib
import os
import shlex

from claudebox import build_paths
from claudebox.base import console, trees
from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError
from claudebox.base.files import PACKAGE, list_names, read_small, real_path
from claudebox.base.state import Instance
from claudebox.git.facts import find_root
from claudebox.host.machine import current_home
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copies
from claudebox.report.log import human
from claudebox.run.live_sessions import list_sessions
from claudebox.run.stubs import clear_stubs
from claudebox.tables.paths import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


# Below ~/.local, where `scripts/install` puts them, and where users copy them for their shells.
_SHELL_FILES = (
    ".local/share/man/man1/claudebox.1",
    ".local/share/bash-completion/completions/claudebox",
    ".local/share/zsh/site-functions/_claudebox",
    ".local/share/fish/vendor_completions.d/claudebox.fish",
    ".config/fish/completions/claudebox.fish",
    ".zfunc/_claudebox",
)
_CLIENT = "node_modules/@anthropic-ai/claude-code"  # of `scripts/run`, where there was none
_PROFILE = "/etc/apparmor.d/claudebox-bwrap"


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Refuse while anything runs or an agent's work is unfinished; else show, ask and remove."""
    home = current_home(environ)
    state = f"{home}/{STATE}"
    present = os.path.isdir(state) and not os.path.islink(state)
    if present:
        _check_idle(home, state)
    projects = dict(_projects(state))
    files = [path for path in (f"{home}/{name}" for name in _SHELL_FILES) if os.path.lexists(path)]
    refs = list(dict.fromkeys(path for root in projects.values() for path in _empty_refs(root)))
    rows = [(f"~/{STATE}", _describe(state, len(projects)))] if present else []
    rows += [(path.replace(home, "~", 1), "man page" if "/man/" in path else "completion") for path in files]
    rows += [(path, "empty") for path in refs]
    client = f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/claudebox/client"
    if fetched := os.path.isdir(f"{client}/{_CLIENT}"):
        rows.append((client.replace(home, "~", 1), f"{_measure(client)}: the client that `scripts/run` fetched"))
    if not rows:
        console.note("nothing of claudebox is left in your home")
        _name_program(home)
        return 0
    console.write(console.lay_out((console.clean(path), text) for path, text in rows))
    question = "Remove all of this, for good? [y/N] "
    if not flags.on("yes") and not console.confirm(question, default=False):
        return DECLINED
    failed = [path for path in (*files, *refs) if not _remove(path)]
    if fetched and not _remove_tree(client):
        failed.append(client)
    if present:
        failed += _remove_state(state, projects, environ)
    for path in failed:
        console.warn(f"`{path}` could not be removed")
    _name_program(home)
    return FAILED if failed else 0


def _check_idle(home: str, state: str) -> None:
    if sessions := list_sessions(state):
        places = console.list_some(sorted({project for _, project, _ in sessions}), 4)
        raise ClaudeboxError(f"sessions run in {places}", hint="end them first; `claudebox sessions` lists them")
    if copies := Copies(home).all():
        names = console.list_some([f"`{copy.name}` of {copy.source}" for copy in copies], 4)
        raise ClaudeboxError(
            f"agents have worktrees in ~/{STATE}: {names}",
            hint=f"`claudebox finish {shlex.quote(copies[0].name)}` there keeps the branch; `drop` deletes both",
        )


def _projects(state: str) -> list[tuple[str, str]]:
    """Return name and root of every project with state."""
    rows = ((name, read_small(f"{state}/instances/{name}/project")) for name in list_names(f"{state}/instances"))
    return [(name, os.fsdecode(root)) for name, root in rows if root]


def _describe(state: str, projects: int) -> str:
    parts = [f"conversations, snapshots for undo and caches of {projects} project{'s' * (projects != 1)}", "logs"]
    parts += ["your settings"] if os.path.lexists(f"{state}/config.toml") else []
    parts += ["a login"] if os.path.exists(f"{state}/login/credentials.json") else []
    return f"{_measure(state)}: {', '.join(parts)}"


def _measure(directory: str) -> str:
    unseen: list[tuple[str, str]] = []
    return human(sum(status.st_blocks * 512 for _, status in trees.walk(directory, unseen)))


def _empty_refs(root: str) -> list[str]:
    """Return what a killed import left in the repository of a project: a directory of refs without any."""
    top = find_root(root)
    places = (f"{top}/.git/refs/claudebox", f"{top}/refs/claudebox")
    return [path for path in places if real_path(path) == path and os.path.isdir(path) and not os.listdir(path)]


def _remove(path: str) -> bool:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True


def _remove_tree(path: str) -> bool:
    try:
        trees.remove(*os.path.split(path))
    except OSError:
        return False
    return True


def _remove_state(state: str, projects: dict[str, str], environ: dict[str, str]) -> list[str]:
    """Remove the state, after what it records outside of it; return what could not be removed."""
    for name, root in projects.items():
        with contextlib.suppress(OSError, ClaudeboxError):
            clear_stubs(Instance(root, state, name))
    with contextlib.suppress(OSError, ClaudeboxError):
        tmux = Tmux(state, environ)
        tmux.end()
        if not tmux.directory.startswith(f"{state}/"):
            trees.remove(*os.path.split(tmux.directory))
    return [] if _remove_tree(state) else [state]


def _name_program(home: str) -> None:
    """Say how the program itself is removed."""
    command = _removal(PACKAGE, home)
    where = f"`{command}` removes it" if command else f"it runs from your checkout in {os.path.dirname(PACKAGE)}"
    console.note(f"the program itself stays: {where}")
    if os.path.exists(_PROFILE):
        console.note(f"the AppArmor profile: `sudo apparmor_parser -R {_PROFILE} && sudo rm {_PROFILE}`")


def _removal(package: str, home: str) -> str:
    """Return the command that removes the program whose package lies here."""
    if package.startswith("/nix/store/") or build_paths.TOOLS:
        return "nix profile remove claudebox"
    if "/uv/tools/" in package:
        return "uv tool uninstall claudebox"
    if "/pipx/venvs/" in package:
        return "pipx uninstall claudebox"
    prefix = os.path.dirname(os.path.dirname(package))
    if package == f"{prefix}/lib/claudebox":  # scripts/install
        parts = (f"{prefix}/lib/claudebox", f"{prefix}/bin/claudebox")
        return f"{'' if prefix.startswith(home) else 'sudo '}rm -r {shlex.join(parts)}"
    if "-packages" in package:
        return "pip uninstall claudebox"
    return ""  # a checkout
