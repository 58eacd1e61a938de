"""What kind of change something is: how dangerous it is to use the host's tools beside it, and why.

Known dangers are named, what is known to be harmless is counted, and what is neither is shown.
"""

from __future__ import annotations

import sys

from claudebox.report.tree import IS_DIRECTORY, IS_FILE, IS_LINK, KIND
from claudebox.tables import reported_paths as table
from claudebox.tables.secret_patterns import file_looks_secret
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# In the order of their danger, with what is said about them.
HEADINGS = {
    "protected": "protected, and changed by something outside of the sandbox, or since it was opened",
    "repository": "repositories that are new or changed: git on the host obeys what is left in them",
    "git": "left in the git directory",
    "closed": "directories that denied you reading, and were opened to be looked at",
    "privilege": "files that run with the rights of their owner",
    "reported": "run or obeyed by tools of the host",
    "program": "programs and scripts",
    "socket": "sockets, pipes and devices",
    "link": "links that lead out of the project, or nowhere",
    "secret": "files that are named like secrets",
    "unknown": "of a kind that is not known to be harmless",
    "deleted": "deleted",
}
HARMLESS = "harmless"
_SET_ID = 0o6000
_SHAPE = frozenset(("HEAD", "objects", "refs"))


class Kind(Value):
    """A kind of change."""

    name: str  # one of HEADINGS, or HARMLESS
    group: str = ""  # what it is shown with: a repository, a tree, a name
    why: str = ""
    rank: int = 0  # within its kind; the lowest is shown first


_NOTHING = Kind(HARMLESS)


def _table() -> tuple[dict[str, tuple[int, str]], dict[str, tuple[int, str]], dict[str, tuple[int, str]]]:
    names = {name: (10 * index, why) for index, (why, text) in enumerate(table.NAMES) for name in text.split()}
    trees = {name: (1 + index, why) for index, (why, text) in enumerate(table.TREES) for name in text.split()}
    ends = {name: (91 + index, why) for index, (why, text) in enumerate(table.ENDS) for name in text.split()}
    return names, trees, ends


_NAMES, _TREES, _ENDS = _table()
_ENDINGS = tuple(_ENDS)
_PROGRAMS = tuple(table.PROGRAMS.split())
_HARMLESS = frozenset(table.HARMLESS.split())


def classify(path: str, mode: int, leads_out: Callable[[str], str]) -> Kind:
    """Return what something outside of git directories is; `leads_out` says where a link leads that leaves."""
    *above, name = path.split("/")
    lower = name.lower()
    kind = mode & KIND
    if kind == IS_FILE and mode & _SET_ID:
        return Kind("privilege", path)
    if kind == IS_DIRECTORY:  # what counts is in it
        return _NOTHING
    found = _reported(path, above, lower)
    if found is not None:
        return found
    if kind == IS_LINK:
        target = leads_out(path)
        if target:
            return Kind("link", path, f"leads to {target}")
    elif kind != IS_FILE:
        return Kind("socket", path)
    if file_looks_secret(lower):
        return Kind("secret", path)
    if kind == IS_FILE and (mode & 0o111 or lower.endswith(_PROGRAMS)):
        return Kind("program", path)
    return _NOTHING if _is_harmless(above, lower) else Kind("unknown", path)


def _reported(path: str, above: list[str], lower: str) -> Kind | None:
    for number, part in enumerate(above):
        found = _TREES.get(part.lower())
        if found is not None:
            return Kind("reported", "/".join(above[: number + 1]) + "/", found[1], found[0])
    found = _TREES.get(lower)
    if found is not None:
        return Kind("reported", path, found[1], found[0])
    found = _NAMES.get(lower)
    if found is not None:
        return Kind("reported", lower, found[1], found[0])
    if lower.endswith(_ENDINGS):
        end = next(end for end in _ENDINGS if lower.endswith(end))
        return Kind("reported", f"*{end}", _ENDS[end][1], _ENDS[end][0])
    if not above and lower.endswith(".py") and lower[:-3] in sys.stdlib_module_names:
        return Kind("reported", lower, "python that is started here takes it for a module of its own", 92)
    return None


def _is_harmless(above: list[str], lower: str) -> bool:
    if any(part.startswith(".") and part.lower() not in table.CACHES for part in above):
        return False
    if lower in table.HARMLESS_NAMES or any(part in table.CACHES for part in above):
        return True
    stem, dot, ending = lower.rpartition(".")
    return bool(dot and stem) and not lower.startswith(".") and ending in _HARMLESS


def classify_in_git(git_dir: str, rest: str, mode: int) -> Kind:
    """Return what something in a git directory is that a sandbox could write to."""
    first = rest.partition("/")[0]
    is_directory = mode & KIND == IS_DIRECTORY
    ordinary = is_directory or (mode & KIND == IS_FILE and (first in table.GIT_TREES or rest in table.GIT_FILES))
    if _git_part(rest) is not None or rest in _SHAPE or not ordinary:
        return Kind("repository", git_dir)
    return _NOTHING


def makes_repository(rest: str) -> bool:
    """Return whether a path in a directory makes it a repository, or is obeyed in one."""
    return rest in _SHAPE or _git_part(rest) is not None


def rank_part(rest: str) -> int:
    """Return what is shown first: what is obeyed in a repository, before what only makes one."""
    return int(_git_part(rest) is None)


def _git_part(rest: str) -> tuple[str, str] | None:
    return next((row for row in table.GIT_PARTS if rest == row[0] or rest.startswith(f"{row[0]}/")), None)
