"""Stubs for missing protected paths: nobody sees them, nothing of a user is lost, nothing stays."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.support import repositories


def entries(directory: str) -> set[str]:
    """Return every path beneath a directory, and what kind of thing it is."""
    found = set()
    for base, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(base, name)
            found.add(f"{path} {os.lstat(path).st_mode:o}")
    return found


def journal(box) -> list[Path]:
    return list(Path(box.home, ".claudebox/instances").glob("*/stubs"))


def test_nobody_sees_a_stub_during_and_after_a_session(box, running):
    # proves SEC-04, C21
    checkout = repositories.make(box)
    before = entries(box.project)
    session = running(box, then="git status --porcelain -uall")
    during = os.listdir(box.project)
    seen = checkout.sh("git status --porcelain --untracked-files=all; git stash list; git diff HEAD")
    output = session.end()

    assert ".claude" in during, "there was nothing to see"
    assert seen == "?? up\n"
    assert output.splitlines()[-1].startswith("  withheld") or "?? " not in output
    assert entries(box.project) == before
    assert journal(box) == []


def test_the_next_launch_clears_away_what_a_killed_one_left(box, running):
    # proves C21, E10
    checkout = repositories.make(box)
    before = entries(box.project)
    running(box).kill()
    os.unlink(f"{box.project}/up")
    left = entries(box.project) - before
    assert left, "a killed session has left nothing: the test is not about anything"
    assert checkout.sh("git status --porcelain") == ""

    inside = box.sh("git status --porcelain; echo evil >.mcp.json; mkdir .claude/x; ls .claude .vscode")
    assert inside.stdout.split() == [".claude:", "worktrees", ".vscode:"]
    assert "Read-only" in inside.stderr
    assert entries(box.project) == before
    assert journal(box) == []


@pytest.mark.parametrize("verb", ["sessions", "changes", "log"])
def test_any_command_clears_away_what_a_killed_session_left(user_box, running, verb):
    # proves C21, NEW-D10
    repositories.make(user_box)
    before = entries(user_box.project)
    killed, other = running(user_box, "--set", "undo_keep=10"), running(user_box)
    notes = f"{user_box.home}/.claudebox/unlooked"
    wait_until(lambda: len(os.listdir(notes)) == 2, "the other session begins")
    killed.kill()
    assert "created: .claude" not in user_box.claudebox(verb).stdout
    assert os.path.isdir(f"{user_box.project}/.mcp.json"), "the other session needs it"
    other.kill()
    os.unlink(f"{user_box.project}/up")
    assert entries(user_box.project) > before

    user_box.claudebox(verb)

    assert entries(user_box.project) == before
    assert journal(user_box) == []


def test_what_a_user_put_into_a_stub_stays(box, running):
    # proves C21
    checkout = repositories.make(box)
    session = running(box)
    checkout.sh("echo {} >.vscode/settings.json; rmdir .mcp.json; echo {} >.mcp.json; rmdir .idea; ln -s /etc .idea")
    checkout.sh("echo kept >.git/c; mv .git/c .git/commondir")
    session.end()

    assert Path(box.project, ".vscode/settings.json").read_text() == "{}\n"
    assert Path(box.project, ".mcp.json").read_text() == "{}\n"
    assert os.readlink(f"{box.project}/.idea") == "/etc"
    assert Path(box.project, ".git/commondir").read_text() == "kept\n"
    assert not os.path.lexists(f"{box.project}/.claude")


def test_stubs_go_from_directories_that_were_closed_meanwhile(box):
    # proves C21
    box.mkdir("tools")
    box.host("sh", "-ec", "git init -q; git config core.hooksPath tools/hooks")
    before = sorted(os.listdir(box.project))
    result = box.sh("chmod 0555 tools; chmod 0555 .")

    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir(box.project)) == before
    assert os.listdir(f"{box.project}/tools") == []
    assert [os.stat(f"{box.project}/{path}").st_mode & 0o777 for path in ("", "tools")] == [0o555, 0o555]
    os.chmod(box.project, 0o755)


def test_an_empty_directory_of_the_user_stays(box):
    # proves C21
    repositories.make(box)
    for name in (".vscode", ".claude"):
        box.mkdir(name)
    status = os.lstat(f"{box.project}/.vscode").st_ino
    assert "Read-only" in box.sh("touch .vscode/x .claude/x").stderr
    assert os.lstat(f"{box.project}/.vscode").st_ino == status
    assert os.path.isdir(f"{box.project}/.claude")
    assert not os.path.lexists(f"{box.project}/.idea")


def test_two_sessions_share_stubs_until_the_last_one_ends(box, background):
    # proves C21, SEC-04
    repositories.make(box)
    before = entries(box.project)
    wait = "touch up-$1; while test -e up-$1; do sleep 0.02; done; mkdir -p .claude/x || echo kept"
    sessions = []
    for number in "12":
        sessions.append(background(box, box.program, "-y", "--exec", "--", "sh", "-c", wait, "sh", number))
        wait_until(Path(box.project, f"up-{number}").exists, "the session begins")
    for number, session in zip("12", sessions, strict=True):
        os.unlink(f"{box.project}/up-{number}")
        output, _ = session.communicate(timeout=20)
        assert "kept" in output
        assert os.path.isdir(f"{box.project}/.claude") == (number == "1")
    assert entries(box.project) == before
    assert journal(box) == []


def test_a_launch_that_fails_leaves_no_stub(user_box, altered):
    # proves C21, E08
    repositories.make(user_box)
    before = entries(user_box.project)
    bwrap = user_box.write(
        f"{user_box.base}/bwrap", b"#!/bin/sh\nexit 1\n# " + Path("/usr/bin/bwrap").read_bytes(), mode=0o755
    )
    altered(user_box, bwrap=bwrap)
    result = user_box.sh("true")
    assert result.returncode == 125
    assert entries(user_box.project) == before


def test_a_project_that_cannot_hold_a_stub_is_refused(user_box, altered):
    # proves C20, E08
    repositories.make(user_box)
    altered(user_box, edits={"run/stubs.py": ("os.mkdir(name, 0o755, dir_fd=directory)",
                                            "raise OSError(28, 'No space left on device')")})  # fmt: skip
    result = user_box.sh("echo started")
    assert result.returncode == 125
    assert result.stdout == ""
    assert "cannot be kept from being created: No space left on device" in result.stderr


@pytest.mark.parametrize("covered", [True, False])
def test_a_stub_that_another_session_replaces_shows_nothing_of_the_host(box, altered, covered):
    # proves C10, C21
    secret = box.write(f"{box.home}/.ssh/id", "secret-key")
    place = f"{box.project}/.mcp.json"
    swap = f"    os.rename({os.path.dirname(secret)!r}, {place!r})\n"
    start = "    payload = _await_ready(building.gate, building.messages, building.monitor, plan.bwrap)\n"
    edits = {"run/start.py": (start, swap + start)}
    if not covered:  # if the stub itself were shown it would be read: what is tried here can succeed
        edits["plan/protected.py"] = ("        if covered:\n", "        if not row.path:\n")
        edits["run/mounts.py"] = ("_name(mount.pinned or stubs.get(mount.dest))", '""')
    altered(box, edits=edits)

    result = box.host(box.program, "-y", "--exec", "--", "cat", f"{place}/id")

    assert (result.stdout == "secret-key") is not covered
    assert result.returncode == (1 if covered else 0), result.stderr


def test_a_stub_that_cannot_be_removed_is_removed_by_the_next_session(user_box, running):
    # proves NEW-R7
    before = entries(user_box.project)
    session = running(user_box)
    os.chown(user_box.project, 0, 0)  # nothing in it can be removed
    os.unlink(session.up)
    session.process.communicate(timeout=30)
    left = sorted(os.listdir(user_box.project))
    os.chown(user_box.project, user_box.account.uid, user_box.account.gid)

    assert ".mcp.json" in left, "it could be removed: the test is not about anything"
    assert journal(user_box) != []
    assert user_box.run("true").returncode == 0
    assert entries(user_box.project) == before
    assert journal(user_box) == []


@pytest.mark.parametrize("loss", ["gone", "unreadable", "garbage", "state"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "ended"])
def test_stubs_go_though_their_journal_is_lost(box, running, loss, killed):
    # proves NEW-R7
    checkout = repositories.make(box)
    box.host("git", "config", "include.path", "../absent").check_returncode()  # its stub is a file
    box.mkdir(".idea")  # of the user, and empty
    before = entries(box.project)
    session = running(box)
    (path,) = journal(box)
    if loss == "gone":
        path.unlink()
    elif loss == "unreadable":
        path.chmod(0)
    elif loss == "garbage":
        path.write_bytes(b"\0\xff" * 99)
    else:
        shutil.rmtree(f"{box.home}/.claudebox")
    if killed:
        session.kill()
        os.unlink(session.up)
        assert os.path.isdir(f"{box.project}/.mcp.json"), "nothing is left: the test is not about anything"
        assert box.sh("mkdir .mcp.json/x || echo kept").stdout == "kept\n"
    else:
        session.end()

    assert entries(box.project) == before
    assert journal(box) == []
    assert checkout.sh("git status --porcelain") == ""


def test_a_session_whose_state_was_removed_leaves_the_stubs_of_another(box, background):
    # proves NEW-R7, MOUNT-01
    before = entries(box.project)
    script = "touch up-$1; while test -e up-$1; do sleep 0.02; done; mkdir .mcp.json/x || echo kept"
    sessions = []
    for name in "12":
        sessions.append(background(box, box.program, "-y", "--exec", "--", "sh", "-c", script, "sh", name))
        wait_until(Path(box.project, f"up-{name}").exists, "the session begins")
        if name == "1":
            shutil.rmtree(f"{box.home}/.claudebox")
    outputs = []
    for name, session in zip("12", sessions, strict=True):
        os.unlink(f"{box.project}/up-{name}")
        outputs.append(session.communicate(timeout=30)[0])
        assert os.path.isdir(f"{box.project}/.mcp.json") == (name == "1")

    assert all("kept" in output for output in outputs), outputs
    assert entries(box.project) == before


def descendants(process: int) -> list[int]:
    """Return the processes that one has started, and those of these."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.fixture
def halted(box, altered, background):
    """Return a launch that has stopped before it gives the payload the word, what was there, and its processes."""
    repositories.make(box)
    box.host("git", "config", "include.path", "../absent").check_returncode()  # its stub is mounted itself
    before = entries(box.project)
    program, word = box.program, "        start.open_gate(building, sandbox)\n"
    altered(box, edits={"run/launch.py": (word, f"        __import__('time').sleep(30)\n{word}")})
    session = background(box, box.program, "-y", "--exec", "--", "touch", "made")
    box.program = program  # for the next one
    wait_until(lambda: len(descendants(session.pid)) > 1, "bwrap has started")
    return session, before, descendants(session.pid)


def test_a_launch_that_is_interrupted_at_the_gate_leaves_nothing(box, halted):
    # proves C21, E10, E15
    session, before, inner = halted
    session.send_signal(signal.SIGINT)
    session.communicate(timeout=30)

    assert session.returncode == 130
    assert entries(box.project) == before
    assert not [process for process in inner if os.path.exists(f"/proc/{process}")]
    assert box.run("true").returncode == 0


# The signal comes when the child is there, before anybody has kept its number, and the child is slow to become bwrap.
IN_THE_START = """\
    import subprocess
    real = os.posix_spawn
    def slow(*words, **options):
        child = real(*words, **options)
        os.kill(child, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {child}"])
        os.kill(os.getpid(), 15)
        return child
    os.posix_spawn = slow
"""


@pytest.mark.parametrize(
    ("prepare", "module", "moment", "then"),
    [
        ("true", "start.py", "    messages, message_end = os.pipe()\n", IN_THE_START),
        (
            "git init -q; git config include.path ../absent",
            "stubs.py",
            "    if stat.S_ISLNK(status.st_mode):\n",
            "        pass\n    os.kill(os.getpid(), 15)\n    if not status:\n",
        ),
    ],
    ids=["in the midst of the start", "after the first stub"],
)
@pytest.mark.parametrize("number", [15, 10], ids=["TERM", "USR1"])
def test_a_signal_at_a_bad_moment_leaves_no_stub(user_box, altered, prepare, module, moment, then, number):
    # proves C21, E15
    user_box.host("sh", "-ec", prepare).check_returncode()
    assert user_box.run("true").returncode == 0
    before = entries(user_box.project)
    altered(user_box, edits={f"run/{module}": (moment, moment + then.replace("15)", f"{number})"))})

    result = user_box.run("touch", "made")

    assert result.returncode == 128 + number, result.stderr
    assert entries(user_box.project) == before


def test_a_launch_that_is_killed_at_the_gate_is_cleared_away_by_the_next(box, halted):
    # proves C21, E10, E15
    session, before, inner = halted
    session.kill()
    session.communicate(timeout=30)
    wait_until(lambda: not any(os.path.exists(f"/proc/{process}") for process in inner), "bwrap ends with its launcher")

    assert box.run("true").returncode == 0
    assert entries(box.project) == before, "neither a stub nor a mount point of bwrap's own"
    assert journal(box) == []
