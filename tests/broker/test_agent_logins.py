"""Logins and keys of other agents, in files of theirs: used and renewed on the host, in the agent's own format."""

from __future__ import annotations

import base64
import fcntl
import json
import threading
import time
from urllib.parse import parse_qs

import pytest
from tests.broker.conftest import Web
from tests.broker.test_model_protocols import OPENAI, RESPONSE, RESPONSES, say
from tests.support import hosts

from claudebox.agent import kinds
from claudebox.broker import plan as broker_plan
from claudebox.broker.facts import find_model_logins
from claudebox.network.records import Credential
from claudebox.settings.records import Policy

pytestmark = pytest.mark.process

(CODEX,) = (api.login for api in kinds.find_kind("codex").upstreams if api.login is not None)
(GEMINI,) = (api.login for api in kinds.find_kind("gemini").upstreams if api.login is not None)


def token(name, seconds):
    """Return a JSON web token that ends in so many seconds."""
    claims = json.dumps({"exp": time.time() + seconds, "for": name}).encode()
    return f"eyJhbGciOiJub25lIn0.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.{name}Signature0123456789"


class Service:
    """An API and the server that renews its login, at one port."""

    def __init__(self, access):
        self.valid, self.renewals, self.accounts, self.status = {access}, [], [], 200

    def __call__(self, visit):
        if visit.path.endswith("/oauth/token"):
            self.renewals.append((visit.headers["content-type"], visit.body().decode()))
            fresh = token(f"fresh{len(self.renewals)}", 36000)
            self.valid = {fresh}
            answer = {
                "access_token": fresh,
                "refresh_token": f"next-{len(self.renewals)}",
                "id_token": "id",
                "expires_in": 3600,
            }
            visit.reply(json.dumps(answer).encode(), f"{self.status} X")
            return
        self.accounts.append(visit.headers.get("chatgpt-account-id"))
        if visit.headers.get("authorization", "").removeprefix("Bearer ") in self.valid:
            say(visit, json.dumps(RESPONSE).encode(), streamed=False)
        else:
            visit.body()
            visit.reply(b"{}", "401 Unauthorized")


@pytest.fixture
def login(models, tmp_path):
    """Return a function that serves a login: `login(kind, seconds)` → (service, path, ask)."""

    def start(kind, access, *, refresh="first-refresh-token", **document):
        path = tmp_path / "auth.json"
        tokens = {"access_token": access, "refresh_token": refresh, "account_id": "acc-1", "id_token": "old"}
        path.write_text(json.dumps({"tokens": tokens, **tokens, "OPENAI_API_KEY": None, "other": 1, **document}))
        path.chmod(0o600)
        service = Service(access)
        first, _, _ = models(service, OPENAI)
        kind = kind.replace(url=f"https://localhost:{first.port}/oauth/token")
        _served, (port,), placeholder = models(service, OPENAI, credentials=(), login=str(path), login_kind=kind)

        def ask():
            with Web(port) as caller:
                caller.post(RESPONSES[1], placeholder)
                status, headers = caller.head()
                return status, caller.content() if status == 200 else caller.take(int(headers["content-length"]))

        return service, path, ask

    return start


def test_a_login_of_codex_is_used_with_its_account_and_not_touched(login):
    service, path, ask = login(CODEX, token("host", 36000))
    before = path.read_bytes()

    assert ask()[0] == 200
    assert service.accounts == ["acc-1"]
    assert service.renewals == []
    assert path.read_bytes() == before


def test_a_login_of_codex_near_its_end_is_renewed_once_and_written_back(login):
    service, path, ask = login(CODEX, token("host", 60))
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask()[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [200] * 8
    ((kind, body),) = service.renewals
    assert kind == "application/json"
    assert json.loads(body) == {
        "grant_type": "refresh_token", "refresh_token": "first-refresh-token", "client_id": CODEX.client,
    }  # fmt: skip
    document = json.loads(path.read_text())
    assert document["tokens"]["refresh_token"] == "next-1"
    assert document["tokens"]["access_token"] in service.valid
    assert (document["tokens"]["id_token"], document["tokens"]["account_id"], document["other"]) == ("id", "acc-1", 1)
    assert document["last_refresh"].startswith("20")
    assert path.stat().st_mode & 0o777 == 0o600
    # Files that codex itself leaves there.
    assert sorted(found.name for found in path.parent.glob("*lock*")) == ["auth.json.lock", "auth.lock"]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", ["auth.lock", "auth.json.lock"])
def test_a_login_of_codex_is_renewed_under_the_locks_of_codex(login, tmp_path, name, linked):
    service, path, ask = login(CODEX, token("host", 60))
    lock = path.parent / name
    if linked:  # as managers of dotfiles do: codex then has one lock beside the link, and one beside the file
        (tmp_path / "dotfiles").mkdir()
        path.symlink_to(path.rename(tmp_path / "dotfiles/auth.json"))
        lock = lock if name == "auth.lock" else tmp_path / "dotfiles" / name
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = []
        thread = threading.Thread(target=lambda: found.append(ask()[0]))
        thread.start()
        thread.join(1.5)
        waited = thread.is_alive(), path.read_text().count("next-1")
        fcntl.flock(held, fcntl.LOCK_UN)
        thread.join()

    assert waited == (True, 0)
    assert found == [200]
    assert path.read_text().count("next-1")
    assert len(service.renewals) == 1


def test_a_token_that_is_refused_is_renewed_and_the_request_repeated(login):
    service, _, ask = login(CODEX, token("host", 36000))
    service.valid = set()

    assert ask()[0] == 200
    assert len(service.renewals) == 1


def test_a_login_of_gemini_is_renewed_by_a_form(login):
    service, path, ask = login(GEMINI, "ya29.host", expiry_date=int(time.time() * 1000))

    assert ask()[0] == 200
    ((kind, body),) = service.renewals
    assert kind == "application/x-www-form-urlencoded"
    assert parse_qs(body) == {
        "grant_type": ["refresh_token"], "refresh_token": ["first-refresh-token"], "client_id": [GEMINI.client],
        "client_secret": [GEMINI.secret],
    }  # fmt: skip
    document = json.loads(path.read_text())
    assert document["access_token"] in service.valid
    assert document["expiry_date"] > time.time() * 1000 + 3000_000


def test_a_login_that_is_refused_says_what_to_do_and_is_kept(login):
    service, path, ask = login(CODEX, token("host", 60))
    service.status, service.valid = 400, set()
    before = path.read_bytes()

    status, content = ask()
    assert status == 401
    assert b"run `codex login` there" in content
    assert ask()[0] == 401
    assert len(service.renewals) == 1
    assert path.read_bytes() == before


def test_no_token_of_a_login_comes_back(login):
    access = token("host", 36000)
    service, _path, ask = login(CODEX, access)
    service.valid = set()
    service.status = 500

    status, content = ask()
    assert status == 401
    for secret in (access, "first-refresh-token"):
        assert secret.encode() not in content


@pytest.mark.parametrize(
    "content",
    [
        '{"OPENAI_API_KEY": "sk-from-the-file-0123456789"}',
        'X=1\nOPENAI_API_KEY=older\n export OPENAI_API_KEY = "sk-from-the-file-0123456789" # a\nOPENAI_API_KEY_2=x\n',
        "OPENAI_API_KEY=sk-from-the-file-0123456789 # mine",
    ],
)
def test_a_key_in_the_agent_s_own_file_is_read_by_the_broker(models, tmp_path, content):
    path = tmp_path / "auth.json"
    path.write_text(content)
    credential = Credential("~/.codex/auth.json", "", file=str(path), field="OPENAI_API_KEY")
    served, (port,), placeholder = models(lambda visit: visit.reply(), OPENAI, credentials=(credential,))
    with Web(port) as caller:
        caller.post(RESPONSES[1], placeholder)
        assert caller.answer()[0] == 200
    assert served.requests[0][2]["authorization"] == "Bearer sk-from-the-file-0123456789"


@pytest.mark.parametrize(
    ("key", "removed"),
    [("ollama", False), ("EMPTY", False), ("x", False), ("lm-studio", False), ("not-needed", False),
     ("placeholder", False), ("sk-Vq7Zr2Lx9Tn4Kd8W", True)],
)  # fmt: skip
def test_a_word_that_stands_in_for_a_key_does_not_spoil_answers(models, key, removed):
    # proves AUTH-01
    said = f'the text "{key}" of a file'.encode()
    served, (port,), placeholder = models(lambda visit: visit.reply(said), OPENAI, key=key)
    with Web(port) as caller:
        caller.post(RESPONSES[1], placeholder)
        answer = caller.answer()[-1]
    assert served.requests[0][2]["authorization"] == f"Bearer {key}"
    assert answer == (said.replace(key.encode(), b"*" * len(key)) if removed else said)


@pytest.mark.parametrize("content", ["{}", "{", '{"OPENAI_API_KEY": "sk-0123456789\\r\\nx: y"}'])
def test_without_a_usable_key_in_that_file_nothing_is_asked_and_the_file_is_named(models, tmp_path, content):
    path = tmp_path / "auth.json"
    path.write_text(content)
    credential = Credential("~/.codex/auth.json", "", file=str(path), field="OPENAI_API_KEY")
    served, (port,), placeholder = models(lambda visit: visit.reply(), OPENAI, credentials=(credential,))
    with Web(port) as caller:
        caller.post(RESPONSES[1], placeholder)
        status, *rest = caller.answer()
    assert (status, "~/.codex/auth.json" in repr(rest), served.requests) == (401, True, [])


@pytest.mark.parametrize(
    ("document", "environ", "found"),
    [
        ({"tokens": {"access_token": "a", "refresh_token": "r"}}, {}, [""]),
        ({"OPENAI_API_KEY": "k", "tokens": None}, {}, ["OPENAI_API_KEY"]),
        ({"OPENAI_API_KEY": "k", "tokens": {"access_token": "a", "refresh_token": "r"}}, {}, [""]),
        ({"OPENAI_API_KEY": "k"}, {"OPENAI_API_KEY": "v"}, []),
        ({"tokens": {"access_token": "a"}}, {}, []),
        ({"OPENAI_API_KEY": ["k"]}, {}, []),
        ([], {}, []),
    ],
)
def test_keys_and_logins_are_found_in_the_agent_s_own_files(tmp_path, document, environ, found):
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/auth.json").write_text(json.dumps(document))
    api = OPENAI.replace(login=CODEX, files=("~/.codex/auth.json:OPENAI_API_KEY",))
    policy = Policy("client", auth="broker").replace(agent=Policy("client").agent.replace(upstreams=(api,)))

    rows = find_model_logins(policy, environ, str(tmp_path))
    assert [row.field for row in rows] == found
    assert not rows or rows[0].path == f"{tmp_path}/.codex/auth.json"
    assert "access_token" not in repr(rows)
    assert find_model_logins(policy.replace(auth="passthrough"), environ, str(tmp_path)) == ()


def test_a_key_beside_an_address_goes_to_that_address_only(tmp_path):
    # proves AUTH-01
    (tmp_path / ".qwen").mkdir()
    (tmp_path / ".qwen/.env").write_text("OPENAI_API_KEY=k-0123456789\nOPENAI_BASE_URL=https://dashscope.example/v1\n")
    policy = Policy("client", auth="broker", network="none", agent=kinds.find_kind("qwen"))
    models = find_model_logins(policy, {}, str(tmp_path))
    host = hosts.debian(environ={"PATH": "/usr/bin", "OPENAI_BASE_URL": "https://other.example"}, libraries=("/lib",))
    broker = broker_plan.plan(policy, host.replace(secrets=host.secrets.replace(models=models)), "")
    assert broker is not None
    (model,) = broker.models
    assert str(model.endpoint) == "https://dashscope.example/v1"
    assert (model.credentials[0].value, model.credentials[0].field) == ("", "OPENAI_API_KEY")
