"""Secrets that stay outside: what settings may say about them, and what becomes of it in a plan."""

from __future__ import annotations

import os

import pytest
from tests.support import hosts

from claudebox.base.errors import ClaudeboxError
from claudebox.broker import facts as broker_facts
from claudebox.broker import plan as broker_plan
from claudebox.broker import secrets as broker_secrets
from claudebox.host import programs
from claudebox.network.uplink import Candidate
from claudebox.plan import audit, compose, explain, sandbox_md
from claudebox.plan import environment as plan_environment
from claudebox.plan.records import Deferred, placeholder_key
from claudebox.settings import layers as settings_layers
from claudebox.settings.layers import Layer, SettingValue
from claudebox.settings.records import NameRequest, Policy, SecretRequest

VALUE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
HELD = SecretRequest("GH_TOKEN", (("github.com", 443), ("git.example.org", 8443)), "env:GH", "config:1")
FILLED = HELD.replace(value=VALUE, placeholder="ghp_other")


def row(
    env: str = "GH_TOKEN", hosts_: str = "api.github.com github.com", source: str = "env:GH", origin: str = "c:1",
    **more: str,
):  # fmt: skip
    return SettingValue(env, origin, {"env": env, "hosts": hosts_, "from": source, **more})


def decide(*argv: str, rows=(), layers=None) -> Policy:
    given = [Layer("file", {"secrets": tuple(rows)})] if layers is None else layers
    merged = settings_layers.merge(settings_layers.parse_arguments(argv), {}, given)
    return settings_layers.decide_policy(merged, home="/home/alice", workdir="/home/alice/project")


def test_a_row_names_variable_hosts_and_source():
    (secret,) = decide("--network", "inet", rows=[row(hosts_="API.github.com git.example.org:8443")]).secrets

    assert secret == SecretRequest("GH_TOKEN", (("api.github.com", 443), ("git.example.org", 8443)), "env:GH", "c:1")
    assert secret.places == ("api.github.com", "git.example.org:8443")
    (more,) = decide("--network", "inet", rows=[row(headers="X-Mine x-mine Cookie", weak="accept")]).secrets
    assert (more.headers, more.weak) == (("x-mine", "cookie"), True)
    (underscored,) = decide("--network", "inet", rows=[row(hosts_="a_b.example")]).secrets  # exists in DNS and TLS
    assert underscored.hosts == (("a_b.example", 443),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (row(env="A-B"), "`A-B` is not the name of a variable"),
        (row(env="PATH"), "`PATH` is made by claudebox"),
        (row(env="NODE_EXTRA_CA_CERTS"), "is made by claudebox"),
        (row(env="ANTHROPIC_API_KEY"), "is the client's key"),
        (row(hosts_="*.github.com"), "hosts of strangers"),
        (row(hosts_="localhost"), "`localhost` is not the name of a host"),
        (row(hosts_="10.0.0.1"), "is not the name of a host"),
        (row(hosts_="-a.example"), "is not the name of a host"),
        (row(hosts_="https://github.com"), "is not the name of a host"),
        (row(hosts_="github.com:0"), "not a port"),
        (row(hosts_="github.com:x"), "not a port"),
        (row(headers="X_Token"), "`X_Token` is not the name of a header field"),
        (row(headers="x-token User-Agent"), "`User-Agent` cannot carry a secret"),
        (row(headers="X-Amz-Tagging"), "`X-Amz-Tagging` cannot carry a secret"),
        (row(source=VALUE), "does not come from"),
        (row(source="env:A-B"), "does not come from"),
        (row(source="file:relative"), "does not come from"),
        (row(source="command: "), "does not come from"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, message):
    with pytest.raises(ClaudeboxError) as caught:
        decide("--network", "inet", rows=[given])

    assert message in caught.value.message
    assert VALUE not in caught.value.message + caught.value.hint


def test_tier_full_refuses_them_and_says_which_tiers_do_not():
    with pytest.raises(ClaudeboxError, match="tier `full`") as caught:
        decide("--network", "full", rows=[row()])

    assert "--network inet" in caught.value.hint


@pytest.mark.parametrize("flag", [("--env", "GH_TOKEN"), ("--env", "GH"), ("--env", "GH_TOKEN=x")])
def test_what_is_kept_out_cannot_be_let_in_by_another_setting(flag):
    assert decide("--network", "inet", "--env", "OTHER", rows=[row()]).secrets
    with pytest.raises(ClaudeboxError, match="keeps its value out"):
        decide("--network", "inet", *flag, rows=[row()])


def test_a_later_file_replaces_and_the_same_file_contradicts_itself():
    first, second = row(origin="config.toml:1"), row(hosts_="other.example", origin="work.toml:1")
    layers = [Layer("one", {"secrets": (first,)}), Layer("two", {"secrets": (second,)})]

    assert decide("--network", "inet", layers=layers).secrets[0].hosts == (("other.example", 443),)
    with pytest.raises(ClaudeboxError, match="GH_TOKEN"):
        decide("--network", "inet", rows=[row(origin="c:1"), row(origin="c:9")])


def host(**changes):
    uplink = Candidate("pasta", "/usr/bin/pasta")
    return hosts.debian(held_secrets=(HELD,), uplinks=(uplink,), libraries=("/lib",), **changes)


def test_a_plan_has_the_placeholder_and_only_the_broker_has_the_value():
    # proves B13
    wishes = Policy("exec", ("true",), network="inet", secrets=(HELD,))
    drawn = compose.make_plan(wishes, host())
    variables = {variable.name: variable for variable in drawn.variables}

    assert variables["GH_TOKEN"].deferred == Deferred(placeholder_key("GH_TOKEN"))
    assert variables["GH_TOKEN"].value == ""
    assert variables["REQUESTS_CA_BUNDLE"].value == variables["SSL_CERT_FILE"].value
    late = {row.dest: row.source for row in drawn.mounts if row.kind == "late"}
    assert late[variables["SSL_CERT_FILE"].value] == "authority"
    assert late[variables["NODE_EXTRA_CA_CERTS"].value] == "named"
    assert drawn.broker is not None
    assert drawn.broker.awaited  # noqa: PGH005 - a field of ours
    assert VALUE not in repr(drawn)
    assert drawn.broker.inject is not None
    filled = broker_plan.with_values(drawn.broker, (FILLED,))
    assert filled.inject is not None
    assert [row.value for row in filled.inject.secrets] == [VALUE]
    assert filled.inject.replace(secrets=()) == drawn.broker.inject.replace(secrets=())
    first = audit.lines(drawn, None, asking=True)
    shown = "\n".join((*first, *explain.tree(drawn), *explain.dry_run(drawn), explain.as_json(drawn)))
    assert VALUE not in shown
    assert "github.com, git.example.org:8443" in shown
    assert VALUE.encode() not in b"".join(mount.content for mount in drawn.mounts)


def test_hosts_of_secrets_have_addresses_of_the_sandbox_and_listeners_there():
    drawn = compose.make_plan(Policy("exec", ("true",), network="inet", secrets=(HELD,)), host())
    assert drawn.link is not None
    etc_hosts = next(mount.content for mount in drawn.mounts if mount.dest == "/etc/hosts").decode()
    listeners = {(row.address, row.port) for row in drawn.link.served}

    assert "127.67.66.1 github.com\n" in etc_hosts
    assert listeners >= {("127.67.66.1", 443), ("127.67.66.2", 8443)}
    assert listeners == {*listeners, ("127.67.66.1", 22), ("127.67.66.1", 80), ("127.67.66.2", 22), ("127.67.66.2", 80)}
    assert len(listeners) == 6


def test_the_agent_is_told_of_the_placeholder_and_not_of_the_value():
    text = sandbox_md.describe(Policy("exec", ("true",), network="inet", secrets=(HELD,)), ()).decode()

    assert "GH_TOKEN is a placeholder" in text
    assert "git.example.org:8443" in text
    assert VALUE not in text
    assert (
        "placeholder"
        not in sandbox_md.describe(Policy("exec", ("true",), network="none", secrets=(HELD,)), ()).decode()
    )


def test_a_value_does_not_enter_under_another_name():
    environ = {**hosts.ENVIRON, "OTHER": f"https://x:{VALUE}@github.com"}
    wishes = Policy("exec", ("true",), network="inet", secrets=(HELD,))
    asking = wishes.replace(names=(NameRequest("OTHER", "--env"),))

    # What a file or a command gives is known later only.
    plan_environment.check_withheld([(VALUE, "c:1")], compose.make_plan(wishes, host(environ=environ)).variables)
    entering = compose.make_plan(asking, host(environ=environ)).variables
    with pytest.raises(ClaudeboxError, match="has the value in it"):
        plan_environment.check_withheld([(VALUE, "c:1")], entering)
    # The value of a variable is known at once, before anything is shown.
    environ["GH"] = VALUE
    assert compose.make_plan(wishes, host(environ=environ)).broker is not None
    with pytest.raises(ClaudeboxError, match="has the value in it"):
        compose.make_plan(asking, host(environ=environ))


def test_a_variable_that_claudebox_makes_is_no_secret():
    held = HELD.replace(env="CLAUDE_CONFIG_DIR")

    with pytest.raises(ClaudeboxError, match="is made by claudebox"):
        compose.make_plan(
            Policy("exec", ("true",), network="inet", secrets=(held,)), hosts.changed(host(), held_secrets=(held,))
        )


def test_in_tier_none_they_are_not_there_and_the_audit_says_so():
    wishes = Policy("exec", ("true",), network="none", secrets=(HELD,))
    drawn = compose.make_plan(wishes, hosts.debian())

    assert "GH_TOKEN" not in {variable.name for variable in drawn.variables}
    assert drawn.broker is None
    assert any("tier none reaches no host" in warning for warning in drawn.warnings)
    assert broker_facts.find_secrets(wishes, {"GH": VALUE}, home="/", workdir="/x") == ()


def test_in_tier_allow_a_secret_opens_no_way_to_a_host_that_is_not_listed():
    wishes = Policy("exec", ("true",), network="allow", secrets=(HELD,), domains=(NameRequest("github.com", "--x"),))
    (held,) = broker_facts.find_secrets(wishes, {"GH": VALUE}, home="/", workdir="/x")
    drawn = compose.make_plan(wishes, hosts.changed(host(), held_secrets=(held,)))

    assert held.hosts == (("github.com", 443),)
    assert any("git.example.org:8443 is not among the domains" in warning for warning in drawn.warnings)
    assert drawn.link is not None
    assert [row.port for row in drawn.link.served if row.address != "127.0.0.1"] == [443]


def find(source: str, tmp_path, environ=None, *, weak=False):
    """Return what is known before the question."""
    secret = SecretRequest("TOKEN", (("a.example", 443),), source, "config:1", ("x-mine",), weak)
    wishes = Policy("exec", ("true",), network="inet", secrets=(secret,))
    (tmp_path / "project").mkdir(exist_ok=True)
    return broker_facts.find_secrets(wishes, environ or {}, home=str(tmp_path), workdir=str(tmp_path / "project"))


def hold(source: str, tmp_path, environ=None, *, weak=False):
    """Return what is known after it."""
    found = find(source, tmp_path, environ, weak=weak)
    obtain = broker_secrets.source_reader(environ or {}, programs.find_tool, home=str(tmp_path))
    return broker_secrets.hold(found, obtain)


def test_values_come_from_variables_files_and_commands(tmp_path):
    (tmp_path / "token").write_text(f"{VALUE}\n")

    for source in ("env:GH", "file:~/token", f"file:{tmp_path}/token", f"command:cat '{tmp_path}/token'"):
        (held,) = hold(source, tmp_path, {"GH": VALUE})
        assert held.value == VALUE
        assert held.placeholder != VALUE
    assert hold("env:UNSET", tmp_path) == ()


def test_a_value_that_can_be_guessed_is_accepted_if_the_row_says_so(tmp_path):
    # proves SECRET-01
    with pytest.raises(ClaudeboxError, match="could be guessed") as caught:
        hold("env:GH", tmp_path, {"GH": "password1234"})
    (held,) = hold("env:GH", tmp_path, {"GH": "password1234"}, weak=True)

    assert 'weak = "accept"' in caught.value.hint
    assert (held.value, held.headers) == ("password1234", ("x-mine",))


def test_looking_for_secrets_runs_no_command_and_reads_no_value(tmp_path):
    # proves HOUSE-01
    (tmp_path / "token").write_text(VALUE)
    (held,) = find(f"command:touch {tmp_path}/ran", tmp_path)
    (of_file,) = find(f"file:{tmp_path}/token", tmp_path)

    assert (held.value, of_file.value) == ("", "")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ClaudeboxError, match="gave no token"):
        hold(f"command:touch {tmp_path}/ran", tmp_path)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("file:~/missing", "", "does not exist"),
        ("file:~/token", "", "is empty"),
        ("file:~/token", "tooshrt", "shorter than 8"),
        ("file:~/token", "password1234", "could be guessed"),
        ("file:~/token", "a" * 60, "could be guessed"),
        ("file:~/token", "2026-11-16", "could be guessed"),
        ("file:~/token", "!x" * 10, "too many special characters"),
        ("file:/usr/bin/env", "", "is visible inside, in `/usr`"),
        ("file:~/token", "two\nlines-of-text", "no HTTP header can carry"),
        ("file:~/token", "pässwörter", "no HTTP header can carry"),
        ("file:~/project/token", "x" * 20, "is visible inside"),
        ("command:false", "", "gave no token (status 1)"),
        ("command:no-such-program", "", "was not found"),
        ("command:'", "", "cannot be split"),
    ],
)
def test_a_source_that_gives_no_value_is_told_in_one_line(tmp_path, source, content, message):
    (tmp_path / "project").mkdir()
    for place in ("token", "project/token"):
        (tmp_path / place).write_text(content)
    with pytest.raises(ClaudeboxError) as caught:
        hold(source, tmp_path)

    assert message in caught.value.message
    assert caught.value.status == 125
    assert not content or content not in caught.value.message


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ClaudeboxError, match="cannot be read"):
        hold("file:~/pipe", tmp_path)
