"""Where something that the plan needs is missing, broken or lying, nothing starts: 125 and the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need
from tests.sandbox.conftest import PYTHON

LANDLOCK_RESTRICT_SELF = 446
EPERM = 1

# A bwrap in Python that looks like the real one from outside: its help text lies in the file, as in the binary.
OPTIONS = "' --args --bind-fd --cap-drop --die-with-parent --disable-userns --perms --remount-ro --seccomp --size '"
FAKE = f"#!{PYTHON} -I\n{OPTIONS}\nimport os, sys\nBWRAP = '/usr/bin/bwrap'\n"
# Reads the options from the descriptor, changes the list `words`, and starts the real one with it.
WRAPPER = (
    FAKE
    + "place = sys.argv.index('--args')\n"
    "with open(int(sys.argv[place + 1]), 'rb') as file: words = file.read().split(b'\\0')[:-1]\n"
    "{change}\n"
    "target = os.memfd_create('args', 0)\n"
    "os.write(target, b''.join(word + b'\\0' for word in words)); os.lseek(target, 0, 0)\n"
    "os.execv(BWRAP, ['bwrap', '--args', str(target), *sys.argv[place + 2:]])\n"
)


def install(box, name: str, content: str, *, mode: int = 0o755) -> str:
    """Install a program where only root can change it."""
    directory = f"{box.base}/programs"
    os.makedirs(directory, exist_ok=True)
    path = f"{directory}/{name}"
    Path(path).write_text(content)
    os.chmod(path, mode)
    return path


def refused(box, *, by: str, seconds: float = 20) -> str:
    """Assert that nothing starts, and return what was said."""
    started = time.monotonic()
    result = box.run("sh", "-c", "echo ran; touch marker")

    assert result.returncode == 125, result.stderr
    assert result.stdout == ""
    assert not os.path.exists(f"{box.project}/marker")
    assert "error: " in result.stderr
    assert by in result.stderr
    assert time.monotonic() - started < seconds
    return str(result.stderr)


def test_a_wrapper_that_changes_nothing_works(box, altered):
    # proves E09
    altered(box, bwrap=install(box, "bwrap", WRAPPER.format(change="pass")))

    result = box.sh("echo ran")

    assert result.stdout == "ran\n", result.stderr


@pytest.mark.parametrize(("change", "complaint"), [
    ("at = words.index(b'--seccomp'); del words[at:at + 2]", "seccomp"),
    ("at = words.index(b'--cap-drop'); words[at + 1] = b'CAP_CHOWN'; words[at + 2:at + 2] = [b'--cap-add', b'CAP_CHOWN']",
     "capabilities"),
    ("words.remove(b'--unshare-pid')", "pid"),
    ("words.remove(b'--unshare-ipc')", "ipc"),
    ("words.remove(b'--unshare-uts')", ""),
    ("words.remove(b'--unshare-net')", "net"),
    ("del words[words.index(b'--chdir'):]; words += [b'--chdir', b'/nonexistent']", "bwrap could not"),
])  # fmt: skip
def test_a_bwrap_that_drops_a_restriction_is_refused(box, altered, change, complaint):
    # proves E08, E09
    altered(box, bwrap=install(box, "bwrap", WRAPPER.format(change=change)))
    flags = ("--network", "none") if "net" in change else ()

    result = box.run("sh", "-c", "echo ran; touch marker", flags=flags)

    assert result.returncode == 125, result.stderr
    assert result.stdout == ""
    assert not os.path.exists(f"{box.project}/marker")
    assert complaint in result.stderr.split("error: ")[1]


@pytest.mark.parametrize(("body", "complaint"), [
    ("sys.exit(1)", "it said nothing"),
    ("sys.exit(0)", "it said nothing"),
    ("sys.exit('bwrap: Creating new namespace failed: Operation not permitted')", "user namespace could not be made"),
    ("sys.exit('bwrap: Unknown option --size')", "too old"),
    ("os.kill(os.getpid(), 9)", "it said nothing"),
    # Says what the gate says, and runs the command without any sandbox.
    ("os.write(3, b'ready\\n'); os.read(3, 9); os.execvp('sh', sys.argv[-3:])", "not in force"),
    # As before, but with a filter of its own that allows everything.
    ("import ctypes; lib = ctypes.CDLL(None)\n"
     "filter = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 255, 127]))\n"
     "import struct; program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(filter))\n"
     "lib.prctl(38, 1, 0, 0, 0); lib.prctl(22, 2, program)\n"
     "for cap in range(64): lib.prctl(24, cap, 0, 0, 0)\n"
     "lib.syscall(126, struct.pack('Ii', 0x20080522, 0), bytes(24))\n"
     "os.write(3, b'ready\\n'); os.read(3, 9); os.execvp('sh', sys.argv[-3:])", ""),
    ("os.write(4, b'word on the standard error')\nsys.exit(3)", "it said nothing"),
])  # fmt: skip
def test_a_bwrap_that_fails_or_lies_is_refused(user_box, altered, body, complaint):
    # proves E08, E09
    altered(user_box, bwrap=install(user_box, "bwrap", FAKE + body + "\n"))

    said = refused(user_box, by=complaint)

    assert "Traceback" not in said


def test_a_bwrap_that_hangs_is_given_up(user_box, altered):
    # proves E08
    bwrap = install(user_box, "bwrap", FAKE + "import time\ntime.sleep(100)\n")
    altered(user_box, bwrap=bwrap, edits={"launch.py": ("_READY_TIMEOUT = 30.0", "_READY_TIMEOUT = 0.5")})

    refused(user_box, by="did not set up the sandbox within", seconds=10)


@pytest.mark.parametrize(("mode", "complaint"), [
    (0o4755, "setuid"), (0o2755, "setuid"), (0o757, "replaced by other users"), (0o775, "replaced by other users"),
])  # fmt: skip
def test_a_bwrap_with_dangerous_modes_is_refused(box, altered, mode, complaint):
    # proves E09
    path = f"{box.base}/bwrap"
    shutil.copy("/usr/bin/bwrap", path)
    altered(box, bwrap=path)
    control = box.sh("echo ran")
    os.chmod(path, mode)

    assert control.stdout == "ran\n", control.stderr
    said = refused(box, by=complaint)
    assert "hint: " in said


def test_a_bwrap_of_somebody_else_is_refused(root_box, altered):
    # proves E09
    path = f"{root_box.base}/bwrap"
    shutil.copy("/usr/bin/bwrap", path)
    os.chown(path, 1234, 0)
    altered(root_box, bwrap=path)

    refused(root_box, by="replaced by other users")


@pytest.mark.parametrize("missing", ["--seccomp", "--cap-drop", "--args", "--die-with-parent", "--remount-ro"])
def test_a_bwrap_without_a_needed_option_is_refused(user_box, altered, missing):
    # proves E09
    content = WRAPPER.format(change="pass").replace(f" {missing} ", " ")
    altered(user_box, bwrap=install(user_box, "bwrap", content))

    refused(user_box, by=f"does not know `{missing}`")


def test_no_bwrap_at_all_is_said_with_the_remedy(user_box, altered):
    # proves E09
    # Nothing else of the machine changes, so the search itself is given a name that nobody has.
    altered(user_box, edits={"host.py": ('programs.find_tool("bwrap", path)', 'programs.find_tool("bwrap-of-nobody", path)')})

    said = refused(user_box, by="bubblewrap is not installed")

    assert "install the package `bubblewrap`" in said


def test_landlock_that_refuses_stops_the_launch(box, compiled):
    # proves E08, F15
    command = (f"{compiled}/refuse", str(LANDLOCK_RESTRICT_SELF), str(EPERM))
    control = box.host(f"{compiled}/refuse", "999", str(EPERM), box.program, "-y", "--exec", "--", "echo", "ran")

    result = box.host(*command, box.program, "-y", "--exec", "--", "touch", "marker")

    assert control.stdout == "ran\n", control.stderr
    assert result.returncode == 125
    assert "Landlock" in result.stderr
    assert not os.path.exists(f"{box.project}/marker")


@pytest.mark.parametrize("content", ["b''", "b'garbage'", "bytes(8)"])
def test_a_filter_that_the_kernel_does_not_take_stops_the_launch(box, altered, content):
    # proves E08
    change = (
        f"at = words.index(b'--seccomp'); other = os.memfd_create('filter', 0); os.write(other, {content})\n"
        "os.lseek(other, 0, 0); words[at + 1] = str(other).encode()"
    )
    altered(box, bwrap=install(box, "bwrap", WRAPPER.format(change=change)))

    said = refused(box, by="seccomp")

    assert "hint: " in said


def test_a_kernel_without_user_namespaces_is_explained(box):
    # proves E08
    need(os.getuid() == 0, "privileges of root")
    # In a user namespace of the test, where everybody keeps their number, the limit of further ones is zero.
    account = f"--reuid {box.account.uid} --regid {box.account.gid} --clear-groups"
    script = 'echo {limit} >/proc/sys/user/max_user_namespaces && exec setpriv {account} -- "$@"'
    command = ("sh", box.program, "-y", "--exec", "--", "sh", "-c", "echo ran")

    def run(limit: int) -> tuple[int, str]:
        # Root's capabilities in there come with the first program that it starts after the numbers are known.
        waiting = ["unshare", "--user", "--", "sh", "-c", 'read go; exec "$@"', "sh"]
        words = [*waiting, "sh", "-c", script.format(limit=limit, account=account), *command]
        with subprocess.Popen(
            words, cwd=box.project, env=box.variables(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            while os.readlink(f"/proc/{process.pid}/ns/user") == os.readlink("/proc/self/ns/user"):
                time.sleep(0.01)
            for table in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{table}").write_text("0 0 65536\n")
            output, _ = process.communicate("go\n", timeout=30)
            return process.returncode, output

    control, (status, said) = run(100), run(0)

    assert control[0] == 0, control[1]
    assert control[1].endswith("\nran\n")
    assert status == 125
    assert "ran\n" not in said
    assert "the user namespace could not be made" in said
    assert "max_user_namespaces" in said


NAMES = ("bwrap", "git", "claude", "python3", "env", "sh", "perl", "node", "nix", "pasta", "slirp4netns", "nft", "id", "mise")
MODULES = ("json", "typing", "re", "subprocess", "socket", "signal", "enum", "claudebox", "stat", "errno", "pwd", "termios")


def plant(box) -> str:
    """Put programs and modules with the names of those that a launcher needs into the project; return their mark."""
    mark = f"{box.base}/mark"
    box.mkdir(mark)
    os.chmod(mark, 0o777)
    for name in NAMES:
        for path in (name, f"bin/{name}"):
            box.write(path, f"#!/bin/sh\n/usr/bin/touch {mark}/program-{name}\n", mode=0o755)
    for name in MODULES:
        box.write(f"{name}.py", f"open({mark!r} + '/module-{name}', 'w').close()\nraise SystemExit(99)\n")
    return mark


@pytest.mark.parametrize("path", [":{path}", ".:{path}", "{path}:", "bin:{path}", "./bin::{path}", "{project}:{path}", "{project}/bin"])
def test_programs_of_the_project_are_never_run_by_the_launcher(box, path):
    # proves E01, E02
    mark = plant(box)
    given = path.format(path="/usr/local/bin:/usr/bin:/bin", project=box.project)

    control = box.host("/bin/sh", "-c", "git", env={"PATH": given})
    ran = os.listdir(mark)
    shutil.rmtree(mark)
    os.mkdir(mark)
    os.chmod(mark, 0o777)
    for words in (("--exec", "--dry-run", "--", "true"), ("-y", "--exec", "--", "/usr/bin/true"), ("--check",), ("--dry-run",)):
        result = box.claudebox(*words, env={"PATH": given})
        assert result.returncode in (0, 1, 126, 127), result.stderr

    if not given.endswith(":"):
        assert control.returncode == 0
        assert ran == ["program-git"]
    assert os.listdir(mark) == []


def test_modules_of_the_project_are_never_imported(box):
    # proves E03
    mark = plant(box)

    control = box.host(PYTHON, "-c", "import json")
    ran = os.listdir(mark)
    os.unlink(f"{mark}/{ran[0]}")
    result = box.run("/usr/bin/true", env={"PYTHONPATH": box.project, "PYTHONSTARTUP": f"{box.project}/json.py"})
    check = box.claudebox("--check", env={"PYTHONPATH": box.project})

    assert control.returncode == 99
    assert ran == ["module-json"]
    assert result.returncode == 0, result.stderr
    assert check.returncode in (0, 1)
    assert os.listdir(mark) == []


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME"])
def test_an_installers_shim_is_run_again_in_isolation(box, checkout, name):
    # proves E03, SAND-01
    mark = plant(box)
    os.unlink(f"{box.project}/claudebox.py")
    shim = install(box, "claudebox", f"#!{PYTHON}\nimport sys\nsys.path.append({checkout + '/src'!r})\n"
                   "from claudebox.cli import entry\nsys.exit(entry())\n")  # fmt: skip
    value = box.project if name == "PYTHONPATH" else "/usr"
    words = ("-y", "--exec", "--", "sh", "-c", "echo ran; echo $PYTHONPATH$PYTHONHOME; exit 7")

    plain = box.host(shim, *words)
    shown = box.host(shim, "--explain", "--json", "--exec", "--", "true", env={name: value})
    result = box.host(shim, *words, env={name: value})

    assert plain.returncode == result.returncode == 7, result.stderr
    assert plain.stdout == result.stdout == "ran\n\n"
    assert shown.returncode == 0, shown.stderr  # this one imports json
    assert os.listdir(mark) == []


def test_the_launcher_of_the_checkout_is_isolated():
    # proves E03
    first = (REPOSITORY / "bin/claudebox").read_bytes().split(b"\n", 1)[0]

    assert b" -I" in first
    assert sys.version_info >= (3, 11)


def test_standard_output_stays_clean_when_something_is_refused(user_box):
    # proves E08, UX-01
    result = subprocess.run(
        [user_box.program, "-y", "--mount-ro", "/nonexistent", "--exec", "--", "true"], cwd=user_box.project,
        env=user_box.variables(), capture_output=True, check=False, **user_box.account.demotion,
    )  # fmt: skip

    assert result.returncode == 125
    assert result.stdout == b""
