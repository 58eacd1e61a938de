"""Nix inside a sandbox: the daemon's store appears live, tools come on demand, the host's configuration stays out."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from tests.nix import probes
from tests.nix.conftest import ROOT, installation
from tests.nix.daemon import TOKEN

FEATURES = "--extra-experimental-features 'nix-command flakes'"


def test_building_running_and_shells_work_and_new_paths_appear_at_once(nix_box):
    # proves SAND-06, SAND-07, TOOL-02, TOOL-03
    source = f"path:{nix_box.daemon.source}"
    nix_box.write("default.nix", f'(builtins.getFlake "{source}").packages.${{builtins.currentSystem}}.second')
    script = f"""
      set -e
      ls /nix/store | wc -l
      nix build {source}#first && result/bin/tool
      ls /nix/store | wc -l
      nix shell {source}#hello -c hello shell
      nix run {source}#hello run
      $(nix-build --no-out-link)/bin/tool
      nix-store -q --references result | grep -q seed && echo asked
      touch /nix/store/x 2>&1 || true
    """

    result = nix_box.sh(script)

    assert result.returncode == 0, result.stderr
    before, first, after, *lines = result.stdout.splitlines()
    assert (first, int(after) > int(before)) == ("first", True)
    assert lines[:4] == ["Hello, shell!", "Hello, run!", "second", "asked"]
    assert "Read-only file system" in lines[4]
    # What was built inside is on the host, and the link in the project keeps it there.
    built = os.readlink(f"{nix_box.project}/result")
    assert os.path.exists(nix_box.daemon.real(built))
    roots = nix_box.daemon.client("nix-store", "--gc", "--print-roots").stdout
    assert f"{nix_box.project}/result -> {built}" in roots


def test_root_can_use_the_daemon_too_if_he_says_so(daemons, nix_boxes):
    # proves SAND-07
    box = nix_boxes(daemons(), ROOT)

    result = box.sh(f"nix run path:{box.daemon.source}#hello", flags=("--set", "nix=daemon"))

    assert result.stdout == "Hello, world!\n", result.stderr
    assert "can become root on this machine" in result.stderr


def test_nothing_of_the_hosts_configuration_of_nix_is_inside(nix_box):
    # proves G05, NIXSEC-01
    secret = TOKEN.partition("=")[2]
    control = nix_box.host("grep", "-c", secret, f"{nix_box.daemon.base}/etc/nix.conf")
    own = nix_box.write(f"{nix_box.home}/.config/nix/nix.conf", f"access-tokens = {TOKEN}\n")
    nix_box.write(f"{nix_box.home}/.cache/nix/eval", secret)
    nix_box.write(f"{nix_box.home}/.local/share/nix/trusted-settings.json", secret)

    result = nix_box.sh(
        f"cat {own} {nix_box.daemon.base}/etc/nix.conf; env; nix show-config 2>/dev/null; "
        "ls -A ~/.cache/nix ~/.local /etc/nix; grep -rs CanaryOfTheHosts ~ /etc /nix/var /run; ls -A /nix/var/nix",
        env={"NIX_CONFIG": f"access-tokens = {TOKEN}"},
    )

    assert control.stdout == "1\n"
    assert secret not in result.stdout
    assert "experimental-features = nix-command flakes" in result.stdout
    assert "eval" not in result.stdout.splitlines()
    assert result.stdout.endswith("\ndaemon-socket\n")


def test_a_cache_of_nix_is_kept_for_the_project_alone(nix_box):
    # proves INST-01
    assert nix_box.sh("mkdir -p ~/.cache/nix; touch ~/.cache/nix/kept").returncode == 0

    assert nix_box.sh("ls ~/.cache/nix").stdout == "kept\n"
    assert not os.path.exists(f"{nix_box.home}/.cache")


def test_a_daemon_that_starts_anew_is_reached_again(daemons, nix_boxes, ordinary_account):
    # proves SAND-07
    daemon = daemons(ordinary_account, trusted=("nobody",))
    box = nix_boxes(daemon, ordinary_account)
    script = "nix store ping || exit 1; touch asked; while [ ! -e again ]; do sleep 0.02; done; nix store ping"
    with subprocess.Popen(
        [box.program, "-y", "--set", "nix=daemon", "--exec", "--", "sh", "-c", script], cwd=box.project,
        env=box.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **box.account.demotion,
    ) as process:  # fmt: skip
        end = time.monotonic() + 30
        while not os.path.exists(f"{box.project}/asked"):
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        daemon.restart()
        box.write("again")
        output, errors = process.communicate(timeout=30)

    assert process.returncode == 0, errors
    assert (output + errors).count("Version: ") == 2


@pytest.mark.parametrize("tier", ["none", "inet"])
def test_a_build_whose_result_is_known_cannot_bring_the_network_back(nix_box, listener, tier, open_tunnel):
    # proves NIXSEC-01, G03
    known = probes.fixed_output(nix_box, nix_box.daemon, listener, "by-a-builder")
    fetched = probes.fetch(nix_box, listener, "by-the-daemon")

    refused = [nix_box.run(*argv, flags=("--network", tier)) for argv in (known, fetched)]
    for result in refused:
        assert result.returncode != 0
        assert "daemon-socket" in result.stderr
    assert "host's network back" in refused[0].stderr  # the audit says why, where it is news
    assert refused[1].stderr.startswith("claudebox: ")

    assert listener.seen == []
    # The same is possible where the user says so, and where the network is the host's anyway.
    assert nix_box.run(*known, flags=("--network", tier, "--set", "nix=daemon")).returncode == 0
    assert nix_box.run(*fetched).returncode == 0
    assert listener.seen == ["/by-a-builder", "/by-the-daemon"]


def test_off_means_that_there_is_no_socket_and_that_nix_says_so(nix_box):
    # proves NIXSEC-01
    result = nix_box.sh("ls /nix/var/nix; ls /nix/store | wc -l; nix store ping", flags=("--set", "nix=off"))

    assert result.stdout == f"{len(os.listdir(nix_box.daemon.real('/nix/store'))) - 1}\n"  # without .links
    assert "cannot connect to socket at '/nix/var/nix/daemon-socket/socket'" in result.stderr


def test_a_store_that_somebody_has_without_a_daemon_is_only_read(daemons, nix_boxes, ordinary_account):
    # proves NIXSEC-01, SAND-06
    daemon = daemons(ordinary_account)
    box = nix_boxes(daemon, ordinary_account)
    hello = daemon.build("hello")
    alone = {"NIX_REMOTE": f"local?root={daemon.base}/root"}

    result = box.sh(f"{hello}/bin/hello; ls /nix/var/nix", env=alone)
    refused = box.sh("true", flags=("--set", "nix=relay"), env=alone)

    assert result.stdout == "Hello, world!\n", result.stderr
    assert "single-user" in result.stderr
    assert (refused.returncode, "single-user" in refused.stderr) == (125, True)


def test_the_commands_of_comma_work(daemons, nix_boxes, ordinary_account):
    # proves TOOL-01, D-02
    daemon = daemons()
    newer = installation().program()
    box = nix_boxes(daemon, ordinary_account, NIXPKGS=f"path:{daemon.source}", NIX_INDEX_DATABASE="/nix/store/x-index")
    script = f"""
      set -e
      printf 'hello.out\\nother.out\\n' | "$COMMA_PICKER"
      out=$({newer} {FEATURES} build --print-out-paths --no-link nixpkgs#hello.out)
      exec 3<&0 </dev/null
      $out/bin/hello comma
      {newer} {FEATURES} shell nixpkgs#hello --command hello shell
      {newer} {FEATURES} build --print-out-paths --no-link -f '<nixpkgs>' hello.out
      echo $NIX_INDEX_DATABASE
    """

    result = box.sh(script, flags=daemon.nix.mounted)

    assert result.returncode == 0, result.stderr
    hello = daemon.build("hello")
    assert result.stdout.splitlines() == [
        "hello.out", "Hello, comma!", "Hello, shell!", hello, "/nix/store/x-index",
    ]  # fmt: skip
