"""Two sessions in one tree: an old bwrap would resolve places of mounts where the first agent can plant links."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from tests.client.conftest import equip, installed, reachable
from tests.conftest import wait_until
from tests.sandbox import repositories
from tests.sandbox.test_stubs import entries, journal

from claudebox.launch import live_sessions

OLD = "/usr/bin/bwrap"


@pytest.fixture
def old() -> None:
    """Need a bwrap that follows links, to see that it is not used beside another session."""
    if not live_sessions.follows_links(OLD):
        pytest.skip("the bwrap of this machine is a newer one, which follows no links")


def test_what_follows_links_is_found_by_trying(old, new_bwrap, tmp_path):
    # proves C30, C01
    assert not live_sessions.follows_links(new_bwrap)
    useless = tmp_path / "bwrap"
    useless.write_text("#!/bin/sh\nexit 1\n")
    useless.chmod(0o755)
    assert live_sessions.follows_links(str(useless))
    assert live_sessions.follows_links(f"{tmp_path}/missing")


@pytest.mark.parametrize("where", [".", "sub/deep", ".."])
def test_an_old_bwrap_builds_nothing_beside_a_session_of_the_same_tree(box, running, old, where):
    # proves C30, OLD-A1
    outer = box.mkdir(f"{box.base}/outer")
    box.project = box.mkdir(f"{outer}/project")
    box.mkdir("sub/deep")
    session = running(box)
    second = os.path.normpath(os.path.join(box.project, where))
    beside = box.mkdir(f"{box.base}/beside")

    refused = box.run("echo", "started", cwd=second)
    unrelated = box.run("echo", "started", cwd=beside)
    session.end()
    afterwards = box.run("echo", "started", cwd=second)

    assert (refused.returncode, refused.stdout) == (125, "")
    assert f"another session is at work in `{box.project}`" in refused.stderr
    assert "update bubblewrap to 0.12" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert [unrelated.stdout, afterwards.stdout] == ["started\n"] * 2
    assert journal(box) == []


def test_a_project_that_is_only_read_counts_as_well(user_box, running, old):
    # proves C30
    repositories.make(user_box)
    with reachable(installed("client"), user_box.account) as client:
        equip(user_box, client)
        session = running(user_box)
        beside = user_box.claudebox("-y", "mcp", "list")
        session.end()
        afterwards = user_box.claudebox("-y", "mcp", "list")

    assert (beside.returncode, beside.stdout) == (125, "")
    assert "another session is at work" in beside.stderr
    assert afterwards.returncode == 0, afterwards.stderr


def test_a_new_bwrap_builds_beside_any_session(box, running, altered, new_bwrap):
    # proves C30
    altered(box, bwrap=new_bwrap)
    session = running(box)
    second = box.run("echo", "started")
    session.end()

    assert second.stdout == "started\n", second.stderr


def test_a_killed_session_stands_in_nobodys_way(box, running, old):
    # proves C30, E10
    running(box).kill()

    assert box.run("echo", "started").stdout == "started\n"
    assert [name for name in os.listdir(f"{box.home}/.claudebox/live") if name != "lock"] == []


def test_worktrees_share_the_clients_directory_and_nothing_is_mounted_in_it_meanwhile(box, running, old):
    # proves C30
    box.write(f"{box.home}/.claude/agents/one.md", "from the host")
    checkout = repositories.make(box)
    checkout.sh("git worktree add -q ../one; git worktree add -q ../two")
    box.project = f"{box.base}/one"
    session = running(box)
    plain = box.run("echo", "started", cwd=f"{box.base}/two")
    inherited = box.run("echo", "started", flags=("--inherit", "agents"), cwd=f"{box.base}/two")
    session.end()
    later = box.run("echo", "started", flags=("--inherit", "agents"), cwd=f"{box.base}/two")

    assert plain.stdout == later.stdout == "started\n", plain.stderr
    assert inherited.returncode == 125
    assert "another session is at work" in inherited.stderr


def test_what_a_session_can_write_besides_its_project_counts(box, running, old):
    # proves C30
    other = box.mkdir(f"{box.base}/other")
    session = running(box, "--mount-rw", other)
    refused = box.run("echo", "started", cwd=other)
    session.end()

    assert refused.returncode == 125
    assert "another session is at work" in refused.stderr


@pytest.mark.parametrize("nested", ["file", "socket", "none", "beside"])
def test_nothing_is_mounted_in_what_is_only_read_where_a_session_is_at_work(box, running, old, nested):
    # proves C30
    # On the way to `sub/file` bwrap would follow a link that the agent puts in the place of `sub`, out of the sandbox.
    shown = box.mkdir(f"{box.base}/shown")
    place = box.write(f"{shown}/work/sub/file", "")
    data = box.write(f"{box.base}/data", "")
    box.project = f"{shown}/work"
    session = running(box, "--network", "full")
    flags = ["--mount-ro", shown]
    if nested == "file":
        flags += ["--mount-ro", f"{data}:{place}"]
    elif nested == "beside":  # nobody can lead that elsewhere
        flags += ["--mount-ro", f"{data}:{box.write(f'{shown}/other/file', '')}"]
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        if nested == "socket":
            listener.bind(f"{shown}/work/sub/socket")
            listener.listen()
        result = box.run("echo", "started", flags=tuple(flags), cwd=box.mkdir(f"{box.base}/mine"))
    session.end()

    if nested in ("file", "socket"):
        assert (result.returncode, result.stdout) == (125, "")
        assert f"another session is at work in `{shown}/work`" in result.stderr
    else:
        assert result.stdout == "started\n", result.stderr


def test_the_check_recommends_an_update(user_box, altered, old, new_bwrap):
    # proves C30, UX-05
    user_box.write(f"{user_box.home}/.local/bin/claude", Path("/usr/bin/true").read_bytes(), mode=0o755)

    def finding() -> dict[str, str]:
        found = json.loads(user_box.claudebox("--check", "--json").stdout)["findings"]
        return next((row for row in found if row["name"] == "bubblewrap and links"), {})

    assert finding()["status"] == "warning"
    assert "0.12" in finding()["remedy"]
    altered(user_box, bwrap=new_bwrap)
    assert finding()["status"] == "ok"


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

    assert session.process.returncode == 0, output
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


def test_two_launches_at_once_lose_no_entry_of_the_journal(box, background, altered, new_bwrap):
    # proves C21
    altered(box, bwrap=new_bwrap)
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
    script = f'umask {umask}; "$0" -y --undo-keep 3 --exec -- sh -c "umask; mkdir .claude/x || echo kept"'
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
