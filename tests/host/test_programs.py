from __future__ import annotations

import os

import pytest
from tests.support.installations import elf

from claudebox import build_paths
from claudebox.host import programs


@pytest.mark.parametrize("entry", ["", ".", "bin", "./bin", "../bin", "~/bin", ":", "::"])
def test_an_entry_of_the_path_that_is_not_absolute_is_dropped(tree, entry):
    # proves E01
    path = programs.search_path({"PATH": f"{entry}:/usr/bin:{entry}"}, tree.project)

    assert path == ("/usr/bin",)


def test_an_entry_of_the_path_in_the_project_is_dropped_however_it_is_spelled(tree):
    # proves E01
    os.mkdir(f"{tree.project}/bin")
    tree.link("link", f"{tree.project}/bin")
    inside = (
        tree.project,
        f"{tree.project}/",
        f"{tree.project}/bin",
        f"{tree.base}/link",
        f"{tree.home}/../project/bin",
    )
    beside = f"{tree.project}-tools"

    assert programs.search_path({"PATH": ":".join((*inside, beside))}, tree.project) == (beside,)


def test_no_path_means_no_directories(tree):
    assert programs.search_path({}, tree.project) == ()
    assert programs.search_path({"PATH": ""}, tree.project) == ()


def test_a_tool_comes_from_the_system_before_the_users_path(tree):
    # proves E01, E02
    trusted = tree.write("system/bwrap", elf())
    tree.write("bin/bwrap", elf())
    assert programs.find_tool("bwrap", (tree.bin,)) == trusted

    os.unlink(trusted)
    assert programs.find_tool("bwrap", (tree.bin,)) == f"{tree.bin}/bwrap"
    assert programs.find_tool("bwrap") is None


def test_a_tool_must_be_a_file_that_can_be_run(tree):
    tree.write("system/nft", b"x", mode=0o644)
    os.mkdir(f"{tree.base}/system/pasta")

    assert programs.find_tool("nft") is None
    assert programs.find_tool("pasta") is None


def test_a_package_build_decides_where_its_tools_are(tree, monkeypatch):
    # proves NIX-03
    tree.write("system/bwrap", elf())
    monkeypatch.setattr(build_paths, "TOOLS", {"bwrap": "/nix/store/x-bubblewrap/bin/bwrap"})

    assert programs.find_tool("bwrap", (tree.bin,)) == "/nix/store/x-bubblewrap/bin/bwrap"
