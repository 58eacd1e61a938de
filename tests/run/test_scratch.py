"""Home and /tmp of a sandbox on disk: the same as in memory, and gone at the end, however it ends."""

from __future__ import annotations

import glob
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import fresh_box, wait_until

DISK = ("--set", "scratch=disk")
PROBE = (
    "stat -c '%a %U' ~ /tmp; stat -f -c %T ~ /tmp; echo x >/tmp/x; echo y >~/y; mkdir -p ~/a/b; "
    "chmod 0 ~/a/b; ls -A ~ | grep -v '^[.]'; cat ~/.gitconfig >/dev/null && echo configured"
)


def scratches(box):
    return glob.glob(f"{box.home}/.claudebox/instances/*/scratch/*")


@pytest.fixture
def disk_box(account, checkout, monkeypatch):
    """Return a box on disk; /tmp may be in memory."""
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    yield from fresh_box(account, checkout)


def test_on_disk_it_is_as_in_memory_and_gone_at_the_end(disk_box):
    # proves TOOL-06
    box = disk_box
    memory, disk = box.sh(PROBE, flags=("--set", "scratch=memory")), box.sh(PROBE, flags=DISK)

    assert memory.stdout.split()[4:6] == ["tmpfs", "tmpfs"]
    assert without_types(memory) == without_types(disk), disk.stderr
    assert "tmpfs" not in disk.stdout
    assert scratches(box) == []
    assert box.sh("ls -d /tmp/x ~/y 2>/dev/null", flags=DISK).stdout == ""


def without_types(result):
    words = result.stdout.split()
    return words[:4] + words[6:]


def test_what_a_killed_session_left_goes_with_the_next_one(user_box, background):
    # proves TOOL-06, E15
    argv = (user_box.program, "-y", *DISK, "--exec", "--", "sh", "-c", "echo secret >/tmp/x; touch up; exec sleep 60")
    process = background(user_box, *argv)
    wait_until(lambda: os.path.exists(f"{user_box.project}/up"), "the session begins")
    (left,) = scratches(user_box)
    assert user_box.sh("true", flags=DISK).returncode == 0
    assert Path(left, "tmp/x").read_text() == "secret\n"  # it is in use

    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.exists(left)
    assert user_box.sh("true", flags=("--set", "scratch=memory")).returncode == 0

    assert scratches(user_box) == []


def test_one_session_does_not_see_the_scratch_of_another(user_box):
    # proves TOOL-06
    result = user_box.sh(f"ls -A {user_box.home}/.claudebox 2>&1; touch /tmp/mine", flags=DISK)

    assert "No such file" in result.stdout


def test_the_check_says_where_it_is(user_box):
    # proves TOOL-06, UX-05
    user_box.write(f"{user_box.home}/.local/bin/claude", Path("/usr/bin/true").read_bytes(), mode=0o755)
    assert "home and /tmp inside are on disk" in user_box.claudebox("--check", *DISK).stdout
    assert "home and /tmp inside are in memory" in user_box.claudebox("--check", "--set", "scratch=memory").stdout
