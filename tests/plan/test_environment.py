from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.plan.environment import plan_variables, withheld
from claudebox.plan.records import Variable
from claudebox.settings.records import NameRequest, Policy
from claudebox.tables import environment as tables_environment
from claudebox.tables import secrets as tables_secrets
from claudebox.tables.environment import BYTECODE, CACHES, LOADERS


def plan(environ: dict[str, str], *names: str, **changes):
    policy = Policy("client", names=tuple(NameRequest(name, "--env") for name in names))
    return {row.name: row for row in plan_variables(policy, hosts.debian(environ=environ, **changes), ())}


PASSED = (*tables_environment.PASSED, *CLAUDE.passed)
MADE = {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR", "CLAUDEBOX"}
CERTIFICATES = {"SSL_CERT_FILE", "NIX_SSL_CERT_FILE"}


def test_with_an_empty_host_environment_only_what_claudebox_makes_enters():
    # proves SAND-02, SAND-03
    rows = plan({})

    assert set(rows) == MADE | CERTIFICATES | {BYTECODE, *(name for name, _ in CACHES)}
    assert {row.origin for row in rows.values()} == {"claudebox"}


def test_only_named_variables_enter():
    # proves SAND-02, SAND-03, A13
    environ = {name: "1" for name, _, rule in PASSED if rule in ("", "number")}
    strangers = {
        "AWS_SECRET_ACCESS_KEY": "x", "GH_TOKEN": "x", "LC_TOKEN": "x", "NIX_CONFIG": "x",
        "npm_config__authToken": "x", "PIP_INDEX_URL": "https://me@x", "GIT_CONFIG_VALUE_0": "x", "TERMCAP": "x",
        "PWD": "x", "OLDPWD": "x", "a\nb": "x", "": "x",
    }  # fmt: skip
    rows = plan({**environ, **strangers})

    assert set(rows) == MADE | CERTIFICATES | {BYTECODE, *(name for name, _ in CACHES)} | set(environ)
    assert {rows[name].origin for name in environ} == {"host"}
    assert not set(rows) & set(strangers)


def test_what_passes_from_the_host_is_what_was_promised():
    # proves SAND-03
    names = {name for name, _, _ in PASSED}
    assert {"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "EDITOR", "PAGER", "LESS", "TZ", "LANG"} <= names
    assert {"LC_ALL", "LC_CTYPE", "LC_TIME", "LOCALE_ARCHIVE", "TERM_PROGRAM", "ANTHROPIC_MODEL"} <= names
    assert {"DISABLE_TELEMETRY", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_THINKING_TOKENS"} <= names
    assert all(reason for _, reason, _ in PASSED)
    assert not [name for name in names if tables_secrets.name_looks_secret(name)]


@pytest.mark.parametrize(
    "value", ["ghp_0123456789", "https://user:secret@host", "sk-ant-x", "-----BEGIN PRIVATE KEY-----"]
)
def test_a_preference_that_looks_like_a_secret_stays_out(value):
    # proves SEC-01, A13
    rows = plan({name: value for name, _, _ in PASSED})

    assert not {name for name, _, _ in PASSED} & set(rows)


def test_a_preference_keeps_to_its_rule():
    # proves SAND-03
    def enters(name: str, value: str, **facts) -> bool:
        host = hosts.debian(environ={name: value}, **facts)
        return name in {row.name for row in plan_variables(Policy("client"), host, ())}

    assert enters("MAX_THINKING_TOKENS", "4096")
    for value in ("secret", "12a", "\u0661", "-1", ""):
        assert not enters("MAX_THINKING_TOKENS", value)
    assert enters("PAGER", "less -R", pager=True)
    assert not enters("PAGER", "bat", pager=False)
    assert enters("LOCALE_ARCHIVE", "/usr/lib/locale/locale-archive")
    assert not enters("LOCALE_ARCHIVE", "/nix/store/x/locale-archive")
    assert enters("LOCALE_ARCHIVE", "/nix/store/x/locale-archive", store="/nix/store")
    assert not enters("LOCALE_ARCHIVE", "/home/alice/locale")
    for value in (
        "https://pypi-eu-west-1.corp.example/artifactory/api/pypi/pypi-virtual/simple", "direct", "off",
        "https://proxy.golang.org,https://go1.corp.example|direct", "internal=https://10.0.0.1:8443/simple/",
        "*.corp.example",
    ):  # fmt: skip
        assert enters("GOPROXY", value), value
        assert enters("PIP_INDEX_URL", value), value
    for value in (
        "https://me@corp.example/", "https://corp.example/?token=1", "https://repo.fury.io/4fA9dKq2ZxT7bN/me/",
        "https://a.example/simple https://dl.example/basic/x/aB3dE5gH7jK9/python/simple", "a#b",
        "token", "CANARY-x.y", "ftp://corp.example", "https://corp.example, s3cret", "https://eyJh.corp.example",
    ):  # fmt: skip
        assert not enters("UV_INDEX", value), value
        assert not enters("npm_config_registry", value), value


def test_what_claudebox_makes_is_never_read_from_the_host():
    # proves D-04
    lies = dict.fromkeys(MADE | CERTIFICATES, "lie")
    rows = plan(lies)

    assert "lie" not in {row.value for row in rows.values()}
    assert rows["HOME"].value == hosts.HOME
    assert rows["PATH"].value == "/run/claudebox/bin:/usr/local/bin:/usr/bin:/bin"
    assert rows["XDG_RUNTIME_DIR"].value == "/run/user/1000"


@pytest.mark.parametrize("name", sorted(MADE | CERTIFICATES))
def test_what_claudebox_makes_cannot_be_asked_for(name):
    # proves D-04
    with pytest.raises(ClaudeboxError, match=f"`--env`: `{name}` is made by claudebox"):
        plan({name: "x"}, name)


def test_what_the_client_needs_cannot_be_asked_for_either():
    # proves D-04
    made = (Variable("DISABLE_AUTOUPDATER", "1", "claudebox", "why"),)
    policy = Policy("client", names=(NameRequest("DISABLE_AUTOUPDATER", "--env"),))

    with pytest.raises(ClaudeboxError, match="made by claudebox"):
        plan_variables(policy, hosts.debian(environ={"DISABLE_AUTOUPDATER": "0"}), made)


def test_a_name_that_was_asked_for_enters_with_its_origin_and_an_unset_one_is_skipped():
    # proves D-03
    rows = plan({"MY_FLAG": "on", "TERM": "xterm"}, "MY_FLAG", "NOT_SET", "TERM")

    assert (rows["MY_FLAG"].value, rows["MY_FLAG"].origin) == ("on", "--env")
    assert rows["TERM"].origin == "--env"
    assert "NOT_SET" not in rows


def test_names_that_change_what_programs_load_are_marked():
    # proves D-03, A16
    rows = plan({"LD_PRELOAD": "/x.so", "PLAIN": "1", "NODE_OPTIONS": "-r x"}, "LD_PRELOAD", "PLAIN", "NODE_OPTIONS")

    assert rows["LD_PRELOAD"].note
    assert rows["NODE_OPTIONS"].note
    assert not rows["PLAIN"].note
    assert {"LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "NODE_OPTIONS", "PYTHONSTARTUP", "GIT_SSH_COMMAND"} <= LOADERS


def test_secrets_are_recognised_by_name_and_by_value():
    # proves SEC-01
    rows = plan({"GH_TOKEN": "x", "FLAG": "ghp_0123", "LANG": "C"}, "GH_TOKEN", "FLAG")

    assert rows["GH_TOKEN"].secret
    assert rows["FLAG"].secret
    assert not rows["LANG"].secret


def test_a_store_gives_a_path_of_store_directories_only():
    # proves SAND-10
    host = hosts.nixos()
    rows = {row.name: row.value for row in plan_variables(Policy("client"), host, ())}

    assert rows["PATH"] == ":".join((tables_environment.CLIENT_DIRECTORY, *host.system.store_path))
    assert all(entry.startswith(("/nix/store/", "/run/claudebox/")) for entry in rows["PATH"].split(":"))


def test_without_certificates_on_the_host_nothing_points_at_them():
    # proves SAND-13
    assert not CERTIFICATES & set(plan({}, ca_bundle=None))


def test_the_shell_is_one_that_exists():
    assert plan({}, bash=True)["SHELL"].value == "/bin/bash"
    assert plan({}, bash=False)["SHELL"].value == "/bin/sh"


def test_rows_come_in_the_order_of_their_names_and_each_has_a_reason():
    rows = plan_variables(Policy("client"), hosts.debian(), ())

    assert [row.name for row in rows] == sorted(row.name for row in rows)
    assert all(row.reason for row in rows)


def test_withheld_names_come_with_those_that_look_secret_first():
    # proves UX-01
    environ = {"ZED": "x", "ALPHA": "x", "Z_TOKEN": "x", "B_URL": "https://u:p@h", "TERM": "xterm"}
    host = hosts.debian(environ={**environ, "PWD": "/x", "SHLVL": "1", "_": "/usr/bin/env", "OLDPWD": "https://u:p@h"})
    entering = plan_variables(Policy("client"), host, ())

    assert withheld(host, entering) == ("B_URL", "OLDPWD", "Z_TOKEN", "ALPHA", "ZED")  # nor what every shell makes


def test_go_is_told_where_there_is_no_repository():
    # proves TOOL-11
    bare = hosts.debian(repository=None, empty_git="x")

    def names(host):
        return {row.name for row in plan_variables(Policy("exec"), host, ())}

    assert "GOFLAGS" in names(bare)
    assert "GOFLAGS" not in names(hosts.changed(bare, empty_git=""))
