"""What a launch says once: programs of the host that are not inside, a project that cannot be written."""

from __future__ import annotations

import os

import pytest


def programs(box) -> dict[str, str]:
    """Put programs into directories of the home, and return an environment with a PATH of them."""
    home = box.home
    for name in ("uv", "zzz", "aaa", "pnpm", "bbb", "ls"):
        box.write(f"{home}/tools/bin/{name}", "#!/bin/sh\necho inside\n", mode=0o755)
    box.write(f"{home}/tools/bin/notes.txt", "no program")
    box.write(f"{home}/.cargo/bin/rustup", "#!/bin/sh\n", mode=0o755)
    places = (f"{home}/.cargo/bin", f"{home}/tools/bin", f"{home}/nowhere", box.project, "relative")
    return {"PATH": ":".join((*places, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"))}


def notes(result) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in result.stderr.splitlines() if line.split()[0] == "note"]


def test_programs_that_are_not_inside_are_named_once_with_the_flag_that_brings_them(user_box):
    # proves UX-10, NEW-D5
    environ = programs(user_box)
    for place in (".cargo/bin", "tools/bin"):
        os.chmod(f"{user_box.home}/{place}", 0o777)
    first = user_box.run("true", env=environ)
    again = user_box.run("true", env=environ, cwd=user_box.mkdir(f"{user_box.base}/other"))
    inside = user_box.run("uv", flags=("--set", f"path={user_box.home}/tools/bin"), env=environ)

    why = "other users can write to it"
    assert notes(first) == [
        f"rustup of ~/.cargo/bin is not inside: {why}: `--set path=~/.cargo/bin`",
        f"pnpm, uv, aaa, bbb and 1 more of ~/tools/bin are not inside: {why}: `--set path=~/tools/bin`",
    ]
    assert notes(again) == [], "PATH is the same in other projects"
    assert inside.stdout == "inside\n"


def test_who_has_chosen_to_have_no_programs_inside_is_told_in_one_line(user_box):
    # proves UX-10, NEW-D5
    environ, chosen = programs(user_box), ("--toolchain", "none")
    first = user_box.run("uv", flags=chosen, env=environ)
    again = user_box.run("uv", flags=chosen, env=environ)

    missed = "uv of ~/tools/bin is not inside: `--set path=~/tools/bin`"
    every = "pnpm, uv, aaa, bbb and 2 more of your PATH are not inside: `--set toolchains=auto`"
    assert notes(first) == [every, missed]
    assert notes(again) == [missed]
    assert user_box.run("uv", flags=("--set", "toolchains=auto"), env=environ).stdout == "inside\n"


@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_a_project_that_cannot_be_written_is_named(user_box, mode):
    # proves UX-10
    os.chmod(user_box.project, mode)
    result = user_box.run("touch", "made")

    assert (result.returncode == 0) == (mode == 0o755)
    assert (f"{user_box.project} cannot be written by you" in result.stderr) == (mode == 0o555)
