"""The scripted model against the real client, without a sandbox: what the other tests of this directory rest on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.client import bash, conversation, unsandboxed, variables

from claudebox.commands.demo import server as scripts


@contextlib.contextmanager
def connected(model):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", model.port, timeout=10)) as connection:
        yield connection


def post(connection, body, path="/v1/messages?beta=true"):
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    with connection.getresponse() as response:
        return response.status, response.read()


def ask(text, **extra):
    return {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **extra}


def test_the_client_gets_its_answer_and_no_header_is_written_down(user_box, model, bare):
    served = model(canaries={"token": "placeholder-of-the-tests"})

    result = bare(user_box, served, "-p", "hello there")

    assert (result.returncode, result.stdout.strip()) == (0, "You said: hello there")
    request = next(entry for entry in served.requests if entry["kind"] == "script")
    assert request["path"] == "/v1/messages?beta=true"
    assert "authorization" in request["headers"]
    assert "placeholder-of-the-tests" not in json.dumps(served.events)


def test_what_a_tool_returned_decides_about_the_next_answer(user_box, model, bare):
    second = [{"if_result": "CANARY-[0-9]+", "say": "LEAKED {match}"}, {"say": "clean: {first}"}]
    served = model(conversation("look", {"say": "Looking.", "tools": [bash("cat secret")]}, second))

    clean = bare(user_box, served, "-p", "look")
    user_box.write("secret", "CANARY-17\n")
    leaked = bare(user_box, served, "-p", "look")

    assert (leaked.returncode, leaked.stdout.strip()) == (0, "LEAKED CANARY-17")
    assert clean.stdout.startswith("clean: Exit code 1")


def test_the_client_writes_edits_and_reads_files(user_box, model, bare):
    path = f"{user_box.project}/poem.txt"
    served = model(
        conversation(
            "poem",
            {"tools": [{"name": "Write", "input": {"file_path": path, "content": "roses are blue\n"}}]},
            {"tools": [{"name": "Edit", "input": {"file_path": path, "old_string": "blue", "new_string": "red"}}]},
            {"tools": [{"name": "Read", "input": {"file_path": path}}]},
            {"say": "It says: {result}"},
        )
    )

    result = bare(user_box, served, "-p", "a poem")

    assert Path(path).read_text(encoding="utf-8") == "roses are red\n"
    assert "roses are red" in result.stdout


def test_several_tools_of_one_answer_return_in_the_order_of_their_calls(user_box, model, bare):
    served = model(
        conversation("both", {"tools": [bash("sleep 0.3; echo one"), bash("echo two")]}, {"say": "{result}"})
    )

    assert bare(user_box, served, "-p", "both").stdout.split() == ["one", "two"]


@pytest.mark.parametrize("status", [401, 529])
def test_an_error_of_the_api_ends_the_client_with_1(user_box, model, bare, status):
    served = model(conversation("fail", {"error": {"status": status, "message": "as the script wants"}}))

    result = bare(user_box, served, "-p", "fail")

    assert result.returncode == 1
    assert str(status) in result.stdout
    assert "as the script wants" in result.stdout


def test_the_client_tries_again_where_the_api_recovers(user_box, model, bare):
    served = model(conversation("fail", {"error": {"status": 529, "times": 1}, "say": "recovered"}))

    result = bare(user_box, served, "-p", "fail", CLAUDE_CODE_MAX_RETRIES="2")

    assert (result.returncode, result.stdout.strip()) == (0, "recovered")
    assert [entry["status"] for entry in served.requests if entry["kind"] == "script"] == [529, 200]


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_a_model_that_demands_a_key_takes_that_key_alone(user_box, model, bare, name):
    served = model(key="the-real-key-of-this-test")

    refused = bare(user_box, served, "-p", "hello")
    given = bare(user_box, served, "-p", "hello", **{name: "the-real-key-of-this-test"})

    assert refused.returncode == 1
    assert 401 in [entry["status"] for entry in served.requests]
    assert (given.returncode, given.stdout.strip()) == (0, "You said: hello")


def test_the_client_speaks_to_the_model_through_a_unix_socket(user_box, model, bare):
    path = f"{user_box.base}/model.sock"
    served = model(socket=path)
    os.chmod(path, 0o666)  # made by the account of the tests, used by another

    result = bare(user_box, served, "-p", "hello", ANTHROPIC_UNIX_SOCKET=path)

    assert result.stdout.strip() == "You said: hello"


def test_the_tui_reaches_its_prompt_without_a_question_and_shows_an_answer_as_it_grows(
    user_box, model, real_client, terminal
):
    slow = {"say": "begun " + "and going on " * 30 + "finished", "pause": 0.1}
    served = model(conversation("slowly", slow))
    screen = terminal(user_box, {**variables(served), **unsandboxed(user_box)})

    screen.shell(real_client, "--dangerously-skip-permissions")
    screen.expect("bypass permissions on")
    screen.type("tell me slowly")
    partial = screen.expect("begun and going on")
    whole = screen.expect("finished")
    screen.type("/exit")
    screen.expect("Resume this session with")

    assert "finished" not in partial
    assert "and going on finished" in " ".join(whole.split())
    assert screen.status() == 0
    kinds = {entry["kind"] for entry in served.requests if entry["method"] == "POST"}
    assert kinds == {"script", "structured"}  # the second is the client's wish for a title


@pytest.mark.parametrize(
    ("missing", "question"), [(".claude.json", "Yes, I trust this folder"), ("settings.json", "Yes, I accept")]
)
def test_a_client_whose_questions_nobody_answered_asks_them(user_box, model, real_client, terminal, missing, question):
    # The control for every test that says that no question comes.
    env = {**variables(model()), **unsandboxed(user_box)}
    user_box.write(f"{env['CLAUDE_CONFIG_DIR']}/{missing}", '{"hasCompletedOnboarding": true}')
    screen = terminal(user_box, env)

    screen.shell(real_client, "--dangerously-skip-permissions")

    screen.expect(question)


def test_one_connection_serves_several_requests_of_every_kind(model):
    with connected(model()) as connection:
        connection.request("HEAD", "/api/hello")
        with connection.getresponse() as hello:
            hello.read()
        first = connection.sock
        whole = post(connection, ask("hi"))
        counted = post(connection, ask("hi"), "/v1/messages/count_tokens")
        probe = post(connection, ask("quota", max_tokens=1))
        missing = post(connection, {}, "/v1/elsewhere")
        malformed = post(connection, {"model": "x"})
        status, stream = post(connection, ask("hi", stream=True))
        assert connection.sock is first

    assert hello.status == 200
    assert json.loads(whole[1])["content"] == [{"type": "text", "text": "You said: hi"}]
    assert json.loads(counted[1])["input_tokens"] > 0
    assert json.loads(probe[1])["stop_reason"] == "max_tokens"
    assert (missing[0], json.loads(missing[1])["error"]["type"]) == (404, "not_found_error")
    assert (malformed[0], json.loads(malformed[1])["error"]["type"]) == (400, "invalid_request_error")
    names = [line.removeprefix("event: ") for line in stream.decode().splitlines() if line.startswith("event: ")]
    assert status == 200
    assert names == ["message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop",
                     "message_delta", "message_stop"]  # fmt: skip


def test_an_answer_in_a_wanted_form_fits_its_schema(model):
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "mood": {"enum": ["calm"]}, "tags": {"type": "array"}},
        "required": ["title", "mood", "tags"],
    }
    served = model(conversation(".", {"say": "not this"}))

    body = ask("name it", output_config={"format": {"type": "json_schema", "schema": schema}})
    with connected(served) as connection:
        text = json.loads(post(connection, body)[1])["content"][0]["text"]

    assert json.loads(text) == {"title": "Scripted session", "mood": "calm", "tags": []}


def test_a_canary_in_a_request_is_told(model):
    served = model(canaries={"key": "canary-1234"})
    with connected(served) as connection:
        post(connection, ask("nothing here"))
        before = list(served.leaks)
        post(connection, ask("here is canary-1234"))

    assert (before, served.leaks) == ([], ["key"])


def test_the_model_listens_on_loopback_alone_and_ends_with_its_owner(model):
    served = model()
    port = served.port
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    served.__exit__()

    assert f"0100007F:{port:04X}" in table
    assert f"00000000:{port:04X}" not in table
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_messages_of_the_system_and_reminders_are_not_taken_for_the_person():
    reminder = {"type": "text", "text": "<system-reminder>\nbe kind\n</system-reminder>"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "output"}]}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [reminder, {"type": "text", "text": "first"}]},
        {"role": "system", "content": "environment"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
        {"role": "user", "content": [result, reminder]},
        {"role": "system", "content": [{"type": "text", "text": "date"}]},
    ]

    interrupted = [result, {"type": "text", "text": "[Request interrupted by user for tool use]"}]
    again = [*messages[:3], {"role": "user", "content": [*interrupted, {"type": "text", "text": "second"}]}]

    assert scripts.look(messages) == scripts.Seen("first", 1, ("output",))
    assert scripts.look(again) == scripts.Seen("second", 0, ())
