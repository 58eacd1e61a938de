"""What kind of change something is: who would run or obey it, and whether anybody has to ask for that."""

from __future__ import annotations

import os
import sys

from claudebox.base import trees
from claudebox.base.files import Closing, open_beneath, read_at
from claudebox.base.records import Value
from claudebox.base.trees import IS_DIRECTORY, IS_FILE, IS_LINK, KIND
from claudebox.tables import reported_paths
from claudebox.tables.reported_paths import OUTPUT, UNASKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from claudebox.undo.snapshot import Listing, Names

    Item = TypeVar("Item")
    Token = TypeVar("Token")
    Glob = tuple[str | None, ...]  # None: any characters; otherwise one of these, or with `^` in front none of these

    Rule = tuple[tuple[Glob | None, ...], bool, bool]  # what it matches, whether it ignores, directories alone


# Patterns of names and paths, matched in time that no pattern can make long: both may come from an agent.


def parse_glob(text: str) -> Glob:
    """Return the parts of a pattern for one name: `*`, `?`, `[abc]`, `[!abc]`, and characters."""
    found: list[str | None] = []
    at = 0
    while at < len(text):
        char, end = text[at], text.find("]", at + 2)
        if char == "*":
            found.append(None)
        elif char == "?":
            found.append("^")
        elif char == "[" and end > 0:
            inside = text[at + 1 : end]
            found.append(_span(f"^{inside[1:]}" if inside[0] in "!^" else inside))
            at = end
        else:
            at += char == "\\" and at + 1 < len(text)
            found.append("\\^" if text[at] == "^" else text[at])
        at += 1
    return tuple(found)


def _span(inside: str) -> str:
    """Return a class of characters with its ranges written out."""
    found, at = "", 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside) and ord(inside[at + 2]) < 0x3000:
            found += "".join(map(chr, range(ord(inside[at]), ord(inside[at + 2]) + 1)))
            at += 3
        else:
            found += inside[at]
            at += 1
    return found


def _is_one_of(char: str, token: str) -> bool:
    return char not in token[1:] if token.startswith("^") else char in token


def fits(name: str, glob: Glob) -> bool:
    """Return whether a name is as a pattern says."""
    return _fits(name, glob, _is_one_of)


def fits_path(parts: Sequence[str], globs: Sequence[Glob | None]) -> bool:
    """Return whether the parts of a path are as a pattern for each says; None stands for any parts."""
    return _fits(parts, globs, fits)


def _fits(items: Sequence[Item], tokens: Sequence[Token | None], is_one: Callable[[Item, Token], bool]) -> bool:
    """Go on after each star with the shortest that fits: never back beyond the last star."""
    here, at, retry, star = 0, 0, 0, -1
    while here < len(items):
        token = tokens[at] if at < len(tokens) else None
        if at < len(tokens) and token is None:
            star, retry = at, here
            at += 1
        elif token is not None and is_one(items[here], token):
            here, at = here + 1, at + 1
        elif star >= 0:
            retry += 1
            here, at = retry, star + 1
        else:
            return False
    return all(token is None for token in tokens[at:])


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


_UNASKED = _Names((why, names) for why, names, _ in reported_paths.UNASKED)
_TREES = {name: (rank, why) for rank, (why, _, names) in enumerate(reported_paths.UNASKED) for name in names.split()}
_ASKED = _Names(reported_paths.ASKED)
_FROM_OUTPUT = _Names((("", reported_paths.RUN_FROM_OUTPUT),))


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
        return Kind("asked", directory, reported_paths.PROGRAM, len(reported_paths.ASKED))
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
        return directory, len(reported_paths.UNASKED), "python that is started here takes it for a module of its own"
    if lower.startswith(".") and lower not in reported_paths.HARMLESS_DOTFILES and _ASKED.find(lower) is None:
        return directory, len(reported_paths.UNASKED) + 1, reported_paths.DOTFILE
    return None


def classify_output(kind: Kind, path: str, mode: int, how: str, is_program: Callable[[str], bool]) -> Kind:
    """Return what something is that lies in build output which was there before, given what it is elsewhere.

    `is_program`: a program of this name is found in PATH, too.
    """
    parent, _, name = path.rpartition("/")
    if kind.name in ("privilege", "socket", "link") or _FROM_OUTPUT.find(name.lower()) is not None:
        return kind
    runs = mode & KIND == IS_LINK or (mode & KIND == IS_FILE and mode & 0o111)
    if runs and parent.rpartition("/")[2].lower() in reported_paths.BINARIES and (how != "new" or is_program(name)):
        return Kind("unasked", parent, reported_paths.TAKEN, len(reported_paths.UNASKED))
    return Kind("output")


def classify_in_git(git_dir: str, rest: str, mode: int) -> Kind:
    """Return what something in a git directory is that a sandbox could write to."""
    first = rest.partition("/")[0]
    is_directory = mode & KIND == IS_DIRECTORY
    ordinary = is_directory or (
        mode & KIND == IS_FILE and (first in reported_paths.GIT_TREES or rest in reported_paths.GIT_FILES)
    )
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
    return next((row for row in reported_paths.GIT_PARTS if rest == row[0] or rest.startswith(f"{row[0]}/")), None)


# Build output in a project: directories that a tool can make again, and what git ignores.
#
# An agent writes in the same tree, so a rule or a tag that changed in the session does not count, unless the
# directory that it stands in is new as a whole.


IGNORED = "ignored files"
_OBEYED = frozenset(name for _, _, names in UNASKED for name in names.split())  # never output
_TAG, _RULES = "CACHEDIR.TAG", ".gitignore"
_LONGEST = 1 << 16  # bytes of a .gitignore


class Outputs:
    """Tells where output is."""

    def __init__(
        self, root: str, listing: Listing | Mapping[str, tuple[int, Names]], new: set[str], changed: set[str]
    ) -> None:
        """Take what stands in each directory, the directories that are new, and all that changed, below the root."""
        self._root, self._listing, self._new, self._changed = root, listing, new, changed
        self._known: dict[str, str] = {"": ""}  # directory -> the topmost one of output that it is or lies in
        self._rules: dict[str, list[Rule]] = {}
        self._around: dict[str, tuple[tuple[int, list[Rule]], ...]] = {}

    def find(self, path: str, *, is_directory: bool = False) -> tuple[str, bool]:
        """Return the topmost directory of output that a path lies in, and whether it is new; empty if in none."""
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
        names = self._listing.get(directory, (0, {}))[1] or ()
        tagged = _TAG in names and (directory in self._new or f"{directory}/{_TAG}" not in self._changed)
        return tagged or self._is_ignored(directory, is_directory=True)

    def _is_ignored(self, path: str, *, is_directory: bool) -> bool:
        """Return what the nearest rule says; whatever lies in an ignored directory was found with that."""
        parts = path.split("/")
        for count, rules in self._rules_around(path.rpartition("/")[0]):
            for globs, ignores, for_directories in reversed(rules):
                if (is_directory or not for_directories) and fits_path(parts[count:], globs):
                    return ignores
        return False

    def _rules_around(self, directory: str) -> tuple[tuple[int, list[Rule]], ...]:
        """Return the rules that count in a directory, the nearest first, each with how deep they stand."""
        waiting = []
        while directory not in self._around:
            waiting.append(directory)
            if not directory:
                break
            directory = directory.rpartition("/")[0]
        found = self._around.get(directory, ())
        for path in reversed(waiting):
            rules = self._rules_of(path)
            if rules:
                found = ((path.count("/") + 1 if path else 0, rules), *found)
            self._around[path] = found
        return found

    def _rules_of(self, directory: str) -> list[Rule]:
        if directory not in self._rules:
            path = f"{directory}/{_RULES}" if directory else _RULES
            names = self._listing.get(directory, (0, {}))[1] or ()
            stands = _RULES in names and path not in self._changed and directory not in self._new
            self._rules[directory] = self._read_rules(directory) if stands else []
        return self._rules[directory]

    def _read_rules(self, directory: str) -> list[Rule]:
        try:
            with (
                Closing(os.open(self._root or "/", trees.DIRECTORY)) as top,
                Closing(open_beneath(top, directory)) as above,
            ):
                content = read_at(above, _RULES, limit=_LONGEST) or b""
        except OSError:
            return []
        rows = content.decode("utf-8", "surrogateescape").split("\n")
        return [rule for row in rows if (rule := _parse(row.rstrip("\r"))) is not None]


def _parse(row: str) -> Rule | None:
    """Return the rule that a line of a .gitignore states; a pattern without a slash counts at any depth."""
    text = row.rstrip(" ")
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text.removeprefix("!")
    for_directories = text.endswith("/")
    text = text.rstrip("/")
    parts = text.removeprefix("/").split("/") if "/" in text else ["**", text]
    return tuple(None if part == "**" else parse_glob(part) for part in parts), ignores, for_directories
