from __future__ import annotations

import json

import pytest
from tests.support import hosts

from claudebox.agent import facts as agent_facts
from claudebox.agent.claude import CLAUDE, UPSTREAM
from claudebox.agent.facts import Login
from claudebox.agent.record import AgentKind
from claudebox.base.errors import ClaudeboxError
from claudebox.broker import plan as broker_plan
from claudebox.network.records import Endpoint
from claudebox.plan import audit, compose, explain
from claudebox.settings.records import Constant, NameRequest, Policy

POLICY = Policy("client", auth="broker")
KEY = "sk-ant-real-key"


def made(policy=POLICY, **changes):
    changes.setdefault("libraries", ("/lib/python",))
    return compose.make_plan(policy, hosts.debian(**changes))


def values(result):
    return {row.name: row.value for row in result.variables}


def config(result):
    assert result.broker is not None
    (held,) = result.broker.models
    return held


@pytest.mark.parametrize("name", UPSTREAM.credentials)
def test_a_credential_of_the_environment_stays_outside_and_its_name_stays(name):
    # proves AUTH-01, I03
    result = made(environ={name: KEY})

    assert values(result)[name] == UPSTREAM.placeholder
    assert values(result)["ANTHROPIC_UNIX_SOCKET"] == UPSTREAM.socket
    assert [(row.name, row.value) for row in config(result).credentials] == [(name, KEY)]
    assert KEY not in str(result.variables) + str(result.mounts)
    assert [row.dest for row in result.mounts if row.kind == "socket"] == [UPSTREAM.socket]


@pytest.mark.parametrize(
    ("environ", "held"),
    [
        ({"ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_OAUTH_TOKEN": "o"}, {"ANTHROPIC_API_KEY": "k"}),
        ({"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "o"}, {"CLAUDE_CODE_OAUTH_TOKEN": "o"}),
        (
            {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t", "CLAUDE_CODE_OAUTH_TOKEN": "o"},
            {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"},
        ),
    ],
)
def test_the_broker_holds_what_the_client_would_use_and_nothing_else(environ, held):
    result = made(environ=environ, login=Login("host", "/home/alice/.claude/.credentials.json", usable=True))

    assert {row.name: row.value for row in config(result).credentials} == held
    assert config(result).login == ""


def test_a_login_stays_outside_and_what_it_is_good_for_is_told():
    traits = (("CLAUDE_CODE_SUBSCRIPTION_TYPE", "max"), ("CLAUDE_CODE_OAUTH_SCOPES", "user:inference user:profile"))
    result = made(environ={}, login=Login("host", "/l", usable=True, traits=traits))

    assert values(result)["CLAUDE_CODE_OAUTH_TOKEN"] == UPSTREAM.placeholder
    assert dict(traits).items() <= values(result).items()
    assert config(result).login == "/l"
    assert not [row for row in result.mounts if row.dest.startswith(CLAUDE.extras.login) and row.source]


def test_without_a_credential_or_a_wish_for_it_there_is_no_broker():
    assert made(environ={}).broker is None
    assert made(environ={}, login=Login("host", "/damaged")).broker is None
    assert made(Policy("client", auth="passthrough"), environ={"ANTHROPIC_API_KEY": KEY}).broker is None
    assert (
        made(Policy("client", auth="broker", agent=AgentKind("codex")), environ={"ANTHROPIC_API_KEY": KEY}).broker
        is None
    )


@pytest.mark.parametrize(
    "wish",
    [
        {"names": (NameRequest("ANTHROPIC_API_KEY", "--env"),)},
        {"constants": (Constant("ANTHROPIC_AUTH_TOKEN", "x", "--env"),)},
    ],
)
def test_a_credential_that_the_user_names_enters_as_they_said(wish):
    result = made(POLICY.replace(**wish), environ={"ANTHROPIC_API_KEY": KEY})

    assert result.broker is None
    assert values(result)["ANTHROPIC_API_KEY"] == KEY


@pytest.mark.parametrize(
    "wish",
    [
        {"names": (NameRequest("ANTHROPIC_API_KEY", ".claudebox.toml", untrusted=True),)},
        {"constants": (Constant("ANTHROPIC_API_KEY", "x", ".claudebox.toml", untrusted=True),)},
        {"constants": (Constant("ANTHROPIC_BASE_URL", "http://thief.example", ".claudebox.toml", untrusted=True),)},
        {"constants": (Constant("ANTHROPIC_UNIX_SOCKET", "/tmp/thief", ".claudebox.toml", untrusted=True),)},
    ],
)
def test_a_project_file_cannot_get_at_the_credential_nor_lead_it_elsewhere(wish):
    # proves EXT-01, I03
    result = made(POLICY.replace(**wish), environ={"ANTHROPIC_API_KEY": KEY})

    assert values(result)["ANTHROPIC_API_KEY"] == UPSTREAM.placeholder
    assert values(result)["ANTHROPIC_BASE_URL"] == "http://claudebox.invalid"
    assert values(result)["ANTHROPIC_UNIX_SOCKET"] == UPSTREAM.socket
    assert config(result).endpoint == Endpoint("https", "api.anthropic.com", 443, "")


def test_a_base_url_of_the_user_is_the_endpoint():
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://gate.example/x/"}
    named = POLICY.replace(names=(NameRequest("ANTHROPIC_BASE_URL", "--env"),))
    constant = POLICY.replace(constants=(Constant("ANTHROPIC_BASE_URL", "http://[::1]:8080", "config"),))

    assert config(made(environ=environ)).endpoint == Endpoint("https", "gate.example", 443, "/x")
    assert config(made(named, environ=environ)).endpoint == Endpoint("https", "gate.example", 443, "/x")
    assert config(made(constant, environ=environ)).endpoint == Endpoint("http", "::1", 8080, "")
    assert UPSTREAM.first_party not in values(made(environ=environ))
    assert UPSTREAM.first_party in values(made(environ={"ANTHROPIC_API_KEY": KEY}))


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("https://api.anthropic.com", ("https", "api.anthropic.com", 443, "")),
        ("http://127.0.0.1:8080/", ("http", "127.0.0.1", 8080, "")),
        ("https://Gate.Example/a/b//", ("https", "gate.example", 443, "/a/b")),
        ("http://[2001:db8::1]", ("http", "2001:db8::1", 80, "")),
    ],
)
def test_addresses_are_read(address, wanted):
    found = broker_plan.read_endpoint(address)

    assert (found.scheme, found.host, found.port, found.prefix) == wanted


@pytest.mark.parametrize(
    "address",
    [
        "", "gate.example", "//gate.example", "ftp://gate.example", "https://", "https://:80", "https://a b",
        "https://u:p@gate.example", "https://gate.example:x", "https://gate.example:0", "https://gate.example:99999",
        "https://gate.example/a?b", "https://gate.example/a#b", "https://gate.example/\r\nx: y", "https://gäte.example",
        "https://gate.example\r\n", "https://a:b:c", "unix:///x", "https://[::1", "https://gate.example/%2e",
    ],
)  # fmt: skip
def test_what_is_not_an_address_is_refused_without_being_shown(address):
    with pytest.raises(ClaudeboxError) as raised:
        broker_plan.read_endpoint(address)

    assert "u:p" not in str(raised.value) + raised.value.hint


def test_a_missing_library_stops_the_launch_and_nothing_enters_instead():
    problem = ClaudeboxError("the library is missing")
    with pytest.raises(ClaudeboxError, match="missing"):
        made(environ={"ANTHROPIC_API_KEY": KEY}, libraries=problem)
    assert made(environ={}, libraries=problem).broker is None


def test_no_rendering_shows_what_the_broker_holds():
    # proves UX-01, B13
    result = made(environ={"ANTHROPIC_API_KEY": KEY, "HTTPS_PROXY": "http://me:pass-word@proxy"})
    texts = [
        "\n".join(audit.lines(result, None, asking=True)), "\n".join(explain.tree(result)),
        "\n".join(explain.dry_run(result)), explain.as_json(result),
    ]  # fmt: skip

    for text in texts:
        assert KEY not in text
        assert "pass-word" not in text
    assert "ANTHROPIC_API_KEY stays outside; a broker adds it to requests to https://api.anthropic.com" in texts[0]
    # It can be pasted all the same.
    assert "--ro-bind-try /tmp/claudebox-broker/model_api /run/claudebox/api.sock" in texts[2]
    assert json.loads(texts[3])["broker"] == {
        "services": ["model_api", "proxy"],
        "models": [
            {
                "name": "model_api",
                "endpoint": "https://api.anthropic.com",
                "holds": "ANTHROPIC_API_KEY",
                "through": "proxy:80",
                "budget": "",
                "address": "",
            }
        ],
        "secrets": [],
    }


@pytest.mark.parametrize("network", ["full", "allow"])
def test_a_proxy_of_the_host_that_cannot_be_used_is_said_once(network):
    # proves HOUSE-04
    environ = {"ANTHROPIC_API_KEY": KEY, "ALL_PROXY": "socks5://me:pass-word@proxy:1080"}
    warnings = made(POLICY.replace(network=network), environ=environ).warnings

    assert [text for text in warnings if "ALL_PROXY of this machine names a socks5 proxy" in text] == [
        text for text in warnings if "proxy" in text and "is not used" in text
    ]
    assert len([text for text in warnings if "socks5" in text]) == 1
    assert not [text for text in made(environ={"ANTHROPIC_API_KEY": KEY}).warnings if "proxy" in text]
    assert "pass-word" not in str(warnings)


def test_the_agent_is_told_that_the_key_is_outside():
    # proves AWARE-02
    told = next(row.content for row in made(environ={"ANTHROPIC_API_KEY": KEY}).mounts if row.dest.endswith("BOX.md"))
    silent = next(row.content for row in made(environ={}).mounts if row.dest.endswith("SANDBOX.md"))

    assert b"stays outside" in told
    assert b"stays outside" not in silent


@pytest.mark.parametrize(
    ("document", "usable", "traits"),
    [
        ({"claudeAiOauth": {"accessToken": "a"}}, True, {}),
        (
            {
                "claudeAiOauth": {
                    "accessToken": "a",
                    "scopes": ["x:y", "z"],
                    "subscriptionType": "max",
                    "other": "secret",
                }
            },
            True,
            {"CLAUDE_CODE_OAUTH_SCOPES": "x:y z", "CLAUDE_CODE_SUBSCRIPTION_TYPE": "max"},
        ),
        ({"claudeAiOauth": {"accessToken": "a", "scopes": ["x y", 3], "subscriptionType": "m\n"}}, True, {}),
        ({"claudeAiOauth": {"accessToken": 3}}, False, {}),
        ({"claudeAiOauth": []}, False, {}),
        ([], False, {}),
    ],
)
def test_a_login_is_read_for_what_it_says_of_itself(tmp_path, document, usable, traits):
    path = tmp_path / "login"
    path.write_text(json.dumps(document), encoding="ascii")

    found = agent_facts.read_login(UPSTREAM, Login("host", str(path)))

    assert (found.usable, dict(found.traits)) == (usable, traits)
    assert "accessToken" not in repr(found)
