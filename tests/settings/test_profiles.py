"""Profiles on the command line: chosen, listed, shown, started from, and wrong in ways that are told."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from tests.commands.conftest import tree
from tests.conftest import REPOSITORY

from claudebox.settings.verbs import VERBS


def config(box, text, *, name="config.toml"):
    """Write a file of the user's settings."""
    return box.write(f"{box.home}/.claudebox/{name}", text)


def settings_of(box, *flags, **options):
    """Return the settings in force, by name, with their origins."""
    result = box.claudebox("--explain", "--json", *flags, "--exec", "--", "true", **options)
    assert result.returncode == 0, result.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json.loads(result.stdout)["settings"]:
        found.setdefault(row["name"], []).append((row["value"], row["origin"]))
    return found


def test_files_profile_variable_and_flags_reach_the_sandbox(box):
    # proves PROF-01, D-03
    config(box, 'extra_env_passthrough = ["FROM_DEFAULTS"]\n[env]\nCONSTANT = "one two"\nPAGER = "less"\n')
    config(box, 'extends = "base"\n[env]\nPAGER = "cat"\n', name="profiles/mine.toml")
    config(box, '{"extra_env_passthrough": ["FROM_PROFILE", "NOT_SET"]}', name="profiles/base.json")
    data = box.write(f"{box.base}/data/file", "data")
    config(
        box, f'extends = "mine"\n[[mounts]]\nhost = "{box.base}/data"\nsandbox = "/data"\n', name="profiles/top.toml"
    )
    names = ("FROM_DEFAULTS", "FROM_PROFILE", "FROM_VARIABLE", "FROM_FLAG", "FROM_NOWHERE")
    box.environ |= dict.fromkeys(names, "set") | {"CLAUDEBOX_EXTRA_ENV": "FROM_VARIABLE"}

    result = box.sh(
        "env; cat /data/file; touch /data/new 2>&1", flags=("--env", "FROM_FLAG"), env={"CLAUDEBOX_PROFILE": "top"}
    )

    lines = result.stdout.splitlines()
    for name in names[:-1]:
        assert f"{name}=set" in lines
    assert "FROM_NOWHERE=set" not in lines
    assert "CONSTANT=one two" in lines
    assert "PAGER=cat" in lines
    assert "data" in result.stdout
    assert "Read-only file system" in result.stdout
    assert "variable FROM_PROFILE" in box.sh("true", env={"CLAUDEBOX_PROFILE": ""}).stderr  # no longer there
    shown = box.claudebox("--explain", "--exec", "--", "true", env={"CLAUDEBOX_PROFILE": "top"}).stdout
    assert "FROM_PROFILE=set\n      ~/.claudebox/profiles/base.json:1: asked for" in shown
    assert os.path.exists(data)


def test_a_profile_may_have_any_name_and_a_mount_may_be_asked_for_twice(user_box):
    # proves PROF-01
    user_box.write(f"{user_box.base}/data/file", "data\n")
    mount = f'[[mounts]]\nhost = "{user_box.base}/data"\n'
    config(user_box, mount)
    config(user_box, mount, name="profiles/no.toml")

    result = user_box.sh(f"cat {user_box.base}/data/file", flags=("--profile", "no"))
    assert result.stdout == "data\n", result.stderr
    assert "profiles/no.toml" in user_box.claudebox("--explain", "--profile", "no", "--exec", "--", "true").stdout


def test_settings_are_found_without_a_home_in_the_environment(user_box):
    # proves PROF-01
    # Otherwise `env -u HOME` would be a way around them. The home of the account is another one than that of the box.
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import os, pwd; from claudebox.host import machine as host; "
        "print(host.current_home({}) == host.current_home({'HOME': 'relative'}) == pwd.getpwuid(os.getuid()).pw_dir, "
        "host.current_home({'HOME': sys.argv[2]}))"
    )
    source = os.path.join(os.path.dirname(os.path.dirname(user_box.program)), "src")
    result = user_box.host("/usr/bin/python3", "-IS", "-c", program, source, user_box.home)

    assert result.stdout == f"True {user_box.home}\n", result.stderr


def test_explain_tells_where_every_setting_came_from(user_box):
    # proves PROF-01
    config(user_box, 'network = "none"\n\n[env]\nAPI_KEY = "hunter2hunter2"\n')
    config(user_box, 'claude_home = "shared"\n', name="profiles/mine.toml")
    user_box.write(".claudebox.toml", 'secret_variables = "refuse"\n')

    found = settings_of(user_box, "--profile", "mine", "--env", "A")

    assert found["network"] == [("none", "~/.claudebox/config.toml:1")]
    assert found["claude_home"] == [("shared", "~/.claudebox/profiles/mine.toml:1")]
    assert found["secret_variables"] == [("refuse", ".claudebox.toml:1")]
    assert found["terminal"] == [("plain", "default")]
    assert found["extra_env_passthrough"] == [("A", "--env")]
    shown = user_box.claudebox("--explain", "--profile", "mine", "--exec", "--", "true").stdout
    assert "network = none" in shown
    assert "hunter2" not in shown
    assert "looks like a secret: let the variable in by its name instead" in shown


def test_with_files_that_were_read_before_nothing_slow_is_imported(user_box):
    config(user_box, 'profile = "offline"\n')
    user_box.write(".claudebox.toml", 'terminal = "filtered"\n')
    assert user_box.sh("true").returncode == 0
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from claudebox.cli import main; main(); "
        "print(' '.join(sys.modules), file=sys.stderr)"
    )
    source = os.path.join(os.path.dirname(os.path.dirname(user_box.program)), "src")
    result = user_box.host("/usr/bin/python3", "-IS", "-c", program, source, "-y", "--exec", "--", "true")

    loaded = set(result.stderr.splitlines()[-1].split())
    assert "claudebox.settings.files" in loaded
    assert loaded & {"tomllib", "json", "re", "difflib", "claudebox.settings.document", "typing", "enum"} == set()


@pytest.mark.parametrize("name", ["default", "strict", "offline"])
def test_built_in_profiles_can_be_started(user_box, open_tunnel, name):
    # proves EXT-03
    result = user_box.sh("echo inside", flags=("--profile", name))

    assert result.returncode == 0, result.stderr
    assert "inside" in result.stdout


def test_offline_has_no_network_and_default_has_one(user_box):
    # proves EXT-03
    default, offline = (
        user_box.sh("grep -c : /proc/net/dev", flags=("--profile", name)).stdout.strip()
        for name in ("default", "offline")
    )
    assert int(default) >= 2
    assert offline == "1"


def test_strict_stops_a_launch_without_a_question_if_a_secret_was_not_named(user_box, open_tunnel):
    # proves SEC-01, EXT-03
    user_box.environ["ANTHROPIC_API_KEY"] = "sk-ant-canary"
    strict = ("--profile", "strict", "--set", "auth=passthrough")
    enters = user_box.sh("echo $ANTHROPIC_API_KEY", flags=("--set", "auth=passthrough"))
    assert enters.stdout == "sk-ant-canary\n"  # control: it enters without the profile

    kept = user_box.sh("echo $ANTHROPIC_API_KEY", flags=("--profile", "strict"))
    assert kept.stdout == "ssh-placeholder\n"  # what stays outside stops nobody
    refused = user_box.sh("echo inside", flags=strict)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "`ANTHROPIC_API_KEY` looks like a secret" in refused.stderr
    assert "--env ANTHROPIC_API_KEY" in refused.stderr
    assert "canary" not in refused.stderr
    named = user_box.sh("echo $ANTHROPIC_API_KEY", flags=(*strict, "--env", "ANTHROPIC_API_KEY"))
    assert named.stdout == "sk-ant-canary\n"
    config(user_box, 'extra_env_passthrough = ["ANTHROPIC_API_KEY"]\n')
    assert user_box.sh("echo inside", flags=strict).returncode == 0


@pytest.mark.parametrize("value", ["https://user:secret@proxy", "ghp_0123456789", "-----BEGIN PRIVATE KEY-----"])
def test_strict_sees_a_secret_by_its_value_too(user_box, open_tunnel, value):
    # proves SEC-01, A13
    refused = user_box.sh("true", flags=("--profile", "strict", "--env", f"FLAG={value}"))

    assert refused.returncode == 125
    assert "`FLAG` looks like a secret" in refused.stderr
    assert user_box.sh("true", flags=("--profile", "strict", "--env", "FLAG=vi")).returncode == 0
    preference = user_box.sh("echo [$EDITOR]", flags=("--profile", "strict"), env={"EDITOR": value})
    assert (preference.returncode, preference.stdout) == (0, "[]\n")


def test_all_errors_of_all_lines_are_printed_one_per_line(user_box):
    # proves PROF-01, B14
    config(user_box, 'netwrok = "x"\nyes = 1\n"\\u001b]52;c;x" = 1\n')

    result = user_box.sh("echo inside")

    assert (result.returncode, result.stdout) == (125, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert [error.split()[1].rpartition("toml")[2] for error in errors] == [":1:", ":2:", ":"]
    assert "\x1b" not in result.stderr


def test_packages_without_nix_are_refused_in_plain_words(user_box):
    # proves PROF-01
    if os.path.isdir("/nix/store"):
        pytest.skip("this machine has Nix")
    config(user_box, 'packages = ["jq"]\n')

    result = user_box.sh("true")

    assert result.returncode == 125
    assert "the package `jq` needs Nix, and there is none on this machine" in result.stderr


def test_profiles_lists_ours_and_the_users_and_those_that_are_broken(user_box):
    # proves EXT-03
    config(user_box, 'description = "my own"\n', name="profiles/mine.toml")
    config(user_box, "oops", name="profiles/broken.toml")

    result = user_box.claudebox("profiles")

    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert set(lines) == {"batch", "default", "strict", "offline", "mine", "broken"}
    assert "my own" in lines["mine"]
    assert "cannot be used" in lines["broken"]


def test_profiles_shows_one_with_its_reasons_and_differences(user_box):
    # proves EXT-03
    config(user_box, '# because of the licence\nnetwork = "none"\n', name="profiles/mine.toml")

    strict = user_box.claudebox("profiles", "strict").stdout
    assert strict.startswith("built-in strict.toml\n")
    assert '\n  terminal = "filtered"\n' in strict
    assert "no clipboard writes" in strict
    assert "secret_variables: show -> refuse" in strict
    assert "allow_userns: " not in strict
    mine = user_box.claudebox("profiles", "mine").stdout
    assert "because of the licence" in mine
    assert "network: full -> none" in mine
    default = user_box.claudebox("profiles", "default").stdout
    assert default.rstrip().endswith("nothing")
    unknown = user_box.claudebox("profiles", "defualt")
    assert (unknown.returncode, "did you mean `default`" in unknown.stderr) == (125, True)
    assert user_box.claudebox("profiles", "a", "b").returncode == 125


def test_init_writes_a_file_that_changes_nothing_and_never_overwrites_one(user_box):
    # proves PROF-01
    before = settings_of(user_box)
    assert user_box.claudebox("init").returncode == 0
    path = f"{user_box.home}/.claudebox/config.toml"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert settings_of(user_box) == before

    written = tree(user_box.home)
    again = user_box.claudebox("init")
    assert again.returncode == 125
    assert "already exists" in again.stderr
    assert tree(user_box.home) == written


def test_the_schema_can_be_printed(user_box):
    result = user_box.claudebox("help", "schema")

    assert result.stdout == (REPOSITORY / "docs/claudebox.schema.json").read_text()


def test_the_completion_knows_the_names_of_profiles(user_box):
    # proves EXT-03
    config(user_box, "", name="profiles/mine.toml")
    result = user_box.claudebox("help", "complete", "--", "--profile", "")

    assert sorted(result.stdout.split()) == ["batch", "default", "mine", "offline", "strict"], result.stderr


def test_files_cost_a_launch_little():
    # The figure itself is 8 ms in one run of bench/config on a quiet machine; this notices a slip of another order.
    result = subprocess.run(
        [REPOSITORY / "bench/config", "--rounds", "9"], capture_output=True, encoding="utf-8", check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_broken_file_stops_launches_only(user_box):
    # proves CLI-01
    config(user_box, "network = 3\n")
    user_box.write(f"{user_box.project}/.claudebox.toml", 'network = "inet"\n')
    operands = {"show": ("/etc/hostname",), "trust": ("approve",), "profiles": ("strict",), "allow": ("a.example",)}
    for verb in VERBS:
        words = operands.get(verb.word, ("x",) * sum(word[0] != "[" for word in verb.operands.split()))
        result = user_box.claudebox(verb.word, *words)
        said = f"{verb.word}: {result.stderr}"
        errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        stopped = any("config.toml:1" in line for line in errors)
        assert stopped == (verb.launches or verb.strict), said
        if verb.word in ("changes", "log", "denied", "cost", "sessions", "sync", "show", "trust"):
            assert "warning: ~/.claudebox/config.toml:1:" in result.stderr, said
        assert "Traceback" not in result.stderr
    for words in (("-y", "--exec", "--", "true"), ("allow", "pypi")):  # a group, which the file may define
        result = user_box.claudebox(*words)
        assert (result.returncode, "error: ~/.claudebox/config.toml:1" in result.stderr) == (125, True)
