"""A terminal of the sandbox's own: everything that people do at a terminal works, and the user's is out of reach."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import need, wait_until
from tests.support.terminals import CTRL_Z, Multiplexer, Terminal, command, content, marked, use_terminal

KEPT_OUT = {
    "clipboard": "\\033]52;c;ZXZpbA==\\007",
    "notification": "\\033]9;hello\\007\\033]777;notify;a;b\\007",
    "cursor query": "\\033[6n",
    "identity query": "\\033[c\\033[>c",
    "colour query": "\\033]11;?\\007",
    "mode query": "\\033[?2026$p",
    "title query": "\\033[21t",
    "terminfo query": "\\033P+q544e\\033\\\\",
}


SPY = Path(__file__).resolve().parent.parent / "probes" / "spy.py"


WHICH = """\
import fcntl, os, termios
print("terminal", os.fstat(0).st_rdev, os.fstat(1).st_rdev)
descriptor = os.open("/dev/tty", os.O_RDWR)
fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
print("foreground", os.tcgetpgrp(descriptor) == os.getpgrp())
for name in sorted(os.listdir("/proc/self/fd")):
    try:
        print("open", os.stat(f"/proc/self/fd/{name}").st_rdev)
    except OSError:
        pass
"""


def test_the_terminal_inside_is_not_the_users(box):
    # proves B05, PTY-01
    program = box.write("which.py", WHICH)
    with Terminal(box) as terminal:
        real = os.stat(terminal.name).st_rdev
        terminal.type(f"python3 {program}")  # control
        assert terminal.expect(r"terminal (\d+) (\d+)\n").groups() == (str(real),) * 2
        terminal.prompt()

        terminal.claudebox("python3", program)
        inside = terminal.expect(r"terminal (\d+) (\d+)\n")
        assert inside[1] == inside[2] != str(real)
        terminal.expect("foreground True")
        assert terminal.prompt() == 0
        assert f"open {real}\n" not in terminal.raw().replace("\r", "").rpartition("foreground")[2]


def test_ctrl_z_gives_the_shell_back_and_fg_goes_on(box):
    # proves SAND-15, B07
    with Terminal(use_terminal(box, "filtered")) as terminal:
        terminal.claudebox("sh", box.write("program.sh", "echo rea''dy; read line; echo \"read $line\"; exit 7"))
        terminal.expect("\nready\n")
        modes = terminal.modes()
        for _ in range(3):
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("echo typed at the she''ll")
            terminal.expect("\ntyped at the shell\n")
            terminal.prompt()
            terminal.type("fg")
            terminal.expect("fg\n")
            wait_until(lambda: terminal.modes() == modes, "the terminal is the sandbox's again")
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 7


def test_a_shell_inside_has_job_control(user_box):
    # proves SAND-15
    program = user_box.write("program.sh", "echo ready; read line")
    with Terminal(use_terminal(user_box, "filtered")) as terminal:
        terminal.type(f"PS1= {user_box.program} -y --shell --norc --noprofile -i")
        terminal.expect(r"bash-[\d.]+[$#] ")
        terminal.type("PS1='ins''ide$ '")
        terminal.expect(r"\ninside\$ ")
        terminal.type(f"sh {program}")
        terminal.expect(r"\nready\n")
        terminal.press(CTRL_Z)
        terminal.expect(r"Stopped +sh .*\ninside\$ ")
        terminal.type("fg")
        terminal.expect(r"sh .*\n")
        terminal.type("")
        terminal.expect(r"inside\$ ")
        terminal.type("exit 9")
        assert terminal.prompt() == 9


@pytest.mark.parametrize("name", KEPT_OUT)
def test_what_a_terminal_would_obey_or_answer_does_not_reach_it(user_box, name):
    # proves B09, B11
    script = user_box.write("script.sh", f"printf 'before{KEPT_OUT[name]}after\\n'\n")
    harmful = KEPT_OUT[name].encode().decode("unicode_escape")
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", script)
        terminal.prompt()
        assert f"before{harmful}after" in terminal.raw()  # control: without the filter it arrives

        use_terminal(user_box, "filtered")
        terminal.claudebox("sh", script)
        terminal.prompt()
        assert "beforeafter" in terminal.raw()


def test_the_clipboard_of_the_user_is_not_written(user_box):
    # proves B09
    script = user_box.write("script.sh", f"printf '{KEPT_OUT['clipboard']}done\\n'\n")
    with Multiplexer(user_box) as window:
        window._tmux("set-option", "-s", "set-clipboard", "on")
        use_terminal(user_box, "filtered")
        window.claudebox("sh", script)
        window.expect("\ndone\n")
        assert window._tmux("show-buffer") == ""

        os.unlink(f"{user_box.home}/.claudebox/config.toml")
        window.claudebox("sh", script)  # control
        wait_until(lambda: window._tmux("show-buffer") == "evil", "the clipboard was written without the filter")


@pytest.mark.parametrize("kind", ["plain", "filtered"])
def test_the_title_is_as_it_was_and_modes_are_undone(user_box, kind):
    # proves B11, B08
    script = user_box.write("script.sh", "printf '\\033]0;pwned\\007\\033[?1003h\\033[?25l'; sleep 0.3; echo done\n")
    with Multiplexer(user_box) as window:
        window._tmux("select-pane", "-T", "mine")
        use_terminal(user_box, kind)
        window.claudebox("sh", script)
        wait_until(lambda: window.state("pane_title") == ["pwned"], "the program has a title")
        window.expect("\ndone\n.*host")
        wait_until(lambda: window.state("pane_title") == ["mine"], "the title of the user came back")
        assert window.state("mouse_any_flag", "cursor_flag") == ["0", "1"]

        window.press("C-l")
        window.type(f"sh {script}")  # control
        window.expect("\ndone\n.*host")
        assert window.state("pane_title", "mouse_any_flag", "cursor_flag") == ["pwned", "1", "0"]


def test_colours_and_titles_and_a_lot_of_text_arrive(user_box):
    script = user_box.write("script.sh", "printf '\\033[31mred\\033[0m\\n'; seq 1 20000; echo the e''nd\n")
    with Terminal(use_terminal(user_box, "filtered")) as terminal:
        terminal.claudebox("sh", script)
        terminal.expect("the end\n")
        assert terminal.prompt() == 0
        text = terminal.raw()
        assert "\x1b[31mred\x1b[0m" in text
        assert [line for line in text.replace("\r", "").split("\n") if line.isdigit()] == [
            str(number) for number in range(1, 20001)
        ]


@pytest.mark.parametrize(("program", "leave"), [("vim -u NONE -N -n file", ":q!"), ("less file", "q")])
def test_full_screen_programs_look_as_without_a_sandbox(user_box, program, leave):
    # proves B17, B07
    need(shutil.which(program.split()[0]), program.split()[0])
    user_box.write("file", "".join(f"line {number}\ttext\n" for number in range(100)))
    screens = []
    for way in ("without", "plain", "filtered"):
        with Multiplexer(user_box) as window:
            words = ("env", "TERM=xterm-256color", *program.split())
            if way == "without":
                window.type(" ".join(words))
            else:
                use_terminal(user_box, way)
                window.claudebox(*words)
            window.expect("line 20")
            window.press("C-d")
            window.expect("line 30")
            window.resize(20, 60)
            time.sleep(0.5)  # less forgets what is typed while it draws anew
            window.press("G")
            window.expect("line 99")
            time.sleep(0.3)
            screens.append((window.screen(), window.state("alternate_on", "keypad_flag", "cursor_flag")))
            window.press(*leave, *(["Enter"] if leave.startswith(":") else []))
            window.expect(r"<0>host\$\s*\Z")
            assert window.state("alternate_on", "keypad_flag", "cursor_flag", "insert_flag") == ["0", "0", "1", "0"]
    assert screens[0] == screens[1] == screens[2]


def test_what_is_redirected_goes_where_it_was_redirected(user_box):
    use_terminal(user_box, "filtered")
    with Terminal(user_box) as terminal:
        terminal.type(f"{command(user_box, 'sh', '-c', 'echo out; echo err >&2')} >file")
        terminal.expect("\nerr\n")
        assert terminal.prompt() == 0
        assert content(f"{user_box.project}/file") == "out\n"
        terminal.type(f"echo from a pipe | {command(user_box, 'cat')}")
        terminal.expect("\nfrom a pipe\n")
        assert terminal.prompt() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_claudebox_is_ended(user_box, number):
    # proves SAND-15, E10, E15
    program = user_box.write("program.sh", "echo rea''dy; exec sleep 1000")
    with Terminal(use_terminal(user_box, "filtered")) as terminal:
        terminal.claudebox("sh", program)
        terminal.expect("\nready\n")
        os.kill(os.tcgetpgrp(terminal.master), number)  # the launcher is the leader of its group
        assert terminal.prompt() == 128 + number
        wait_until(lambda: not marked(program), "everything has gone")


def test_closing_the_window_ends_everything(user_box):
    # proves SAND-15
    program = user_box.write("program.sh", "echo rea''dy; exec sleep 1000")
    with contextlib.suppress(OSError), Terminal(use_terminal(user_box, "filtered")) as terminal:
        terminal.claudebox("sh", program)
        terminal.expect("\nready\n")
        terminal.hang_up()
        wait_until(lambda: not marked(user_box.project), "everything has gone")


PASSED = (
    "\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b[>1u",  # mouse, pasted text, the keyboard of kitty
    "\x1b]52;c;aGVsbG8=\x07",  # the clipboard
    "\x1b_Gf=24,s=1,v=1,a=T;AAAA\x1b\\",  # a picture, in the protocol of kitty
    "\x1bPq#0;2;0;0;0~~\x1b\\",  # and in sixels
    "\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[6n\x1b[c\x1b]11;?\x07ünïcödé \U0001f600",
)


def test_every_byte_passes_in_both_directions(user_box):
    # proves PTY-01
    program = (
        "import os, sys, tty\ntty.setraw(0)\nos.write(1, b'ready\\r\\n')\ndata = b''\n"
        "while not data.endswith(b'!'):\n    data += os.read(0, 4096)\nos.write(1, b'<' + data + b'>')\n"
    )
    typed = "".join(PASSED) + "\x1b[<0;10;20M\x1b[<0;10;20m\x1b[99;5u\x00\x01\x11\x13\x16\x7f!"
    with Terminal(user_box) as terminal:
        terminal.python(program)
        terminal.press(typed)
        assert terminal.prompt() == 0
        assert f"<{typed}>" in terminal.raw()


def test_a_launch_that_fails_says_why_and_leaves_the_terminal_as_it_was(user_box, altered):
    # proves PTY-01
    altered(user_box, edits={"plan/bwrap.py": ('yield ("--die-with-parent",)', 'yield ("--no-such-option",)')})
    with Terminal(user_box) as terminal:
        terminal.claudebox("true")
        terminal.expect("error: .*no-such-option")
        assert terminal.prompt() == 125
        wait_until(lambda: not marked(user_box.project), "nothing is left")


def test_a_window_or_connection_with_nothing_but_claudebox_in_it_has_a_terminal(user_box):
    # proves PTY-01
    need(shutil.which("script"), "script")  # makes a session as `ssh -t` does
    line = command(user_box, "sh", user_box.write("program.sh", "tty && read line && echo read $line"))
    with Terminal(user_box) as terminal:
        terminal.type(f"script -qec '{line}' /dev/null")
        terminal.expect("/dev/")
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 0


# Asks what it is, as fast as it can, and then ends, stops, or goes on forever.
ASKING = """\
import os, signal, sys, time, tty
tty.setraw(0)
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"ready\\r\\n")
end = time.monotonic() + (0.3 if sys.argv[1] != "forever" else 1000)
while time.monotonic() < end:
    os.write(1, b"\\x1b[c\\x1b[5n" * 50)
if sys.argv[1] == "stop":
    os.kill(0, signal.SIGTSTP)
"""
# Writes down what the next program on the terminal gets to read, although nobody types.
READER = """\
import os, select, sys, termios, tty
tty.setraw(0, termios.TCSANOW)
got = b""
while select.select([0], [], [], 1)[0] and len(got) < 100000:
    got += os.read(0, 4096)
open("got", "w").write(f"{got[:50]!r}\\n")
"""


@pytest.mark.parametrize("way", ["end", "stop"])
def test_answers_of_the_terminal_are_typed_at_no_shell_however_many_they_are(user_box, way):
    # proves TERM-01, B16, PTY-01
    asking, reader = user_box.write("asking.py", ASKING), user_box.write("reader.py", READER)
    for inside in (False, True):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{user_box.project}/got")
        with Multiplexer(user_box) as window:
            line = command(user_box, "python3", asking, way) if inside else f"python3 {asking} {way}"
            window.type(f"{line}; python3 {reader}")
            wait_until(lambda: content(f"{user_box.project}/got").endswith("\n"), "the next program has read")
        assert (content(f"{user_box.project}/got") == "b''\n") == inside


def test_the_escape_works_although_a_program_makes_the_terminal_answer_all_the_time(user_box):
    # proves PTY-01
    reader = user_box.write("reader.py", READER)
    with Multiplexer(user_box) as window:
        window.type(f"{command(user_box, 'python3', user_box.write('asking.py', ASKING), 'forever')}; python3 {reader}")
        window.expect("(?m)^ready$")
        time.sleep(1)  # as many answers wait as ever will
        for key in ("C-c", "C-z", "C-c", "C-z"):
            window.press(key)
            time.sleep(0.1)
        window.expect("Stopped")
        wait_until(lambda: content(f"{user_box.project}/got") == "b''\n", "nothing was typed")


SCREEN = "\\x1b[?1049h\\x1b[?1003h\\x1b[?25l\\x1b]0;pwned\\x07"
LEAVING = f"""\
import os, signal, time
def again(*_):
    os.write(1, b"{SCREEN}")
    raise SystemExit
signal.signal(signal.SIGTERM, again)
os.write(1, b"{SCREEN}")
os.kill(0, signal.SIGTSTP)
while True:
    time.sleep(0.01)
"""


def test_no_mode_stays_when_a_stopped_session_is_ended(user_box):
    # proves B08, PTY-01
    program = user_box.write("leaving.py", LEAVING)
    states = ("alternate_on", "mouse_any_flag", "cursor_flag", "pane_title")
    with Multiplexer(user_box) as window:
        window._tmux("select-pane", "-T", "mine")
        window.type(f"python3 {program}")  # control
        window.expect("Stopped")
        assert window.state(*states) == ["1", "1", "0", "pwned"]

    with Multiplexer(user_box) as window:
        window._tmux("select-pane", "-T", "mine")
        window.claudebox("python3", program)
        window.expect(r"Stopped[^<]*<148>host\$")
        assert window.state(*states) == ["0", "0", "1", "mine"]
        window.type("kill %1; wait; echo en''ded")
        window.expect("\nended\n")
        wait_until(lambda: not marked(program), "the end of the sandbox")
        assert window.state(*states) == ["0", "0", "1", "mine"]


@pytest.mark.parametrize(
    ("kind", "output", "asked"),
    [("xterm", "\\033[1mbold", True), ("xterm", "plain", False), ("dumb", "\\033[1mbold", False)],
)
def test_a_terminal_is_asked_only_if_it_may_have_been_asked_before(user_box, kind, output, asked):
    # proves PTY-01
    with Terminal(user_box) as terminal:
        terminal.type(f"TERM={kind} {command(user_box, 'printf', output)}")
        assert terminal.prompt() == 0  # nobody answers here
        assert ("\x1b[6n" in terminal.raw()) == asked
