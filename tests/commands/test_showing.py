"""Flags that show something and stop."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from tests.commands.conftest import tree
from tests.conftest import need

import claudebox
from claudebox.agent.claude import CLAUDE
from claudebox.settings.table import SETTINGS


@pytest.mark.parametrize("words", [("help",), ("--help",), ("help", "flags")])
def test_help_is_on_standard_output(user_box, words):
    # proves SAND-14
    result = user_box.claudebox(*words)

    assert (result.returncode, result.stderr) == (0, "")
    for row in SETTINGS if words[1:] else ():
        assert all(name in result.stdout for name in row.flags)


def test_help_is_shown_even_where_nothing_else_works(user_box):
    result = user_box.claudebox("--check", "--shell", "--help", "stray", env={"HOME": "", "PATH": ""}, cwd="/")

    assert result.returncode == 0
    assert "usage:" in result.stdout


def test_version_is_one_line(user_box):
    result = user_box.claudebox("--version")

    assert (result.returncode, result.stdout, result.stderr) == (0, f"claudebox {claudebox.__version__}\n", "")


@pytest.mark.parametrize("repository", [False, True])
@pytest.mark.parametrize(
    "flags", [("--dry-run",), ("--explain",), ("--explain", "--json"), ("--help",), ("--version",)]
)
def test_showing_writes_nothing(client_box, flags, repository):
    # proves UX-04
    client_box.write("src/file", "x")
    client_box.write(f"{client_box.home}/.gitconfig", "[user]\nname = Alice\n")
    if repository:
        need(shutil.which("git"), "git")
        client_box.host("git", "init", "-q")
    before = tree(client_box.base)
    result = client_box.claudebox(*flags)

    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert tree(client_box.base) == before


def test_a_launch_does_write_so_that_the_tests_above_can_fail(client_box):
    before = tree(client_box.base)
    assert client_box.run("true").returncode == 0
    assert tree(client_box.base) != before


# Everything but open descriptors: bash keeps the pipes of its own.
PROBE = (
    "id -u; id -un; pwd; echo $-; hostname; ls -a / /etc /dev ~ .; "
    "cat /etc/passwd /etc/resolv.conf /etc/hosts ~/.gitconfig; "
    "cut -d' ' -f5,6 /proc/self/mountinfo | sort; grep -E 'Seccomp|NoNewPrivs|Cap|Sig(Ign|Blk)' /proc/self/status; "
    "tr '\\0' '\\n' </proc/self/environ | grep -vE '^(_|PWD|OLDPWD|SHLVL)=' | sort; exit 7"
)


@pytest.mark.parametrize("repository", [False, True])
def test_the_dry_run_can_be_pasted_and_gives_the_same_sandbox(box, repository):
    # proves UX-04
    if repository:
        need(shutil.which("git"), "git")
        box.host("git", "init", "-q")
    box.write(f"{box.home}/.gitconfig", '[user]\nname = "It\'s \\\\ 100%"\n')
    before = tree(box.project)
    flags = ("--env", "ODD", "--mount-ro", f"{box.mkdir(f'{box.base}/data')}:/mnt/it's; $(x)")
    environ = {"ODD": "a'b\n$(id) \\x41 \udcff", "EDITOR": 'vi -c "x"'}
    real = box.sh(PROBE, flags=flags, env=environ)
    assert real.returncode == 7, real.stderr
    shown = box.claudebox("--dry-run", *flags, "--exec", "--", "sh", "-c", PROBE, env=environ)
    assert shown.returncode == 0, shown.stderr
    assert all(line.isprintable() for line in shown.stdout.splitlines())

    pasted = box.host("/bin/bash", "--norc", input=shown.stdout)
    assert pasted.stdout.splitlines() == real.stdout.splitlines()
    assert (pasted.returncode, pasted.stderr) == (7, "")
    assert {path: facts[:2] for path, facts in tree(box.project).items()} == {
        path: facts[:2] for path, facts in before.items()
    }


def test_no_rendering_shows_the_value_of_a_secret(client_box):
    # proves UX-01, UX-04, B13, SEC-01
    environ = {"ANTHROPIC_API_KEY": "sk-ant-CANARY-one", "GH_TOKEN": "CANARY-two", "PROXY_X": "http://u:CANARY-3@h"}
    asked = ("--env", "GH_TOKEN", "--env", "PROXY_X")
    for flags in (("--dry-run",), ("--explain",), ("--explain", "--json"), ("-y", "--exec", "--", "true")):
        result = client_box.claudebox(*asked, *flags, env=environ)
        assert result.returncode == 0, result.stderr
        assert "CANARY" not in result.stdout + result.stderr
        assert "GH_TOKEN" in result.stdout + result.stderr
        assert "ANTHROPIC_API_KEY" in result.stdout + result.stderr
    flags = ("--set", "auth=passthrough", "--env", "GH_TOKEN")
    inside = client_box.run("sh", "-c", "echo $ANTHROPIC_API_KEY $GH_TOKEN", flags=flags, env=environ)
    assert inside.stdout == "sk-ant-CANARY-one CANARY-two\n"


def test_the_dry_run_masks_the_key_in_its_place(client_box):
    # proves UX-04
    key = {"ANTHROPIC_API_KEY": "sk-ant-CANARY"}
    result = client_box.claudebox("--dry-run", "--set", "auth=passthrough", env=key)
    outside = client_box.claudebox("--dry-run", env=key)

    assert "  --setenv ANTHROPIC_API_KEY ssh-placeholder \\" in outside.stdout.splitlines()
    assert "CANARY" not in outside.stdout + outside.stderr
    assert "  --setenv ANTHROPIC_API_KEY '***' \\" in result.stdout.splitlines()
    assert "/run/claudebox/bin/claude --dangerously-skip-permissions" in result.stdout


def test_explain_gives_reasons_and_origins(client_box):
    # proves SAND-04
    result = client_box.claudebox("--explain", "--env", "MY_FLAG", env={"MY_FLAG": "on"})

    assert result.returncode == 0
    assert "the project" in result.stdout
    assert "MY_FLAG=on" in result.stdout
    assert "--env: asked for" in result.stdout
    assert "own namespaces: user, pid" in result.stdout


def test_explain_for_machines_is_json(client_box):
    client_box.environ["A_TOKEN"] = "x"
    document = json.loads(client_box.claudebox("--explain", "--json").stdout)

    mounts = {row["dest"]: row for row in document["mounts"]}
    assert mounts[client_box.project]["access"] == "writable"
    assert mounts["/proc"]["reason"]
    assert document["command"][0] == "/run/claudebox/bin/claude"
    assert document["withheld"][0] == "A_TOKEN"


def test_the_plan_that_is_explained_is_the_one_that_runs(client_box):
    # proves UX-01, E07
    document = json.loads(client_box.claudebox("--explain", "--json", "--exec", "--", "true").stdout)
    inside = client_box.run("env").stdout.splitlines()

    made = {f"{row['name']}={row['value']}" for row in document["variables"]}
    assert made == {line for line in inside if not line.startswith(("_=", "PWD=", "OLDPWD=", "SHLVL="))}


def machine_without_a_client() -> bool:
    return not [place for place in CLAUDE.places if place.startswith("/") and os.path.lexists(place)]


def test_check_is_content_where_a_launch_works(client_box):
    # proves UX-05
    result = client_box.claudebox("--check")

    assert result.returncode == 0, result.stdout
    assert "failed" not in result.stdout
    assert f"client: {client_box.base}/bin/claude" in result.stdout
    assert "program ran in this sandbox" in result.stdout
    assert result.stdout.splitlines()[-1] == "a launch will work"


def test_check_without_a_client_fails_and_says_what_to_do(user_box):
    # proves UX-05
    need(machine_without_a_client(), "place for claude that is empty")
    result = user_box.claudebox("--check")

    assert result.returncode == 1
    lines = result.stdout.splitlines()
    position = next(index for index, line in enumerate(lines) if line.startswith("failed") and "`claude`" in line)
    assert "npm install -g @anthropic-ai/claude-code" in lines[position + 1]
    assert lines[-1] == "a launch would fail; see above"


def test_check_for_machines_is_json(client_box):
    # proves UX-05
    result = client_box.claudebox("--check", "--json")
    document = json.loads(result.stdout)

    assert result.returncode == 0
    assert document["ok"] is True
    assert {finding["status"] for finding in document["findings"]} <= {"ok", "warning", "failed"}
    assert {"launch", "client", "terminal", "state"} <= {finding["name"] for finding in document["findings"]}

    os.unlink(f"{client_box.base}/bin/claude")
    need(machine_without_a_client(), "place for claude that is empty")
    result = client_box.claudebox("--check", "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["ok"]) == (1, False)
    assert all(finding["remedy"] for finding in document["findings"] if finding["status"] == "failed")


def test_check_looks_at_who_can_read_the_state(client_box):
    # proves UX-05, C29
    os.chmod(client_box.mkdir(f"{client_box.home}/.claudebox"), 0o755)
    result = client_box.claudebox("--check")

    assert result.returncode == 0  # a launch starts: what is secret in there is readable by nobody else
    assert "open to others" in result.stdout
    assert f"chmod 700 {client_box.home}/.claudebox" in result.stdout

    os.chmod(f"{client_box.home}/.claudebox", 0o700)
    assert "open to others" not in client_box.claudebox("--check").stdout


def test_check_leaves_nothing_behind(client_box):
    # proves UX-05
    before = tree(client_box.base)
    client_box.claudebox("--check")

    def unchanged(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
        return {path: row if os.path.isfile(path) else row[:2] for path, row in found.items()}

    assert unchanged(tree(client_box.base)) == unchanged(before)  # directories are used, and then as they were
