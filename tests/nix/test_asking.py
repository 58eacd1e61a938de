"""What is asked about the daemon, how long the answer is believed, and what is told about it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest


@pytest.fixture
def watched(daemons, nix_boxes, overhear, ordinary_account):
    """Return a box with a daemon of its own, and a function that tells what `nix` was run with since the last time."""
    box = nix_boxes(daemons(min_free="1001"), ordinary_account)
    return box, overhear(box)


def decision(box, *flags: str) -> str:
    """Return what the audit says about Nix, as if nothing had been approved here before."""
    for path in Path(box.home).glob(".claudebox/instances/*/approved"):
        path.unlink()
    result = box.sh("true", flags=flags)
    assert result.returncode == 0, result.stderr
    return str(next(line for line in result.stderr.splitlines() if "Nix: " in line))


def test_no_program_is_run_to_decide(watched):
    # proves NIXSEC-01
    box, ran = watched
    assert "directly" in decision(box)
    assert ran() == []

    box.sh("true", flags=("--set", f"nixpkgs={box.daemon.packages}", "--package", "hello"))
    assert ran()  # to build, after the question


@pytest.mark.parametrize("change", ["configuration", "daemon", "include"])
def test_a_change_is_noticed(watched, change):
    # proves NIXSEC-01, G01
    box, _ = watched
    daemon = box.daemon
    extra = Path(daemon.base, "etc/extra.conf")
    extra.write_text("")
    daemon.configure()
    with Path(daemon.base, "etc/nix.conf").open("a") as file:
        file.write("!include extra.conf\n")
    daemon.restart()
    assert "directly" in decision(box)
    try:
        if change == "configuration":
            with Path(daemon.base, "etc/nix.conf").open("a") as file:
                file.write("trusted-users = root claudebox-test\n")
        elif change == "include":
            extra.write_text("trusted-users = root claudebox-test\n")
        daemon.restart()

        told = decision(box)
        if change != "daemon":
            assert "it trusts you" in told
            assert "directly" not in told
    finally:
        extra.unlink()
        daemon.configure()
        daemon.restart()


def test_a_configuration_that_is_not_in_force_yet_is_not_believed(watched):
    # proves NIXSEC-01, G01
    box, _ = watched
    conf = Path(box.daemon.base, "etc/nix.conf")
    future = time.time() + 5
    os.utime(conf, (future, future))
    try:
        told = decision(box)
        assert "changed after it had started" in told
        assert "directly" not in told
    finally:
        os.utime(conf, (1, 1))
    box.daemon.restart()
    assert "directly" in decision(box)


def test_a_daemon_that_does_not_answer_is_off_with_the_reason(watched):
    # proves NIXSEC-01
    box, _ = watched
    box.daemon.stop()
    try:
        told = decision(box)
        plainly = box.sh("nix store ping", flags=("--set", "nix=daemon"))
    finally:
        box.daemon.start()
    assert "without the daemon" in told
    assert "does not answer" in told
    assert "Connection refused" in plainly.stderr
    assert "may trust you" in plainly.stderr
    assert "directly" in decision(box)


@pytest.mark.parametrize("sandbox", ["false", "relaxed"])
def test_builders_without_a_sandbox_are_off_unless_said_plainly(daemons, nix_boxes, ordinary_account, sandbox):
    # proves NIXSEC-01, G02
    box = nix_boxes(daemons(sandbox=sandbox), ordinary_account)

    told = decision(box)

    assert f"`sandbox` is {sandbox}" in told
    assert "set `sandbox = true`" in told
    plainly = box.sh("nix store ping", flags=("--set", "nix=daemon"))
    assert plainly.returncode == 0
    assert "builders may see files of this machine" in plainly.stderr


def test_showing_runs_and_writes_nothing(watched):
    # proves UX-04
    box, ran = watched

    shown = box.claudebox("--explain", "--json", "--exec", "--", "true")
    dry = box.claudebox("--dry-run", "--exec", "--", "true")

    assert (shown.returncode, dry.returncode) == (0, 0)
    told = json.loads(shown.stdout)
    assert told["nix"]["access"] == "daemon"
    assert any(line.startswith("Nix: the daemon, directly") for line in told["protections"])
    assert ran() == []
    assert not os.path.exists(f"{box.home}/.claudebox")


def test_check_tells_what_to_do(nix_boxes, daemons, ordinary_account):
    # proves UX-05, NIXSEC-01
    trusted = nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)
    untrusted = nix_boxes(daemons(), ordinary_account)

    def finding(box):
        findings = json.loads(box.claudebox("--check", "--json").stdout)["findings"]
        return next(row for row in findings if row["name"] == "Nix")

    told = finding(trusted)
    assert "trusts you: yes, sandbox of builders: true" in told["detail"]
    assert "through a relay" in told["detail"]
    assert "the daemon, directly" in finding(untrusted)["detail"]
    assert "known holes" in finding(untrusted)["remedy"]


def test_a_user_who_became_trusted_without_a_trace_is_asked_about_at_each_launch(daemons, nix_boxes, ordinary_account):
    # proves NIXSEC-01, G01
    box = nix_boxes(daemons(min_free="1005"), ordinary_account)
    assert "directly" in decision(box)
    box.environ |= daemons(trusted=("root", "claudebox-test"), min_free="1005").environ
    assert "through a relay" in decision(box)


def test_a_launch_with_nix_loads_nothing_dear(nix_box):
    # proves NIXSEC-01
    from tests.test_startup import FORBIDDEN, PYTHON, loaded

    assert nix_box.sh("true").returncode == 0

    found = loaded(nix_box, "-y", "--exec", "--", "true")

    assert os.path.exists(PYTHON)
    assert not found & FORBIDDEN
    assert "claudebox.nix.facts" in found
    assert not found & {"claudebox.nix.packages", "claudebox.nix.relay"}


_ACTIVATED = """
import os, socket, sys, time
sys.path.insert(0, {source!r})
from claudebox.nix import facts
assert os.getpid() == 1  # as systemd, it holds the socket and starts the daemon when somebody comes
server = socket.socket(socket.AF_UNIX)
server.bind({path!r})
server.listen()
idle = facts._started({path!r}) - time.time()
child = os.fork()
if not child:
    open("/proc/self/comm", "w").write("nix-daemon")
    time.sleep(60)
time.sleep(1.5)
print(abs(idle) < 0.5, round(time.time() - facts._started({path!r})) in (1, 2))
"""


@pytest.mark.root
def test_a_daemon_that_systemd_starts_is_as_old_as_its_process(nix_box):
    """A configuration that changed after that is not in force, however young or old the socket is."""
    # proves NIXSEC-01, G01
    source = os.path.join(os.path.dirname(os.path.dirname(nix_box.program)), "src")
    directory = nix_box.mkdir(f"{nix_box.base}/activated")
    script = _ACTIVATED.format(source=source, path=f"{directory}/socket")

    words = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "/usr/bin/python3", "-IS", "-c", script)
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    assert result.stdout == "True True\n", result.stderr
