from __future__ import annotations

import shutil
import subprocess
import sys

from tests.conftest import REPOSITORY

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


def test_trace_lists_the_tests_of_an_id(tmp_path):
    for part in ("scripts", "docs"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text("def test_one_thing():\n    # proves SAND-02, A01\n    assert 1\n")

    made = subprocess.run([str(tmp_path / "scripts/trace")], capture_output=True, encoding="utf-8", check=False)

    assert made.returncode == 1  # of the other ids none has a test
    row = next(line for line in made.stdout.splitlines() if line.startswith("| A01 |"))
    assert row.endswith("| tests/test_one.py: one thing |")
    assert "SAND-01" in made.stderr
