"""Repositories that the user has below a project: their configuration and hooks are read-only while a session runs."""

from __future__ import annotations

import os

from tests.git.conftest import until
from tests.git.test_gitlinks import has_mark
from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh, start

ARM = (
    "git -C {0} config core.fsmonitor {1}", "echo '[core]' >>{0}/.git/config", "mv {0}/.git/config {0}/c",
    "mv {0}/.git {0}/g", "mv {0} moved", "cp {1} {0}/.git/hooks/post-index-change",
    "rm -rf {0}/.git", "git init -q x; git -C x config core.fsmonitor {1}; mv -T x {0}",
)  # fmt: skip


def test_configuration_and_hooks_of_nested_repositories_are_read_only_inside(user_box):
    # proves NEW-E12, END-01, D11
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "printf 'lib\\nvendor\\n' >.gitignore; git clone -q . lib; mkdir vendor; git clone -q . vendor/deep; "
       "git init -q --bare vendor/repo.git")  # fmt: skip
    attack = "; ".join(text.format(place, evil) for place in ("lib", "vendor/deep") for text in ARM)
    use = "for d in lib vendor/deep; do cd $d; git status; touch new; git add new; cd $OLDPWD; done"
    with start(box, f"set +e; {attack}; git -C lib commit -q --allow-empty -m inside; touch planted; sleep 2"):
        until(lambda: os.path.exists(f"{box.project}/planted"))
        assert not has_mark(box, use)  # while it runs
    assert not has_mark(box, use)
    assert sh(box, "git -C lib log -1 --format=%s") == "inside\n"  # what is no setting can be written
    assert not sh(box, "find lib vendor -name '*.claudebox'")
    sh(box, f"git -C lib config core.fsmonitor {evil}")
    assert has_mark(box, use)  # the positive control


def test_the_user_can_let_the_agent_change_them(user_box):
    # proves NEW-E12
    box = make_repository(user_box)
    sh(box, "echo lib >.gitignore; git clone -q . lib")
    closed, opened = "git -C lib config user.name closed", "git -C lib config user.name opened"

    assert box.sh(closed).returncode != 0
    assert box.sh(opened, flags=("--allow", "git-config")).returncode == 0
    assert sh(box, "git -C lib config user.name") == "opened\n"
