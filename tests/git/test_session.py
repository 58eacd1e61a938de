"""Whole sessions: what is committed inside is in the repository afterwards, however the session ended."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.git.conftest import GITCONFIG, until
from tests.git.test_hostile import MARK, PLANTS, USE
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from tests.conftest import Box

COMMIT = "echo more >>a; git add a; git commit -qm inside"


def sh(box: Box, script: str, *, check: bool = True) -> str:
    """Run a script on the host, in the project."""
    result = box.host("sh", "-ec", script)
    assert not check or result.returncode == 0, result.stderr
    return result.stdout


def make_repository(box: Box) -> Box:
    os.chown(box.base, box.account.uid, box.account.gid)
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    sh(box, "git init -q; echo a >a; git add .; git commit -qm first")
    return box


@pytest.fixture
def repository(box: Box) -> Box:
    """Return a box whose project is a repository."""
    return make_repository(box)


@pytest.fixture
def user_repository(user_box: Box) -> Box:
    """Return the same for what does not depend on the account."""
    return make_repository(user_box)


def test_a_commit_is_there_after_the_session(repository):
    # proves GIT-03
    result = repository.sh(f"{COMMIT}; git switch -qc feature")

    assert result.returncode == 0, result.stderr
    assert "main +1 commit (" in result.stderr
    assert " · feature new · " in result.stderr
    assert sh(repository, "git log --format=%s; git branch --show-current; git status --porcelain") == (
        "inside\nfirst\nfeature\n"
    )
    assert sh(repository, "git fsck --full") == ""


def test_it_shows_while_the_session_runs_and_so_does_the_host_s(repository):
    # proves GIT-03
    script = (
        f"{COMMIT}; until git log -1 --format=%s | grep -q host; do sleep 0.05; done; "
        'until test -z "$(git status --porcelain)"; do sleep 0.05; done; echo both'
    )
    process = start(repository, script)
    try:
        until(lambda: sh(repository, "git log -1 --format=%s") == "inside\n")
        until(lambda: sh(repository, "git status --porcelain") == "")
        sh(repository, "echo b >b; git add b; git commit -qm host")
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert "\nboth\n" in said


def start(box: Box, script: str, *flags: str) -> subprocess.Popen[str]:
    """Start a session and return at once."""
    words = (box.program, "-y", *flags, "--exec", "--", "sh", "-ec", script)
    settings: dict[str, object] = {
        "cwd": box.project, "env": box.variables(), "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT, "encoding": "utf-8", **box.account.demotion,
    }  # fmt: skip
    return subprocess.Popen(words, **settings)  # type: ignore[call-overload, no-any-return]


def test_what_a_killed_session_left_comes_back_with_the_next(repository):
    # proves GIT-03
    process = start(repository, f"{COMMIT}; echo done; sleep 600")
    assert process.stdout is not None
    said = []
    while "done\n" not in said:
        said.append(process.stdout.readline())
        assert said[-1], said
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    result = repository.sh("git log -1 --format=%s")

    assert result.stdout == "inside\n"
    assert sh(repository, "git log -1 --format=%s; git status --porcelain") == "inside\n"


def test_what_stays_inside_is_named_and_how_to_go_on(user_repository):
    # proves GIT-03, AWARE-02
    box = user_repository
    stays = "beef stays inside: its name could be taken for a commit"

    assert stays in box.sh("git branch beef").stderr
    assert box.sh("git status").stderr.count(stays) == 1  # at the end, and not at the launch
    assert stays in box.host(box.program, "sync").stderr
    conflict = f"git switch -qc other; {COMMIT}; git switch -q main; echo x >a; git commit -qam x; git merge -q other"
    said = box.sh(f"{conflict}; git branch -f beef").stderr
    assert stays in said
    assert "a merge is under way inside" in said
    box.sh("git merge --abort")
    assert sh(box, "git log -1 --format=%s; git status --porcelain") == "x\n"


def test_manual_waits_for_the_command(user_repository):
    # proves GIT-03
    box = user_repository
    said = box.sh(COMMIT, flags=("--set", "git_import=manual")).stderr

    assert "`claudebox sync`" in said
    assert sh(box, "git log --format=%s") == "first\n"
    # The next session goes on from there.
    assert box.sh("git log -1 --format=%s", flags=("--set", "git_import=manual")).stdout == "inside\n"
    imported = box.claudebox("sync")
    assert (imported.returncode, imported.stderr.split(" ")[:3]) == (0, ["claudebox:", "git:", "main"])
    assert sh(box, "git log -1 --format=%s; git status --porcelain") == "inside\n"
    assert "nothing to import" in box.claudebox("sync").stderr


def test_ask_shows_and_asks(user_repository):
    # proves GIT-03
    box = user_repository
    with Terminal(box) as terminal:
        for answer, log in (("n\r", "first\n"), ("y\r", "inside\nfirst\n")):
            script = f"test -e done || {{ {COMMIT}; touch .git/done; }}" if answer == "n\r" else "true"
            terminal.type(f"{box.program} -y --set git_import=ask --exec -- sh -c '{script}'")
            terminal.expect("inside")
            terminal.expect(r"1 file changed, 1 insertion")
            terminal.expect(r"Bring these commits into your repository\? \[Y/n\] ")
            terminal.press(answer)
            assert terminal.prompt() == 0
            assert sh(box, "git log --format=%s") == log


def test_a_project_file_can_ask_for_a_look_and_not_for_less(user_repository):
    # proves GIT-03
    box = user_repository
    box.write(".claudebox.toml", 'git_import = "manual"\n')

    assert "`claudebox sync`" in box.sh(COMMIT).stderr
    assert sh(box, "git log --format=%s") == "first\n"


def test_a_session_without_git_imports_nothing(user_repository):
    # proves GIT-03
    box = user_repository
    box.sh(COMMIT)
    copied = next(Path(box.home, ".claudebox/instances").glob("*/git/*/synced/host"))  # by each import
    copied.unlink()

    assert "claudebox: git" not in box.sh("cat a").stderr
    assert not copied.exists()


def test_everything_planted_at_once_runs_nothing_on_the_host(repository):
    # proves GIT-03, SEC-04, D01, D05, D06, D07, D08, D23
    box = repository
    sh(box, "git init -q --bare ../upstream; git remote add origin ../upstream; git push -q -u origin main")
    evil = box.write("evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\nexit 1\n", mode=0o755)
    script = "mkdir -p .git/info\n" + "\n".join(f"({plant.format(evil=evil)})" for plant in PLANTS.values())
    box.sh(f"{COMMIT}\n{script}\ntrue")

    box.host("sh", "-c", USE)

    assert not os.path.exists(f"{box.home}/{MARK}")
    assert "inside" in sh(box, "git log --all --format=%s").split("\n")
    # The positive control: the same in a real git directory.
    box.host("sh", "-c", f"mkdir -p .git/info\n{script}")
    box.host("sh", "-c", USE)
    assert os.path.exists(f"{box.home}/{MARK}")


def test_a_repository_made_inside_is_there_afterwards(box):
    # proves GIT-03, D11
    os.chown(box.base, box.account.uid, box.account.gid)
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    evil = box.write("evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)

    result = box.sh(
        f"git init -q; echo a >a; git add a; git commit -qm inside; git config core.fsmonitor {evil}; git branch more; "
        "echo s >s; git add s"
    )

    assert "claudebox: main new · more new · 2 files: a, s" in result.stderr, result.stderr
    assert sh(box, "git log --format=%s; git status --porcelain; git branch --format='%(refname)'") == (
        "inside\nA  s\n?? evil.sh\nrefs/heads/main\nrefs/heads/more\n"
    )
    assert not os.path.exists(f"{box.home}/{MARK}")
    assert sh(box, "git fsck --full --no-dangling") == ""
    # And the next session goes on with it.
    assert box.sh("git commit -qm second; git log --format=%s").stdout == "second\ninside\n"
    assert sh(box, "git log -1 --format=%s; git config core.fsmonitor || true") == "second\n"


def test_a_submodule_added_inside_is_there_afterwards(repository):
    # proves GIT-03, D10, D11
    box = repository
    sh(box, "git init -q lib; cd lib; echo l >l; git add l; git commit -qm lib; cd ..; mv lib ../lib")
    sh(box, "git clone -q --bare ../lib lib.git")  # where the agent can read it

    result = box.sh("git -c protocol.file.allow=always submodule add -q ./lib.git sub && git commit -qm add", env={})

    assert result.returncode == 0, result.stderr
    said = sh(box, "git log -1 --format=%s; git status --porcelain -uno; git submodule status")
    assert said.startswith("add\n-"), said + result.stderr  # which submodules are active is a setting of the user
    sh(box, "git submodule update --init")
    assert sh(box, "git submodule status").endswith(" sub (heads/main)\n")
    assert sh(box, "cd sub; git log --format=%s; git status --porcelain") == "lib\n"
    config = Path(box.project, ".git/modules/sub/config").read_text()
    assert "worktree" in config
    assert "remote" not in config


def test_a_submodule_that_is_not_initialised_outside_can_be_inside(repository):
    # proves GIT-03, GIT-04, D10, D13
    box = repository
    sh(box, "git init -q lib; cd lib; echo l >l; git add l; git commit -qm lib; cd ..; mv lib ../lib")
    sh(box, "git clone -q --bare ../lib lib.git; for at in dir/sub two; do git submodule add -q ./lib.git $at; done")
    sh(box, "git commit -qm add; git submodule --quiet deinit -f --all; rm -r .git/modules two; echo kept >dir/x")
    planted = (
        "for at in dir/sub two; do mv $at other; rm -rf $at; mkdir -p $at; git init -q $at; done; mv dir other; "
        f"git config --file dir/sub/.git/config core.fsmonitor '{box.base}/run'"
    )
    work = (
        'test -z "$(git status --porcelain -uno)" || exit 9; git submodule update -q --init --recursive || exit 8; '
        "cd dir/sub; git switch -qc topic; echo more >>l; git commit -qam inner; cd ../..; git commit -qam outer; "
        "echo uncommitted >>dir/sub/l; touch up; while test -e up; do sleep 0.05; done"
    )
    process = start(box, work)
    try:
        until(lambda: os.path.exists(f"{box.project}/up"))
        during = sh(box, "git status --porcelain -uno; ls -A dir/sub two")
        os.unlink(f"{box.project}/up")
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    again = box.sh("git -C dir/sub log -1 --format=%s; git -C dir/sub status --porcelain")

    assert process.returncode == 0, said
    assert during == "dir/sub:\n\ntwo:\n"  # git of the host sees what it saw before
    assert "git (dir/sub): it is not initialised outside: `git submodule update --init`" in said
    assert again.stdout == "inner\n M l\n", again.stderr
    assert sh(box, "git log -1 --format=%s; ls -A dir/sub; git status --porcelain -uno") == "outer\n D two\n"
    box.write(f"{box.base}/run", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    assert "Device or resource busy" in box.sh(planted).stderr
    sh(box, "git status; git submodule update --init dir/sub; git status")
    assert sh(box, "cd dir/sub; git log -1 --format=%s; git status --porcelain") == "inner\n"
    assert sh(box, "git fsck --full --no-dangling; git -C dir/sub fsck --full --no-dangling") == ""
    assert not os.path.exists(f"{box.home}/{MARK}")
    assert not os.path.exists(f"{box.project}/two")


def test_stashes_and_notes_made_inside_stay_and_are_mentioned(user_repository):
    # proves GIT-03
    box = user_repository
    sh(box, "echo host >>a; git stash push -qm host")

    first = box.sh("echo inside >>a; git stash push -qm inside; git notes add -m note; git pack-refs --all")
    sh(box, "git commit -q --allow-empty -m host")  # so that the git directory is made anew
    second = box.sh(
        "git log -1 --format=%s; git stash list; git notes show HEAD~1; git stash pop -q; git stash list; cat a"
    )

    assert "git: stashes made inside stay there: `claudebox --exec -- git stash list`" in first.stderr
    assert "git: notes/commits made inside stay there" in first.stderr
    listed = ["stash@{0}: On main: inside", "stash@{1}: On main: host", "note", "stash@{0}: On main: host"]
    assert second.stdout.splitlines() == ["host", *listed, "a", "inside"]
    assert "stashes made inside" not in second.stderr
    assert sh(box, "git stash list; git notes list; cat a") == "stash@{0}: On main: host\na\ninside\n"


MADE = "git init -q; echo a >a; git add a; git commit -qm inside"


def test_what_an_agent_broke_in_its_git_directory_does_not_last(user_repository):
    # proves NEW-G4
    box = user_repository
    broken = "echo nowhere >.git/commondir; echo x >.git/index; mkdir .git/index.lock"

    for mode, more in (("auto", "true"), ("manual", "echo x >.git/HEAD")):
        box.sh(f"git commit -q --allow-empty -m {mode}; {broken}; {more}", flags=("--set", f"git_import={mode}"))
        found = box.sh(
            "git log -1 --format=%s; git status --porcelain; git add a", flags=("--set", f"git_import={mode}")
        )
        assert (found.stdout, found.returncode) == (f"{mode}\n", 0), found.stderr
    box.claudebox("sync")
    assert sh(box, "git log --format=%s; git status --porcelain") == "manual\nauto\nfirst\n"


@pytest.mark.parametrize("change", ["reboot", "rename"])
def test_commits_of_a_killed_session_are_found_after_a_reboot_and_a_rename(user_repository, change):
    # proves NEW-R8
    box = user_repository
    box.sh(COMMIT, flags=("--set", "git_import=manual"))  # as if it had been killed: nothing has come back
    (private,) = [path.parent for path in Path(box.home, ".claudebox/instances").glob("*/git/*/state")]
    if change == "reboot":  # its name was made of a number that has changed
        private.rename(private.with_name("0" * 16))
    else:
        os.rename(box.project, f"{box.base}/renamed")
        box.project = f"{box.base}/renamed"

    result = box.sh("true")

    assert "main +1 commit" in result.stderr, result.stderr
    assert sh(box, "git log --format=%s; git status --porcelain") == "inside\nfirst\n"


def test_a_repository_made_inside_waits_where_it_cannot_be_put(user_box):
    # proves NEW-E5
    box = user_box
    box.write(f"{box.home}/.gitconfig", GITCONFIG)

    result = box.sh(f"{MADE}; chmod 555 .; exit 7")

    assert result.returncode == 7
    assert f"`{box.project}/.git` cannot be made: Permission denied" in result.stderr
    os.chmod(box.project, 0o755)
    assert sorted(os.listdir(box.project)) == ["a"]
    assert "main new" in box.claudebox("sync").stderr
    assert sh(box, "git log --format=%s; git status --porcelain") == "inside\n"


KILL = """
import os, signal, sys
source, path, when = sys.argv[1:]
sys.path.insert(0, source)
from claudebox.git import adoption as git_adopt, importer as git_import
from claudebox.git.sandbox import Tools
class Killing:
    def __getattr__(self, name):
        return getattr(os, name)
    def rename(self, *names, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename(*names, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    def makedirs(self, *names, **options):
        os.makedirs(*names, **options)
        if when == "early":
            os.kill(os.getpid(), signal.SIGKILL)
git_adopt.os = Killing()
git_import.adopt(path, Tools("/usr/bin/bwrap"), "s1")
"""


@pytest.mark.parametrize("when", ["early", "before", "after"])
def test_a_repository_is_adopted_as_a_whole_whenever_it_is_killed(user_box, checkout, when):
    # proves NEW-R6
    box = user_box
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    box.sh(MADE, flags=("--set", "git_import=manual"))
    (private,) = [path.parent for path in Path(box.home, ".claudebox/instances").glob("*/git/*/state")]
    killed = box.host("/usr/bin/python3", "-IS", "-c", KILL, f"{checkout}/src", str(private), when)
    assert killed.returncode == -9, killed.stderr
    assert not os.path.exists(f"{box.project}/.git") or sh(box, "git status --porcelain") == "?? a\n"

    said = box.claudebox("sync").stderr

    assert "main new" in said, said
    assert sh(box, "git log --format=%s; git status --porcelain; ls -A") == "inside\n.git\na\n"


def start_waiting(box: Box, cwd: str, script: str, first: str = "true") -> subprocess.Popen[str]:
    """Start a session that waits for the file `go` and then runs a script; return it when it waits."""
    wait = f"{first}; touch up; for i in $(seq 600); do [ -e go ] && break; sleep 0.1; done; {script}"
    process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
        (box.program, "-y", "--exec", "--", "sh", "-ec", wait), cwd=cwd, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=box.variables(None),
        **box.account.demotion,
    )  # fmt: skip
    until(lambda: os.path.exists(f"{cwd}/up") or process.poll() is not None)
    return process


@pytest.mark.parametrize("swapped", ["z/sub", "z"])
@pytest.mark.parametrize("made", ["before", "inside"])
def test_commits_stay_inside_where_an_agent_above_has_replaced_the_repository(repository, swapped, made):
    # proves GIT-03, END-01
    box = repository
    theirs, moved = f"{box.base}/z", f"{box.project}/away{'' if swapped == 'z/sub' else '/sub'}"
    listed = f"cd {theirs}/sub; find . -type f | sort | xargs sha256sum"
    sh(box, f"mkdir -p {theirs} z; git clone -q . {theirs}/sub")
    if made == "inside":
        sh(box, f"rm -rf .git {theirs}/sub/.git")
    above = start_waiting(box, box.project, f"mv {swapped} away; ln -s {box.base}/{swapped} {swapped}")
    sh(box, f"git clone -q {theirs}/sub z/sub" if made == "before" else "mkdir z/sub")
    below = start_waiting(box, f"{box.project}/z/sub", COMMIT, "git init -q -b main")
    box.write(f"{box.project}/go", "")
    above.communicate(timeout=120)
    before = sh(box, listed)
    box.write(f"{moved}/go", "")
    said, _ = below.communicate(timeout=120)
    after = sh(box, listed)
    later = box.sh("git log -1 --format=%s", cwd=moved)

    assert "was replaced or moved" in said, said
    assert below.returncode == 1, said
    assert after == before  # nobody's but the user's
    if made == "before":
        assert sh(box, f"git -C {moved} log -1 --format=%s") == "inside\n", (said, later.stderr)
