"""Imports that are killed, and hosts that work at the same time: nothing is broken, nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.git.conftest import PYTHON, Pair, start, until


@pytest.mark.slow
def test_imports_killed_at_random_moments_lose_nothing(pair):
    # proves GIT-03
    seed = random.randrange(1 << 32)
    sys.stderr.write(f"seed {seed}\n")
    dice = random.Random(seed)
    length = 0.0
    made = []
    for number in range(14):
        pair.agent(
            f"echo {number} >>a; git commit -qam inside{number}; git branch b{number}; git commit -q --amend -m again"
        )
        made.append(pair.agent("git rev-parse HEAD").strip())
        if number % 3 == 0:
            pair.host(f"git branch host{number}")
        begun = time.monotonic()
        process = start(pair, *pair.import_words(f"s{number}"))
        if length:
            time.sleep(dice.random() * length)
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        length = length or time.monotonic() - begun

    result = pair.bring_back("last")

    assert (result.error, result.notes, result.refused) == ("", [], [])
    assert pair.host("git rev-parse HEAD").strip() == made[-1]
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""
    assert not [name for name in pair.refs() if name.startswith(("refs/heads/claudebox/", "refs/claudebox/"))]
    assert {f"refs/heads/b{number}" for number in range(14)} <= set(pair.refs())
    assert not [name for _, _, names in os.walk(pair.real) for name in names if name.endswith(".lock")]
    pair.fsck()
    pair.host("git commit -q --allow-empty -m host")  # nothing stands in the user's way


@pytest.mark.parametrize("state", ["branch", "detached"])
def test_what_an_import_left_half_way_does_not_count_as_there(pair, state):
    # proves GIT-03
    if state == "detached":
        pair.agent("git checkout -q --detach")
    tips = pair.agent("for i in 1 2; do echo $i >>a; git commit -qam $i; done; git rev-parse HEAD HEAD^{tree}").split()
    for name in (f"{tip[:2]}/{tip[2:]}" for tip in tips):  # without the commit before, and without a file
        pair.host(f"mkdir -p .git/objects/{name[:2]}; cp {pair.own}/objects/{name} .git/objects/{name}")

    result = pair.bring_back()

    assert (result.error, result.refused) == ("", [])
    assert pair.host("git log -2 --format=%s") == "2\n1\n"
    pair.fsck()


def test_an_object_that_has_no_place_keeps_back_what_leads_to_it(pair):
    # proves GIT-03
    words = "HEAD~ HEAD~^{tree} HEAD~:a HEAD"
    *needed, tip = pair.agent(f"for i in 1 2; do echo $i >>a; git commit -qam $i; done; git rev-parse {words}").split()
    before = pair.refs()
    places = (Path(f"{pair.real}/objects/{name[:2]}") for name in needed)
    place = next(place for place in places if not place.exists())  # as if a gc had just removed the directory
    place.write_text("")

    refused = pair.bring_back().refused

    assert [name for name, _ in refused] == ["refs/heads/main"]
    assert pair.refs() == before
    place.unlink()
    assert pair.bring_back().refused == []
    assert pair.host("git rev-parse HEAD") == f"{tip}\n"
    pair.fsck()


# An import that dies before, while or after HEAD, branch and index of the host move.
KILLED = """
import os, signal
from claudebox.git import checkout as git_checkout, sandbox as git_sandbox
run = git_sandbox.GitSandbox.run
def die(self, *words, data=b""):
    hit = git_checkout._SETTLE in words
    if hit and WHEN == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if hit and WHEN == "while":
        self._start(words, data)
        os.kill(os.getpid(), signal.SIGKILL)
    status = run(self, *words, data=data)
    if hit:
        os.kill(os.getpid(), signal.SIGKILL)
    return status
git_sandbox.GitSandbox.run = die
"""


def kill_import(pair: Pair, program_before: str, **options: object) -> None:
    """Run an import with a program before it that makes it die."""
    python, flags, word, program, *rest = pair.import_words("s1", **options)
    begin, _, end = program.partition("from claudebox.base.errors")
    process = start(pair, python, flags, word, f"{begin}{program_before}from claudebox.base.errors{end}", *rest)
    said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_the_next_import_completes_one_that_was_killed(pair, when):
    # proves GIT-03, NEW-R3
    pair.agent("echo one >>a; git rm -q --cached b; git commit -qam one; git switch -qc one")
    kill_import(pair, KILLED.replace("WHEN", repr(when)))
    pair.agent("echo two >>a; git add a b; git commit -qm two; git switch -qc two")

    result = pair.bring_back("s2")

    assert (result.error, result.notes, result.refused) == ("", [], [])
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""
    assert pair.host("git symbolic-ref HEAD; git log --format=%s") == "refs/heads/two\ntwo\none\nfirst\n"
    assert not [found for _, _, names in os.walk(pair.real) for found in names if "claudebox" in found]
    assert not [found for _, _, names in os.walk(pair.real) for found in names if found.endswith(".lock")]
    pair.fsck()


def test_a_lock_of_a_dead_import_goes_and_those_of_the_user_stay(pair):
    # proves GIT-03
    pair.agent("git commit -q --allow-empty -m inside")
    ours = pair.box.write(f"{pair.real}/index.lock", f"claudebox {os.path.basename(pair.private)}\n")
    users = [pair.box.write(f"{pair.real}/{name}.lock", "") for name in ("config", "refs/heads/other")]

    assert pair.bring_back().refused == []

    assert not os.path.exists(ours)
    assert all(os.path.exists(path) for path in users)
    assert pair.host("git log -1 --format=%s") == "inside\n"


@pytest.mark.parametrize("name", ["index", "HEAD", "refs/heads/main"])
def test_a_branch_that_cannot_move_with_its_index_arrives_under_another_name(pair, name):
    """If it moved alone, the user's next commit would delete what the agent has added."""
    # proves NEW-R3
    pair.agent("echo new >c; git add c; git commit -qm inside; git branch more HEAD~1")
    lock = pair.box.write(f"{pair.real}/{name}.lock", "")

    assert "refs/heads/main" not in [move[0] for move in pair.bring_back("s1").moved]  # it may still come in its place
    result = pair.bring_back("s2", final=True)

    assert os.path.exists(lock)
    assert any("main arrived as claudebox/s2/main" in note for note in result.notes), result.notes
    assert any(f"{name}.lock" in note for note in result.notes), result.notes
    os.unlink(lock)
    pair.host("echo host >h; git add h; git commit -qm host")
    assert pair.host("git ls-tree --name-only main; git ls-tree --name-only claudebox/s2/main") == "a\nb\nh\na\nb\nc\n"
    assert "refs/heads/more" in pair.refs()
    pair.fsck()


WITHOUT_NAMELESS_FILES = """
import os, errno
opened = os.open
def refuse(path, flags, *arguments, **options):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, "no such files here", path)
    return opened(path, flags, *arguments, **options)
os.open = refuse
"""


def test_a_file_system_without_nameless_files_is_no_different(pair):
    # proves NEW-R3
    pair.agent("echo new >c; git add c; git commit -qm inside; git switch -qc topic")
    python, flags, word, program, *rest = pair.import_words()

    said = json.loads(pair.box.host(python, flags, word, WITHOUT_NAMELESS_FILES + program, *rest).stdout)

    assert said["notes"] == []
    assert pair.host("git status --porcelain; git ls-files; git symbolic-ref HEAD") == "a\nb\nc\nrefs/heads/topic\n"


def test_a_worktree_of_the_host_moves_with_its_index_or_not_at_all(pair):
    # proves NEW-R3, GIT-04
    pair.agent("git worktree add -qb w w")
    pair.bring_back(final=True)
    pair.host("echo staged >s; git add s", cwd=f"{pair.project}/w")
    pair.agent("cd w; echo new >c; git add c; git commit -qm inside")

    pair.bring_back(final=True)

    assert pair.host("git status --porcelain; git log -1 --format=%s", cwd=f"{pair.project}/w") == "A  s\ninside\n"
    lock = pair.box.write(f"{pair.real}/worktrees/w/index.lock", "")
    pair.agent("cd w; echo more >d; git add d; git commit -qm more")
    result = pair.bring_back("s3", final=True)
    assert any("w arrived as claudebox/s3/w" in note for note in result.notes), result.notes
    os.unlink(lock)
    pair.host("git commit -qm host", cwd=f"{pair.project}/w")
    assert pair.host("git ls-tree --name-only w; git ls-tree --name-only claudebox/s3/w") == "a\nb\nc\ns\na\nb\nc\nd\n"


@pytest.mark.slow
def test_whatever_both_sides_stage_and_commit_neither_takes_the_other_s_away(pair):
    """Random work on both sides: what the host has staged stays, and its commits change what the host changed."""
    # proves GIT-03, NEW-R3
    seed = random.randrange(1 << 32)
    sys.stderr.write(f"seed {seed}\n")
    dice = random.Random(seed)
    ours = ("h1", "h2", "both")
    for number in range(12):
        for side, names in ((pair.agent, ("a1", "a2", "both")), (pair.host, ours)):
            name, verb = dice.choice(names), dice.choice(("add", "add", "rm -qf --cached --ignore-unmatch", "commit"))
            work = f"git commit -qm {number} --allow-empty" if verb == "commit" else f"git {verb} {name}"
            side(f"echo {number} >{name}; {work}")
        staged = pair.host("git ls-files -s h1 h2")
        result = pair.bring_back(f"s{number}", final=True)
        assert (result.error, result.refused) == ("", [])
        assert pair.host("git ls-files -s h1 h2") == staged
        if not result.notes and not result.renamed:  # both sides are in step
            same = "git diff --cached --name-status; git rev-parse HEAD"
            assert pair.host(same) == pair.agent(same)
        pair.fsck()


def test_a_lock_of_the_user_on_the_index_stops_nothing_for_good(pair):
    # proves GIT-03
    pair.agent("echo more >>a; git commit -qam inside")
    lock = pair.box.write(f"{pair.real}/index.lock", "")

    said = pair.bring_back()

    assert "index.lock` is held by another git" in said.notes[0]
    assert pair.host("git log -1 --format=%s") == "first\n"
    assert os.path.exists(lock)
    os.unlink(lock)
    assert pair.bring_back().notes == []
    assert pair.host("git status --porcelain; git log -1 --format=%s") == "inside\n"


@pytest.mark.slow
def test_both_sides_work_at_the_same_time(pair):
    """The host commits, rebases and collects garbage while the agent commits; all commits exist in the end."""
    # proves GIT-03
    pair.host("git branch topic")
    pair.set_up()
    follower = pair.follow()
    try:
        pair.host("git worktree add -q ../tree topic")
        inside = start(
            pair, *pair.enter("for n in 1 2 3 4 5 6 7 8; do echo $n >>a; git commit -qam inside$n; sleep 0.2; done")
        )
        tree = os.path.join(pair.box.base, "tree")
        for number in range(4):
            pair.host(f"echo {number} >host{number}; git add .; git commit -qm host{number}", cwd=tree)
            pair.host("git rebase -q --force-rebase main; until git gc -q; do sleep 0.05; done", cwd=tree)
        assert inside.communicate()[0] == ""
        assert inside.returncode == 0
        follower.communicate("\n")
    finally:
        follower.kill()
        follower.communicate()

    subjects = pair.host("git log --all --format=%s").split("\n")
    assert {f"inside{n}" for n in range(1, 9)} | {f"host{n}" for n in range(4)} <= set(subjects)
    assert pair.host("git rev-parse main") == pair.agent("git rev-parse main")
    pair.fsck()


def test_two_sessions_share_one_repository(pair):
    # proves GIT-03
    first, second = pair.follow(), pair.follow()
    script = (
        "for n in 1 2 3; do echo {0} >>f{0}; until git add f{0} && git commit -qm {0}$n f{0}; do sleep 0.1; done; done"
    )
    agents = [start(pair, *pair.enter(script.format(name))) for name in ("one", "two")]
    for agent in agents:
        agent.communicate()
    first.communicate("\n")
    second.communicate("\n")

    subjects = set(pair.host("git log --format=%s").split("\n"))
    assert {f"{name}{n}" for name in ("one", "two") for n in (1, 2, 3)} <= subjects
    assert pair.host("git rev-parse HEAD") == pair.agent("git rev-parse HEAD")
    pair.fsck()


def test_imports_wait_for_one_another(pair):
    # proves GIT-03
    pair.agent("for n in 1 2 3; do git commit -q --allow-empty -m $n; git branch b$n; done")
    several = [start(pair, *pair.import_words(f"s{number}")) for number in range(4)]
    said = [json.loads(process.communicate()[0]) for process in several]

    assert sum(len(row.get("moved", [])) for row in said) == 4
    assert not any(row.get("error") or row.get("refused") for row in said)
    pair.fsck()


HELD = """
import fcntl, os, sys, time
source, path = sys.argv[1:]
sys.path.insert(0, source)
from claudebox.git.sandbox import Limits, Tools
from claudebox.git.sides import host_side
from claudebox.git.state import Private
with Private(path) as private:
    side = host_side(Tools("/usr/bin/bwrap"), path, private.state().layout, Limits(), "s1", private.lock)
    side.box.run("true")
    side.box._start(("sleep", "600"))
lock = os.open(f"{path}/lock", os.O_RDONLY)
def is_free():
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
held = not is_free()
side.__exit__()
while not is_free():
    time.sleep(0.01)
print(held)
"""


def test_the_lock_of_an_import_is_held_until_its_git_has_ended(pair):
    """Else the next import would find locks of a git that still runs, after a kill."""
    # proves GIT-03
    result = pair.box.host("/usr/bin/python3", "-IS", "-c", HELD, pair.source, pair.private)

    assert result.stdout == "True\n", result.stderr


def test_a_follower_that_was_killed_leaves_its_work_to_the_next(pair):
    # proves GIT-03
    follower = pair.follow()
    follower.kill()
    follower.communicate()
    pair.agent("git commit -q --allow-empty -m inside")

    pair.bring_back(final=True)

    assert pair.host("git log -1 --format=%s") == "inside\n"


OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
from claudebox.git.sandbox import GitSandbox, Limits, Tools
print("ready", flush=True)
with GitSandbox(Tools("/usr/bin/bwrap"), (), {"MARK": sys.argv[2]}, "/tmp", Limits()) as box:
    box.run("sleep", "0.01")
"""


def test_a_killed_import_leaves_no_sandbox_behind(pair):
    # proves GIT-03, E15
    def left() -> list[str]:
        found = []
        for process in os.listdir("/proc"):
            try:
                content = Path(f"/proc/{process}/environ").read_bytes() if process.isdigit() else b""
            except OSError:
                continue
            found += [process] if f"MARK={pair.private}".encode() in content.split(b"\0") else []
        return found

    seed = random.randrange(1 << 32)
    sys.stderr.write(f"seed {seed}\n")
    dice = random.Random(seed)
    seen = 0
    for _ in range(40):
        process = start(pair, PYTHON, "-IS", "-c", OPEN, pair.source, pair.private)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(dice.random() * 0.03)
        seen += len(left())
        process.kill()
        process.communicate()

    assert seen  # what would be left can be seen
    until(lambda: not left())
