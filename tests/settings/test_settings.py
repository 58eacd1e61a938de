from __future__ import annotations

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import layers
from claudebox.settings.layers import SettingValue
from claudebox.settings.table import SETTINGS


def test_defaults_know_that_they_are_defaults():
    # proves NET-T
    read = layers.read_settings([], {})

    assert read.one("network") == SettingValue("full", "default")
    assert read.words == ()
    assert not read.on("yes")
    assert read.all("env") == ()


def test_words_that_are_not_ours_go_to_the_client_in_their_order():
    # proves D-01
    read = layers.read_settings(["-p", "--model", "opus", "-y", "fix the bug", "--network", "none", "--resume"], {})

    assert read.words == ("-p", "--model", "opus", "fix the bug", "--resume")
    assert read.on("yes")
    assert read.one("network") == SettingValue("none", "--network")


def test_after_two_dashes_everything_is_the_clients():
    # proves D-01
    read = layers.read_settings(["-y", "--", "--check", "-y", "--", "--network", "bogus", "--env"], {})

    assert read.words == ("--check", "-y", "--", "--network", "bogus", "--env")
    assert not read.on("check")


@pytest.mark.parametrize("prompt", ["check", "version", "exec", "undo it", "Undo", "-- undo", "undo --help"])
def test_a_prompt_is_never_mistaken_for_a_command_of_ours(prompt):
    # proves D-01
    read = layers.read_settings([prompt], {})

    assert read.words == (prompt,)
    assert set(read.given) == {row.key for row in SETTINGS if row.shape == "choice"}


@pytest.mark.parametrize("word", ["--net", "--networks", "-Y", "--YES", "-yy", "-", "--envx=A", "=", "--=x"])
def test_a_word_that_only_resembles_a_flag_of_ours_is_not_claimed(word):
    # proves D-01
    assert layers.read_settings([word], {}).words == (word,)


def test_a_value_may_follow_its_flag_or_be_joined_to_it():
    apart = layers.read_settings(["--env", "A", "--mount-ro", "/a:/b"], {})
    joined = layers.read_settings(["--env=A", "--mount-ro=/a:/b"], {})

    assert apart.given == joined.given
    assert apart.all("env") == (SettingValue("A", "--env"),)


def test_only_the_first_equals_sign_splits():
    assert layers.read_settings(["--mount-ro=/a=b"], {}).all("mount_ro") == (SettingValue("/a=b", "--mount-ro"),)


def test_lists_grow_and_choices_are_won_by_the_last():
    # proves NET-T
    read = layers.read_settings(["--env", "A", "--network", "none", "--env", "B", "--network", "full"], {})

    assert [given.value for given in read.all("env")] == ["A", "B"]
    assert read.one("network") == SettingValue("full", "--network")


def test_the_environment_adds_names_and_says_so():
    # proves D-03
    read = layers.read_settings(["--env", "C"], {"CLAUDEBOX_EXTRA_ENV": " A, B ,,"})

    assert read.all("env") == (
        SettingValue("A", "CLAUDEBOX_EXTRA_ENV"),
        SettingValue("B", "CLAUDEBOX_EXTRA_ENV"),
        SettingValue("C", "--env"),
    )


@pytest.mark.parametrize("value", ["", ",", " , "])
def test_an_empty_list_in_the_environment_is_no_name(value):
    assert layers.read_settings([], {"CLAUDEBOX_EXTRA_ENV": value}).all("env") == ()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--env"], r"`--env` needs a value: `--env NAME\[=VALUE\]`"),
        (["--mount-ro"], r"`--mount-ro` needs a value: `--mount-ro SRC\[:DEST\]`"),
        (["--network"], "`--network` needs a value: `--network TIER`"),
        (["--env="], "`--env` needs a value"),
        (["--env", ""], "`--env` needs a value"),
        (["--env", "A\0B"], "`--env` needs a value"),
        (["--network", "lan"], "`--network` must be `full`, .*`none`, not `lan`"),
        (["--network="], "`--network` must be `full`, .*not ``"),
        (["--network", "--"], "`--network` must be .*not `--`"),
        (["--yes=1"], "`--yes` takes no value"),
        (["-y=yes"], "`-y` takes no value"),
        (["--check", "--shell"], "`--shell` and `--check` cannot be combined"),
        (["--exec", "--shell", "--", "x"], "`--exec` and `--shell` cannot be combined"),
        (["--dry-run", "--explain"], "`--dry-run` and `--explain` cannot be combined"),
        (["--json"], "`--json` needs"),
        (["--json", "--dry-run"], "`--json` needs"),
    ],
)
def test_bad_input_is_refused_with_what_would_be_right(argv, message):
    with pytest.raises(ClaudeboxError, match=message) as caught:
        layers.read_settings(argv, {})

    assert caught.value.status == 125


@pytest.mark.parametrize("running", ["--exec", "--shell"])
@pytest.mark.parametrize("showing", ["--dry-run", "--explain"])
def test_what_would_run_can_be_shown_instead(running, showing):
    read = layers.read_settings([running, showing, "--", "true"], {})

    assert read.on(running[2:])
    assert read.on(showing[2:].replace("-", "_"))


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_win_over_a_contradiction(flag):
    assert layers.read_settings([flag, "--check", "--shell"], {}).on(flag[2:])


def test_every_row_of_the_table_is_well_formed():
    flags = [flag for row in SETTINGS for flag in row.flags]
    keys = [row.key for row in SETTINGS]
    assert len(set(flags)) == len(flags)
    assert len(set(keys)) == len(keys)
    for row in SETTINGS:
        assert row.help
        assert row.help[-1] != "."
        assert row.flags or row.in_files != "none"
        if row.flags:
            assert row.flags[-1] == f"--{row.key.replace('_', '-')}"
            assert bool(row.metavar) == (row.shape != "switch")
        assert all(flag[0] == "-" and "=" not in flag for flag in row.flags)
        assert bool(row.choices) == (row.shape == "choice")
        if row.choices:
            assert row.default in row.choices


@pytest.mark.parametrize(
    ("argv", "keys", "words"),
    [
        (["--bg", "do it"], {"detach"}, ("do it",)),
        (["--tmux"], {"detach"}, ()),
        # And nothing else does.
        (["-w", "feature", "-p", "go"], set(), ("-w", "feature", "-p", "go")),
        (["-p", "stop"], set(), ("-p", "stop")),
        (["stop the server"], set(), ("stop the server",)),
        (["--exec", "x", "--bg"], {"exec"}, ("x", "--bg")),
    ],
)
def test_the_clients_flags_for_the_background_lead_to_ours(argv, keys, words):
    # proves AGENT-04
    read = layers.parse_arguments(argv)

    assert read.given.keys() == keys
    assert read.words == words
