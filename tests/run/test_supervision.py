"""The launcher beside a running sandbox: it wakes for nothing, leaves no dead process, and outlives what fails."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path

from tests.conftest import wait_until
from tests.support import repositories
from tests.support.terminals import Terminal, content, descendants, marked, state


def switches(process):
    """Return how often each process of a tree has been on a processor."""
    return {
        member: sum(map(int, re.findall(r"ctxt_switches:\t(\d+)", content(f"/proc/{member}/status"))))
        for member in descendants(process)
    }


def test_an_idle_session_wakes_no_process_of_ours(user_box):
    # proves PTY-01
    repositories.make(user_box)
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", user_box.write("program.sh", "echo rea''dy; exec sleep 1000"))
        terminal.expect("\nready\n")
        launcher = os.tcgetpgrp(terminal.master)
        seen: dict[int, int] = {}

        def is_quiet():
            nonlocal seen
            before, seen = seen, switches(launcher)
            time.sleep(1)
            return seen == before and len(seen) > 4

        wait_until(is_quiet, "everything has begun that a session begins")
        before = switches(launcher)
        time.sleep(10)
        assert switches(launcher) == before

        terminal.press("x")  # control: a key wakes somebody
        wait_until(lambda: switches(launcher) != before, "the count")


def dead_children(process):
    """Return the children of a process that have ended and that nobody has reaped."""
    found = content(f"/proc/{process}/task/{process}/children").split()
    return [child for child in found if state(int(child)) == "Z"]


def has_commit(checkout, subject):
    """Return whether a commit has come back to the repository of the host."""
    return subject in checkout.sh("git log --all --format=%s").split()


def test_orphans_of_our_processes_are_reaped_while_it_runs(user_box, background):
    # proves NEW-R1
    checkout = repositories.make(user_box)
    script = "for i in 1 2 3 4; do git commit -q --allow-empty -m commit-$i; read line <fifo$i; done; exit 7"
    checkout.sh("mkfifo fifo1 fifo2 fifo3 fifo4; echo 'fifo*' >>.git/info/exclude")
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", script)
    for number in range(1, 5):
        wait_until(partial(has_commit, checkout, f"commit-{number}"), "the commit came back")
        wait_until(lambda: not dead_children(process.pid), "the dead are gone")
        Path(f"{user_box.project}/fifo{number}").write_text("go on\n")
    assert process.wait(20) == 7


def limit_processes(box, process, count):
    """Let a process of the account of a box start no other while so many of the account run."""
    result = box.host("prlimit", "--pid", str(process), f"--nproc={count}:")
    assert result.returncode == 0, result.stderr


def test_a_fork_that_fails_is_tried_again_and_ends_nothing(user_box, background, altered):
    # proves NEW-R2
    altered(
        user_box,
        edits={
            "git/sidecar.py": ("_DELAY, _NEVER = 0.7,", "_DELAY, _NEVER = 2.0,"),
            "run/supervise.py": ("_AGAIN = 5.0", "_AGAIN = 0.5"),
        },
    )
    checkout = repositories.make(user_box)
    checkout.sh("mkfifo fifo; echo fifo >>.git/info/exclude")
    script = "git commit -q --allow-empty -m inside; echo ready; read line <fifo; exit 7"
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", script)
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    before = len(os.listdir(f"/proc/{process.pid}/fd"))
    limit_processes(user_box, process.pid, "1")
    time.sleep(4)  # the first attempt, and some more
    assert process.poll() is None
    wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) <= before + 1, "what failed is closed again")
    assert not has_commit(checkout, "inside")  # control: nothing could be started

    limit_processes(user_box, process.pid, "4000")
    wait_until(partial(has_commit, checkout, "inside"), "it was tried again")
    Path(f"{user_box.project}/fifo").write_text("go on\n")
    assert process.wait(20) == 7


def test_a_chore_that_is_broken_costs_the_chore_and_not_the_session(user_box, altered):
    # proves NEW-R2
    altered(user_box, edits={"run/mounts.py": ("(left := self._first", "(left := self._absent")})
    result = user_box.sh("sleep 0.3; echo on; exit 5")

    assert (result.returncode, result.stdout) == (5, "on\n")
    assert "_absent" in result.stderr


def test_a_sandbox_without_a_session_of_its_own_is_not_started(user_box, altered):
    # proves PTY-01, B05
    altered(user_box, edits={"run/terminal.py": ('measures = "n"', 'measures = ""'), "plan/bwrap.py": (
        'yield ("--new-session",)', "pass")})  # fmt: skip
    result = user_box.sh("touch ran")

    assert result.returncode == 125
    assert "session" in result.stderr
    assert not os.path.exists(f"{user_box.project}/ran")


def test_the_leader_of_the_session_goes_with_everything(user_box):
    # proves PTY-01, E10
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", user_box.write("program.sh", "echo rea''dy; exec sleep 1000"))
        terminal.expect("\nready\n")
        members = descendants(os.tcgetpgrp(terminal.master))
        leader = next(member for member in members if os.getsid(member) == member)
        os.kill(leader, 9)
        assert terminal.prompt() == 137
        wait_until(lambda: not marked(user_box.project), "the end of the sandbox")
