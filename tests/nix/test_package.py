"""The package that flake.nix makes: built by a real daemon, looked at, and run from the store."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import stat

import pytest
from tests.conftest import need
from tests.nix.conftest import MachineBox
from tests.support.client import real_client as real_client  # noqa: PLC0414 - a fixture of theirs

import claudebox

STORE = re.compile(r"/nix/store/[a-z0-9]{32}-[^/]+")
# PATH inside, by what each directory must offer; the rest is what a shell script cannot do without.
OFFERED = ("ls", "git", "curl", "jq", "nix", "bash", "grep", "sed", "awk", "find", "tar", "gzip", "less")


@pytest.fixture(scope="session")
def built(standin):
    """Return the package on the host, and its constants."""
    place = standin.daemon.real(standin.package("claudebox"))
    return place, runpy.run_path(f"{place}/lib/claudebox/claudebox/build_paths.py")


@pytest.fixture
def full_box(nixos_box, standin):
    """Return the box with the package that brings a client."""
    return MachineBox(**{**vars(nixos_box), "program": f"{standin.package('claudebox-full')}/bin/claudebox"})


def test_the_command_is_one_script_with_an_isolated_interpreter(built):
    # proves NIX-01
    place, _ = built
    with open(f"{place}/bin/claudebox", encoding="utf-8") as file:
        first = file.readline()

    assert re.fullmatch(rf"#!{STORE.pattern}/bin/python3\.\d+ -IS\n", first)
    assert os.listdir(f"{place}/bin") == ["claudebox"], "there is no wrapper"


def test_the_package_holds_manual_completions_and_bytecode(built):
    # proves NIX-01
    place, _ = built

    for name in ("man/man1/claudebox.1", "bash-completion/completions/claudebox", "zsh/site-functions/_claudebox",
                 "fish/vendor_completions.d/claudebox.fish"):  # fmt: skip
        assert os.path.getsize(f"{place}/share/{name}") > 300
    modules = [name for name in os.listdir(f"{place}/lib/claudebox/claudebox") if name.endswith(".py")]
    assert {name[:-3] for name in modules} == {
        name.partition(".")[0] for name in os.listdir(f"{place}/lib/claudebox/claudebox/__pycache__")
    }
    assert not [name for _, names, files in os.walk(place) for name in (*names, *files) if name.startswith(".")]
    assert stat.S_IMODE(os.stat(f"{place}/bin/claudebox").st_mode) == 0o555


def test_every_path_that_was_written_down_exists_and_is_kept(built, standin):
    """What the text names is a reference of the package, so that no garbage collection takes it away."""
    # proves NIX-03, SAND-10
    _, baked = built
    paths = [*baked["TOOLS"].values(), *baked["STORE_PATH"], *baked["LIBRARIES"], baked["LOADER"][1]]
    paths += [baked["NIXPKGS"].removeprefix("path:"), baked["NIX_INDEX_DATABASE"]]
    listed = standin.daemon.client("nix-store", "--query", "--references", standin.package("claudebox")).stdout.split()

    assert len(paths) > 20
    for path in paths:
        assert "/".join(path.split("/")[:4]) in listed
        if os.path.basename(path) not in ("node", ","):  # there is nothing on this machine that could stand in for them
            assert os.path.lexists(standin.daemon.real(path)), path
    assert isinstance(baked["STORE_PATH"], tuple)
    assert isinstance(baked["LOADER"], tuple)
    assert not [path for path in listed if "claude-code" in path]


def test_the_broker_finds_its_libraries_in_the_store(nixos_box, built):
    # proves NIX-03
    need(importlib.util.find_spec("cryptography"), "cryptography")
    _, baked = built
    program = "from cryptography import x509; print(x509.__file__)"

    control = nixos_box.host("python3", "-IS", "-c", program)
    result = nixos_box.host("python3", "-IS", "-c", f"import sys; sys.path += {baked['LIBRARIES']!r}; {program}")

    assert "ModuleNotFoundError" in control.stderr
    assert len(result.stdout.splitlines()) == 1, result.stderr
    assert all(STORE.match(line) for line in result.stdout.splitlines())


def test_it_is_found_without_a_path_and_without_python_of_the_person(nixos_box):
    # proves NIX-03, E03
    hostile = dict.fromkeys(("PYTHONPATH", "NIX_PYTHONPATH", "PYTHONHOME"), nixos_box.project)
    for name in ("os", "sitecustomize", "claudebox"):
        nixos_box.write(f"{name}.py", "raise SystemExit(99)")

    shown = nixos_box.claudebox("--version", env={"PATH": "", **hostile})
    inside = nixos_box.run("sh", "-c", "exit 7", env={"PATH": "", **hostile})

    assert shown.stdout == f"claudebox {claudebox.__version__}\n", shown.stderr
    assert inside.returncode == 7, inside.stderr


def test_inside_everything_comes_from_the_store(nixos_box):
    # proves SAND-06, SAND-10
    script = f"""
      echo "$PATH"
      for name in {" ".join(OFFERED)}; do command -v $name || echo "no $name"; done
      for file in /bin/sh /bin/bash /usr/bin/env; do readlink -f $file; done
      touch /nix/store/new 2>&1
      ls /usr
    """
    result = nixos_box.sh(script)

    path, *rest = result.stdout.splitlines()
    tools, links = rest[: len(OFFERED)], rest[len(OFFERED) : len(OFFERED) + 3]
    own, *entries = path.split(":")
    assert own == "/run/claudebox/bin", result.stderr
    assert [entry for entry in entries if not STORE.match(entry)] == []
    assert [tool for tool in tools if not STORE.match(tool)] == []
    assert len(links) == 3
    assert [link for link in links if not STORE.match(link)] == []
    assert "Read-only file system" in rest[-2]
    assert rest[-1] == "bin"


def test_an_unpatched_program_finds_its_loader_inside(nixos_box, relocated):
    """On the machine itself it does not: that is what the link to the loader is for.

    The loader of nixpkgs knows its own libraries; Debian's, which stands in for it, has to be told.
    """
    # proves SAND-06
    program = f"{nixos_box.project}/unpatched"
    shutil.copy("/usr/bin/true", program)
    libraries = {"LD_LIBRARY_PATH": f"{relocated['glibc']}/lib"}

    outside = nixos_box.host(program, env=libraries)
    inside = nixos_box.run("env", f"LD_LIBRARY_PATH={libraries['LD_LIBRARY_PATH']}", program)

    assert outside.returncode != 0
    assert inside.returncode == 0, inside.stderr


def test_the_full_package_brings_its_client(full_box, nixos_box):
    # proves NIX-01
    without = nixos_box.claudebox("-y", "-p", "hello")
    brought = full_box.claudebox("-y", "-p", "hello")

    assert without.returncode == 127
    assert "`claude` was not found" in without.stderr
    assert brought.stdout == "bundled client\n", brought.stderr


def test_it_can_be_run_and_installed_by_nix(nixos_box, standin):
    # proves NIX-01
    profile = f"{nixos_box.home}/profile"
    remote = {"NIX_REMOTE": "daemon"}
    flake = (*standin.inputs, f"path:{standin.source}")

    ran = nixos_box.host("nix", "run", *flake, "--", "--version", env=remote)
    installed = nixos_box.host("nix", "profile", "install", "--profile", profile, *flake, env=remote)
    started = nixos_box.host(f"{profile}/bin/claudebox", "-y", "--exec", "--", "sh", "-c", "exit 7")

    assert ran.stdout == f"claudebox {claudebox.__version__}\n", ran.stderr
    assert installed.returncode == 0, installed.stderr
    assert started.returncode == 7, started.stderr


def test_the_client_of_an_installer_runs_inside_where_the_machine_cannot_run_it(nixos_box, relocated, real_client):
    """The loader of nixpkgs knows where its libraries are; Debian's, which stands in for it, has to be told."""
    # proves SAND-06, NIX-03
    client = f"{nixos_box.mkdir(f'{nixos_box.home}/.local/bin')}/claude"
    try:
        os.link(real_client, client)
    except OSError:
        shutil.copy(real_client, client)
    libraries = {"LD_LIBRARY_PATH": f"{relocated['glibc']}/lib"}

    outside = nixos_box.host(client, "--version", env=libraries)
    inside = nixos_box.claudebox("-y", "--env", "LD_LIBRARY_PATH", "--", "--version", env=libraries)

    assert "No such file or directory" in outside.stderr, "the loader is missing, not the file"
    assert inside.stdout.endswith("(Claude Code)\n"), inside.stderr


def test_every_promise_holds_on_a_machine_without_usr(nixos_box):
    # proves SAND-06, NIXSEC-01
    result = nixos_box.claudebox("--verify")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout
    assert "held          the Nix daemon is reachable only where the plan says so" in result.stdout
