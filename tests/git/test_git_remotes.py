"""Remotes on this machine say what would permit them, and remotes and hooks that stay inside are named."""

from __future__ import annotations

import os

import pytest
from tests.support import repositories

pytestmark = pytest.mark.sandbox


def test_a_remote_on_this_machine_names_the_mount_that_permits_it(user_box):
    # proves GIT-04, UX-01, NEW-D15
    checkout = repositories.make(user_box)
    bare = f"{user_box.base}/it's bare"
    checkout.sh('git init -q --bare "$1"; git remote add origin "../it\'s bare"; git remote add far https://example.org/x'
                .replace("$1", bare))  # fmt: skip
    flags = {"push": "--mount-rw", "fetch": "--mount-ro"}

    for verb, flag in flags.items():
        command = f"git {verb} origin" + (" main" if verb == "push" else "")
        refused = user_box.sh(command)
        said = f"claudebox: {bare} is outside of the sandbox; `claudebox {flag} "
        assert refused.returncode == 128, refused.stderr
        assert said in refused.stderr, refused.stderr
        words = refused.stderr.partition(said)[2].partition("`")[0]
        permitted = user_box.host("sh", "-c", f"{user_box.program} -y {flag} {words} --exec -- {command}")
        assert permitted.returncode == 0, permitted.stderr
    assert os.listdir(f"{bare}/refs/heads") == ["main"]
    assert user_box.sh("git config --get-regexp 'remote.far.*pack'").stdout == ""


def test_remotes_and_hooks_that_stay_inside_are_named_once(user_box):
    # proves GIT-03, UX-01, NEW-D15
    repositories.make(user_box)
    addresses = {"up": "https://example.org/x.git", "run": "ext::sh", "token": "https://a:b@example.org/x", "a;b": "/x"}
    adding = "".join(f"git config 'remote.{name}.url' '{address}'; " for name, address in addresses.items())

    result = user_box.sh(f"{adding} echo >.git/hooks/post-merge; true")
    said = [
        line.partition("claudebox: ")[2] for line in result.stderr.splitlines() if " inside " in line or "only" in line
    ]
    assert said == [
        "git: the remote up was added inside only: `git remote add up https://example.org/x.git` adds it here",
        "git: the remote run was added inside only",
        "git: the remote token was added inside only",
        "git: the remote a;b was added inside only",
        "git: hooks made inside run only there: post-merge",
    ], result.stderr

    again = user_box.sh("git remote; ls .git/hooks/post-merge")
    assert again.stdout == "a;b\nrun\ntoken\nup\n.git/hooks/post-merge\n", again.stderr
    assert "only" not in again.stderr
