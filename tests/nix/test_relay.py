"""The relay: a trusted user's sandbox is not trusted, and nothing of the relay outlives it."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.nix import probes
from tests.nix.conftest import ROOT, installation


@pytest.fixture(params=["root", "user"])
def relay_box(request, nix_boxes, daemons, ordinary_account):
    """Return a box of somebody whom the daemon trusts."""
    account = ROOT if request.param == "root" else ordinary_account
    return nix_boxes(daemons(trusted=("root", "claudebox-test")), account)


def relays(box, *, inner: bool = False) -> list[int]:
    """Return the processes of relays to the daemon of this box, or only those in the sandbox of one."""
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        try:
            words = Path(path, "cmdline").read_bytes().split(b"\0")
            environ = Path(path, "environ").read_bytes()
            name = Path(path, "comm").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if b"--force-untrusted" in words and box.daemon.base.encode() in environ and not (inner and name == "bwrap\n"):
            found.append(int(os.path.basename(path)))
    return found


def directory(box) -> str:
    """Return the directory of the socket of a relay that runs."""
    environ = Path(f"/proc/{relays(box)[0]}/environ").read_bytes().split(b"\0")
    path = next(row for row in environ if row.startswith(b"NIX_DAEMON_SOCKET_PATH=")).partition(b"=")[2].decode()
    assert os.path.exists(path)
    return os.path.dirname(path)


def started(box, script: str, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [box.program, "-y", *flags, "--exec", "--", "sh", "-c", script], cwd=box.project, env=box.variables(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **box.account.demotion,
    )  # fmt: skip


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def until(condition, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_trusted_user_is_not_trusted_inside_and_can_build(relay_box):
    # proves NIXSEC-01, G01
    newer = installation()
    argv, witness = probes.post_build_hook(relay_box, relay_box.daemon)
    control, seen = probes.post_build_hook(relay_box, relay_box.daemon)
    assert relay_box.host(*control).returncode == 0
    assert probes.owner(seen) == 0  # on the host the same user has it run as root

    result = relay_box.run(*argv)
    told = relay_box.sh(
        f"{newer.program()} store info --json; ls -ld /nix/var/nix/daemon-socket; "
        f"nix run path:{relay_box.daemon.source}#hello",
        flags=newer.mounted,
    )

    assert result.returncode == 0, result.stderr
    assert "/nix/store/" in result.stdout
    assert not os.path.exists(witness)
    document, directory, hello = told.stdout.splitlines()
    assert (json.loads(document)["trusted"], hello) == (0, "Hello, world!")
    assert directory.startswith("drwx------")
    assert "through a relay that is never trusted: it trusts you" in result.stderr  # the first launch says it


def test_root_by_way_of_the_builders_group_is_not_to_be_had(relay_box):
    # proves G01
    argv = probes.build(relay_box, relay_box.daemon, "$b id -u > $out")
    options = ("--option", "sandbox", "false", "--option", "build-users-group", "")

    result = relay_box.run(*argv, *options)

    assert result.returncode == 0, result.stderr
    assert result.stderr.count("you are not a trusted user") >= 1


def test_what_the_person_configured_for_themselves_does_not_reach_the_daemon(nix_boxes, daemons, ordinary_account):
    # proves G01
    box = nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)
    witness = f"{box.project}/witness"
    hook = box.write("hook.sh", f"#!/bin/sh\nid -u > {witness}\n", mode=0o755)
    box.write(f"{box.home}/.config/nix/nix.conf", f"post-build-hook = {hook}\n")
    argv = probes.build(box, box.daemon, "$b touch $out")

    result = box.run(*argv)

    assert result.returncode == 0, result.stderr
    assert not os.path.exists(witness)
    # The positive control: with the same configuration the user's own builds run it as root.
    again = probes.build(box, box.daemon, "$b touch $out")
    assert box.host(*again).returncode == 0
    assert probes.owner(witness) == 0


def test_nothing_of_a_relay_is_left(relay_box):
    # proves SAND-15
    with started(relay_box, "nix store ping; echo up; read line") as process:
        assert heard(process) == "up\n"
        made = directory(relay_box)
        process.communicate(timeout=20)

    assert until(lambda: not relays(relay_box))
    assert not os.path.exists(made)


def test_a_relay_ends_with_a_launcher_that_is_killed(relay_box):
    # proves SAND-15, E15
    # A client in the middle of a build holds a connection open.
    slow = f"nix build --no-link path:{relay_box.daemon.source}#slow & echo up; read line"
    with started(relay_box, slow) as process:
        assert heard(process) == "up\n"
        left = directory(relay_box)
        time.sleep(0.5)
        process.kill()
        process.wait(20)

    assert until(lambda: not relays(relay_box))
    # What it could not remove goes with the next one.
    os.utime(left, (1, 1))
    assert relay_box.sh("true").returncode == 0
    assert not os.path.exists(left)


def test_a_relay_sees_neither_the_home_nor_a_network_and_has_no_rights(relay_box):
    # proves G01
    relay_box.write(f"{relay_box.home}/secret", "of the home")
    with started(relay_box, "echo up; read line") as process:
        assert heard(process) == "up\n"
        made = directory(relay_box)
        inner = min(relays(relay_box, inner=True))  # the others are its children, one per connection
        status = Path(f"/proc/{inner}/status").read_text()
        environ = Path(f"/proc/{inner}/environ").read_bytes()
        namespaces = {name: os.readlink(f"/proc/{inner}/ns/{name}") for name in ("net", "pid", "mnt")}
        home = [path for path in (f"{relay_box.home}/secret", "/run/lock", "/tmp/.X11-unix", relay_box.project)
                if os.path.exists(f"/proc/{inner}/root{path}")]  # fmt: skip
        store = os.path.exists(f"/proc/{inner}/root{relay_box.daemon.real('/nix/store')}")
        others = os.listdir(f"/proc/{inner}/root/run"), os.listdir(f"/proc/{inner}/root/tmp")
        process.send_signal(signal.SIGTERM)
        process.wait(20)

    assert "CapEff:\t0000000000000000" in status
    assert relay_box.home.encode() not in environ
    assert all(os.readlink(f"/proc/self/ns/{name}") != found for name, found in namespaces.items())
    assert (home, store) == ([], True)
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    own = {os.path.basename(place) for place in (relay_box.base, relay_box.daemon.base, made)}
    assert {*others[0], *others[1]} - own <= {"user"}  # where the directory of its socket may be


def test_a_relay_that_does_not_start_stops_the_launch(nix_boxes, daemons, ordinary_account, baked_checkout):
    # proves NIXSEC-01, E08
    box = nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)
    real = box.daemon.nix.program()
    script = '#!/bin/sh\ncase " $* " in *" --force-untrusted "*) echo "error: no relay today" >&2; exit 1;; esac\n'
    wrapper = box.write(f"{box.base}/bin/nix", f'{script}exec {real} "$@"\n', mode=0o755)
    box.program = f"{baked_checkout({'nix': wrapper})}/bin/claudebox"

    result = box.sh("echo inside")

    assert (result.returncode, result.stdout) == (125, "")
    assert "the relay to the Nix daemon did not start: error: no relay today" in result.stderr


def test_a_relay_that_trusts_stops_the_launch(nix_boxes, daemons, ordinary_account, baked_checkout):
    # proves NIXSEC-01, G01, E08
    box = nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)
    real = box.daemon.nix.program()
    script = (
        '#!/bin/sh\ncase " $* " in *" --force-untrusted "*)\n'
        f"  exec {real} daemon --force-trusted --extra-experimental-features 'nix-command daemon-trust-override';; "
        "esac\n"
    )
    wrapper = box.write(f"{box.base}/bin/nix", f'{script}exec {real} "$@"\n', mode=0o755)
    box.program = f"{baked_checkout({'nix': wrapper})}/bin/claudebox"

    result = box.sh("echo inside")

    assert (result.returncode, result.stdout) == (125, "")
    assert "does not say that it trusts nobody: yes" in result.stderr


def test_the_end_of_a_relay_is_told_and_the_sandbox_goes_on(relay_box):
    with started(relay_box, "echo up; read line; nix store ping; echo over") as process:
        assert heard(process) == "up\n"
        for number in relays(relay_box):
            with contextlib.suppress(ProcessLookupError):  # one ends with the other
                os.kill(number, signal.SIGKILL)
        output, errors = process.communicate("\n", timeout=20)

    assert output == "over\n"
    assert "cannot connect to socket" in errors or "Connection reset by peer" in errors
    assert "the relay to the Nix daemon ended during the session" in errors
