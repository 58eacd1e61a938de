"""While a session runs, what happens on one side shows on the other."""

from __future__ import annotations

import fcntl
import os
import signal
import time

import pytest
from tests.git.conftest import until


@pytest.fixture
def follower(pair):
    process = pair.follow()
    yield process
    process.kill()
    process.communicate()


def test_a_commit_inside_shows_on_the_host(pair, follower):
    # proves GIT-03
    pair.agent("echo more >>a; git commit -qam inside")

    until(lambda: pair.host("git log -1 --format=%s") == "inside\n")
    until(lambda: pair.host("git status --porcelain") == "")


def test_a_switch_inside_shows_on_the_host(pair, follower):
    # proves GIT-03
    pair.agent("git switch -qc feature; git branch deep/er/one")

    until(lambda: pair.host("git symbolic-ref HEAD") == "refs/heads/feature\n")
    until(lambda: "refs/heads/deep/er/one" in pair.refs())


def test_a_commit_on_the_host_shows_inside(pair, follower):
    # proves GIT-03
    pair.host("echo more >>a; git commit -qam host")

    until(lambda: pair.agent("git log -1 --format=%s") == "host\n")
    until(lambda: pair.agent("git status --porcelain") == "")
    assert pair.host("git status --porcelain") == ""


def test_one_after_the_other_on_both_sides(pair, follower):
    # proves GIT-03
    for number in range(3):
        pair.agent(f"echo {number} >>a; git commit -qam inside{number}")
        until(lambda: pair.host("git status --porcelain; git rev-parse HEAD") == pair.agent("git rev-parse HEAD"))
        pair.host(f"echo {number} >>b; git commit -qam host{number}")
        until(lambda: pair.agent("git status --porcelain; git rev-parse HEAD") == pair.host("git rev-parse HEAD"))

    assert len(pair.host("git log --format=%s").split()) == 7
    pair.fsck()


def test_the_end_says_what_came_back(pair, follower):
    # proves GIT-03
    before = pair.host("git rev-parse --short=7 HEAD").strip()
    pair.agent("git switch -qc feature; echo x >x; git add x; git commit -qm x; git update-ref refs/heads/-x HEAD")
    pair.agent("git checkout -q main; git commit -q --allow-empty -m more; git switch -q feature")
    said, _ = follower.communicate("\n")

    after = pair.host("git rev-parse --short=7 main").strip()
    assert said.split("\n")[:3] == [
        f"main +1 commit ({before}..{after})",
        "feature new",
        "git: -x stays inside: its name could be taken for something else",
    ]
    assert pair.host("git status --porcelain; git symbolic-ref --short HEAD") == "feature\n"


def test_the_end_names_stashes_that_an_import_has_seen_before(pair):
    # proves GIT-03
    pair.agent("echo more >>a; git stash -q")
    pair.bring_back()

    assert "stashes made inside stay there" in pair.follow().communicate("\n")[0]


def test_a_session_that_did_nothing_says_nothing(pair, follower):
    # proves GIT-03
    pair.bring_back()
    before = os.stat(f"{pair.private}/state").st_mtime_ns

    assert follower.communicate("\n")[0] == ""
    assert os.stat(f"{pair.private}/state").st_mtime_ns == before  # not even looked at


def test_nothing_comes_back_before_the_question(pair):
    # proves GIT-03
    process = pair.follow("ask")
    pair.agent("git commit -q --allow-empty -m inside")
    pair.host("git branch meanwhile")
    until(lambda: "meanwhile" in pair.agent("git branch"))  # the other way is open

    said, _ = process.communicate("\n")  # and there is no terminal to ask on

    assert "inside" in said
    assert "`claudebox sync` does it" in said
    assert pair.host("git log --format=%s") == "first\n"
    pair.bring_back(final=True)
    assert pair.host("git log --format=%s") == "inside\nfirst\n"


def test_manual_says_that_something_waits(pair):
    # proves GIT-03
    process = pair.follow("manual")
    pair.agent("git commit -q --allow-empty -m inside")

    said, _ = process.communicate("\n")

    assert "`claudebox sync`" in said
    assert pair.host("git log --format=%s") == "first\n"


def test_a_signal_ends_what_takes_long_at_the_end(pair, follower):
    """Whoever ends claudebox does not wait for the import, which the next launch goes on with."""
    # proves GIT-03
    process = follower
    with open(f"{pair.private}/lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so it takes longer than this test would
        pair.agent("git commit -q --allow-empty -m inside")
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(1)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)

        assert "claudebox sync" in process.communicate(timeout=30)[0]
        assert time.monotonic() < begun + 10
    assert pair.bring_back(final=True).moved


def test_where_not_everything_can_be_watched_an_idle_session_imports_nothing(pair):
    """Every two seconds both sides are compared by what `stat` says, and no git is started."""
    # proves GIT-03, NEW-R1
    pair.host("for n in $(seq 500); do mkdir .git/refs/heads/d$n; done")
    follower = pair.follow()
    copied = f"{pair.private}/synced/host"  # by each import
    try:
        pair.agent("git commit -q --allow-empty -m inside")
        until(lambda: pair.host("git log -1 --format=%s") == "inside\n")
        time.sleep(5)  # two more looks
        before = os.stat(copied).st_ctime_ns
        time.sleep(5)
        assert os.stat(copied).st_ctime_ns == before
        pair.agent("git commit -q --allow-empty -m more")
        until(lambda: pair.host("git log -1 --format=%s") == "more\n")
    finally:
        follower.communicate("\n")
