"""Caches of packages that last: of the project's own, within their limit, and in nobody's way."""

from __future__ import annotations

import os
import re

import pytest

SHARED = ("--set", "caches=shared")


def other_project(box):
    return box.mkdir(f"{box.base}/other")


def test_caches_last_for_the_project_and_for_no_other(box):
    # proves TOOL-05, INST-01
    box.write(f"{box.home}/.cache/pip/host", "CANARY")
    script = 'echo kept >~/.cache/pip; echo kept >"$npm_config_cache"; echo kept >"$CARGO_HOME"; ls ~/.cache'

    first = box.sh(script)

    assert first.stdout.split() == ["cargo", "npm", "pip"], first.stderr
    assert box.sh("cat ~/.cache/pip").stdout == "kept\n"
    assert box.sh("ls -A ~/.cache", cwd=other_project(box)).stdout == ""
    assert os.listdir(f"{box.home}/.cache/pip") == ["host"]


def test_every_program_that_is_told_finds_its_cache_in_there(user_box):
    # proves TOOL-05
    result = user_box.sh(
        'for v in "$npm_config_cache" "$CARGO_HOME" "$GOMODCACHE" "$GRADLE_USER_HOME" "${MAVEN_OPTS#*=}"; do '
        'mkdir -p "$v" && echo "$v"; done'
    )

    assert [os.path.dirname(path) for path in result.stdout.split()] == [f"{user_box.home}/.cache"] * 5


def test_caches_are_shared_or_gone_where_the_user_says_so(user_box):
    # proves TOOL-05
    user_box.sh("echo shared >~/.cache/x", flags=SHARED)
    assert user_box.sh("cat ~/.cache/x", flags=SHARED, cwd=other_project(user_box)).stdout == "shared\n"
    assert user_box.sh("cat ~/.cache/x").returncode == 1

    off = ("--set", "caches=off")
    result = user_box.sh("mkdir -p ~/.cache; echo x >~/.cache/x; echo ${CARGO_HOME-unset}", flags=off)
    assert result.stdout == "unset\n"
    assert user_box.sh("cat ~/.cache/x", flags=off).returncode == 1


@pytest.mark.parametrize("flags", [(), SHARED, ("--set", "caches=off")])
def test_pnpm_has_its_store_where_the_host_has_its_own(user_box, flags):
    # proves TOOL-04, TOOL-05
    # It refuses packages that it has linked from another path, inside and then outside.
    store = f"{user_box.home}/.local/share/pnpm/store"
    user_box.write(f"{store}/v10/files/x", "CANARY")
    user_box.write(f"{user_box.home}/tools/bin/pnpm", "#!/bin/sh\n", mode=0o755)
    user_box.environ["PATH"] = f"{user_box.home}/tools/bin:/usr/bin:/bin"
    script = 'echo "$npm_config_store_dir"; mkdir -p "$npm_config_store_dir/v10"; cd "$npm_config_store_dir/v10"; ls'

    for kept in ("", "kept\n" if "caches=off" not in flags else ""):
        result = user_box.sh(f"{script}; touch kept", flags=flags)
        assert result.stdout == f"{store}\n{kept}", result.stderr
    assert os.listdir(f"{store}/v10") == ["files"]


def test_pnpm_whose_whole_directory_is_shown_has_its_store_among_the_caches(user_box):
    # proves TOOL-05
    home = f"{user_box.home}/.local/share/pnpm"
    user_box.write(f"{home}/pnpm", "#!/bin/sh\n", mode=0o755)
    user_box.environ |= {"PATH": f"{home}:/usr/bin:/bin", "PNPM_HOME": home}

    result = user_box.sh('echo "$npm_config_store_dir"; mkdir "$npm_config_store_dir"')

    assert (result.returncode, result.stdout) == (0, f"{user_box.home}/.cache/pnpm-store\n"), result.stderr


def test_no_project_shares_its_caches_by_itself(user_box):
    # proves TOOL-05, EXT-01
    user_box.write(".claudebox.toml", 'caches = "shared"\n')

    user_box.sh("echo x >~/.cache/x")

    assert not os.path.exists(f"{user_box.home}/.claudebox/caches")


def test_a_variable_of_the_user_wins(user_box):
    user_box.mkdir("own")
    flags = ("--env", "GOMODCACHE", "--env", "CARGO_HOME=/x")

    result = user_box.sh("echo $GOMODCACHE $CARGO_HOME", flags=flags, env={"GOMODCACHE": f"{user_box.project}/own"})

    assert result.stdout == f"{user_box.project}/own /x\n", result.stderr


def test_nothing_is_mounted_below_what_an_agent_could_have_replaced(user_box):
    # proves TOOL-05, C01
    models = f"{user_box.home}/.cache/models"
    user_box.write(f"{models}/m", "weights")
    victim = user_box.mkdir(f"{user_box.base}/victim")
    assert user_box.sh(f"ln -s {victim} ~/.cache/models && ln -s {victim} ~/.cache/npm").returncode == 0

    result = user_box.sh(f"cat {models}/m; echo $PIP_CACHE_DIR", flags=("--mount-ro", models))

    assert result.stdout == "weights/run/claudebox/cache/pip\n", result.stderr
    assert os.listdir(victim) == []
    assert user_box.sh("readlink ~/.cache/models").stdout == f"{victim}\n"


@pytest.mark.parametrize("busy", [False, True])
def test_what_was_not_used_for_longest_goes_when_they_are_too_large(user_box, running, busy):
    # proves TOOL-05
    make = "mkdir -p ~/.cache/{}/deep && head -c 3000000 /dev/urandom >~/.cache/{}/deep/x && chmod 0 ~/.cache/{}/deep"
    user_box.sh("; ".join(make.replace("{}", name) for name in ("old", "new")) + "; ln -s /etc ~/.cache/link",
                flags=SHARED)  # fmt: skip
    caches = f"{user_box.home}/.claudebox/caches"
    os.chmod(f"{caches}/old/deep", 0o700)
    for path in ("old/deep/x", "old/deep", "old"):
        os.utime(f"{caches}/{path}", (1e9, 1e9))
    os.utime(f"{caches}.lock", (1e9, 1e9))
    if busy:
        running(user_box, *SHARED, cwd=other_project(user_box))
    limit = (*SHARED, "--set", "cache_size=0")

    result = user_box.sh("true", flags=limit)

    assert result.returncode == 0, result.stderr
    if busy:
        assert sorted(os.listdir(caches)) == ["link", "new", "old"]
        return
    assert re.search("caches were larger.*removed old, ", result.stderr)
    assert os.listdir("/etc")
    assert set(os.listdir(caches)) <= {"link"}
    assert "caches were larger" not in user_box.sh("echo x >~/.cache/y", flags=limit).stderr  # once a day
    assert "y" in os.listdir(caches)


def test_sizes_of_caches_are_listed(user_box):
    # proves TOOL-05
    user_box.sh("head -c 5000000 /dev/urandom >~/.cache/x")

    assert "4.8 MiB caches" in user_box.claudebox("projects").stdout.replace("5.0 MB", "4.8 MiB")
