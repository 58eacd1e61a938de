"""Several sessions in one tree: each is protected from the others, they share what they share, nothing stays."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.run.test_stubs import entries, journal
from tests.support import repositories
from tests.support.client import equip, installed, reachable
from tests.support.sandbox import listener


@pytest.mark.parametrize("where", [".", "sub/deep", ".."])
def test_a_session_starts_beside_any_other(box, running, where):
    # proves MOUNT-01, C30, OLD-A1
    outer = box.mkdir(f"{box.base}/outer")
    box.project = box.mkdir(f"{outer}/project")
    box.mkdir("sub/deep")
    before = entries(outer)
    session = running(box)
    second = os.path.normpath(os.path.join(box.project, where))

    beside = box.run("sh", "-c", "mkdir .claude/x || echo kept", cwd=second)
    output = session.end()

    assert beside.stdout == "kept\n", beside.stderr
    assert session.process.returncode == 0, output
    assert entries(outer) == before
    assert journal(box) == []


@pytest.mark.parametrize("words", [("--check",), ("--verify", "--network", "none"), ("-y", "--shell", "-c", "true")])
def test_every_way_to_start_works_beside_a_session(user_box, running, words):
    # proves MOUNT-01, NEW-D3
    repositories.make(user_box)
    user_box.write(f"{user_box.home}/.local/bin/claude", Path("/usr/bin/true").read_bytes(), mode=0o755)
    before = entries(user_box.project)
    session = running(user_box)
    beside = user_box.claudebox(*words)
    output = session.end()

    assert beside.returncode == 0, beside.stdout + beside.stderr
    assert session.process.returncode == 0, output
    assert entries(user_box.project) == before
    assert journal(user_box) == []


def test_a_client_that_only_lists_servers_works_beside_a_session(user_box, running):
    # proves MOUNT-01
    repositories.make(user_box)
    with reachable(installed("client"), user_box.account) as client:
        equip(user_box, client)
        session = running(user_box)
        beside = user_box.claudebox("-y", "mcp", "list")
        session.end()

    assert beside.returncode == 0, beside.stderr


def test_every_bwrap_builds_beside_any_session(box, running, altered, new_bwrap):
    # proves MOUNT-01, C30
    altered(box, bwrap=new_bwrap)
    session = running(box)
    second = box.run("echo", "started")
    session.end()

    assert second.stdout == "started\n", second.stderr


def test_a_killed_session_stands_in_nobodys_way(box, running):
    # proves C30, E10
    running(box).kill()

    assert box.run("echo", "started").stdout == "started\n"
    assert [name for name in os.listdir(f"{box.home}/.claudebox/live") if name != "lock"] == []


def test_what_comes_from_the_host_is_mounted_in_a_directory_that_worktrees_share(box, running):
    # proves MOUNT-01, C30
    box.write(f"{box.home}/.claude/agents/one.md", "from the host")
    checkout = repositories.make(box)
    checkout.sh("git worktree add -q ../one; git worktree add -q ../two")
    box.project = f"{box.base}/one"
    session = running(box)
    script = "cat ~/.claude/agents/one.md; touch ~/.claude/agents/two.md || echo kept"
    inherited = box.run("sh", "-c", script, flags=("--set", "inherit=agents"), cwd=f"{box.base}/two")
    session.end()

    assert inherited.stdout == "from the hostkept\n", inherited.stderr


@pytest.mark.parametrize("nested", ["file", "socket"])
def test_what_is_mounted_in_something_read_only_where_a_session_is_at_work_stays_there(box, running, nested):
    # proves MOUNT-01, C30
    # On the way to `sub/file` a name could lead elsewhere: the agent can put a link in the place of `sub`.
    shown = box.mkdir(f"{box.base}/shown")
    place = box.write(f"{shown}/work/sub/file", "below")
    data = box.write(f"{box.base}/data", "above")
    box.project = f"{shown}/work"
    session = running(box, "--network", "full")
    flags = ["--mount-ro", shown]
    if nested == "file":
        flags += ["--mount-ro", f"{data}:{place}"]
    with contextlib.ExitStack() as stack:
        if nested == "socket":
            stack.enter_context(listener(f"{shown}/work/sub/socket"))
        target = place if nested == "file" else f"{shown}/work/sub/socket"
        mine = box.mkdir(f"{box.base}/mine")
        result = box.run("sh", "-c", f"cat {target}; test -c {target} && echo masked", flags=tuple(flags), cwd=mine)
    session.end()

    assert result.stdout == ("above" if nested == "file" else "masked\n"), result.stderr


def test_stubs_are_taken_away_in_the_project_and_nowhere_else(box, running):
    # proves C31, C21, OLD-A22
    box.project = box.mkdir(f"{box.base}/up/project")
    before = {entry.partition(" ")[2] for entry in entries(box.project)}
    session = running(box)
    for name in (".claude", ".vscode"):
        box.mkdir(f"{box.base}/victim/project/{name}")
    os.rename(f"{box.base}/up", f"{box.base}/moved")
    os.symlink(f"{box.base}/victim", f"{box.base}/up")
    session.up = f"{box.base}/moved/project/up"
    output = session.end()

    assert session.process.returncode == 1, output  # what it left could not be looked at: it is elsewhere
    assert sorted(os.listdir(f"{box.base}/victim/project")) == [".claude", ".vscode"]
    assert {entry.partition(" ")[2] for entry in entries(f"{box.base}/moved/project")} == before


@pytest.mark.parametrize("swapped", ["project", "up"])
def test_what_a_killed_session_left_is_not_looked_for_behind_a_link(box, running, swapped):
    # proves C31, OLD-A22
    box.project = box.mkdir(f"{box.base}/up/project")
    running(box).kill()
    (state,) = Path(box.home, ".claudebox/instances").iterdir()
    left = (state / "stubs").read_bytes()
    for name in (".claude", ".vscode"):
        box.mkdir(f"{box.base}/victim/project/{name}")
    place, target = (box.project, "victim/project") if swapped == "project" else (f"{box.base}/up", "victim")
    os.rename(place, f"{place}-moved")
    os.symlink(f"{box.base}/{target}", place)
    # Another checkout of the same repository has the same state; here the journal is handed over by hand.
    box.project = box.mkdir(f"{box.base}/other")
    box.run("true")
    (other,) = (path for path in Path(box.home, ".claudebox/instances").iterdir() if path != state)
    (other / "stubs").write_bytes(left)
    os.chown(other / "stubs", box.account.uid, box.account.gid)
    assert box.run("true").returncode == 0

    assert not (other / "stubs").exists()
    assert sorted(os.listdir(f"{box.base}/victim/project")) == [".claude", ".vscode"]


def test_two_launches_at_once_lose_no_entry_of_the_journal(box, background):
    # proves C21
    checkout = repositories.make(box)
    trees = [f"tree{number}" for number in range(6)]
    checkout.sh("; ".join(f"git worktree add -q ../{tree}" for tree in trees))
    before = {tree: entries(f"{box.base}/{tree}") for tree in trees}
    sessions = [
        background(
            box, box.program, "-y", "--exec", "--", "sh", "-c", "touch /tmp/x; sleep 60", cwd=f"{box.base}/{tree}"
        )
        for tree in trees
    ]
    for tree in trees:
        wait_until(Path(box.base, tree, ".vscode").exists, "the session begins")
    (state,) = Path(box.home, ".claudebox/instances").iterdir()
    recorded = (state / "stubs").read_bytes()
    for session in sessions:
        session.send_signal(signal.SIGKILL)
    for session in sessions:
        session.wait()
    for tree in trees:
        assert f"{box.base}/{tree}\0".encode() in recorded
    assert box.run("true", cwd=f"{box.base}/{trees[0]}").returncode == 0
    assert {tree: entries(f"{box.base}/{tree}") for tree in trees} == before


@pytest.mark.parametrize("umask", ["777", "077", "000"])
def test_a_strange_umask_leaves_nothing_behind(box, umask):
    # proves C21, E08, OLD-A30
    before = entries(box.project)
    script = f'umask {umask}; "$0" -y --set undo_keep=3 --exec -- sh -c "umask; mkdir .claude/x || echo kept"'
    for _ in range(2):
        result = box.host("sh", "-c", script, box.program)

        assert result.returncode == 0, result.stderr
        assert "no snapshot" not in result.stderr
        assert result.stdout.split() == [f"0{umask}", "kept"]
        assert entries(box.project) == before
    made = [path for path in Path(f"{box.home}/.claudebox").rglob("*") if path.is_dir() or path.is_file()]
    closed = [path for path in made if path.stat().st_mode & 0o600 != 0o600]
    assert len(made) > 10  # log, locks, lists, snapshots
    assert not closed
    assert box.run("echo", "again").stdout == "again\n"


def test_a_session_inside_another_is_refused(user_box):
    # proves UX-05
    top = os.path.dirname(os.path.dirname(user_box.program))
    words = (user_box.program, "-y", "--exec", "--", "true")
    result = user_box.run(*words, flags=("--mount-ro", top))
    assert result.returncode == 125
    assert "start it outside" in result.stderr
