"""In a terminal emulator that understands what programs write: screens, and what is left of them."""

from __future__ import annotations

from tests.conftest import wait_until
from tests.support.terminals import Multiplexer, command, marked

# Alternate screen, mouse, focus and pasted text reported, no cursor, raw: what the real client does, and worse.
SCREEN = """\
import os, signal, sys, termios, tty
modes = termios.tcgetattr(0)
def enter():
    tty.setraw(0)
    os.write(1, b"\\x1b[?1049h\\x1b[?1000h\\x1b[?1003h\\x1b[?1006h\\x1b[?1004h\\x1b[?2004h\\x1b[?25l\\x1b[31m")
    os.write(1, b"full screen")
def leave():
    os.write(1, b"\\x1b[0m\\x1b[?25h\\x1b[?2004l\\x1b[?1004l\\x1b[?1006l\\x1b[?1003l\\x1b[?1000l\\x1b[?1049l")
    termios.tcsetattr(0, termios.TCSADRAIN, modes)
enter()
while True:
    key = os.read(0, 1)
    if key == b"\\x1a":
        leave()
        os.kill(0, signal.SIGTSTP)
        enter()
    elif key == b"k":
        os.kill(os.getpid(), signal.SIGKILL)
    elif key == b"q":
        leave()
        sys.exit(3)
"""
STATE = ("alternate_on", "mouse_any_flag", "cursor_flag")
FULL, PLAIN = ["1", "1", "0"], ["0", "0", "1"]


def prompt_row(window):
    """Return the row of the cursor, and the last row that has anything in it."""
    return int(window.state("cursor_y")[0]), len(window.rows()) - 1


def test_a_full_screen_program_is_suspended_and_comes_back(box):
    # proves SAND-15
    program = box.write("program.py", SCREEN)
    with Multiplexer(box) as window:
        window.claudebox("python3", program)
        for _ in range(2):
            window.expect("full screen")
            wait_until(lambda: window.state(*STATE) == FULL, "the program has the screen")
            window.press("C-z")
            window.expect(r"Stopped[^<]*<148>host\$")
            wait_until(lambda: window.state(*STATE) == PLAIN, "the shell has the screen")
            window.type("fg")
        window.expect("full screen")
        window.press("q")
        window.expect(r"<3>host\$")
        assert window.state(*STATE) == PLAIN


def test_a_killed_program_leaves_no_alternate_screen_no_mouse_and_a_cursor(user_box):
    # proves B08
    program = user_box.write("program.py", SCREEN)
    with Multiplexer(user_box) as window:
        window.type(f"python3 {program}")
        window.expect("full screen")
        window.press("k")
        window.expect(r"<137>host\$")
        assert window.state(*STATE) == FULL

    with Multiplexer(user_box) as window:
        window.claudebox("python3", program)
        window.expect("full screen")
        window.press("k")
        window.expect(r"<137>host\$")
        assert window.state(*STATE) == PLAIN
        assert "writes " in window.screen()  # it is the screen from before
        row, last = prompt_row(window)
        assert row == last


def test_putting_the_terminal_in_order_does_not_move_the_cursor_of_a_plain_one(user_box):
    # proves B08
    editor = r"printf '\033[?1049h\033[?1049l'; seq 10"  # tmux remembers where the cursor stood then
    with Multiplexer(user_box) as window:
        window.type(editor)
        window.expect("(?m)^10$")
        row, last = prompt_row(window)
        window.type(r"printf '\033[?1049l'")  # what a careless reset does
        wait_until(lambda: prompt_row(window)[0] < row, "the cursor moves if nobody takes care")

    with Multiplexer(user_box) as window:
        window.type(editor)
        window.expect("(?m)^10$")
        window.claudebox("sh", user_box.write("program.sh", "echo ready; exec sleep 1000"))
        window.expect("(?m)^ready$")
        window.press("C-c")
        window.expect(r"<130>host\$")
        row, last = prompt_row(window)
        assert row == last


def test_closing_a_window_with_nothing_but_claudebox_in_it_ends_the_sandbox(user_box):
    # proves E10, SAND-15
    program = user_box.write("program.py", SCREEN)
    with Multiplexer(user_box) as window:
        window.open("other", command(user_box, "python3", program))
        wait_until(lambda: "full screen" in window.screen("other"), "the program runs")
        assert marked(program)
        window.close("other")
        wait_until(lambda: not marked(program), "the end of the sandbox")
