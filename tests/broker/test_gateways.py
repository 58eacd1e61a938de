"""Gateways in front of the model: headers of the user's own, and a certificate in the place of a token."""

from __future__ import annotations

import json
import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from tests.broker.conftest import KEY
from tests.support import hosts
from tests.support.certificates import TestAuthority

from claudebox.agent.claude import UPSTREAM
from claudebox.base.errors import ClaudeboxError
from claudebox.broker.plan import read_endpoint
from claudebox.network.records import Trust
from claudebox.plan import audit, compose, explain
from claudebox.settings.records import Constant, NameRequest, Policy

SECRET = "gateway-secret-0123"
BASE = {UPSTREAM.base_url: "https://gateway.example/anthropic"}


def test_headers_of_the_user_are_put_on_every_request_and_taken_out_of_answers(upstream, broker):
    # proves AUTH-03
    def reply(visit):
        visit.say(b"HTTP/1.1 403 No\r\nx-echo: %s\r\ncontent-length: %d\r\n\r\n%s" % (
            SECRET.encode(), len(SECRET), SECRET.encode()))  # fmt: skip

    served = upstream(reply)
    custom = (("x-gateway-key", SECRET), ("x-team", "a"), ("user-agent", "ours"))
    caller = broker(served, headers=custom)()

    caller.ask(headers="user-agent: client\r\nx-team: thief\r\nanthropic-version: 1\r\n")
    status, headers = caller.head()
    body = caller.take(int(headers["content-length"]))

    sent = served.requests[0][2]
    assert {name: sent[name] for name in (*(name for name, _ in custom), "anthropic-version", "x-api-key")} == {
        **dict(custom), "anthropic-version": "1", "x-api-key": KEY,
    }  # fmt: skip
    assert status == 403
    assert SECRET.encode() not in body
    assert SECRET not in str(headers)


def test_a_client_certificate_alone_is_a_credential(broker, tmp_path):
    # proves AUTH-03
    company = TestAuthority("company")
    (tmp_path / "ca.pem").write_bytes(company.certificate)
    server, client = company.issue(tmp_path / "server.pem", "localhost"), company.issue(tmp_path / "client.pem", "me")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    private = serialization.load_pem_private_key(client.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"pass-phrase")
    (tmp_path / "key.pem").write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    seen = []

    def serve(listener):
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as channel:
            seen.append((str(channel.getpeercert()), channel.recv(65536)))
            channel.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        trust = Trust(str(tmp_path / "ca.pem"), certificate=str(client), key=str(tmp_path / "key.pem"),
                      passphrase="pass-phrase")  # fmt: skip
        port = listener.getsockname()[1]
        caller = broker(port, endpoint=read_endpoint(f"https://localhost:{port}"), trust=trust, credentials=())()
        caller.ask()
        assert caller.answer() == (200, b"ok")

    assert "('commonName', 'me')" in seen[0][0]
    assert UPSTREAM.placeholder.encode() not in seen[0][1]


def plan(environ, **options):
    policy = Policy("client", auth="broker", **options)
    return compose.make_plan(policy, hosts.debian(environ=environ))


@pytest.mark.parametrize(
    ("name", "value"),
    [(UPSTREAM.certificate[0], "/c.pem"), (UPSTREAM.headers, f"X-Key: {SECRET}\n\nB: c")],
)
def test_what_identifies_the_user_to_a_gateway_stays_outside(name, value):
    # proves AUTH-03
    made = plan({**BASE, name: value})

    assert made.holds_credential
    assert {row.name: row.value for row in made.variables}["ANTHROPIC_AUTH_TOKEN"] == UPSTREAM.placeholder
    texts = "\n".join((*audit.lines(made, None, asking=True), explain.as_json(made), repr(made)))
    assert SECRET not in texts
    assert json.loads(explain.as_json(made))["broker"]["models"][0]["holds"] == name
    assert not plan({name: value}).holds_credential  # towards Anthropic's own API it is none


@pytest.mark.parametrize("value", ["no colon " + SECRET, f"bad name: {SECRET}", f"a: {SECRET}\x01", f"host: {SECRET}"])
def test_headers_that_are_none_are_refused_without_being_repeated(value):
    with pytest.raises(ClaudeboxError, match=UPSTREAM.headers) as problem:
        plan({**BASE, UPSTREAM.headers: value})
    assert SECRET not in str(problem.value) + problem.value.hint


@pytest.mark.parametrize(("name", "cloud"), [(name, cloud) for name, cloud, _ in UPSTREAM.clouds])
def test_a_cloud_is_asked_or_refused_by_name(name, cloud):
    # proves AUTH-03
    environ = {"ANTHROPIC_API_KEY": "sk-real", name: "1"}
    with pytest.raises(ClaudeboxError, match=cloud) as problem:
        plan(environ)
    assert f"--env {name}" in problem.value.hint

    let_in = plan(environ, names=(NameRequest(name, "--env"),))
    assert not let_in.holds_credential
    assert {row.name: row.value for row in let_in.variables}[name] == "1"
    assert plan(environ, constants=(Constant(name, "0", "--env"),)).holds_credential
    assert plan({**environ, name: "0"}).holds_credential
    other = Policy("exec", ("true",), auth="broker")
    assert compose.make_plan(other, hosts.debian(environ=environ)).holds_credential
