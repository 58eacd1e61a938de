"""Repositories that are not what they say are not believed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from tests.git.conftest import run_git

from claudebox.git import facts as git_facts

if TYPE_CHECKING:
    from claudebox.git.facts import Repository

UID = os.getuid()


def find(path, uid: int = UID) -> Repository | None:
    return git_facts.find_repository(str(path), uid)


def refused(path, uid: int = UID) -> str:
    """Return why a checkout was not believed; nothing outside of it may be named then."""
    found = find(path, uid)
    assert found is not None
    assert found.problem
    assert (found.directory, found.submodules, found.nested) == (None, (), ())
    return found.problem


@pytest.fixture
def project(tmp_path):
    """Return an empty hostile project."""
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def forge(project, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (project / ".git").write_bytes(data)


def test_a_git_file_cannot_name_somebody_elses_main_repository(project, main):
    # proves D15
    for spelling in (f"{main}/.git", "../main/.git", f"{main}/.git/", f"{main}/sub/../.git", f"/{main}/.git"):
        forge(project, f"gitdir: {spelling}\n")
        assert "does not know this checkout" in refused(project)


def test_a_git_file_cannot_name_somebody_elses_worktree(project, main, worktree):
    # proves D15
    forge(project, f"gitdir: {main}/.git/worktrees/tree\n")
    assert "does not know this checkout" in refused(project)
    assert find(worktree).problem == ""  # type: ignore[union-attr]


def test_a_git_file_cannot_name_a_submodule_of_another_repository(project, main, tmp_path):
    # proves D15
    run_git("init", "-q", tmp_path / "outer", cwd=tmp_path)
    run_git("submodule", "--quiet", "add", main, "part", cwd=tmp_path / "outer")
    forge(project, f"gitdir: {tmp_path}/outer/.git/modules/part\n")

    assert "does not know this checkout" in refused(project)


def test_a_place_within_the_project_that_a_git_file_names_cannot_be_made_from_inside(project):
    # proves D13, D15
    for spelling, place in (("fake", "fake"), ("./a/../.bare", ".bare"), (f"{project}/x/y", "x/y")):
        forge(project, f"gitdir: {spelling}\n")
        refused(project)
        found = find(project)
        assert found is not None
        assert [(row.path, row.stub) for row in found.executed] == [(f"{project}/{place}", "directory")]
    forge(project, "gitdir: .\n")
    assert "the project itself" in refused(project)


def test_a_link_of_the_project_does_not_make_another_repository_ours(project, main):
    # proves D15
    (project / "link").symlink_to(main / ".git")
    forge(project, "gitdir: link\n")

    assert "does not know this checkout" in refused(project)


def test_a_commondir_cannot_lead_to_another_repository(project, main, tmp_path):
    # proves D15
    own = tmp_path / "accomplice/worktrees/x"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{project}/.git\n")
    forge(project, f"gitdir: {own}\n")
    for redirection in (f"{main}/.git", "../../../main/.git", "..", "../../..", "/", ""):
        (own / "commondir").write_text(redirection + "\n")
        assert "is not a worktree of the repository" in refused(project)
    (own / "commondir").unlink()
    assert "is not a worktree of the repository" in refused(project)
    (own / "commondir").symlink_to(main / ".git/HEAD")
    assert "is not a worktree of the repository" in refused(project)


def test_a_git_directory_that_is_named_like_a_worktree_must_lie_like_one(project, main):
    # proves D15
    own = main / ".git/forged"
    own.mkdir()
    (own / "gitdir").write_text(f"{project}/.git\n")
    (own / "commondir").write_text("..\n")
    forge(project, f"gitdir: {own}\n")

    assert "is not a worktree of the repository" in refused(project)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"gitdir:", b"gitdir: ", b"gitdir: \n", b"gitdir:/x\n", b"GITDIR: /x\n",
        b"gitdir: /x\ngitdir: /y\n",
        b"gitdir: /x\0/y\n", b"\xff\xfe\n", b"\x7fELF", b"ref: refs/heads/main\n", b"gitdir: " + b"x" * 9000,
        b"#!/bin/sh\n",
        b" gitdir: /x\n", b"\xef\xbb\xbfgitdir: /x\n",
    ],
    ids=lambda content: repr(content[:24]),
)  # fmt: skip
def test_a_git_file_that_names_nothing_is_refused(project, content):
    # proves D15
    forge(project, content)

    assert "does not name a git directory" in refused(project)


@pytest.mark.parametrize(
    "target", ["/nonexistent", "/dev/null", "/", "/etc/hostname", "x" * 4000, "/proc/self", "\udcff"]
)
def test_a_git_file_that_names_something_odd_is_refused(project, target):
    # proves D15
    forge(project, f"gitdir: {target}\n".encode("utf-8", "surrogateescape"))

    refused(project)


def test_a_git_file_that_leads_through_endless_links_is_refused(project):
    # proves D15, C18
    (project / "loop").symlink_to("loop")
    forge(project, "gitdir: loop/x\n")
    refused(project)

    for index in range(1500):
        (project / f"link{index}").symlink_to(f"link{index + 1}")
    forge(project, "gitdir: link0\n")
    refused(project)


def test_a_linked_git_is_refused(project, main):
    # proves D15
    (project / ".git").symlink_to(main / ".git")

    assert "neither a directory nor a file" in refused(project)


def test_pipes_do_not_stop_the_launcher(project, tmp_path):
    # proves C18
    started = time.monotonic()
    os.mkfifo(project / ".git")
    assert "neither a directory nor a file" in refused(project)

    (project / ".git").unlink()
    own = tmp_path / "accomplice/worktrees/x"
    own.mkdir(parents=True)
    forge(project, f"gitdir: {own}\n")
    os.mkfifo(own / "gitdir")
    os.mkfifo(own / "config")
    refused(project)
    (own / "gitdir").unlink()
    (own / "gitdir").write_text(f"{project}/.git\n")
    os.mkfifo(own / "commondir")
    refused(project)
    assert time.monotonic() - started < 20  # a pipe would be waited for without end


def test_unreadable_places_are_no_failure(project):
    forge(project, "gitdir: /x\n")
    (project / ".git").chmod(0)
    refused(project)


def test_a_repository_of_another_user_is_not_believed(worktree):
    # proves D15
    assert "another user" in refused(worktree, UID + 1)


def test_a_main_repository_that_is_redirected_is_not_believed(main, tmp_path):
    # proves D06
    (main / ".git/commondir").write_text("../elsewhere\n")
    assert "commondir" in refused(main)

    (main / ".git/commondir").unlink()
    (main / ".git/commondir").symlink_to("/nonexistent")
    assert "commondir" in refused(main)
