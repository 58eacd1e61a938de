"""Merging the branch of an agent into what is checked out: by git in a sandbox, and first without the checkout.

None of the repository's configuration or hooks is in force there, only what a list of keys admits, and the user's name.
What comes of it is brought into the checkout in one step, which overwrites nothing that only the user has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from claudebox.commands.agents import worktree
from claudebox.console import clean, list_some
from claudebox.errors import ClaudeboxError
from claudebox.files import list_names
from claudebox.launch.git_sandbox import GitError, GitSandbox
from claudebox.launch.git_setup import describe_layout
from claudebox.launch.git_sides import parse_rows, real_mounts
from claudebox.launch.git_submodules import GITLINK
from claudebox.plan import git_settings

if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit
    from claudebox.session import Planned

WAYS = ("merge", "rebase")
# $1: the repository, $2: its checkout, $3: how, $4: the branch. A checkout of its own in which no file is written that
# can be merged; says what was checked out, and what has come of it.
_CONFLICTS, _NONE = 3, "000000"
_MERGE = f"""\
before=$(git --git-dir="$2" rev-parse --verify HEAD) && tip=$(git rev-parse --verify "refs/heads/$4") || exit
text=$(printf "%s\\t\\tbranch '%s' of .\\n" "$tip" "$4" | git --git-dir="$2" fmt-merge-msg) || exit
mkdir -p /tmp/git/info /tmp/git/refs /tmp/git/reftable /tmp/files && : >/tmp/git/info/sparse-checkout || exit
echo "ref: refs/heads/.invalid" >/tmp/git/HEAD && printf "%s\\n" "$1" >/tmp/git/commondir || exit
export GIT_DIR=/tmp/git GIT_WORK_TREE=/tmp/files
git update-ref --no-deref HEAD "$before" && git read-tree -m -u HEAD || exit
if [ "$3" = merge ]; then
	git merge -q --no-edit -m "$text" "$tip" >/dev/null
elif [ -n "$(git rev-list -n1 "HEAD..$tip")" ]; then
	git cherry-pick --ff "HEAD..$tip" >/dev/null
fi || exit $(($(git ls-files -u | wc -l) ? {_CONFLICTS} : 1))
echo "$before"
git rev-parse HEAD
"""
_BRING_IN = 'GIT_REFLOG_ACTION="$2" git merge -q --ff-only --no-overwrite-ignore "$1" 2>&1'
_NO_FILES = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.sparseCheckout",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "core.sparseCheckoutCone",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "index.sparse",
    "GIT_CONFIG_VALUE_2": "false",
}


@dataclass(frozen=True)
class Merging:
    """A branch that is to be merged into what is checked out, or whose commits are to be put on top of it."""

    planned: Planned
    own: OwnGit
    tools: Tools
    scratch: str
    branch: str
    way: str

    def prepare(self) -> tuple[tuple[str, ...], str]:
        """Return what is checked out and what would be afterwards, or why not; the checkout is not written to."""
        layout = describe_layout(self.own)
        with self._open(worktree.plain_config(self.own.config), (), {"GIT_DIR": layout.common, **_NO_FILES}) as box:
            if status := box.script(_MERGE, layout.common, layout.git_dir, self.way, self.branch):
                return (), "there are conflicts" if status == _CONFLICTS else box.message()
            return tuple(box.output().decode("ascii", "replace").split()), ""

    def bring_in(self, before: str, after: str) -> str:
        """Check out what was prepared, all of it or nothing; return what became of it."""
        if b'filter "lfs"' in self.own.config:
            raise self.refuse("the repository uses Git LFS, which claudebox does not run", "do it yourself: ")
        place, config = self.own.worktree, worktree.plain_config(self.own.config, self.own.worktree_config)
        environ = {"GIT_DIR": describe_layout(self.own).git_dir, "GIT_WORK_TREE": place}
        with self._open(config, ("--bind", place, place), environ) as box:
            self._check_out(box, before, after)
        return f"{before[:7]}..{after[:7]}" if before != after else "nothing to do"

    def refuse(self, why: str, advice: str = "") -> ClaudeboxError:
        """Return that nothing was done, and how a user does it."""
        verb, what = ("merge", self.branch) if self.way == "merge" else ("cherry-pick", f"HEAD..{self.branch}")
        return ClaudeboxError(
            f"`{self.branch}` is there, and was not merged: {clean(why)}", hint=f"{advice}`git {verb} {quote(what)}`"
        )

    def _open(self, config: bytes, mounts: tuple[str, ...], environ: dict[str, str]) -> GitSandbox:
        layout = describe_layout(self.own)
        files = {f"{layout.common}/config": config, "/user-config": git_settings.user_config(self.planned.host)}
        environ = {**environ, "GIT_CONFIG_GLOBAL": "/user-config"}
        mounts = (*mounts, *real_mounts(layout))
        return GitSandbox(self.tools, mounts, environ, self.scratch, worktree.LIMITS, files)

    def _check_out(self, box: GitSandbox, before: str, after: str) -> None:
        if box.git("status", "--porcelain", "--untracked-files=no"):
            raise self.refuse("your checkout has changes that are not committed", "commit them, then ")
        if box.git("rev-parse", "HEAD").decode().strip() != before:
            raise self.refuse("another commit was checked out meanwhile")
        lost = self._find_lost_submodules(box, before, after)
        if not lost and box.script(_BRING_IN, after, f"{self.way} {self.branch}"):
            said = os.fsdecode(box.output()).split("\n")
            lost = [line[1:] for line in said if line.startswith("\t")]
            if not lost:
                why = "; ".join(line for line in said if line.startswith(("error: ", "fatal: "))) or "git failed"
                raise self.refuse(why, "see `git status`, then ")
        if lost:
            names = list_some([f"`{clean(path)}`" for path in lost], 8)
            raise self.refuse(f"it would overwrite what only you have: {names}", "move yours away, then ")

    def _find_lost_submodules(self, box: GitSandbox, before: str, after: str) -> list[str]:
        """Return the submodules with files in them that give way to something else: git would remove them all."""
        raw = box.git("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", before, after)
        rows = parse_rows(raw)
        if rows is None:
            raise GitError("git diff-tree cannot be read")
        paths = (
            os.fsdecode(path)
            for path, row in rows.items()
            if row.mode_before == GITLINK and row.mode not in (GITLINK, _NONE)
        )
        return [path for path in paths if list_names(f"{self.own.worktree}/{path}")]
