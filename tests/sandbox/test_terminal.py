"""A program inside has the person's terminal as if there were no sandbox, and cannot turn it against the person."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest
from tests.sandbox.terminals import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal, command, content, marked, wait_until

LEGACY_TIOCSTI = Path("/proc/sys/dev/tty/legacy_tiocsti")


def start(terminal, program, *, said="ready"):
    """Run a Python program in the sandbox, and wait until it has said something."""
    terminal.claudebox("python3", terminal.box.write("program.py", program))
    terminal.expect(rf"\n{said}\n")


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


def test_a_program_inside_types_nothing_into_the_shell_of_the_host(box):
    # proves B01
    box.write("typist.py", TYPIST)
    with Terminal(box) as terminal:
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
import os, signal
def tell(*_):
    os.write(1, b"%d %d\\n" % os.get_terminal_size())
signal.signal(signal.SIGWINCH, tell)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_new_size_of_the_window_reaches_a_program_inside(user_box):
    # proves B07, SAND-15
    with Terminal(user_box) as terminal:
        start(terminal, RESIZED)
        for rows, columns in ((50, 132), (24, 80)):
            terminal.resize(rows, columns)
            terminal.expect(rf"{columns} {rows}\n")


@pytest.mark.parametrize(("key", "status"), [(CTRL_C, 130), (CTRL_BACKSLASH, 131)])
def test_ctrl_c_and_ctrl_backslash_end_a_plain_program(box, key, status):
    # proves SAND-14, SAND-15
    with Terminal(box) as terminal:
        terminal.claudebox("sh", box.write("program.sh", "echo rea''dy; exec sleep 1000"))
        terminal.expect("\nready\n")
        terminal.press(key)

        assert terminal.prompt() == status
    assert marked(box.project) == []


LISTENER = """\
import os, signal
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, lambda number, _: os.write(1, b"got %d\\n" % number))
print("ready", flush=True)
print("read", input(), flush=True)
raise SystemExit(7)
"""


def test_a_program_that_handles_ctrl_c_and_ctrl_backslash_goes_on(user_box):
    # proves SAND-14, SAND-15
    with Terminal(user_box) as terminal:
        start(terminal, LISTENER)
        for key, number in ((CTRL_C, signal.SIGINT), (CTRL_BACKSLASH, signal.SIGQUIT), (CTRL_C, signal.SIGINT)):
            terminal.press(key)
            terminal.expect(f"got {number:d}\n")
        terminal.type("something")
        assert terminal.expect(r"read (\w+)\n")[1] == "something"
        assert terminal.prompt() == 7


def test_ctrl_z_gives_the_shell_back_and_fg_goes_on(box):
    # proves SAND-14, SAND-15
    with Terminal(box) as terminal:
        terminal.claudebox("sh", box.write("program.sh", "echo rea''dy; read line; echo \"read $line\"; exit 7"))
        terminal.expect("\nready\n")
        for _ in range(3):
            terminal.press(CTRL_Z)
            terminal.expect("Stopped")
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("jobs")
            terminal.expect(r"\[1\]\+ +Stopped")
            terminal.prompt()
            terminal.resume()
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 7


def test_ctrl_z_works_while_a_program_starts_others(user_box):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        terminal.claudebox("sh", user_box.write("program.sh", "echo rea''dy; while :; do /bin/true; done"))
        terminal.expect("\nready\n")
        for _ in range(8):
            terminal.press(CTRL_Z)
            terminal.prompt()
            terminal.resume()
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130


# Like the real client: it reads the key itself, puts the terminal in order and stops its whole group.
CLIENT = """\
import os, signal, sys, termios, time, tty
modes = termios.tcgetattr(0)
tty.setraw(0)
signal.signal(signal.SIGCONT, lambda *_: None)
os.write(1, b"ready\\r\\n")
while True:
    key = os.read(0, 1)
    if key == b"\\x1a":
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        os.kill(0, signal.SIGTSTP)
        tty.setraw(0)
        os.write(1, b"back again\\r\\n")
    elif key == b"q":
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        raise SystemExit(3)
"""


def test_a_program_that_suspends_itself_and_its_group_is_suspended(box):
    # proves SAND-15
    with Terminal(box) as terminal:
        start(terminal, CLIENT)
        for _ in range(3):
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("fg")
            terminal.expect("back again\n")
        terminal.press("q")
        assert terminal.prompt() == 3


# It takes its time to put the terminal in order, and then stops nobody but itself.
SLOW = """\
import os, signal, time
def stop(*_):
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write(1, b"back again\\n")
signal.signal(signal.SIGTSTP, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_program_that_tidies_up_before_it_stops_is_suspended(user_box):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        start(terminal, SLOW)
        terminal.press(CTRL_Z)
        assert terminal.prompt() == 128 + signal.SIGTSTP
        terminal.type("fg")
        terminal.expect("back again\n")
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130


def test_a_program_that_ignores_ctrl_z_is_not_suspended(user_box):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        program = "import signal\nsignal.signal(signal.SIGTSTP, signal.SIG_IGN)\nprint('ready')\nprint('read', input())"
        start(terminal, program)
        terminal.press(CTRL_Z)
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 0
        assert "Stopped" not in terminal.raw()


def test_a_shell_inside_has_job_control_and_gives_the_terminal_back(box):
    # proves SAND-15
    program = box.write("program.sh", "echo ready; sleep 1000; exit")
    with Terminal(box) as terminal:
        terminal.type(f"PS1= {box.program} -y --shell --norc --noprofile -i")
        terminal.expect(r"bash-[\d.]+[$#] ")
        terminal.type("PS1='ins''ide$ '")
        terminal.expect(r"\ninside\$ ")
        terminal.type(f"sh {program}")
        terminal.expect(r"\nready\n")
        terminal.press(CTRL_Z)
        terminal.expect(r"Stopped +sh .*\ninside\$ ")
        terminal.type("bg")
        terminal.expect(r"sh .* &\ninside\$ ")
        terminal.type("jobs")
        terminal.expect(r"Running +sh .* &\ninside\$ ")
        terminal.type("fg")
        wait_until(lambda: os.tcgetpgrp(terminal.master) in marked(program), "the job has the terminal")
        terminal.press(CTRL_C)
        terminal.expect(r"inside\$ ")
        terminal.type("exit 9")
        assert terminal.prompt() == 9

        # A script notices if nobody has given the terminal back: it could not read from it.
        shell = f'{box.program} -y --shell --norc --noprofile -i; echo mi""ne; read line; echo "read $line"'
        terminal.type(f"sh {box.write('script.sh', shell)}")
        terminal.expect(r"bash-[\d.]+[$#] ")
        terminal.type("exit")
        terminal.expect("\nmine\n")
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 0


def test_in_the_background_of_a_terminal_it_is_refused_unless_everything_is_redirected(user_box):
    # proves B06
    program = user_box.write("program.sh", 'echo ran >"$0.out"')
    with Terminal(user_box) as terminal:
        terminal.type(f"{command(user_box, 'sh', program)} & wait $!; echo status $?")
        terminal.expect("error: .*background of a terminal")
        terminal.expect("hint: .*</dev/null >FILE 2>&1")
        terminal.expect("\nstatus 125\n")
        assert not os.path.exists(f"{program}.out")

        terminal.type(f"{command(user_box, 'sh', program)} </dev/null >out 2>&1 & wait $!; echo status $?")
        terminal.expect("\nstatus 0\n")
        assert content(f"{program}.out") == "ran\n"


SPOILER = """\
import fcntl, os, signal, sys, termios, tty
tty.setraw(0)
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK)
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_a_terminal_that_was_left_raw_and_nonblocking_is_put_in_order(user_box, number):
    # proves B08
    program = ("python3", user_box.write("spoiler.py", SPOILER), str(int(number)))
    # bash mends a terminal itself; sh does not, and shows what was left.
    with Terminal(user_box, argv=("sh", "-c", f"{shlex.join(program)}; echo spoi''led; read line")) as terminal:
        modes = terminal.modes()
        terminal.expect("spoiled")
        assert terminal.modes() != modes
        assert terminal.flags() & os.O_NONBLOCK

    with Terminal(user_box, argv=("sh", "-c", f"{command(user_box, *program)}; echo men''ded; read line")) as terminal:
        modes = terminal.modes()
        terminal.expect("mended")
        assert terminal.modes() == modes
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
        terminal.type(f"python3 {program} </dev/null >out 2>&1")
        terminal.prompt()
        assert content(f"{box.project}/out").splitlines()[-1] == "terminal"

        terminal.type(f"{command(box, 'python3', program)} </dev/null >out 2>&1")
        assert terminal.prompt() == 0
        assert content(f"{box.project}/out").splitlines()[-2:] == ["session True True", "No such device or address"]


def test_ctrl_c_and_ctrl_z_work_although_everything_is_redirected(box):
    # proves SAND-15
    # The shell inside would wait for its child if it alone were told.
    program = box.write("program.sh", "echo ready\nsleep 1000\necho not to be reached\n")
    with Terminal(box) as terminal:
        terminal.type(f"{command(box, 'sh', program)} </dev/null >out 2>&1")
        wait_until(lambda: content(f"{box.project}/out").endswith("ready\n"), "the program runs")
        terminal.press(CTRL_Z)
        assert terminal.prompt() == 128 + signal.SIGTSTP
        terminal.resume()
        terminal.press(CTRL_C)
        assert terminal.prompt() == 130
        assert content(f"{box.project}/out").endswith("ready\n")
    assert marked(box.project) == []
