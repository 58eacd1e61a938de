"""What is mounted below the project, and projects of other users: named, masked on request, refused with a reason."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.conftest import need


@pytest.fixture
def mounted(root_box):
    """Return a project with a filesystem of the host mounted below it, in a mount namespace of the test."""
    need(os.getuid() == 0, "privileges of root")
    root_box.mkdir("volume")
    root_box.mkdir("with space/deep")
    root_box.write("single", "plain")
    single = f"/run/claudebox-test-single-{os.getpid()}"  # other workers have their own

    def run(*words: str, script: str) -> subprocess.CompletedProcess[str]:
        before = (
            "mount --make-rprivate /; mount -t tmpfs none volume; echo data >volume/file; mkdir volume/inner;"
            "mount -t tmpfs none volume/inner; mount -t tmpfs none 'with space/deep';echo data >'with space/deep/file';"
            f'echo bound >{single}; mount --bind {single} single; exec "$@"'
        )
        program = (root_box.program, "-y", *words, "--exec", "--", "sh", "-c", script)
        result: subprocess.CompletedProcess[str] = root_box.host("unshare", "-m", "sh", "-c", before, "sh", *program)
        os.unlink(single)
        return result

    return run


SHOW = "cat volume/file 'with space/deep/file' single; ls -A volume; touch volume/x 'with space/deep/x'"


def test_mounts_below_the_project_are_named(mounted):
    # proves C34, UX-01, OLD-A33
    result = mounted(script=SHOW)

    assert result.stdout.split() == ["data", "data", "bound", "file", "inner"], result.stderr
    for name in ("/volume (tmpfs)", "/volume/inner (tmpfs)", "/with space/deep (tmpfs)", "/single ("):
        assert name in result.stderr
    assert "--set submounts=mask" in result.stderr


def test_mounts_below_the_project_can_be_masked(mounted):
    # proves C34, OLD-A33
    result = mounted("--set", "submounts=mask", script=SHOW)

    assert result.stdout == "", result.stderr
    assert result.stderr.count("Read-only file system") == 2
    assert "are empty inside" in result.stderr


def test_the_strict_profile_masks_them(mounted):
    # proves C34, EXT-03
    result = mounted("--profile", "strict", "--network", "none", script="ls -A volume; echo ran")

    assert result.stdout == "ran\n", result.stderr


def test_no_mount_below_costs_no_word(user_box):
    # proves C34
    assert "below the project" not in user_box.run("true").stderr


@pytest.mark.parametrize("bits", [0o750, 0o700])
def test_root_behind_the_closed_home_of_another_user_is_told_whose_it_is(root_box, ordinary_account, bits):
    # proves E08, C08, OLD-A34
    home = root_box.mkdir(f"{root_box.base}/bob")
    project = root_box.mkdir(f"{home}/project")
    for path in (home, project):
        os.chown(path, ordinary_account.uid, ordinary_account.gid)
    os.chmod(home, bits)
    name = subprocess.run(["id", "-nu", str(ordinary_account.uid)], check=True, capture_output=True, text=True)

    refused = root_box.run("true", cwd=project)
    os.chmod(home, 0o755)
    readable = root_box.sh("ls; touch x", cwd=project)
    os.chown(project, 0, 0)
    own = root_box.sh("touch x", cwd=project)

    assert refused.returncode == 125
    assert f"`{home}` belongs to {name.stdout.strip()}, and root cannot enter it" in refused.stderr
    assert f"start claudebox as {name.stdout.strip()}" in refused.stderr
    assert "root can only read it inside" in readable.stderr
    assert "Permission denied" in readable.stderr
    assert own.returncode == 0
    assert "belongs to" not in own.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", ["path", "config", "mount"])
def test_a_thousand_links_stop_nothing(user_box, place):
    # proves E16
    for number in range(1200):
        os.symlink(f"l{number + 1}", f"{user_box.project}/l{number}")
    flags: tuple[str, ...] = ()
    if place == "path":
        user_box.environ["PATH"] = f"{user_box.project}/l0:/usr/bin:/bin"
    elif place == "config":
        user_box.mkdir(f"{user_box.home}/.claudebox/profiles")
        os.chmod(f"{user_box.home}/.claudebox", 0o700)
        os.symlink(f"{user_box.project}/l0", f"{user_box.home}/.claudebox/CLAUDE.md")
    else:
        flags = ("--mount-ro", f"{user_box.project}/l0:/data")
    result = user_box.run("echo", "ran", flags=flags)

    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 125)
    if place != "mount":
        assert result.stdout == "ran\n", result.stderr
    else:
        assert "there is no such file or directory" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("git", ["core.hooksPath l0", "include.path ../l0", "core.worktree ../l0", "l0", "../l0/x"])
def test_git_through_a_thousand_links_stops_nothing(user_box, git):
    # proves E16, OLD-A25
    for number in range(1200):
        os.symlink(f"l{number + 1}", f"{user_box.project}/l{number}")
    if " " in git:
        user_box.host("git", "init", "-q")
        user_box.host("git", "config", *git.split())
    else:
        user_box.write(".git", f"gitdir: {git}\n")
    result = user_box.run("echo", "ran")

    assert "Traceback" not in result.stderr
    assert result.stdout == "ran\n", result.stderr
