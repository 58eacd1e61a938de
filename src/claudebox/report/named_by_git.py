"""Files of the project that git obeys in a nested repository or worktree, because its settings say so.

In the project's own repository such files are protected; here those that the agent made or changed are put aside.
"""

from __future__ import annotations

import os

from claudebox.console import shorten
from claudebox.facts.git_executed import name_executed, read_user_rows
from claudebox.files import open_up, read_small, real_path
from claudebox.report.nested_git import bound, open_directory, rename_aside, show
from claudebox.tables.project_paths import ASIDE
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.facts.git_executed import Kept
    from claudebox.report.sweep import Listing

_GIT = (".git/d", ".git", ".git/l", ".git/x")
_MOST = 500  # repositories
_LINE = 8192
_HEADS = ("/HEAD", "/index", "/packed-refs")
_STORES = ("/refs/", "/objects/")
_LARGEST = 1 << 20  # of a file that is compared


class Named(Value):
    """Why git obeys a path."""

    why: str
    checkout: str = ""  # the directory that git works in there
    whole: bool = False  # nothing of it is put aside: nobody can tell what is obeyed, or whose it is
    only_told: bool = False  # nothing is put aside


class Obeyed(Value):
    """What git obeys below the project."""

    by_path: dict[str, Named]
    anyway: tuple[tuple[str, Named], ...]  # what counts though it may not have changed


class Known(Value):
    """What is known of the paths below the project."""

    listing: Listing
    changed: set[str]
    was_missing: Callable[[str], bool]

    def is_new(self, path: str) -> bool:
        """Return whether something has been made since."""
        return path in self.changed and self.was_missing(path)

    def list_files(self, path: str) -> Iterator[str]:
        """Yield everything below a path that is no directory, or the path itself."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            names = self.listing.get(path, (0, None))[1]
            if names is None:
                yield path
            for name, _, letter in (entry.partition("/") for entry in names or ()):
                if letter == "d":
                    waiting.append(f"{path}/{name}")
                else:
                    yield f"{path}/{name}"

    def find_moved(self) -> set[str]:
        """Return the directories whose refs, index or objects have changed, if they are git directories."""
        found = {path.rpartition("/")[0] for path in self.changed if path.endswith(_HEADS)}
        for path in self.changed:
            for part in _STORES:
                position = path.find(part)
                while position > 0:
                    found.add(path[:position])
                    position = path.find(part, position + 1)
        return found


def find_named(workdir: str, git_dir: str, home: str, known: Known) -> Obeyed:
    """Return what git obeys below the project; `git_dir` is that of the project.

    The agent's own settings are put aside anyway: in a repository that is new those of the user alone count, and of
    settings that it changed, which may be very many, only where hooks are. Around what is older a new checkout makes
    something that is obeyed; and commits of a repository bring back what was put aside.
    """
    found: dict[str, Named] = {}
    anyway: list[tuple[str, Named]] = []
    moved: set[str] | None = None
    user = read_user_rows(home, dict(os.environ))
    for directory in (*([""] if git_dir else []), *_find_checkouts(known)):
        checkout = f"{workdir}/{directory}".rstrip("/")
        own, common = _find_git_dir(checkout)
        files = [path.removeprefix(f"{workdir}/") for path in (f"{common}/config", f"{own}/config.worktree")]
        new = common != git_dir and known.is_new(files[0])
        fresh = bool(directory) and known.is_new(f"{directory}/.git")
        where = f", in `{shorten(directory, 200)}`" if directory else ""
        inner: list[str] = []
        kept: Kept = "none" if new else "hooks" if not known.changed.isdisjoint(files) else "all"
        for path, reason in name_executed(checkout, common, own, home, user, kept=kept):
            if path.startswith(f"{workdir}/") and not path.startswith((f"{own}/", f"{common}/")):
                # In the project itself only what was missing can be new: a branch of the user may have it.
                whole = not directory or f"{checkout}/".startswith(f"{path}/")
                below = path[len(workdir) + 1 :]
                named = found.setdefault(below, Named(f"{reason}{where}", checkout, whole))
                anyway += ((name, named) for name in (known.list_files(below) if fresh and not whole else ()))
                inner += [path[len(checkout) + 1 :]] if path.startswith(f"{checkout}/") else []
        if inner and directory:
            moved = known.find_moved() if moved is None else moved
        if inner and directory and moved and common.removeprefix(f"{workdir}/") in moved:
            what = shorten(", ".join(f"`{name}`" for name in sorted(set(inner))), 200)
            why = f"has other commits or another index now, and git obeys {what} there: look before you check out"
            anyway.append((directory, Named(why, checkout, only_told=True)))
    return Obeyed(found, tuple(anyway))


def put_aside(root: str, rows: Iterable[tuple[str, Named]], is_writable: Callable[[str], bool]) -> list[str]:
    """Rename what the agent has made or changed of that, and say what; a file that the `root` has is the user's."""
    done: dict[str, list[str]] = {}
    failed, told = [], []
    for path, named in rows:
        if named.only_told:
            told.append(f"{show(path, root)} {named.why}")
            continue
        twin = f"{root}{path[len(named.checkout) :]}" if path.startswith(f"{named.checkout}/") else path
        if named.whole or not is_writable(path) or (not is_writable(twin) and _is_same(path, twin)):
            continue
        try:
            parent = open_directory(os.path.dirname(path))
            try:
                open_up(parent)
                rename_aside(parent, os.path.basename(path))
            finally:
                os.close(parent)
            done.setdefault(named.why, []).append(show(path, root))
        except FileNotFoundError:  # it went with the directory around it
            continue
        except OSError as error:
            failed.append(f"{show(path, root)} cannot be renamed ({error.strerror}), and {named.why}: remove it")
    lines = [f"put aside as *{ASIDE}, since {why}: {shorten(', '.join(paths), 300)}" for why, paths in done.items()]
    return bound([*failed, *lines, *told], "repositories")


def _is_same(path: str, twin: str) -> bool:
    if os.path.islink(path) and os.path.islink(twin):  # where it leads to is judged by itself
        return os.readlink(path) == os.readlink(twin)
    content = read_small(path, limit=_LARGEST)
    return content is not None and content == read_small(twin, limit=_LARGEST)


def _find_checkouts(known: Known) -> list[str]:
    """Return the checkouts, those of the user first: nobody can make so many that they are overlooked."""
    listing = known.listing.items()
    rows = (path for path, (_, names) in listing if path and names and any(name in names for name in _GIT))
    return sorted(rows, key=lambda path: (known.is_new(f"{path}/.git"), path.count("/"), path))[:_MOST]


def _find_git_dir(checkout: str) -> tuple[str, str]:
    """Return the git directory of a checkout, and the one that it shares with others."""
    git_dir = real_path(f"{checkout}/.git")
    for text in _read_lines(git_dir, "gitdir: "):
        git_dir = real_path(os.path.join(checkout, text))
    for text in _read_lines(f"{git_dir}/commondir", ""):
        return git_dir, real_path(os.path.join(git_dir, text))
    return git_dir, git_dir


def _read_lines(path: str, prefix: str) -> Iterator[str]:
    text = os.fsdecode(read_small(path, limit=_LINE) or b"").rstrip("\r\n")
    if text.startswith(prefix) and text and "\0" not in text:
        yield text[len(prefix) :]
