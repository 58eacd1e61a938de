"""The project's own dev shell: made inside, and never on the host."""

from __future__ import annotations

import os

import pytest

# It would say so on the host too: evaluation, the build and the hook each leave a mark where they ran.
FLAKE = """
{{
  inputs.set.url = "path:{source}";
  outputs = {{ self, set }}: {{
    devShells.x86_64-linux.default = derivation {{
      inherit (set.devShells.x86_64-linux.default) system outputs builder args stdenv packages FROM_SHELL;
      name = "shell";
      PYTHONPATH = "/of/the/shell";
      HOME = "/home/of/a/build";
      TMPDIR = "/tmp/of/a/build";
      shellHook = "export HOOK=$CLAUDEBOX; cat ~/secret 2>/dev/null; touch hook-ran";
    }};
  }};
}}
"""


def shell(box) -> None:
    box.write("flake.nix", FLAKE.format(source=box.daemon.source))


def test_the_shell_of_the_project_is_entered_inside(nix_box):
    # proves PKG-01
    shell(nix_box)
    nix_box.write(f"{nix_box.home}/secret", "of the home")

    result = nix_box.sh(
        'hello; echo "$FROM_SHELL"; echo "$PYTHONPATH"; test "$HOOK" = "$CLAUDEBOX" && echo hooked; echo $HOME; '
        "echo $TMPDIR $SHELL $TERM; echo ${out-}${name-}${builder-}${NIX_BUILD_TOP-}${TEMP-}; echo $PATH; "
        "echo $NIX_REMOTE; pwd",
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        "Hello, world!", "a value with blanks", "/of/the/shell", "hooked", nix_box.home, "/tmp /bin/bash xterm",
    ]  # fmt: skip
    dropped, path, remote, here = lines[6:]
    assert (dropped, remote, here) == ("", "daemon", nix_box.project)
    assert "path-not-set" not in path
    assert path.endswith("/run/claudebox/bin:/usr/local/bin:/usr/bin:/bin")
    assert "of the home" not in result.stdout
    assert os.path.exists(f"{nix_box.project}/hook-ran")


def test_a_shell_without_flakes_is_entered_too(nix_box):
    nix_box.write(
        "shell.nix",
        f'(builtins.getFlake "path:{nix_box.daemon.source}").devShells.${{builtins.currentSystem}}.default',
    )

    result = nix_box.sh(
        'hello "$FROM_SHELL"',
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout == "Hello, a value with blanks!\n", result.stderr


def test_words_and_status_of_the_program_pass_unchanged(nix_box):
    # proves SAND-14, D-01
    shell(nix_box)

    result = nix_box.run(
        "sh",
        "-c",
        'printf "<%s>" "$@"; exit 7',
        "sh",
        "a b",
        "*",
        "$HOME",
        "",
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout == "<a b><*><$HOME><>"
    assert result.returncode == 7


def test_the_host_evaluates_nothing_of_the_project(nix_box, overhear):
    # proves PKG-01
    shell(nix_box)
    ran = overhear(nix_box)

    assert (
        nix_box.sh(
            "hello",
            flags=(
                "--set",
                "devshell=true",
            ),
        ).stdout
        == "Hello, world!\n"
    )
    assert ran() == []

    package = ("--set", f"nixpkgs={nix_box.daemon.packages}", "--package", "hello")
    assert nix_box.sh("hello", flags=(*package, "--set", "devshell=true")).stdout == "Hello, world!\n"
    assert [line for line in ran() if "build" in line]


@pytest.mark.parametrize(("content", "flags", "reason"), [
    ("", (), "this project has no dev shell"),
    (FLAKE, ("--network", "none"), "needs Nix there, which is off"),
    (FLAKE, ("--set", "nix=off"), "needs Nix there, which is off"),
    ("{ outputs = _: throw ''never to be had''; }", (), "could not be made; see above"),
])  # fmt: skip
def test_a_shell_that_cannot_be_made_stops_the_launch(nix_box, content, flags, reason):
    # proves PKG-01
    if content:
        nix_box.write("flake.nix", content.format(source=nix_box.daemon.source) if content == FLAKE else content)

    result = nix_box.sh("echo started", flags=("--set", "devshell=true", *flags))

    assert (result.returncode, result.stdout) == (125, "")
    assert reason in result.stderr


def test_a_repository_with_a_shell_works_too(nix_box):
    # proves GIT-01
    shell(nix_box)
    for words in (("init", "-q"), ("add", "flake.nix")):
        assert nix_box.host("git", *words).returncode == 0

    result = nix_box.sh(
        "hello; nix flake metadata . | grep -c git+file",
        flags=(
            "--set",
            "devshell=true",
        ),
    )

    assert result.stdout.splitlines()[0] == "Hello, world!", result.stderr


def test_a_project_that_is_no_repository_can_be_built_as_a_whole(nix_box):
    # proves SEC-04
    source = nix_box.daemon.source
    outputs = "outputs = { self, s }: { inherit (s) packages; };"
    nix_box.write("flake.nix", f'{{ inputs.s.url = "path:{source}"; {outputs} }}')

    result = nix_box.sh("nix run path:.#hello; ls -ld .mcp.json; echo '{}' >.mcp.json; ls .vscode")

    assert result.stdout.splitlines()[0] == "Hello, world!", result.stderr
    assert not os.path.exists(f"{nix_box.project}/.mcp.json")
