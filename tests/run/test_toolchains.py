"""Programs of languages from the home: usable inside, read-only, and never with the credentials beside them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.conftest import few

from claudebox.tables.tools import TOOLCHAINS

# What each has in a home: a program that can be called by its name, and secrets that lie beside it.
HOMES = {
    "rust": (".cargo/bin/cargo", (".cargo/credentials.toml", ".cargo/credentials", ".cargo/config.toml",
                                  ".rustup/canary")),
    "node": (".nvm/versions/node/v20.10.0/bin/node", (".npmrc", ".nvm/canary", ".yarnrc.yml", ".config/pnpm/rc",
                                                      ".npm-global/.npmrc", ".volta/canary")),
    "python": (".pyenv/shims/python9", (".pypirc", ".config/pip/pip.conf", ".local/share/uv/credentials/x",
                                        ".pyenv/canary", ".local/share/pipx/canary", ".local/bin/deploy-with-token")),
    "go": ("go/bin/gopls", (".config/go/env", "go/src/private/canary", "go/pkg/canary")),
    "java": (".sdkman/candidates/java/current/bin/java", (".m2/settings.xml", ".gradle/gradle.properties",
                                                          ".sdkman/etc/config", ".sdkman/canary")),
    "ruby": (".rbenv/shims/ruby", (".gem/credentials", ".bundle/config", ".rbenv/canary")),
    "deno": (".deno/bin/deno", (".deno/credentials", ".deno/canary")),
    "bun": (".bun/bin/bun", (".bunfig.toml", ".bun/install/canary", ".bun/canary")),
    "conda": ("miniconda3/bin/conda", (".condarc", "miniconda3/.condarc", "miniconda3/pkgs/urls.txt", ".conda/canary",
                                       ".continuum/anaconda-client/tokens/x")),
    "pnpm": (".local/share/pnpm/pnpm", (".config/pnpm/rc", ".local/share/pnpm/store/v10/files/x", ".npmrc")),
    "uv": (".local/share/uv/python/cpython-3.13.1/bin/python3.13", (".local/share/uv/credentials/x",
                                                                  ".local/bin/deploy-with-token")),
    "mise": (".local/share/mise/installs/zig/0.13.0/bin/zig", (".local/state/mise/canary", ".config/mise/age.txt")),
    "asdf": (".asdf/shims/erl", (".asdfrc", ".asdf/tmp/canary")),
    "nvm": (".nvm/versions/node/v20.10.0/bin/npx", (".npmrc", ".nvm/canary", ".nvm/.cache/x")),
    "pyenv": (".pyenv/shims/python10", (".pypirc", ".pyenv/canary")),
    "rbenv": (".rbenv/shims/irb", (".gem/credentials", ".rbenv/canary")),
    "sdkman": (".sdkman/candidates/scala/current/bin/scala", (".sdkman/etc/config", ".sdkman/canary")),
    "ghcup": (".ghcup/bin/ghc", (".cabal/config", ".ghcup/config.yaml", ".stack/config.yaml")),
}  # fmt: skip
EVERYWHERE = (
    ".ssh/id_ed25519", ".netrc", ".git-credentials", ".config/gh/hosts.yml", ".config/mise/config.toml",
    ".local/share/mise/canary", ".asdf/canary", ".bash_history",
)  # fmt: skip


def furnish(box, name):
    """Put a program of a toolchain into the home, and canaries beside it."""
    program, canaries = HOMES[name]
    box.write(f"{box.home}/{program}", f"#!/bin/sh\necho the {name} program\n", mode=0o755)
    for path in (*canaries, *EVERYWHERE):
        box.write(f"{box.home}/{path}", "CANARY")
    return os.path.basename(program), [f"{box.home}/{path}" for path in (*canaries, *EVERYWHERE)]


def test_every_toolchain_is_tested():
    assert set(HOMES) == set(TOOLCHAINS)


@pytest.mark.parametrize("name", few(sorted(HOMES), 9))
def test_programs_enter_and_credentials_beside_them_do_not(user_box, name):
    # proves SAND-09, SAND-10, EXT-02
    command, canaries = furnish(user_box, name)
    probe = f"{command}; grep -rl CANARY {user_box.home} 2>/dev/null | sort"

    outside = user_box.host("sh", "-c", probe)
    assert set(canaries) <= set(outside.stdout.splitlines())
    without = user_box.sh(probe)
    assert f"the {name} program" not in without.stdout

    inside = user_box.sh(probe, flags=("--toolchain", name))

    assert inside.stdout == f"the {name} program\n", inside.stderr


def test_all_of_them_together_from_a_profile_of_the_user(box):
    # proves PROF-01, SAND-09
    commands, canaries = zip(*(furnish(box, name) for name in HOMES), strict=True)
    box.write(f"{box.home}/.claudebox/config.toml", f"toolchains = {sorted(HOMES)}\n")

    result = box.sh(f"{'; '.join(commands)}; grep -rl CANARY {box.home} 2>/dev/null")

    assert result.stdout.splitlines() == [f"the {name} program" for name in HOMES], result.stderr
    assert canaries


def test_programs_cannot_be_changed_and_caches_are_private_and_kept(user_box):
    # proves SAND-10
    furnish(user_box, "rust")
    real = f"{user_box.home}/.cargo/bin/cargo"
    flags = ("--toolchain", "rust")

    result = user_box.sh(
        f"echo evil 2>/dev/null >>{real} && echo changed; rm {real} 2>/dev/null && echo removed; "
        "mkdir -p $CARGO_HOME; echo kept >$CARGO_HOME/registry; cargo",
        flags=flags,
    )

    assert result.stdout == "the rust program\n"
    assert "evil" not in Path(real).read_text()
    assert not os.path.exists(f"{user_box.home}/.cargo/registry")
    assert user_box.sh("cat $CARGO_HOME/registry", flags=flags).stdout == "kept\n"
    other = user_box.mkdir(f"{user_box.base}/other")
    assert user_box.sh("cat $CARGO_HOME/registry 2>&1", flags=flags, cwd=other).stdout.endswith(
        "No such file or directory\n"
    )


def test_no_directory_of_path_can_be_written_to_inside(user_box):
    # proves SAND-10
    for name in HOMES:
        furnish(user_box, name)
    flags = tuple(word for name in HOMES for word in ("--toolchain", name))

    result = user_box.sh('IFS=:; for d in $PATH; do [ -w "$d" ] && echo "writable $d"; done; echo $PATH', flags=flags)

    writable = re.findall("^writable (.*)$", result.stdout, re.MULTILINE)
    # Links of pipx and uv are made anew each time, in a directory that is gone at the end.
    assert [path for path in writable if path != f"{user_box.home}/.local/bin"] == []


def test_the_version_that_the_user_has_chosen_is_the_one_inside(user_box):
    for version in ("v18.2.0", "v20.9.0", "v20.10.0"):
        path = f"{user_box.home}/.nvm/versions/node/{version}/bin/node"
        user_box.write(path, f"#!/bin/sh\necho {version}\n", mode=0o755)
    flags = ("--toolchain", "node")

    assert user_box.sh("node", flags=flags).stdout == "v20.10.0\n"
    path = f"{user_box.home}/.nvm/versions/node/v18.2.0/bin:/usr/bin:/bin"
    assert user_box.sh("node", flags=flags, env={"PATH": path}).stdout == "v18.2.0\n"


def test_of_many_tools_the_newest_versions_are_on_path_unless_one_is_current(user_box):
    for path in ("mise/installs/node/20.9.0", "mise/installs/node/20.10.0", "mise/installs/zig/0.13.0"):
        tool, version = path.split("/")[-2:]
        script = f"#!/bin/sh\necho {tool} {version}\n"
        user_box.write(f"{user_box.home}/.local/share/{path}/bin/{tool}", script, mode=0o755)
    for version in ("17.0.1", "21.0.2"):
        path = f"{user_box.home}/.sdkman/candidates/kotlin/{version}/bin/kotlin"
        user_box.write(path, f"#!/bin/sh\necho kotlin {version}\n", mode=0o755)
    os.symlink("17.0.1", f"{user_box.home}/.sdkman/candidates/kotlin/current")

    result = user_box.sh("node; zig; kotlin", flags=("--toolchain", "mise", "--toolchain", "sdkman"))

    assert result.stdout.splitlines() == ["node 20.10.0", "zig 0.13.0", "kotlin 17.0.1"], result.stderr


def test_toolchains_that_share_a_directory_go_together(user_box):
    furnish(user_box, "pyenv")

    result = user_box.sh("python10", flags=("--toolchain", "python", "--toolchain", "pyenv"))

    assert (result.returncode, result.stdout) == (0, "the pyenv program\n"), result.stderr
    assert "nothing of toolchain" not in result.stderr


def test_links_of_pipx_enter_with_what_they_lead_to_and_nothing_else(user_box):
    # proves SAND-09, TOOL-04
    user_box.write(f"{user_box.home}/.local/share/pipx/venvs/black/bin/black", "#!/bin/sh\necho black\n", mode=0o755)
    user_box.write(f"{user_box.home}/.local/bin/deploy", "#!/bin/sh\nTOKEN=hunter2secret\n", mode=0o755)
    user_box.write(f"{user_box.home}/secret", "CANARY")
    os.symlink("../share/pipx/venvs/black/bin/black", f"{user_box.home}/.local/bin/black")
    os.symlink("../../secret", f"{user_box.home}/.local/bin/leads-elsewhere")

    probe = "black; cat ~/.local/bin/deploy; cat ~/.local/bin/leads-elsewhere 2>/dev/null || echo nothing"
    result = user_box.sh(probe, flags=("--toolchain", "python"))

    assert result.stdout == "black\nnothing\n"
    assert "~/.local/bin/deploy is not inside: it seems to hold a secret" in result.stderr
    script = "--mount-ro", f"{user_box.home}/.local/bin/deploy"
    assert "hunter2" in user_box.sh(probe, flags=("--toolchain", "python", *script)).stdout


def test_a_toolchain_that_leads_to_something_hidden_is_refused(user_box):
    # proves SAND-09, C26
    user_box.write(f"{user_box.home}/.ssh/id_ed25519", "CANARY")
    user_box.mkdir(f"{user_box.home}/.deno")
    os.symlink("../.ssh", f"{user_box.home}/.deno/bin")

    result = user_box.sh("true", flags=("--toolchain", "deno"))

    assert result.returncode == 125
    assert "would expose" in result.stderr
    assert user_box.sh("ls ~/.deno", env={"PATH": f"{user_box.home}/.deno/bin:/usr/bin:/bin"}).stdout == ""


def test_a_toolchain_that_is_not_there_is_told(user_box):
    result = user_box.sh("true", flags=("--toolchain", "go"))

    assert result.returncode == 0
    assert "nothing of toolchain go is in your home" in result.stderr
