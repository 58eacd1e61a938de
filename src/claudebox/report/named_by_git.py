"""Files of the project that git obeys in a nested repository or worktree, because its settings say so.

In the project's own repository such files are protected; here those that the agent made or changed are put aside.
"""

from __future__ import annotations

import os

from claudebox.console import shorten
from claudebox.facts.git_executed import name_executed, read_user_rows
from claudebox.files import open_up, read_small, real_path
from claudebox.report.nested_git import ASIDE, bound, open_directory, rename_aside, show
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.facts.git_executed import Kept
    from claudebox.report.sweep import Listing

_GIT = (".git/d", ".git", ".git/l", ".git/x")
_MOST = 500  # repositories
_LINE = 8192
_LARGEST = 1 << 20  # of a file that is compared


class Named(Value):
    """Why git obeys a path."""

    why: str
    checkout: str = ""  # the directory that git works in there
    whole: bool = False  # all of the checkout would be obeyed, and nobody can tell what is


class Known(Value):
    """What is known of the paths below the project."""

    listing: Listing
    changed: set[str]
    was_missing: Callable[[str], bool]

    def is_new(self, path: str) -> bool:
        """Return whether something has been made since."""
        return path in self.changed and self.was_missing(path)


def find_named(workdir: str, git_dir: str, home: str, known: Known) -> dict[str, Named]:
    """Return what git obeys below the project, by path; `git_dir` is that of the project.

    The agent's own settings are put aside anyway: in a repository that is new those of the user alone count, and of
    settings that it changed, which may be very many, only where hooks are.
    """
    found: dict[str, Named] = {}
    user = read_user_rows(home, dict(os.environ))
    for directory in _find_checkouts(known):
        checkout = f"{workdir}/{directory}"
        own, common = _find_git_dir(checkout)
        files = [path.removeprefix(f"{workdir}/") for path in (f"{common}/config", f"{own}/config.worktree")]
        new = common != git_dir and known.is_new(files[0])
        kept: Kept = "none" if new else "hooks" if not known.changed.isdisjoint(files) else "all"
        for path, reason in name_executed(checkout, common, own, home, user, kept=kept):
            if path.startswith(f"{workdir}/") and not path.startswith((f"{own}/", f"{common}/")):
                whole = f"{checkout}/".startswith(f"{path}/")
                found.setdefault(path[len(workdir) + 1 :], Named(f"{reason}, in `{directory}`", checkout, whole))
    return found


def put_aside(root: str, rows: Iterable[tuple[str, Named]], is_writable: Callable[[str], bool]) -> list[str]:
    """Rename what the agent has made or changed of that, and say what; a file that the `root` has is the user's."""
    done: dict[str, list[str]] = {}
    failed = []
    for path, named in rows:
        twin = f"{root}{path[len(named.checkout) :]}"
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
    return bound([*failed, *lines], "repositories")


def _is_same(path: str, twin: str) -> bool:
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
