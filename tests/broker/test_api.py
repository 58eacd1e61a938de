"""What the broker lets pass to its upstream, and what it never lets pass back."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time

import pytest
from tests.broker.conftest import KEY
from tests.conftest import wait_until

from claudebox.agent.claude import UPSTREAM
from claudebox.network.facts import HostProxy
from claudebox.network.records import Credential, Endpoint, Trust


def words(content: bytes) -> tuple[str, str]:
    """Return kind and text of an error, which has the shape of the API's."""
    document = json.loads(content)
    assert document["type"] == "error"
    return document["error"]["type"], document["error"]["message"]


def test_the_placeholder_becomes_the_key_on_the_way_to_the_upstream(upstream, broker):
    # proves AUTH-01, I03
    served = upstream(lambda visit: visit.reply(visit.body()))
    caller = broker(served)()

    caller.ask(body=b"hello", headers="anthropic-beta: a,b\r\nx-app: cli\r\n")

    assert caller.answer() == (200, b"hello")
    method, path, headers = served.requests[0]
    assert (method, path, headers["x-api-key"]) == ("POST", "/v1/messages", KEY)
    assert headers["host"] == f"127.0.0.1:{served.port}"
    assert (headers["anthropic-beta"], headers["x-app"]) == ("a,b", "cli")


@pytest.mark.parametrize(
    ("held", "sent"),
    [
        ((Credential("A", "token-1"),), {"authorization": "Bearer token-1"}),
        (
            (Credential("A", "token-3"), Credential("B", "key-3", "x-api-key", "")),
            {"authorization": "Bearer token-3", "x-api-key": "key-3"},
        ),
    ],
)
def test_each_kind_of_credential_goes_where_the_client_would_put_it(upstream, broker, held, sent):
    served = upstream(lambda visit: visit.reply())
    caller = broker(served, credentials=held)()

    caller.say(
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nAuthorization: Bearer {UPSTREAM.placeholder}\r\n"
        "content-length: 0\r\n\r\n".encode()
    )

    assert caller.answer()[0] == 200
    headers = served.requests[0][2]
    assert {name: headers[name] for name in ("authorization", "x-api-key") if name in headers} == sent


def test_a_prefix_of_the_upstream_stands_before_every_path(upstream, broker):
    served = upstream(lambda visit: visit.reply())
    address = ("http", "127.0.0.1", served.port, "/gate/way")
    caller = broker(served, endpoint=Endpoint(*address))()

    caller.ask(path="/v1/messages?beta=true")

    assert caller.answer()[0] == 200
    assert served.requests[0][1] == "/gate/way/v1/messages?beta=true"


@pytest.mark.parametrize("header", ["x-api-key: thief", "authorization: Bearer thief", "authorization: Basic eDp5"])
def test_a_credential_from_inside_does_not_pass(upstream, broker, header):
    served = upstream(lambda visit: visit.reply())
    caller = broker(served)()

    caller.say(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\n{header}\r\ncontent-length: 2\r\n\r\nab".encode())
    status, content = caller.answer()
    caller.ask()  # the positive control, on the same connection

    assert (status, words(content)[0]) == (401, "authentication_error")
    assert "placeholder" in words(content)[1]
    assert caller.answer()[0] == 200
    assert len(served.requests) == 1


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/api/oauth/claude_cli/create_api_key", 403), ("POST", "/v1/oauth/token", 403),
        ("GET", "/v1/organizations/api_keys", 403), ("GET", "/v1/files", 403), ("GET", "/v1/messages/batches", 403),
        ("GET", "/v1/models/../organizations/api_keys", 403), ("GET", "/v1/models/%2e%2e%2forganizations", 403),
        ("GET", "/v1/models/..", 403), ("POST", "//v1/messages", 403), ("POST", "/v1/messages/", 403),
        ("POST", "/V1/messages", 403), ("POST", "/v1/messages%3f", 403), ("POST", "/v1/./messages", 403),
        ("TRACE", "/v1/messages", 405), ("GET", "/v1/messages", 405), ("POST", "/api/hello", 405),
        ("GET", "http://elsewhere.example/v1/models", 403), ("OPTIONS", "*", 403),
        ("CONNECT", "elsewhere.example:443", 405),
    ],
)  # fmt: skip
def test_only_what_the_client_needs_is_asked_for(upstream, broker, method, target, status):
    # proves I03
    served = upstream(lambda visit: visit.reply())
    connect = broker(served)
    caller = connect()

    caller.say(f"{method} {target} HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n\r\n".encode())

    found, content = caller.answer()
    assert found == status
    assert words(content)[1].startswith("claudebox: ")
    assert served.requests == []
    for path in ("/v1/models", "/v1/models/claude-x", "/api/hello", "/api/claude_code/policy_limits"):  # the control
        other = connect()
        other.ask("GET", path)
        assert other.answer()[0] == 200


def test_an_upgrade_is_refused_and_a_switch_is_not_believed(upstream, broker):
    served = upstream(lambda visit: visit.say(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"))
    connect = broker(served)
    asked, switched = connect(), connect()

    asked.ask(headers="connection: upgrade\r\nupgrade: websocket\r\n")
    switched.ask()

    status, content = asked.answer()
    assert (status, words(content)[0]) == (426, "upgrade")
    assert "WebSocket" in words(content)[1]
    assert switched.answer()[0] == 502


def test_headers_that_carry_the_key_back_are_left_out_and_redirects_pass(upstream, broker):
    # proves I03
    headers = f"location: https://elsewhere.example/\r\nx-echo: got {KEY}!\r\nx-other: kept\r\n"
    served = upstream(lambda visit: visit.reply(b"", "307 Temporary Redirect", headers))
    caller = broker(served)()

    caller.ask()
    status, found = caller.head()

    assert (status, found["location"], found["x-other"]) == (307, "https://elsewhere.example/", "kept")
    assert KEY not in str(found)


def test_a_request_without_a_placeholder_gets_no_key(upstream, broker):
    served = upstream(lambda visit: visit.reply())
    caller = broker(served)()

    caller.say(b"GET /api/hello HTTP/1.1\r\nhost: x\r\n\r\n")

    assert caller.answer()[0] == 200
    assert not {"x-api-key", "authorization"} & set(served.requests[0][2])


def test_an_upstream_that_is_down_is_told_in_the_shape_of_the_api(broker):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    caller = broker(port)()

    caller.ask(body=b"x" * 1000)
    status, content = caller.answer()

    assert (status, words(content)[0]) == (502, "api_error")
    assert "127.0.0.1 cannot be reached" in words(content)[1]


def test_a_certificate_that_the_host_does_not_trust_is_told_and_nothing_is_sent(upstream, broker):
    served = upstream(lambda visit: visit.reply(), secure=True)
    connect = broker(served, trust=Trust())
    caller = connect()

    caller.ask()
    status, content = caller.answer()

    assert (status, served.requests) == (502, [])
    assert "cannot be trusted" in words(content)[1]


@pytest.mark.parametrize("name", ["bundle", "extra"])
def test_authorities_of_the_host_are_trusted(upstream, broker, name):
    served = upstream(lambda visit: visit.reply(), secure=True)
    caller = broker(served, trust=Trust(**{name: served.certificate}))()

    caller.ask()

    assert caller.answer() == (200, b"ok")


def test_the_proxy_of_the_host_carries_it(upstream, broker):
    """The upstream has a name that only the proxy can reach."""
    served = upstream(lambda visit: visit.reply(), secure=True)
    seen = []

    def tunnel(visit):
        seen.append((visit.method, visit.path, visit.headers.get("proxy-authorization")))
        with socket.create_connection(("127.0.0.1", served.port)) as far:
            visit.say(b"HTTP/1.1 200 OK\r\n\r\n")
            pump(visit.channel, far)
        return False

    proxy = upstream(tunnel)
    caller = broker(
        served,
        endpoint=Endpoint("https", "nowhere.invalid", 443),
        proxy=HostProxy("127.0.0.1", proxy.port, login="me:secret"),
    )()

    caller.ask()
    status, content = caller.answer()

    assert seen == [("CONNECT", "nowhere.invalid:443", "Basic bWU6c2VjcmV0")]
    assert status == 502  # the certificate is not for that name, which only TLS through the tunnel can tell
    assert "certificate of nowhere.invalid" in words(content)[1]


def pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either ends."""
    import select

    while True:
        for source in select.select([one, other], [], [], 20)[0]:
            piece = source.recv(1 << 16)
            if not piece:
                return
            (other if source is one else one).sendall(piece)


@pytest.mark.parametrize("status", [400, 401, 403, 413, 429, 500, 529])
def test_errors_of_the_upstream_pass_as_they_are(upstream, broker, status):
    served = upstream(lambda visit: visit.reply(b'{"type":"error"}', f"{status} Said So", "retry-after: 7\r\n"))
    caller = broker(served)()

    caller.ask(body=b"{}")
    found, headers = caller.head()

    assert (found, headers["retry-after"]) == (status, "7")
    assert caller.take(16) == b'{"type":"error"}'


@pytest.mark.parametrize("field", ["api-key", "cookie", "x-goog-api-key", "x-litellm-key", "forwarded", "x_api_key"])
def test_no_other_credential_passes_beside_the_placeholder(upstream, broker, field):
    # proves K10, OLD-B9
    served = upstream(lambda visit: visit.reply())
    caller = broker(served)()

    caller.ask(headers=f"{field}: somebody-elses\r\nx-app: cli\r\n")

    assert caller.answer()[0] == 200
    assert "somebody-elses" not in str(served.requests)
    assert served.requests[0][2]["x-app"] == "cli"


@pytest.mark.parametrize(
    "query",
    ["api_key=1", "beta=true&api_key=1", "key", "beta=true&&token=2", "limit=1;x=/..", "limit=1#x", "limit=%26x"],
)
def test_no_other_credential_passes_in_a_query(upstream, broker, query):
    # proves K10
    served = upstream(lambda visit: visit.reply())
    connect = broker(served)
    caller = connect()

    caller.ask(path=f"/v1/messages?{query}")
    assert caller.answer()[0] == 403
    assert served.requests == []
    caller.ask(path="/v1/messages?beta=true")
    assert caller.answer()[0] == 200


ECHOES = {
    "the body of an error": (f"your key {KEY} is wrong".encode(), ""),
    "its base64": (base64.b64encode(f"u:{KEY}".encode()), ""),
    "a field": (b"wrong", f"x-echo: Bearer {KEY}\r\n"),
    "a field in base64": (b"wrong", f"x-echo: {base64.b64encode(f'u:{KEY}'.encode()).decode()}\r\n"),
    "the name of a field": (b"wrong", f"x-{KEY}: 1\r\n"),
}


@pytest.mark.parametrize("name", ECHOES)
@pytest.mark.parametrize("status", [f"401 no {KEY}", "500 Oops"])
def test_an_upstream_that_quotes_the_key_is_not_quoted(upstream, broker, name, status):
    # proves K06, SECRET-03, OLD-B5
    content, headers = ECHOES[name]
    caller = broker(upstream(lambda visit: visit.reply(content, status, headers)))()
    caller.ask(headers="connection: close\r\n")

    answer = caller.take(1 << 20)

    assert answer.startswith(f"HTTP/1.1 {status[:3]} ".encode())
    for form in (KEY.encode(), base64.b64encode(f"u:{KEY}".encode())[4:-4]):
        assert form not in answer


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_an_error_that_cannot_be_looked_into_is_replaced(upstream, broker, coding):
    # proves K06
    headers = f"content-encoding: {coding}\r\n"
    caller = broker(upstream(lambda visit: visit.reply(KEY.encode(), "400 Bad Request", headers)))()
    caller.ask(headers="accept-encoding: gzip, deflate, br, zstd\r\n")

    status, content = caller.answer()

    assert status == 400
    assert "cannot be read" in words(content)[1]


def test_connections_beyond_the_most_wait_for_their_turn(upstream, broker):
    # proves K12, OLD-B9
    released = threading.Event()
    served = upstream(lambda visit: (visit.body(), released.wait(60), visit.reply()))
    connect = broker(served)
    callers = [connect() for _ in range(257)]
    for caller in callers:
        caller.ask()
    wait_until(lambda: len(served.requests) == 256, "all but one are asked")
    time.sleep(0.3)
    assert len(served.requests) == 256
    released.set()
    assert [caller.answer()[0] for caller in callers] == [200] * 257


def test_requests_whose_bodies_do_not_go_on_make_room(upstream, broker):
    served = upstream(lambda visit: (visit.body(), visit.reply()))
    connect = broker(served)
    unfinished = [connect() for _ in range(256)]
    for caller in unfinished:
        caller.say(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\n" % UPSTREAM.placeholder.encode())
        caller.say(b"content-length: 9\r\n\r\nhalf")
    wait_until(lambda: len(served.requests) == 256, "all are asked")
    caller = connect()
    caller.ask()
    assert caller.answer()[0] == 200
    unfinished[-1].say(b" body")  # the control: whoever need not go stays
    assert unfinished[-1].answer()[0] == 200
