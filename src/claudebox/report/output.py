"""Build output in a project: directories that a tool can make again, and what git ignores.

An agent writes in the same tree, so a rule or a tag that changed in the session does not count, unless the directory
that it stands in is new as a whole.
"""

from __future__ import annotations

import os

from claudebox.files import Closing, open_beneath, read_at
from claudebox.report import tree
from claudebox.report.globs import fits_path, parse_glob
from claudebox.tables.reported_paths import OUTPUT, UNASKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.report.globs import Glob
    from claudebox.undo.session import Listing, Names

    Rule = tuple[tuple[Glob | None, ...], bool, bool]  # what it matches, whether it ignores, directories alone

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
                Closing(os.open(self._root or "/", tree.DIRECTORY)) as top,
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
