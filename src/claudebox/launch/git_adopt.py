"""Repositories that the agent made: one where the project had none, and submodules that it added.

The real git directory is written by hand, with a configuration of ours, and stays empty until the import fills it; so
nothing that the agent wrote is executed on the host. Only after a session, when nobody can change anything any more.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from claudebox import state, syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import identify, mode_of, open_beneath, read_at, replace_file
from claudebox.launch import git_cleanup, git_state
from claudebox.launch.git_names import objection, objection_to_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.launch.git_state import Layout

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PARTS = ("objects/info", "objects/pack", "refs/heads", "refs/tags", "logs", "info")
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
_DIGITS = 16
_MOST_MODULES = 64


def adopt_repository(path: str) -> bool:
    """Make a git directory for a project that had none, if the agent has made one inside; return whether it is there.

    It is built beside and renamed into place; where that was cut off, the next attempt goes on.
    """
    layout = git_state.read_layout(path)
    place = f"{layout.work_tree}/.git"
    built = f"{place}.claudebox"
    if layout.common not in ("", place) or not _holds_work(path, "own"):
        return False
    if layout.common and os.path.lexists(f"{place}/HEAD"):
        return True
    if git_state.find_work_tree(layout) not in (None, identify(layout.work_tree)):
        raise ClaudeboxError(
            f"a repository was made inside, and stays there: `{layout.work_tree}` was replaced or moved"
        )
    try:
        git_cleanup.remove(built)
        if not _is_free(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)
        _make(built, f"{path}/own", _CONFIG)
        known = git_state.describe_identities(*map(identify, (built, layout.work_tree)))
        made = layout.replace(common=place, git_dir=place, stores=(f"{place}/objects",), identities=known)
        _write(path, made, built)
        os.rename(built, place)
    except OSError as error:
        _remove_quietly(built)
        raise ClaudeboxError(
            f"a repository was made inside, and `{place}` cannot be made: {error.strerror}; "
            "`claudebox --import` tries it again"
        ) from None
    return True


def _remove_quietly(path: str) -> None:
    try:
        git_cleanup.remove(path)
    except OSError:
        return  # the next attempt does it


def forget_repository(path: str) -> None:
    """Empty what was kept for a project without a repository, now that it has one."""
    git_cleanup.remove(f"{path}/own")
    os.mkdir(f"{path}/own", 0o700)
    _write(path, git_state.read_layout(path).replace(common="", git_dir="", stores=(), identities=()))


def adopt_submodules(path: str) -> list[str]:
    """Make a git directory for each submodule that the agent has added; return their private directories."""
    layout = git_state.read_layout(path)
    if git_state.is_replaced(layout):  # the import says so
        return []
    made = []
    inside = os.path.normpath(f"{path}/own/{layout.checkout}/modules")
    for name, checkout in _new_modules(path, layout):
        place = f"{layout.git_dir}/modules/{name}"
        if not os.path.lexists(place):
            built = f"{layout.git_dir}/claudebox.module"
            relative = os.path.relpath(f"{layout.work_tree}/{checkout}", place)
            git_cleanup.remove(built)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _make(built, f"{inside}/{name}", f"{_CONFIG}\tworktree = {quote(relative)}\n")
            inner = layout.replace(
                common=place, git_dir=place, work_tree=f"{layout.work_tree}/{checkout}", stores=(f"{place}/objects",),
                depth=layout.depth + 1, module=name, only="",
                identities=git_state.describe_identities(identify(built), None),
            )  # fmt: skip
            private = f"{os.path.dirname(path)}/{state.name_git_directory(built, built)}"
            if os.path.lexists(f"{private}/own"):  # of a git directory that is gone, whose number this one has
                os.rename(private, f"{private}.{time.time_ns()}")
            os.makedirs(private, mode=0o700, exist_ok=True)
            _write(private, inner, built)
            os.rename(built, place)
        private = f"{os.path.dirname(path)}/{state.name_git_directory(place, place)}"
        around = open_below(inside, os.path.dirname(name))  # no link of the agent may lead it away
        try:
            os.rename(os.path.basename(name), f"{private}/own", src_dir_fd=around)
        finally:
            os.close(around)
        made.append(private)
    return made


def _is_new(path: str, place: str) -> bool:
    """Return whether a submodule has no git directory yet, or one that an import has made and not filled."""
    if not os.path.lexists(place):
        return True
    try:
        private = f"{os.path.dirname(path)}/{state.name_git_directory(place, place)}"
    except OSError:
        return False
    return git_state.has_state(private) and not os.path.lexists(f"{private}/own")


def _new_modules(path: str, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the name and the checkout of each submodule that only the agent has: a gitfile leads to it."""
    for checkout in _gitfiles(layout.work_tree):
        gitfile = _read_below(layout.work_tree, f"{checkout}/.git")
        if gitfile is None:  # it is not initialised outside
            inside = own_checkout(path, layout.replace(work_tree=f"{layout.work_tree}/{checkout}"))
            gitfile = _read_below(os.path.dirname(path), os.path.relpath(f"{inside}/.git", os.path.dirname(path)))
        content = (gitfile or b"").decode("utf-8", "surrogateescape")
        target = os.path.normpath(f"{layout.work_tree}/{checkout}/{content.removeprefix('gitdir: ').rstrip()}")
        name = target.removeprefix(f"{layout.git_dir}/modules/")
        if not content.startswith("gitdir: ") or name == target or objection(f"refs/heads/{name}"):
            continue
        own = os.path.normpath(f"{layout.checkout}/modules/{name}")
        if _is_new(path, f"{layout.git_dir}/modules/{name}") and _holds_work(f"{path}/own", own):
            yield name, checkout


def own_checkout(path: str, layout: Layout) -> str:
    """Return what stands inside in the place of a submodule that is not initialised outside."""
    return f"{os.path.dirname(path)}/checkouts/{syscalls.sha256(os.fsencode(layout.work_tree))[:_DIGITS]}"


def _gitfiles(work_tree: str) -> Iterator[str]:
    """Yield the paths that `.gitmodules` names, if they are plain."""
    content = (_read_below(work_tree, ".gitmodules") or b"").decode("utf-8", "surrogateescape")
    rows = [row.strip() for row in content.split("\n")][: _MOST_MODULES * 16]
    for row in rows:
        key, _, value = row.partition("=")
        checkout = value.strip().strip('"')
        plain = checkout.isprintable() and checkout == os.path.normpath(checkout) and checkout[:1] not in "/.-"
        if key.strip() == "path" and plain:
            yield checkout


def open_below(base: str, path: str) -> int:
    """Open a directory beneath one of ours, through no link."""
    top = os.open(base, _DIRECTORY)
    try:
        return open_beneath(top, path, listed=True)
    finally:
        os.close(top)


def _read_below(base: str, path: str) -> bytes | None:
    """Return a file beneath a directory, through no link."""
    try:
        directory = open_below(base, os.path.dirname(path))
    except OSError:
        return None
    try:
        return read_at(directory, os.path.basename(path))
    finally:
        os.close(directory)


def _holds_work(base: str, path: str) -> bool:
    """Return whether a directory beneath one of ours is a repository with something in it."""
    try:
        directory = open_below(base, path)
    except OSError:
        return False
    try:
        names = os.listdir(directory)
        parts = [os.lstat(name, dir_fd=directory).st_mode for name in ("refs", "objects") if name in names]
        return (
            len(parts) == 2 and all(map(stat.S_ISDIR, parts)) and not {"index", "packed-refs", "logs"}.isdisjoint(names)
        )
    finally:
        os.close(directory)


def _is_free(place: str) -> bool:
    """Return whether nothing is there but empty directories, of the sandbox or of an attempt that failed."""
    if not stat.S_ISDIR(mode_of(place)):
        return not os.path.lexists(place)
    if any(names for _, _, names in os.walk(place)):
        return False
    git_cleanup.remove(place)
    return True


def _make(place: str, own: str, config: str) -> None:
    for part in _PARTS:
        os.makedirs(f"{place}/{part}")
    descriptor = os.open(place, _DIRECTORY)
    try:
        head = (_read_below(own, "HEAD") or b"").decode("utf-8", "surrogateescape").strip()
        branch = head.removeprefix("ref: ")
        plain = head.startswith("ref: refs/heads/") and not objection_to_new(branch)
        replace_file(descriptor, "HEAD", f"ref: {branch if plain else 'refs/heads/main'}\n".encode())
        replace_file(descriptor, "config", config.encode("utf-8", "surrogateescape"))
        os.chmod("config", 0o644, dir_fd=descriptor)
        os.chmod("HEAD", 0o644, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _write(path: str, layout: Layout, built: str = "") -> None:
    """Write what set-up would have written: what is built is empty, so there is nothing in common but HEAD."""
    head = (_read_below(built, "HEAD") if built else b"") or b""
    git_state.write_state(path, git_state.State(layout))
    git_state.write_synced(path, head=head.strip(), index=b"")


def quote(value: str) -> str:
    """Return a value as it stands in a configuration of git."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
