"""Whatever a program inside did to the terminal, the report is readable and the shell finds it as it was."""

from __future__ import annotations

import fcntl
import os
import termios

import pytest
from tests.conftest import wait_until
from tests.support.terminals import Multiplexer, Terminal, command, content

TIOCEXCL, TIOCGEXCL = 0x540C, 0x80045440
# Ends with status 0 each time, as a program does that has nothing to hide.
SPOILER = """\
import fcntl, os, struct, sys, termios
for name in sys.argv[1:]:
    if name == "exclusive":
        fcntl.ioctl(0, 0x540C)
    elif name == "stopped":
        termios.tcflow(0, termios.TCOOFF)
    elif name == "size":
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 7, 9, 0, 0))
"""
AT_PROMPT = r"(?m)^<0>host\$\s*\Z"
STATE = (
    "scroll_region_upper", "scroll_region_lower", "origin_flag", "insert_flag", "keypad_flag", "keypad_cursor_flag",
    "wrap_flag", "mouse_any_flag", "mouse_sgr_flag", "alternate_on", "cursor_flag",
)  # fmt: skip
PREPARED = {
    "margins": "\\033[2;4r\\033[4;1H",
    "origin and margins": "\\033[20;22r\\033[?6h",
    "character set": "\\033(0",
    "other character set": "\\033)0\\016",
    "concealment": "\\033[8m",
    "an open string": "\\033]0;",
    "an open device string": "\\033P",
    "the alternate screen": "\\033[?1049h",
    "modes": "\\033[?1000h\\033[?1003h\\033[?1006h\\033[?25l\\033[4h\\033=\\033[?1h\\033[?7l",
    "everything": "\\033[?1049h\\033[?1003h\\033[?25l\\033[4h\\033[2;4r\\033[?6h\\033[8m\\033(0\\033P",
}


def is_exclusive(terminal):
    return any(fcntl.ioctl(terminal.slave, TIOCGEXCL, bytes(4)))


@pytest.mark.parametrize("name", ["exclusive", "stopped"])
def test_exclusive_use_and_stopped_output_end_with_the_sandbox(user_box, name):
    # proves TERM-01, B16, OLD-A26
    program = ("python3", user_box.write("spoiler.py", SPOILER), name)
    with Terminal(user_box) as terminal:
        terminal.claudebox(*program)
        assert terminal.prompt() == 0
        assert not is_exclusive(terminal)

        terminal.type(" ".join(program))  # control
        if name == "exclusive":
            terminal.prompt()
            wait_until(lambda: is_exclusive(terminal), "it is used exclusively")
        else:
            assert "host" not in terminal.shown(during=0.5)
            termios.tcflow(int(terminal.slave or 0), termios.TCOON)
            terminal.prompt()


def test_exclusive_use_that_was_there_before_stays(user_box):
    with Terminal(user_box) as terminal:
        fcntl.ioctl(int(terminal.slave or 0), TIOCEXCL)
        terminal.claudebox("true")
        assert terminal.prompt() == 0
        assert is_exclusive(terminal)


def test_a_size_that_was_set_from_inside_is_corrected(user_box):
    # proves TERM-01, B16, OLD-A26
    program = ("python3", user_box.write("spoiler.py", SPOILER), "size")
    with Multiplexer(user_box) as window:
        window.type(" ".join(program) + "; stty size >size")
        wait_until(lambda: content(f"{user_box.project}/size") == "7 9\n", "the size was set")  # control

    with Multiplexer(user_box) as window:
        window.claudebox(*program)
        window.expect("writes ")
        window.expect(AT_PROMPT)
        window.type("stty size >size")
        wait_until(lambda: content(f"{user_box.project}/size") == "24 80\n", "the size is right")


@pytest.mark.parametrize("name", PREPARED)
def test_the_report_is_readable_on_a_terminal_that_was_prepared_for_it(user_box, name):
    # proves TERM-01, B16, OLD-A10
    script = f"echo 'export A=b' >.envrc; printf '{PREPARED[name]}'"
    user_box.write("plain.sh", "echo 'export A=b' >.envrc")
    user_box.write("script.sh", script)
    with Multiplexer(user_box) as window:
        before = window.state(*STATE)
        window.claudebox("sh", "plain.sh")
        window.expect("writes ")
        window.expect(AT_PROMPT)
        plain = [line for line in window.rows() if ".envrc" in line]
        assert plain  # control: there is a report

        os.unlink(f"{user_box.project}/.envrc")
        window.type("clear")
        window.expect(r"\A<0>host\$\s*\Z")
        window.claudebox("sh", "script.sh")
        wait_until(lambda: os.path.exists(f"{user_box.project}/.envrc"), "the program runs")
        window.expect(AT_PROMPT)
        assert [line for line in window.rows() if ".envrc" in line] == plain
        assert window.state(*STATE) == before


def test_colours_are_put_back_before_the_report(user_box):
    # proves TERM-01, B16
    user_box.write("dark.sh", r"printf '\033]10;#000\007\033]11;#000\007'; echo 'export A=b' >.envrc")
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", "dark.sh")
        assert terminal.prompt() == 0
        said = terminal.raw()
    black, put_back = said.index("\x1b]11;#000"), max(said.index(f"\x1b]{number}\x1b\\") for number in (104, 110, 111))
    assert black < put_back < said.rindex(".envrc")


def test_a_pager_behind_a_pipe_keeps_its_screen(user_box):
    # proves TERM-01, B16
    pager = "printf '\\033[?1049h' >/dev/tty; cat >/dev/null; sleep 0.5; echo the pager is do''ne"
    with Terminal(user_box) as terminal:
        terminal.type(f"{command(user_box, 'echo', 'text')} | sh -c {repr(pager).replace(chr(92) * 2, chr(92))}")
        terminal.expect("the pager is done")
        terminal.prompt()
        assert "\x1b[?1049l" not in terminal.raw()

        terminal.claudebox("true")  # control
        terminal.prompt()
        assert "\x1b[?1049l" in terminal.raw()


@pytest.mark.parametrize("way", ["everything redirected", "a terminal that knows no sequences"])
def test_nothing_is_written_where_nothing_can_have_been_changed(user_box, way):
    # proves TERM-01, B16
    line = command(user_box, "true")
    line = f"{line} </dev/null >out 2>&1" if way == "everything redirected" else f"TERM=dumb {line}"
    with Terminal(user_box) as terminal:
        terminal.type("bind 'set enable-bracketed-paste off'")
        terminal.prompt()
        before = len(terminal.raw())
        terminal.type(line)
        assert terminal.prompt() == 0
        assert "\x1b" not in terminal.raw()[before:]


ASKING = """\
import os, time
os.write(1, b"\\x1b[6n")
while not os.path.exists("answered"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("inside", [False, True])
def test_answers_to_questions_from_inside_are_not_typed_at_the_shell(user_box, inside):
    # proves TERM-01, B16
    program = user_box.write("asking.py", ASKING)
    with Terminal(user_box) as terminal:
        terminal.type(command(user_box, "python3", program) if inside else f"python3 {program}")
        wait_until(lambda: "\x1b[6n" in terminal.raw(), "the question")
        terminal.press("echo typed >typed\r")  # what a terminal with a hole might answer
        user_box.write("answered")
        terminal.prompt()
        terminal.shown(during=0.3)
        if inside:
            assert content(f"{user_box.project}/typed") == ""
        else:
            wait_until(lambda: content(f"{user_box.project}/typed") == "typed\n", "the shell obeys the answer")
