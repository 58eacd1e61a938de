"""What lives how long: rules before the uplink, the uplink before the payload, and nothing after the sandbox."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import termios
import time
import uuid
from pathlib import Path

import pytest
from tests.network import processes, topology
from tests.network.conftest import PYTHON
from tests.network.topology import PORT, wait_until
from tests.support.baking import bake

INET = ("--network", "inet")
BUSY = """
import socket, sys, time
reached, end = set(), time.monotonic() + 1.5
while time.monotonic() < end:
    for address in sys.argv[1:]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as channel:
            channel.settimeout(0.3)
            if channel.connect_ex((address, PORT)) == 0:
                reached.add(address)
print(*sorted(reached))
""".replace("PORT", str(PORT))


def helpers(process: subprocess.Popen[str], uplink: str) -> dict[int, str]:
    """Return everything that runs for a sandbox whose payload sleeps, once all of it is there."""

    def complete() -> bool:
        lines = processes.descendants(process.pid).values()
        return any(uplink in line for line in lines) and any(line.startswith("sleep") for line in lines)

    assert wait_until(complete), process.stderr and process.stderr.read()
    return processes.descendants(process.pid)


def test_there_is_no_moment_before_the_rules_hold(netbox):
    # proves NET-01, F09, F10
    targets = ("192.168.77.50", topology.HOST_LAN4, "fd77::1", "169.254.169.254", topology.HOST_PUBLIC6)
    script = netbox.write("busy.py", BUSY)
    control = netbox.host(PYTHON, script, *targets, topology.INTERNET4, topology.INTERNET6).stdout.split()
    assert control == sorted([*targets, topology.INTERNET4, topology.INTERNET6])

    result = netbox.run(PYTHON, script, *targets, topology.INTERNET4, topology.INTERNET6, flags=INET)

    assert result.stdout.split() == sorted([topology.INTERNET4, topology.INTERNET6])


LOOKING = """#!/usr/bin/python3
import os, subprocess, sys
user = next(word.split("=")[1] for word in sys.argv if word.startswith("--userns-path="))
net = sys.argv[-2]
enter = ["nsenter", "--preserve-credentials", f"--user={user}", f"--net={net}"]
rules = subprocess.run([*enter, "/usr/sbin/nft", "list", "ruleset"], capture_output=True, text=True)
links = subprocess.run([*enter, "/usr/sbin/ip", "-o", "link"], capture_output=True, text=True)
with open("LOG", "w") as file:
    file.write(rules.stdout + rules.stderr + links.stdout + f"payload started: {os.path.exists('STARTED')}")
os.execv("/usr/bin/slirp4netns", ["slirp4netns", *sys.argv[1:]])
"""


def test_the_rules_are_complete_when_the_uplink_starts(plain_netbox, checkout):
    # proves F09
    log, started = f"{plain_netbox.project}/log", f"{plain_netbox.project}/started"
    program = plain_netbox.write("looking", LOOKING.replace("LOG", log).replace("STARTED", started), mode=0o755)
    plain_netbox.program = bake(checkout, {"slirp4netns": program}) + "/bin/claudebox"

    result = plain_netbox.sh("touch started", flags=(*INET, "--set", "uplink=slirp4netns"))

    assert result.returncode == 0, result.stderr
    text = Path(log).read_text()
    assert "type filter hook output priority filter; policy drop;" in text
    assert text.count("policy drop") == 2
    for wanted in ("ip daddr 192.168.0.0/16 goto refuse", "ip daddr 198.51.100.0/24 goto refuse",
                   "ip6 daddr 2001:db8:77::/64 goto refuse", "ip6 daddr 64:ff9b::c0a8:0/112 goto refuse"):  # fmt: skip
        assert wanted in text
    assert "tap0" not in text
    assert "payload started: False" in text
    assert os.path.exists(started)


@pytest.mark.parametrize(("program", "said"), [
    ("#!/bin/sh\necho out of luck >&2\nexit 3\n", "did not start: out of luck"),
    ("#!/nonexistent\n", "did not start"),
    ("""#!/usr/bin/python3
import os, sys, time
os.write(int(next(word for word in sys.argv if word.startswith("--ready-fd=")).split("=")[1]), b"1")
time.sleep(1000)
""", "there is no way out of the sandbox"),
])  # fmt: skip
def test_an_uplink_that_fails_or_lies_stops_the_launch(plain_netbox, checkout, program, said):
    # proves NET-02
    path = plain_netbox.write("uplink", program, mode=0o755)
    plain_netbox.program = bake(checkout, {"slirp4netns": path}) + "/bin/claudebox"

    result = plain_netbox.sh("touch ran", flags=(*INET, "--set", "uplink=slirp4netns"))

    assert result.returncode == 125
    assert said in result.stderr
    assert "hint:" in result.stderr
    assert not os.path.exists(f"{plain_netbox.project}/ran")
    assert not processes.named(path)


@pytest.mark.slow
def test_an_uplink_that_hangs_stops_the_launch(plain_netbox, checkout):
    # proves NET-02
    path = plain_netbox.write("uplink", "#!/bin/sh\nexec sleep 98765\n", mode=0o755)
    plain_netbox.program = bake(checkout, {"slirp4netns": path}) + "/bin/claudebox"

    result = plain_netbox.sh("touch ran", flags=(*INET, "--set", "uplink=slirp4netns"))

    assert result.returncode == 125
    assert "did not get ready within 10 seconds" in result.stderr
    assert not os.path.exists(f"{plain_netbox.project}/ran")
    assert not processes.named("sleep 98765")


def test_a_missing_uplink_is_told_with_the_remedy(plain_netbox, checkout):
    # proves NET-02
    plain_netbox.program = bake(checkout, {"slirp4netns": "/nonexistent", "pasta": "/nonexistent"}) + "/bin/claudebox"

    result = plain_netbox.sh("touch ran", flags=INET)

    assert result.returncode == 125
    assert "uplink" in result.stderr
    assert not os.path.exists(f"{plain_netbox.project}/ran")


def test_an_old_pasta_is_never_used(plain_netbox):
    # proves NET-02
    old = shutil.which("pasta")
    probe = [str(old), "--map-host-loopback", "none", "--version"]
    if old is None or subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        pytest.skip("this machine has no old pasta")

    shown = plain_netbox.claudebox("--explain", *INET, "--exec", "--", "true").stdout
    assert "through slirp4netns" in shown
    forced = plain_netbox.run("true", flags=(*INET, "--set", "uplink=pasta"))

    assert forced.returncode == 125
    assert "too old" in forced.stderr


def test_a_box_of_an_uplink_uses_that_one(user_netbox, uplink):
    """Whatever claudebox would choose on this machine: without it, the tests of one uplink would be about the other."""
    # proves NET-02
    shown = user_netbox.claudebox("--explain", *INET, "--exec", "--", "true").stdout
    assert f"through {uplink}" in shown


def test_an_uplink_that_dies_takes_the_network_and_nothing_else(netbox, uplink):
    # proves NET-02
    with netbox.asking(INET, wait=True) as ask:
        assert ask("tcp", topology.INTERNET4) == "internet"
        found = processes.descendants(ask.process.pid)
        carrier = [pid for pid, line in found.items() if uplink in line and "tap0" in line]
        assert len(carrier) == 1
        os.kill(carrier[0], signal.SIGKILL)
        assert wait_until(lambda: ask("tcp", topology.INTERNET4) != "internet")
        assert ask("tcp", "192.168.77.50") not in topology.PLACES
        assert wait_until(lambda: not processes.alive(carrier[0]))
        time.sleep(0.2)  # and the session goes on for a while
        assert "the uplink ended during the session" in ask.end()


def test_nothing_carries_packets_when_nobody_watches_the_rules(netbox, uplink):
    """The netns holder is killed: the uplink must go with it, since new addresses would stay open."""
    # proves F04
    with netbox.start("sleep", "1000", flags=INET) as process:
        found = helpers(process, uplink)
        carrier = next(pid for pid, line in found.items() if uplink in line and "tap0" in line)
        own = os.readlink(f"/proc/{process.pid}/ns/net")
        holder = next(
            pid for pid, line in found.items() if "bin/claudebox" in line and os.readlink(f"/proc/{pid}/ns/net") != own
        )
        os.kill(holder, signal.SIGKILL)
        assert wait_until(lambda: not processes.alive(carrier))
        process.terminate()
        assert process.wait(15) == 128 + signal.SIGTERM


def test_nothing_survives_the_sandbox(netbox, uplink):
    # proves NET-02, SAND-15
    with netbox.start("sleep", "1000", flags=INET) as process:
        found = helpers(process, uplink)
        process.terminate()
        assert process.wait(15) == 128 + signal.SIGTERM
    assert [line for pid, line in found.items() if processes.alive(pid)] == []


def test_nothing_survives_a_launcher_that_is_killed(netbox, uplink):
    # proves NET-02, SAND-15
    with netbox.start("sleep", "1000", flags=INET) as process:
        found = helpers(process, uplink)
        assert len(found) >= 5
        process.kill()
        process.wait()
    assert wait_until(lambda: not any(map(processes.alive, found)), 3)


def test_a_launcher_killed_at_any_moment_leaves_nothing(user_netbox, world, uplink):
    # proves NET-02, SAND-15, E15
    marker = uuid.uuid4().hex
    host = os.stat(f"/run/netns/{world.name('host')}").st_ino

    def traces() -> list[str]:
        found = list(processes.named(marker).values())
        for pid, line in processes.named("slirp4netns", "pasta").items():
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino == host:
                    found.append(line)
            except OSError:
                continue
        return found

    for step in range(12):
        with user_netbox.start("sh", "-c", f"sleep 1000 # {marker}", flags=INET) as process:
            time.sleep(0.02 + step * 0.012)
            process.kill()
            process.wait()
        assert wait_until(lambda: not traces(), 3), traces()


def test_status_and_signals_are_as_in_full(box_in_world):
    # proves SAND-14, SAND-15
    for tier in ("full", "inet", "none"):
        flags = ("--network", tier)
        assert box_in_world.sh("exit 7", flags=flags).returncode == 7
        assert box_in_world.sh("kill -TERM $$", flags=flags).returncode == 128 + signal.SIGTERM
        with box_in_world.start(
            "sh", "-c", "trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done", flags=flags
        ) as process:
            assert process.stdout.readline() == "up\n"
            process.terminate()
            assert process.wait(10) == 42


def test_the_terminal_is_as_in_full(user_netbox):
    # proves SAND-15
    for tier in ("full", "inet"):
        script = "trap 'echo interrupted; exit 9' INT; tty; echo up; while :; do sleep 0.05; done"
        words = user_netbox.outside(user_netbox.program, "-y", "--network", tier, "--exec", "--", "sh", "-c", script)
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            words, cwd=user_netbox.project, env=user_netbox.variables(), stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=_take_terminal,  # noqa: PLW1509 - one thread
        )  # fmt: skip
        os.close(theirs)
        _read_until(ours, b"up\r\n")
        os.write(ours, b"\x03")
        _read_until(ours, b"interrupted")
        assert process.wait(10) == 9
        os.close(ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(descriptor: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        assert select.select([descriptor], [], [], 10)[0], seen
        seen += os.read(descriptor, 4096)


@pytest.mark.parametrize(("content", "chosen"), [
    (b"\x7fELF map-host-loopback splice-only", "through pasta"),
    (b"\x7fELF map-host-loopback", "through slirp4netns"),
    (b"\x7fELF", "through slirp4netns"),
    (b"#!/bin/sh\n", "through pasta"),
])  # fmt: skip
def test_the_uplink_is_chosen_by_its_options_and_not_run(plain_netbox, checkout, content, chosen):
    # proves NET-02
    program = content + f"\ntouch {plain_netbox.base}/ran\n".encode()
    path = plain_netbox.write("pasta", program, mode=0o755)
    plain_netbox.program = bake(checkout, {"pasta": path}) + "/bin/claudebox"

    shown = plain_netbox.claudebox("--explain", *INET, "--exec", "--", "true").stdout

    assert chosen in shown
    assert not os.path.exists(f"{plain_netbox.base}/ran")
