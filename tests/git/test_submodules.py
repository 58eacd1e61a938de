"""Directories of submodules: they stay where they are, unless the user lets the agent remove and rename them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import is_disarmed
from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh

if TYPE_CHECKING:
    from tests.conftest import Box

ALLOWED = ("--allow", "submodules")


def make_superproject(box: Box) -> Box:
    """Return a repository with three submodules, each of which has a submodule itself."""
    make_repository(box)
    sh(box, "for at in leaf lib; do git init -q ../$at; cd ../$at; echo l >l; git add l; git commit -qm $at; done")
    sh(box, "cd ../lib; git submodule add -q ../leaf leaf; git commit -qm leaf")
    sh(box, "for at in one two deep/three; do git submodule add -q ../lib $at; done; git commit -qm add; "
            "git submodule update -q --init --recursive")  # fmt: skip
    return box


@pytest.fixture
def superproject(box: Box) -> Box:
    return make_superproject(box)


def test_submodules_are_removed_renamed_and_deinitialised_inside_if_the_user_lets_them(superproject):
    # proves GIT-03, GIT-04, D10, D11
    box = superproject
    work = (
        "set -e; git rm -q one; git mv two new; mkdir far; git mv deep/three far/3; cd new; echo more >>l; "
        "git commit -qam inner; cd ..; git commit -qam outer; git submodule status --recursive >/dev/null; "
        "echo uncommitted >>far/3/leaf/l"
    )

    tried = ("git rm -q one", "git mv deep/../two new", "git submodule deinit one", "git submodule deinit --all")
    kept = box.sh("; echo $?; ".join((*tried, "cd deep; git rm three", "/usr/bin/git mv three 3", "cd ..; mv deep 2")))
    before = sh(box, "git status --porcelain; git submodule status --recursive")
    result = box.sh(work, flags=(*ALLOWED, "--undo-keep", "1"))
    status = sh(box, "git log -1 --format=%s; git -C new log -1 --format=%s; git status --porcelain; ls")
    places = sh(box, "git submodule foreach -q --recursive 'echo $displaypath'")
    changed = sh(box, "git -C far/3/leaf status --porcelain")
    undone = box.claudebox("-y", "--undo")
    moved_back = sh(box, "git submodule status --recursive")
    box.sh(work, flags=ALLOWED)
    again = box.sh("git submodule deinit -f new", flags=ALLOWED)
    third = box.sh("git status --porcelain -uno; git -C far/3/leaf status --porcelain")

    assert kept.stdout == "128\n" * 6, kept.stderr
    assert kept.stderr.count("--allow submodules\n") == 5, kept.stderr
    assert kept.returncode == 1
    assert before.count("(heads/main)") == 6
    assert result.returncode == 0, result.stderr
    assert "git (two): its directory is" in result.stderr
    assert status == "outer\ninner\n M far/3\na\ndeep\nfar\nnew\n", result.stderr
    assert places == "far/3\nfar/3/leaf\nnew\nnew/leaf\n"
    assert undone.returncode == 0, undone.stderr
    assert moved_back == before, undone.stderr
    assert changed == " M l\n"  # nothing that was not committed is lost
    assert "git (two): it was deinitialised inside: `git submodule deinit" in again.stderr
    assert os.listdir(f"{box.project}/new") == []
    assert sh(box, "git submodule status new")[0] == "-"
    assert third.stdout == " M far/3\n M l\n", third.stderr
    assert sh(box, "git submodule update -q --init new; git -C new log -1 --format=%s") == "inner\n"
    assert sh(box, "git fsck --full --no-dangling; git -C new fsck --full --no-dangling") == ""


def test_what_the_agent_puts_in_the_place_of_a_submodule_runs_nothing_afterwards(user_box):
    # proves GIT-04, D10, D11
    box = make_superproject(user_box)
    box.write(f"{box.base}/run", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    planted = (
        "rm -rf one; mv two 2; ln -s 2 two; rm deep/three/.git; mkdir real; "
        "for at in one deep/three; do git init -q $at; git -C $at config core.fsmonitor $RUN; done; "
        "git init -q x; mv x/.git real/x; git --git-dir=real/x config core.fsmonitor $RUN; "
        'echo "gitdir: $PWD/real/x" >2/.git; git config --file .git/modules/two/config core.worktree ../../../../deep'
    )

    result = box.sh(planted, flags=(*ALLOWED, "--env", "RUN"), env={"RUN": f"{box.base}/run"})

    for at in (".", "one", "two", "deep/three", "2"):
        sh(box, f"cd {at}; git status; git add -n . || true", check=False)
    assert not os.path.exists(f"{box.home}/{MARK}")
    for at in ("deep/three/.git", "real/x"):
        assert is_disarmed(result.stderr, at), result.stderr
    config = Path(box.project, ".git/modules/two/config").read_text()
    assert "worktree = ../../../two\n" in config
    planted = f"git init -q deep/three; git -C deep/three config core.fsmonitor {box.base}/run"
    sh(box, f"{planted}; git status || true", check=False)
    assert os.path.exists(f"{box.home}/{MARK}")  # from above, too, it would have
