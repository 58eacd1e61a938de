"""Which device nodes enter, decided from what they are."""

from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.base.errors import ClaudeboxError
from claudebox.host.records import PathFact
from claudebox.host.tools import Devices, Node
from claudebox.plan import tools as plan_tools
from claudebox.settings.records import NameRequest, Policy

CARD = "/sys/devices/pci0000:00/0000:00:02.0"


def node(path, major=226, minor=128, subsystem="", *, block=False):
    return Node(path, hosts.identity(path), (major, minor), block, subsystem)


def planned(found, policy=None, host=None):
    return plan_tools.plan_devices(policy or Policy("exec", gpu="--set gpu=true"), host or hosts.debian(), found)


@pytest.mark.parametrize(
    ("path", "major", "minor", "subsystem"),
    [("/dev/nvidia0", 195, 0, ""), ("/dev/nvidia-uvm", 511, 0, ""), ("/dev/dri/renderD128", 226, 128, "drm"),
     ("/dev/kfd", 235, 0, "kfd"), ("/dev/video0", 81, 0, "video4linux"), ("/dev/snd/pcmC0D0p", 116, 3, "sound"),
     ("/dev/fuse", 10, 229, "misc"), ("/dev/accel/accel0", 261, 0, "accel")],
)  # fmt: skip
def test_what_a_user_may_name(path, major, minor, subsystem):
    # proves TOOL-07
    assert plan_tools.why_refused(node(path, major, minor, subsystem)) == ""


@pytest.mark.parametrize(
    ("path", "major", "minor", "subsystem"),
    [("/dev/mem", 1, 1, "mem"), ("/dev/kmsg", 1, 11, "mem"), ("/dev/tty0", 4, 0, "tty"),
     ("/dev/ttyUSB0", 188, 0, "tty"), ("/dev/ttyACM0", 166, 0, "tty"),
     ("/dev/input/event0", 13, 64, "input"), ("/dev/uinput", 10, 223, "misc"),
     ("/dev/hidraw0", 244, 0, "hidraw"), ("/dev/kvm", 10, 232, "misc"), ("/dev/dri/card0", 226, 0, "drm"),
     ("/dev/sg0", 21, 0, "scsi_generic"), ("/dev/nvme0", 239, 0, "nvme"), ("/dev/cpu/0/msr", 202, 0, "msr"),
     ("/dev/vhost-vsock", 10, 241, "misc"), ("/dev/bus/usb/001/002", 189, 1, "usb"), ("/dev/vcs1", 7, 1, "vc"),
     ("/dev/nvidia0", 1, 1, "mem"), ("/dev/mapper/control", 10, 236, "misc"), ("/dev/new", 300, 0, "")],
)  # fmt: skip
def test_everything_else_is_refused_unless_the_user_insists(path, major, minor, subsystem):
    # proves TOOL-07
    found = Devices(asked=((path, node(path, major, minor, subsystem)),))
    wanted = Policy("exec", devices=(NameRequest(path, "--set devices"),))

    with pytest.raises(ClaudeboxError, match="gives access to"):
        planned(found, wanted)
    (row,) = planned(found, wanted.replace(unsafe_mounts=True)).mounts
    assert (row.dest, row.kind, row.pinned) == (path, "device", hosts.identity(path))


def test_a_disk_is_refused_whatever_it_is_called():
    # proves TOOL-07
    assert "a disk" in plan_tools.why_refused(node("/dev/nvidia0", 195, 0, "accel", block=True))


def test_cards_enter_with_what_libraries_read_and_nothing_of_them_can_be_changed():
    # proves TOOL-07
    found = Devices(
        gpu=(node("/dev/nvidia0", 195, 0), node("/dev/dri/renderD128", subsystem="drm")),
        shown=("/sys/devices/system/cpu", CARD),
        links=(("/sys/dev/char/226:128", f"{CARD}/drm/renderD128"), ("/run/opengl-driver", "/nix/store/x-driver"),
               ("/sys/class/drm/x", "/home/alice/.ssh")),
        libraries=(hosts.fact("/usr/lib/nvidia"), hosts.fact("/var/lib/nvidia/lib64"), hosts.fact(f"{hosts.HOME}/.ssh"),
                   hosts.fact("/home"), PathFact("/gone", "/gone")),
        search=("/var/lib/nvidia/lib64",),
        programs=("/usr/lib/wsl/lib", f"{hosts.HOME}/bin"),
    )  # fmt: skip

    made = planned(found, host=hosts.debian().replace(environ={"CUDA_VISIBLE_DEVICES": "1"}))

    rows = {row.dest: (row.kind, row.source) for row in made.mounts}
    assert rows == {
        "/dev/nvidia0": ("device", "/dev/nvidia0"),
        "/dev/dri/renderD128": ("device", "/dev/dri/renderD128"),
        "/sys/devices/system/cpu": ("ro-bind", "/sys/devices/system/cpu"),
        CARD: ("ro-bind", CARD),
        "/sys/dev/char/226:128": ("symlink", f"{CARD}/drm/renderD128"),
        "/run/opengl-driver": ("symlink", "/nix/store/x-driver"),
        "/var/lib/nvidia/lib64": ("ro-bind", "/var/lib/nvidia/lib64"),
    }
    assert {row.name: row.value for row in made.variables} == {
        "LD_LIBRARY_PATH": "/var/lib/nvidia/lib64",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert made.path == ("/usr/lib/wsl/lib",)


def test_what_is_missing_is_said():
    # proves TOOL-07
    assert "no graphics processor" in planned(Devices()).warnings[0]
    found = Devices(gpu=(node("/dev/nvidiactl", 195, 255),), incomplete=True)
    assert "nvidia-modprobe" in planned(found).warnings[0]
