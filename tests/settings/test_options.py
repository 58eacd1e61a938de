"""One row in one table: everything else follows from it."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scripts import reference

from claudebox.base.errors import ClaudeboxError
from claudebox.commands import complete, profiles
from claudebox.commands import usage as helping
from claudebox.plan import explain
from claudebox.settings import document, parsers, trust
from claudebox.settings import files as settings_files
from claudebox.settings import layers as settings_layers
from claudebox.settings import table as settings_table
from claudebox.settings.layers import Layer, Settings, SettingValue
from claudebox.settings.records import Field, LimitRequest, NameRequest, Policy, Setting, UndoRequest
from claudebox.settings.table import SETTINGS

if TYPE_CHECKING:
    from claudebox.base.records import Value

NEW = (
    Setting(
        "weather", ("--weather",), "choice", "Restrictions", "`sun`: bright; `rain`: wet",
        metavar="SKY", choices=("sun", "rain"), default="sun", variable="CLAUDEBOX_WEATHER", in_files="project",
        widest="first",
    ),
    Setting(
        "birds", ("--bird",), "list", "What enters", "birds", metavar="BIRD", in_files="project",
        field="birds", parse=parsers.name,
    ),
    Setting(
        "nice", ("--nice",), "text", "Limits", "how nice", metavar="NUMBER", in_files="user",
        field="nice", parse=parsers.number(19),
    ),
    Setting(
        "garden", (), "rows", "What enters", "beds in the garden", in_files="user",
        fields=(Field("plant", "what grows there", example="rose"), Field("size", "how large", default="")),
    ),
)  # fmt: skip


class LongerPolicy(Policy):
    birds: tuple[NameRequest, ...] = ()
    nice: int = 0


@pytest.fixture
def longer_table(monkeypatch):
    rows = (*SETTINGS, *NEW)
    for module in (
        settings_table,
        settings_layers,
        settings_layers,
        document,
        trust,
        profiles,
        helping,
        reference,
        complete,
    ):
        monkeypatch.setattr(module, "SETTINGS", rows)
    monkeypatch.setattr(settings_layers, "Policy", LongerPolicy)


@pytest.fixture
def home(tmp_path):
    os.makedirs(tmp_path / ".claudebox", mode=0o700)
    return tmp_path


def layers(home, text):
    (home / ".claudebox/config.toml").write_text(text)
    return settings_files.layers(Settings({}), {}, settings_files.SettingsReader(str(home)))


def test_adding_one_row_is_enough_for_everything(home, longer_table, tmp_path):
    # proves PROF-01
    # flag and variable
    assert settings_layers.read_settings(["--weather", "rain", "--bird", "owl"], {}).one("weather").value == "rain"
    assert settings_layers.read_settings([], {"CLAUDEBOX_WEATHER": "rain"}).one("weather").origin == "CLAUDEBOX_WEATHER"
    # key in files, with errors
    text = 'weather = "rain"\nbirds = ["owl"]\n[[garden]]\nplant = "rose"\n'
    merged = settings_layers.merge(settings_layers.parse_arguments([]), {}, layers(home, text))
    assert merged.one("weather").origin == "~/.claudebox/config.toml:1"
    assert merged.one("garden").fields == {"plant": "rose", "size": ""}
    with pytest.raises(ClaudeboxError, match="`weather` must be `sun` or `rain`, not `rian`; did you mean `rain`"):
        layers(home, 'weather = "rian"')
    with pytest.raises(ClaudeboxError, match="did you mean `weather`"):
        layers(home, 'waether = "rain"')
    with pytest.raises(ClaudeboxError, match=r"config\.toml:2: `nice` must be a number from 0 to 19, not `20`"):
        layers(home, 'yes = true\nnice = "20"')
    # policy
    wanted: Any = settings_layers.decide_policy(
        settings_layers.merge(settings_layers.parse_arguments(["--nice", "7"]), {}, layers(home, text)),
        home="/h",
        workdir="/w",
    )
    assert (wanted.nice, [request.name for request in wanted.birds]) == (7, ["owl"])
    with pytest.raises(ClaudeboxError, match="`--nice` must be a number from 0 to 19, not `x`"):
        settings_layers.decide_policy(settings_layers.read_settings(["--nice", "x"], {}), home="/h", workdir="/w")
    # help, man page, completions
    assert "--weather SKY" in "\n".join(helping.flags_text())
    assert 'weather = "sun"' in "\n".join(helping.settings_text())
    assert [line.split()[0] for line in complete.list_candidates(["--weather", "r"], {})] == ["rain"]
    assert "garden" in reference.man_page()
    # schema, the file of --init
    properties = json.loads(profiles.schema_text())["properties"]
    assert properties["weather"]["enum"] == ["sun", "rain"]
    assert properties["garden"]["items"]["required"] == ["plant"]
    assert '#weather = "sun"' in profiles.text()
    assert "#[[garden]]" in profiles.text()
    # judgement of a project file
    changed = {change.text: change.widens for change in trust.changes(settings_layers.read_settings([], {}), merged)}
    assert changed["weather: sun -> rain"] is False
    assert changed["birds: + owl"] is True
    # --explain
    assert any("weather = rain" in line and "config.toml:1" in line for line in explain.origins(merged))


def test_every_row_fills_a_field_that_there_is():
    records: dict[str, type[Value]] = {"limits": LimitRequest, "undo": UndoRequest}
    for row in SETTINGS:
        record, _, field = row.field.rpartition(".")
        if row.field and record != "budget":
            kind = records[record] if record else Policy
            assert field in kind._fields, row.key


def test_without_the_rows_nothing_knows_them(home):
    with pytest.raises(ClaudeboxError, match="`weather` is not a setting"):
        layers(home, 'weather = "rain"')
    assert settings_layers.read_settings(["--weather"], {}).words == ("--weather",)


def test_the_schema_knows_every_key_and_no_other():
    # proves PROF-01
    document_of_schema = json.loads(profiles.schema_text())

    assert document_of_schema["additionalProperties"] is False
    assert set(document_of_schema["properties"]) == {row.file_key for row in SETTINGS if row.in_files != "none"}
    mounts = document_of_schema["properties"]["mounts"]["items"]
    assert mounts["required"] == ["host"]
    assert mounts["properties"]["mode"]["enum"] == ["ro", "rw"]


def test_the_file_of_init_changes_nothing_and_every_line_of_it_can_be_put_in_force(home):
    # proves PROF-01
    text = profiles.text()
    assert tomllib.loads(text) == {}

    lines = [line[1:] if line.startswith("#") and not line.startswith("# ") and line[1:2] != " " else line
             for line in text.splitlines()]  # fmt: skip
    document_of_all = "\n".join(line for line in lines if not line.startswith("#"))
    assert set(tomllib.loads(document_of_all)) == {
        row.file_key for row in SETTINGS if row.in_files in ("user", "project")
    }
    (layer, *_) = layers(home, document_of_all)
    before = settings_layers.read_settings([], {})
    for change in trust.changes(before, settings_layers.merge(settings_layers.parse_arguments([]), {}, (layer,))):
        assert next(row for row in SETTINGS if row.key == change.key).shape not in ("switch", "choice"), change


def test_the_default_profile_is_what_happens_without_one(home):
    # proves EXT-03
    (layer,) = settings_files.SettingsReader(str(home)).profile("default", "--profile")
    plain, named = (
        settings_layers.read_settings([], {}),
        settings_layers.merge(settings_layers.parse_arguments([]), {}, (layer,)),
    )

    assert [change for change in trust.changes(plain, named) if change.key not in ("name", "description")] == []


@pytest.mark.parametrize(("key", "value"), [
    ("network", "inet"), ("project_secrets", "mask"), ("secret_variables", "refuse"), ("terminal", "filtered"),
])  # fmt: skip
def test_the_strict_profile_is_strict_in_everything_that_this_version_knows(home, key, value):
    # proves EXT-03, SEC-01
    row = next(row for row in SETTINGS if row.key == key)
    assert value in row.choices
    (layer,) = settings_files.SettingsReader(str(home)).profile("strict", "--profile")

    assert layer.given[key][0].value == value


def test_built_in_profiles_only_tighten_and_give_a_reason_for_each_setting(home):
    # proves EXT-03
    reader = settings_files.SettingsReader(str(home))
    for name, path in reader.names().items():
        chain = reader.profile(name, "--profile")
        before, after = (
            settings_layers.read_settings([], {}),
            settings_layers.merge(settings_layers.parse_arguments([]), {}, chain),
        )
        described = ("name", "description", "extends")
        assert not [c for c in trust.changes(before, after) if c.widens and c.key not in described], name
        lines = Path(path).read_text().splitlines()
        for number, line in enumerate(lines):
            if "=" in line and not line.startswith(("#", *described)):
                assert lines[number - 1].startswith("# "), f"{name}: {line} has no reason"


def test_a_layer_of_an_unknown_setting_is_a_bug_and_not_ignored():
    with pytest.raises(KeyError):
        settings_layers.merge(settings_layers.parse_arguments([]), {}, (Layer("x", {"nothing": ()}),))


def test_units_are_what_people_mean_by_them():
    # proves FLEET-02
    def read(parse: Any, text: str) -> Any:
        return parse(SettingValue(text, "config.toml"))

    assert [read(parsers.size, text) for text in ("7", "2K", "2kB", "3MiB", "1g", "1T")] == [
        7, 2048, 2048, 3 << 20, 1 << 30, 1 << 40,
    ]  # fmt: skip
    assert [read(parsers.time, text) for text in ("90s", "2m", "1h", "1d")] == [90, 120, 3600, 86400]
    assert [read(parsers.tokens, text) for text in ("200k", "2M")] == [200_000, 2_000_000]
