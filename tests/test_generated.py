from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from tests.conftest import REPOSITORY, need

from claudebox.config.options import SETTINGS

GENERATE = REPOSITORY / "scripts/generate.py"


def test_everything_that_is_generated_is_up_to_date():
    result = subprocess.run(
        [sys.executable, "-I", GENERATE, "--check"], capture_output=True, encoding="utf-8", check=False
    )

    assert result.stdout == ""
    assert result.returncode == 0, result.stderr


def test_a_stale_file_is_noticed_and_written_anew(tmp_path):
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("scripts", "docs", "man", "completions"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text("def test_one_thing():\n    # proves SAND-02, A01\n    assert 1\n")
    page = tmp_path / "man/claudebox.1"
    page.write_text("old")
    argv = [sys.executable, "-I", str(tmp_path / "scripts/generate.py")]

    before = subprocess.run([*argv, "--check"], capture_output=True, encoding="utf-8", check=False)
    subprocess.run(argv, capture_output=True, check=True)
    after = subprocess.run([*argv, "--check"], capture_output=True, encoding="utf-8", check=False)

    assert before.returncode == 1
    assert "man/claudebox.1 is stale" in before.stdout
    assert after.returncode == 0
    assert page.read_text().startswith(".TH CLAUDEBOX 1")
    row = next(line for line in (tmp_path / "docs/threats.md").read_text().splitlines() if line.startswith("| A01 |"))
    assert row.endswith("| [one thing](../tests/test_one.py) |")


def test_the_man_page_is_sound_and_names_every_flag():
    page = REPOSITORY / "man/claudebox.1"
    need(shutil.which("man"), "man")

    result = subprocess.run(
        ["man", "--warnings", "-l", str(page)],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat", "MANWIDTH": "100"},
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    shown = re.sub(r".\x08", "", result.stdout)

    assert result.stderr == ""
    for row in SETTINGS:
        assert all(flag in shown for flag in row.flags)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("--dry", ["--dry-run"]), ("--network n", ["none"]), ("--env HOM", ["HOME"]), ("-y --exec -- --dr", [])],
)
def test_bash_completes_what_is_ours_and_nothing_after_the_dashes(words, expected, tmp_path):
    script = (
        "source completions/claudebox.bash; "
        f"COMP_WORDS=(claudebox {words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _claudebox; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )

    result = subprocess.run(
        ["bash", "-c", script], cwd=REPOSITORY, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip

    assert result.stderr == ""
    assert result.stdout.split() == expected


def test_fish_completes_flags_and_values(tmp_path):
    need(shutil.which("fish"), "fish")
    script = 'source completions/claudebox.fish; complete -C "claudebox --netw"; complete -C "claudebox --network "'

    result = subprocess.run(
        ["fish", "--no-config", "-c", script], cwd=REPOSITORY, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip

    completed = [line.partition("\t")[0] for line in result.stdout.splitlines()]
    assert completed == ["--network", *sorted(next(row.choices for row in SETTINGS if row.key == "network"))]


@pytest.mark.parametrize(("shell", "file"), [("zsh", "_claudebox"), ("fish", "claudebox.fish")])
def test_other_shells_can_parse_their_completion(shell, file):
    need(shutil.which(shell), shell)

    result = subprocess.run([shell, "-n", REPOSITORY / "completions" / file], capture_output=True, check=False)

    assert (result.returncode, result.stderr) == (0, b"")
