"""Directories of submodules that the user has: they stay where they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh

if TYPE_CHECKING:
    from tests.conftest import Box


def make_superproject(box: Box) -> Box:
    """Return a repository with three submodules, each of which has a submodule itself."""
    make_repository(box)
    sh(box, "for at in leaf lib; do git init -q ../$at; cd ../$at; echo l >l; git add l; git commit -qm $at; done")
    sh(box, "cd ../lib; git submodule add -q ../leaf leaf; git commit -qm leaf")
    sh(box, "for at in one two deep/three; do git submodule add -q ../lib $at; done; git commit -qm add; "
            "git submodule update -q --init --recursive")  # fmt: skip
    return box


def test_submodules_stay_where_they_are_and_their_commits_come_back(box):
    # proves GIT-03, GIT-04, D10, D11
    make_superproject(box)
    before = sh(box, "git submodule status --recursive")

    kept = box.sh("git rm -q one; git mv two new; mv deep 2; echo $?; git submodule deinit deep/three")
    assert (kept.returncode, kept.stdout[:2]) == (0, "1\n"), kept.stderr
    assert "Device or resource busy" in kept.stderr
    assert all(os.path.isfile(f"{box.project}/{at}/.git") for at in ("one", "two", "deep/three"))
    # What `git rm` deletes before it meets the mount depends on the order of a directory.
    every = "git submodule -q foreach --recursive"
    sh(box, f"git reset -q --hard; {every} git reset -q --hard; git submodule update -q --init --recursive")
    assert sh(box, "git submodule status --recursive; git status --porcelain") == before

    result = box.sh("set -e; cd two; echo more >>l; git add l; git commit -qm inner; cd ..; git commit -qam outer")
    assert result.returncode == 0, result.stderr
    assert sh(box, "git log -1 --format=%s; git -C two log -1 --format=%s") == "outer\ninner\n", result.stderr
    assert sh(box, "git fsck --full --no-dangling; git -C two fsck --full --no-dangling; git status --porcelain") == ""


def test_what_the_agent_puts_in_the_place_of_a_submodule_runs_nothing_afterwards(user_box):
    # proves GIT-04, D10, D11
    box = make_superproject(user_box)
    box.write(f"{box.base}/run", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    planted = (
        "rm -rf one; mv two 2; ln -s 2 two; rm deep/three/.git; mkdir real; "
        "for at in one deep/three; do git init -q $at; git -C $at config core.fsmonitor $RUN; done; "
        "git init -q x; mv x/.git real/x; git --git-dir=real/x config core.fsmonitor $RUN; "
        'echo "gitdir: $PWD/real/x" >two/.git; git config --file .git/modules/two/config core.worktree ../../../../deep'
    )

    box.sh(planted, flags=("--env", "RUN"), env={"RUN": f"{box.base}/run"})

    for at in (".", "one", "two", "deep/three"):
        sh(box, f"cd {at}; git status; git add -n . || true", check=False)
    assert not os.path.exists(f"{box.home}/{MARK}")
    planted = f"rm -r one; git init -q one; git -C one config core.fsmonitor {box.base}/run"
    sh(box, f"{planted}; git status || true", check=False)
    assert os.path.exists(f"{box.home}/{MARK}")  # from above, too, it would have
