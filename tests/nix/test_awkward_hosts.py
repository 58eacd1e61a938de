"""Places and accounts that are unusual and permitted."""

from __future__ import annotations

import pytest
from tests.conftest import ORDINARY_USER

GIT = ("git", "-c", "user.name=Alice", "-c", "user.email=alice@example.org", "-c", "protocol.file.allow=always")
FLAKE = '{{ inputs.set.url = "path:{}"; outputs = {{ self, set }}: {{ inherit (set) devShells; }}; }}'


def _git(box, *words: str, directory: str = "") -> None:
    result = box.host(*GIT, *words, cwd=directory or box.project)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def repository(daemons, nix_boxes, ordinary_account):
    """Return a box whose project is a repository with a dev shell."""
    box = nix_boxes(daemons(), ordinary_account)
    box.write("flake.nix", FLAKE.format(box.daemon.source))
    _git(box, "init", "--quiet", "--initial-branch=main")
    locked = box.host("nix", "flake", "lock", f"path:{box.project}")
    assert locked.returncode == 0, locked.stderr
    _git(box, "add", ".")
    _git(box, "commit", "--quiet", "--message=all")
    return box


def test_the_relay_serves_a_project_with_blanks_a_long_home_and_no_runtime_directory(
    daemons, nix_boxes, ordinary_account
):
    # proves NIXSEC-01
    box = nix_boxes(daemons(trusted=("root", ORDINARY_USER)), ordinary_account)
    box.project = box.mkdir(f"{box.base}/a project with blanks")
    box.home = box.mkdir(f"{box.base}/{'long' * 40}/{'home' * 20}")
    box.environ["XDG_RUNTIME_DIR"] = "/nonexistent"

    result = box.sh(f"nix build path:{box.daemon.source}#hello && result/bin/hello")

    assert result.stdout == "Hello, world!\n", result.stderr
    assert "through a relay" in result.stderr


def test_the_dev_shell_of_a_worktree_is_found(repository):
    # proves PKG-01
    place = repository.mkdir(f"{repository.base}/trees")
    _git(repository, "worktree", "add", "--quiet", f"{place}/one")
    repository.project = f"{place}/one"

    result = repository.sh(
        'hello "$FROM_SHELL"',
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout == "Hello, a value with blanks!\n", result.stderr


def test_the_dev_shell_of_a_submodule_is_found(repository):
    # proves PKG-01
    outer = repository.mkdir(f"{repository.base}/outer")
    _git(repository, "init", "--quiet", "--initial-branch=main", directory=outer)
    _git(repository, "submodule", "--quiet", "add", repository.project, "part", directory=outer)
    repository.project = f"{outer}/part"

    result = repository.sh(
        'hello "$FROM_SHELL"',
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout == "Hello, a value with blanks!\n", result.stderr
