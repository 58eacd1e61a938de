"""The git directory of the sandbox's own is made from a hostile one through no link, and anew over a hostile one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.git.conftest import run_git

from claudebox.base.errors import ClaudeboxError
from claudebox.git import private as git_private
from claudebox.git import state as git_state
from claudebox.plan.records import PrivateGit


def own_git(main, tmp_path, **changes) -> PrivateGit:
    private = tmp_path / "private"
    (private / "own").mkdir(parents=True, exist_ok=True)
    real = f"{main}/.git"
    status = os.stat(real)
    made = PrivateGit(
        "name", str(private), real, real=real, identity=(status.st_dev, status.st_ino), git_dir=real,
        worktree=str(main), stores=((f"{real}/objects", "/stores/0"),), config=b"[core]\n\tbare = false\n",
    )  # fmt: skip
    return made.replace(**changes)


def set_up(own: PrivateGit, *, settled: bool = True) -> None:
    os.close(git_private.set_up(own, lambda _: settled))


def set_up_and_be_killed(own: PrivateGit) -> None:
    """End in another process when everything is made and not yet in place."""
    child = os.fork()
    if child == 0:
        git_private._put_in_place = lambda *_: os._exit(9)
        set_up(own)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_nothing_is_set_up_while_an_import_writes_what_both_sides_have(main, tmp_path, monkeypatch):
    # proves GIT-03
    own = own_git(main, tmp_path)
    monkeypatch.setattr(git_state, "_LOCK_TIMEOUT", 0.1)
    with git_state.Private(own.private), pytest.raises(ClaudeboxError, match="another import holds"):
        set_up(own)
    set_up(own)


def test_the_time_of_the_index_and_refs_come_along(main, tmp_path):
    # proves GIT-04
    (main / "file").write_text("x")
    run_git("add", "file", cwd=main)
    os.utime(main / ".git/index", ns=(1_000_000_000, 1_234_567_890))
    own = own_git(main, tmp_path)
    set_up(own)

    assert os.stat(f"{own.directory}/index").st_mtime_ns == 1_234_567_890
    for name in ("HEAD", "index", "logs/HEAD"):
        assert (main / ".git" / name).read_bytes() == Path(f"{own.directory}/{name}").read_bytes()
    assert Path(f"{own.directory}/objects/info/alternates").read_text() == "/stores/0\n"
    assert b"refs/heads/" in Path(f"{own.private}/state").read_bytes()


def test_a_bisection_that_is_under_way_goes_on_inside(main, tmp_path):
    # proves GIT-04
    for number in range(4):
        (main / "file").write_text(str(number))
        run_git("add", "file", cwd=main)
        run_git("commit", "-q", "-m", str(number), cwd=main)
    run_git("bisect", "start", "HEAD", "HEAD~3", "--", "file", cwd=main)
    own = own_git(main, tmp_path)
    set_up(own)

    files = sorted(path.name for path in (main / ".git").glob("BISECT_*"))
    assert "BISECT_START" in files  # the positive control
    assert sorted(path.name for path in Path(own.directory).glob("BISECT_*")) == files


def test_no_link_of_the_real_directory_is_followed(main, tmp_path):
    # proves C04, C18, GIT-04
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("TOP-SECRET")
    real = main / ".git"
    (real / "MERGE_MSG").symlink_to(secret / "key")
    (real / "hooks/pre-commit").symlink_to(secret / "key")
    os.rename(real / "info", real / "elsewhere")
    (real / "info").symlink_to(secret)
    (secret / "exclude").write_text("TOP-SECRET")
    (real / "refs/heads/x").symlink_to(secret / "key")
    (real / "rebase-merge").symlink_to(secret)
    (real / "rr-cache").mkdir()
    (real / "rr-cache/link").symlink_to(secret)
    os.mkfifo(real / "MERGE_HEAD")
    own = own_git(main, tmp_path)
    set_up(own)

    names = [os.path.join(top, name) for top, _, files in os.walk(own.private) for name in files]
    assert names
    assert all(b"TOP-SECRET" not in Path(name).read_bytes() for name in names)


def test_links_that_an_agent_left_lead_nowhere(main, tmp_path):
    # proves C04, C05, GIT-04
    outside = tmp_path / "outside"
    outside.mkdir()
    own = own_git(main, tmp_path, mountpoints=("modules/sub",))
    for settled in (True, False):
        set_up(own)
        os.rename(f"{own.directory}/objects/info", f"{own.directory}/objects/old-{settled}")
        os.symlink(outside, f"{own.directory}/objects/info")
        os.rename(f"{own.directory}/modules", f"{own.directory}/modules-{settled}")
        os.symlink(outside, f"{own.directory}/modules")
        os.symlink(outside / "made", f"{own.directory}/x.lock")
        set_up(own, settled=settled)
        assert os.listdir(outside) == []
        assert os.path.isdir(f"{own.directory}/modules/sub")
        assert not os.path.islink(f"{own.directory}/modules")
        assert Path(f"{own.directory}/objects/info/alternates").read_text() == "/stores/0\n"


def test_what_has_not_come_back_stays(main, tmp_path):
    # proves GIT-03
    own = own_git(main, tmp_path)
    set_up(own)
    with open(f"{own.directory}/refs/heads/inside", "w") as file:
        file.write("0" * 40 + "\n")
    Path(f"{own.directory}/index.lock").touch()
    set_up(own, settled=False)
    assert os.path.exists(f"{own.directory}/refs/heads/inside")
    assert not os.path.exists(f"{own.directory}/index.lock")
    Path(f"{own.real}/refs/heads/other").write_text("0" * 40 + "\n")  # it is made anew where the host has changed
    set_up(own)
    assert not os.path.exists(f"{own.directory}/refs/heads/inside")


def test_what_is_only_inside_survives_a_set_up_that_is_killed(main, tmp_path):
    # proves GIT-03
    own = own_git(main, tmp_path)
    set_up(own)
    made = {"objects/pack/pack-of-a-stash.pack": "stash", "lfs/objects/large": "large"}
    for name, content in made.items():
        path = Path(own.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (main / "file").write_text("x")
    run_git("add", "file", cwd=main)

    set_up_and_be_killed(own)
    assert not Path(own.directory, "objects").exists()  # the control: it was killed where they are elsewhere
    set_up(own)

    assert {name: Path(own.directory, name).read_text() for name in made} == made
    assert Path(own.directory, "index").read_bytes() == (main / ".git/index").read_bytes()


@pytest.mark.parametrize("name", ["lfs", "objects"])
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_directories_that_an_agent_closed_are_kept_and_opened(main, tmp_path, name, mode):
    # proves GIT-04
    own = own_git(main, tmp_path)
    set_up(own)
    place = Path(own.directory, name)
    (place / "below").mkdir(parents=True)
    place.chmod(mode)
    (main / "file").write_text("x")
    run_git("add", "file", cwd=main)

    set_up(own)

    assert Path(own.directory, "index").read_bytes() == (main / ".git/index").read_bytes()
    assert place.stat().st_mode & 0o700 == 0o700
    assert (place / "below").is_dir()


def test_hooks_of_the_host_come_anew_at_each_launch_and_those_of_the_agent_stay(main, tmp_path):
    # proves GIT-03
    hooks = main / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-merge"):
        (hooks / name).write_text("of the user")
    own = own_git(main, tmp_path)
    set_up(own)
    inside = Path(own.directory, "hooks")
    for name in ("pre-commit", "pre-push"):
        (inside / name).write_text("of the agent")
    os.symlink("/etc/passwd", inside / "post-commit")
    (hooks / "post-merge").unlink()

    for _ in range(2):
        set_up(own)
        assert sorted((path.name, path.read_text()) for path in inside.iterdir()) == [
            ("pre-commit", "of the user"),
            ("pre-push", "of the agent"),
        ]
    (hooks / "pre-push").write_text("of the user")
    set_up(own)
    (hooks / "pre-push").unlink()
    set_up(own)
    assert [path.name for path in inside.iterdir()] == ["pre-commit"]


def test_a_directory_in_use_is_left_alone(main, tmp_path):
    # proves GIT-03
    own = own_git(main, tmp_path)
    first = git_private.set_up(own, lambda _: True)
    Path(f"{own.directory}/refs/heads/inside").touch()
    set_up(own)
    assert os.path.exists(f"{own.directory}/refs/heads/inside")
    os.close(first)


def test_a_directory_that_was_replaced_is_refused(main, tmp_path):
    # proves C10
    own = own_git(main, tmp_path, identity=(1, 1))
    with pytest.raises(ClaudeboxError, match="replaced by something else"):
        set_up(own)


def test_trees_of_any_depth_and_mode_are_removed(tmp_path):
    # proves C18
    top = tmp_path / "top"
    top.mkdir()
    current = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.symlink("/", "link", dir_fd=current)
    os.fchmod(current, 0)
    os.close(current)
    git_private.remove(str(top))

    assert os.listdir(tmp_path) == []
