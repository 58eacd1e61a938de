"""Nothing outlives the sandbox, and the sandbox does not outlive claudebox, whoever is killed and whenever."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from tests.conftest import need, wait_until
from tests.run.test_stubs import entries, journal
from tests.support import repositories
from tests.support.terminals import Terminal, content, dead, marked, put_down, state

SPY = Path(__file__).resolve().parent.parent / "probes" / "spy.py"
NAIVE = ("/usr/bin/bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid")


def launch(background, box, *words, options=("-y", "--exec", "--")):
    """Start claudebox with a word that none but its processes have in their command lines."""
    marker = uuid.uuid4().hex
    return background(box, box.program, *options, *words, marker), marker


def wait_for_the_end(marker):
    wait_until(lambda: not marked(marker), "the end of every process")


def children(process):
    return [int(child) for child in content(f"/proc/{process}/task/{process}/children").split()]


def await_ready(process):
    """Wait until the program says that it is ready; return the monitor and the first process of its sandbox."""
    said = []
    while "ready\n" not in said:
        said.append(process.stdout.readline())
        assert said[-1], (process.wait(20), said)  # why it did not start
    (monitor,) = children(process.pid)
    (init,) = children(monitor)
    return monitor, init


def traces(box, launchers, before):
    """Return what these launches of a box have left on the host: mounts, and files in /tmp."""
    mounts = [line for line in content("/proc/self/mountinfo").splitlines() if box.base in line or "newroot" in line]
    names = tuple(f"claudebox-{launcher}-" for launcher in launchers)
    temporary = [name for name in {*os.listdir("/tmp")}.difference(before) if name.startswith(names)]
    return mounts + temporary


def duration(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


@pytest.mark.slow
def test_killing_claudebox_at_any_moment_leaves_nothing(box, background, numbers):
    # proves E10, E15, C21, SAND-15
    repositories.make(box)
    project = entries(box.project)
    span = 1.3 * min(duration(lambda: box.run("true")) for _ in range(3))
    before = os.listdir("/tmp")  # somebody else's with the same number may lie there
    pending = []
    launchers = []
    for _ in range(30 if box.account.uid == 0 else 80):
        moment = numbers.uniform(0, span)
        process, marker = launch(background, box, "sh", "-c", "sleep 1000; :")
        time.sleep(moment)
        process.kill()
        process.wait()
        pending.append(marker)
        launchers.append(process.pid)
    deadline = time.monotonic() + 30
    while pending and time.monotonic() < deadline:
        lines = all_command_lines()
        pending = [marker for marker in pending if marker.encode() in lines]
    assert [put_away(process) for marker in pending for process in marked(marker)] == []
    assert box.run("true").returncode == 0  # what a killed one could not take away from the project, the next one does
    assert traces(box, launchers, before) == []
    assert entries(box.project) == project
    assert journal(box) == []
    lock = next(Path(box.home, ".claudebox/instances").glob("*/sessions"))
    assert subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode == 0
    assert not [name for name in os.listdir(lock.parent) if name.endswith(".tmp")]


def test_killing_claudebox_at_any_moment_at_a_terminal_leaves_nothing(user_box, numbers):
    # proves E10, E15, PTY-01
    span = 1.3 * min(duration(lambda: user_box.run("true")) for _ in range(3))
    with Terminal(user_box) as terminal:
        for _ in range(25):
            terminal.claudebox("sh", "-c", f"sleep 1000; : {user_box.project}")
            wait_until(lambda: os.tcgetpgrp(terminal.master) != terminal.process.pid, "the job has the terminal")
            time.sleep(numbers.uniform(0, span))
            os.kill(os.tcgetpgrp(terminal.master), signal.SIGKILL)
            assert terminal.prompt() == 137
        wait_until(lambda: not marked(user_box.project), "the end of every process")
    assert user_box.run("true").returncode == 0


def all_command_lines():
    lines = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            lines.append(Path(f"/proc/{process}/cmdline").read_bytes())
        except OSError:
            continue
    return b"".join(lines)


def put_away(process):
    """End what should have ended, and tell where it hung."""
    described = [content(f"/proc/{process}/{name}") for name in ("cmdline", "wchan", "syscall", "stack")]
    os.kill(process, signal.SIGKILL)
    return described


@pytest.mark.parametrize("victim", ["claudebox", "monitor", "init"])
def test_killing_any_of_the_processes_around_it_ends_a_running_sandbox(box, background, victim):
    # proves E10, SAND-15
    script = "setsid sleep 1000 & echo ready; sleep 1000; :"
    process, marker = launch(background, box, "sh", "-c", script)
    monitor, init = await_ready(process)
    inside = children(init)
    os.kill({"claudebox": process.pid, "monitor": monitor, "init": init}[victim], signal.SIGKILL)

    assert process.wait(20) == (-signal.SIGKILL if victim == "claudebox" else 128 + signal.SIGKILL)
    wait_for_the_end(marker)
    wait_until(lambda: dead(init, *inside), "the end inside")


# Two that leave the session, and whose memory takes a while to be taken down.
DAEMONS = """\
import os, sys, time
for number in range(2):
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        memory = bytearray(150 << 20)
        open(f"{sys.argv[1]}-{number}", "w").close()
        time.sleep(60)
while not os.path.exists(f"{sys.argv[1]}-end"):
    time.sleep(0.001)
sys.exit(7)
"""


def end_with_daemons(background, box, *command):
    """Run a program that leaves daemons behind, and return them as they are the moment that it has ended."""
    mark = f"{box.project}/{uuid.uuid4().hex}"
    process = background(box, *command, "python3", box.write("daemons.py", DAEMONS), mark)
    wait_until(lambda: all(os.path.exists(f"{mark}-{number}") for number in range(2)), "the daemons run")
    daemons = sorted(marked(mark))[-2:]
    Path(f"{mark}-end").touch()
    assert process.wait(20) == 7
    return daemons, dead(*daemons)


def test_a_daemon_is_gone_the_moment_that_claudebox_ends(box, background):
    # proves E12, SAND-15
    daemons, gone = end_with_daemons(background, box)
    assert not gone
    for process in daemons:
        os.kill(process, signal.SIGKILL)

    _, gone = end_with_daemons(background, box, box.program, "-y", "--exec", "--")
    assert gone


def take_over(background, box, *command):
    """Run a program that makes the first process inside forget its parent."""
    need(platform.machine() == "x86_64", "machine that the take-over is written for")
    program = box.write("spy.py", SPY.read_bytes())
    taken = f"{box.project}/taken-{uuid.uuid4().hex}"
    process = background(box, *command, "python3", program, "init", taken, stdout=subprocess.DEVNULL)
    wait_until(lambda: os.path.exists(taken), "the first process was taken over")
    return process, taken


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_sandbox_whose_first_process_was_taken_over_ends_with_claudebox(box, background, altered, name):
    # proves E10, E12
    control, marker = take_over(background, box, *NAIVE, "--die-with-parent", "--")
    control.kill()
    control.wait()
    time.sleep(0.2)
    assert marked(marker), "the take-over is no good"
    put_down(marker)
    wait_for_the_end(marker)

    altered(box, edits={"run/supervise.py": ("_GRACE = 10.0", "_GRACE = 0.2")})
    process, marker = take_over(background, box, box.program, "-y", "--exec", "--")
    process.send_signal(getattr(signal, f"SIG{name}"))
    process.wait(20)
    try:
        wait_for_the_end(marker)
    finally:
        put_down(marker)


def test_a_sandbox_that_is_killed_with_many_processes_leaves_none(user_box, background):
    # proves E10, E12
    script = "i=0; while [ $i -lt 100 ]; do (setsid sleep 1000 &); i=$((i + 1)); done; echo ready; sleep 1000; :"
    process, marker = launch(background, user_box, "sh", "-c", script)
    _, init = await_ready(process)
    wait_until(lambda: len(children(init)) == 101, "all of them run")
    inside = children(init)
    process.kill()
    process.wait()
    wait_for_the_end(marker)
    wait_until(lambda: dead(*inside), "the end of all of them")


def test_orphans_are_reaped_while_it_runs(user_box, background):
    # proves E12
    # Whoever holds the first process of a sandbox must let it do its work.
    script = "i=0; while [ $i -lt 20 ]; do (setsid true &); i=$((i + 1)); done; sleep 0.2; echo ready; sleep 1000; :"
    process, _ = launch(background, user_box, "sh", "-c", script)
    _, init = await_ready(process)

    wait_until(lambda: [state(child) for child in children(init)] == ["S"], "no zombies are left")
