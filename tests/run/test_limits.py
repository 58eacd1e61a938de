"""Limits of a session: of time, processes and scratch everywhere, of memory and processors where that is possible."""

from __future__ import annotations

import os
import time

import pytest

from claudebox.host import control_groups

HOG = "head -c 400m /dev/zero | tail -c 399m | wc -c"  # tail keeps all of it in memory


def test_a_session_ends_when_its_time_is_up(box):
    # proves LIMIT-01
    begun = time.monotonic()
    result = box.sh(
        "trap 'echo polite; exit 3' TERM; sleep 100 & wait", flags=("--time-limit", "1s", "--set", "receipt=always")
    )

    assert result.returncode == 124
    assert result.stdout == "polite\n"
    assert 1.0 <= time.monotonic() - begun < 20
    assert "ended     by the time limit, 1 s" in result.stderr
    # One that has ended by itself has its own status, also if that is the same.
    result = box.sh("exit 124", flags=("--time-limit", "1h", "--set", "receipt=always"))
    assert (result.returncode, "by the time limit" in result.stderr) == (124, False)


def test_what_does_not_end_politely_is_ended_by_force(user_box, altered):
    # proves LIMIT-01
    altered(user_box, edits={"run/supervise.py": ("_GRACE = 10.0", "_GRACE = 0.5")})

    result = user_box.sh("trap '' TERM; echo deaf; while :; do sleep 1; done", flags=("--time-limit", "1s"))

    assert (result.returncode, result.stdout) == (124, "deaf\n")


def test_processes_and_scratch_are_limited_without_any_privilege(user_box):
    # proves LIMIT-01, H08, H09
    script = (
        "dd if=/dev/zero of=/tmp/x bs=1M count=30 2>&1 | tail -1; for i in $(seq 60); do sleep 5 & done; "
        "ls /proc | grep -c '^[0-9]'"
    )
    free = user_box.sh(script)
    limited = user_box.sh(script, flags=("--set", "pids=32", "--set", "scratch_size=10M"))

    assert int(free.stdout.split()[-1]) > 60
    assert "31457280 bytes" in free.stdout
    assert "10485760 bytes" in limited.stdout
    assert "Cannot fork" in limited.stderr


@pytest.mark.parametrize(("flag", "value"), [("--memory", "200M"), ("--set", "cpus=0.5")])
def test_memory_and_processors_are_limited_or_the_launch_is_refused(box, flag, value):
    # proves LIMIT-02
    group = control_groups.find_group(box.account.uid, ("/usr/bin",))
    if group.problem or (group.way == "direct" and box.account.uid != os.getuid()):
        refused = box.run("true", flags=(flag, value))
        assert refused.returncode == 125
        named = flag if flag == "--memory" else "cpus"
        assert f"`{named}` cannot be enforced on this machine: " in refused.stderr
        return
    if flag == "--memory":
        assert box.sh(HOG).stdout.strip() == str(399 << 20)
        killed = box.sh(HOG, flags=(flag, value))
        assert killed.stdout.strip() != str(399 << 20)
        assert "the memory limit was reached" in killed.stderr
    else:
        burn = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done; times | tail -1"
        begun = time.monotonic()
        box.sh(burn)
        free = time.monotonic() - begun
        box.sh(burn, flags=(flag, value))
        assert time.monotonic() - begun - free > 1.5 * free
    assert not [name for name in os.listdir(group.place) if name.startswith("claudebox-")]


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--time-limit", "soon"), ("--time-limit", "0"), ("--set", "pids=3"), ("--set", "pids=-1"),
     ("--set", "scratch_size=1X"), ("--memory", "0"), ("--memory", "lots"), ("--set", "cpus=0"), ("--set", "cpus=1,5")],
)  # fmt: skip
def test_limits_that_mean_nothing_are_refused(user_box, flag, value):
    # proves LIMIT-01
    result = user_box.run("true", flags=(flag, value))

    assert result.returncode == 125
    assert flag in result.stderr


def test_check_says_which_limits_are_possible(user_box):
    # proves LIMIT-02, UX-05
    lines = user_box.claudebox("--check").stdout.splitlines()

    (line,) = [line for line in lines if "  limits: " in line]
    assert "time, processes, scratch: always" in line
    assert "memory and processors: by a control group" in line or "are refused here: " in line
