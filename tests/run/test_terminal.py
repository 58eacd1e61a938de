"""A program inside has the user's terminal as if there were no sandbox, and cannot turn it against the user."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest
from tests.conftest import every_case, wait_until
from tests.support.terminals import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal, command, content, marked, use_terminal

KINDS = ["plain", "filtered"]
LEGACY_TIOCSTI = Path("/proc/sys/dev/tty/legacy_tiocsti")


TYPIST = """\
import fcntl, os, sys, termios
for name in ("0", "1", "2", "/dev/tty"):
    try:
        descriptor = os.open(name, os.O_RDWR) if name.startswith("/") else int(name)
        for key in f"touch typed-into-{os.path.basename(name)}\\n".encode():
            fcntl.ioctl(descriptor, termios.TIOCSTI, bytes([key]))
        print(name, "typed")
    except OSError as error:
        print(name, error.strerror)
"""


@every_case("kind", KINDS, as_root=1)
def test_a_program_inside_types_nothing_into_the_shell_of_the_host(box, kind):
    # proves B01
    box.write("typist.py", TYPIST)
    with Terminal(use_terminal(box, kind)) as terminal:
        terminal.claudebox("python3", "typist.py")
        for name in ("0", "1", "2", "/dev/tty"):
            terminal.expect(rf"\n{name} Operation not permitted")
        terminal.prompt()
        terminal.type("touch typed-by-the-person")
        terminal.prompt()
        assert [name for name in os.listdir(box.project) if name.startswith("typed")] == ["typed-by-the-person"]

        if LEGACY_TIOCSTI.exists() and LEGACY_TIOCSTI.read_text().strip() == "0":
            pytest.skip("the denial holds, but this kernel lets nobody type for others, so there is no control")
        terminal.type("python3 typist.py")
        wait_until(lambda: os.path.exists(f"{box.project}/typed-into-tty"), "the same program types outside")


RESIZED = """\
import os, signal, time
def tell(*_):
    os.write(1, b"%d %d\\n" % os.get_terminal_size())
signal.signal(signal.SIGWINCH, tell)
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_size_of_the_window_reaches_a_program_inside(user_box, kind):
    # proves B07, SAND-15
    with Terminal(use_terminal(user_box, kind)) as terminal:
        terminal.python(RESIZED)
        for rows, columns in ((50, 132), (24, 80)):
            terminal.resize(rows, columns)
            terminal.expect(rf"{columns} {rows}\n")


@pytest.mark.accounts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key", "status"), [(CTRL_C, 130), (CTRL_BACKSLASH, 131)])
def test_ctrl_c_and_ctrl_backslash_end_a_plain_program(box, key, status, kind):
    # proves SAND-14, SAND-15
    with Terminal(use_terminal(box, kind)) as terminal:
        terminal.claudebox("sh", box.write("program.sh", "echo rea''dy; exec sleep 1000"))
        terminal.expect("\nready\n")
        terminal.press(key)

        assert terminal.prompt() == status
    wait_until(lambda: not marked(box.project), "the end of what ran inside")


LISTENER = """\
import os, select, signal
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, lambda number, _: os.write(1, b"got %d\\n" % number))
print("ready", flush=True)
while not select.select([0], [], [], 0.02)[0]:
    pass
print("read", input(), flush=True)
raise SystemExit(7)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_handles_ctrl_c_and_ctrl_backslash_goes_on(user_box, kind):
    # proves SAND-14, SAND-15
    with Terminal(use_terminal(user_box, kind)) as terminal:
        terminal.python(LISTENER)
        for key, number in ((CTRL_C, signal.SIGINT), (CTRL_BACKSLASH, signal.SIGQUIT), (CTRL_C, signal.SIGINT)):
            terminal.press(key)
            terminal.expect(f"got {number:d}\n")
        terminal.type("something")
        assert terminal.expect(r"read (\w+)\n")[1] == "something"
        assert terminal.prompt() == 7


SPOILER = """\
import fcntl, os, signal, sys, termios, tty
tty.setraw(0)
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK)
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_a_terminal_that_was_left_raw_and_nonblocking_is_put_in_order(user_box, number, kind):
    # proves B08
    use_terminal(user_box, kind)
    program = ("python3", user_box.write("spoiler.py", SPOILER), str(int(number)))
    # bash mends a terminal itself; sh does not, and shows what was left.
    with Terminal(user_box, argv=("sh", "-c", f"{shlex.join(program)}; echo spoi''led; read line")) as terminal:
        terminal.expect("spoiled")
        assert terminal.modes() != terminal.first_modes
        assert terminal.flags() & os.O_NONBLOCK

    with Terminal(user_box, argv=("sh", "-c", f"{command(user_box, *program)}; echo men''ded; read line")) as terminal:
        terminal.expect("mended")
        assert terminal.modes() == terminal.first_modes
        assert not terminal.flags() & os.O_NONBLOCK


WITHOUT = """\
import os
print("session", os.getsid(0) == os.getsid(1), os.getpgrp() != 0)
try:
    os.open("/dev/tty", os.O_RDWR)
    print("terminal")
except OSError as error:
    print(error.strerror)
"""


def test_without_a_terminal_a_program_gets_a_session_of_its_own(box):
    # proves B05
    program = box.write("program.py", WITHOUT)
    with Terminal(box) as terminal:
        terminal.type(f"python3 {program} </dev/null >../home/out 2>&1")
        terminal.prompt()
        assert content(f"{box.home}/out").splitlines()[-1] == "terminal"

        terminal.type(f"{command(box, 'python3', program)} </dev/null >../home/out 2>&1")
        assert terminal.prompt() == 0
        assert content(f"{box.home}/out").splitlines()[-2:] == ["session True True", "No such device or address"]


def test_ctrl_c_and_ctrl_z_work_although_everything_is_redirected(box):
    # proves SAND-15
    # The shell inside would wait for its child if it alone were told.
    program = box.write("program.sh", "echo ready\nsleep 1000\necho not to be reached\n")
    with Terminal(box) as terminal:
        terminal.type(f"{command(box, 'sh', program)} </dev/null >../home/out 2>&1")
        wait_until(lambda: content(f"{box.home}/out").endswith("ready\n"), "the program runs")
        terminal.press(CTRL_Z)
        assert terminal.prompt() == 128 + signal.SIGTSTP
        terminal.resume()
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130
        assert content(f"{box.home}/out").endswith("ready\n")
    assert marked(box.project) == []
