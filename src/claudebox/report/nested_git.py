"""Repositories that an agent made or changed in the project: what git of the host would run of them is put aside.

Git enters a `.git` from above wherever something that is checked out has a gitlink, on whichever branch that is, and
does what its configuration and hooks say. So it does not matter where gitlinks are: no `.git` that was writable inside
keeps anything that names a program, or leads elsewhere; nor does any other directory that has the shape of one
(`git_shapes`). What `git clone` or `git init` has made stays as it is.
"""

from __future__ import annotations

import os
import stat

from claudebox.console import shorten
from claudebox.files import open_beneath, open_up, read_at, real_path, replace_file
from claudebox.report.git_shapes import OBEYED, has_shape
from claudebox.report.plain_config import clean_config, is_in_git, read_addresses
from claudebox.report.tree import DIRECTORY
from claudebox.tables.project_paths import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_STATES = ("rebase-merge", "rebase-apply", "sequencer")  # going on with them runs what is listed there
_CONFIG = ("config", "config.worktree")
_CONFIG_LIMIT = 1 << 20
_MOST, _DEEPEST = 1000, 12  # git directories in one; names of submodules may hold slashes
_MOST_LINES = 20


def disarm(
    root: str,
    changed: Iterable[str],
    shapes: Mapping[str, Iterable[str]],
    is_writable: Callable[[str], bool],
    known: Iterable[str],
    standing: frozenset[str] = frozenset(),
    roots: tuple[str, ...] = (),
) -> list[str]:
    """Put aside what git would run, given everything that changed in a `.git`; return what the user should know.

    Paths below the `root` are shown relative to it. `shapes` are git directories of other names with what changed.
    `is_writable`: the agent could change a path of the host. `known` are real git directories, which it could not.
    `standing` are configurations that may have been there before; `roots` is all that was looked at besides.
    """
    work = _Disarming(changed, shapes, is_writable, tuple(known), standing, (root, *roots))
    work.run()
    told = "since git of the host would run or obey it"
    # What is still dangerous comes first: what was put aside must not push it off the screen.
    lines = [f"{show(place, root)} cannot be examined ({why}): look at it before git of the host does"
             for place, why in work.closed]  # fmt: skip
    lines += [f"{show(place, root)} has another configuration now: {shorten(', '.join(rows), 300)}"
              for place, rows in work.addresses.items() if rows]  # fmt: skip
    lines += [f"{show(place, root)}: put aside as *{ASIDE}, {told}: {shorten(', '.join(names), 300)}"
              for place, names in work.aside.items()]  # fmt: skip
    return bound(lines, "repositories")


def bound(lines: list[str], what: str) -> list[str]:
    """Return as many lines as fit on a screen, and how many more there are."""
    more = [f"and {len(lines) - _MOST_LINES} other {what}"] if len(lines) > _MOST_LINES else []
    return [*lines[:_MOST_LINES], *more]


def put_links_aside(root: str, paths: Iterable[str], is_hidden: Callable[[str], bool]) -> list[str]:
    """Rename links that lead to where the agent could write unseen: a git directory there would never be examined."""
    lines, failed = [], []
    for path in paths:
        if not os.path.islink(path) or not is_hidden(real_path(path)):
            continue
        what = f"{show(path, root)} led to a directory of claudebox's own"
        try:
            parent = open_directory(os.path.dirname(path))
            try:
                open_up(parent)
                name = rename_aside(parent, os.path.basename(path))
            finally:
                os.close(parent)
            lines.append(f"{what}: renamed to `{shorten(name, 200)}`")
        except OSError as error:
            failed.append(f"{what} and cannot be renamed ({error.strerror}): remove it before git follows it")
    return bound([*failed, *lines], "links")


def rename_aside(directory: int, name: str) -> str:
    """Give an entry of a directory a name that nothing obeys, and return it."""
    free = f"{name}{ASIDE}"
    if _is_there(directory, free):
        free += f".{os.urandom(8).hex()}"
    os.rename(name, free, src_dir_fd=directory, dst_dir_fd=directory)
    return free


def show(place: str, root: str) -> str:
    """Return a path as it is shown, relative to the project where it lies in it."""
    return f"`{shorten('.' if place == root else place.removeprefix(f'{root}/'), 200)}`"


class _Disarming:
    def __init__(
        self,
        changed: Iterable[str],
        shapes: Mapping[str, Iterable[str]],
        is_writable: Callable[[str], bool],
        known: tuple[str, ...],
        standing: frozenset[str],
        roots: tuple[str, ...],
    ) -> None:
        self._is_writable, self._known = is_writable, known
        self._standing, self._roots = standing, roots
        self.addresses: dict[str, list[str]] = {}  # of repositories whose configuration was changed
        self._places: set[str] = set()
        self._touched: set[str] = set()  # what changed in a `.git`, and the directories around it
        self._visited: set[str] = set()  # git directories that were examined
        self._left = 0  # of those in one `.git`
        self.aside: dict[str, list[str]] = {}
        self.closed: list[tuple[str, str]] = []
        for path in changed:
            self._take(path)
        self._shapes = {place for place in shapes if os.path.basename(place).lower() != ".git"}
        for place in self._shapes:
            parts = (path[len(place) + 1 :].partition("/")[0] for path in shapes[place])
            self._touched.update(f"{place}/{part}" for part in parts)

    def _take(self, path: str) -> None:
        while path not in self._touched and is_in_git(path):
            self._touched.add(path)
            if path.rpartition("/")[2].lower() == ".git":
                self._places.add(path)
            path = path.rpartition("/")[0]

    def run(self) -> None:
        places = [place for place in sorted(self._places | self._shapes) if self._is_writable(place)]
        for at_last in (False, True):  # where a file leads is known when all directories have been examined
            for place in places:
                try:
                    self._examine(place, files=at_last)
                except FileNotFoundError:
                    continue
                except (OSError, ValueError) as error:
                    why = (error.strerror if isinstance(error, OSError) else "") or str(error)
                    self.closed += [(place, why)] if (place, why) not in self.closed else []

    def _examine(self, place: str, *, files: bool) -> None:
        parent, name = open_directory(os.path.dirname(place)), os.path.basename(place)
        try:
            mode = os.lstat(name, dir_fd=parent).st_mode
            if stat.S_ISREG(mode) != files:
                return
            if place in self._shapes:
                if place not in self._visited:  # as part of a `.git`
                    self._enter_shape(parent, name, place)
                return
            try:
                strange = not self._is_plain_file(parent, name, place) if files else not stat.S_ISDIR(mode)
                if stat.S_ISDIR(mode):
                    self._left = _MOST
                    self._enter(parent, name, place, "top")
            except (OSError, ValueError):  # what cannot be examined is not entered by git either
                strange = True
            if strange:
                open_up(parent)
                self._put_aside(parent, name, place)
        finally:
            os.close(parent)

    def _is_plain_file(self, parent: int, name: str, place: str) -> bool:
        """Return whether a `.git` file leads to what nobody inside could write, or to what was examined."""
        content = os.fsdecode(read_at(parent, name, limit=8192) or b"").rstrip("\r\n")
        if not content.startswith("gitdir: ") or not content.isprintable():
            return False
        target = os.path.normpath(os.path.join(os.path.dirname(place), content[8:]))
        if real_path(target) != target:
            return False
        ours = any(target.startswith((f"{known}/modules/", f"{known}/worktrees/")) for known in self._known)
        return target in self._visited or (ours and not self._is_writable(target))

    def _enter(self, parent: int, name: str, place: str, kind: str) -> None:
        descriptor = _listed(parent, name)
        try:
            if kind in ("modules", "worktrees"):
                self._go_down(descriptor, place, kind)
            else:
                self._directory(descriptor, place, kind)
        finally:
            os.close(descriptor)

    def _directory(self, directory: int, place: str, kind: str) -> None:
        """Examine a git directory: the `top` one, that of a `module`, or the entry of a `worktree`."""
        self._visited.add(place)
        self._left -= 1
        if not self._left:
            raise ValueError("too many git directories")
        for name in sorted(os.listdir(directory)):
            where, part = f"{place}/{name}", name.lower()
            is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode)
            if part in ("modules", "worktrees") and is_directory:
                self._enter(directory, name, where, part)
            elif where not in self._touched:
                continue
            elif part == "commondir":  # without it, this is no git directory
                if kind != "worktree" or read_at(directory, name) != b"../..\n":
                    raise ValueError("it leads elsewhere")
            elif part in _CONFIG:
                self._clean(directory, name, place, kind)
            elif part in ("modules", "worktrees", *_STATES) or (
                part == "hooks" and not (is_directory and _has_samples_only(directory, name))
            ):
                self._put_aside(directory, name, place)

    def _enter_shape(self, parent: int, name: str, place: str) -> None:
        """Examine a git directory of another name; other things may stand there, so it is never put aside itself."""
        descriptor = _listed(parent, name)
        try:
            names = sorted(os.listdir(descriptor))
            for entry in names if has_shape(names) else ():
                if f"{place}/{entry}" in self._touched:
                    self._disarm_part(descriptor, entry, place)
        finally:
            os.close(descriptor)

    def _disarm_part(self, directory: int, name: str, place: str) -> None:
        part, is_directory = name.lower(), stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode)
        if part in _CONFIG:
            if not is_directory:
                self._clean(directory, name, place, "shape")
            return
        in_worktrees = os.path.basename(os.path.dirname(place)).lower() == "worktrees"
        plain = (part == "hooks" and is_directory and _has_samples_only(directory, name)) or (
            part == "commondir" and in_worktrees and read_at(directory, name) == b"../..\n"
        )
        if part in OBEYED and not plain:
            self._put_aside(directory, name, place)

    def _go_down(self, directory: int, place: str, kind: str, depth: int = 0) -> None:
        """Find the git directories of submodules, whose names may hold slashes, or the entries of worktrees."""
        for name in sorted(os.listdir(directory)):
            where = f"{place}/{name}"
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                if where in self._touched:
                    self._put_aside(directory, name, place)
                continue
            descriptor = _listed(directory, name)
            try:
                if kind == "worktrees" or "head" in map(str.lower, os.listdir(descriptor)):
                    self._directory(descriptor, where, kind[:-1])
                elif depth < _DEEPEST:
                    self._go_down(descriptor, where, kind, depth + 1)
                else:
                    raise ValueError("directories in directories")
            finally:
                os.close(descriptor)

    def _clean(self, directory: int, name: str, place: str, kind: str) -> None:
        content = read_at(directory, name, limit=_CONFIG_LIMIT)
        plain = clean_config(content or b"", place if kind == "module" else "", lambda url: self._is_hidden(place, url))
        if f"{place}/{name}" in self._standing:
            self.addresses[place] = read_addresses(plain)
        if content != plain:
            self._put_aside(directory, name, place)
            replace_file(directory, name, plain)
            os.chmod(name, 0o644, dir_fd=directory)

    def _is_hidden(self, place: str, address: str) -> bool:
        """Return whether an address leads to a directory that the agent could write and nobody has looked at."""
        local = address.removeprefix("file://")
        if "://" in local or ":" in local.partition("/")[0]:
            return False
        targets = {real_path(os.path.join(base, local)) for base in (place, os.path.dirname(place))}
        seen = tuple(f"{root}/" for root in self._roots)
        return any(self._is_writable(path) and not f"{path}/".startswith(seen) for path in targets)

    def _put_aside(self, directory: int, name: str, place: str) -> None:
        rename_aside(directory, name)
        self.aside.setdefault(place, []).append(name)


def _has_samples_only(directory: int, name: str) -> bool:
    descriptor = _listed(directory, name)
    try:
        return all(entry.lower().endswith(".sample") for entry in os.listdir(descriptor))
    finally:
        os.close(descriptor)


def open_directory(path: str) -> int:
    """Open a directory, through no link."""
    top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(top, path.strip("/"))
    finally:
        os.close(top)


def _listed(parent: int, name: str) -> int:
    """Open a directory so that it can be listed and changed, which its mode may forbid."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        open_up(held)
        return os.open(".", DIRECTORY, dir_fd=held)
    finally:
        os.close(held)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True
