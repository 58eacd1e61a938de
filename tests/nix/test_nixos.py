"""Nix inside where the whole machine is a store, by the package that the flake builds."""

from __future__ import annotations

import json
import os

import pytest
from tests.nix import probes
from tests.nix.conftest import MachineBox
from tests.nix.machine import Machine


def test_everything_of_nix_works_without_usr(nixos_box):
    # proves TOOL-01, TOOL-02, TOOL-03, NIX-03, SAND-07
    source = f"path:{nixos_box.daemon.source}"
    script = f"""
      set -e
      nix store info --json
      nix build {source}#first && result/bin/tool
      nix shell {source}#hello -c hello shell
      out=$(nix --extra-experimental-features "nix-command flakes" build --print-out-paths --no-link {source}#hello.out)
      $out/bin/hello comma
      printf 'a.out\\nb.out\\n' | $COMMA_PICKER
      nix flake metadata --json nixpkgs
      ls $NIX_INDEX_DATABASE
      nix-instantiate --find-file nixpkgs
    """

    result = nixos_box.sh(script)

    assert result.returncode == 0, result.stderr
    told, *lines = result.stdout.splitlines()
    # Root is trusted, and speaks to a relay; whoever is not speaks to the daemon.
    assert json.loads(told)["trusted"] in (0, False)
    assert ("through a relay" in result.stderr) == (nixos_box.account.uid == 0)
    assert lines[:4] == ["first", "Hello, shell!", "Hello, comma!", "a.out"]
    nixpkgs = json.loads(lines[4])["path"]
    assert nixpkgs.startswith("/nix/store/")
    assert lines[5:] == ["files", lines[-1]]
    assert lines[-1].startswith("/nix/store/")
    assert os.path.exists(nixos_box.daemon.real(os.readlink(f"{nixos_box.project}/result")))


def test_a_dev_shell_is_made_by_the_newer_nix(nixos_box):
    # proves PKG-01
    nixos_box.write("shell.nix", f'(builtins.getFlake "path:{nixos_box.daemon.source}").devShells.x86_64-linux.default')

    result = nixos_box.sh(
        'hello "$FROM_SHELL $HOOK"; echo $SHELL',
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout == "Hello, a value with blanks ran!\n/bin/bash\n", result.stderr


def test_packages_come_from_the_set_that_was_baked_in(nixos_box):
    # proves PKG-01, NIX-03
    result = nixos_box.sh("true", flags=("--package", "nosuch"))
    chosen = nixos_box.sh(
        "hello; echo $PATH", flags=("--set", f"nixpkgs=path:{nixos_box.daemon.source}", "--package", "hello")
    )

    assert result.returncode == 125
    assert "package `nosuch`" in result.stderr
    assert "path:/nix/store/" in result.stderr
    hello, path = chosen.stdout.splitlines()
    assert hello == "Hello, world!", chosen.stderr
    assert [entry for entry in path.split(":") if not entry.startswith(("/nix/store/", "/run/claudebox/"))] == []


@pytest.fixture(scope="module")
def careless(daemons):
    """Return a machine with /usr and a daemon whose builders have no sandbox, and which trusts the ordinary user."""
    daemon = daemons(trusted=("root", "claudebox-test"), sandbox="false", min_free="1004")
    machine = Machine(daemon)
    daemon.machine = machine
    daemon.restart()
    yield machine
    daemon.stop()
    daemon.machine = None
    machine.remove()


def test_builds_through_a_relay_have_a_sandbox_whatever_the_daemon_is_like(careless, nix_boxes, ordinary_account):
    # proves G02, NIXSEC-01
    made = nix_boxes(careless.daemon, ordinary_account)
    box = MachineBox(**{**vars(made), "machine": careless})
    secret = box.write(f"{box.home}/secret", "of the host", mode=0o644)

    outside = box.host(*probes.read_host_file(box, box.daemon, secret))
    inside = box.run(*probes.read_host_file(box, box.daemon, secret))
    harmless = box.run(*probes.build(box, box.daemon, "echo built > $out"))

    assert outside.returncode == 0, outside.stderr  # the positive control
    assert inside.returncode != 0
    assert "No such file or directory" in inside.stderr
    assert harmless.returncode == 0, harmless.stderr
    assert "through a relay" in inside.stderr, "named at the first launch; the second has nothing new"
