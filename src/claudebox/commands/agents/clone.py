"""A clone of a repository for an agent, made by hand: refs are copied, objects stay where they are.

One git in a sandbox writes the files of the branch. Nothing of the project's own configuration is in force there, and
nothing of the project is mounted but its objects.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from claudebox.commands.agents import large_files
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.launch import git_copy
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits

if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit

_LIMITS = Limits(seconds=600.0, size=64 << 30)
_COMMON = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes")
_WRITERS = "4"  # at once: to make a file is to wait for the disk
# After what the repository says: a copy is an ordinary checkout.
_CONFIG = b"[core]\n\tbare = false\n\tsparseCheckout = false\n\thooksPath = /dev/null\n"


def make_clone(own: OwnGit, tools: Tools, path: str, name: str, start: str, most: int) -> tuple[str, bool]:
    """Fill the directory of a copy from a repository, on a new branch; return the commit that it begins with.

    `start` is a branch, a tag or a commit; nothing: what is checked out. Whether all large files came is returned, too:
    no more than `most` bytes of them do.
    """
    if own.ref_format != "files":
        raise ClaudeboxError(
            f"branches in the format `{own.ref_format}` cannot be copied",
            hint="`git refs migrate --ref-format=files` changes the format",
        )
    git_dir = f"{path}/.git"
    make_directory(own, git_dir, f"ref: refs/heads/{name}")
    head = (read_small(f"{own.git_dir}/HEAD") or b"").decode("utf-8", "replace").strip().removeprefix("ref: ")
    try:
        with open_git(own, tools, (path, path, git_dir), most) as box:
            if box.ask("rev-parse", "-q", "--verify", f"refs/heads/{name}") is not None:
                raise ClaudeboxError(
                    f"the repository has a branch `{name}` already",
                    hint=f"choose another name, and `--from {name}` to go on from there",
                )
            commit = (box.ask("rev-parse", "-q", "--verify", f"{start or head}^{{commit}}") or b"").decode().strip()
            if not commit:
                what = f"there is no branch `{start}`" if start else "there is no commit yet"
                raise ClaudeboxError(f"{what} in `{own.worktree}`")
            box.git("update-ref", f"refs/heads/{name}", commit)
            box.git("read-tree", "--reset", "-u", "HEAD")
            return commit, not large_files.were_too_many(box)
    except GitError as error:
        raise ClaudeboxError(f"the copy could not be made: {error}") from None


def open_git(own: OwnGit, tools: Tools, places: tuple[str, str, str], most: int) -> GitSandbox:
    """Return a git that can write to a copy, has a checkout and a git directory in it, and objects of the project."""
    copy, checkout, git_dir = places
    stores = (word for store, _ in own.stores for word in ("--ro-bind", store, store))
    mounts = ("--bind", copy, copy, *stores, *large_files.mounts(own.real))
    settings = large_files.variables(("checkout.workers", _WRITERS), most=most)
    environ = {"GIT_DIR": git_dir, "GIT_WORK_TREE": checkout, **settings}
    config = large_files.without_process(read_small(f"{git_dir}/config", limit=4 << 20) or b"")
    return GitSandbox(tools, mounts, environ, os.path.dirname(copy), _LIMITS, {f"{git_dir}/config": config})


def make_directory(own: OwnGit, git_dir: str, head: str, more: bytes = b"") -> None:
    """Make the git directory of a copy, with this HEAD and more configuration; objects stay where they are."""
    stores = tuple(outside for outside, _ in own.stores)
    for part in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        os.makedirs(f"{git_dir}/{part}")
    copier = git_copy.Copier(own.real, git_dir, own.identity)
    try:
        copier.files(_COMMON)
        plain = {
            path: value
            for path, value in copier.contents("refs")
            if path.startswith(("refs/heads/", "refs/tags/", "refs/remotes/"))
        }
        for path, value in plain.items():
            if value.startswith(b"ref:"):
                git_copy.write(f"{git_dir}/{path}", value + b"\n")
        git_copy.fold(
            f"{git_dir}/packed-refs", {path: value for path, value in plain.items() if not value.startswith(b"ref:")}
        )
    finally:
        copier.close()
    git_copy.write(f"{git_dir}/HEAD", f"{head}\n".encode())
    git_copy.write(f"{git_dir}/config", own.config + _CONFIG + more)
    git_copy.write(f"{git_dir}/objects/info/alternates", b"".join(os.fsencode(store) + b"\n" for store in stores))
    for store in stores:
        _keep_packs(f"{store}/pack", f"{git_dir}/objects/pack")


def _keep_packs(source: str, target: str) -> None:
    """Link the packs, so that a `git gc` in the project takes nothing away; nothing inside can write to them."""
    with contextlib.suppress(OSError), os.scandir(source) as entries:
        for entry in entries:
            if entry.name.startswith("pack-") and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another file system, or another owner
                    os.link(entry.path, f"{target}/{entry.name}", follow_symlinks=False)
