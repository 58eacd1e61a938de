"""Every way in which people have the client installed."""

from __future__ import annotations

import os
import time

import pytest
from tests.support.installations import ELF, MACHINE, elf

from claudebox import build_paths
from claudebox.agent import facts as agent_facts

PLATFORM = {"x86_64": "x64", "aarch64": "arm64"}


def test_a_binary_on_the_path_is_found(tree):
    found = tree.write("bin/claude", elf())

    assert tree.find() == agent_facts.Client(found, found)


def test_the_native_installer_is_found_behind_its_link_and_off_the_path(tree):
    real = tree.write("home/.local/share/claude/versions/2.1.325", elf())
    found = tree.link("home/.local/bin/claude", real)

    assert tree.find() == agent_facts.Client(found, real, (2, 1, 325))


def test_a_global_package_of_npm_is_found_behind_its_link(tree):
    real = tree.write("lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe", elf())
    found = tree.link("bin/claude", "../lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe")

    assert tree.find() == agent_facts.Client(found, real)


STUB = b'echo "Error: claude native binary not installed." >&2\nexit 1\n'


@pytest.mark.parametrize("suffix", ["", "-musl"])
@pytest.mark.parametrize(
    "scope",
    [
        "lib/node_modules/@anthropic-ai",
        "lib/node_modules/@anthropic-ai/claude-code/node_modules/@anthropic-ai",
    ],
)
def test_the_stub_of_npm_leads_to_the_package_of_this_machine_beside_it(tree, scope, suffix):
    tree.write("lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe", STUB)
    found = tree.link("bin/claude", "../lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe")
    assert "is not a program" in tree.refused().message

    real = tree.write(f"{scope}/claude-code-linux-{PLATFORM[MACHINE]}{suffix}/claude", elf())
    assert tree.find() == agent_facts.Client(found, real)


PACKAGE = "lib/node_modules/@anthropic-ai/claude-code"
MANIFEST = '{{"name": "@anthropic-ai/claude-code", "version": "{}"}}'


def test_a_package_that_runs_on_node_is_too_old(tree):
    # proves HOST-11
    tree.write(f"{PACKAGE}/cli.js", b"#!/usr/bin/env node\n// (c)\n")
    tree.link("bin/claude", f"../{PACKAGE}/cli.js")
    tree.write("system/node", elf())
    assert "is a version that runs on Node, and claudebox needs 2.1.113 or newer" in tree.refused().message

    tree.write(f"{PACKAGE}/package.json", MANIFEST.format("2.1.112").encode())
    error = tree.refused()
    assert "is version 2.1.112, and claudebox needs 2.1.113 or newer" in error.message
    assert "npm install -g" in error.hint
    assert error.status == 126

    found = tree.write("home/.local/bin/claude", elf())
    assert tree.find().path == found  # a newer one elsewhere is taken


@pytest.mark.parametrize(
    ("place", "manifest", "version"),
    [
        (f"{PACKAGE}/bin/claude.exe", f"{PACKAGE}/package.json", (2, 1, 250)),
        ("lib/node_modules/@anthropic-ai/claude-code-linux-x64/claude",
         "lib/node_modules/@anthropic-ai/claude-code-linux-x64/package.json", (2, 1, 250)),
        ("home/.local/share/claude/versions/2.1.250", "", (2, 1, 250)),
        ("store/k7x-claude-code-2.1.250/bin/claude", "", (2, 1, 250)),
        ("store/k7x-claude-code-2.1.250/bin/.claude-wrapped", "", (2, 1, 250)),
        ("opt/claude", "", ()),
        ("home/1.2/claude", "", ()),
        ("home/1.2.x/claude", "", ()),
        ("home/.asdf/installs/nodejs/20.11.1/lib/claude", "", ()),
        ("home/.local/share/mise/installs/claude-code/2.1.250/claude", "", (2, 1, 250)),
    ],
)  # fmt: skip
def test_the_version_is_read_beside_the_program(tree, place, manifest, version):
    # proves HOST-11, NEW-R10
    real = tree.write(place, elf())
    tree.link("bin/claude", real)
    if manifest:
        tree.write(manifest, MANIFEST.format("2.1.250").encode())
        other = os.path.dirname(os.path.dirname(os.path.join(tree.base, place)))
        tree.write(f"{os.path.relpath(other, tree.base)}/other/package.json", b'{"version": "1.0.0"}')

    assert tree.find().version == version


@pytest.mark.parametrize("place", ["versions/2.1.112", "versions/1.0.128", "versions/0.2.9"])
def test_an_old_program_is_refused_wherever_its_version_stands(tree, place):
    # proves HOST-11
    tree.link("bin/claude", tree.write(f"home/.local/share/claude/{place}", elf()))

    error = tree.refused()
    assert "and claudebox needs 2.1.113 or newer" in error.message
    assert error.status == 126


@pytest.mark.parametrize(
    "content", [b'"@anthropic-ai/claude-code" "version"', b'"@anthropic-ai/claude-code" "version": "x"', b"{"]
)
def test_a_manifest_that_says_nothing_is_no_obstacle(tree, content):
    real = tree.write(f"{PACKAGE}/bin/claude.exe", elf())
    tree.link("bin/claude", real)
    tree.write(f"{PACKAGE}/package.json", content)

    assert tree.find() == agent_facts.Client(f"{tree.bin}/claude", real)


def test_the_legacy_wrapper_in_the_clients_own_directory_is_seen_through(tree):
    tree.write("home/.claude/local/claude", b'#!/bin/bash\nexec "$HOME/.claude/local/node_modules/.bin/claude" "$@"\n')
    real = tree.write("home/.claude/local/node_modules/@anthropic-ai/claude-code/bin/claude.exe", elf())
    tree.link("home/.claude/local/node_modules/.bin/claude", "../@anthropic-ai/claude-code/bin/claude.exe")

    assert tree.find().path == real


def test_a_wrapper_script_without_node_is_taken_as_it_is(tree):
    found = tree.write("bin/claude", b"#!/nix/store/x-bash/bin/bash -e\nexec claude-wrapped\n")

    assert tree.find() == agent_facts.Client(found, found)


SHIMS = {
    "asdf": (".asdf/shims/claude", ".asdf/installs/nodejs/{version}/.npm/bin/claude"),
    "mise": (".local/share/mise/shims/claude", ".local/share/mise/installs/claude-code/{version}/claude"),
}


@pytest.mark.parametrize("name", sorted(SHIMS))
def test_the_newest_program_behind_a_shim_is_found_without_running_the_manager(tree, name):
    # proves E02, HOUSE-01
    place, installed = SHIMS[name]
    tree.write(f"home/ran/{name}", f"#!/bin/sh\ntouch {tree.home}/ran-it\n".encode())
    found = tree.link(f"home/{place}", f"{tree.home}/ran/{name}")
    package = "node_modules/@anthropic-ai/claude-code"
    for number in ("2.1.200", "2.1.90"):
        real = tree.write(f"home/{installed.format(version=number)}.d/{package}/claude", elf())
        about = f'{{"name": "@anthropic-ai/claude-code", "version": "{number}"}}'
        tree.write(f"home/{installed.format(version=number)}.d/{package}/package.json", about.encode())
        tree.link(f"home/{installed.format(version=number)}", real)

    assert tree.find().path.endswith(f"{installed.format(version='2.1.200')}.d/{package}/claude")
    assert tree.find().found == found
    assert not os.path.exists(f"{tree.home}/ran-it")


def test_the_program_behind_voltas_shim_is_found(tree):
    tree.write("home/.volta/bin/volta-shim", elf())
    found = tree.link("home/.volta/bin/claude", f"{tree.home}/.volta/bin/volta-shim")
    real = tree.write("home/.volta/tools/image/packages/@anthropic-ai/claude-code/bin/claude", elf())

    assert tree.find() == agent_facts.Client(found, real)


def test_a_shim_with_nothing_behind_it_is_named(tree):
    # proves SAND-14
    tree.write("home/.asdf/shims/claude", b"#!/usr/bin/env bash\nexec asdf exec claude\n")

    error = tree.refused()
    assert "is a shim" in error.message
    assert error.status == 126


def test_a_program_for_another_machine_is_refused(tree):
    # proves SAND-14
    other = next(number for name, number in ELF.items() if name != MACHINE)
    tree.write("bin/claude", elf(other))

    error = tree.refused()
    assert "is built for another machine" in error.message
    assert error.status == 126


def test_a_program_without_permission_is_refused(tree):
    # proves SAND-14
    tree.write("bin/claude", b"#!/bin/sh\n", mode=0o644)

    error = tree.refused()
    assert "is not executable" in error.message
    assert (error.status, bool(error.hint)) == (126, True)


@pytest.mark.parametrize("content", [b"", b"just text", STUB])
def test_something_that_is_no_program_is_refused(tree, content):
    # proves SAND-14
    tree.write("bin/claude", content)

    error = tree.refused()
    assert "is not a program" in error.message
    assert error.status == 126


def test_directories_dangling_links_and_pipes_are_no_clients(tree):
    # proves C18
    started = time.monotonic()
    os.mkdir(f"{tree.bin}/claude")
    assert tree.refused().status == 126

    os.rmdir(f"{tree.bin}/claude")
    tree.link("bin/claude", "/nonexistent/claude")
    assert tree.refused().status == 126

    os.unlink(f"{tree.bin}/claude")
    os.mkfifo(f"{tree.bin}/claude")
    assert tree.refused().status == 126
    assert time.monotonic() - started < 20


def test_no_client_at_all_says_how_to_get_one(tree):
    # proves SAND-14
    error = tree.refused()

    assert "was not found" in error.message
    assert "npm install -g" in error.hint
    assert error.status == 127


def test_a_broken_client_does_not_hide_a_working_one(tree):
    tree.write("bin/claude", b"broken")
    found = tree.write("home/.local/bin/claude", elf())

    assert tree.find().path == found


def test_the_first_of_the_path_wins(tree):
    tree.write("second/claude", elf())
    first = tree.write("bin/claude", elf())

    assert tree.find(tree.bin, f"{tree.base}/second").path == first


def test_a_client_in_the_project_is_not_run(tree):
    # proves E01
    real = tree.write("project/node_modules/claude", elf())
    tree.link("bin/claude", real)
    error = tree.refused()
    assert "in the project" in error.message
    assert error.status == 126

    outside = tree.write("home/.local/bin/claude", elf())
    assert tree.find().path == outside


def test_a_client_that_belongs_to_the_package_comes_before_the_hosts(tree, monkeypatch):
    # proves NIX-01
    tree.write("bin/claude", elf())
    bundled = tree.write("store/bin/claude", b"#!/nix/store/x-bash/bin/bash -e\nexec claude-wrapped\n")
    control = tree.find()
    monkeypatch.setattr(build_paths, "TOOLS", {"claude": bundled})

    assert control.path != bundled
    assert tree.find() == agent_facts.Client(bundled, bundled)
