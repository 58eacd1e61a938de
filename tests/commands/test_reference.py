from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from scripts import reference
from tests.conftest import REPOSITORY

from claudebox import SUMMARY, __version__
from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.commands import usage as helping
from claudebox.settings import layers
from claudebox.settings.records import Setting
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS

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


def test_every_flag_and_verb_is_in_the_man_page_and_in_the_help():
    page, flags = reference.man_page().replace("\\-", "-"), "\n".join(helping.flags_text())

    for row in SETTINGS:
        assert all(flag in page and flag in flags for flag in row.flags)
        assert all(f"`{choice}`" in row.help and choice in page for choice in row.choices), row.key
    assert [verb.word for verb in VERBS if f"\\fB{verb.word}" not in page] == []


def test_help_is_one_screen():
    # proves CLI-01, SAND-14
    lines = list(helping.help_text())

    assert len(lines) < 24  # and the prompt below it
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert __version__ in text
    assert SUMMARY[1:] in text
    assert [
        verb.word for verb in VERBS if not re.search(rf"^  {verb.group} .*\b{verb.word}\b", text, re.MULTILINE)
    ] == []
    assert [row.key for row in SETTINGS if row.brief and f"{row.flags[-1]} " not in text] == []
    assert 15 < sum(bool(row.brief) for row in SETTINGS) < 22
    for command, _ in helping.EXAMPLES:
        assert not {*layers.parse_arguments(shlex.split(command)[1:]).words} & {"new", "codex"}
    assert {*helping.TOPICS} <= {*lines[-1].replace(".", "").split()}


@pytest.mark.parametrize(
    "topic", [*helping.TOPICS, *(verb.word for verb in VERBS), "settings undo_keep", "schema task"]
)
def test_every_topic_has_help(topic, capfd):
    # proves CLI-01
    flags = layers.parse_arguments(["help", *topic.split()])

    assert helping.run(flags, {"HOME": "/nonexistent", "PATH": "/usr/bin"}) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines
    if topic not in ("agents", "schema", "schema task"):
        assert max(map(len, lines)) <= 80
    if topic == "settings":
        assert {row.file_key for row in SETTINGS if row.in_files != "none"} <= {
            line.split()[0] for line in lines if line
        }
    if topic == "agents":
        assert {*kinds.NAMES} <= {line.split()[0] for line in lines if line}


@pytest.mark.parametrize(("argv", "named"), [(["nothing"], "nothing"), (["settings", "netwrok"], "network"),
                                             (["undo", "x"], "x"), (["schema", "x"], "x")])  # fmt: skip
def test_help_on_nothing_is_refused_with_what_there_is(argv, named):
    with pytest.raises(ClaudeboxError) as caught:
        list(helping._answer(layers.parse_arguments(["help", *argv]), {}))

    assert named in f"{caught.value.message} {caught.value.hint}"


def test_every_setting_is_explained():
    for row in SETTINGS:
        if row.in_files != "none":
            assert len(list(helping._answer(layers.parse_arguments(["help", "settings", row.file_key]), {}))) > 4


def test_help_groups_every_flag_once_and_names_every_status():
    # proves SAND-14
    text = "\n" + "\n".join(helping.flags_text())

    for row in SETTINGS:
        assert not row.flags or text.count(f"\n{row.group}:\n") == 1
    for status in ("125", "126", "127", "130"):
        assert f"\n  {status} " in text


def test_one_place_says_what_claudebox_is():
    for file in ("pyproject.toml", "package.nix", "flake.nix"):
        assert f'description = "{SUMMARY}"' in (REPOSITORY / file).read_text(), file


def test_the_man_page_is_understood_without_complaint(tmp_path, with_new_row):
    page = reference.man_page()
    assert page.startswith(".TH CLAUDEBOX 1")
    assert not [line for line in page.splitlines() if line.startswith("'")]
    for line in page.splitlines():
        if line.startswith("."):
            assert line.split()[0] in (".TH", ".SH", ".TP", ".PP", ".br", ".BR"), line

    program = shutil.which("groff") or shutil.which("mandoc")
    if program is None:
        pytest.skip("neither groff nor mandoc is installed")
    words = ["-man", "-ww", "-Tutf8"] if program.endswith("groff") else ["-Tlint"]
    result = subprocess.run([program, *words], input=page, capture_output=True, text=True, check=True)
    assert result.stderr == ""
