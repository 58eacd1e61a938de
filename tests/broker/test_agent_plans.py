"""What a plan makes of the key or login of each agent: held by the broker, in nothing that enters."""

from __future__ import annotations

import json

import pytest
from tests.support import hosts

from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.broker import wire
from claudebox.broker.facts import ModelLogin, find_model_logins
from claudebox.broker.model_api import Openings
from claudebox.plan import audit, compose
from claudebox.settings.records import NameRequest, Policy

OTHERS = [name for name in kinds.NAMES if name != kinds.USUAL]
KEY = "sk-real-key-of-the-user"


def make(name, models=(), network="none", names=(), **environ):
    """Return the plan of a session of an agent."""
    policy = Policy("client", auth="broker", network=network, names=names, agent=kinds.find_kind(name))
    host = hosts.debian(environ={"PATH": "/usr/bin", **environ}, libraries=("/lib/python",))
    ports = tuple(range(4000, 4010))
    host = host.replace(secrets=host.secrets.replace(models=models), network=host.network.replace(model_ports=ports))
    return compose.make_plan(policy, host)


def texts(plan):
    """Return everything that enters as text."""
    return repr((plan.variables, plan.mounts, plan.command, plan.seeds))


@pytest.mark.parametrize("network", ["none", "full"])
@pytest.mark.parametrize("name", OTHERS)
def test_every_key_of_an_agent_stays_outside_and_reaches_the_broker(name, network):
    # proves ANY-01, AUTH-01
    for api in (row for row in kinds.find_kind(name).upstreams if row.keys):
        for variable in api.keys:
            plan = make(name, network=network, **{variable: KEY})
            held = [model for model in plan.broker.models if model.api.name == api.name]

            assert [row.value for row in held[0].credentials] == [KEY], variable
            assert KEY not in texts(plan)
            assert f"http://127.0.0.1:{held[0].port}" in texts(plan)
            assert wire.unpack(wire.pack(plan.broker.models)) == plan.broker.models  # as the broker gets it
            assert plan.login == ""


@pytest.mark.parametrize(
    ("name", "api", "path", "endpoint", "variable"),
    [
        ("codex", "openai", "/home/user/.codex/auth.json", "https://chatgpt.com/backend-api/codex", "OPENAI_API_KEY"),
        ("gemini", "code-assist", "/home/user/.gemini/oauth_creds.json", "https://cloudcode-pa.googleapis.com",
         "GOOGLE_CLOUD_ACCESS_TOKEN"),
    ],
)  # fmt: skip
def test_a_login_is_used_where_it_belongs_whatever_address_a_key_has(name, api, path, endpoint, variable):
    # proves ANY-01, AUTH-01
    plan = make(name, (ModelLogin(api, path),), OPENAI_BASE_URL="https://gateway.example/v1")
    (model,) = plan.broker.models

    assert (str(model.endpoint), model.login, model.credentials) == (endpoint, path, ())
    assert model.login_kind.path == path.replace("/home/user", "~")
    assert {row.name: row.value for row in plan.variables}[variable] == "claudebox-placeholder"
    assert wire.unpack(wire.pack(plan.broker.models)) == plan.broker.models


def test_a_key_of_gemini_is_chosen_before_its_login_and_the_settings_say_which():
    login = ModelLogin("code-assist", "/home/user/.gemini/oauth_creds.json")
    by_key, by_login = make("gemini", (login,), GEMINI_API_KEY=KEY), make("gemini", (login,))

    assert [model.api.name for model in by_key.broker.models] == ["gemini"]
    assert "gemini-api-key" in repr(by_key.seeds)
    assert "oauth-personal" in repr(by_login.seeds)
    assert "gemini-api-key" not in repr(by_login.seeds)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("network", ["none", "full"])
def test_a_key_that_goes_elsewhere_is_a_launch_to_be_approved(name, network):
    # proves ANY-01, UX-01
    for api in (row for row in kinds.find_kind(name).upstreams if row.keys and row.base_url):
        plan, *others = (
            make(name, network=network, **{api.keys[0]: KEY, api.base_url: address})
            for address in ("", "https://gateway.example/v1", "http://gateway.example/v1")
        )
        usual, there, plain = (frozenset(audit.decided(made)) for made in (plan, *others))

        assert not [text for text in usual if text.startswith("the model at")]
        assert there - usual == {"the model at https://gateway.example/v1"}
        assert plain - usual == {"the model at http://gateway.example/v1"}
        secrets = next(line for line in audit.lines(plan, None, asking=True) if "secrets" in line)
        assert f"{api.keys[0]} stays outside" in secrets
        assert f"withheld: {api.keys[0]}" not in secrets


@pytest.mark.parametrize(
    ("agent", "name"),
    [("codex", "OPENAI_API_KEY"), ("codex", "OPENAI_ORGANIZATION"), ("claude", "ANTHROPIC_API_KEY"),
     ("claude", "ANTHROPIC_AUTH_TOKEN")],
)  # fmt: skip
@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "é"])
def test_what_no_header_can_carry_is_refused_by_its_variable(agent, name, value):
    # proves AUTH-01
    with pytest.raises(ClaudeboxError, match=f"`{name}`"):
        make(agent, **{"OPENAI_API_KEY": KEY, name: value})


def test_several_keys_are_told_in_one_sentence():
    # proves UX-01
    apis = kinds.find_kind("opencode").upstreams
    plan = make("opencode", **{api.keys[0]: KEY for api in apis})
    secrets = next(line for line in audit.lines(plan, None, asking=True) if "secrets" in line)

    assert secrets.count("outside") == 1
    assert all(secrets.count(text) == 1 for api in apis for text in (api.keys[0], api.official))


@pytest.mark.parametrize("name", OTHERS)
def test_what_an_agent_says_to_the_broker_goes_through_no_proxy(name):
    # proves HOUSE-04, AUTH-01
    for network in ("full", "allow"):
        for without in ({}, {"no_proxy": "example.org"}, {"NO_PROXY": "example.org", "no_proxy": "example.org"}):
            plan = make(name, network=network, HTTP_PROXY="http://proxy.example:3128", **without)
            said = {row.name: row.value.split(",") for row in plan.variables if row.name.lower() == "no_proxy"}

            assert said.keys() >= without.keys()
            assert said
            assert all("127.0.0.1" in hosts for hosts in said.values())


@pytest.mark.parametrize("name", OTHERS)
def test_without_a_key_the_user_is_told_which_variable_holds_one(name):
    # proves ANY-05
    keys = kinds.find_kind(name).key_variables

    assert f"`{keys[0]}`" in make(name).login
    assert ("or log in on the host" in make(name).login) == (name in ("codex", "gemini"))
    assert make(name, names=(NameRequest(keys[0], "--env"),)).login == ""


@pytest.mark.parametrize("name", ["COPILOT_GITHUB_TOKEN", "GH_TOKEN", "~/.copilot/config.json"])
def test_the_token_of_copilot_opens_models_and_what_the_account_may_use_and_nothing_else_of_github(tmp_path, name):
    # proves ANY-01, AUTH-01
    (tmp_path / ".copilot").mkdir()
    document = {"authTokens": {"https://github.com:octo": {"token": KEY}}}
    (tmp_path / ".copilot/config.json").write_text(f"// This file is managed automatically.\n{json.dumps(document)}")
    environ = {} if name[0] == "~" else {name: KEY}
    policy = Policy("client", auth="broker", agent=kinds.find_kind("copilot"))
    found = find_model_logins(policy, environ, str(tmp_path))
    models = tuple(row.replace(path=f"/home/user{row.path[len(str(tmp_path)) :]}") for row in found)
    plan = make("copilot", models, **environ)
    rows = {model.api.name: model for model in plan.broker.models}

    assert all(row.credentials[0].name.endswith(name[1:]) for row in rows.values())
    assert str(rows["copilot"].endpoint) == "https://api.githubcopilot.com"
    assert str(rows["github"].endpoint) == "https://api.github.com"
    assert KEY not in texts(plan)
    openings = Openings(rows["github"].api)
    assert openings.methods(b"/copilot_internal/user") == {b"GET"}
    for path in (b"/user", b"/repos/octo/private", b"/graphql", b"/copilot_internal/v2/token", b"/user/keys"):
        assert openings.methods(path) == set()
    assert Openings(rows["copilot"].api).methods(b"/mcp/readonly") == set()


@pytest.mark.parametrize("name", OTHERS)
def test_no_agent_names_another_account_or_credential_in_a_header(name):
    # proves AUTH-01
    for api in kinds.find_kind(name).upstreams:
        openings = Openings(api)
        for field in (
            "authorization", "x-api-key", "x-goog-api-key", "cookie", "openai-organization", "openai-project",
            "chatgpt-account-id", "x-openai-actor-authorization", "x-openai-account-routing-override",
            "x-openai-agent-assertion", "x-goog-user-project", "x-goog-authenticated-user",
        ):  # fmt: skip
            assert not openings.passes(field.encode()), (api.name, field)
        assert openings.passes(b"content-type")
