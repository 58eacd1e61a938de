"""`claudebox new` brings uncommitted changes along, and `claudebox finish` takes them off the branch again."""

from __future__ import annotations

import pytest
from tests.support import repositories

pytestmark = pytest.mark.sandbox

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"  # of nobody


def work(box, name: str, script: str) -> str:
    """Let an agent of this name run a script, and finish it; return what claudebox said."""
    began = box.claudebox("new", "-y", name, "--exec", "--", "sh", "-ec", script)
    assert began.returncode == 0, began.stdout + began.stderr
    ended = box.claudebox("finish", "-y", name)
    assert ended.returncode == 0, ended.stderr
    return str(began.stdout + began.stderr + ended.stdout + ended.stderr)


def test_uncommitted_changes_come_along_and_are_not_on_the_branch_that_is_merged(user_box):
    # proves GIT-03, NEW-D16
    box, checkout = user_box, repositories.make(user_box)
    checkout.sh(
        "seq 9 >mine; seq 9 >both; echo x >gone; echo a >x.z; printf '.env\\n' >.gitignore; echo '*.z filter=z' "
        ">.gitattributes; git add .; git commit -qm base; sed -i 1s/.*/user/ mine both; rm gone; echo new >new; "
        f"echo staged >staged; git add staged; echo b >x.z; echo TOKEN={TOKEN} >.env; echo TOKEN={TOKEN} >.env.local"
    )
    before = checkout.sh("git status --porcelain; cat mine both new; git rev-parse HEAD")

    said = work(box, "one", "cat both new staged; ls; ls .env; sed -i 9s/.*/agent/ both; echo >added; git add added; "
                "git commit -qam 'agent: both'; git commit -q --allow-empty -m empty; git show HEAD~2:x.z")  # fmt: skip

    shown = "".join(
        f"{line}\n"
        for line in ("user", *range(2, 10), "new", "staged", "a", "both", "evil.sh", "mine", "new", "staged")
    )
    assert said.startswith(f"{shown}x.z\n.env\na\n"), said
    assert "stays behind: x.z, .env.local" in said, said
    assert "see: claudebox review one\n" in said, "`changes` and `undo` look at the directory that they are started in"
    assert "one: 2 commits" in said, said
    assert "does not have the uncommitted changes that you brought along" in said, said
    assert checkout.sh("git status --porcelain; cat mine both new; git rev-parse HEAD") == before
    assert checkout.sh("git log --format='%an %s' HEAD..one") == "n empty\nn agent: both\n"
    assert (
        checkout.sh("git diff --stat=80 HEAD one | tail -1").strip()
        == "2 files changed, 2 insertions(+), 1 deletion(-)"
    )
    assert TOKEN not in checkout.sh("git cat-file --batch-all-objects --batch --unordered")
    checkout.sh("git checkout both; git merge -q one")  # the rest of the user's changes are not in its way
    assert checkout.sh("head -1 mine; tail -1 both; ls new staged") == "user\nagent\nnew\nstaged\n"

    same = work(box, "two", "sed -i s/user/agent/ mine; git commit -qam same")

    assert "so the branch has a commit of them: `git stash -u`" in same, same
    subjects = checkout.sh("git log --format=%s HEAD..two")
    assert subjects == "same\nUncommitted changes of the project\n"
    taken = box.claudebox("new", "-y", "main", "--exec", "--", "true").stderr
    assert taken.startswith("error: the repository already has a branch `main`"), "nothing was asked or committed"
    fresh = box.claudebox("new", "-y", "three", "--from", "HEAD", "--exec", "--", "head", "-1", "mine")
    assert fresh.stdout == "1\n", fresh.stderr
    asked = box.claudebox("new", "-y", "four", "--copy", ".env.local", "--exec", "--", "ls", ".env.local")
    assert asked.stdout == ".env.local\n", asked.stderr
    assert "stays behind: x.z (" in asked.stderr, asked.stderr
