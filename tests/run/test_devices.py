"""`devices` and `--set gpu=true` with the nodes of this machine."""

from __future__ import annotations

import os

import pytest
from tests.conftest import need

DANGEROUS = ("/dev/vda", "/dev/sda", "/dev/loop0", "/dev/kvm", "/dev/tty0", "/dev/mem", "/dev/kmsg", "/dev/vcs")


def test_a_node_enters_alone_and_can_be_used(user_box, open_tunnel):
    # proves TOOL-07
    probe = "ls /dev | sort | tr '\\n' ' '; exec 3<>/dev/net/tun && echo opened"
    before, after = user_box.sh(probe), user_box.sh(probe, flags=("--set", "devices=/dev/net/tun"))

    assert "opened" not in before.stdout
    assert after.stdout.replace("net ", "", 1) == before.stdout + "opened\n", after.stderr


@pytest.mark.parametrize("path", [path for path in DANGEROUS if os.path.exists(path)])
def test_dangerous_nodes_are_refused(user_box, path):
    # proves TOOL-07
    result = user_box.sh("true", flags=("--set", f"devices={path}"))

    assert (result.returncode, "gives access to" in result.stderr) == (125, True), result.stderr


@pytest.mark.parametrize(
    ("path", "words"),
    [("/dev/null", "its own"), ("/dev/../etc/passwd", "not in /dev"), ("/etc/passwd", "not in /dev"),
     ("/dev/shm", "not a device"), ("/dev/absent", "not a device"), ("/dev/stdin", "")],
)  # fmt: skip
def test_what_is_no_node_of_its_own_is_refused(user_box, path, words):
    # proves TOOL-07
    result = user_box.sh("true", flags=("--set", f"devices={path}"))

    assert (result.returncode, words in result.stderr) == (125, True), result.stderr


def test_no_project_asks_for_a_node_and_a_gpu_only_with_approval(user_box):
    # proves TOOL-07, EXT-01
    user_box.write(".claudebox.toml", 'devices = ["/dev/net/tun"]\n')
    assert user_box.sh("true").returncode == 125
    user_box.write(".claudebox.toml", "gpu = true\n")
    assert "not approved" in user_box.sh("true").stderr.replace("not been approved", "not approved")


def test_with_gpu_only_processors_and_cards_are_in_sys_and_read_only(user_box):
    # proves TOOL-07
    probe = "ls /sys/devices/system/cpu/online; find /sys -maxdepth 1 -mindepth 1; echo 1 >/sys/devices/system/cpu/x"

    assert user_box.sh("ls /sys").returncode != 0
    result = user_box.sh(
        probe,
        flags=(
            "--set",
            "gpu=true",
        ),
    )
    need(os.path.exists("/sys/devices/system/cpu/online"), "/sys")

    assert result.stdout.splitlines()[0] == "/sys/devices/system/cpu/online"
    assert set(result.stdout.splitlines()[1:]) <= {"/sys/devices", "/sys/bus", "/sys/class", "/sys/dev"}
    assert "Read-only file system" in result.stderr
