"""Submodules of a copy: checked out from the git directories that the project has of them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from claudebox.commands.agents import clone, large_files
from claudebox.console import shorten
from claudebox.files import real_path
from claudebox.launch import git_copy
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits
from claudebox.launch.git_setup import describe_layout
from claudebox.launch.git_sides import Side, real_side
from claudebox.launch.git_submodules import GITLINK
from claudebox.plan import git_settings
from claudebox.report import tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.commands.agents.copies import Copy
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit

_HEX = frozenset("0123456789abcdef")


def fill(copy: Copy, rows: Sequence[OwnGit], tools: Tools, most: int) -> Iterator[str]:
    """Check out each submodule of a copy that the project has; yield what the user should know.

    `rows` has submodules before those that lie in them.
    """
    made = {"": (copy.path, f"{copy.path}/.git")}  # by place: where it is checked out, and its git directory
    links: dict[str, dict[str, str]] = {}
    for row in rows:
        around = max((place for place in made if _is_within(row.place, place)), key=len)
        above, git_dir = made[around]
        if around not in links:
            links[around] = _links(copy.path, git_dir, tools)
        checkout = os.path.normpath(f"{copy.path}/{os.path.relpath(row.worktree or '/', copy.source)}")
        commit = links[around].get(os.path.relpath(checkout, above), "")
        if not commit or not _HEX.issuperset(commit) or real_path(checkout) != checkout:
            continue  # the branch has no such submodule
        git_dir = f"{copy.path}/.git/{row.place}"
        try:
            yield from _check_out(row, tools, (copy.path, checkout, git_dir), commit, most)
            made[row.place] = (checkout, git_dir)
        except GitError as error:
            tree.remove(*os.path.split(git_dir))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{checkout}/.git")
            name = shorten(os.path.relpath(checkout, copy.path), 200)
            yield f"the submodule `{name}` is empty in the copy: {shorten(str(error), 200)}"


def find_work(copy: Copy, rows: Sequence[OwnGit], sources: Sequence[OwnGit], tools: Tools, limits: Limits) -> list[str]:
    """Return the submodules of a copy with commits that the project does not have."""
    found = []
    theirs = {row.place: row for row in sources}
    for row in rows:
        with _agent_side(copy, row, tools, limits) as side:
            side.begin_refs()
            side.read_refs()
            tips = sorted({*side.refs.values(), side.head()[1]} - {""})
        if tips and row.place in theirs:
            with real_side(tools, copy.project, describe_layout(theirs[row.place]), limits, "finish") as real:
                tips = real.lacks(tips)
        if tips:
            found.append(os.path.relpath(row.worktree, copy.path) if row.worktree else row.place)
    return found


def _agent_side(copy: Copy, row: OwnGit, tools: Tools, limits: Limits) -> Side:
    layout = describe_layout(row)
    stores = (word for store in layout.stores[1:] for word in ("--ro-bind", store, store))
    mounts = ("--ro-bind", copy.path, copy.path, *stores)
    return Side(GitSandbox(tools, mounts, {"GIT_DIR": row.real}, copy.project, limits), layout, row.real)


def _is_within(place: str, around: str) -> bool:
    return place.startswith(f"{around}/modules/" if around else "modules/")


def _links(copy: str, git_dir: str, tools: Tools) -> dict[str, str]:
    """Return path and commit of each submodule in what is checked out."""
    mounts = ("--ro-bind", copy, copy)
    with GitSandbox(tools, mounts, {"GIT_DIR": git_dir}, os.path.dirname(copy), Limits()) as box:
        raw = box.git("ls-files", "-s", "-z")
    found = {}
    for line in raw.split(b"\0"):
        head, _, path = line.partition(b"\t")
        mode, _, rest = head.decode("ascii", "replace").partition(" ")
        if mode == GITLINK:
            found[os.fsdecode(path)] = rest.partition(" ")[0]
    return found


def _check_out(row: OwnGit, tools: Tools, places: tuple[str, str, str], commit: str, most: int) -> Iterator[str]:
    _, checkout, git_dir = places
    place = git_settings.render([("core", "", "worktree", os.path.relpath(checkout, git_dir))])
    clone.make_directory(row, git_dir, commit, place)
    git_copy.write(f"{checkout}/.git", b"gitdir: " + os.fsencode(os.path.relpath(git_dir, checkout)) + b"\n")
    with clone.open_git(row, tools, places, most) as box:
        if box.ask("cat-file", "-e", f"{commit}^{{commit}}") is None:
            raise GitError("the project does not have its commit")
        box.git("read-tree", "--reset", "-u", "HEAD")
        if large_files.were_too_many(box):
            yield large_files.TOO_MANY
