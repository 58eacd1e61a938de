"""What of the kernel is closed inside: by the filter, by lost capabilities, by what is not mounted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.sandbox import PYTHON
from tests.support.terminals import Terminal

# What a program may do outside on this kernel, and the answer inside. Success outside is checked: it is the control.
DENIED = {
    "keyctl": "EPERM", "add_key": "EPERM", "request_key": "EPERM",  # A08
    "io_uring_setup": "EPERM", "perf_event_open": "EPERM", "userfaultfd": "EPERM",  # H02
    "af_vsock": "EAFNOSUPPORT",  # F17
    "netlink_netfilter": "EPROTONOSUPPORT", "netlink_audit": "EPROTONOSUPPORT",
    "unshare_user": "EPERM", "clone_user": "EPERM", "clone3_user": "ENOSYS", "mount": "EPERM",  # H01, CVE-2021-41133
    "tiocsti": "EPERM", "tiocsti_high_bits": "EPERM", "tiocsetd": "EPERM",  # B01, B02
}  # fmt: skip
DENIED_ON_X86 = {"i386_getpid": "ENOSYS", "i386_tiocsti": "ENOSYS", "i386_keyctl": "ENOSYS"}  # B03
# Here the kernel has its own objection outside, and another error shows that it is the filter that answers inside.
DENIED_OTHERWISE = {
    "tioclinux": ("ENOTTY", "EPERM"), "tioclinux_high_bits": ("ENOTTY", "EPERM"),  # B04
    "bpf": ("EINVAL", "EPERM"), "io_uring_enter": ("EBADF", "EPERM"), "io_uring_register": ("EINVAL", "EPERM"),
    "open_by_handle_at": ("EBADF", "EPERM"), "quotactl": ("ENODEV", "EPERM"), "setns": ("EBADF", "EPERM"),
    "pair_inet": ("ENOTSUP", "EAFNOSUPPORT"),  # F22
    "umount2": ("ENOENT", "EPERM"), "open_tree": ("ENOENT", "EPERM"), "unshare_user_high_bits": ("EINVAL", "EPERM"),
}  # fmt: skip
# The kernel lets only root do these; an ordinary user is refused outside as well.
DENIED_TO_ROOT = {
    "syslog": "EPERM", "af_packet": "EAFNOSUPPORT", "raw_icmp": "EPERM", "swapon": "EPERM", "pivot_root": "EPERM",
    "fsopen": "EPERM", "move_mount": "EPERM",
}  # fmt: skip
ALLOWED = ("af_unix", "pair_unix", "af_inet", "af_inet6", "netlink_route", "terminal", "tiocgwinsz")


def outcomes(output: str) -> dict[str, str]:
    """Read the lines of the probe: a name and an error number."""
    pairs = (line.split() for line in output.splitlines())
    return {name: errno.errorcode.get(int(number), "ok") for name, number in pairs}


def test_the_filter_denies_what_the_kernel_would_allow(box, probe, naive):
    # proves A08, B02, B03, B04, F17, F21, F22, H01, H02, OLD-A27
    program = probe(box, "syscalls")
    wanted = DENIED | (DENIED_ON_X86 if os.uname().machine == "x86_64" else {})

    outside = outcomes(box.host(program).stdout)
    careless = outcomes(naive(box, program, options=("--tmpfs", "/tmp", "--bind", box.project, box.project)).stdout)
    inside = outcomes(box.run(program).stdout)

    assert {name for name in wanted if outside[name] == "ok"} == set(wanted)
    assert {name for name in wanted if careless[name] == "ok"} == set(wanted)
    assert {name: inside[name] for name in wanted} == wanted
    assert {name: (outside[name], inside[name]) for name in DENIED_OTHERWISE} == DENIED_OTHERWISE
    assert {name: inside[name] for name in DENIED_TO_ROOT} == DENIED_TO_ROOT
    if box.account.uid == 0:
        assert not [name for name, answer in DENIED_TO_ROOT.items() if outside[name] == answer]
    assert {inside[name] for name in ALLOWED} == {"ok"}


def test_the_filter_holds_on_a_terminal_of_the_user(user_box, probe):
    # proves B02, B03, B04
    program = probe(user_box, "syscalls")

    with Terminal(user_box, argv=(user_box.program, "-y", "--exec", "--", program)) as terminal:
        terminal.expect(r"tiocsti (\d+)\n")
        terminal.expect(r"tiocsti_high_bits 1\n")
        terminal.expect(r"tioclinux 1\n")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--network", "none"),
        (
            "--set",
            "allow_userns=true",
        ),
    ],
)
def test_every_process_inside_is_filtered_and_without_privileges(box, flags):
    # proves H03, H04, H05, E08
    fields = ("Seccomp", "NoNewPrivs", "CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
    wanted = {"Seccomp": "2", "NoNewPrivs": "1"} | {name: "0" * 16 for name in fields if name.startswith("Cap")}
    script = "for p in 1 self; do grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/$p/status; echo; done"

    inside = box.sh(script, flags=flags)
    control = box.host("sh", "-c", "grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status")

    for part in inside.stdout.strip().split("\n\n"):
        status = dict(line.split(":\t") for line in part.splitlines())
        assert {name: status[name] for name in fields} == wanted
    assert "NoNewPrivs:\t0" in control.stdout


def test_programs_with_the_setuid_bit_gain_nothing(box):
    # proves H04
    copy = box.write("copy", Path("/usr/bin/id").read_bytes(), mode=0o755)
    os.chmod(copy, 0o6755)
    if box.account.uid and os.getuid() == 0:
        os.chown(copy, 0, 0)
        os.chmod(copy, 0o6755)
        assert box.host(copy, "-u").stdout.strip() == "0"  # the control: outside it works

    inside = box.sh("./copy -u; findmnt -rn -o TARGET,OPTIONS | grep -v nosuid")

    assert inside.stdout.split() == [str(box.account.uid)]


def test_no_mount_inside_has_devices_or_setuid(box):
    # proves H04, H07
    result = box.sh("cat /proc/self/mounts")

    rows = [line.split() for line in result.stdout.splitlines()]
    assert len(rows) > 10
    assert not [row for row in rows if "nosuid" not in row[3].split(",")]
    with_devices = {row[1] for row in rows if "nodev" not in row[3].split(",")}
    assert with_devices <= {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "console")
    }


def test_settings_and_devices_of_the_kernel_are_out_of_reach(box):
    # proves H06, H07, H11
    script = (
        "for f in kernel/core_pattern kernel/sysrq vm/drop_caches kernel/hostname user/max_user_namespaces; do\n"
        "  if cat /proc/sys/$f >/proc/sys/$f; then echo written $f; fi\n"
        "done\n"
        "echo h >/proc/sysrq-trigger && echo triggered\n"
        "echo 500 >/proc/self/oom_score_adj && echo adjusted\n"
        "ls -d /sys/* /dev/kmsg /dev/mem /dev/vd* /dev/sd* /dev/kvm /dev/fuse /dev/vsock /dev/net /proc/kcore/x\n"
        "mknod device b 8 0 && echo device\n"
        "mknod device c 1 1 && echo device\n"
        "dmesg && echo messages\n"
        "cat /proc/cmdline\n"
        "[ -r /proc/self/status ] && echo end\n"
    )

    inside = box.sh(script)
    control = box.host("sh", "-c", "ls -d /sys/kernel /dev/kmsg; cat /proc/cmdline")

    assert inside.stdout.split() == ["adjusted", "end"]  # a process may always offer itself to be killed first
    assert control.stdout.split()[:2] == ["/dev/kmsg", "/sys/kernel"]
    assert len(control.stdout.split()) > 2


def test_root_inside_cannot_write_what_its_user_id_alone_would_open(root_box, naive):
    # proves H06
    # A pattern that starts with a pipe is a program that the host runs as root. The value is written back unchanged.
    script = "cat /proc/sys/kernel/core_pattern >/proc/sys/kernel/core_pattern && echo written"
    writable = "find /proc -path '/proc/[0-9]*' -prune -o -path '/proc/*self' -prune -o -type f -writable -print"
    masked = {"/proc/keys", "/proc/key-users", "/proc/cmdline"}

    control = naive(root_box, "sh", "-c", script)
    inside = root_box.sh(f"{script}; {writable}")

    assert control.stdout == "written\n"
    assert set(inside.stdout.split()) == masked  # which are /dev/null in truth, and the control of the search
    assert "Read-only file system" in inside.stderr


def test_nested_namespaces_are_impossible_unless_allowed(box):
    # proves H01, C24
    script = "unshare -Ur true && echo made; unshare -Urm umount /tmp && echo peeled"

    control = box.host("sh", "-c", "unshare -Ur true && echo made")
    inside = box.sh(script)

    assert control.stdout == "made\n"
    assert inside.stdout == ""


def test_a_sandbox_in_the_sandbox_works_where_it_is_allowed(user_box):
    # proves H01
    nested = ("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
              "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc",
              "--", "/usr/bin/sh", "-c", "echo nested $(ls -d /proc/1)")  # fmt: skip

    denied = user_box.run(*nested)
    allowed = user_box.run(
        *nested,
        flags=(
            "--set",
            "allow_userns=true",
        ),
    )

    assert denied.returncode != 0
    assert denied.stdout == ""
    assert allowed.stdout == "nested /proc/1\n", allowed.stderr
    assert "user namespaces are allowed inside" in allowed.stderr


def test_root_is_told_that_namespaces_stay_impossible(root_box):
    # proves H01
    result = root_box.run(
        "unshare",
        "-Ur",
        "true",
        flags=(
            "--set",
            "allow_userns=true",
        ),
    )

    assert result.returncode != 0
    assert "root cannot even make one" in result.stderr


def test_mounts_cannot_be_peeled_off_even_where_namespaces_are_allowed(user_box):
    # proves C24, A08
    user_box.write(f"{user_box.base}/data/file", "original")
    script = (
        "unshare -Urm sh -c '"
        "umount /data; mount -o remount,rw,bind /data; touch /data/new; touch /usr/new;"
        "mount -o remount,rw,bind /usr; touch /usr/new; umount ~; ls -A ~;"
        "keyctl list @u && echo keys; mount -t tmpfs none /tmp && echo end'"
    )

    result = user_box.sh(script, flags=("--set", "allow_userns=true", "--mount-ro", f"{user_box.base}/data:/data"))

    assert result.stdout.splitlines()[-1] == "end", result.stderr  # the control: in there, mounting works
    assert os.listdir(f"{user_box.base}/data") == ["file"]
    assert not os.path.exists("/usr/new")
    assert set(result.stdout.split()) <= {".cache", ".claude", ".config", ".gitconfig", "end"}


def test_temporary_file_systems_are_bounded(box):
    # proves H09, SAND-11
    script = (
        "import os\n"
        "for path in ('/tmp', os.environ['HOME'], '/dev/shm', os.environ['XDG_RUNTIME_DIR']):\n"
        "    info = os.statvfs(path)\n"
        "    print(info.f_blocks * info.f_frsize)\n"
        "runtime = os.environ['XDG_RUNTIME_DIR'] + '/big'\n"
        "try:\n"
        "    with open(runtime, 'wb', 0) as file:\n"
        "        for _ in range(80): file.write(bytes(1 << 20))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    result = box.run(PYTHON, "-c", script)

    *sizes, last = result.stdout.splitlines()
    assert len(sizes) == 4
    assert max(map(int, sizes)) <= max(256 << 20, memory // 4) + 4096  # rounded up to a page
    assert int(sizes[3]) == 64 << 20
    assert last == "No space left on device"


def test_root_and_system_are_read_only_and_the_rest_is_not(box):
    # proves C25, SAND-04, SAND-06, SAND-11
    places = ("/", "/etc", "/usr", "/usr/local/bin", "/bin", "/run", "/run/claudebox", "/dev", "/opt", "/var", "/proc",
              "/home", "/lib", os.path.dirname(box.project))  # fmt: skip
    script = (
        f"for d in {' '.join(places)}; do touch $d/claudebox-probe 2>/dev/null && echo written $d; done\n"
        "echo x >>/etc/passwd && echo changed; echo x >/etc/ld.so.preload && echo planted\n"
        "for d in . /tmp ~ /dev/shm $XDG_RUNTIME_DIR ~/.claude; do touch $d/probe && echo fine; done"
    )

    result = box.sh(script)

    # /tmp is writable and the project of this test lies in it.
    assert set(result.stdout.splitlines()) <= {"fine", f"written {os.path.dirname(box.project)}"}
    assert result.stdout.count("fine") == 6
    assert os.path.exists(f"{box.project}/probe")
    assert not os.path.exists("/usr/claudebox-probe")
