"""After a session of the real client: its conversation is searched, and what it asked the model for is recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.client import bash, conversation, equip, variables

VALUE = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzKEYq"


def run(box, client, model, *words):
    """Run the client with the key outside."""
    equip(box, client)
    return box.claudebox("-y", *words, env=variables(model), timeout=120)


def test_a_value_in_the_conversation_is_named_and_a_pipeline_is_not_disturbed(user_box, real_client, model):
    note = {"tools": [bash(f"printf 'one\\n%s\\n' '{VALUE}' > notes")]}
    user_box.environ["AWS_SECRET_ACCESS_KEY"] = VALUE
    result = run(user_box, real_client, model(conversation("go", note, {"say": "all done"})), "-p", "go")

    assert result.returncode == 0, result.stderr
    assert result.stdout == "all done\n"
    assert "receipt" not in result.stderr
    hits = [line for line in result.stderr.splitlines() if "AWS_SECRET_ACCESS_KEY in " in line]
    assert any("notes:2" in line for line in hits)
    assert any("/projects/" in line and ".jsonl:" in line for line in hits)
    assert VALUE not in result.stderr


def test_the_receipt_of_a_session_tells_whom_it_reached(user_box, real_client, model):
    words = ("--set", "receipt=always", "-p", "go")
    result = run(user_box, real_client, model(conversation("go", {"say": "all done"})), *words)
    (path,) = Path(user_box.home, ".claudebox/log").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    asked = [line for line in lines if line["kind"] == "decision"]

    assert result.stdout == "all done\n"
    assert "receipt of " in result.stderr
    assert (lines[0]["program"], lines[-1]["status"]) == ("client", 0)
    assert asked
    assert {(line["service"], line["host"], line["verdict"]) for line in asked} == {("api", "127.0.0.1", "allowed")}
    assert sum(line["up"] for line in asked) > 1000
    assert "127.0.0.1:" in result.stderr.partition("reached")[2]
    assert "/v1/messages" not in path.read_text()
    assert "all done" not in path.read_text()
