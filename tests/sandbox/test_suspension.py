"""While claudebox is suspended nothing inside reads what is typed at the host's shell, whatever it does for it."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path

import pytest
from tests.conftest import need, wait_until
from tests.sandbox.terminals import CTRL_C, CTRL_Z, Terminal, command, content, marked, put_down, use_terminal

SPY = Path(__file__).resolve().parent.parent / "probes" / "spy.py"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAIVE = "bwrap --dev-bind / / --proc /proc --unshare-pid --die-with-parent --"


def type_slowly(terminal, letters=LETTERS):
    """Type as a user does, so that every key can be fought for, and give a spy the time to write it down."""
    for letter in letters:
        terminal.press(letter)
        time.sleep(0.005)
    time.sleep(0.1)


def suspend_with_a_spy(terminal, command, kind, *, until_it_steals=False):
    """Start a spy, press Ctrl+Z, type at the shell, and return what the spy has got of that."""
    box = terminal.box
    program = box.write("spy.py", SPY.read_bytes())
    stolen = f"{box.project}/stolen-by-{kind}"
    terminal.type(f"{command} python3 {program} {kind} {stolen}")
    terminal.expect("the spy is ready")
    terminal.press(CTRL_Z)
    terminal.prompt()
    before = content(stolen)
    for _ in range(50 if until_it_steals else 1):
        type_slowly(terminal)
        if content(stolen) != before:
            break
    return stolen, content(stolen).removeprefix(before)


def start(terminal, script="sleep 1000"):
    """Run a script in the sandbox, and wait until it runs."""
    terminal.claudebox("sh", terminal.box.write("program.sh", f"echo the program is ready\n{script}\n"))
    terminal.expect("the program is ready")


@contextlib.contextmanager
def terminal_of(box):
    """Open a terminal, and leave no spy behind that outlives it."""
    with Terminal(box) as terminal:
        try:
            yield terminal
        finally:
            put_down(f"{box.project}/stolen-by-")


@pytest.mark.parametrize(("kind", "terminals"), [
    *((kind, "shared") for kind in ("plain", "timer", "key", "leaderless", "rabbit", "family", "debugged", "init")),
    *((kind, "private") for kind in ("plain", "timer", "leaderless")),
])  # fmt: skip
def test_a_spy_gets_nothing_of_what_is_typed_after_ctrl_z(user_box, kind, terminals):
    # proves B06, SAND-15
    use_terminal(user_box, terminals)
    need(kind != "init" or platform.machine() == "x86_64", "machine that the take-over is written for")
    with terminal_of(user_box) as terminal:
        stolen, taken = suspend_with_a_spy(terminal, NAIVE, kind, until_it_steals=True)
        assert taken, "the spy is no good: it gets nothing from a shell that nobody protects"
    os.unlink(stolen)

    with terminal_of(user_box) as terminal:
        stolen, taken = suspend_with_a_spy(terminal, command(user_box), kind)

        assert taken == ""
        assert terminal.shown().endswith(LETTERS)


def test_a_spy_gets_nothing_after_bg_either_and_goes_on_after_fg(box):
    # proves B06, SAND-15
    with terminal_of(box) as terminal:
        stolen, taken = suspend_with_a_spy(terminal, command(box), "plain")
        assert taken == ""

        for _ in range(2):
            terminal.press("\x15")  # Ctrl+U: forget what was typed
            terminal.type("bg")
            terminal.prompt()
            type_slowly(terminal)
            assert content(stolen) == ""
        terminal.press("\x15")
        # On a busy machine it takes its time until claudebox has stopped again.
        terminal.type("until jobs | grep -q Stopped; do sleep 0.05; done; jobs")
        terminal.expect(r"\+ +Stopped")
        terminal.prompt()

        terminal.resume()
        terminal.type("now it is yours")
        wait_until(lambda: "now it is yours" in content(stolen), "the spy went on after fg")
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130
    assert marked(stolen) == []


def test_a_crowd_that_grows_while_it_is_held_gets_nothing(user_box):
    # proves B06
    with terminal_of(user_box) as terminal:
        _, taken = suspend_with_a_spy(terminal, command(user_box), "crowd")

        assert taken == ""


def test_a_spy_is_stopped_by_signal_where_it_cannot_be_held(user_box, altered):
    # proves B06
    altered(
        user_box,
        edits={
            "launch/freezer.py": (
                "_SEIZE, _INTERRUPT, _CONTINUE, _DETACH = 0x4206,",
                "_SEIZE, _INTERRUPT, _CONTINUE, _DETACH = 0x4999,",
            )
        },
    )
    for kind in ("plain", "leaderless"):
        with terminal_of(user_box) as terminal:
            stolen, taken = suspend_with_a_spy(terminal, command(user_box), kind)
            assert taken == ""

            terminal.press("\x15")
            terminal.resume()
            terminal.type("now it is yours")
            wait_until(lambda: "now it is yours" in content(stolen), "the spy went on after fg")  # noqa: B023


def test_what_cannot_be_held_is_ended(user_box, altered):
    # proves B06
    altered(
        user_box,
        edits={
            "launch/freezer.py": (
                "_FREEZE_LIMIT, _THAW_LIMIT, _PAUSE = 3.0,",
                "_FREEZE_LIMIT, _THAW_LIMIT, _PAUSE = 0.0,",
            )
        },
    )
    with terminal_of(user_box) as terminal:
        start(terminal)
        terminal.press(CTRL_Z)

        assert terminal.prompt() == 137
        assert marked(user_box.project) == []


STOPPED_BEFORE = """\
import os, signal, subprocess, time
def sleeper():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)
def states():
    while True:  # they are continued one after the other
        found = [open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0] for process in sleepers]
        if found in (["T", "S"], ["S", "S"]):
            return " ".join(found)
        time.sleep(0.01)
sleepers = sleeper(), sleeper()
os.kill(sleepers[0].pid, signal.SIGSTOP)
continued = []
signal.signal(signal.SIGCONT, lambda *_: continued.append(True))
time.sleep(0.1)
print("before:", states(), flush=True)
while not continued:
    time.sleep(0.01)
print("continued:", states(), flush=True)
time.sleep(1000)
"""


def test_what_was_stopped_before_stays_stopped_and_what_ran_goes_on(user_box):
    # proves SAND-15
    user_box.write("sleepers.py", STOPPED_BEFORE)
    with Terminal(user_box) as terminal:
        terminal.claudebox("python3", "sleepers.py")
        terminal.expect("before: T S")
        terminal.press(CTRL_Z)
        terminal.prompt()
        terminal.type("fg")
        terminal.expect("continued: T S")
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130


@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("HUP", 129)])
def test_a_suspended_claudebox_can_be_told_to_end(user_box, name, status):
    # proves B06, SAND-15
    with Terminal(user_box) as terminal:
        start(terminal, "trap '' HUP; while :; do sleep 1000; done")
        terminal.press(CTRL_Z)
        terminal.prompt()
        terminal.type(f"kill -{name} %1; kill -CONT %1 2>/dev/null; wait %1; echo status $?")
        assert int(terminal.expect(r"\nstatus (\d+)")[1]) == status
        assert marked(user_box.project) == []


def test_closing_the_terminal_ends_a_suspended_command(user_box):
    # proves E10, SAND-15
    with Terminal(user_box) as terminal:
        start(terminal)
        terminal.press(CTRL_Z)
        terminal.prompt()
        assert marked(user_box.project)
    wait_until(lambda: not marked(user_box.project), "the end of what ran in a closed terminal")


def test_leaving_the_shell_ends_a_suspended_command(user_box):
    # proves B06, E10
    with Terminal(user_box) as terminal:
        terminal.type("PS1='<$?>inner$ ' bash --norc --noprofile -i")
        terminal.expect("inner")
        start(terminal)
        terminal.press(CTRL_Z)
        terminal.expect(r">inner\$ ")
        terminal.type("exit")
        terminal.expect("stopped jobs")
        terminal.type("exit")
        terminal.prompt()
        wait_until(lambda: not marked(user_box.project), "the end of what the shell left behind")


def test_killing_a_suspended_claudebox_leaves_nothing(user_box):
    # proves B06, E10
    with terminal_of(user_box) as terminal:
        stolen, _ = suspend_with_a_spy(terminal, command(user_box), "plain")
        terminal.press("\x15")
        terminal.type("kill -9 %1")
        terminal.prompt()
        wait_until(lambda: not marked(stolen), "the end of the sandbox")
        assert content(stolen) == ""
