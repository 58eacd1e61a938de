"""The lines before the question: what they say, what counts as news, and how they are broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support import hosts

from claudebox.agent import facts as agent_facts
from claudebox.base import console
from claudebox.host.records import SecretFile
from claudebox.plan import audit, compose
from claudebox.settings.records import LimitRequest, MountRequest, NameRequest, Policy, Published

if TYPE_CHECKING:
    from pathlib import Path

    from claudebox.plan.records import Plan

LABELS = ["writes", "network", "secrets", "new"]


def make(
    *names: str, changes: dict[str, object] | None = None, facts: dict[str, object] | None = None, **environ: str
) -> Plan:
    wishes = tuple(NameRequest(name, "--env") for name in names)
    policy = Policy("client", ("-p", "hello"), names=wishes).replace(**(changes or {}))
    host = hosts.debian(environ={"HOME": hosts.HOME, **environ}, **(facts or {}))
    plan = compose.make_plan(policy, hosts.asking(host, policy))
    assert plan.login.startswith("not logged in: ")
    return plan.replace(login="")


def secret_file(*found: int, path: str = ".env", committed: bool = False) -> SecretFile:
    return SecretFile(f"{hosts.PROJECT}/{path}", found, b"", (1, 2), committed=committed)


def lines(plan: Plan, before: frozenset[str] | None = None, *, asking: bool = True, quiet: bool = False) -> list[str]:
    return list(audit.lines(plan, before, asking=asking, quiet=quiet))


def approved(plan: Plan) -> frozenset[str]:
    return frozenset(audit.decided(plan))


def news(plan: Plan, before: frozenset[str]) -> str:
    return audit.describe_news(plan, before)


def test_four_lines_say_what_matters():
    # proves UX-01, UX-07
    mounts = (
        MountRequest("/srv/data", "/srv/data", writable=False, origin="--mount-ro"),
        MountRequest("/srv/out", "/srv/out", writable=True, origin="--mount-rw"),
    )
    plan = make("MY_TOKEN", changes={"mounts": mounts}, MY_TOKEN="x", GH_TOKEN="x", ZED="x", PWD="/x", SHLVL="2")
    shown = lines(plan)

    assert [line.split()[0] for line in shown] == LABELS
    writes, network, secrets, new = shown
    assert "~/project, /srv/out" in writes
    assert "/srv/data" not in writes
    assert "full (by default)" in network
    assert "MY_TOKEN (--env) enters" in secrets
    assert "withheld: GH_TOKEN" in secrets
    assert "ZED" not in secrets
    assert "the first launch in this project" in new


def test_nobody_logged_in_is_said():
    # proves UX-05
    plan = make().replace(login="not logged in: do something")

    assert "  login    not logged in: do something" in lines(plan)
    assert lines(plan, approved(plan), asking=False)[0].endswith(" · not logged in")
    plan = plan.replace(login="no key: set `THIS`")
    assert lines(plan, approved(plan), asking=False)[0].endswith(" · no key")


def test_the_tier_comes_with_what_chose_it():
    # proves UX-07
    for origin, shown in (
        ("--network", "none (by --network): loopback"),
        (".claudebox.toml:7", "none (by .claudebox.toml:7): loopback"),
        ("default", "none (by default): loopback"),
        ("~/.claudebox/config.toml:7", "none: loopback"),  # the user's own
    ):
        assert shown in lines(make(changes={"network": "none", "network_origin": origin}))[1]


def test_with_yes_and_nothing_new_there_is_one_line():
    # proves UX-07
    plan = make()

    (line,) = lines(plan, approved(plan), asking=False)
    assert line == "claudebox: ~/project · network full · no secrets enter"
    assert len(lines(plan, approved(plan))) == 4  # whoever is asked sees what about
    assert len(lines(plan, asking=False)) == 4  # nobody has approved anything yet


def test_no_secrets_enter_is_said_only_where_it_is_true_of_files():
    # proves MASK-01, UX-07
    repository = hosts.REPOSITORY
    files = (secret_file(1, 2), secret_file(path="tls.key", committed=True))
    masked = make(facts={"secret_files": files, "repository": repository})
    shown = make(changes={"project_secrets": "show"}, facts={"secret_files": files[:1]})
    both = make("A_TOKEN", facts={"secret_files": files, "repository": repository}, A_TOKEN="x")

    def said(plan: Plan) -> str:
        return lines(plan, approved(plan), asking=False)[0].rpartition(" · ")[2]

    assert said(make(facts={"secret_files": files[:1]})) == "no secrets enter, 1 file masked"
    assert said(masked) == "no secrets enter but those of 1 file in git, 1 file masked"
    assert said(shown) == "no secrets enter but those of 1 file of the project"
    assert said(both) == "1 secret enters and those of 1 file in git, 1 file masked"
    row = next(line for line in lines(masked) if "secrets" in line)
    assert "masked inside: .env:1,2; `--project-secrets show`" in row
    assert "in git, and so readable inside: tls.key" in row
    assert "none enters" not in row
    assert "can be read inside: .env:1,2; `--project-secrets mask`" in next(
        line for line in lines(shown) if "secrets" in line
    )


def test_masked_files_are_named_once_and_again_when_there_are_others():
    # proves MASK-01
    one, other = (make(facts={"secret_files": (secret_file(line),)}) for line in (1, 7))
    more = make(facts={"secret_files": (secret_file(1), secret_file(path="master.key"))})
    told = frozenset(audit.telling(one)[0])

    (note,) = audit.untold(one, frozenset())[0]
    assert note == "masked inside: .env; `--project-secrets show` shows them in this project"
    assert audit.untold(other, told)[0] == []
    assert audit.untold(more, told)[0] == [note.replace(".env", ".env, master.key")]
    short = list(audit.lines(one, approved(one), asking=False, notes=[note]))
    assert [line.split()[0] for line in short] == ["claudebox:", "note"]
    assert not [line for line in audit.lines(one, None, asking=True, notes=[note]) if line.split()[0] == "note"]


def test_quiet_leaves_nothing_but_warnings():
    # proves UX-07
    plan = make(changes={"project_secrets": "show"}, facts={"secret_files": (secret_file(3),)})
    warned = plan.replace(warnings=("look out",))

    (files,) = lines(plan, asking=False, quiet=True)
    assert files.split()[0] == "warning"
    assert ".env:3" in files
    assert [line.split()[0] for line in lines(warned, asking=False, quiet=True)] == ["warning", "warning"]
    assert lines(make(), asking=False, quiet=True) == []
    assert [line.split()[0] for line in lines(make(), quiet=True)] == ["new"]  # the question is about something
    assert lines(make(), approved(make()), quiet=True) == []


def test_news_are_what_the_user_decides_about():
    # proves UX-07
    before = approved(make())

    assert news(make(), before) == ""
    noise = make(PWD="/elsewhere", OLDPWD="/", SHLVL="7", TERM="dumb", COLORTERM="truecolor", NEW_TOKEN="withheld")
    assert news(noise, before) == ""
    assert news(make("FOO", FOO="1"), before) == "variable FOO"
    assert news(make("A_TOKEN", A_TOKEN="1"), before) == "secret A_TOKEN"
    assert news(make(changes={"network": "none"}), before) == "network none; no longer: network full"
    assert news(make(changes={"allow_userns": True}), before) == "allow userns"
    assert news(make(), approved(make("FOO", FOO="1"))) == "no longer: variable FOO"
    shown: dict[str, object] = {"project_secrets": "show"}
    exposed = make(changes=shown, facts={"secret_files": (secret_file(3),)})
    assert news(exposed, before) == "secrets in .env, project secrets show"
    moved = make(changes=shown, facts={"secret_files": (secret_file(3, 9),)})
    assert news(moved, approved(exposed)) == ""
    assert news(make(facts={"secret_files": (secret_file(3),)}), before) == ""  # masked


NAMES = (NameRequest("git-config", "--allow"),)
# For each field of a policy a value that widens it, or what of it is no decision.
WIDENED: dict[str, object] = {
    "addresses": None, "agent": None, "agent_named": None, "allow": NAMES,
    "allow_userns": True, "auth": "passthrough", "browser": "--set browser=true", "budget": None,
    "cache_limit": None, "caches": "shared", "client": None, "constants": None,
    "credential": None, "devices": None, "devshell": "--set devshell=true", "domains": None,
    "filter_terminal": True, "git_import": "manual", "gpu": "--set gpu=true", "hides_path": True,
    "host_ports": None, "inherit": None,
    "limits": LimitRequest(seconds=60), "mounts": None, "names": None, "network": "full",
    "network_origin": None, "nix": None, "nix_origin": None, "nixpkgs": "flake:nixpkgs", "packages": None,
    "packages_optional": True, "program": None, "project_secrets": "show", "project_secrets_origin": None,
    "published": None,
    "refuse_secrets": True, "scratch": None, "secrets": None, "shared_home": None, "start": None,
    "submounts": "mask", "toolchains": None, "undo": None, "unsafe_mounts": True, "uplink": "pasta", "words": None,
}  # fmt: skip


def test_every_setting_that_differs_is_news():
    # proves UX-07
    assert set(WIDENED) == set(Policy._fields), "a new field is a decision of the user, or a row of the plan shows it"
    before = make(changes={"network": "none", "auth": "broker"})
    for name, value in WIDENED.items():
        if value is not None:
            after = before.replace(policy=before.policy.replace(**{name: value}))
            assert not audit.is_approved(after, approved(before)), name
            assert not audit.is_approved(before, approved(after)), name


@pytest.mark.parametrize("change", [{"published": (Published(3000, 3000),)}, {"host_ports": (5432,)}])
def test_an_opened_port_is_news(change):
    # proves UX-07
    assert news(make(changes={"network": "none", **change}), approved(make(changes={"network": "none"})))


def test_another_source_at_the_same_place_is_news():
    # proves UX-07
    def mounted(source: str, *, writable: bool = False) -> Plan:
        return make(changes={"mounts": (MountRequest(source, "/data", writable=writable, origin="--mount-ro"),)})

    before = approved(mounted("/srv/data"))
    assert news(mounted("/srv/data"), before) == ""
    assert news(mounted("/srv/out"), before).startswith("reading /data (/srv/out)")
    assert news(mounted("/srv/data", writable=True), before).startswith("writing /data")


def test_long_names_that_begin_alike_are_not_the_same():
    # proves UX-07
    one, other = (make(changes={"nixpkgs": "path:/" + "x" * 300 + end}) for end in "ab")

    assert news(other, approved(one))


def test_what_two_launches_were_given_does_not_add_up():
    # proves UX-07
    reading = make("MY_TOKEN", changes={"network": "none"}, MY_TOKEN="x")
    reaching = make(changes={"network": "full"})
    both = make("MY_TOKEN", changes={"network": "full"}, MY_TOKEN="x")
    known = (approved(reading), approved(reaching))

    for plan in (reading, reaching):
        assert audit.is_approved(plan, audit.find_nearest(plan, known))
    assert not audit.is_approved(both, audit.find_nearest(both, known))
    assert audit.find_nearest(both, ()) is None


def test_a_new_warning_is_news_and_is_said_once():
    # proves UX-07
    plan = make()
    warned = plan.replace(warnings=("look out",))
    shown = lines(warned, approved(plan), asking=False)

    assert "new      a warning" in shown[3]
    assert sum("look out" in line for line in shown) == 1
    (line,) = audit.lines(warned, approved(warned), asking=False, settled=True)
    assert "look out" not in line


def test_a_variable_that_changes_what_programs_load_is_a_warning():
    # proves D-03
    shown = lines(make("LD_PRELOAD", LD_PRELOAD="/x.so"), asking=False, quiet=True)

    assert shown == ["  warning  LD_PRELOAD (from --env) changes what programs load"]


SETTINGS = {
    "env": {"DEPLOY_TOKEN": "CANARY", "EDITOR": "CANARY"},
    "hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "CANARY"}]}]},
    "mcpServers": {"tickets": {"command": "CANARY"}},
    "enabledPlugins": {"lint@tools": True},
    "apiKeyHelper": "CANARY",
}


def test_what_comes_with_settings_of_the_hosts_client_is_named(tmp_path: Path):
    # proves UX-08
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text(json.dumps(SETTINGS))
    shared = Policy("client", shared_home=True)
    named = Policy("client", inherit=(NameRequest("settings.json", "--set inherit"),))
    found = agent_facts.find_inherited(shared, str(tmp_path))

    assert found == agent_facts.find_inherited(named, str(tmp_path))
    agents = Policy("client", inherit=(NameRequest("agents", "--set inherit"),))
    assert agent_facts.find_inherited(agents, str(tmp_path)) == ()
    assert ("hook", "PreToolUse") in found
    assert ("MCP server", "tickets") in found
    shown = lines(make(facts={"inherited": found}), approved(make()))
    assert "DEPLOY_TOKEN (variable of settings.json) enters" in shown[2]
    for name in ("DEPLOY_TOKEN", "EDITOR", "hook PreToolUse", "MCP server tickets", "plugin lint@tools"):
        assert name in shown[3]
    assert "CANARY" not in "".join(shown) + str(found)


@pytest.mark.parametrize("content", ["[]", "{", '{"env": 3, "hooks": ["x"]}', "\udcff", "[" * 100000])
def test_settings_that_are_none_bring_nothing(tmp_path: Path, content):
    # proves UX-08
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text(content, errors="surrogateescape")

    assert agent_facts.find_inherited(Policy("client", shared_home=True), str(tmp_path)) == ()


def test_lines_are_broken_between_words_alone(monkeypatch):
    # proves UX-07
    text = "one " + "x" * 50 + " two three \x1b[1mfour five\x1b[0m six"
    assert list(console.lay_out([("label", text)])) == [f"  label {text}"]  # no terminal here

    monkeypatch.setattr("os.get_terminal_size", lambda _: type("size", (), {"columns": 30}))
    shown = list(console.lay_out([("label", text)]))
    assert " ".join(line.strip() for line in shown) == f"label {text}"
    assert all(len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) <= 30 for line in shown if "x" * 50 not in line)
    assert len(shown) == 4
