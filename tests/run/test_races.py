"""Names in the project change while a sandbox is built: no launch mounts anything elsewhere, or starts unprotected."""

from __future__ import annotations

import os

import pytest
from tests.conftest import need
from tests.support.sandbox import PYTHON

OLD = "/usr/bin/bwrap"
LAUNCHES = 30
# Exchanges two names again and again, as an agent of another session can.
SWAPPER = """
import ctypes, os, sys, time
swap = ctypes.CDLL(None, use_errno=True).renameat2
names = [(os.fsencode(a), os.fsencode(b)) for a, b in zip(sys.argv[1::2], sys.argv[2::2])]
print("swapping", flush=True)
while os.getppid() != 1:
    for one, other in names:
        swap(-100, one, -100, other, 2)
        time.sleep(0.002)  # or hardly any launch would get through
"""
# Which of two directories was called `.vscode` when the launch looked is open, but that one must be read-only now,
# whatever it is called. So must be `.claude`, unless it was seen as a link, on which nothing is mounted.
PAYLOAD = """
import os
def hold(*names):
    while True:
        held = [os.open(name, os.O_PATH | os.O_DIRECTORY) for name in names]
        if len({os.fstat(one).st_ino for one in held}) == len(names):
            return held
def is_open(directory):
    try:
        os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    except OSError:
        return False
    return True
if all(map(is_open, hold(".vscode", ".vscode.other"))):
    print("open .vscode")
names = [".claude", ".claude.link"]
mounted = {line.split()[4] for line in open("/proc/self/mountinfo")}
for name in names if mounted & {os.path.abspath(name) for name in names} else ():
    try:
        if is_open(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)):
            print("open .claude")
    except OSError:
        pass
print("ran")
"""


@pytest.fixture
def victim(box, background):
    """Return a directory of the host that a link in the project leads bwrap to, while names change all the time."""
    directory = box.mkdir(f"{box.base}/victim")
    for name in (".claude", ".vscode", ".vscode.other"):
        box.mkdir(name)
    os.symlink(f"/oldroot{directory}", f"{box.project}/.claude.link")
    pairs = ((".claude", ".claude.link"), (".vscode", ".vscode.other"))
    for names in (*pairs, (*pairs[0], *pairs[1])):
        swapper = background(box, PYTHON, "-c", SWAPPER, *(f"{box.project}/{name}" for name in names), cwd="/")
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == "swapping\n"
    return directory


def test_names_that_change_lead_no_launch_elsewhere(box, victim):
    # proves MOUNT-01, C30, C01
    need(os.path.exists(PYTHON), "Python of the system")
    for _ in range(LAUNCHES):
        result = box.run(PYTHON, "-IS", "-c", PAYLOAD)

        assert "Traceback" not in result.stderr
        assert os.listdir(victim) == []
        if result.returncode == 125:
            assert any(name in result.stderr for name in (".claude", ".vscode")), result.stderr
            continue
        assert "ran" in result.stdout, result.stderr
        assert "open .vscode" not in result.stdout
        assert "open .claude" not in result.stdout
        if os.path.lexists(f"{box.project}/.claude.claudebox"):  # put aside at the end, since it led elsewhere
            os.rename(f"{box.project}/.claude.claudebox", f"{box.project}/.claude")


def test_a_sandbox_that_is_built_by_name_is_led_elsewhere(box, victim):
    # proves C01
    version = box.host(OLD, "--version").stdout.split()[-1]
    if tuple(map(int, version.split("."))) >= (0, 12):
        pytest.skip("the bwrap of this machine is a newer one, which follows no links")
    options = ("--unshare-user", "--ro-bind", "/usr", "/usr", "--bind", box.project, "/p")
    for _ in range(300):
        box.host(OLD, *options, "--dir", "/p/.claude/made", "/usr/bin/true")
        if os.listdir(victim):
            break

    assert os.listdir(victim) == ["made"]
