from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from scripts import reference

from claudebox.commands import usage as helping
from claudebox.settings import layers
from claudebox.settings.records import Setting
from claudebox.settings.table import SETTINGS

RENDERINGS = {
    "help": lambda: "\n".join(helping.help_text()),
    "man page": reference.man_page,
    "bash": reference.bash_completion,
    "zsh": reference.zsh_completion,
    "fish": reference.fish_completion,
}
NEW = Setting(
    "weather", ("-w", "--weather"), "choice", "Restrictions", "`sun`: bright; `rain`: it's [wet]: 100% \"so\"",
    metavar="SKY", choices=("sun", "rain"), default="sun",
)  # fmt: skip


@pytest.fixture
def with_new_row(monkeypatch):
    """Add a row to the table, and to the modules that hold the table."""
    rows = (*SETTINGS, NEW)
    monkeypatch.setattr(layers, "SETTINGS", rows)
    monkeypatch.setattr(reference, "SETTINGS", rows)


def spelled(rendering: str, flag: str) -> str:
    """Return how a rendering writes a flag."""
    if rendering == "man page":
        return flag.replace("-", "\\-")
    if rendering == "fish":
        return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
    return flag


@pytest.mark.parametrize("rendering", sorted(RENDERINGS))
def test_every_flag_of_the_table_is_there(rendering):
    text = RENDERINGS[rendering]()

    for row in SETTINGS:
        for flag in row.flags:
            assert spelled(rendering, flag) in text
        for choice in row.choices if row.flags else ():
            assert choice in text


def test_help_fits_a_narrow_terminal_and_names_every_status():
    # proves SAND-14
    lines = list(helping.help_text())

    assert max(map(len, lines)) <= 100
    for status in ("125", "126", "127", "130"):
        assert any(line.split()[:1] == [status] for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_help_groups_every_row_once():
    text = "\n".join(helping.help_text())

    for row in SETTINGS:
        assert text.count(f"\n{row.group}:\n") == 1


def bash(script: str) -> str:
    return subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=10,
        env={"PATH": os.environ["PATH"], "EXPORTED_NAME": "1"},
    ).stdout  # fmt: skip


def complete(*words: str, cwd: str = "/") -> list[str]:
    """Return what bash would offer for the last word, after pressing TAB."""
    quoted = " ".join(f"'{word}'" for word in ("claudebox", *words))
    script = f"""
        cd '{cwd}'
        {reference.bash_completion()}
        COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
        _claudebox
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return [line for line in bash(script).splitlines() if line]


def test_the_completion_for_bash_is_valid(with_new_row):
    script = reference.bash_completion()

    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "-F _claudebox" in bash(f"{script}\ncomplete -p claudebox")


def test_tab_completes_flags():
    assert complete("--net") == ["--network"]
    assert complete("--mount") == ["--mount-ro", "--mount-rw"]
    assert set(complete("-")) == {flag for row in SETTINGS for flag in row.flags}


def test_tab_completes_the_values_of_a_choice():
    tiers = next(row for row in SETTINGS if row.key == "network").choices

    assert complete("--network", "") == list(tiers)
    assert complete("--network", "no") == ["none"]
    assert complete("-y", "--network", "f") == ["full"]
    assert complete("--toolchain", "ru") == ["rust", "ruby"]


def test_tab_completes_names_of_variables():
    assert complete("--env", "EXPORTED_N") == ["EXPORTED_NAME"]
    assert complete("--toolchain", "EXPORTED_N") == []


def test_tab_completes_paths(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "other").mkdir()

    for flag in ("--mount-ro", "--mount-rw"):
        assert complete(flag, "a", cwd=str(tmp_path)) == ["a b"]


def test_tab_leaves_the_clients_words_alone(tmp_path):
    # proves D-01
    (tmp_path / "file.txt").touch()

    assert complete("hello", cwd=str(tmp_path)) == []
    assert complete("--", "fi", cwd=str(tmp_path)) == ["file.txt"]
    assert complete("--exec", "--", "--net", cwd=str(tmp_path)) == []


@pytest.mark.parametrize(("shell", "rendering"), [("zsh", "zsh"), ("fish", "fish")])
def test_the_completions_for_other_shells_are_valid(shell, rendering, tmp_path, with_new_row):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "completion").write_text(RENDERINGS[rendering]())
    subprocess.run([program, "-n", f"{tmp_path}/completion"], check=True)


def test_a_quote_in_a_help_text_does_not_end_the_word_that_it_stands_in(with_new_row):
    for text, quote in ((reference.zsh_completion(), "'\\''"), (reference.fish_completion(), "\\'")):
        assert "the host" + quote + "s network" in text
        for line in text.replace(quote, "").splitlines():
            if not line.startswith("#"):
                assert line.count("'") % 2 == 0, line


def test_the_man_page_is_understood_without_complaint(tmp_path, with_new_row):
    page = reference.man_page()
    assert page.startswith(".TH CLAUDEBOX 1")
    assert not [line for line in page.splitlines() if line.startswith("'")]
    for line in page.splitlines():
        if line.startswith("."):
            assert line.split()[0] in (".TH", ".SH", ".TP", ".PP", ".B", ".BR"), line

    program = shutil.which("groff") or shutil.which("mandoc")
    if program is None:
        pytest.skip("neither groff nor mandoc is installed")
    words = ["-man", "-ww", "-Tutf8"] if program.endswith("groff") else ["-Tlint"]
    result = subprocess.run([program, *words], input=page, capture_output=True, text=True, check=True)
    assert result.stderr == ""
