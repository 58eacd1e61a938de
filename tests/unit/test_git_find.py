"""Real repositories, worktrees and submodules are found."""

from __future__ import annotations

import os
import shutil

from tests.unit.conftest import run_git

from claudebox.facts import git

UID = os.getuid()


def find(path) -> git.Repository | None:
    return git.find_repository(str(path), UID)


def test_a_directory_without_a_repository_has_none(tmp_path):
    assert find(tmp_path) is None


def test_a_main_repository_is_found(main):
    # proves GIT-01, GIT-02
    found = find(main)

    assert found is not None
    assert (found.root, found.common_dir, found.linked, found.problem) == (str(main), f"{main}/.git", False, "")


def test_a_repository_that_starts_above_is_found_there(main):
    (main / "a/b").mkdir(parents=True)
    found = find(main / "a/b")

    assert found is not None
    assert (found.root, found.common_dir) == (str(main), "")


def test_a_worktree_is_found_with_what_a_commit_writes(main, worktree):
    # proves GIT-01, GIT-02, D14
    found = find(worktree)

    assert found is not None
    assert (found.root, found.common_dir, found.linked, found.problem) == (str(worktree), f"{main}/.git", True, "")
    own = f"{main}/.git/worktrees/tree"
    assert {path for path, _ in found.writable} == {
        own,
        *(f"{main}/.git/{part}" for part in ("objects", "refs", "logs")),
    }
    assert set(found.frozen) == {f"{own}/commondir", f"{own}/gitdir"}
    for path, identity in found.writable:
        assert identity == (os.stat(path).st_dev, os.stat(path).st_ino)


def test_worktrees_of_one_repository_share_what_stands_for_the_project(main, worktree, tmp_path):
    # proves INST-01
    run_git("worktree", "add", "-q", tmp_path / "second", cwd=main)
    names = {found.main for found in (find(main), find(worktree), find(tmp_path / "second")) if found}

    assert names == {str(main)}


def test_a_worktree_of_a_bare_repository_is_found(main, tmp_path):
    run_git("clone", "-q", "--bare", main, tmp_path / "bare.git", cwd=tmp_path)
    run_git("worktree", "add", "-q", tmp_path / "tree", cwd=tmp_path / "bare.git")
    found = find(tmp_path / "tree")

    assert found is not None
    assert (found.common_dir, found.problem) == (str(tmp_path / "bare.git"), "")


def test_a_worktree_with_configuration_of_its_own_stays_read_only(main, worktree):
    # proves D07
    run_git("config", "extensions.worktreeConfig", "true", cwd=main)
    found = find(worktree)

    assert found is not None
    assert (found.common_dir, found.writable, found.problem) == (f"{main}/.git", (), "")


def test_a_link_planted_among_what_a_commit_writes_is_left_out(main, worktree, tmp_path):
    # proves C04
    shutil.rmtree(main / ".git/logs")
    (main / ".git/logs").symlink_to(tmp_path)
    found = find(worktree)

    assert found is not None
    assert f"{main}/.git/logs" not in {path for path, _ in found.writable}
    assert f"{main}/.git/refs" in {path for path, _ in found.writable}


def test_a_submodule_is_found(main, tmp_path):
    # proves GIT-01, GIT-02
    run_git("init", "-q", tmp_path / "outer", cwd=tmp_path)
    run_git("submodule", "--quiet", "add", main, "part", cwd=tmp_path / "outer")
    found = find(tmp_path / "outer/part")

    assert found is not None
    assert (found.root, found.common_dir) == (str(tmp_path / "outer/part"), str(tmp_path / "outer/.git/modules/part"))
    assert (found.linked, found.problem, found.writable) == (True, "", ())


def test_a_name_with_line_ends_is_found_as_it_is(tmp_path):
    # proves C11
    odd = tmp_path / "a\nb'$(x)"
    (odd / ".git").mkdir(parents=True)
    found = find(odd)

    assert found is not None
    assert found.common_dir == f"{odd}/.git"
