"""Real repositories, worktrees and submodules are found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.git.conftest import run_git

from claudebox.base.state import Instance
from claudebox.git import facts as git_facts
from claudebox.host.records import PathFact
from claudebox.settings.records import MountRequest, Policy

if TYPE_CHECKING:
    from claudebox.git.facts import Repository


UID = os.getuid()


def find(path) -> Repository | None:
    return git_facts.find_repository(str(path), UID)


def found(path) -> Repository:
    repository = find(path)
    assert repository is not None
    assert repository.problem == ""
    assert repository.directory is not None
    return repository


def test_a_directory_without_a_repository_has_none(tmp_path):
    assert find(tmp_path) is None
    (tmp_path / ".git").mkdir()  # git passes over it
    assert find(tmp_path) is None


def test_a_main_repository_is_found(main):
    # proves GIT-01, GIT-02
    repository = found(main)

    assert (repository.root, repository.common_dir, repository.git_dir) == (str(main), f"{main}/.git", f"{main}/.git")
    assert repository.gitfile is None
    assert repository.directory is not None
    status = os.stat(main / ".git")
    assert repository.directory.identity == (status.st_dev, status.st_ino)
    assert [store.path for store in repository.directory.stores] == [f"{main}/.git/objects"]


def test_a_repository_that_starts_above_is_found_there(main):
    # proves GIT-04
    (main / "a/b").mkdir(parents=True)
    repository = found(main / "a/b")

    assert (repository.root, repository.main) == (str(main), str(main / "a/b"))


def test_a_worktree_is_found_with_its_own_part(main, worktree):
    # proves GIT-01, GIT-02, D14
    repository = found(worktree)

    assert (repository.root, repository.common_dir) == (str(worktree), f"{main}/.git")
    assert repository.git_dir == f"{main}/.git/worktrees/tree"
    assert repository.gitfile is not None


def test_worktrees_of_one_repository_share_what_stands_for_the_project(main, worktree, tmp_path):
    # proves INST-01, NEW-G1
    run_git("worktree", "add", "-q", tmp_path / "second", cwd=main)
    places = (main, worktree, tmp_path / "second")

    assert {found(path).main for path in places} == {str(main)}
    # Each has a git directory of its own inside, which is found again after a rename.
    names = [directory.name for path in places if (directory := found(path).directory)]
    assert len(set(names)) == 3
    moved = found(main.rename(tmp_path / "moved")).directory
    assert moved is not None
    assert moved.name == names[0]


def test_a_worktree_of_a_bare_repository_is_found(main, tmp_path):
    run_git("clone", "-q", "--bare", main, tmp_path / "bare.git", cwd=tmp_path)
    run_git("worktree", "add", "-q", tmp_path / "tree", cwd=tmp_path / "bare.git")

    assert found(tmp_path / "tree").common_dir == str(tmp_path / "bare.git")


def test_a_git_directory_elsewhere_must_name_the_checkout(main, tmp_path):
    # proves D15, GIT-04
    run_git("clone", "-q", "--separate-git-dir", tmp_path / "elsewhere", main, tmp_path / "out", cwd=tmp_path)
    unknown = find(tmp_path / "out")
    assert unknown is not None
    assert 'git config core.worktree "$PWD"' in unknown.problem
    run_git("config", "core.worktree", tmp_path / "out", cwd=tmp_path / "out")

    assert found(tmp_path / "out").common_dir == str(tmp_path / "elsewhere")


def test_a_git_directory_in_the_project_is_found(main, tmp_path):
    # proves D13, GIT-04
    project = tmp_path / "project"
    run_git("clone", "-q", "--bare", main, project / ".bare", cwd=tmp_path)
    (project / ".git").write_text("gitdir: ./.bare\n")

    assert found(project).common_dir == str(project / ".bare")


def test_a_submodule_is_found_from_within_and_from_above(main, tmp_path):
    # proves GIT-01, GIT-02, D10
    outer = tmp_path / "outer"
    run_git("init", "-q", outer, cwd=tmp_path)
    run_git("submodule", "--quiet", "add", "--name", "a/name", main, "dir/part", cwd=outer)
    inside = found(outer / "dir/part")
    assert (inside.root, inside.common_dir) == (str(outer / "dir/part"), str(outer / ".git/modules/a/name"))

    above = found(outer)
    assert [(row.place, row.worktree) for row in above.submodules] == [("modules/a/name", str(outer / "dir/part"))]
    (outer / ".gitmodules").unlink()
    assert found(outer).checkouts == ("dir/part",)


def test_submodules_of_submodules_and_of_worktrees_are_found(main, tmp_path):
    # proves D10, OLD-A17
    middle, top, tree = tmp_path / "middle", tmp_path / "top", tmp_path / "tree"
    for outer, inner in ((middle, main), (top, middle)):
        run_git("init", "-q", outer, cwd=tmp_path)
        run_git("submodule", "--quiet", "add", inner, "sub", cwd=outer)
        run_git("commit", "-qm", "with submodule", cwd=outer)
    assert "sub/sub" in found(top).checkouts  # which is not initialised
    run_git("submodule", "--quiet", "update", "--init", "--recursive", cwd=top)
    assert [row.place for row in found(top).submodules] == ["modules/sub", "modules/sub/modules/sub"]

    run_git("worktree", "add", "-q", tree, cwd=top)
    run_git("submodule", "--quiet", "update", "--init", cwd=tree)
    assert "worktrees/tree/modules/sub" in [row.place for row in found(tree).submodules]


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_submodules_are_found_in_an_index_of_any_version(main, tmp_path, version):
    # proves D10
    outer = tmp_path / "outer"
    run_git("init", "-q", outer, cwd=tmp_path)
    run_git("config", "index.version", version, cwd=outer)
    for name in ("a", "dir/nested", "z" * 200):
        run_git("init", "-q", outer / name, cwd=outer)
        run_git("commit", "-q", "--allow-empty", "-m", "x", cwd=outer / name)
        (outer / f"{name}-file").write_text("x")
    run_git("add", "-A", cwd=outer)
    if version == "3":
        (outer / "later").write_text("x")
        run_git("add", "-N", "later", cwd=outer)

    assert set(git_facts.find_submodules(f"{outer}/.git/index", 20)) == {"a", "dir/nested", "z" * 200}
    assert {nested.root for nested in found(outer).nested} == {
        f"{outer}/{name}" for name in ("a", "dir/nested", "z" * 200)
    }


@pytest.mark.parametrize("content", [b"", b"DIRC", b"DIRC\0\0\0\4\xff\xff\xff\xff\0\0\xe0\0", b"x\0\0\xe0\0" * 99,
                                     b"DIRC\0\0\0\2" + b"\0\0\xe0\0" * 4000])  # fmt: skip
def test_no_index_stops_the_search(tmp_path, content):
    # proves C18
    (tmp_path / "index").write_bytes(content)
    assert isinstance(git_facts.find_submodules(f"{tmp_path}/index", 20), tuple)
    os.mkfifo(tmp_path / "pipe")
    assert git_facts.find_submodules(f"{tmp_path}/pipe", 20) == ()


def test_stores_that_are_borrowed_are_found_along_the_chain(main, tmp_path):
    # proves D15, GIT-04
    run_git("clone", "-q", "--shared", main, tmp_path / "second", cwd=tmp_path)
    run_git("clone", "-q", "--shared", tmp_path / "second", tmp_path / "third", cwd=tmp_path)
    stores = found(tmp_path / "third").directory.stores  # type: ignore[union-attr]

    assert [(store.path, store.borrowed, store.chained) for store in stores] == [
        (f"{tmp_path}/third/.git/objects", False, True),
        (f"{tmp_path}/second/.git/objects", True, True),
        (f"{main}/.git/objects", True, False),
    ]


def test_a_link_in_place_of_objects_is_not_followed(main, tmp_path):
    # proves C04, D15
    (main / ".git/objects").rename(main / ".git/elsewhere")
    (main / ".git/objects").symlink_to(main / ".git/elsewhere")
    refused = find(main)

    assert refused is not None
    assert "has no objects" in refused.problem


def test_repositories_in_writable_mounts_are_found(main, tmp_path):
    # proves D05
    instance = Instance(f"{tmp_path}/state", "", "")
    for source in (str(main), str(tmp_path)):
        policy = Policy("exec", mounts=(MountRequest(source, source, writable=True, origin="--mount-rw"),))
        found, protected = git_facts.look(policy, {source: PathFact(source, source)}, None, "/", {}, instance)
        assert [row.root for row in found] == [str(main)]
        assert f"{main}/.vscode" in [row.path for row in protected]
    policy = Policy("exec", mounts=(MountRequest(str(main), str(main), writable=False, origin="--mount-ro"),))
    assert git_facts.look(policy, {}, None, "/", {}, instance) == ((), ())


def test_a_name_with_line_ends_is_found_as_it_is(tmp_path):
    # proves C11
    odd = tmp_path / "a\nb'$(x)"
    run_git("init", "-q", odd, cwd=tmp_path)

    assert found(odd).common_dir == f"{odd}/.git"
