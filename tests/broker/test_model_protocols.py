"""Models of other agents: by a base URL on loopback, over TLS, in each protocol, streamed and whole, with a budget."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.broker.conftest import MODEL_KEY as KEY
from tests.broker.conftest import Web
from tests.conftest import wait_until

from claudebox.agent.record import Upstream
from claudebox.broker import protocols
from claudebox.broker.metering import TokenUsage
from claudebox.broker.model_api import Openings
from claudebox.network.records import Budget, Trust

OPENAI = Upstream(
    "openai",
    ("OPENAI_API_KEY",),
    "https://api.openai.com/v1",
    paths=(("POST", "/responses"), ("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/models/*")),
    fields=("openai-beta", "x-codex-*"),
    usage="responses",
)
GEMINI = Upstream(
    "gemini",
    ("GEMINI_API_KEY",),
    "https://generativelanguage.googleapis.com",
    header="x-goog-api-key",
    prefix="",
    paths=(
        ("POST", "/v1beta/models/*:generateContent"),
        ("POST", "/v1beta/models/*:streamGenerateContent"),
        ("POST", "/v1beta/models/*:countTokens"),
    ),
    queries=("alt=sse",),
    key_query="key",
    usage="gemini",
)
ANTHROPIC = Upstream(
    "anthropic",
    ("ANTHROPIC_API_KEY",),
    "https://api.anthropic.com",
    header="x-api-key",
    prefix="",
    paths=(("POST", "/v1/messages"),),
    usage="anthropic",
)
RESPONSES, CHAT = (OPENAI, "/v1/responses"), (OPENAI, "/v1/chat/completions")
GENERATE = (GEMINI, "/v1beta/models/gemini-2.5-pro:generateContent")
STREAM = (GEMINI, "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse")


def events(*documents: object) -> bytes:
    return b"".join(
        b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n" for one in documents
    )


# What a model says to look like a report.
LIE = 'x"usage": {"output_tokens": 0} \n\ndata: {"usage":{"completion_tokens":1},"usageMetadata":{}}\n'
RESPONSE: dict[str, object] = {
    "object": "response", "model": "gpt-5-2025-08-07", "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": LIE}]}],
    "usage": {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 400}, "output_tokens": 200},
}  # fmt: skip
CHUNK = {"object": "chat.completion.chunk", "model": "gpt-4.1", "choices": [{"index": 0, "delta": {"content": LIE}}]}
CHAT_USAGE: dict[str, object] = {
    "prompt_tokens": 1000,
    "completion_tokens": 200,
    "prompt_tokens_details": {"cached_tokens": 400},
}
LAST_CHUNK = {**CHUNK, "choices": [], "usage": CHAT_USAGE}
COMPLETION = {
    "object": "chat.completion",
    "model": "gpt-4.1",
    "choices": [{"message": {"content": LIE}}],
    "usage": CHAT_USAGE,
}
META: dict[str, object] = {
    "promptTokenCount": 1000,
    "cachedContentTokenCount": 400,
    "candidatesTokenCount": 150,
    "thoughtsTokenCount": 50,
}
PART: dict[str, object] = {"candidates": [{"content": {"parts": [{"text": LIE}]}}], "modelVersion": "gemini-2.5-pro"}
ANSWER = {**PART, "usageMetadata": META}
FIRST = {**PART, "usageMetadata": {**META, "candidatesTokenCount": 1}}
MESSAGE = {"type": "message", "model": "claude-sonnet-4-5", "usage": {
    "input_tokens": 600, "cache_read_input_tokens": 400, "output_tokens": 200,
}}  # fmt: skip
CASES = {
    "responses": (RESPONSES, json.dumps(RESPONSE).encode(), False, "gpt-5-2025-08-07"),
    "responses in events": (
        RESPONSES,
        events(
            {"type": "response.created", "response": {"model": "gpt-5-2025-08-07", "usage": None}},
            {"type": "response.output_text.delta", "delta": LIE},
            {"type": "response.completed", "response": RESPONSE},
        ),
        True,
        "gpt-5-2025-08-07",
    ),
    "chat": (CHAT, json.dumps(COMPLETION).encode(), False, "gpt-4.1"),
    "chat in events": (CHAT, events({**CHUNK, "usage": None}, LAST_CHUNK, b"[DONE]"), True, "gpt-4.1"),
    "gemini": (GENERATE, json.dumps(ANSWER).encode(), False, "gemini-2.5-pro"),
    "gemini in events": (STREAM, events(FIRST, ANSWER), True, "gemini-2.5-pro"),
    "gemini as a list": (STREAM, json.dumps([FIRST, ANSWER]).encode(), False, "gemini-2.5-pro"),
    "messages": ((ANTHROPIC, "/v1/messages"), json.dumps(MESSAGE).encode(), False, "claude-sonnet-4-5"),
}  # fmt: skip
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def used(tmp_path):
    rows = map(json.loads, (tmp_path / "log").read_text(encoding="ascii").splitlines())
    return [row for row in rows if row["kind"] == "usage"]


def say(visit, body: bytes, *, streamed: bool, coding: str = "") -> None:
    kind = "text/event-stream" if streamed else "application/json"
    visit.body()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}; charset=utf-8\r\n{coding}transfer-encoding: chunked\r\n\r\n"
    visit.say(head.encode())
    for at in range(0, len(body), 37):
        visit.say(b"%x\r\n%s\r\n" % (len(body[at : at + 37]), body[at : at + 37]))
    visit.say(b"0\r\n\r\n")


@EACH
def test_the_key_is_added_outside_and_every_protocol_is_counted(models, tmp_path, case):
    (api, path), body, streamed, model = case
    served, (port,), token = models(lambda visit: say(visit, body, streamed=streamed), api)

    with Web(port) as caller:
        caller.post(path, token, header=api.header, more="openai-organization: somebody\r\nx-evil: 1\r\n")
        assert caller.head()[0] == 200
        assert caller.content() == body
    served.broker.finish()

    (_, asked, headers) = served.requests[0]
    assert headers[api.header] == api.prefix + KEY
    assert headers["host"] == f"localhost:{served.port}"
    assert asked == "/gate/v1" + path.removeprefix("/v1" if api is OPENAI else "")
    assert not {"x-evil", "openai-organization"} & headers.keys()
    assert token not in str(served.requests)
    (row,) = used(tmp_path)
    assert (row["model"], row["input"], row["output"], row["cache_read"]) == (model, 600, 200, 400)
    assert row["price"] > 0


@EACH
def test_a_budget_is_exact_to_one_request_in_every_protocol(models, tmp_path, case):
    (api, path), body, streamed, _ = case
    served, (port,), token = models(lambda visit: say(visit, body, streamed=streamed), api, budget=Budget(tokens=1500))

    with Web(port) as caller:
        found, content = [], b""
        for _ in range(4):
            caller.post(path, token, header=api.header)
            status, headers = caller.head()
            content = caller.content() if status == 200 else caller.take(int(headers["content-length"]))
            found.append((status, content[:8]))
    # 1200 tokens, 2400 tokens, and no more.
    refusal = 402 if path.endswith("/messages") or api.usage == "gemini" else 400
    assert found == [(200, body[:8])] * 2 + [(refusal, found[3][1])] * 2
    assert b'"error"' in content
    assert len(served.requests) == 2


@given(st.lists(st.integers(0, 900), max_size=6), st.sampled_from(sorted(CASES)), st.booleans())
def test_usage_is_read_however_an_answer_is_cut(cuts, name, added):
    (_, path), body, streamed, model = CASES[name]
    protocol = protocols.of_path(path.partition("?")[0].encode(), "")
    found = protocols.reader(protocol, events=streamed, added=added)
    passed, at = b"", 0
    for cut in (*sorted(cuts), len(body)):
        passed += found.feed(body[at:cut])
        at = max(at, cut)
    passed += found.end()

    assert [(row.model, row.input, row.output, row.cache_read) for row in found.usage] == [(model, 600, 200, 400)]
    hidden = added and name == "chat in events"
    assert passed == (
        body.replace(b"data: " + json.dumps(LAST_CHUNK).encode(), b":   : " + json.dumps(LAST_CHUNK).encode())
        if hidden
        else body
    )


def test_a_streamed_chat_under_a_budget_asks_for_its_usage_and_the_agent_sees_no_event_without_a_choice(
    models, tmp_path
):
    seen = []

    def answer(visit):
        seen.append(json.loads(visit.body()))
        visit.body = lambda: b""
        asked = seen[-1].get("stream_options", {}).get("include_usage")
        say(visit, events(CHUNK, *([LAST_CHUNK] if asked else []), b"[DONE]"), streamed=True)

    served, (port,), token = models(answer, OPENAI, budget=Budget(tokens=100_000))
    request = {"model": "gpt-4.1", "stream": True, "messages": [{"role": "user", "content": "ü"}]}
    with Web(port) as caller:
        caller.post(CHAT[1], token, json.dumps(request).encode())
        assert caller.head()[0] == 200
        lines = [line for line in caller.content().split(b"\n") if line.startswith(b"data:")]
        asking = {**request, "stream_options": {"include_usage": True}}
        caller.post(CHAT[1], token, json.dumps(asking).encode())
        assert caller.head()[0] == 200
        told = [line for line in caller.content().split(b"\n") if line.startswith(b"data:")]
    served.broker.finish()

    assert seen == [asking, asking]
    assert len(lines) == 2
    assert len(told) == 3
    assert [row["output"] for row in used(tmp_path)] == [200, 200]


def test_without_a_budget_a_chat_that_reports_nothing_is_counted_by_its_length_and_not_changed(models, tmp_path):
    body = events(CHUNK, CHUNK, b"[DONE]")
    served, (port,), token = models(lambda visit: say(visit, body, streamed=True), OPENAI)
    with Web(port) as caller:
        caller.post(CHAT[1], token, b'{"stream": true, "x": "%s"}' % (b"y" * 600))
        caller.head()
        assert caller.content() == body
    served.broker.finish()

    (row,) = used(tmp_path)
    assert row["model"] == "gpt-4.1"
    assert row["input"] >= 200


@pytest.mark.parametrize("token", ["", "x", "claudebox-placeholder", KEY])
def test_on_the_host_s_loopback_nobody_without_the_placeholder_gets_anything(models, token):
    served, (port,), right = models(lambda visit: visit.reply(), OPENAI)
    with Web(port) as caller:
        caller.post(RESPONSES[1], token)
        status, content = caller.answer()
        assert (status, json.loads(content)["error"]["type"]) == (401, "authentication_error")
        assert right.encode() not in content
        caller.post(RESPONSES[1], right, more=f"x-api-key: {token or 'other'}\r\n")
        assert caller.answer()[0] == 401
        assert served.requests == []
        caller.post(RESPONSES[1], right)
        assert caller.answer()[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/responses", "//v1/responses", "/v1//responses", "/v1/responses/", "/v1/./responses", "/v1/x/../responses",
        "/v1/%72esponses", "/v1/responses%2f..", "/v1/responses;x=1", "/v1/responses/resp_1", "/v1/files",
        "/v1/batches",
        "/v1/organization/admin_api_keys", "http://api.openai.com/v1/responses", "/v1/models/..", "/v1/models/%2e%2e",
        "/v1/responses?api-key=1", "/v1/responses#x", "/V1/responses", "/v1/responses\\", "*", "/v1/models/a/b",
    ],
)  # fmt: skip
def test_other_paths_are_closed(models, path):
    served, (port,), token = models(lambda visit: visit.reply(), OPENAI)
    with Web(port) as caller:
        for method in ("POST", "GET", "DELETE"):
            own = f"host: x\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\n"
            caller.say(f"{method} {path} HTTP/1.1\r\n{own}\r\n".encode())
            status, content = caller.answer()
            assert status in (403, 405), path
            assert b"claudebox: " in content
        assert served.requests == []
        caller.say(f"GET /v1/models/gpt-5 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode())
        assert caller.answer()[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/x:batchGenerateContent", "/v1beta/models/x:embed:generateContent", "/v1beta/files",
        "/v1beta/models/..:generateContent", "/v1beta/models/a/b:generateContent", "/v1beta/models/:generateContent",
        "/v1beta/models/x:generateContent?key=other", "/v1beta/models/x:generateContent?%6bey=other",
        "/v1beta/models/x:generateContent?alt=media", "/v1beta/models/x:generateContent?alt",
        "/v1beta/models/x:generateContent?alt=sse=",
    ],
)  # fmt: skip
def test_other_paths_of_gemini_are_closed(models, path):
    served, (port,), token = models(lambda visit: visit.reply(), GEMINI)
    with Web(port) as caller:
        caller.post(path, token, header="x-goog-api-key")
        status, content = caller.answer()
        assert status in (401, 403)
        assert json.loads(content)["error"]["status"] in ("PERMISSION_DENIED", "UNAUTHENTICATED")
        assert served.requests == []
        caller.post(f"/v1beta/models/x:generateContent?key={token}&alt=sse", "")
        assert caller.answer()[0] == 200
    assert served.requests[0][1] == "/gate/v1/v1beta/models/x:generateContent?alt=sse"
    assert served.requests[0][2]["x-goog-api-key"] == KEY


def test_an_upgrade_is_answered_at_once_in_the_shape_of_the_api(models):
    _, (port,), token = models(lambda visit: visit.reply(), OPENAI)
    with Web(port) as caller:
        caller.say(
            f"GET /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: upgrade\r\n"
            "upgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n".encode()
        )
        status, content = caller.answer()
    assert (status, json.loads(content)["error"]["type"]) == (426, "upgrade")


def test_several_providers_share_one_budget(models):
    answers = {"/gate/v1/responses": json.dumps(RESPONSE), "/gate/v1" + GENERATE[1]: json.dumps(ANSWER)}
    served, (one, two), token = models(
        lambda visit: say(visit, answers[visit.path].encode(), streamed=False),
        OPENAI,
        GEMINI,
        budget=Budget(tokens=2000),
    )
    found = []
    for port, path, api in ((one, RESPONSES[1], OPENAI), (two, GENERATE[1], GEMINI), (one, RESPONSES[1], OPENAI)):
        with Web(port) as caller:
            caller.post(path, token, header=api.header)
            found.append(caller.head()[0])
            if found[-1] == 200:
                caller.content()
    assert found == [200, 200, 400]
    assert len(served.requests) == 2


def test_the_key_comes_back_in_no_head_and_no_error(models):
    body = f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode()

    def echo(visit):
        visit.body()
        visit.reply(body, "401 Unauthorized", f"x-echo: {KEY}\r\n")

    _, (port,), token = models(echo, OPENAI)
    with Web(port) as caller:
        caller.post(RESPONSES[1], token)
        status, headers = caller.head()
        content = caller.content() if "transfer-encoding" in headers else caller.take(int(headers["content-length"]))
    assert status == 401
    assert KEY not in str(headers)
    assert KEY.encode() not in content
    assert b"Incorrect API key provided: ****" in content


@pytest.mark.parametrize(
    ("status", "request_line"),
    [("200 OK", "GET /v1/models"), ("302 Found", f"POST {RESPONSES[1]}"), ("200 OK", f"POST {RESPONSES[1]}")],
)
def test_the_key_comes_back_in_no_other_answer_either(models, status, request_line):
    _, (port,), token = models(lambda visit: visit.reply(f"you sent {KEY}".encode(), status), OPENAI)
    with Web(port) as caller:
        caller.say(
            f"{request_line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\n\r\n".encode()
        )
        status_code, headers = caller.head()
        content = caller.content() if "transfer-encoding" in headers else caller.take(int(headers["content-length"]))
    assert str(status_code) == status[:3]
    assert content == b"you sent " + b"*" * len(KEY)


def ask(protocol, document, target=b"/v1beta/models/gemini-2.5-pro:generateContent"):
    return protocols.most_of(protocol, target, json.dumps(document).encode())


def test_the_most_that_a_request_can_cost_is_told_by_its_text():
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    plain = {"model": "gpt-5", "input": [{"type": "message", "role": "user", "content": "x"}], "tools": [function]}
    found = ask("responses", plain)

    assert (found.model, found.output, found.maker) == ("gpt-5", 128_000, "openai")
    assert found.input > len(json.dumps(plain))
    assert ask("responses", {**plain, "max_output_tokens": 50}).output == 50
    tools = {"type": "additional_tools", "tools": [{"type": "namespace", "name": "n", "tools": [function]}]}
    assert ask("responses", {"model": "gpt-5", "input": [tools]}).output == 128_000
    assert ask("responses", {**plain, "service_tier": "priority"}).percent == 250
    assert ask("chat", {"model": "gpt-4.1", "messages": [], "max_completion_tokens": 9}).output == 9
    gemini = ask("gemini", {"contents": [], "generationConfig": {"maxOutputTokens": 7}})
    assert (gemini.model, gemini.output, gemini.maker) == ("gemini-2.5-pro", 7, "gemini")
    assert ask("gemini", {"model": "g", "request": {"contents": []}}, b"/v1internal:generateContent").output == 128_000


@pytest.mark.parametrize(
    ("model", "known"),
    [("gpt-5", True), ("gpt-5-2025-08-07", True), ("gpt-5@1", True), ("gpt-5.9", False), ("gpt-5.9-pro", False),
     ("gpt-50", False), ("o1x", False), ("claude-opus-4-20250514", True), ("gemini-2.5-pro-preview", True),
     ("gpt-5.1-codex-max", True), ("claude-3-5-sonnet-20241022-v2:0", True), ("gpt-5.3-pro", False),
     ("gpt-5-codex-mini", True), ("gpt-4o-audio-preview", False), ("o3-deep-research-2025-06-26", False),
     ("gemini-2.5-flash-preview-tts", False)],
)  # fmt: skip
def test_a_newer_or_other_model_has_not_the_price_of_the_one_whose_name_begins_like_its_own(model, known):
    # proves COST-02
    assert bool(TokenUsage(model, input=1000).price()) == known


@pytest.mark.parametrize(
    ("protocol", "document"),
    [
        ("responses", {"model": "m", "input": [], "previous_response_id": "r"}),
        ("responses", {"model": "m", "input": [], "background": True}),
        ("responses", {"model": "m", "input": [{"type": "item_reference", "id": "x"}]}),
        ("responses", {"model": "m", "input": [{"id": "x"}]}),
        ("responses", {"model": "m", "input": [{"content": [{"type": "input_file", "file_id": "f"}]}]}),
        ("responses", {"model": "m", "input": [{"content": [{"type": "input_image", "image_url": "https://a"}]}]}),
        ("responses", {"model": "m", "input": [], "tools": [{"type": "web_search"}]}),
        ("responses", {"model": "m", "input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}),
        ("responses", {"model": "m", "input": [], "tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]}),
        ("chat", {"model": "m", "messages": [], "n": 5}),
        ("chat", {"model": "m", "messages": [], "web_search_options": {}}),
        ("chat", {"model": "m", "messages": [{"content": [{"type": "input_audio", "input_audio": {}}]}]}),
        ("gemini", {"contents": [], "cachedContent": "x"}),
        ("gemini", {"contents": [{"parts": [{"fileData": {}}]}]}),
        ("gemini", {"contents": [], "tools": [{"googleSearch": {}}]}),
        ("gemini", {"contents": [], "generationConfig": {"candidateCount": 8}}),
        ("chat", []),
    ],
)
def test_what_a_text_does_not_tell_is_not_guessed(protocol, document):
    assert ask(protocol, document) is None


FIELDS = st.sampled_from((
    "type", "model", "tools", "input", "messages", "service_tier", "image_url", "inlineData", "url", "id", "request",
    "generationConfig", "candidateCount", "stream", "stream_options", "max_tokens", "usage", "response", "choices",
    "usageMetadata", "candidates", "message", "iterations", "output", "source", "speed",
))  # fmt: skip
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | FIELDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(
    protocol=st.sampled_from(("anthropic", "responses", "chat", "gemini")), document=DOCUMENTS, streamed=st.booleans()
)
@example(
    protocol="responses",
    document={"tools": [{"parameters": {"properties": {"type": {"type": "string"}}}}]},
    streamed=True,
)
def test_no_document_of_an_agent_or_a_model_stops_the_counting(protocol, document, streamed):
    content = json.dumps(document).encode()
    ask(protocol, document)
    protocols.ask_for_usage(content)
    found = protocols.reader(protocol, events=streamed, added=streamed)
    found.feed(b"data: " + content + b"\n\n" if streamed else content)
    found.end()

    assert all(row.tokens > 0 for row in found.usage)


@pytest.mark.parametrize(
    ("usage", "millionths"),
    [
        (TokenUsage("gpt-5-2025-08-07", 100_000, 10_000, maker="openai"), 225_000),
        (TokenUsage("gpt-5.1-codex-mini", 100_000, maker="openai"), 25_000),
        (TokenUsage("gpt-5.4", 300_000, 1_000, maker="openai"), 1_522_500),
        (TokenUsage("gpt-4.1", 600, 200, cache_read=400, maker="openai"), 3_000),
        (TokenUsage("gemini-2.5-pro", 300_000, 1_000, maker="gemini"), 765_000),
        (TokenUsage("gpt-5", 100_000, percent=250, maker="openai"), 312_500),
    ],
)
def test_prices_of_other_makers(usage, millionths):
    assert usage.price() == millionths


def test_what_is_unknown_counts_as_the_dearest_of_its_maker():
    assert TokenUsage("gpt-9", 0, 1_000, maker="openai").price(unknown=True) == 180_000
    assert TokenUsage("gemini-9", 0, 1_000, maker="gemini").price(unknown=True) == 12_000
    assert TokenUsage("claude-9", 0, 1_000).price(unknown=True) == 75_000


def test_the_certificate_of_the_upstream_is_checked(models):
    served, (port,), token = models(lambda visit: visit.reply(), OPENAI, trust=Trust())
    with Web(port) as caller:
        caller.post(RESPONSES[1], token)
        status, content = caller.answer()
    assert status == 502
    assert b"certificate" in content
    assert served.requests == []


def test_the_port_stays_ours_when_the_broker_is_gone(models):
    served, (port,), _ = models(lambda visit: visit.reply(), OPENAI)
    process = served.broker._process
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: served.broker.tend() or served.broker._lost, "the end of the broker")

    with socket.socket() as caller:
        assert caller.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", port))


def test_cookies_of_the_upstream_do_not_come_in(models):
    _, (port,), token = models(
        lambda visit: visit.reply(headers="set-cookie: session=1\r\nx-request-id: 7\r\n"), OPENAI
    )
    with Web(port) as caller:
        caller.post(RESPONSES[1], token)
        _, headers = caller.head()
    assert "set-cookie" not in headers
    assert headers["x-request-id"] == "7"


@pytest.mark.parametrize("path", [b"/v1x/responses", b"/v1", b"/v10/models", b"/V1/models"])
def test_a_path_that_only_begins_like_the_address_lies_elsewhere(path):
    # proves AUTH-01
    openings = Openings(OPENAI)
    assert openings.below(path) is None
    assert openings.below(b"/v1/models") == b"/models"
