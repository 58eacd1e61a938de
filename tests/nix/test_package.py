"""The package that flake.nix makes: built by a real daemon, looked at, and run from the store."""

from __future__ import annotations

import os
import re
import runpy


def test_the_command_is_one_script_with_an_isolated_interpreter(nixos_box):
    # proves NIX-01
    real = nixos_box.daemon.real(nixos_box.program)
    with open(real, encoding="utf-8") as file:
        first = file.readline()

    assert re.fullmatch(r"#!/nix/store/[a-z0-9]{32}-[^/]+/bin/python3\.\d+ -IS\n", first)
    assert os.listdir(os.path.dirname(real)) == ["claudebox"]


def test_it_starts_a_sandbox(nixos_box):
    result = nixos_box.run("sh", "-c", "echo inside; echo $PATH; exit 7")
    assert result.returncode == 7, result.stderr
