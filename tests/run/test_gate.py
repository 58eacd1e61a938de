"""The gate by itself: the program that waits inside until the launcher has seen that every protection is in force."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.conftest import REPOSITORY, need

from claudebox.base import syscalls
from claudebox.host.programs import place_gate
from claudebox.plan.bwrap import GATE_DESCRIPTOR, STDERR_DESCRIPTOR
from claudebox.plan.seccomp import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Gate = Callable[..., "Outcome"]

ALL = sum(1 << number for number in (1, 2, 3, 10, 12, 15))
IGNORED = "import signal; print([n for n in range(1, 16) if signal.getsignal(n) is signal.SIG_IGN])"


# What `start` changes: core files, signals that are ignored or blocked, the keyring, and whom one can reach.
STATE = """
import ctypes, os, resource, signal, socket, sys
print(resource.getrlimit(resource.RLIMIT_CORE))
ignored = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")), 16)
print([number for number in range(1, 65) if number not in (13, 25) and ignored >> number - 1 & 1])  # those are Python's
print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))
print(ctypes.CDLL(None).syscall({"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 0) == int(sys.argv[1]))
print(socket.socket(socket.AF_UNIX).connect_ex(bytes(1) + sys.argv[2].encode()))
"""


class Outcome(NamedTuple):
    """What the gate said to the launcher, and what became of it."""

    said: bytes
    status: int
    output: str
    errors: str


def put(machine: str, directory: Path) -> tuple[str, ...]:
    """Write the program of one kind of machine, and return what runs it: this one, or an emulator."""
    program = directory / "gate"
    shutil.copyfile(place_gate(machine), program)
    program.chmod(0o555)
    if machine == platform.machine():
        return ()
    found = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    need(found, f"qemu-{machine}-static (scripts/setup --test)")
    return (str(found),)


# This machine, and others in emulation.
MACHINES = [
    pytest.param(name, marks=() if name == platform.machine() else pytest.mark.slow) for name in sorted(ARCHITECTURES)
]
COMPILER = "12.2.0"  # gcc's version that made those in the repository


@pytest.fixture(params=MACHINES)
def run_gate(request, tmp_path) -> Gate:
    """Return how to run the gate of one kind of machine, on this one or in emulation."""
    emulator = put(request.param, tmp_path)
    program = tmp_path / "gate"

    def run(
        *words: str,
        word: bytes = b"go\n",
        mask: int = ALL,
        environ: dict[str, str] | None = None,
        start: str = "",
    ) -> Outcome:
        ours, theirs = socket.socketpair()
        errors, errors_end = os.pipe()

        def descriptors() -> None:
            high = os.dup(theirs.fileno()), os.dup(errors_end)
            os.dup2(high[0], GATE_DESCRIPTOR)
            os.dup2(high[1], STDERR_DESCRIPTOR)
            for number in (1, 2, 3, 10, 12, 15):
                signal.signal(number, signal.SIG_IGN)

        with subprocess.Popen(
            [*emulator, str(program), str(mask), f"PWD={start or tmp_path}", *words],
            env=environ or {"PATH": "/usr/bin:/bin"}, cwd="/",
            preexec_fn=descriptors, pass_fds=(GATE_DESCRIPTOR, STDERR_DESCRIPTOR),  # noqa: PLW1509 - no threads here
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
        ) as process:  # fmt: skip
            theirs.close()
            os.close(errors_end)
            said = ours.recv(16)
            for byte in word:  # a stream may come in any pieces
                ours.send(bytes([byte]))
            ours.close()
            output, _ = process.communicate(timeout=60)
        with open(errors, encoding="utf-8") as stream:
            return Outcome(said, process.returncode, output, stream.read())

    return run


def test_the_gate_becomes_the_program_with_its_words_and_variables(run_gate):
    # proves E08
    environ = {"PATH": "/nowhere::/usr/bin:/bin", "A": "b c"}
    script = 'echo "$0|$1|$2|$A"; ls /proc/self/fd; echo wrong >&2'

    outcome = run_gate("sh", "-c", script, "n", "", "x y", environ=environ)

    assert (outcome.said, outcome.status, outcome.errors) == (b"ready\n", 0, "wrong\n")
    first, *descriptors = outcome.output.splitlines()
    assert first == "n||x y|b c"
    assert str(STDERR_DESCRIPTOR) not in descriptors  # 3 is that of the directory itself


@pytest.mark.parametrize("word", [b"", b"go", b"no\n", b"g", b"og\n", b"\n\n\n"], ids=repr)
def test_nothing_runs_without_the_word(run_gate, tmp_path, word):
    # proves E15
    outcome = run_gate("touch", "made", word=word)
    control = run_gate("touch", "made too")

    assert outcome.status == 125
    assert control.status == 0
    assert sorted(os.listdir(tmp_path)) == ["gate", "made too"]


def test_the_gate_enters_the_directory_when_it_has_the_word(run_gate, tmp_path):
    # proves MOUNT-01
    directory = tmp_path / "a b"
    directory.mkdir()
    environ = {"PATH": "/usr/bin:/bin", "PWD": "/"}

    outcome = run_gate("sh", "-c", "pwd; echo $PWD; readlink /proc/self/cwd", environ=environ, start=str(directory))
    missing = run_gate("echo", "ran", start=f"{tmp_path}/none")

    assert outcome.output.splitlines() == [str(directory)] * 3
    assert (missing.status, missing.output) == (125, "")
    assert f"{tmp_path}/none" in missing.errors


def test_signals_are_given_back(run_gate):
    # proves SAND-15
    assert run_gate("/usr/bin/python3", "-IS", "-c", IGNORED).output == "[13]\n"  # which Python itself ignores


@pytest.mark.parametrize("run_gate", [platform.machine()], indirect=True)  # an emulator hands on no ignored signal
def test_signals_that_the_user_ignored_stay_so(run_gate):
    # proves SAND-15
    for mask, left in ((ALL & ~(1 << 1), "[1, 13]\n"), (0, "[1, 2, 3, 10, 12, 13, 15]\n")):
        assert run_gate("/usr/bin/python3", "-IS", "-c", IGNORED, mask=mask).output == left


def test_a_text_without_an_interpreter_is_run_by_the_shell(run_gate, tmp_path):
    script = tmp_path / "a-script"
    script.write_text('echo "$0|$1"\n')
    script.chmod(0o755)

    assert run_gate("./a-script", "one").output == "./a-script|one\n"
    found = run_gate("a-script", "two", environ={"PATH": f"/usr/bin:{tmp_path}:/bin"})
    assert found.output == f"{tmp_path}/a-script|two\n"


def test_what_cannot_be_run_is_said_in_one_line(run_gate, tmp_path):
    # proves UX-09
    (tmp_path / "text").write_text("x")
    (tmp_path / "other").write_bytes(b"\x7fELF\2\1\1\0 of a machine that nobody has\n")
    (tmp_path / "other").chmod(0o755)
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    found = {"PATH": str(tmp_path)}
    for words, status, line in (
        (("nosuch",), 127, "nosuch: there is no such program inside"),
        (("./nosuch",), 127, "./nosuch: there is no such program inside"),
        (("gate/x",), 127, "gate/x: there is no such program inside"),
        (("./lost",), 127, "./lost: its interpreter is not inside"),
        (("lost",), 127, "lost: its interpreter is not inside"),
        (("./text",), 126, "./text: it cannot be executed"),
        (("./other",), 126, "./other: it cannot be executed"),
        (("other",), 126, "other: it cannot be executed"),
        (("x" * 300,), 127, f"{'x' * 300}: there is no such program inside"),
        (("text",), 126, "text: it cannot be executed"),
        (("/",), 126, "/: it cannot be executed"),
        (("x" * 5000,), 127, f"{'x' * 5000}: there is no such program inside"),
        (("",), 127, ": there is no such program inside"),
    ):
        outcome = run_gate(*words, environ=found)
        assert (outcome.status, outcome.errors) == (status, f"claudebox: {line}\n")


def test_a_directory_of_the_path_that_cannot_be_named_is_passed_over(run_gate):
    outcome = run_gate("echo", "found", environ={"PATH": f"{'/x' * 4000}::relative:/usr/bin"})

    assert outcome.output == "found\n"


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[[str], list[str]]]:
    """Return how to run `start` with some measures; it gives what a program finds that it has become."""
    put(platform.machine(), tmp_path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{tmp_path}")
    listener.listen()
    keyring = ctypes.CDLL(None).syscall({"x86_64": 250, "aarch64": 219}[platform.machine()], 0, -3, 0)

    def run(measures: str) -> list[str]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [1, 10, 12])
        try:
            done = subprocess.run(
                ["start", str(1 << 1 | 1 << 10), str(1 << 1 | 1 << 12), measures, "/usr/bin/python3", "named", "-IS",
                 "-c", STATE, str(keyring), str(tmp_path)],
                executable=tmp_path / "gate", capture_output=True, text=True, check=True, env={},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096)),
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return done.stdout.splitlines()

    yield run
    listener.close()


def test_what_comes_before_bwrap_is_given_up(start):
    # proves A08, A19, F15
    assert start("") == ["(4096, 4096)", "[1, 10]", "[10]", "True", "0"], "the positive control"
    assert start("c")[0] == "(0, 0)"
    assert start("k")[3] == "False"
    if syscalls.landlock_abi() < syscalls.LANDLOCK_ABI_WITH_SCOPES:
        pytest.skip("this kernel has no scopes")
    assert start("s") == ["(4096, 4096)", "[1, 10]", "[10]", "True", str(errno.EPERM)]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_start_becomes_the_program_with_its_words_and_no_more(tmp_path, machine):
    emulator = put(machine, tmp_path)
    if emulator:
        emulator = (*emulator, "-0", "start")
        words = [*emulator, str(tmp_path / "gate")]
    else:
        words = ["start"]
    program = None if emulator else tmp_path / "gate"

    done = subprocess.run(
        [*words, "0", "0", "c", "/bin/sh", "named", "-c", 'echo "$0|$1"; ulimit -c', "a", "b c"],
        executable=program, capture_output=True, text=True, check=False, env={},
    )  # fmt: skip
    missing = subprocess.run(
        [*words, "0", "0", "", "/no/such", "named"], executable=program, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr, done.returncode) == ("a|b c\n0\n", "", 0)
    assert (missing.stderr, missing.returncode) == ("claudebox: /no/such: it cannot be executed\n", 126)


@pytest.mark.parametrize(("closed", "status", "said"), [(False, 0, ""), (True, 125, "neither from memory nor from")])
def test_a_kernel_that_runs_nothing_from_memory_runs_it_from_its_file(root_box, closed, status, said):
    if not os.path.exists("/proc/sys/vm/memfd_noexec"):
        pytest.skip("this kernel cannot forbid it")
    place = root_box.program.replace("bin/claudebox", "src/claudebox/gate")
    script = f"mount --bind {place} {place}; mount -o remount,bind,noexec {place}; " if closed else ""
    script += 'echo 2 >/proc/sys/vm/memfd_noexec; exec "$@"'
    unshare = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", script, "sh", "/usr/bin/python3")

    control = root_box.host(*unshare, "-c", "import os; os.memfd_create('x', 0x10)")
    result = root_box.host(*unshare, "-IS", root_box.program, "-y", "--exec", "--", "echo", "ran")

    assert "PermissionError" in control.stderr, "the positive control"
    assert (result.stdout, result.returncode) == ("" if status else "ran\n", status), result.stderr
    assert said in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_the_machine_code_is_what_the_compiler_makes_of_the_source(machine, tmp_path):
    compiler = f"{machine}-linux-gnu-gcc"
    if "CLAUDEBOX_MATRIX" in os.environ and shutil.which(compiler) is None:
        pytest.skip(f"trees of other systems have no {compiler}, and would have another one")
    need(shutil.which(compiler), compiler)
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    if version != COMPILER:
        pytest.skip(f"{compiler} is {version}, and {COMPILER} made the programs in the repository")

    subprocess.run([REPOSITORY / "scripts/gate", tmp_path, machine], check=True)

    assert (tmp_path / machine).read_bytes() == Path(place_gate(machine)).read_bytes()
