"""However claudebox was started, it behaves at the terminal as a program that runs without a sandbox."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import time

import pytest
from tests.conftest import few, need, wait_until
from tests.support.terminals import CLIENT, CTRL_C, CTRL_Z, Terminal, command, content, marked

SHELLS = {
    "bash": ("/bin/bash", "--norc", "--noprofile", "-i"),
    "dash": ("/bin/dash", "-i"),
    "zsh": ("/bin/zsh", "-f", "-i"),
    "fish": ("/usr/bin/fish", "--no-config", "-i", "-C", "function fish_prompt; echo -n '<0>host$ '; end"),
}
# Would die of Ctrl+C without waiting for what it has started.
CARELESS = """\
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", "trap : INT; . ./wrapper.sh"])
"""


def wrapped(box, how, line):
    """Return the line for a shell that starts this command in a certain way."""
    if how in ("make", "npm", "watch"):
        program = shutil.which(how)
        need(program, how)
        box.environ["PATH"] = f"{os.path.dirname(program or '')}:/usr/bin:/bin"
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


def terminal_of(box, shell="bash"):
    """Open a terminal with a shell."""
    need(os.access(SHELLS[shell][0], os.X_OK), shell)
    return Terminal(box, argv=SHELLS[shell])


def suspend_and_resume(box, shell, how):
    """Press Ctrl+Z in a program that handles it as the real client does, use the shell, and go on."""
    line = wrapped(box, how, command(box, "python3", box.write("program.py", CLIENT)))
    with terminal_of(box, shell) as terminal:
        if shell != "bash":
            terminal.expect(r"host\$ |[$#%] ")
        terminal.type(line)
        terminal.expect("\nready\n")
        for number in range(2):
            terminal.press(CTRL_Z)
            wait_until(lambda: os.tcgetpgrp(terminal.master) == terminal.process.pid, "the shell has the terminal")
            time.sleep(0.1)
            terminal.type(f"echo at the she''ll {number}")
            terminal.expect(f"at the shell {number}\r?\n")
            terminal.type("fg")
            terminal.expect("back again\n")
        terminal.press("q")
        if how not in ("directly", "make", "subshell"):
            terminal.expect("the wrapper goes on")
        wait_until(lambda: not marked(f"{box.project}/program.py"), "the end of the program")


@pytest.mark.parametrize(
    ("shell", "how"),
    few([
        *(("bash", how) for how in (
            "directly", "script", "bash script", "nested scripts", "make", "npm", "subshell", "python",
        )),
        *((shell, how) for shell in ("dash", "zsh", "fish") for how in ("directly", "script", "make")),
    ], 9),
)  # fmt: skip
def test_ctrl_z_and_fg_work_with_every_shell_and_wrapper(user_box, shell, how):
    # proves PTY-01, SAND-15, B15
    suspend_and_resume(user_box, shell, how)


def test_ctrl_z_and_fg_work_under_sudo(root_box):
    # proves PTY-01, SAND-15
    need(shutil.which("sudo"), "sudo")
    suspend_and_resume(root_box, "bash", "sudo")  # whom every machine lets use it


# A signal between `ready` and the wait for input is not missed.
HEARING = """\
import os, select, signal
heard, wake = os.pipe()
os.set_blocking(wake, False)
signal.signal(signal.SIGINT, lambda *_: None)
signal.set_wakeup_fd(wake)
while True:
    print("ready", flush=True)
    if heard in select.select([0, heard], [], [])[0]:
        os.read(heard, 1)
        print("heard", flush=True)
    else:
        print("read", input(), flush=True)
"""


def test_ctrl_c_is_for_the_program_and_not_for_what_started_it(user_box):
    # proves PTY-01, B15
    line = wrapped(user_box, "careless", command(user_box, "python3", user_box.write("program.py", HEARING)))
    with Terminal(user_box) as terminal:
        terminal.type(line)
        for _ in range(3):
            terminal.expect("ready\n")
            terminal.press(CTRL_C)
            terminal.expect("heard\n")
        terminal.type("something")
        terminal.expect("read something\n")


@pytest.mark.parametrize("name", ["KILL", "STOP"])
def test_a_wrapper_that_is_killed_or_stopped_leaves_the_keys_to_the_shell(user_box, name):
    # proves TERM-01, B15, PTY-01
    program = user_box.write("program.py", "import os\nprint('ready', flush=True)\nwhile True: print('read', input())")
    line = wrapped(user_box, "script", command(user_box, "python3", program))
    with Terminal(user_box) as terminal:
        terminal.type(line)
        terminal.expect("\nready\n")
        os.kill(os.tcgetpgrp(terminal.master), getattr(signal, f"SIG{name}"))  # the leader of the group
        terminal.prompt()
        for number in range(3):
            terminal.type(f"echo at the she''ll {number}")
            terminal.expect(f"at the shell {number}\n")
        assert "read echo" not in terminal.raw()
        if name == "KILL":  # nobody could continue it
            wait_until(lambda: not marked(program), "the end of the sandbox")
        terminal.type("kill -9 %1")


HANDLER = """\
import os, select, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])  # a handler would wait where `input` is about to
print("ready", flush=True)
while True:
    if signal.sigtimedwait([signal.SIGTSTP], 0.02):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
        print("back", flush=True)
    elif select.select([0], [], [], 0)[0]:
        print("read", input(), flush=True)
"""


@pytest.mark.parametrize("how", ["directly", "script"])
def test_one_fg_is_enough_for_a_program_that_tidies_up_before_it_stops(user_box, how):
    # proves SAND-15
    program = user_box.write("program.py", HANDLER)
    with Terminal(user_box) as terminal:
        terminal.type(wrapped(user_box, how, command(user_box, "python3", program)))
        terminal.expect("\nready\n")
        for number in range(3):
            terminal.press(CTRL_Z)
            assert terminal.prompt() == 128 + signal.SIGTSTP
            terminal.type("fg")
            terminal.expect("\nback\n")
            terminal.type(f"line {number}")
            terminal.expect(f"read line {number}\n")


# What a program can tell of its standard descriptors.
TELLER = """\
import os, stat, sys
def kind(number):
    mode = os.fstat(number).st_mode
    if os.isatty(number):
        return "terminal"
    return "null" if os.fstat(number).st_rdev == os.makedev(1, 3) else "pipe" if stat.S_ISFIFO(mode) else "other"
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    own = "terminal"
except OSError:
    own = "none"
kinds = " ".join(map(kind, (0, 1, 2)))
read = "" if os.isatty(0) else sys.stdin.read()
print(f"out {kinds} {own} <{read.strip()}>", flush=True)
os.write(2, b"an error\\n")
"""
# How it is started → the kinds of input, output and error inside, the terminal of the session, and what it reads.
STANDARD = {
    "{line}": "terminal terminal terminal terminal <>",
    "{line} 2>err": "terminal terminal pipe terminal <>",
    "{line} | cat": "null pipe pipe none <>",
    "{line} | less -FX": "null pipe pipe none <>",
    "{line} >out": "null pipe pipe none <>",
    "{line} >out 2>&1": "null pipe pipe none <>",
    "{line} <in": "pipe pipe pipe none <from a file>",
    "{line} </dev/null": "null pipe pipe none <>",
    "echo from a pipe | {line}": "pipe pipe pipe none <from a pipe>",
    "{line} <in >out 2>err": "pipe pipe pipe none <from a file>",
    "{line} >/dev/null 2>out": None,
    "sh -c '{line}'": "terminal terminal terminal terminal <>",
    "sh -c '{line} &  wait'": "null pipe pipe none <>",  # a shell gives a background job no input
}


@pytest.mark.parametrize("how", STANDARD)
def test_what_standard_input_output_and_error_are(user_box, how):
    # proves PTY-01
    if "less" in how:
        need(shutil.which("less"), "less")
    user_box.write("in", "from a file\n")
    with Terminal(user_box) as terminal:
        terminal.type(how.format(line=command(user_box, "python3", user_box.write("teller.py", TELLER))))
        assert terminal.prompt() == 0
        shown = "".join(content(f"{user_box.project}/{name}") for name in ("out", "err")) + terminal.raw()
        shown = shown.replace("\r", "")
        if STANDARD[how]:
            assert f"out {STANDARD[how]}\n" in shown
        assert shown.count("an error\n") == 1


def test_keys_are_for_the_pager_and_not_for_the_program_before_it(user_box):
    # proves PTY-01
    need(shutil.which("less"), "less")
    with Terminal(user_box) as terminal:
        script = user_box.write("program.sh", "seq 1 500; cat; sleep 1; echo the end of it")
        terminal.type(f"{command(user_box, 'sh', script)} | less -X")
        terminal.expect("\n23\n")
        terminal.press("G")
        terminal.expect("the end of it")
        terminal.press("q")
        assert terminal.prompt() == 0


def test_watch_shows_what_a_program_writes_and_ends_by_its_own_key(user_box):
    # proves PTY-01
    line = command(user_box, "sh", user_box.write("program.sh", "cat; echo from wi''thin"))
    with Terminal(user_box) as terminal:
        terminal.type(wrapped(user_box, "watch", line))
        terminal.expect("from within")
        terminal.press(CTRL_C)
        terminal.prompt()


def test_a_paste_of_a_hundred_kilobytes_arrives_exactly(user_box):
    # proves PTY-01
    program = (
        "import hashlib, os, time, tty\ntty.setraw(0)\nos.write(1, b'ready\\r\\n')\ndata = b''\n"
        "while not data.endswith(b'!'):\n    data += os.read(0, 1000)\n    time.sleep(0.001)\n"
        "print('got', len(data), hashlib.md5(data).hexdigest(), end='\\r\\n')"
    )
    text = "".join(f"line {number} ü\t\n" for number in range(8000)) + "!"
    data = text.encode()
    assert len(data) > 100_000
    with Terminal(user_box) as terminal:
        terminal.python(program)
        view = memoryview(data)
        while view:  # as a terminal does, which waits for a slow reader
            view = view[os.write(terminal.master, view[:4000]) :]
            time.sleep(0.002)
        terminal.expect(f"got {len(data)} {hashlib.md5(data).hexdigest()}\n")


# The first process group that it can think of is the one that it is in.
GROUP = "import os, signal; os.setpriority(os.PRIO_PGRP, 0, 19); os.kill(0, signal.SIGKILL)"


def test_signals_and_priorities_for_its_group_reach_nobody_outside(user_box, altered):
    # proves B18, PTY-01
    altered(
        user_box, edits={"plan/compose.py": ("host.machine.landlock >= 6", "host.machine.landlock >= 99")}
    )  # before Linux 6.12
    program = user_box.write("program.py", GROUP)
    user_box.write("wrapper.sh", f"{command(user_box, 'python3', program)}\necho status $?, priority $(nice)\n")
    user_box.write("control.sh", f"python3 {program}\necho still here\n")
    with Terminal(user_box) as terminal:
        terminal.type("sh wrapper.sh")
        terminal.expect(f"\nstatus 137, priority {os.getpriority(os.PRIO_PROCESS, 0)}\n")
        terminal.prompt()
        terminal.type("sh control.sh")
        assert terminal.prompt() == 137
        assert "\nstill here" not in terminal.raw().replace("\r", "")
