from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from tests.conftest import REPOSITORY, need

SCRIPTS = sorted(
    path for place in ("scripts", "bench", ".ci") for path in (REPOSITORY / place).iterdir() if path.is_file()
)


def test_arguments_of_run_go_to_claudebox(user_box, checkout):
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)

    result = user_box.host(f"{checkout}/scripts/run", "-y", "--exec", "--", "pwd")

    assert result.stdout == f"{user_box.project}\n", result.stderr


def test_set_up_is_quick_when_nothing_is_missing():
    need((REPOSITORY / ".venv/stamp").exists(), "environment made by scripts/setup --test")
    begin = time.monotonic()
    result = subprocess.run([REPOSITORY / "scripts/setup", "--test"], capture_output=True, check=False)

    assert result.returncode == 0, result.stderr
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("dnf", "sudo dnf install bubblewrap git"),
        ("pacman", "sudo pacman -S --needed bubblewrap git"),
        ("apt-get", "as root: apt-get install --no-install-recommends bubblewrap git"),
    ],
)
def test_set_up_names_what_is_missing_on_other_distributions(tool, command, user_box, checkout):
    """A PATH without bwrap and git, and with one package manager, as that distribution would have it."""
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)
    bare = user_box.mkdir(f"{user_box.base}/bare")
    for name in ("sh", "cat", "dirname", "id", "sed", "sort", "tr", "python3"):
        os.symlink(shutil.which(name, path="/usr/bin:/bin") or name, f"{bare}/{name}")
    user_box.write(f"{bare}/{tool}", "#!/bin/sh\nexit 1\n", mode=0o755)

    result = user_box.host(f"{bare}/sh", f"{checkout}/scripts/setup", env={"PATH": bare})

    assert result.returncode == 1
    assert command in result.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_without_a_suffix_can_be_executed(script):
    assert script.suffix or os.access(script, os.X_OK)
