"""Sessions that were killed: what they left is looked at and disarmed before anything else happens in the project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import wait_until
from tests.sandbox import repositories

if TYPE_CHECKING:
    from tests.conftest import Box
    from tests.sandbox.conftest import Background

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
    (state,) = Path(box.home, ".claudebox/instances").glob("*")
    box.write(f"{state}/unlooked-1.1", b"half of a no")
    second = box.sh("true")
    after = status(box, "n", "mine", f"{beside}/m")
    box.host("sh", "-ec", ARM.format("n", run))

    assert "that began at" in first.stderr, first.stderr
    assert "`n/.git`: put aside as *.claudebox" in first.stderr
    assert f"`{beside}/m/.git`: put aside as *.claudebox" in first.stderr
    assert not after
    assert "put aside" not in second.stderr
    assert "killed" not in second.stderr
    assert "alias" in Path(box.project, "mine/.git/config").read_text()
    assert not list(Path(box.home, ".claudebox/instances").glob("*/unlooked-*"))
    assert status(box, "n")  # it would have


@pytest.mark.parametrize("flag", ["--import", "--changes"])
def test_whatever_comes_first_disarms_it(user_box, background, flag):
    # proves D11, REPORT-02
    user_box.host("git", "init", "-q")
    kill_session(background, user_box, ARM.format("n", f"{user_box.home}/run"), "--undo-keep", "1")

    result = user_box.claudebox(flag)

    assert "`n/.git`: put aside as *.claudebox" in result.stderr, result.stderr
    assert not status(user_box, "n")
    assert "put aside" not in user_box.sh("true").stderr


def test_a_session_ends_as_always_if_its_note_is_gone(user_box, running):
    # proves REPORT-02
    session = running(user_box, then="exit 7")
    (note,) = Path(user_box.home, ".claudebox/instances").glob("*/unlooked-*")
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
    # proves C17, C18, C29
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
    # proves D20
    key = "sk-ant-" + "a1B2c3D4" * 5
    user_box.environ = {"ANTHROPIC_API_KEY": key}
    user_box.write("key", key)
    result = user_box.sh("cp key ~/.claude/x; mkdir ~/.cache/y; cp key ~/.cache/y/z; chmod 0 ~/.claude ~/.cache/y")

    assert "claude/x" in result.stderr, result.stderr
    assert "y/z" in result.stderr, result.stderr
