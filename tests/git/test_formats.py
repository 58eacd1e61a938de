"""Repositories that lack something or keep it elsewhere: partial clones, Git LFS, formats of newer gits."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.conftest import need
from tests.git.test_session import make_repository, sh


def test_a_partial_clone_fetches_inside_and_comes_back(user_box):
    # proves GIT-03, GIT-04
    box = make_repository(user_box)
    sh(box, "echo later >a; git commit -qam later; cp -r . ../origin")
    sh(box, "cd ../origin; git config uploadpack.allowFilter true; git config uploadpack.allowAnySHA1InWant true")
    sh(box, "rm -rf .git a; git clone -q --no-checkout --filter=blob:none file://$(realpath ../origin) ../c")
    sh(box, "mv ../c/.git .; git checkout -q main")
    missing = sh(box, "git rev-list --objects --missing=print HEAD | grep -c '^?'")
    alone = box.sh("git checkout -q HEAD~1; echo $?; git status --porcelain; cat a")
    script = "git switch -qc old HEAD~1; cat a; echo three >a; git commit -qam three; git gc -q; git fsck"
    result = box.sh(script, flags=("--mount-ro", f"{box.base}/origin"))

    assert missing == "1\n"
    assert alone.stdout == "128\nlater\n"  # nothing is destroyed where the remote cannot be reached
    assert "could not fetch" in alone.stderr
    assert result.stdout == "a\n", result.stderr
    assert sh(box, "git log --format=%s; git status --porcelain; git fsck") == "three\nfirst\n"


def test_large_files_are_large_files_inside(user_box):
    # proves GIT-03, GIT-04
    need(shutil.which("git-lfs"), "git-lfs")
    box = make_repository(user_box)
    sh(box, "git lfs install >/dev/null; git lfs track '*.bin' >/dev/null")
    sh(box, "echo one >a.bin; git add .; git commit -qm one; echo two >a.bin; git commit -qam two")
    script = (
        "git status --porcelain; git checkout -q HEAD~1; cat a.bin; git switch -q main; echo three >a.bin; "
        "git commit -qam three; git lfs fsck; git show HEAD:a.bin | head -1"
    )
    result = box.sh(script)

    pointer = "version https://git-lfs.github.com/spec/v1\n"
    assert result.stdout == f"one\nGit LFS fsck OK\n{pointer}", result.stderr
    assert (
        sh(box, "git status --porcelain; git lfs fsck; git show HEAD:a.bin | head -1") == f"Git LFS fsck OK\n{pointer}"
    )
    assert sh(box, "rm a.bin; git checkout -q -- .; cat a.bin") == "three\n"


def test_refs_in_tables_come_back(user_box):
    # proves GIT-03, GIT-04
    box = make_repository(user_box)
    if box.host("git", "init", "-q", "--ref-format=reftable", f"{box.base}/try").returncode:
        pytest.skip("this git knows no reftables")
    sh(box, "rm -rf .git; git init -q --ref-format=reftable; git add .; git commit -qm first; git branch side")
    first = box.sh(
        "echo more >>a; git commit -qam inside; git branch -qD side; git tag v1; git switch -qc feature; "
        "echo s >>a; git stash -q"
    )
    sh(box, "git commit -q --allow-empty -m host")
    second = box.sh("git log --format=%s; git stash list | wc -l")

    assert "feature new · tag v1 new · side deleted (was " in first.stderr
    assert "refs/stash stays inside" in first.stderr
    assert sh(box, "git for-each-ref --format='%(refname:short)'; git status -sb") == "feature\nmain\nv1\n## feature\n"
    assert second.stdout == "host\ninside\nfirst\n1\n"
    assert sh(box, "git fsck") == ""


def test_refs_in_tables_come_back_from_a_linked_worktree(user_box):
    # proves NEW-G2
    box = make_repository(user_box)
    if box.host("git", "init", "-q", "--ref-format=reftable", f"{box.base}/try").returncode:
        pytest.skip("this git knows no reftables")
    sh(box, "rm -rf .git; git init -q --ref-format=reftable; git add .; git commit -qm first")
    sh(box, "git worktree add -q -b linked ../linked")
    linked = os.path.join(os.path.dirname(box.project), "linked")
    first = box.sh("echo more >>a; git commit -qam inside; git switch -qc feature; git commit -q --allow-empty -m f",
                   cwd=linked)  # fmt: skip
    second = box.sh("git log --format=%s; git switch -q --detach linked", cwd=linked)

    assert first.returncode == 0, first.stderr
    assert sh(box, "git log --format=%s linked; git log -1 --format=%s feature") == "inside\nfirst\nf\n"
    assert second.stdout == "f\ninside\nfirst\n"
    assert sh(box, "cd ../linked; git status -sb; git rev-parse --abbrev-ref HEAD") == "## HEAD (no branch)\nHEAD\n"
    assert sh(box, "git status -sb; git fsck") == "## main\n"


def test_a_format_that_git_does_not_know_is_refused_inside_as_outside(user_box):
    # proves GIT-04
    box = make_repository(user_box)
    sh(box, "git config core.repositoryFormatVersion 1; git config extensions.refStorage newer")
    outside = box.host("git", "status")
    inside = box.sh("git status; echo more >>a")

    assert outside.returncode == 128
    assert outside.stderr in inside.stderr
    assert sh(box, "cat a") == "a\nmore\n"
