"""What in a checkout the configuration of git makes the host execute: hooks, further configuration, programs.

Read from files; git itself is never run in the project. Conditions of includes are taken as met: protecting a path
that git would not have read costs little.
"""

from __future__ import annotations

import os
import stat

from claudebox.files import read_small
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.facts.model import StubKind

    Parse = Callable[[bytes], list[tuple[str, str, str]]]

_CONFIG_LIMIT = 1 << 20
_MOST_FILES = 32  # of configuration that are read
_MOST_PATHS = 64
_MOST_CHECKOUTS = 128
# Values that are never run and often name a file of the project.
_INNOCENT = frozenset(("url", "pushurl", "fetch", "push", "merge", "remote", "name", "email", "template", "worktree",
                       "ignorerevsfile", "excludesfile", "blobs", "active", "branch"))  # fmt: skip


class Obeyed(Value):
    """A path that the host's git obeys because its configuration says so."""

    path: str
    stub: StubKind
    reason: str


class GitConfigReader:
    """Reads the configuration that applies to a checkout."""

    def __init__(self, parse: Parse, root: str, home: str) -> None:
        self._parse = parse
        self._root = root  # where git runs hooks and programs
        self._home = home
        self._seen: set[str] = set()
        self._found: dict[str, Obeyed] = {}
        self.keys: set[tuple[str, str]] = set()

    def read(self, path: str) -> None:
        """Take up one file of configuration and those that it includes."""
        if path in self._seen or len(self._seen) >= _MOST_FILES:
            return
        self._seen.add(path)
        for section, key, value in self._parse(read_small(path, limit=_CONFIG_LIMIT, follow=True) or b""):
            kind = section.partition(" ")[0].partition('"')[0].lower()
            self.keys.add((kind, key))
            if not value:
                continue
            if (kind, key) == ("core", "hookspath"):
                self._add(self._expand(value, self._root), "directory", "git runs the hooks in it")
            elif kind in ("include", "includeif") and key == "path":
                target = self._expand(value, os.path.dirname(path))
                self._add(target, "file", "git reads configuration from it")
                self.read(target)
            elif key not in _INNOCENT:
                self._add_programs(value)

    def found(self, bases: tuple[str, ...]) -> tuple[Obeyed, ...]:
        """Return what lies in one of these directories, or is one; elsewhere the agent cannot write."""
        rows = []
        for row in self._found.values():
            for path in (row.path, os.path.realpath(row.path)):
                if any(path == base or path.startswith(base.rstrip("/") + "/") for base in bases):
                    rows.append(row.replace(path=path))
                    break
        return tuple(rows[:_MOST_PATHS])

    def _expand(self, value: str, base: str) -> str:
        if value == "~" or value.startswith("~/"):
            value = self._home + value[1:]
        return os.path.normpath(os.path.join(base, value))

    def _add(self, path: str, stub: StubKind, reason: str) -> None:
        if "\0" not in path:
            self._found.setdefault(path, Obeyed(path, stub, reason))

    def _add_programs(self, value: str) -> None:
        """Take up files of the project that a command names: `./tools/clean.sh %f`, `!sh release.sh`."""
        if "/" not in value and "." not in value and not value.startswith("!"):
            return
        for word in value.lstrip("!").replace('"', " ").replace("'", " ").split()[:16]:
            path = self._expand(word, self._root)
            if path.startswith(self._root.rstrip("/") + "/") and _is_file(path):
                self._add(path, "none", "the configuration of git runs it")


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def of_person(home: str, environ: dict[str, str]) -> tuple[str, ...]:
    """Return the files of configuration that apply to all repositories of a person."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return "/etc/gitconfig", os.path.join(base, "git/config"), os.path.join(home, ".gitconfig")


def checkouts(parse: Parse, root: str) -> tuple[str, ...]:
    """Return the directories of submodules beneath a checkout: git looks into them from above."""
    rows = parse(read_small(os.path.join(root, ".gitmodules"), limit=_CONFIG_LIMIT) or b"")
    named = (value for section, key, value in rows if key == "path" and section.lower().startswith("submodule"))
    inside = root.rstrip("/") + "/"
    places = (os.path.normpath(os.path.join(root, value)) for value in named if value and "\0" not in value)
    return tuple(dict.fromkeys(place for place in places if place.startswith(inside)))[:_MOST_CHECKOUTS]
