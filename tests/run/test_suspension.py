"""Suspending: nothing inside reads what is typed at the shell, `fg` goes on, and no program can keep the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.support.terminals import CTRL_C, CTRL_Z, Terminal, command, content, marked, put_down, state, use_terminal

SPY = Path(__file__).resolve().parent.parent / "probes" / "spy.py"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAIVE = "bwrap --dev-bind / / --proc /proc --unshare-pid --die-with-parent --"
FORGET = "\x15"  # Ctrl+U
ESCAPE = CTRL_C + CTRL_Z + CTRL_C + CTRL_Z


def type_slowly(terminal, letters=LETTERS):
    """Type as a user does, so that every key can be fought for, and give a spy the time to write it down."""
    for letter in letters:
        terminal.press(letter)
        time.sleep(0.005)
    time.sleep(0.1)


def press_slowly(terminal, keys):
    """Press keys as fast as a user does."""
    for key in keys:
        terminal.press(key)
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


@pytest.mark.parametrize("kind", ["plain", "timer", "key", "leaderless", "rabbit"])
def test_a_spy_gets_nothing_of_what_is_typed_after_ctrl_z(user_box, kind):
    # proves B06, B15, SAND-15, TERM-01, OLD-A2, PTY-01
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
            terminal.press(FORGET)
            terminal.type("bg")
            terminal.prompt()
            type_slowly(terminal)
            assert content(stolen) == ""
        terminal.press(FORGET)
        # On a busy machine it takes its time until claudebox has stopped again.
        terminal.type("until jobs | grep -q Stopped; do sleep 0.05; done; jobs")
        terminal.expect(r"\+ +Stopped")
        terminal.prompt()

        terminal.resume()
        for _ in range(20):  # what is typed before the terminal is handed over counts for nothing
            terminal.type("now it is yours")
            time.sleep(0.5)
            if "now it is yours" in content(stolen):
                break
        assert "now it is yours" in content(stolen), "the spy goes on after fg"
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130
    assert marked(stolen) == []


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


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_suspended_claudebox_can_be_told_to_end(user_box, name):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        start(terminal)
        terminal.press(CTRL_Z)
        terminal.prompt()
        terminal.type(f"kill -{name} %1; kill -CONT %1 2>/dev/null; echo to''ld")
        terminal.expect("\ntold\n")
        wait_until(lambda: not marked(user_box.project), "the end of the sandbox")


def test_closing_the_terminal_ends_a_suspended_command(user_box):
    # proves E10, SAND-15
    with Terminal(user_box) as terminal:
        start(terminal)
        terminal.press(CTRL_Z)
        terminal.prompt()
        assert marked(user_box.project)
    wait_until(lambda: not marked(user_box.project), "the end of what ran in a closed terminal")


def test_leaving_the_shell_ends_a_suspended_command(user_box):
    # proves E10
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
    # proves E10
    with Terminal(user_box) as terminal:
        start(terminal)
        terminal.press(CTRL_Z)
        terminal.prompt()
        terminal.type("kill -9 %1")
        terminal.prompt()
        wait_until(lambda: not marked(user_box.project), "the end of the sandbox")


# Each holds the terminal in its own way: it never reads, it reads and does nothing, or it also writes all the time.
HOLDERS = {
    "unread": "time.sleep(1000)",
    "ignored": "while True: os.read(0, 100)",
    "busy": (
        "import select\nwhile True:\n    select.select([0], [], [], 0.01)[0] and os.read(0, 100); os.write(1, b'.')"
    ),
    "deaf": "while True: os.read(0, 100)",
}
HOLDER = """\
import os, signal, sys, time, tty
for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGQUIT, signal.SIGTTIN, signal.SIGTTOU):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued\\r\\n"))
if {raw}:
    tty.setraw(0)
os.write(1, b"ready\\r\\n")
{body}
"""


ANSWERING = """\
import os, tty
tty.setraw(0)
os.write(1, b"ready\\r\\n")
while True:
    os.write(1, ascii(os.read(0, 4096)).encode())
"""


def hold(terminal, kind):
    """Start a program that gives nothing to keys."""
    terminal.python(HOLDER.format(raw=kind != "deaf", body=HOLDERS[kind]))


@pytest.mark.parametrize("filtered", ["plain", "filtered"])
@pytest.mark.parametrize("kind", HOLDERS)
def test_the_escape_gives_the_shell_back_whatever_a_program_does_with_keys(user_box, kind, filtered):
    # proves PTY-01
    with Terminal(use_terminal(user_box, filtered)) as terminal:
        hold(terminal, kind)
        for _ in range(2):
            press_slowly(terminal, ESCAPE)
            terminal.expect("Stopped")
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("echo at the she''ll")
            terminal.expect("\nat the shell\n")
            terminal.prompt()
            terminal.type("fg")
            terminal.expect("continued")
        press_slowly(terminal, ESCAPE)
        terminal.prompt()
        terminal.type("kill %1")  # the way to end
        wait_until(lambda: not marked(user_box.project), "the end of the sandbox")
        terminal.type("cat")
        terminal.expect("cat\n")
        wait_until(lambda: terminal.modes() == terminal.first_modes, "the terminal is as it was")


def test_the_escape_works_with_the_keyboards_of_kitty_and_xterm_and_although_nothing_is_read(user_box):
    # proves PTY-01
    kitty = [f"\x1b[{code};{modifiers}u" for code in (99, 122) for modifiers in ("5", "133:1")]
    xterm = ["\x1b[27;5;99~", "\x1b[27;5;122~"] * 2
    for keys in (kitty, xterm):
        with Terminal(user_box) as terminal:
            hold(terminal, "unread")
            terminal.press("x" * 20000)
            time.sleep(0.5)
            press_slowly(terminal, keys)
            assert terminal.prompt() == 128 + signal.SIGTSTP


def test_the_escape_works_although_the_terminal_answers_and_reports_all_the_time(user_box):
    # proves PTY-01
    noise = "\x1b[24;80R" * 700 + "\x1b]11;rgb:0/0/0\x1b\\" * 50 + "\x1b[<35;10;10M\x1b[I"
    with Terminal(user_box) as terminal:
        hold(terminal, "ignored")
        press_slowly(terminal, [noise + key + noise for key in ESCAPE])
        assert terminal.prompt() == 128 + signal.SIGTSTP


@pytest.mark.parametrize(
    "keys",
    [
        [ESCAPE * 20 + "text"],
        ["\x1b[200~" + ESCAPE + "\x1b[201~"],
        [CTRL_Z] * 7,
        [CTRL_C] * 7,
        [CTRL_C, CTRL_Z, "x", CTRL_C, CTRL_Z],
        ["\x1b[99;5u", "\x1b[122;5u", "\x1b[99;5:3u", "\x1b[122;5:3u"],
    ],
)
def test_neither_a_paste_nor_other_keys_are_the_escape(user_box, keys):
    # proves PTY-01
    with Terminal(user_box) as terminal:
        terminal.python(ANSWERING)
        press_slowly(terminal, keys)
        terminal.press("end")
        terminal.expect("end")
        assert "Stopped" not in terminal.raw()


def test_the_keys_that_help_are_named_when_a_program_does_not_answer_and_not_before(user_box):
    # proves PTY-01
    named = r"claudebox: .*Ctrl\+C Ctrl\+Z Ctrl\+C Ctrl\+Z"
    with Terminal(user_box) as terminal:
        hold(terminal, "unread")
        press_slowly(terminal, [CTRL_C, CTRL_C])
        assert "claudebox:" not in terminal.shown(during=1.5)
        press_slowly(terminal, [CTRL_C])
        time.sleep(3.1)  # they were too slow: from here on three are enough
        press_slowly(terminal, [CTRL_Z] * 3)
        terminal.expect(named)
        press_slowly(terminal, ESCAPE)
        terminal.prompt()
        terminal.type("kill -9 %1")

    with Terminal(user_box) as terminal:
        terminal.python(ANSWERING)
        press_slowly(terminal, [CTRL_C] * 5)
        assert "claudebox:" not in terminal.shown(during=1.5)


def test_where_there_is_no_shell_the_escape_ends_the_session(user_box):
    # proves PTY-01
    program = user_box.write("program.py", HOLDER.format(raw=True, body=HOLDERS["ignored"]))
    argv = (user_box.program, "-y", "--exec", "--", "python3", program)
    with Terminal(user_box, argv=argv) as terminal:
        terminal.expect("\nready\n")
        press_slowly(terminal, ESCAPE)
        terminal.expect("no shell to return to")
        assert state(terminal.process.pid) in "SR"
        press_slowly(terminal, ESCAPE)
        assert terminal.process.wait(20) == 128 + signal.SIGHUP
    assert marked(program) == []
