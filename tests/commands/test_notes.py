"""What a launch says once: programs of the host that are not inside, a project that cannot be written."""

from __future__ import annotations

import os

import pytest


def test_programs_that_are_not_inside_are_named_once_with_the_flag_that_brings_them(user_box):
    # proves UX-10
    home = user_box.home
    for name in ("uv", "zzz", "aaa", "pnpm", "bbb", "ls"):
        user_box.write(f"{home}/tools/bin/{name}", "#!/bin/sh\necho inside\n", mode=0o755)
    user_box.write(f"{home}/tools/bin/notes.txt", "no program")
    user_box.write(f"{home}/.cargo/bin/rustup", "#!/bin/sh\n", mode=0o755)
    user_box.write(f"{home}/.local/bin/mine", "#!/bin/sh\n", mode=0o755)
    places = (
        f"{home}/.local/bin",
        f"{home}/tools/bin",
        f"{home}/.cargo/bin",
        f"{home}/nowhere",
        user_box.project,
        "relative",
    )
    environ = {"PATH": ":".join((*places, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"))}
    first = user_box.run("true", flags=("--toolchain", "none"), env=environ)
    again = user_box.run("true", flags=("--toolchain", "none"), env=environ)
    inside = user_box.run("uv", flags=("--toolchain", "none", "--set", f"path={home}/tools/bin"), env=environ)

    notes = [line.split(maxsplit=1)[1] for line in first.stderr.splitlines() if line.split()[0] == "note"]
    assert notes == [
        "mine of ~/.local/bin is not inside: `--set path=~/.local/bin`",
        "pnpm, uv, aaa, bbb and 1 more of ~/tools/bin are not inside: `--set path=~/tools/bin`",
        "rustup of ~/.cargo/bin is not inside: `--set path=~/.cargo/bin`",
    ]
    assert "not inside" not in again.stderr
    assert again.stderr.startswith("claudebox: ")
    assert inside.stdout == "inside\n"


@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_a_project_that_cannot_be_written_is_named(user_box, mode):
    # proves UX-10
    os.chmod(user_box.project, mode)
    result = user_box.run("touch", "made")

    assert (result.returncode == 0) == (mode == 0o755)
    assert (f"{user_box.project} cannot be written by you" in result.stderr) == (mode == 0o555)
