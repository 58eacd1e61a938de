"""Ctrl+Z, `fg`, `bg` and a shell inside work as they would without a sandbox."""

from __future__ import annotations

import signal

from tests.conftest import every_case, wait_until
from tests.support.terminals import CLIENT, CTRL_C, CTRL_Z, Terminal, command, content, marked, use_terminal


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


@every_case("kind", ["plain", "filtered"], as_root=1)
def test_a_program_that_suspends_itself_and_its_group_is_suspended(box, kind):
    # proves SAND-15
    with Terminal(use_terminal(box, kind)) as terminal:
        terminal.python(CLIENT)
        for _ in range(3):
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("fg")
            terminal.expect("back again\n")
        terminal.press("q")
        assert terminal.prompt() == 3


def test_a_script_that_started_claudebox_is_suspended_with_it(user_box):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        program = user_box.write("program.py", CLIENT)
        script = user_box.write("script.sh", f"{command(user_box, 'python3', program)}\necho the script goes on\n")
        terminal.type(f"sh {script}")
        terminal.expect(r"\nready\n")
        for _ in range(2):
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("fg")
            terminal.expect("back again\n")
        terminal.press("q")
        terminal.expect("the script goes on\n")


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
    time.sleep(0.02)
"""


def test_a_program_that_tidies_up_before_it_stops_is_suspended(user_box):
    # proves SAND-15
    with Terminal(user_box) as terminal:
        terminal.python(SLOW)
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
        terminal.python(program)
        terminal.press(CTRL_Z)
        terminal.type("something")
        terminal.expect("read something\n")
        assert terminal.prompt() == 0
        assert "Stopped" not in terminal.raw()


def has_terminal(process):
    """Return whether a process is in the foreground of its terminal."""
    fields = content(f"/proc/{process}/stat").rpartition(")")[2].split()
    return fields[2] == fields[5]


def test_a_shell_inside_has_job_control_and_gives_the_terminal_back(box):
    # proves SAND-15
    # No shell: one that is about to start a program cannot be stopped (vfork), here as anywhere.
    program = box.write("program.py", "import time\nprint('ready', flush=True)\ntime.sleep(1000)")
    with Terminal(box) as terminal:
        terminal.type(f"PS1= {box.program} -y --shell --norc --noprofile -i")
        terminal.expect(r"bash-[\d.]+[$#] ")
        terminal.type("PS1='ins''ide$ '")
        terminal.expect(r"\ninside\$ ")
        terminal.type(f"python3 {program}")
        terminal.expect(r"\nready\n")
        terminal.press(CTRL_Z)
        terminal.expect(r"Stopped +python3 .*\ninside\$ ")
        terminal.type("bg")
        terminal.expect(r"python3 .* &\ninside\$ ")
        terminal.type("jobs")
        terminal.expect(r"Running +python3 .* &\ninside\$ ")
        terminal.type("fg")
        wait_until(lambda: all(map(has_terminal, marked(program)[-1:])), "the job has the terminal")
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


def test_in_the_background_it_waits_for_the_terminal_and_needs_none_if_its_output_goes_elsewhere(user_box):
    # proves PTY-01
    program = user_box.write("program.sh", 'read line; echo "read <$line>" >"$0.out"')
    with Terminal(user_box) as terminal:
        terminal.type(f"{command(user_box, 'sh', program)} &")
        terminal.type("until jobs | grep -q Stopped; do sleep 0.05; done; echo wait''ing")
        terminal.expect("\nwaiting\n")  # as every program that wants the terminal
        terminal.type("fg")
        terminal.expect("program.sh\n")
        terminal.type("something")
        assert terminal.prompt() == 0
        assert content(f"{program}.out") == "read <something>\n"

        terminal.type(f"{command(user_box, 'sh', program)} >out & wait $!; echo status $?")
        terminal.expect("\nstatus 0\n")
        assert content(f"{program}.out") == "read <>\n"


def test_a_background_job_that_waits_for_the_terminal_can_be_told_to_end(user_box):
    # proves PTY-01, SAND-15
    with Terminal(user_box) as terminal:
        terminal.type(f"{command(user_box, 'sleep', '1000')} &")
        terminal.type("until jobs | grep -q Stopped; do sleep 0.05; done; kill %1; echo to''ld")
        terminal.expect("\ntold\n")
        wait_until(lambda: not marked(user_box.project), "the end of the sandbox")
