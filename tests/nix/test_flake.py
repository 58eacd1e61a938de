"""flake.nix, flake.lock and package.nix: what can be told of them without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
from tests.conftest import REPOSITORY, need
from tests.nix.conftest import installation
from tests.nix.daemon import SYSTEM

import claudebox

FILES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (
    *REPOSITORY.glob("*.nix"), *REPOSITORY.glob("tests/*.nix"), *REPOSITORY.glob("tests/nix/*/*.nix"),
))  # fmt: skip
SYSTEMS = ("x86_64-linux", "aarch64-linux")
NIXPKGS = os.environ.get("CLAUDEBOX_TEST_NIXPKGS", "")
INDEX = os.environ.get("CLAUDEBOX_TEST_NIX_INDEX_DATABASE", "")


def _called(nixpkgs: str, index: str, source: str) -> str:
    """Return what calls the outputs as Nix does, without copying trees of fifty thousand files into the store."""
    return f"""
      let
        call = tree: inputs:
          let self = (import (tree + "/flake.nix")).outputs (inputs // {{ inherit self; }}) // {{ outPath = tree; }}; in
          self;
        nixpkgs = call "{nixpkgs}" {{ }};
        nix-index-database = call "{index}" {{ inherit nixpkgs; }};
        flake = call "{source}" {{ inherit nixpkgs nix-index-database; }};
      in
    """


@pytest.mark.parametrize("file", FILES)
def test_every_expression_parses(file, tmp_path):
    # proves NIX-01
    parser = installation().program("nix-instantiate")
    (tmp_path / "broken.nix").write_text("{ a = ; }")

    words = [parser, "--store", "dummy://", "--parse"]
    parsed = subprocess.run([*words, REPOSITORY / file], capture_output=True, check=False)
    control = subprocess.run([*words, tmp_path / "broken.nix"], capture_output=True, check=False)

    assert parsed.returncode == 0, parsed.stderr
    assert control.returncode != 0


def test_the_lock_pins_each_input_of_the_flake():
    # proves NIX-02
    flake = (REPOSITORY / "flake.nix").read_text()
    lock = json.loads((REPOSITORY / "flake.lock").read_text())
    nodes = lock["nodes"]
    named = dict(re.findall(r'([\w-]+)(?:\.url| = \{\s*url) = "github:([^"]+)"', flake))

    assert lock["version"] == 7
    assert set(nodes[lock["root"]]["inputs"]) == set(named) == {"nixpkgs", "nix-index-database"}
    for name, address in named.items():
        node = nodes[nodes["root"]["inputs"][name]]
        wanted = "/".join(node["original"][part] for part in ("owner", "repo", "ref") if part in node["original"])
        locked = node["locked"]
        assert wanted == address
        assert (locked["owner"], locked["repo"]) == (node["original"]["owner"], node["original"]["repo"])
        assert re.fullmatch(r"[0-9a-f]{40}", locked["rev"])
        assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", locked["narHash"])
    assert nodes["nix-index-database"]["inputs"] == {"nixpkgs": ["nixpkgs"]}, "two nixpkgs would not fit each other"


def test_nix_reads_the_lock_as_it_stands(daemons, standin):
    """A lock that Nix had to change would be fetched anew, which fails here."""
    # proves NIX-02
    shown = daemons().run("flake", "metadata", "--json", f"path:{standin.source}").stdout

    assert json.loads(shown)["locks"] == json.loads((REPOSITORY / "flake.lock").read_text())


def test_the_whole_flake_evaluates_for_both_systems(standin):
    # proves NIX-01
    standin.flake("flake check", "--no-build", "--all-systems", f"path:{standin.source}")

    shown = json.loads(standin.flake("flake show", "--json", "--all-systems", f"path:{standin.source}").stdout)
    for system in SYSTEMS:
        assert set(shown["packages"][system]) == {"default", "claudebox", "claudebox-full"}
        assert shown["packages"][system]["default"]["name"].startswith("claudebox-")
        assert set(shown["checks"][system]) == {"claudebox", "tests"}
        assert "default" in shown["devShells"][system]
    assert "default" in shown["overlays"]


def test_the_platform_decides_about_the_loader(standin):
    # proves SAND-06
    for system, place in ("x86_64-linux", "/lib64/ld-linux-x86-64.so.2"), (
        "aarch64-linux", "/lib/ld-linux-aarch64.so.1",
    ):  # fmt: skip
        told = standin.flake("eval", "--raw", f"path:{standin.source}#packages.{system}.default.bakedValues").stdout
        assert f'LOADER = ("{place}", ' in told


def test_a_constant_that_the_program_does_not_know_stops_the_build(standin, tmp_path):
    shutil.copytree(standin.source, tmp_path / "source")
    file = tmp_path / "source/src/claudebox/build_paths.py"
    file.write_text(file.read_text().replace("LOADER:", "LINKER:"))

    result = standin.flake("build", "--no-link", f"path:{tmp_path}/source", check=False)

    assert result.returncode != 0
    assert "build_paths.py has no LOADER" in result.stderr


def test_only_the_client_is_allowed_to_be_unfree(standin):
    # proves NIX-03
    expression = (
        _called(standin.nixpkgs, standin.index, standin.source)
        + f"""
      (import {standin.nixpkgs} {{ overlays = [ flake.overlays.default ]; }}).claudebox-full.outPath
    """
    )
    refused = standin.daemon.run("eval", "--impure", "--expr", expression, check=False)
    chosen = standin.flake("eval", "--raw", f"path:{standin.source}#claudebox-full.outPath").stdout

    assert refused.returncode != 0
    assert "has an unfree license" in refused.stderr
    assert chosen.endswith(f"-claudebox-full-{claudebox.__version__}")


@pytest.mark.slow
def test_its_check_runs_tests_in_the_sandbox_of_a_build(standin):
    """Some of them, for time: those that start programs, which a build has at other places than a machine."""
    # proves NIX-01
    expression = (
        _called(standin.nixpkgs, standin.index, standin.source)
        + f"""
      flake.checks.{SYSTEM}.tests.override {{ selection = "tests/plan/test_explain.py tests/base"; }}
    """
    )
    built = standin.daemon.run("build", "--impure", "--no-link", "--print-build-logs", "--expr", expression)

    assert re.search(r" [0-9]+ passed", built.stderr)


def test_it_evaluates_with_a_real_nixpkgs(daemons, standin):
    """Give a tree of nixpkgs, and one of nix-index-database, by environment variables."""
    # proves NIX-01
    if not NIXPKGS:
        pytest.skip("CLAUDEBOX_TEST_NIXPKGS names no tree of nixpkgs")
    need(os.path.exists(f"{NIXPKGS}/flake.nix"), f"nixpkgs at {NIXPKGS}")
    expression = (
        _called(NIXPKGS, INDEX or standin.index, standin.source)
        + f"""
      map (system: [
        flake.packages.${{system}}.default.drvPath
        flake.packages.${{system}}.claudebox-full.drvPath
        flake.checks.${{system}}.tests.drvPath
        flake.devShells.${{system}}.default.drvPath
      ]) [ {" ".join(f'"{system}"' for system in SYSTEMS)} ]
    """
    )
    shown = json.loads(daemons().run("eval", "--impure", "--json", "--expr", expression).stdout)

    assert len(shown) == len(SYSTEMS)
    assert len({path for row in shown for path in row}) == 4 * len(SYSTEMS)
    assert [row[0].split("-", 1)[1] for row in shown] == [f"claudebox-{claudebox.__version__}.drv"] * 2
