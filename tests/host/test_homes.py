"""PATH inside is PATH outside: homes as managers of versions lay them out, forty tools, the same program and version.

Every program reads its version from a library beside it, as real ones load theirs: it fails where only its directory is
shown. Shims, wrappers and links are those that the managers make; environments of Python and packages of npm are made
by the real programs.
"""

from __future__ import annotations

import os
import shutil

import pytest
from tests.conftest import few, need

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
# Reads its version beside itself, wherever links have led here.
PROGRAM = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
echo "${0##*/} $(cat "$here/../lib/release-of-it") with $# words"
"""
ALONE = '#!/bin/sh\necho "${0##*/} {version}"\n'


class Home:
    """A home that is being furnished."""

    def __init__(self, box) -> None:
        self.box, self.root = box, box.home
        self.path: list[str] = []
        self.tools: list[str] = []
        self.environ: dict[str, str] = {}

    def program(self, path: str, content: str) -> None:
        self.box.write(f"{self.root}/{path}", content, mode=0o755)

    def installation(self, prefix: str, version: str, *tools: str) -> None:
        """Make one as an archive of a release unpacks it."""
        self.box.write(f"{self.root}/{prefix}/lib/release-of-it", f"{version}\n")
        self.box.mkdir(f"{self.root}/{prefix}/include")
        self.box.write(f"{self.root}/{prefix}/README.md", "read me\n")
        for tool in tools:
            self.program(f"{prefix}/bin/{tool}", PROGRAM)
        self.tools += tools

    def alone(self, directory: str, version: str, *tools: str) -> None:
        for tool in tools:
            self.program(f"{directory}/{tool}", ALONE.replace("{version}", version))
        self.tools += tools

    def link(self, path: str, target: str) -> None:
        self.box.mkdir(os.path.dirname(f"{self.root}/{path}"))
        os.symlink(target, f"{self.root}/{path}")
        os.lchown(f"{self.root}/{path}", self.box.account.uid, self.box.account.gid)

    def on_path(self, *directories: str) -> None:
        self.path += (directory if directory[0] == "/" else f"{self.root}/{directory}" for directory in directories)


def nvm(home):
    home.installation(".nvm/versions/node/v18.2.0", "v18.2.0")
    home.installation(".nvm/versions/node/v20.10.0", "v20.10.0", "node", "npm", "npx", "corepack")
    home.box.write(f"{home.root}/.nvm/alias/default", "20\n")
    home.on_path(".nvm/versions/node/v20.10.0/bin")


def fnm(home):
    home.installation(".local/share/fnm/node-versions/v22.1.0/installation", "v22.1.0", "node", "npm")
    home.link(".local/state/fnm_multishells/123_456", "../../share/fnm/node-versions/v22.1.0/installation")
    home.alone(".local/share/fnm", "1.38", "fnm")
    home.on_path(".local/state/fnm_multishells/123_456/bin", ".local/share/fnm")


def volta(home):
    home.installation(".volta/tools/image/node/20.5.0", "v20.5.0")
    home.program(".volta/tools/image/node/20.5.0/bin/node", PROGRAM)
    home.box.write(f"{home.root}/.volta/tools/user/platform.json", '{"node":{"runtime":"20.5.0"}}')
    home.program(
        ".volta/bin/volta-shim",
        '#!/bin/sh\nset -e\nv=$(sed \'s/.*:"\\(.*\\)"}}/\\1/\' "$HOME/.volta/tools/user/platform.json")\n'
        'exec "$HOME/.volta/tools/image/node/$v/bin/${0##*/}" "$@"\n',
    )
    home.link(".volta/bin/node", "volta-shim")
    home.tools.append("node")
    home.on_path(".volta/bin")


def mise(home):
    for tool, version in (("go", "1.22.0"), ("zig", "0.13.0"), ("terraform", "1.9.0")):
        home.installation(f".local/share/mise/installs/{tool}/{version}", version, tool)
        home.on_path(f".local/share/mise/installs/{tool}/{version}/bin")
    home.link(".local/share/mise/installs/go/latest", "./1.22.0")
    home.alone(".local/bin", "2025.1", "mise")
    home.on_path(".local/bin")


def mise_shims(home):
    home.installation(".local/share/mise/installs/node/20.1.0", "v20.1.0")
    home.program(".local/share/mise/installs/node/20.1.0/bin/node", PROGRAM)
    home.box.write(f"{home.root}/.config/mise/config.toml", '[env]\nTOKEN = "hidden"\n[tools]\nnode = "20.1.0"\n')
    home.program(
        ".local/bin/mise",
        '#!/bin/sh\nname=${0##*/}; [ "$name" = mise ] && { echo mise 2025.1; exit; }\n'
        'v=$(sed -n "s/^\\"\\{0,1\\}$name\\"\\{0,1\\} = \\"\\(.*\\)\\"/\\1/p" "$HOME/.config/mise/config.toml")\n'
        'exec "$HOME/.local/share/mise/installs/$name/$v/bin/$name" "$@"\n',
    )
    home.link(".local/share/mise/shims/node", f"{home.root}/.local/bin/mise")
    home.tools += ("node", "mise")
    home.on_path(".local/share/mise/shims", ".local/bin")


def asdf(home):
    for tool, plugin, version in (
        ("node", "nodejs", "20.3.0"),
        ("erl", "erlang", "26.1"),
        ("elixir", "elixir", "1.15"),
    ):
        home.installation(f".asdf/installs/{plugin}/{version}", version)
        home.program(f".asdf/installs/{plugin}/{version}/bin/{tool}", PROGRAM)
        home.program(f".asdf/shims/{tool}", f'#!/usr/bin/env bash\n# asdf-plugin: {plugin} {version}\n'
                     f'exec {home.root}/.asdf/bin/asdf exec "{tool}" "$@"\n')  # fmt: skip
        home.tools.append(tool)
    home.box.write(f"{home.root}/.tool-versions", "nodejs 20.3.0\nerlang 26.1\nelixir 1.15\n")
    home.box.write(f"{home.root}/.asdf/lib/utils.bash", 'find_install() { echo ~/.asdf/installs/*/*/bin/"$1"; }\n')
    home.program(".asdf/bin/asdf", "#!/usr/bin/env bash\n. ~/.asdf/lib/utils.bash\n"
                 'grep -q . ~/.tool-versions || exit 1\n'
                 'tool=$2\nshift 2\nexec $(find_install "$tool") "$@"\n')  # fmt: skip
    home.on_path(".asdf/shims", ".asdf/bin")


def rbenv_and_pyenv(home):
    for manager, version, tools in (
        ("pyenv", "3.12.1", ("python", "pip", "black")),
        ("rbenv", "3.3.0", ("ruby", "gem")),
    ):
        variable = f"{manager.upper()}_ROOT"
        home.installation(f".{manager}/versions/{version}", version)
        for tool in tools:
            home.program(f".{manager}/versions/{version}/bin/{tool}", PROGRAM)
            home.program(
                f".{manager}/shims/{tool}",
                f'#!/usr/bin/env bash\nset -e\nprogram="${{0##*/}}"\nexport {variable}="{home.root}/.{manager}"\n'
                f'exec "{home.root}/.{manager}/libexec/{manager}" exec "$program" "$@"\n',
            )
        home.box.write(f"{home.root}/.{manager}/version", f"{version}\n")
        home.box.write(f"{home.root}/.{manager}/.git/config", "[remote]\n")
        home.program(f".{manager}/libexec/{manager}", '#!/usr/bin/env bash\nroot=$(dirname "$(dirname "$(readlink -f '
                     '"$0")")")\n[ "$1" = exec ] || { echo "manager 1"; exit; }\ntool=$2; shift 2\n'
                     'exec "$root/versions/$(cat "$root/version")/bin/$tool" "$@"\n')  # fmt: skip
        home.link(f".{manager}/bin/{manager}", f"../libexec/{manager}")
        home.tools += (*tools, manager)
        home.on_path(f".{manager}/shims", f".{manager}/bin")


def rust(home):
    home.installation(".rustup/toolchains/stable-x86_64-unknown-linux-gnu", "1.80.0")
    for tool in ("cargo", "rustc"):
        home.program(f".rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin/{tool}", PROGRAM)
        home.link(f".cargo/bin/{tool}", "rustup")
    home.box.write(f"{home.root}/.rustup/settings.toml", 'default_toolchain = "stable-x86_64-unknown-linux-gnu"\n')
    home.box.write(f"{home.root}/.cargo/credentials.toml", "CANARY")
    home.box.write(f"{home.root}/.cargo/env", "# shell\n")
    home.program(".cargo/bin/rustup", '#!/bin/sh\nname=${0##*/}\n[ "$name" = rustup ] && { echo rustup 1.27; exit; }\n'
                 'chain=$(sed \'s/.*"\\(.*\\)"/\\1/\' "${RUSTUP_HOME:-$HOME/.rustup}/settings.toml")\n'
                 'exec "${RUSTUP_HOME:-$HOME/.rustup}/toolchains/$chain/bin/$name" "$@"\n')  # fmt: skip
    home.alone(".cargo/bin", "0.24", "bat", "rg-mine")
    home.tools += ("cargo", "rustc", "rustup")
    home.on_path(".cargo/bin")


def go_and_deno_and_bun_and_pnpm(home):
    home.installation("sdk/go1.22.1", "go1.22.1", "go", "gofmt")
    home.alone("go/bin", "0.15", "gopls")
    home.box.write(f"{home.root}/go/src/private/canary", "CANARY")
    home.alone(".deno/bin", "1.40", "deno")
    home.alone(".bun/bin", "1.1", "bun")
    home.link(".bun/bin/bunx", "bun")
    home.box.write(f"{home.root}/.bun/install/global/node_modules/cowsay/cli.js", "#!/bin/sh\necho cowsay 1.5\n")
    os.chmod(f"{home.root}/.bun/install/global/node_modules/cowsay/cli.js", 0o755)
    home.link(".bun/bin/cowsay", "../install/global/node_modules/cowsay/cli.js")
    home.alone(".local/share/pnpm", "9.1", "pnpm")
    home.program(".local/share/pnpm/global/5/node_modules/tsx/cli", "#!/bin/sh\necho tsx 4.7\n")
    home.program(".local/share/pnpm/tsx", "#!/bin/sh\nbasedir=$(dirname \"$(echo \"$0\" | sed -e 's,\\\\,/,g')\")\n"
                 'exec "$basedir/global/5/node_modules/tsx/cli" "$@"\n')  # fmt: skip
    home.box.write(f"{home.root}/.local/share/pnpm/store/v10/files/x", "CANARY")
    home.tools += ("bunx", "cowsay", "tsx")
    home.on_path("sdk/go1.22.1/bin", "go/bin", ".deno/bin", ".bun/bin", ".local/share/pnpm")


def uv_and_pipx_and_own_scripts(home):
    python = ".local/share/uv/python/cpython-3.12.7-linux-x86_64-gnu"
    home.installation(python, "3.12.7")
    home.program(f"{python}/bin/python3.12", PROGRAM)
    home.link(".local/share/uv/python/cpython-3.12-linux-x86_64-gnu", "cpython-3.12.7-linux-x86_64-gnu")
    home.link(
        ".local/bin/python3.12", f"{home.root}/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin/python3.12"
    )
    for tool, manager in (("ruff", "uv/tools"), ("httpie", "pipx/venvs")):
        venv = f".local/share/{manager}/{tool}"
        home.box.write(f"{home.root}/{venv}/pyvenv.cfg", "home = elsewhere\n")
        home.box.write(f"{home.root}/{venv}/.gitignore", "*\n")
        home.box.write(f"{home.root}/{venv}/lib/release-of-it", "1.0\n")
        home.link(f"{venv}/bin/python", f"{home.root}/{python}/bin/python3.12")
        # A script whose interpreter is a link in the environment, which leads to another installation.
        home.program(f"{venv}/bin/{tool}", f"#!{home.root}/{venv}/bin/python\nthe interpreter says what it is\n")
        home.link(f".local/bin/{tool}", f"{home.root}/{venv}/bin/{tool}")
    home.alone(".local/bin", "0.5", "uv", "uvx")
    home.alone("bin", "mine", "backup", "deploy")
    home.tools += ("ruff", "httpie", "python3.12")
    home.on_path("bin", ".local/bin")


def conda(home):
    home.installation("miniconda3", "24.1", "conda", "mamba")
    home.installation("miniconda3/envs/work", "3.11.8", "python", "jupyter")
    for prefix in ("miniconda3", "miniconda3/envs/work"):
        home.box.write(f"{home.root}/{prefix}/conda-meta/history", "")
    home.box.write(f"{home.root}/miniconda3/.condarc", "CANARY")
    home.box.write(f"{home.root}/miniconda3/pkgs/urls.txt", "CANARY")
    home.link("miniconda3/condabin/conda", "../bin/conda")
    home.environ["CONDA_PREFIX"] = f"{home.root}/miniconda3/envs/work"
    home.on_path("miniconda3/envs/work/bin", "miniconda3/condabin", "miniconda3/bin")


def sdkman_and_ghcup(home):
    for candidate, version, tool in (
        ("java", "21.0.2-tem", "java"),
        ("gradle", "8.5", "gradle"),
        ("kotlin", "1.9", "kotlin"),
    ):
        home.installation(f".sdkman/candidates/{candidate}/{version}", version, tool)
        home.link(f".sdkman/candidates/{candidate}/current", version)
        home.on_path(f".sdkman/candidates/{candidate}/current/bin")
    home.environ["JAVA_HOME"] = f"{home.root}/.sdkman/candidates/java/current"
    home.box.write(f"{home.root}/.sdkman/etc/config", "CANARY")
    home.installation(".ghcup/ghc/9.4.7", "9.4.7")
    home.program(".ghcup/ghc/9.4.7/bin/ghc-9.4.7", PROGRAM)
    home.link(".ghcup/bin/ghc-9.4.7", "../ghc/9.4.7/bin/ghc-9.4.7")
    home.link(".ghcup/bin/ghc", "ghc-9.4.7")
    home.alone(".ghcup/bin", "3.10", "cabal")
    home.box.write(f"{home.root}/.ghcup/config.yaml", "CANARY")
    home.tools.append("ghc")
    home.on_path(".ghcup/bin")


def homebrew(home):
    prefix = "linuxbrew/.linuxbrew"
    for formula, version in (("jq-mine", "1.7"), ("gh-mine", "2.4")):
        home.installation(f"{prefix}/Cellar/{formula}/{version}", version)
        home.program(f"{prefix}/Cellar/{formula}/{version}/bin/{formula}", PROGRAM)
        home.link(f"{prefix}/bin/{formula}", f"../Cellar/{formula}/{version}/bin/{formula}")
        home.link(f"{prefix}/opt/{formula}", f"../Cellar/{formula}/{version}")
        home.tools.append(formula)
    home.box.write(f"{home.root}/{prefix}/var/postgres/data", "CANARY")
    home.on_path(f"{prefix}/bin")


def an_active_environment_of_python(home):
    need(shutil.which("python3", path=SYSTEM), "python3")
    home.box.host("python3", "-m", "venv", "--without-pip", f"{home.root}/envs/work").check_returncode()
    home.program("envs/work/bin/tool", f"#!{home.root}/envs/work/bin/python\nimport sys, os\n"
                 "print('tool in', sys.prefix, sys.version, os.environ.get('VIRTUAL_ENV'))\n")  # fmt: skip
    home.environ["VIRTUAL_ENV"] = f"{home.root}/envs/work"
    home.tools += ("tool", "python", "python3")
    home.on_path("envs/work/bin")


def a_prefix_of_npm(home):
    need(shutil.which("npm", path=SYSTEM), "npm")
    home.box.write("package.json", '{"name": "hello-tool", "version": "1.2.3", "bin": {"hello-tool": "cli.js"}}')
    home.program("../project/cli.js", "#!/usr/bin/env node\nconsole.log(require('./package.json').version)\n")
    packed = home.box.host("npm", "pack", "--silent")
    assert packed.returncode == 0, packed.stderr
    home.box.host(
        "npm", "install", "--global", "--silent", "--prefix", f"{home.root}/.npm-global", packed.stdout.strip()
    ).check_returncode()
    home.box.write(f"{home.root}/.npm-global/.npmrc", "CANARY")
    home.tools += ("hello-tool", "node", "npm")
    home.on_path(".npm-global/bin")


SETUPS = {
    setup.__name__: setup for setup in (
        nvm, fnm, volta, mise, mise_shims, asdf, rbenv_and_pyenv, rust, go_and_deno_and_bun_and_pnpm,
        uv_and_pipx_and_own_scripts, conda, sdkman_and_ghcup, homebrew, an_active_environment_of_python,
        a_prefix_of_npm,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", few(SETUPS, 8))
def test_every_tool_is_the_one_of_the_host(user_box, name):
    # proves TOOL-04, SAND-10, NEW-D4, NEW-D5
    home = Home(user_box)
    SETUPS[name](home)
    os.environ.pop("PYENV_VERSION", None)
    user_box.environ.update({**home.environ, "PATH": ":".join((*home.path, SYSTEM))})
    probe = f'for t in {" ".join(home.tools)}; do echo "$(command -v "$t"): $("$t" --version 2>&1)"; done'
    canaries = f"grep -rl CANARY {user_box.home} 2>/dev/null; true"
    writable = 'IFS=:; for d in $PATH; do [ -w "$d" ] && echo "$d"; done; true'

    outside = user_box.host("sh", "-c", probe)
    inside = user_box.sh(probe)

    for line in outside.stdout.splitlines():
        assert "not found" not in line, line
        assert line.startswith("/"), line
    assert len(outside.stdout.splitlines()) >= len(set(home.tools))
    assert inside.stdout == outside.stdout, inside.stderr
    assert user_box.sh(canaries).stdout == ""
    assert user_box.sh(writable).stdout == ""
    order = user_box.sh("echo $PATH").stdout.strip().split(":")
    assert order == ["/run/claudebox/bin", *home.path, *SYSTEM.split(":")]
    assert "not inside" not in inside.stderr


def test_none_and_the_strict_profile_show_only_the_system(user_box):
    # proves TOOL-04
    home = Home(user_box)
    rust(home)
    user_box.environ["PATH"] = ":".join((*home.path, SYSTEM))
    probe = "command -v rustup || echo none"

    assert user_box.sh(probe).stdout == f"{home.root}/.cargo/bin/rustup\n"
    for flags in (("--toolchain", "none"), ("--profile", "strict", "--network", "full")):
        assert user_box.sh(probe, flags=flags).stdout == "none\n", flags
    user_box.write(f"{home.root}/.claudebox/config.toml", 'toolchains = "none"\n')
    assert user_box.sh(probe).stdout == "none\n"
    user_box.write(f"{home.root}/.claudebox/config.toml", 'toolchains = ["go"]\n')
    assert user_box.sh(probe).stdout == "none\n"
    assert user_box.sh(probe, flags=("--toolchain", "auto")).stdout == f"{home.root}/.cargo/bin/rustup\n"


def test_an_environment_that_is_active_in_the_project_is_used_and_shows_nothing_else(user_box):
    # proves TOOL-04, C04
    box, real = user_box, f"{user_box.project}/.venv"
    box.host("/usr/bin/python3", "-m", "venv", "--without-pip", real).check_returncode()
    box.write(".venv/bin/tool", f"#!{real}/bin/python\nimport sys\nprint(sys.prefix)\n", mode=0o755)
    box.write(f"{box.home}/tools/bin/own", "#!/bin/sh\n# CANARY\n", mode=0o755)
    box.host("ln", "-s", f"{box.home}/tools/bin/own", f"{real}/bin/planted").check_returncode()
    probe = "command -v tool; command -v python; tool; cat .venv/bin/planted || echo closed"
    box.environ["PATH"] = f"{real}/bin:/usr/bin:/bin"

    assert "tool of" in box.run("tool").stderr  # on PATH, but not activated
    box.environ["VIRTUAL_ENV"] = real
    inside = box.sh(probe)

    assert inside.stdout == f"{real}/bin/tool\n{real}/bin/python\n{real}\nclosed\n", inside.stderr
    assert "not inside" not in inside.stderr
    assert "CANARY" in box.host("sh", "-c", probe).stdout
