"""Linked worktrees: commits reach the main repository, attacks do not; and forged links bind nothing."""

from __future__ import annotations

import os
import re

import pytest
from tests.support.repositories import snapshot
from tests.support.terminals import Terminal


@pytest.fixture
def worktree(box, git, committed) -> str:
    """Return a linked worktree beside the project, which is the main repository."""
    path = f"{box.base}/linked"
    os.chmod(box.base, 0o777)
    git("worktree", "add", "-q", path, "-b", "linked")
    return path


def test_commits_in_a_linked_worktree_arrive_in_the_main_repository(box, git, worktree):
    # proves GIT-02
    script = (
        "git status --porcelain && echo more >more && git add more && git commit -qm inside && git branch side && "
        "git log --format=%s"
    )

    result = box.sh(script, cwd=worktree)

    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["inside", "first"]
    assert git("log", "--format=%s", "linked").split() == ["inside", "first"]
    assert "side" in git("branch")
    assert git("fsck", "--no-dangling") == ""
    assert git("status", "--porcelain", cwd=worktree) == ""


def test_sessions_at_once_in_worktrees_of_one_repository_each_move_their_own_branch(box, git, worktree, background):
    # proves NEW-G1, GIT-02
    names = [f"tree{number}" for number in range(4)]
    for name in names:
        git("worktree", "add", "-q", f"{box.base}/{name}", "-b", name)
    script = (
        f'hook={box.project}/.git/hooks/post-commit; printf "#!/bin/sh\necho $0 >>/tmp/ran\n" >"$hook"; '
        'chmod +x "$hook"; for number in 1 2 3; do sleep .3; echo "$number" >>f; git add -A; '
        'git commit -qm "$0 $number"; done; echo s >staged; git add staged; sort -u /tmp/ran'
    )

    places = {**{name: f"{box.base}/{name}" for name in names}, "main": box.project}
    started = {
        name: background(box, box.program, "-y", "--exec", "--", "sh", "-c", script, name, cwd=place)
        for name, place in places.items()
    }

    for name, process in started.items():
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert [row for row in said.splitlines() if row in places] == [name], said  # whose hook ran
        wanted = [f"{name} {number}" for number in (3, 2, 1)]
        assert git("log", "--format=%s", name).splitlines()[:3] == wanted, said
        assert git("status", "--porcelain", cwd=places[name]) == "A  staged\n"
    assert "claudebox/" not in git("for-each-ref")
    assert git("fsck", "--no-dangling") == ""


def test_a_submodule_that_is_added_in_a_linked_worktree_comes_back(box, git, worktree):
    # proves NEW-G1, GIT-04
    git("init", "-q", "-b", "main", f"{worktree}/seed", cwd=worktree)
    git("-C", f"{worktree}/seed", "commit", "-q", "--allow-empty", "-m", "seed")
    script = (
        "git -c protocol.file.allow=always submodule --quiet add ./seed part && git -C part commit -q --allow-empty -m"
        " inside && git add part .gitmodules && git commit -qm with-part"
    )

    result = box.sh(script, cwd=worktree)

    assert result.returncode == 0, result.stderr
    place = f"{box.project}/.git/worktrees/linked/modules/part"
    assert git("--git-dir", place, "log", "-1", "--format=%s", "main") == "inside\n", result.stderr


def test_nothing_that_git_executes_can_be_planted_from_a_linked_worktree(box, git, worktree):
    # proves D13, D14, D06, D07, R08, OLD-A15
    main = f"{box.project}/.git"
    own = f"{main}/worktrees/linked"
    attacks = [
        f"echo x >>{main}/config", f"echo x >{main}/hooks/pre-commit", f"echo x >{main}/commondir",
        f"mkdir -p {main}/modules/x", f"echo x >{own}/commondir", f"rm -f {own}/gitdir",
        f"echo x >{own}/config.worktree", f"mkdir {own}/rebase-merge && echo x >{own}/rebase-merge/git-rebase-todo",
    ]  # fmt: skip
    held = ["echo gitdir: /tmp/x >.git", "rm -f .git", "mv .git old"]
    before = snapshot(main)

    script = "\n".join(f"({attack}) 2>/dev/null && echo done" for attack in (*attacks, *held))
    result = box.sh(f"{script}\necho end", cwd=worktree)

    assert result.stdout.split() == [*["done"] * len(attacks), "end"], result.stderr
    assert snapshot(main) == before
    assert git("status", "--porcelain", cwd=worktree) == ""
    assert git("status", "--porcelain") == ""


def test_a_branch_of_another_checkout_stays_its_own(box, git, worktree):
    # proves GIT-04
    result = box.sh("git checkout linked; git worktree list; git worktree prune; git checkout -q linked")

    # in the words of git 2.42 and newer, and of older ones
    assert len(re.findall("already (used by worktree|checked out)", result.stderr)) == 2
    assert [line.split()[2] for line in result.stdout.splitlines()] == ["[main]", "[linked]"]


@pytest.mark.parametrize("place", [".claude/worktrees/made", "trees/made"])
def test_worktrees_that_are_made_inside_are_found_outside(box, git, committed, place):
    # proves GIT-04
    result = box.sh(
        f"git worktree add -q -b made {place} && cd {place} && echo x >committed && git add -A &&"
        "git commit -qm inside && echo y >uncommitted && git worktree list"
    )

    assert result.returncode == 0, result.stderr
    assert git("worktree", "list").split()[3] == f"{box.project}/{place}"
    assert git("status", "--porcelain", cwd=f"{box.project}/{place}") == "?? uncommitted\n"
    assert git("log", "-1", "--format=%s", cwd=f"{box.project}/{place}") == "inside\n"
    again = box.sh(f"cd {place} && git status -s && git log -1 --format=%s")
    assert again.stdout.splitlines() == ["?? uncommitted", "inside"], again.stderr


def test_a_worktree_beside_the_project_is_refused_with_a_sentence(box, git, committed):
    # proves GIT-04
    result = box.sh("git worktree add ../beside; ls ..")

    assert result.stdout.split() == ["home", "project"]
    assert "Read-only file system" in result.stderr


def test_other_checkouts_of_the_repository_stay_out_of_a_linked_worktree(box, git, worktree):
    # proves D14, D15
    box.write("secret-of-main", "not committed")
    os.symlink(worktree, f"{box.base}/alias")

    result = box.sh(f"ls -A {box.project}; cat {box.project}/secret-of-main", cwd=worktree)

    assert result.stdout.split() == [".git"]


def forge(box, kind: str) -> str:
    """Forge a `.git` in the project that names a private repository elsewhere, and return that."""
    private = f"{box.base}/private"
    box.write(f"{private}/.git/config", "[core]\n\tbare = false\n")
    box.write(f"{private}/.git/secret", "secret of another repository")
    box.write(f"{private}/.git/HEAD", "ref: refs/heads/main\n")
    for part in ("objects", "refs", "logs"):
        box.mkdir(f"{private}/.git/{part}")
    if kind == "plain":
        box.write(".git", f"gitdir: {private}/.git\n")
    elif kind == "through a forged worktree":  # the agent made a git directory that claims a main repository
        forged = box.mkdir(f"{box.project}/forged/worktrees/x")
        box.write(f"{forged}/gitdir", f"{box.project}/.git\n")
        box.write(f"{forged}/commondir", f"{private}/.git\n")
        box.write(f"{forged}/HEAD", "ref: refs/heads/main\n")
        box.write(".git", f"gitdir: {forged}\n")
    elif kind == "another worktree":  # names a worktree that belongs to somebody else's checkout
        box.write(f"{private}/.git/worktrees/other/gitdir", f"{box.base}/elsewhere/.git\n")
        box.write(f"{private}/.git/worktrees/other/commondir", "../..\n")
        box.write(".git", f"gitdir: {private}/.git/worktrees/other\n")
    elif kind == "link":
        os.symlink(f"{private}/.git", f"{box.project}/.git")
    elif kind == "commondir":
        box.write(".git/HEAD", "ref: refs/heads/main\n")
        box.write(".git/commondir", f"{private}/.git\n")
    else:
        box.write(f"{private}/.git/gitdir", f"{box.project}/.git\n")
        box.write(".git", f"gitdir: {private}/.git/../.git\n")
    return private


@pytest.mark.parametrize(
    "kind", ["plain", "through a forged worktree", "another worktree", "link", "commondir", "back-link only"]
)
def test_forged_git_files_bind_nothing(box, kind):
    # proves D15, OLD-A23
    private = forge(box, kind)

    control = box.host("cat", f"{private}/.git/secret")
    result = box.sh(f"cat {private}/.git/secret; ls -A {private}; touch {private}/.git/objects/made; echo end")
    plan = box.claudebox("--dry-run", "--exec", "--", "true")

    assert control.stdout == "secret of another repository"
    assert result.stdout in ("end\n", ""), result.stdout
    assert result.returncode in (0, 125)
    assert private not in plan.stdout
    assert os.listdir(f"{private}/.git/objects") == []


@pytest.mark.parametrize("believed", [True, False])
def test_a_git_file_that_is_replaced_while_claudebox_asks_shows_nothing_else(box, git, worktree, believed):
    # proves C04, C10, D13, D15
    if not believed:
        box.write(f"{worktree}/.git", "gitdir: nowhere\n")
    secret = box.write(f"{box.home}/.netrc", "secret-of-the-host\n")  # its directory exists inside, too
    # A relative link leads to the secret on the host, and to a place in the empty home inside.
    script = f"cat .git {secret}; echo e''nd"
    box.project = worktree

    with Terminal(box, argv=(box.program, "--exec", "--", "sh", "-c", script)) as terminal:
        terminal.expect(r"Proceed\?")
        os.unlink(f"{worktree}/.git")
        os.symlink(os.path.relpath(secret, worktree), f"{worktree}/.git")
        terminal.type("y")
        terminal.expect(r"\nend\n|error: .*\n")
        shown = terminal.raw()

    assert box.host("cat", ".git", cwd=worktree).stdout == "secret-of-the-host\n"
    assert "secret-of-the-host" not in shown
