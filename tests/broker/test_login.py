"""A login behind the broker: renewed when it must be and only then, whoever else does the same (AUTH-02, I01)."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from tests.broker.conftest import Caller, running
from tests.network.topology import wait_until
from tests.support.anthropic import Anthropic

from claudebox.agent import renewal
from claudebox.agent.claude import LOGIN, UPSTREAM
from claudebox.network.facts import find_proxy
from claudebox.network.records import Endpoint, Trust

pytestmark = pytest.mark.process

HOUR = 3600
TOKENS = "claudeAiOauth"


@pytest.fixture
def hosts(tmp_path):
    with Anthropic(str(tmp_path)) as started:
        yield started


def log_in(tmp_path, tokens, *, expires):
    """Write a login as the host's client does."""
    directory = tmp_path / ".claude"
    directory.mkdir(exist_ok=True)
    path = directory / ".credentials.json"
    login = {"accessToken": tokens[0], "refreshToken": tokens[1], "expiresAt": int((time.time() + expires) * 1000)}
    document = {
        TOKENS: {**login, "scopes": ["user:inference"], "subscriptionType": "max"},
        "other": {"kept": 1},
    }
    new = directory / "new"
    new.write_text(json.dumps(document), encoding="ascii")
    new.rename(path)
    return str(path)


def read(path):
    return json.loads(Path(path).read_text(encoding="ascii"))


@contextlib.contextmanager
def session(hosts, path):
    """Run a broker that holds a login; yield a function that asks for a message."""
    proxy, _ = find_proxy({"HTTPS_PROXY": hosts.proxy})
    changes = {
        "endpoint": Endpoint("https", "api.anthropic.com", 443),
        "credentials": (),
        "login": path,
        "login_owner": "host",
        "login_kind": LOGIN,
        "trust": Trust(hosts.certificate),
        "proxy": proxy,
        "login_proxy": proxy,
    }
    with running(0, **changes) as sidecar:
        place = sidecar.sockets["model_api"]

        def ask(body: bytes = b"{}"):
            with Caller(place) as caller:
                head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {UPSTREAM.placeholder}\r\n"
                caller.say(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
                return caller.answer()

        yield ask


def test_a_valid_login_is_used_and_not_touched(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)
    before = Path(path).read_bytes()

    with session(hosts, path) as ask:
        statuses = [ask()[0] for _ in range(3)]

    assert statuses == [200, 200, 200]
    assert hosts.messages == ["access-host"] * 3
    assert hosts.renewals == []
    assert Path(path).read_bytes() == before


def test_a_login_near_its_end_is_renewed_before_it_is_used(hosts, tmp_path):
    # proves AUTH-02
    path = log_in(tmp_path, hosts.issue("host"), expires=60)

    with session(hosts, path) as ask:
        assert [ask()[0] for _ in range(3)] == [200, 200, 200]

    assert hosts.renewals == ["refresh-host"]
    assert hosts.messages == ["access-renewed-1"] * 3
    document = read(path)
    assert document[TOKENS]["refreshToken"] == "refresh-renewed-1"
    assert document[TOKENS]["subscriptionType"] == "max"
    assert document["other"] == {"kept": 1}
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(os.path.dirname(path)) if "lock" in name] == []


@pytest.mark.parametrize("size", [2, 200_000])
def test_a_token_that_ends_in_the_midst_of_a_session_is_renewed_and_the_request_repeated(hosts, tmp_path, size):
    """The clock says that it is valid: the server knows better (clock skew, revocation)."""
    # proves AUTH-02
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)

    with session(hosts, path) as ask:
        assert ask(b"x" * size)[0] == 200
        hosts.access.remove("access-host")
        assert ask(b"x" * size)[0] == 200
        assert ask(b"x" * size)[0] == 200

    assert hosts.renewals == ["refresh-host"]
    assert hosts.messages == ["access-host", "access-host", "access-renewed-1", "access-renewed-1"]


def test_a_request_that_is_too_large_to_be_kept_is_asked_for_again(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)
    hosts.access.remove("access-host")

    with session(hosts, path) as ask:
        status, content = ask(bytes(6 << 20))
        assert (status, json.loads(content)["error"]["type"]) == (503, "overloaded_error")
        assert ask()[0] == 200

    assert hosts.renewals == ["refresh-host"]


def test_what_the_hosts_own_client_renews_is_taken_up(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)

    with session(hosts, path) as ask:
        assert ask()[0] == 200
        hosts.access.remove("access-host")
        log_in(tmp_path, hosts.issue("fresh"), expires=HOUR * 8)
        assert ask()[0] == 200

    assert hosts.messages == ["access-host", "access-fresh"]
    assert hosts.renewals == []


@pytest.mark.slow
def test_twenty_sessions_renew_once_and_nobody_is_logged_out(hosts, tmp_path):
    # proves AUTH-02, I01
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)
    statuses = []
    with contextlib.ExitStack() as stack:
        asks = [stack.enter_context(session(hosts, path)) for _ in range(20)]
        for ask in asks:  # everybody has the same token
            assert ask()[0] == 200
        hosts.access.remove("access-host")  # it ends for all of them
        threads = [threading.Thread(target=lambda ask=ask: statuses.append(ask()[0])) for ask in asks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert statuses == [200] * 20
    assert hosts.renewals == ["refresh-host"]
    assert read(path)[TOKENS]["refreshToken"] == "refresh-renewed-1"


def test_a_login_that_is_refused_is_told_and_not_tried_again_and_again(hosts, tmp_path):
    path = log_in(tmp_path, ("access-gone", "refresh-gone"), expires=HOUR * 8)

    with session(hosts, path) as ask:
        for _ in range(5):
            status, content = ask()
            error = json.loads(content)["error"]
            assert (status, error["type"]) == (401, "authentication_error")
            assert "log in again on the host" in error["message"]
        assert hosts.renewals == ["refresh-gone"]
        log_in(tmp_path, hosts.issue("new"), expires=HOUR * 8)  # the user did
        assert ask()[0] == 200


def test_hosts_that_cannot_be_reached_cost_nobody_the_login(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    before = Path(path).read_bytes()
    hosts.reachable = False

    with session(hosts, path) as ask:
        assert ask()[0] == 502
        assert Path(path).read_bytes() == before
        hosts.reachable = True
        assert ask()[0] == 200  # with the token that is still good: the next attempt to renew comes later


def test_a_login_that_goes_away_is_told(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)

    with session(hosts, path) as ask:
        assert ask()[0] == 200
        os.unlink(path)
        status, content = ask()

    assert status == 401
    assert "the login of the host is gone" in json.loads(content)["error"]["message"]


def test_a_lock_that_somebody_left_behind_stops_nobody(hosts, tmp_path):
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    lock = os.path.join(os.path.dirname(path), ".oauth_refresh.lock")
    os.mkdir(lock)
    os.utime(lock, (time.time() - 120, time.time() - 120))

    with session(hosts, path) as ask:
        assert ask()[0] == 200

    assert hosts.renewals == ["refresh-host"]


def test_an_upstream_that_refuses_everything_spends_one_token_a_minute(hosts, tmp_path):
    # proves K07, OLD-B6
    path = log_in(tmp_path, hosts.issue("host"), expires=HOUR * 8)
    hosts.honours = False

    with contextlib.ExitStack() as stack:
        for ask in [stack.enter_context(session(hosts, path)) for _ in range(4)]:
            assert [ask()[0] for _ in range(5)] == [401] * 5

    assert hosts.renewals == ["refresh-host"]
    assert read(path)[TOKENS]["refreshToken"] == "refresh-renewed-1"
    log_in(tmp_path, ("access-gone", "refresh-renewed-1"), expires=HOUR * 8)
    hosts.honours = True
    with session(hosts, path) as ask:  # the limit is that of a token, not of the file
        assert ask()[0] == 200
    assert hosts.renewals == ["refresh-host", "refresh-renewed-1"]
    with session(hosts, path) as ask:  # the control: the login that was renewed is good
        assert ask()[0] == 200


@pytest.mark.parametrize("life", [None, "soon", [], {}, True, -5, 0, 1e400, float("nan"), 10**30, 10**400, "3600"])
def test_new_tokens_are_kept_however_odd_the_rest_of_the_answer_is(hosts, tmp_path, life):
    # proves K07
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    hosts.life = life

    with session(hosts, path) as ask:
        assert [ask()[0] for _ in range(3)] == [200] * 3

    tokens = read(path)[TOKENS]
    assert (tokens["accessToken"], tokens["refreshToken"]) == ("access-renewed-1", "refresh-renewed-1")
    assert hosts.renewals == ["refresh-host"]
    assert time.time() + 600 < tokens["expiresAt"] / 1000 < time.time() + 400 * 86400


def test_a_new_refresh_token_is_kept_even_without_an_access_token(hosts, tmp_path):
    # proves K07
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    hosts.odd_access = 7

    with session(hosts, path) as ask:
        ask()

    assert read(path)[TOKENS]["refreshToken"] == "refresh-renewed-1"
    assert read(path)[TOKENS]["accessToken"] == "access-host"


def test_a_session_that_ends_in_the_midst_of_a_renewal_loses_nothing(hosts, tmp_path):
    # proves K07, I01, OLD-B6
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    hosts.delay = 3.0

    with session(hosts, path) as ask:
        threading.Thread(target=attempt, args=(ask,), daemon=True).start()
        assert wait_until(lambda: hosts.renewals == ["refresh-host"])
    assert read(path)[TOKENS]["refreshToken"] == "refresh-host"  # the broker has ended, the answer is to come

    assert wait_until(lambda: read(path)[TOKENS]["refreshToken"] == "refresh-renewed-1", 15)
    assert wait_until(lambda: not [name for name in os.listdir(os.path.dirname(path)) if "lock" in name])
    assert not os.path.exists(f"{os.path.dirname(path)}.lock")
    with session(hosts, path) as ask:
        assert ask()[0] == 200
    assert hosts.renewals == ["refresh-host"]


def attempt(ask):
    with contextlib.suppress(OSError, AssertionError):
        ask()


def test_a_login_that_cannot_be_written_is_not_spent(hosts, tmp_path, monkeypatch):
    # proves K07
    path = log_in(tmp_path, hosts.issue("host"), expires=60)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        renewal.renew(path, LOGIN)

    assert hosts.renewals == []
    assert sorted(os.listdir(os.path.dirname(path))) == [".credentials.json"]


def test_somebody_who_holds_the_lock_for_writing_does_not_cost_the_token(hosts, tmp_path):
    # proves K07
    path = log_in(tmp_path, hosts.issue("host"), expires=60)
    os.mkdir(os.path.join(os.path.dirname(path), ".storage-write.lock"))

    with session(hosts, path) as ask:
        assert ask()[0] == 200

    assert read(path)[TOKENS]["refreshToken"] == "refresh-renewed-1"
