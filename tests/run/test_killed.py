"""Sessions that were killed: what they left is looked at and disarmed before anything else happens in the project."""

from __future__ import annotations

import marshal
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import is_disarmed, wait_until
from tests.support import repositories

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Box
    from tests.support.sandbox import Background

ARM = "git init -q {0}; git -C {0} config core.fsmonitor {1}"


def kill_session(background: Background, box: Box, script: str, *flags: str) -> None:
    """Run a script in a session, and kill that when it is done."""
    box.write(f"{box.home}/run", f"#!/bin/sh\ntouch {box.home}/MARK\n", mode=0o755)
    words = ("--exec", "--", "sh", "-ec", f"{script}; touch up; sleep 60")
    process = background(box, box.program, "-y", *flags, *words)
    wait_until(lambda: os.path.exists(f"{box.project}/up") or process.poll() is not None, "the script is done")
    assert process.poll() is None, process.communicate()
    process.kill()
    process.wait()


def status(box: Box, *places: str) -> bool:
    """Return whether git of the host has run something there."""
    for place in places:
        box.host("git", "-C", place, "status")
    return os.path.exists(f"{box.home}/MARK")


def test_the_next_session_disarms_what_a_killed_one_left(box, background):
    # proves D11, C21, REPORT-02
    beside = box.mkdir(f"{box.base}/beside")
    box.host("sh", "-ec", "git init -q mine; git -C mine config alias.x '!true'")
    run = f"{box.home}/run"
    script = "; ".join(ARM.format(place, run) for place in ("n", f"{beside}/m"))
    kill_session(background, box, f"{script}; mkdir .vscode || true", "--mount-rw", beside)

    first = box.sh("touch later")
    box.write(f"{box.home}/.claudebox/unlooked/1.1", b"half of a no")
    second = box.sh("true")
    after = status(box, "n", "mine", f"{beside}/m")
    box.host("sh", "-ec", ARM.format("n", run))

    assert "that began at" in first.stderr, first.stderr
    assert is_disarmed(first.stderr, "n/.git")
    assert is_disarmed(first.stderr, f"{beside}/m/.git")
    assert not after
    assert "put aside" not in second.stderr
    assert "killed" not in second.stderr
    assert "alias" in Path(box.project, "mine/.git/config").read_text()
    assert not os.listdir(f"{box.home}/.claudebox/unlooked")
    assert status(box, "n")  # it would have


@pytest.mark.parametrize("flag", ["sync", "changes"])
def test_whatever_comes_first_disarms_it(user_box, background, flag):
    # proves D11, REPORT-02
    user_box.host("git", "init", "-q")
    kill_session(background, user_box, ARM.format("n", f"{user_box.home}/run"), "--set", "undo_keep=1")

    result = user_box.claudebox(flag)

    assert is_disarmed(result.stderr, "n/.git"), result.stderr
    assert not status(user_box, "n")
    assert "put aside" not in user_box.sh("true").stderr


@pytest.mark.parametrize("damage", ["version", "zeros", "empty"])
def test_a_note_that_cannot_be_read_is_worked_off_for_the_project(user_box, background, damage):
    """Another version wrote it, or the machine lost its power before its content was on the disk."""
    # proves D11, END-01
    user_box.host("sh", "-ec", "git init -q; git config alias.x '!true'")
    kill_session(background, user_box, ARM.format("n", f"{user_box.home}/run"), "--set", "undo_keep=1")
    (note,) = Path(user_box.home, ".claudebox/unlooked").iterdir()
    number, *names = marshal.loads(note.read_bytes())[:4]
    began = note.stat().st_mtime
    other = marshal.dumps((number - 1, *names, "as it was in that version"))
    note.write_bytes({"version": other, "zeros": bytes(len(other)), "empty": b""}[damage])
    os.utime(note, (began, began))

    result = user_box.sh("true")

    assert is_disarmed(result.stderr, "n/.git"), result.stderr
    assert "only the project was examined" in result.stderr
    assert not status(user_box, "n")
    assert "alias" in Path(user_box.project, ".git/config").read_text()
    assert not note.exists()


def leave_armed(box: Box, background: Background, project: str) -> None:
    """Kill a session that has armed a nested repository in a project."""
    box.project = box.mkdir(project)
    kill_session(background, box, f"rm -rf n; {ARM.format('n', f'{box.home}/run')}")
    os.unlink(f"{project}/up")


@pytest.mark.parametrize("words", [("log",), ("sessions",), ("projects",), ("-y", "--exec", "--", "true")])
def test_the_next_command_of_any_kind_anywhere_disarms_it(user_box, background, words):
    # proves NEW-E12, END-01, D11, C21, REPORT-02
    box = user_box
    project = f"{box.base}/around/project"
    leave_armed(box, background, project)
    assert status(box, f"{project}/n")  # it is armed
    os.unlink(f"{box.home}/MARK")

    result = box.claudebox(*words, cwd=box.mkdir(f"{box.base}/aside"))

    assert is_disarmed(result.stderr, "n/.git"), result.stderr
    assert f"a session in {project} that began at" in result.stderr
    assert not status(box, f"{project}/n")
    assert "killed" not in box.claudebox("log").stderr


def test_a_project_that_was_moved_is_found_or_asked_for(box, background):
    # proves D11, C21, REPORT-02
    around, aside = box.mkdir(f"{box.base}/around"), box.mkdir(f"{box.base}/aside")
    project, moved = f"{around}/project", f"{around}/moved"
    leave_armed(box, background, project)
    os.rename(project, moved)
    box.mkdir(project)  # another one
    lost = box.sh("true", cwd=aside)
    found = box.sh("true", cwd=moved)

    assert "was not examined: the directory is gone" in lost.stderr, lost.stderr
    assert f"(now {moved})" in found.stderr, found.stderr
    assert is_disarmed(found.stderr, "n/.git")
    assert not status(box, f"{moved}/n")

    leave_armed(box, background, f"{project}/deep")
    os.rename(around, f"{box.base}/away")
    box.project = aside
    found = box.sh("true", cwd=f"{box.base}/away/project/deep")
    assert is_disarmed(found.stderr, "n/.git"), found.stderr
    assert not status(box, f"{box.base}/away/project/deep/n")

    leave_armed(box, background, project)
    os.rename(around, f"{box.base}/gone")
    box.project = aside
    assert "was not examined" in box.sh("true").stderr
    (name,) = os.listdir(f"{box.home}/.claudebox/unlooked")
    assert f"`claudebox changes {name}`" in box.sh("true").stderr  # still
    said = box.claudebox("changes", name)
    assert (said.returncode, "dismissed" in said.stderr) == (0, True), said.stderr
    assert "was not examined" not in box.sh("true").stderr


def end_after(box: Box, background: Background, action: Callable[[], None], moved: str, *flags: str) -> tuple[int, str]:
    """Run a session that arms `n`; do something on the host meanwhile, after which the project is at `moved`."""
    box.write(f"{box.home}/run", f"#!/bin/sh\ntouch {box.home}/MARK\n", mode=0o755)
    wait = "for i in $(seq 600); do [ -e go ] && break; sleep 0.1; done"
    script = f"{ARM.format('n', f'{box.home}/run')}; touch up; {wait}"
    process = background(box, box.program, "-y", *flags, "--exec", "--", "sh", "-ec", script)
    wait_until(lambda: os.path.exists(f"{box.project}/up") or process.poll() is not None, "the script is done")
    action()
    box.write(f"{moved}/go", "")
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.parametrize("flags", [(), ("--set", "undo_keep=1")])
@pytest.mark.parametrize("instead", ["nothing", "another", "link"])
def test_a_project_that_is_moved_while_a_session_runs_is_disarmed_where_it_is_then(box, background, instead, flags):
    # proves END-01, REPORT-02
    around, away = box.mkdir(f"{box.base}/around"), f"{box.base}/away"
    box.project = box.mkdir(f"{around}/project")
    theirs = f"{box.base}/theirs/project/mine/.git"

    def move() -> None:
        os.rename(around, away)
        box.mkdir(f"{box.base}/theirs/project")
        box.host("sh", "-ec", ARM.format("mine", f"{box.home}/run"), cwd=f"{box.base}/theirs/project")
        if instead == "another":
            box.mkdir(f"{around}/project")
        elif instead == "link":
            os.symlink(f"{box.base}/theirs", around)

    status_of_end, said = end_after(box, background, move, f"{away}/project", *flags)
    notes = os.listdir(f"{box.home}/.claudebox/unlooked")
    box.project = f"{away}/project"
    armed = status(box, f"{away}/project/n")
    later = box.sh("true")
    Path(box.home, "MARK").unlink()

    assert (status_of_end, len(notes), armed) == (1, 1, True), said
    assert f"{around}/project" in said
    assert is_disarmed(later.stderr, "n/.git"), later.stderr
    assert not status(box, f"{away}/project/n")
    assert not os.listdir(f"{box.home}/.claudebox/unlooked")
    assert "fsmonitor" in Path(theirs, "config").read_text()  # nobody's but the user's


def test_another_directory_that_is_moved_while_a_session_runs_is_asked_for(box, background):
    # proves END-01, REPORT-02
    beside, away = box.mkdir(f"{box.base}/beside"), f"{box.base}/away"
    status_of_end, said = end_after(box, background, lambda: os.rename(beside, away), box.project, "--mount-rw", beside)
    (note,) = os.listdir(f"{box.home}/.claudebox/unlooked")
    later = box.sh("true")

    assert (status_of_end, beside in said) == (1, True), said
    assert is_disarmed(said, "n/.git"), said
    assert f"{beside}: gone" in later.stderr, later.stderr
    os.rename(away, beside)
    box.sh("true")
    assert note not in os.listdir(f"{box.home}/.claudebox/unlooked")


def test_removing_the_state_of_a_project_that_is_gone_ends_the_search_for_it(user_box, background):
    # proves REPORT-02
    box = user_box
    leave_armed(box, background, f"{box.base}/away/project")
    os.rename(f"{box.base}/away", f"{box.base}/gone")
    box.project = box.mkdir(f"{box.base}/aside")
    assert "was not examined" in box.sh("true").stderr
    os.chmod(f"{box.home}/.claudebox", 0o700)
    assert "was not examined" in box.claudebox("--check").stdout
    assert box.claudebox("-y", "projects", "prune").returncode == 0
    assert "was not examined" not in box.sh("true").stderr


def test_a_session_ends_as_always_if_its_note_is_gone(user_box, running):
    # proves REPORT-02
    session = running(user_box, then="exit 7")
    (note,) = Path(user_box.home, ".claudebox/unlooked").iterdir()
    note.unlink()
    said = session.end()

    assert session.process.returncode == 7, said
    assert "Traceback" not in said


CLOSED = (
    "chmod 0 ~/.claude ~/.cache",
    "chmod 500 ~/.claude ~/.cache .git",
    "chmod 0 .git/logs .git/refs/heads .git/objects .git",
    "chmod 0 .git/HEAD .git/index .git/config",
    "rm .git/config; mkfifo .git/config",
    "rm .git/config; mkdir .git/config",
    "rm .git/HEAD; mkdir .git/HEAD",
)


def test_state_that_was_closed_inside_keeps_nobody_from_starting(box, background):
    # proves C18, REPORT-02
    checkout = repositories.make(box)
    use = "set -e; touch ~/.claude/t ~/.cache/t; git status --porcelain; git log -1 --format=%s"
    assert box.sh(use).stdout == "first\n"  # the control
    for script in CLOSED:
        box.sh(script)
        after = box.sh(use)
        assert (after.returncode, after.stdout) == (0, "first\n"), (script, after.stderr)
    kill_session(background, box, "git commit -q --allow-empty -m kept; chmod 0 ~/.claude ~/.cache .git")
    after = box.sh(use)

    assert (after.returncode, after.stdout) == (0, "?? up\nkept\n"), after.stderr
    assert checkout.sh("git log -1 --format=%s") == "kept\n"


def test_what_was_closed_in_the_state_is_searched_for_secrets_and_counted(user_box):
    # proves REPORT-02
    key = "sk-ant-" + "a1B2c3D4" * 5
    user_box.environ = {"ANTHROPIC_API_KEY": key}
    user_box.write("key", key)
    result = user_box.sh("cp key ~/.claude/x; mkdir ~/.cache/y; cp key ~/.cache/y/z; chmod 0 ~/.claude ~/.cache/y")

    assert "claude/x" in result.stderr, result.stderr
    assert "y/z" in result.stderr, result.stderr
