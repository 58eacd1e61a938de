"""What kind of change something is: who would run or obey it, and whether anybody has to ask for that."""

from __future__ import annotations

import sys

from claudebox.report.globs import fits, parse_glob
from claudebox.report.tree import IS_DIRECTORY, IS_FILE, IS_LINK, KIND
from claudebox.tables import reported_paths as table
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.report.globs import Glob

# In the order of their danger, with what is said about them where there are headings.
HEADINGS = {
    "protected": "protected, and changed by something outside of the sandbox, or since it was opened",
    "repository": "repositories that are new or changed",
    "git": "left in the git directory",
    "closed": "directories that denied you reading, and were opened to be looked at",
    "privilege": "files that run with the rights of their owner",
    "unasked": "run or obeyed without being asked",
    "link": "links that lead out of the project, or nowhere",
    "socket": "sockets, pipes and devices",
    "asked": "run or obeyed when you build, test or start something",
    "own": "other files",
    "output": "build output",
    "deleted": "deleted",
}
LOOK = ("protected", "repository", "git", "closed", "privilege", "unasked", "link", "socket")  # shown one by one
_SET_ID = 0o6000
_SHAPE = frozenset(("HEAD", "objects", "refs"))


class Kind(Value):
    """A kind of change."""

    name: str  # one of HEADINGS
    group: str = ""  # what it is shown with: a repository, a directory
    why: str = ""
    rank: int = 0  # within its kind; the lowest is shown first


OWN = Kind("own")


class _Names:
    """Patterns of names with what is said about each: an exact name is one look-up, the others are tried in turn."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._exact: dict[str, tuple[int, str]] = {}
        self._globs: list[tuple[str, Glob, tuple[int, str]]] = []
        for rank, (why, text) in enumerate(rows):
            for name in text.split():
                if "*" in name or "?" in name:
                    longest = max(name.replace("?", "*").split("*"), key=len)  # most names do not even have that
                    self._globs.append((longest, parse_glob(name), (rank, why)))
                else:
                    self._exact.setdefault(name, (rank, why))

    def find(self, name: str) -> tuple[int, str] | None:
        """Return rank and reason of a name in lower case."""
        found = self._exact.get(name)
        return found or next((what for part, glob, what in self._globs if part in name and fits(name, glob)), None)


_UNASKED = _Names((why, names) for why, names, _ in table.UNASKED)
_TREES = {name: (rank, why) for rank, (why, _, names) in enumerate(table.UNASKED) for name in names.split()}
_ASKED = _Names(table.ASKED)
_FROM_OUTPUT = _Names((("", table.RUN_FROM_OUTPUT),))


def classify(path: str, mode: int, leads_out: Callable[[str], str]) -> Kind:
    """Return what something outside of git directories is; `leads_out` says where a link leads that leaves."""
    *above, name = path.split("/")
    lower, kind = name.lower(), mode & KIND
    directory = "/".join(above)
    if kind == IS_FILE and mode & _SET_ID:
        return Kind("privilege", directory, "runs with the rights of its owner")
    if kind == IS_DIRECTORY:  # what counts is in it
        return OWN
    found = _find_unasked(above, name)
    if found is not None:
        return Kind("unasked", found[0], found[2], found[1])
    if kind == IS_LINK:
        target = leads_out(path)
        if target:
            return Kind("link", directory, f"leads to {target}")
    elif kind != IS_FILE:
        return Kind("socket", directory, "a socket, a pipe or a device")
    asked = _ASKED.find(lower)
    if asked is not None:
        return Kind("asked", directory, asked[1], asked[0])
    if kind == IS_FILE and mode & 0o111:
        return Kind("asked", directory, table.PROGRAM, len(table.ASKED))
    return OWN


def _find_unasked(above: list[str], name: str) -> tuple[str, int, str] | None:
    """Return what a name is shown with, its rank and its reason if something runs or obeys it unasked."""
    for number, part in enumerate(above):
        found = _TREES.get(part.lower())
        if found is not None:
            return "/".join(above[: number + 1]), *found
    lower, directory = name.lower(), "/".join(above)
    found = _TREES.get(lower) or _UNASKED.find(lower)
    if found is not None:
        return directory, *found
    if above:
        return None
    if lower.endswith(".py") and lower[:-3] in sys.stdlib_module_names:
        return directory, len(table.UNASKED), "python that is started here takes it for a module of its own"
    if lower.startswith(".") and lower not in table.HARMLESS_DOTFILES and _ASKED.find(lower) is None:
        return directory, len(table.UNASKED) + 1, table.DOTFILE
    return None


def classify_output(kind: Kind, path: str, mode: int, how: str, is_program: Callable[[str], bool]) -> Kind:
    """Return what something is that lies in build output which was there before, given what it is elsewhere.

    `is_program`: a program of this name is found in PATH, too.
    """
    parent, _, name = path.rpartition("/")
    if kind.name in ("privilege", "socket", "link") or _FROM_OUTPUT.find(name.lower()) is not None:
        return kind
    runs = mode & KIND == IS_LINK or (mode & KIND == IS_FILE and mode & 0o111)
    if runs and parent.rpartition("/")[2].lower() in table.BINARIES and (how != "new" or is_program(name)):
        return Kind("unasked", parent, table.TAKEN, len(table.UNASKED))
    return Kind("output")


def classify_in_git(git_dir: str, rest: str, mode: int) -> Kind:
    """Return what something in a git directory is that a sandbox could write to."""
    first = rest.partition("/")[0]
    is_directory = mode & KIND == IS_DIRECTORY
    ordinary = is_directory or (mode & KIND == IS_FILE and (first in table.GIT_TREES or rest in table.GIT_FILES))
    if _git_part(rest) is not None or rest in _SHAPE or not ordinary:
        return Kind("repository", git_dir)
    return Kind("output", git_dir)


def makes_repository(rest: str) -> bool:
    """Return whether a path in a directory makes it a repository, or is obeyed in one."""
    return rest in _SHAPE or _git_part(rest) is not None


def rank_part(rest: str) -> int:
    """Return what is shown first: what is obeyed in a repository, before what only makes one."""
    return int(_git_part(rest) is None)


def _git_part(rest: str) -> tuple[str, str] | None:
    return next((row for row in table.GIT_PARTS if rest == row[0] or rest.startswith(f"{row[0]}/")), None)
