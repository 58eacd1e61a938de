"""Sessions that were killed: what they left is looked at and disarmed before anything else happens in the project."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Box

ARM = "git init -q {0}; git -C {0} config core.fsmonitor {1}"


def kill_session(box: Box, script: str, flags: tuple[str, ...] = ()) -> str:
    """Run a script in a session, and kill that when it is done; return a program that leaves a mark."""
    run = box.write(f"{box.home}/run", f"#!/bin/sh\ntouch {box.home}/MARK\n", mode=0o755)
    words = [box.program, "-y", *flags, "--exec", "--", "sh", "-ec", f"{script}; touch up; sleep 60"]
    options = {"cwd": box.project, "env": box.variables(), **box.account.demotion}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        limit = time.monotonic() + 30
        while not os.path.exists(f"{box.project}/up"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    return run


def status(box: Box, *places: str) -> bool:
    """Return whether git of the host has run something there."""
    for place in places:
        box.host("git", "-C", place, "status")
    return os.path.exists(f"{box.home}/MARK")


def test_the_next_session_disarms_what_a_killed_one_left(box):
    # proves D11, C21, REPORT-02
    beside = box.mkdir(f"{box.base}/beside")
    box.host("sh", "-ec", "git init -q mine; git -C mine config alias.x '!true'")
    run = f"{box.home}/run"
    script = "; ".join(ARM.format(place, run) for place in ("n", f"{beside}/m"))
    kill_session(box, f"{script}; mkdir .vscode || true", ("--mount-rw", beside))

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
def test_whatever_comes_first_disarms_it(user_box, flag):
    # proves D11, REPORT-02
    user_box.host("git", "init", "-q")
    kill_session(user_box, ARM.format("n", f"{user_box.home}/run"), ("--undo-keep", "1"))

    result = user_box.claudebox(flag)

    assert "`n/.git`: put aside as *.claudebox" in result.stderr, result.stderr
    assert not status(user_box, "n")
    assert "put aside" not in user_box.sh("true").stderr
