"""Signals to claudebox alone reach the program inside as they were sent, and its end is claudebox's end."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.conftest import wait_until
from tests.support.terminals import Terminal, content, marked

# It writes down what it gets, and ends on the signal that it was told.
RECORDER = """\
import os, signal, sys, time
record = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def got(number, _):
    os.write(record, b"%s\\n" % signal.Signals(number).name.encode())
for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM"):
    signal.signal(getattr(signal, f"SIG{name}"), got)
os.write(record, b"ready\\n")
while True:
    time.sleep(0.02)
"""
SENT = [signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1]


def expect_all_signals(box, process):
    """Send one signal after the other to claudebox, and see each arrive once."""
    record = f"{box.project}/record"
    expected = ["ready"]
    wait_until(lambda: content(record).splitlines() == expected, "the program runs")
    for number in SENT:
        os.kill(process, number)
        expected.append(number.name)
        wait_until(lambda: len(content(record).splitlines()) >= len(expected), f"{number.name} arrived")
    time.sleep(0.1)
    assert content(record).splitlines() == expected


def test_signals_to_claudebox_alone_arrive_once_each_without_a_terminal(box, background):
    # proves SAND-15
    program = box.write("recorder.py", RECORDER)
    process = background(box, box.program, "-y", "--exec", "--", "python3", program, f"{box.project}/record")

    expect_all_signals(box, process.pid)


def test_signals_to_claudebox_alone_arrive_once_each_on_a_terminal(user_box):
    # proves SAND-15
    program = user_box.write("recorder.py", RECORDER)
    with Terminal(user_box) as terminal:
        terminal.claudebox("python3", program, f"{user_box.project}/record")
        wait_until(lambda: content(f"{user_box.project}/record"), "the program runs")

        expect_all_signals(user_box, os.tcgetpgrp(terminal.master))


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_program_that_signals_its_whole_group_goes_on(user_box, name):
    # proves SAND-14, SAND-15
    script = f"trap 'echo heard' {name}; kill -{name} 0; sleep 0.2; echo on; exit 5"
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", user_box.write("program.sh", script))
        terminal.expect("heard\n")
        terminal.expect("on\n")
        assert terminal.prompt() == 5


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"])
def test_a_program_without_handlers_ends_by_the_signal_that_claudebox_got(user_box, background, name):
    # proves SAND-14, SAND-15
    number = getattr(signal, f"SIG{name}")
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", "echo ready; exec sleep 1000")
    wait_for_line(process, "ready")
    process.send_signal(number)

    assert process.wait(20) == 128 + number
    assert marked(user_box.project) == []


def wait_for_line(process, line):
    for got in process.stdout:
        if got == f"{line}\n":
            return
    raise AssertionError(f"the program ended with {process.wait()} before it said {line!r}")


def test_a_program_that_does_not_listen_is_ended_after_a_while(box, background, altered):
    # proves SAND-15
    altered(box, edits={"run/supervise.py": ("_GRACE = 10.0", "_GRACE = 1.0")})
    script = box.write("deaf.sh", "trap '' TERM HUP; echo ready; while :; do sleep 1000; done")
    process = background(box, box.program, "-y", "--exec", "--", "sh", script)
    wait_for_line(process, "ready")

    begin = time.monotonic()
    process.terminate()
    time.sleep(0.3)
    process.send_signal(signal.SIGHUP)  # asking again gives it no more time
    assert process.wait(20) == 137
    assert 0.9 < time.monotonic() - begin < 10
    assert marked(script) == []


def masks(result):
    """Return which signals are blocked and ignored."""
    return {line.split(":")[0]: int(line.split()[1], 16) for line in result.stdout.splitlines()}


def test_no_signal_is_blocked_or_ignored_inside(box):
    # proves SAND-15
    program = "cat /proc/self/status | grep -E '^Sig(Blk|Ign)'"
    control = box.host("sh", "-c", f"trap '' PIPE; {program}")
    inside = box.sh(program)

    assert masks(control)["SigIgn"] == 1 << (signal.SIGPIPE - 1)
    assert masks(inside) == {"SigBlk": 0, "SigIgn": 0}


def test_nohup_holds_inside_and_outside(user_box, background, altered):
    # proves SAND-15
    altered(user_box, edits={"run/supervise.py": ("_GRACE = 10.0", "_GRACE = 0.2")})
    script = user_box.write("program.sh", "grep SigIgn /proc/self/status; echo ready; exec sleep 1000")
    process = background(user_box, "nohup", user_box.program, "-y", "--exec", "--", "sh", script)
    wait_for_line(process, f"SigIgn:\t{1 << (signal.SIGHUP - 1):016x}")
    wait_for_line(process, "ready")

    for _ in range(3):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
    assert process.poll() is None
    process.terminate()
    assert process.wait(20) == 143


def test_hangup_at_any_moment_of_the_start_does_not_stop_what_nohup_started(user_box, background):
    # proves SAND-15
    process = background(
        user_box, user_box.program, "-y", "--exec", "--", "true",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.001)

    assert process.returncode == 0, process.stdout.read()


def test_a_parent_that_ignores_its_children_does_not_confuse_it(user_box):
    # proves SAND-14
    program = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    result = user_box.host("python3", "-c", program, user_box.program, "-y", "--exec", "--", "sh", "-c", "exit 7")

    assert result.returncode == 7


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM"])
def test_a_signal_during_the_start_ends_it_with_nothing_left(user_box, background, name):
    # proves SAND-15, E15
    number = getattr(signal, f"SIG{name}")
    file = user_box.write("file")
    for delay in range(0, 40, 4):
        # No shell: dash loses a SIGINT that comes while it becomes another program.
        process = background(user_box, user_box.program, "-y", "--exec", "--", "tail", "-f", file)
        assert process.stdout.readline()  # the interpreter that is still loading may lose one, too
        time.sleep(delay / 1000)
        process.send_signal(number)
        assert process.wait(20) in (128 + number, -number)
    wait_until(lambda: not marked(user_box.project), "the end of everything")


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 31])
def test_a_program_that_dies_of_a_signal_gives_128_and_its_number(user_box, number):
    # proves SAND-14
    assert user_box.sh(f"kill -{number} $$").returncode == 128 + number


def test_closing_the_window_tells_a_program_that_claudebox_alone_runs_in_it(user_box):
    # proves SAND-15
    # There the kernel tells the leader of the session, which is claudebox, and nobody else.
    program = user_box.write("recorder.py", RECORDER)
    argv = (user_box.program, "-y", "--exec", "--", "python3", program, f"{user_box.project}/record")
    with Terminal(user_box, argv=argv) as terminal:
        wait_until(lambda: content(f"{user_box.project}/record") == "ready\n", "the program runs")
        terminal.hang_up()
        wait_until(lambda: "SIGHUP" in content(f"{user_box.project}/record"), "it was told of the hang-up")
        terminal.process.kill()
    wait_until(lambda: not marked(user_box.project), "the end of everything")
