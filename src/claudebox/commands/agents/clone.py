"""A clone of a repository for an agent, made by hand: refs are copied, objects stay where they are.

One git in a sandbox writes the files of the branch. Nothing of the project's own configuration is in force there, and
nothing of the project is mounted but its objects.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.launch import git_copy
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits

if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit

_LIMITS = Limits(seconds=600.0, size=64 << 30)
_COMMON = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes")
# After what the repository says: a copy is an ordinary checkout, and of its large files there are pointers at first.
_CONFIG = b"[core]\n\tbare = false\n\tsparseCheckout = false\n\thooksPath = /dev/null\n"
_POINTERS = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "filter.lfs.smudge",
    "GIT_CONFIG_VALUE_0": "",
    "GIT_CONFIG_KEY_1": "filter.lfs.process",
    "GIT_CONFIG_VALUE_1": "",
    "GIT_CONFIG_KEY_2": "filter.lfs.required",
    "GIT_CONFIG_VALUE_2": "false",
}


def make_clone(own: OwnGit, tools: Tools, path: str, name: str, start: str) -> str:
    """Fill the directory of a copy from a repository, on a new branch; return the commit that it begins with.

    `start` is a branch, a tag or a commit; nothing: what is checked out.
    """
    if own.ref_format != "files":
        raise ClaudeboxError(f"branches in the format `{own.ref_format}` cannot be copied")
    if own.place or not own.real:
        raise ClaudeboxError("a submodule cannot be copied by itself")
    git_dir = f"{path}/.git"
    stores = tuple(outside for outside, _ in own.stores)
    _make_directory(own, git_dir, name, stores)
    head = (read_small(f"{own.git_dir}/HEAD") or b"").decode("utf-8", "replace").strip().removeprefix("ref: ")
    mounts = ("--bind", path, path, *(word for store in stores for word in ("--ro-bind", store, store)))
    environ = {"GIT_DIR": git_dir, "GIT_WORK_TREE": path, **_POINTERS}
    try:
        with GitSandbox(tools, mounts, environ, os.path.dirname(path), _LIMITS) as box:
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
    except GitError as error:
        raise ClaudeboxError(f"the copy could not be made: {error}") from None
    return commit


def _make_directory(own: OwnGit, git_dir: str, name: str, stores: tuple[str, ...]) -> None:
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
    git_copy.write(f"{git_dir}/HEAD", f"ref: refs/heads/{name}\n".encode())
    git_copy.write(f"{git_dir}/config", own.config + _CONFIG)
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
