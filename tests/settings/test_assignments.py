"""`--set KEY=VALUE`, `--env NAME=VALUE` and `--env-file FILE`."""

from __future__ import annotations

import json
import os
import re

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import layers
from claudebox.settings.layers import SettingValue


def decide(*argv):
    return layers.decide_policy(layers.read_settings([*argv, "--shell"], {}), home="/h", workdir="/w")


def test_any_setting_can_be_set_as_in_a_file():
    # proves CLI-01
    found = decide(
        *("--set", "network=inet", "--set=pids=99", "--set", "gpu=true", "--set", "allow_host_port=80"),
        *("--set", 'allow_host_port=["81"]', "--set", "allow_addresses=[fd77::50]:22"),
        *("--set", "env.A=b=c", "--set", 'mounts=[{host = "/srv", mode = "rw"}]'),
        *("--set", "submounts=mask", "--set", 'terminal="filtered"'),
    )  # fmt: skip

    assert found.network == "inet"
    assert (found.network_origin, found.gpu) == ("--set network", "--set gpu")
    assert found.limits is not None
    assert found.limits.processes == 99
    assert found.host_ports == (80, 81)
    assert [(row.prefix, row.port) for row in found.addresses] == [("fd77::50/128", 22)]
    assert [(row.name, row.value) for row in found.constants] == [("A", "b=c")]
    assert [(row.source, row.writable) for row in found.mounts] == [("/srv", True)]
    assert (found.submounts, found.filter_terminal) == ("mask", True)


def test_the_last_word_wins_whichever_way_it_is_said():
    assert decide("--network", "none", "--set", "network=inet").network == "inet"
    assert decide("--set", "network=inet", "--network", "none").network == "none"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("network", "`--set` needs KEY=VALUE, not `network`"),
        ("network=lan", "`network` must be `full`.*`lan`"),
        ("netwrok=inet", "`netwrok` is not a setting; did you mean `network`"),
        ("network=", "`network` must be `full`"),
        ("pids=1", "`pids` must be .* 16"),
        ("gpu=maybe", "`gpu` must be true or false"),
        ("mounts=/srv", "`mounts` must be .*\\[\\[mounts\\]\\]"),
        ("mounts=[{", "--set mounts"),
        ("extends=strict", "`extends` belongs in a profile"),
        ("check=true", "`check` is a flag for the command line"),
        ("undo_keep.x=3", "undo_keep"),
    ],
)
def test_a_wrong_assignment_says_what_would_be_right(assignment, message):
    # proves CLI-01
    with pytest.raises(ClaudeboxError, match=message):
        layers.parse_arguments(["--set", assignment])


def test_a_variable_is_passed_by_its_name_and_set_with_a_value():
    read = layers.parse_arguments(["--env", "A", "--env", "B=c=d", "--env=E="])

    assert read.all("env") == (SettingValue("A", "--env"),)
    assert read.all("set_env") == (SettingValue("B=c=d", "--env"), SettingValue("E=", "--env"))


FILE = """# the test server
NODE_ENV=test
export GREETING="hello  there"
  API_TOKEN = sk-live-51aKq9w8e7r6t5y4u3i2o1p

QUOTE='
"""
HIDDEN = ("sk-live-51aKq9w8e7r6t5y4u3i2o1p", "hello  there")


def write(box, text=FILE):
    with open(f"{box.project}/test.env", "w", encoding="utf-8") as file:
        file.write(text)


def test_a_file_of_variables_enters_and_its_values_are_never_shown(user_box):
    # proves CLI-01, SEC-01
    write(user_box)
    flags = ("--env-file", "test.env", "--env", "NODE_ENV=mine")
    script = 'echo "$NODE_ENV|$GREETING|$API_TOKEN|$QUOTE"'

    inside = user_box.claudebox("-y", *flags, "--exec", "--", "sh", "-c", script)
    assert inside.stdout == f"mine|{HIDDEN[1]}|{HIDDEN[0]}|'\n"
    shown = [user_box.claudebox(*flags, *words, "--exec", "--", "true")
             for words in (("--explain",), ("--explain", "--json"), ("--dry-run",))]  # fmt: skip
    for result in (inside, *shown):
        text = result.stderr if result is inside else result.stdout + result.stderr
        assert not [value for value in HIDDEN if value in text]
    assert "test.env:4" in shown[0].stdout
    rows = {row["name"]: row for row in json.loads(shown[1].stdout)["variables"]}
    assert rows["GREETING"]["value"] is None
    assert rows["NODE_ENV"]["value"] == "mine"


@pytest.mark.parametrize("text", ["A B=hidden\n", "hidden\n", "=hidden\n", "1A=hidden"])
def test_a_wrong_line_is_named_by_its_number_and_not_quoted(user_box, text):
    write(user_box, f"GOOD=1\n{text}")

    result = user_box.claudebox("--env-file", "test.env", "--explain", "--exec", "--", "true")

    assert result.returncode == 125
    assert re.search("test.env:2.*NAME=VALUE", result.stderr)
    assert "hidden" not in result.stderr


def test_a_file_of_variables_that_is_none_is_named_and_a_pipe_of_the_shell_is_read(user_box):
    os.mkfifo(f"{user_box.project}/pipe.env")
    for name in ("no.env", "pipe.env"):
        refused = user_box.claudebox("--env-file", name, "--explain", "--shell")
        assert (refused.returncode, name in refused.stderr) == (125, True)

    line = f"echo A=1 | {user_box.program} -y --env-file /dev/stdin --exec -- sh -c 'echo $A'"
    assert user_box.host("sh", "-c", line).stdout == "1\n"
