"""Merging the branch of an agent into what is checked out: by git in a sandbox that has the checkout and nothing else.

None of the repository's configuration or hooks is in force there, only what a list of keys admits, and the user's name.
"""

from __future__ import annotations

import os
import stat
from shlex import quote
from typing import TYPE_CHECKING

from claudebox.commands.agents.worktree import LIMITS, plain_config
from claudebox.console import clean
from claudebox.errors import ClaudeboxError
from claudebox.files import mode_of
from claudebox.launch.git_sandbox import GitError, GitSandbox
from claudebox.launch.git_setup import describe_layout
from claudebox.launch.git_sides import real_mounts
from claudebox.launch.live_sessions import Presence
from claudebox.plan import git_settings

if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit
    from claudebox.session import Planned

WAYS = {"merge": ("merge", "--no-edit"), "rebase": ("cherry-pick", "--ff")}


def merge_branch(planned: Planned, own: OwnGit, tools: Tools, scratch: str, branch: str, way: str) -> str:
    """Merge a branch, or put its commits on top of what is checked out; return what became of it."""
    by_hand = f"`git merge {quote(branch)}`" if way == "merge" else f"`git cherry-pick HEAD..{quote(branch)}`"
    if b'filter "lfs"' in own.config:
        raise ClaudeboxError(
            "the repository uses Git LFS, which claudebox does not run", hint=f"do it yourself: {by_hand}"
        )
    layout = describe_layout(own)
    config = {
        f"{layout.common}/config": plain_config(own.config, own.worktree_config),
        "/user-config": git_settings.user_config(planned.host),
    }
    environ = {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": own.worktree, "GIT_CONFIG_GLOBAL": "/user-config"}
    mounts = ("--bind", own.worktree, own.worktree, *real_mounts(layout))
    presence = Presence(planned.host.instance.state)
    try:
        presence.claim(own.worktree)  # an agent could lead what is written here astray
        with GitSandbox(tools, mounts, environ, scratch, LIMITS, config) as box:
            return _merge(box, own.worktree, branch, way, by_hand)
    except GitError as error:
        raise ClaudeboxError(f"`{branch}` is there, and was not merged: {clean(str(error))}", hint=by_hand) from None
    finally:
        presence.leave()


def _merge(box: GitSandbox, worktree: str, branch: str, way: str, by_hand: str) -> str:
    if box.git("status", "--porcelain", "--untracked-files=no"):
        raise ClaudeboxError(
            f"`{branch}` is there, and was not merged: your checkout has changes that are not committed",
            hint=f"commit them, then {by_hand}",
        )
    if (path := _find_overwritten(box, os.fsencode(worktree), branch)) is not None:
        raise ClaudeboxError(
            f"`{branch}` is there, and was not merged: it brings `{clean(os.fsdecode(path))}`, "
            "where you have something that git does not know",
            hint=f"move yours away, then {by_hand}",
        )
    before = box.git("rev-parse", "HEAD").decode().strip()
    verb, option = WAYS[way]
    target = f"{before}..{branch}" if way == "rebase" else branch
    if way == "rebase" and not box.git("rev-list", "-n1", target):
        return "nothing to do"
    if box.ask(verb, option, target) is None:
        reason = "there are conflicts" if box.ask("ls-files", "-u") else box.message()
        box.ask(verb, "--abort")
        if box.git("rev-parse", "HEAD").decode().strip() != before:
            box.git("reset", "--hard", "-q", before)
        raise ClaudeboxError(
            f"`{branch}` is there, and was not merged: {clean(reason)}", hint=f"your checkout is as it was; {by_hand}"
        )
    after = box.git("rev-parse", "HEAD").decode().strip()
    return f"{before[:7]}..{after[:7]}"


def _find_overwritten(box: GitSandbox, worktree: bytes, branch: str) -> bytes | None:
    """Return what git would overwrite without a word: ignored files and directories where the branch has something."""
    known = set(box.git("ls-files", "-z").split(b"\0"))
    added = box.git("diff", "--name-only", "--no-renames", "--diff-filter=A", "-z", f"HEAD...{branch}").split(b"\0")
    for path in filter(None, added):
        place = path
        while place and place not in known:
            mode = mode_of(worktree + b"/" + place)
            if mode and (place == path or not stat.S_ISDIR(mode)):
                return place
            place = os.path.dirname(place)
    return None
