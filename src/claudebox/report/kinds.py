"""What kind of change something is: which tools of the host would run or obey it, and whether they would ask."""

from __future__ import annotations

import os
import sys

from claudebox.base import trees
from claudebox.base.files import Closing, open_beneath, read_at
from claudebox.base.records import Value
from claudebox.base.trees import IS_DIRECTORY, IS_FILE, IS_LINK, KIND
from claudebox.git.config import compile_glob, compile_path, fits_path
from claudebox.tables import reported_paths
from claudebox.tables.reported_paths import OUTPUT, UNASKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from claudebox.git.config import Glob

    Rule = tuple[list[Glob | None], bool, bool]  # a glob for each part of a path, whether it ignores, directories only


# Kinds, the most dangerous first, with a heading for each.
HEADINGS = {
    "protected": "changed while you allowed it, or by the host",
    "repository": "repositories, new or changed",
    "git": "left in the git directory",
    "closed": "directories without read permission, opened to examine them",
    "privilege": "files that run with the rights of their owner",
    "unasked": "run or obeyed without being asked",
    "link": "links that lead out of the project, or nowhere",
    "socket": "sockets, pipes and devices",
    "asked": "run or obeyed when you build, test or start something",
    "own": "files",
    "output": "build output",
    "deleted": "deleted",
}
LOOK = ("protected", "repository", "git", "closed", "privilege", "unasked", "link", "socket")  # shown one by one
IGNORED = "ignored files"
_SET_ID = 0o6000
_SHAPE = frozenset(("HEAD", "objects", "refs"))
_OBEYED = frozenset(name for _, _, names in UNASKED for name in names.split())  # directories that are never output
_TAG, _RULES = "CACHEDIR.TAG", ".gitignore"
_LONGEST = 1 << 16  # bytes of a .gitignore


class Kind(Value):
    """A kind of change."""

    name: str  # one of HEADINGS
    group: str = ""  # a repository or directory that it is shown with
    why: str = ""
    rank: int = 0  # within its kind; the lowest is shown first


OWN = Kind("own")


class _Names:
    """Patterns of names, each with a reason and its rank."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._exact: dict[str, tuple[int, str]] = {}
        self._globs: list[tuple[str, str, tuple[int, str]]] = []
        for rank, (why, text) in enumerate(rows):
            for name in text.split():
                if "*" in name or "?" in name:
                    longest = max(name.replace("?", "*").split("*"), key=len)  # most names do not even contain this
                    self._globs.append((longest, name, (rank, why)))
                else:
                    self._exact.setdefault(name, (rank, why))

    def find(self, name: str) -> tuple[int, str] | None:
        """Return rank and reason of a name in lower case."""
        found = self._exact.get(name)
        return found or next(
            (row for part, glob, row in self._globs if part in name and compile_glob(glob)(name)), None
        )


_UNASKED = _Names((why, names) for why, names, _ in UNASKED)
_TREES = {name: (rank, why) for rank, (why, _, names) in enumerate(UNASKED) for name in names.split()}
_ASKED = _Names(reported_paths.ASKED)
_FROM_OUTPUT = _Names((("", reported_paths.RUN_FROM_OUTPUT),))


def classify(path: str, mode: int, leads_out: Callable[[str], str]) -> Kind:
    """Return the kind of something outside of git directories; `leads_out` returns the target of a link that leaves."""
    *above, name = path.split("/")
    lower, kind = name.lower(), mode & KIND
    directory = "/".join(above)
    if kind == IS_FILE and mode & _SET_ID:
        return Kind("privilege", directory, "runs with the rights of its owner")
    if kind == IS_DIRECTORY:  # what counts is in it
        return OWN
    found = _find_unasked(above, name)
    if found is not None:
        return found
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
        return Kind("asked", directory, reported_paths.PROGRAM, len(reported_paths.ASKED))
    return OWN


def _find_unasked(above: list[str], name: str) -> Kind | None:
    """Return the kind of a name that something runs or obeys unasked, at any depth or at the top."""
    for number, part in enumerate(above):
        if found := _TREES.get(part.lower()):
            return Kind("unasked", "/".join(above[: number + 1]), found[1], found[0])
    lower = name.lower()
    found = _TREES.get(lower) or _UNASKED.find(lower)
    if found is not None:
        return Kind("unasked", "/".join(above), found[1], found[0])
    if above:
        return None
    if lower.endswith(".py") and lower[:-3] in sys.stdlib_module_names:
        return Kind("unasked", "", "shadows a module of python's own", len(UNASKED))
    if lower.startswith(".") and lower not in reported_paths.HARMLESS_DOTFILES and _ASKED.find(lower) is None:
        return Kind("unasked", "", reported_paths.DOTFILE, len(UNASKED) + 1)
    return None


def classify_output(kind: Kind, path: str, mode: int, is_program: Callable[[str], bool]) -> Kind:
    """Return the kind of something in build output that was there before, given what it would be elsewhere.

    `is_program` tells whether the system has a program of this name: who starts that means no program of the project.
    """
    parent, _, name = path.rpartition("/")
    if kind.name in ("privilege", "socket", "link") or _FROM_OUTPUT.find(name.lower()) is not None:
        return kind
    runs = mode & KIND == IS_LINK or (mode & KIND == IS_FILE and mode & 0o111)
    if runs and parent.rpartition("/")[2].lower() in reported_paths.BINARIES and is_program(name):
        return Kind("unasked", parent, reported_paths.TAKEN, len(UNASKED))
    return Kind("output")


def adds_paths_only(root: str, path: str) -> bool:
    """Return whether a `.pth` has no code in it, which each start of python would run."""
    parent, _, name = path.rpartition("/")
    try:
        with Closing(os.open(root, trees.DIRECTORY)) as top, Closing(open_beneath(top, parent)) as above:
            content = read_at(above, name, limit=_LONGEST)
    except OSError:
        return False
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines() if content is not None else [b"import "]
    return not any(line.startswith((b"import ", b"import\t")) for line in lines)


def classify_in_git(git_dir: str, rest: str, mode: int) -> Kind:
    """Return the kind of something in a git directory that a sandbox could write to."""
    is_directory = mode & KIND == IS_DIRECTORY
    ordinary = is_directory or (
        mode & KIND == IS_FILE
        and (rest.partition("/")[0] in reported_paths.GIT_TREES or rest in reported_paths.GIT_FILES)
    )
    return Kind("repository" if makes_repository(rest) or not ordinary else "output", git_dir)


def makes_repository(rest: str) -> bool:
    """Return whether a path in a directory makes it a repository, or is obeyed in one."""
    return rest in _SHAPE or is_obeyed_in_git(rest)


def is_obeyed_in_git(rest: str) -> bool:
    """Return whether a later git command goes on with this part of a git directory, or obeys it."""
    return any(rest == part or rest.startswith(f"{part}/") for part in reported_paths.GIT_PARTS)


class Outputs:
    """Tells what is build output: directories that a tool can make again, and what git ignores.

    A rule or a tag that the session changed does not count, unless the directory around it is new as a whole.
    """

    def __init__(
        self, root: str, names_in: Callable[[str], Collection[str]], new: set[str], changed: Collection[str]
    ) -> None:
        """`names_in` lists a directory, `new` are directories, `changed` everything that changed."""
        self._root, self._names_in, self._new, self._changed = root, names_in, new, changed
        self._known: dict[str, str] = {"": ""}  # directory -> the topmost one of output that it is or lies in
        self._around: dict[str, tuple[tuple[int, list[Rule]], ...]] = {}

    def find(self, path: str, *, is_directory: bool = False) -> tuple[str, bool]:
        """Return the topmost directory of output around a path, and whether it is new; empty if there is none."""
        top = self._top(path if is_directory else path.rpartition("/")[0])
        if not top and not is_directory and self._is_ignored(path, is_directory=False):
            return IGNORED, False
        return top, top in self._new

    def _top(self, directory: str) -> str:
        waiting = []
        while directory not in self._known:
            waiting.append(directory)
            directory = directory.rpartition("/")[0]
        top = self._known[directory]
        for path in reversed(waiting):
            top = top or (path if self._is_output(path) else "")
            self._known[path] = top
        return top

    def _is_output(self, directory: str) -> bool:
        name = directory.rpartition("/")[2].lower()
        if name in OUTPUT or name in _OBEYED:
            return name in OUTPUT
        fresh = directory in self._new or f"{directory}/{_TAG}" not in self._changed
        return (fresh and _TAG in self._names_in(directory)) or self._is_ignored(directory, is_directory=True)

    def _is_ignored(self, path: str, *, is_directory: bool) -> bool:
        """Return what the nearest rule says; ignored directories around it were found before."""
        parts = path.split("/")
        for count, rules in self._rules_around(path.rpartition("/")[0]):
            for globs, ignores, for_directories in reversed(rules):
                if (is_directory or not for_directories) and fits_path(parts[count:], globs):
                    return ignores
        return False

    def _rules_around(self, directory: str) -> tuple[tuple[int, list[Rule]], ...]:
        """Return the rules that count in a directory with their depths, the nearest first."""
        waiting = []
        while directory not in self._around:
            waiting.append(directory)
            if not directory:
                break
            directory = directory.rpartition("/")[0]
        found = self._around.get(directory, ())
        for path in reversed(waiting):
            if rules := self._rules_of(path):
                found = ((path.count("/") + 1 if path else 0, rules), *found)
            self._around[path] = found
        return found

    def _rules_of(self, directory: str) -> list[Rule]:
        path = f"{directory}/{_RULES}" if directory else _RULES
        if _RULES not in self._names_in(directory) or path in self._changed or directory in self._new:
            return []
        try:
            with (
                Closing(os.open(self._root or "/", trees.DIRECTORY)) as top,
                Closing(open_beneath(top, directory)) as above,
            ):
                content = read_at(above, _RULES, limit=_LONGEST) or b""
        except OSError:
            return []
        rows = content.decode("utf-8", "surrogateescape").split("\n")
        return [rule for row in rows if (rule := _parse_rule(row.rstrip("\r"))) is not None]


def _parse_rule(row: str) -> Rule | None:
    """Return the rule in a line of a .gitignore; a pattern without a slash counts at any depth."""
    text = row.rstrip(" ")
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text.removeprefix("!")
    for_directories = text.endswith("/")
    text = text.rstrip("/")
    pattern = text.removeprefix("/") if "/" in text else f"**/{text}"
    return compile_path(pattern), ignores, for_directories
