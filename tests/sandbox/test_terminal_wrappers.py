"""However claudebox was started, nothing inside runs while its terminal is somebody else's."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import PATIENCE, need, wait_until
from tests.sandbox.terminals import CTRL_C, CTRL_Z, Terminal, command, content, marked, put_down

SPY = Path(__file__).resolve().parent.parent / "probes" / "spy.py"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHELLS = {
    "bash": ("/bin/bash", "--norc", "--noprofile", "-i"),
    "dash": ("/bin/dash", "-i"),
    "zsh": ("/bin/zsh", "-f", "-i"),
    "fish": ("/usr/bin/fish", "--no-config", "-i", "-C", "function fish_prompt; echo -n '<0>host$ '; end"),
}
# Dies of Ctrl+C without waiting for what it has started.
CARELESS = """\
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", "trap : INT; . ./wrapper.sh"])
"""
FORGET = "\x15"  # Ctrl+U


def wrapped(box, how, line):
    """Return the line for a shell that starts this command in a certain way."""
    script = box.write("wrapper.sh", f"{line}\necho the wrapper goes on\n")
    box.write("wrapper.mk", f"all:\n\t@{line}\n")
    box.write("package.json", '{"scripts": {"box": "sh wrapper.sh"}}')
    box.write("nested.sh", "sh wrapper.sh\necho nested\n")
    box.write("careless.py", CARELESS)
    return {
        "directly": line,
        "script": f"sh {script}",
        "bash script": f"bash {script}",
        "nested scripts": "sh nested.sh",
        "make": "make -f wrapper.mk",
        "npm": "npm run --silent box",
        "watch": f"watch -n 1000 {shlex.quote(line)}",
        "subshell": f"( {line}; true )",
        "careless": "python3 careless.py",
        "sudo": f"sudo --preserve-env env HOME={box.home} PATH=$PATH sh {script}",
        "python": f'python3 -c \'import subprocess; subprocess.call(["sh", "{script}"])\'',
    }[how]


class Watched:
    """A spy in a sandbox on a terminal, started in a certain way."""

    def __init__(self, terminal, how, *, manner="deaf", line=""):
        box = terminal.box
        self.terminal = terminal
        self.stolen = f"{box.project}/stolen-by-{manner}"
        words = ("python3", box.write("spy.py", SPY.read_bytes()), "plain", self.stolen, manner)
        terminal.type(wrapped(box, how, line or command(box, *words)))
        wait_until(lambda: os.path.exists(self.stolen), "the spy is there")
        terminal.shown(during=0.2)
        self.type("first")
        wait_until(lambda: "first" in self.taken(), "the spy gets what is typed for it")

    def taken(self):
        """Return what the spy has got."""
        return content(self.stolen)

    def type(self, line):
        self.terminal.type(line)

    def type_slowly(self):
        """Type as a user does, so that every key can be fought for, and give a spy the time to write it down."""
        for letter in LETTERS:
            self.terminal.press(letter)
            time.sleep(0.005)
        self.terminal.shown(during=0.2)


@contextlib.contextmanager
def terminal_of(box, shell="bash"):
    """Open a terminal with a shell, and leave no spy behind that outlives it."""
    argv = SHELLS[shell]
    need(os.access(argv[0], os.X_OK), shell)
    with Terminal(box, argv=argv) as terminal:
        try:
            if shell != "bash":
                terminal.expect(r"host\$ ")
            yield terminal
        finally:
            put_down(f"{box.project}/stolen-by-")


def prompt(terminal):
    terminal.expect(r"host\$ ", patience=PATIENCE)


def test_the_spy_gets_what_is_typed_at_the_shell_where_nobody_freezes_it(user_box, altered):
    # The positive control of everything below.
    altered(user_box, edits={"launch/supervise.py": ("if not self._terminal.shared:", "if True:")})
    with terminal_of(user_box) as terminal:
        spy = Watched(terminal, "script")
        terminal.press(CTRL_Z)
        prompt(terminal)
        before = spy.taken()
        spy.type_slowly()

        assert spy.taken() != before


@pytest.mark.parametrize(
    ("shell", "how"),
    [
        *(("bash", how) for how in (
            "script", "bash script", "nested scripts", "make", "npm", "watch", "subshell", "python",
        )),
        *((shell, how) for shell in ("dash", "zsh", "fish") for how in ("script", "make")),
    ],
)  # fmt: skip
def test_a_spy_that_ignores_ctrl_z_is_frozen_with_its_wrapper(user_box, shell, how):
    # proves TERM-01, B15, B06, OLD-A2
    if how in ("make", "npm", "watch"):
        program = shutil.which(how)
        need(program, how)
        user_box.environ["PATH"] = f"{os.path.dirname(program or '')}:/usr/bin:/bin"
    suspend_and_resume(user_box, shell, how)


def suspend_and_resume(box, shell, how):
    """See that a spy gets what is typed for it, and nothing of what is typed at the shell."""
    with terminal_of(box, shell) as terminal:
        spy = Watched(terminal, how)
        for _ in range(2):
            terminal.press(CTRL_Z)
            prompt(terminal)
            time.sleep(0.05)
            before = spy.taken()
            spy.type_slowly()
            assert spy.taken() == before

            terminal.press(FORGET)
            terminal.type("fg")
            spy.terminal.shown(during=0.3)
            marker = f"yours{len(before)}"
            spy.type(marker)
            wait_until(lambda: marker in spy.taken(), "the spy goes on after fg")  # noqa: B023


def test_a_spy_that_ignores_ctrl_z_is_frozen_under_sudo(root_box):
    # proves TERM-01, B15, B06
    need(shutil.which("sudo"), "sudo")
    suspend_and_resume(root_box, "bash", "sudo")  # whom every machine lets use it


@pytest.mark.parametrize("how", ["careless", "python"])
def test_a_sandbox_whose_wrapper_dies_of_ctrl_c_is_frozen_and_ended(user_box, how):
    # proves TERM-01, B15, B06, OLD-A2
    with terminal_of(user_box) as terminal:
        spy = Watched(terminal, how)
        terminal.press(CTRL_C)
        prompt(terminal)
        time.sleep(0.05)
        before = spy.taken()
        spy.type_slowly()

        assert spy.taken() == before
        wait_until(lambda: not marked(spy.stolen), "the end of the sandbox")


@pytest.mark.parametrize("name", ["KILL", "STOP"])
def test_a_wrapper_that_is_killed_or_stopped_from_elsewhere_leaves_no_spy(user_box, name):
    # proves TERM-01, B15, B06
    with terminal_of(user_box) as terminal:
        spy = Watched(terminal, "script")
        os.kill(os.tcgetpgrp(terminal.master), getattr(signal, f"SIG{name}"))  # the leader of the group
        prompt(terminal)
        time.sleep(0.05)
        before = spy.taken()
        spy.type_slowly()

        assert spy.taken() == before


def test_a_thief_of_the_terminal_is_frozen_and_the_shell_has_it(user_box):
    # proves TERM-01, B15, B06
    with terminal_of(user_box) as terminal:
        spy = Watched(terminal, "script", manner="thief")
        terminal.press(CTRL_Z)
        prompt(terminal)
        time.sleep(0.05)
        before = spy.taken()
        spy.type_slowly()
        assert spy.taken() == before

        terminal.press(FORGET)
        terminal.type("echo at the she''ll")
        terminal.expect("\nat the shell\n")


HANDLER = """\
import os, signal, time
def stop(*_):
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSTOP)
signal.signal(signal.SIGTSTP, stop)
print("ready", flush=True)
while True:
    line = input()
    print("read", line, flush=True)
"""


@pytest.mark.parametrize("how", ["directly", "script"])
def test_one_fg_is_enough_for_a_program_that_tidies_up_before_it_stops(user_box, how):
    # proves SAND-15
    program = user_box.write("program.py", HANDLER)
    with terminal_of(user_box) as terminal:
        terminal.type(wrapped(user_box, how, command(user_box, "python3", program)))
        terminal.expect("\nready\n")
        for number in range(3):
            terminal.shown(during=1.2)  # Ctrl+Z right after fg is another matter
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            time.sleep(0.1)  # nobody types faster; a read that was begun before gets what comes before the freeze
            terminal.type("fg")
            terminal.shown(during=0.8)
            terminal.type(f"line {number}")
            terminal.expect(f"read line {number}\n")


# Sends a signal to its whole group, which includes the launcher and its wrapper where Landlock knows no scopes.
GROUP = """\
import os, signal, sys, time
number = getattr(signal, sys.argv[1])
spy = os.fork()
if spy == 0:
    os.execvp("python3", ["python3", "spy.py", "plain", sys.argv[2], "deaf"])
while not os.path.exists("now"):
    time.sleep(0.01)
if number not in (signal.SIGKILL, signal.SIGSTOP):
    signal.signal(number, signal.SIG_IGN)
try:
    os.kill(0, number)
    os.write(1, b"sent\\n")
except OSError as error:
    os.write(1, error.strerror.encode() + b"\\n")
time.sleep(1000)
"""


def unscoped(altered, box):
    """Run without Landlock's scopes, as before Linux 6.12."""
    altered(box, edits={"plan/compose.py": ("host.landlock >= 6", "host.landlock >= 99")})


@pytest.mark.parametrize("how", ["directly", "script"])
@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_whole_group_frees_no_spy_on_older_kernels(user_box, altered, name, how):
    # proves B18, B15
    unscoped(altered, user_box)
    with terminal_of(user_box) as terminal:
        stolen = f"{user_box.project}/stolen-by-deaf"
        line = command(user_box, "python3", user_box.write("group.py", GROUP), name, stolen)
        spy = Watched(terminal, how, line=line)
        user_box.write("now")
        if name in ("SIGSTOP", "SIGKILL"):
            terminal.expect("Operation not permitted")
            assert "Stopped" not in terminal.shown(during=0.3)
            return
        terminal.shown(during=0.5)
        if os.tcgetpgrp(terminal.master) != terminal.process.pid:
            return  # the shell has not got the terminal: what is typed is meant for the sandbox
        before = spy.taken()
        spy.type_slowly()
        assert spy.taken() == before


def test_what_stops_the_group_stops_the_launcher_where_nobody_forbids_it(user_box, altered):
    # The positive control: without scopes and without the filter's rule, the job is stopped and the spy is not.
    base = altered(user_box, edits={"plan/compose.py": ("scoped = host.landlock >= 6", "scoped = True")})
    module = Path(base, "src/claudebox/plan/compose.py")
    text = module.read_text()
    assert text.count("scoped=scoped,\n        detached") == 1
    module.write_text(text.replace("scoped=scoped,\n        detached", "scoped=False,\n        detached"))
    with terminal_of(user_box) as terminal:
        stolen = f"{user_box.project}/stolen-by-deaf"
        line = command(user_box, "python3", user_box.write("group.py", GROUP), "SIGSTOP", stolen)
        spy = Watched(terminal, "directly", line=line)
        user_box.write("now")
        prompt(terminal)
        before = spy.taken()
        spy.type_slowly()
        assert spy.taken() != before


def test_the_priority_of_the_launcher_is_not_for_the_sandbox_to_set(user_box):
    # proves B18
    program = "import os; print('ready', flush=True); os.setpriority(os.PRIO_PGRP, 0, 19); print('set', flush=True)"
    with Terminal(user_box) as terminal:
        terminal.claudebox("python3", "-c", program)
        terminal.expect("\nready\n")
        terminal.expect("Operation not permitted|Permission denied")
        terminal.prompt()
        terminal.type(f"sh -c {shlex.quote(f'python3 -c {shlex.quote(program)}; nice')}")  # control
        terminal.expect("\nset\n")
        terminal.expect("19\n")
