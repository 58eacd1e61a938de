"""Whatever a launch rests on fails or hangs: either everything is protected all the same, or nothing starts."""

from __future__ import annotations

import os
import platform
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import few
from tests.run.test_descriptors import LISTING, start_with_descriptors
from tests.run.test_stubs import entries
from tests.support import repositories

if TYPE_CHECKING:
    import subprocess

EPERM, ENOSYS = 1, 38
# Numbers on x86_64 and aarch64 of what launcher and bwrap call on the way.
SYSCALLS = {
    "capset": (126, 91), "close_range": (436, 436), "flock": (73, 32), "memfd_create": (319, 279), "mknodat": (259, 33),
    "mount": (165, 40), "pidfd_open": (434, 434), "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261),
    "ptrace": (101, 117), "sethostname": (170, 161), "setsockopt": (54, 208), "socketpair": (53, 199),
    "umount2": (166, 39), "unshare": (272, 97),
}  # fmt: skip
PROBE = (
    "echo started; grep -q '^CapEff:.0*$' /proc/self/status && echo no-privileges;"
    "sed -n 's/^Seccomp_filters:./filters-/p' /proc/self/status; cat ~/.ssh/id; echo; cat /proc/1/environ; echo;"
    "(echo evil >>.git/config) 2>/dev/null && echo CONFIG;"
    "(mkdir .claude; echo {} >.claude/settings.json) 2>/dev/null && echo PLANTED;"
    "cat /proc/*/cmdline | tr '\\0' ' ' | grep -q 'CANARY-[P]ROCESS' && echo PROCESS;"
    "touch /usr/x 2>/dev/null && echo SYSTEM"
)


def attempt(box, *before: str) -> subprocess.CompletedProcess[str]:
    """Launch the probe behind some other words, and see that nothing ran without protection."""
    config = Path(box.project, ".git/config").read_bytes()
    patience = ("timeout", "--kill-after=1", "40")  # longer than the launcher has with bwrap
    result: subprocess.CompletedProcess[str] = box.host(
        *patience, *before, box.program, "-y", "--exec", "--", "sh", "-c", PROBE
    )
    before_us = "Fatal Python error: error evaluating path"  # that of Python 3.14, which begins with no smaller stack
    assert "Traceback" not in result.stderr or before_us in result.stderr, result.stderr
    assert Path(box.project, ".git/config").read_bytes() == config  # inside it is one of the sandbox's own
    assert not os.path.exists(f"{box.project}/.claude/settings.json")
    if "started" in result.stdout:
        filters = 2 if before[:1] and before[0].endswith("/refuse") else 1  # that is one itself
        assert {"no-privileges", f"filters-{filters}"} <= set(result.stdout.split()), result.stdout
        for escape in ("PLANTED", "PROCESS", "SYSTEM", "secret-key", "SECRET_VARIABLE"):
            assert escape not in result.stdout
    else:
        assert result.returncode not in (0, None)
    return result


def left(box) -> list[str]:
    """Return the sandboxes in which this project is the working directory of some process."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            place, name = os.readlink(f"/proc/{process}/cwd"), Path(f"/proc/{process}/comm").read_text().strip()
        except OSError:
            continue
        if name == "bwrap" and place == box.project:
            found.append(process)
    return found


@pytest.fixture
def target(box, background):
    """Return a box in which there is something to lose."""
    repositories.make(box)
    box.write(f"{box.home}/.ssh/id", "secret-key")
    box.environ["SECRET_VARIABLE"] = "x"
    background(box, "/usr/bin/python3", "-ISc", "import time; time.sleep(120)", "CANARY-PROCESS")
    return box


def test_the_probe_of_these_tests_finds_what_is_open(target):
    # proves E08
    shutil.copytree(target.project, f"{target.base}/copy")
    outside = target.host("sh", "-c", PROBE.replace("touch /usr/x", "true"), cwd=f"{target.base}/copy")
    found = {"started", "CONFIG", "PLANTED", "PROCESS", "SYSTEM"} if target.account.uid == 0 else {"started", "PROCESS"}
    assert found <= set(outside.stdout.split())
    assert "secret-key" in outside.stdout
    inside = attempt(target)
    assert inside.stdout.split()[0] == "started"


@pytest.mark.parametrize("name", few(SYSCALLS, 8))
def test_a_system_call_that_fails_leaves_nothing_unprotected(target, compiled, name):
    # proves E08
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if column is None:
        pytest.skip("the numbers of system calls are not known here")
    attempt(target, f"{compiled}/refuse", str(SYSCALLS[name][column]), str(EPERM))
    assert left(target) == []


def test_inherited_descriptors_are_closed_on_a_kernel_that_cannot_mark_them_at_once(user_box, compiled):
    # proves A04
    opened = dict.fromkeys((3, 9, 60), os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    argv = [f"{compiled}/refuse", str(SYSCALLS["close_range"][0]), str(ENOSYS), user_box.program, "-y", "--exec", "--"]

    result = start_with_descriptors(user_box, opened, [*argv, "sh", "-c", LISTING])

    os.close(opened[3])
    assert result.stdout.split() == ["0", "1", "2", "3"], result.stderr


@pytest.mark.parametrize("limit", [
    "--fsize=0", "--nofile=24", "--nofile=64", "--nproc=1", "--as=50331648", "--as=67108864", "--memlock=0",
    "--stack=65536", "--core=unlimited",
])  # fmt: skip
def test_a_limit_that_is_reached_leaves_nothing_unprotected(target, limit):
    # proves E08
    attempt(target, "prlimit", limit)


@pytest.mark.parametrize("kind", few(["directory", "link", "pipe", "garbage", "huge"], 3))
@pytest.mark.parametrize("name", ["stubs", "sessions", "project"])
def test_state_that_is_not_what_it_should_be_leaves_nothing_unprotected(target, name, kind):
    # proves E08, C05, C29
    target.sh("true")
    (instance,) = Path(target.home, ".claudebox/instances").iterdir()
    victim = target.write(f"{target.base}/victim", "kept")
    path = instance / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "directory":
        target.mkdir(str(path))
    elif kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        status = os.stat(target.base)
        root = f"{target.base}\0{status.st_dev}:{status.st_ino}"
        content = f"\0\0file\0{root}\0victim\0\0\0directory\0{root}\0project\0nonsense\0 \0\0file\0{root}\0../x\0"
        target.write(str(path), content if kind == "garbage" else content.ljust(8 << 20, "x"))
    started = time.monotonic()
    attempt(target)
    assert time.monotonic() - started < 40
    assert Path(victim).read_text() == "kept"
    assert os.path.isdir(f"{target.project}/.git")


@pytest.mark.parametrize(
    "body", ["import sys; sys.exit(1)", "raise SystemExit('no')", "import os; os.kill(os.getpid(), 9)"]
)
def test_a_keeper_of_the_login_that_fails_lets_no_more_in(target, altered, body):
    # proves E08, I01
    login = '{"claudeAiOauth": {"accessToken": "a-token", "refreshToken": "r-token", "expiresAt": 1}}'
    target.write(f"{target.home}/.claude/.credentials.json", login)
    base = altered(target)
    Path(base, "src/claudebox/agent/renewal.py").write_text(body)
    assert "started" in attempt(target).stdout
    inside = target.sh("cat ~/.claude/.credentials.json /run/claudebox/login/store/.credentials.json; true")
    assert "r-token" not in inside.stdout


def test_a_project_that_goes_away_during_the_session_ends_it_in_order(target, running):
    # proves E08, C21
    session = running(target, then="exit 7")
    os.rename(target.project, f"{target.base}/moved")
    session.up = f"{target.base}/moved/up"
    output = session.end()
    assert session.process.returncode == 7, output
    assert "Traceback" not in output


def test_a_project_that_is_full_of_changes_while_it_is_swept_ends_in_order(user_box, background):
    # proves E08
    repositories.make(user_box)
    churn = background(
        user_box,
        "sh",
        "-c",
        "while :; do mkdir -p x/y; ln -s /etc x/l; touch x/y/Makefile; rm -rf x; done",
        cwd=user_box.project,
    )
    for _ in range(5):
        result = user_box.sh("true")
        assert "Traceback" not in result.stderr
        assert result.returncode == 0
    churn.kill()


def test_entries_of_another_kind_than_recorded_are_never_removed(target):
    # proves C21
    target.sh("true")
    (instance,) = Path(target.home, ".claudebox/instances").iterdir()
    target.write("kept/file", "data")
    target.write("dotted", "..\n")
    target.mkdir("directory")
    os.symlink("kept", f"{target.project}/link")
    before = entries(target.project)
    rows = ["directory kept", "dot dotted", "file kept/file", "file link", "directory link"]
    status = os.stat(target.project)
    root = f"{target.project}\0{status.st_dev}:{status.st_ino}"
    journal = "".join(f"\0\0{row.split()[0]}\0{root}\0{row.split()[1]}\0" for row in rows)
    target.write(str(instance / "stubs"), journal)
    target.sh("true")
    assert entries(target.project) == before
    assert not (instance / "stubs").exists()
