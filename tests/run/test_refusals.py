"""Where something that the plan needs is missing, broken or lying, nothing starts: 125 and the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.sandbox import PYTHON, install

LANDLOCK_RESTRICT_SELF = 446
EPERM = 1

# A bwrap in Python that looks like the real one from outside: its help text lies in the file, as in the binary.
OPTIONS = "' --args --cap-drop --die-with-parent --disable-userns --perms --remount-ro --seccomp --size '"
FAKE = f"#!{PYTHON} -I\n{OPTIONS}\nimport os, sys\nBWRAP = '/usr/bin/bwrap'\n"
# Reads the options from the descriptor, changes the list `words`, and starts the real one with it.
WRAPPER = (
    FAKE + "place = sys.argv.index('--args')\n"
    "with open(int(sys.argv[place + 1]), 'rb') as file: words = file.read().split(b'\\0')[:-1]\n"
    "{change}\n"
    "target = os.memfd_create('args', 0)\n"
    "os.write(target, b''.join(word + b'\\0' for word in words)); os.lseek(target, 0, 0)\n"
    "os.execv(BWRAP, ['bwrap', '--args', str(target), *sys.argv[place + 2:]])\n"
)


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
    ("at = words.index(b'--cap-drop'); words[at:at + 2] = [b'--cap-add', b'CAP_CHOWN']", "capabilities"),
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
    ("sys.exit(1)", "no error output"),
    ("sys.exit(0)", "no error output"),
    ("sys.exit('bwrap: Creating new namespace failed: Operation not permitted')", "user namespace could not be made"),
    ("sys.exit('bwrap: Unknown option --size')", "too old"),
    ("os.kill(os.getpid(), 9)", "no error output"),
    # Says what the gate says, and would run the command without any sandbox.
    ("os.write(3, b'ready\\n'); os.read(3, 9) == b'go\\n' and os.execvp('sh', sys.argv[-3:])", "not in force"),
    ("os.write(4, b'word on the standard error')\nsys.exit(3)", "no error output"),
])  # fmt: skip
def test_a_bwrap_that_fails_or_lies_is_refused(user_box, altered, body, complaint):
    # proves E08, E09
    altered(user_box, bwrap=install(user_box, "bwrap", FAKE + body + "\n"))

    said = refused(user_box, by=complaint)

    assert "Traceback" not in said


# It has a filter, no new privileges and no capabilities, as a process inside has; but it is on the host.
_ON_THE_HOST = (
    "import ctypes, struct\n"
    "library = ctypes.CDLL(None)\n"
    "for capability in range(64): library.prctl(24, capability, 0, 0, 0)\n"
    "library.capset(struct.pack('Ii', 0x20080522, 0), bytes(24))\n"
    "allow = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 255, 127]))\n"
    "library.prctl(38, 1, 0, 0, 0)\n"
    "library.prctl(22, 2, struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))\n"
    "os.write(3, b'ready\\n'); os.read(3, 9) == b'go\\n' and os.execvp('sh', sys.argv[-3:])\n"
)


def test_a_bwrap_that_only_looks_like_a_sandbox_is_refused(root_box, altered):
    # proves E08, E09
    altered(root_box, bwrap=install(root_box, "bwrap", FAKE + _ON_THE_HOST))

    refused(root_box, by="got no mnt namespace of its own")


def test_mounts_of_the_host_stay_as_they_are_where_bwrap_makes_none(root_box, altered):
    # proves C34, E08
    altered(root_box, bwrap=install(root_box, "bwrap", FAKE + _ON_THE_HOST))
    script = f"cat /proc/self/mountinfo; {root_box.program} -y --exec -- true 2>said; echo; cat /proc/self/mountinfo"
    worlds = [word for kind in ("shared", "slave") for word in ("unshare", "--mount", "--propagation", kind)]
    before, _, after = root_box.host(*worlds, "sh", "-c", script).stdout.partition("\n\n")

    assert " master:" in before  # the control: there is something that could be made private
    assert before == after.rstrip("\n")
    with open(f"{root_box.project}/said", encoding="utf-8") as said:
        assert "got no mnt namespace of its own" in said.read()


def test_a_bwrap_that_hangs_is_given_up(user_box, altered):
    # proves E08
    bwrap = install(user_box, "bwrap", FAKE + "import time\ntime.sleep(100)\n")
    altered(user_box, bwrap=bwrap, edits={"run/start.py": ("30.0", "0.5")})

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
    # The machine has one, so the search itself is made to look for other names.
    altered(
        user_box, edits={"host/programs.py": ("    for directory in (*_TRUSTED, *path):", "    for directory in ():")}
    )

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


@pytest.mark.root
def test_a_kernel_without_user_namespaces_is_explained(box):
    # proves E08
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
    assert "\nran\n" not in said
    assert "the user namespace could not be made" in said
    assert "max_user_namespaces" in said


def test_standard_output_stays_clean_when_something_is_refused(user_box):
    # proves E08
    result = subprocess.run(
        [user_box.program, "-y", "--mount-ro", "/nonexistent", "--exec", "--", "true"], cwd=user_box.project,
        env=user_box.variables(), capture_output=True, check=False, **user_box.account.demotion,
    )  # fmt: skip

    assert result.returncode == 125
    assert result.stdout == b""
