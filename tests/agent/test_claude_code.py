from __future__ import annotations

import json

import pytest
from tests.conftest import REPOSITORY
from tests.support import hosts

from claudebox.agent import plan as agent_plan
from claudebox.agent.claude import CLAUDE
from claudebox.agent.facts import Client
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.plan import audit, compose
from claudebox.plan.records import Variable
from claudebox.settings.records import Policy


def program(**changes):
    rows = agent_plan.plan_mounts(Policy("client"), hosts.debian(**changes), "")
    return {row.dest: row for row in rows}


def test_one_file_is_enough_for_the_client():
    # proves SAND-08
    path = f"{hosts.HOME}/.local/share/claude/versions/2.1.325"
    row = program(client=Client("/x", path))["/run/claudebox/bin/claude"]

    assert (row.kind, row.source) == ("ro-bind", path)


def test_a_client_in_the_store_is_linked_to():
    path = "/nix/store/abc-claude/bin/claude"

    assert program(client=Client("/x", path), store="/nix/store")["/run/claudebox/bin/claude"].kind == "symlink"
    assert program(client=Client("/x", path), store="")["/run/claudebox/bin/claude"].kind == "ro-bind"


def test_a_client_newer_than_any_that_was_tried_starts_with_a_note():
    # proves HOST-11
    newest = f"{CLAUDE.tried[0]}.{CLAUDE.tried[1]}.{CLAUDE.tried[2]}"
    path = "/x/claude"

    def notes(*version: int, quiet: bool = False):
        plan = compose.make_plan(Policy("client"), hosts.debian(client=Client("/x", path, version)))
        shown = audit.lines(plan, None, asking=True, quiet=quiet, notes=audit.untold(plan, frozenset())[0])
        return plan.notes, [line for line in shown if line.strip().startswith("note")]

    assert notes(*CLAUDE.tried) == notes() == notes(*CLAUDE.least) == ((), [])
    for version in ((*CLAUDE.tried[:2], CLAUDE.tried[2] + 1), (CLAUDE.tried[0], CLAUDE.tried[1] + 1, 0), (9, 0, 0)):
        (note,), shown = notes(*version)
        assert f"this claude is newer than {newest}," in note, "the same for each, so that it is given once"
        assert len(shown) == 1
        assert notes(*version, quiet=True)[1] == []


def test_the_newest_that_was_tried_and_the_least_are_those_that_the_tests_drive():
    # proves HOST-11
    for name, version in (("client", CLAUDE.tried), ("client-least", CLAUDE.least)):
        lock = json.loads((REPOSITORY / f"requirements/{name}/package-lock.json").read_text())
        spelt = ".".join(map(str, version))
        machines = [row for place, row in lock["packages"].items() if place.endswith(("linux-x64", "linux-arm64"))]
        assert [row["version"] for row in machines] == [spelt, spelt]
        assert all(row["integrity"].startswith("sha512-") and "resolved" not in row for row in machines)


def test_a_sandbox_without_a_client_has_no_program_of_it():
    assert not [dest for dest in program(client=None) if dest.startswith("/run/claudebox/bin")]


def variables(**changes):
    return {row.name: row for row in agent_plan.plan_variables(Policy("client"), hosts.debian(**changes), "")}


def test_the_client_is_told_that_it_is_in_a_sandbox_only_where_it_refuses_otherwise():
    assert variables(uid=0)["IS_SANDBOX"].value == "1"
    assert "IS_SANDBOX" not in variables(uid=1000)


def test_the_key_enters_if_it_is_set_and_counts_as_a_secret():
    # proves SAND-03, SEC-01
    assert "ANTHROPIC_API_KEY" not in variables(environ={})

    row = variables(environ={"ANTHROPIC_API_KEY": "not-shaped-like-one"})["ANTHROPIC_API_KEY"]
    assert (row.value, row.origin, row.secret) == ("not-shaped-like-one", "host", True)


def test_the_clients_questions_are_answered_and_its_own_state_is_kept():
    # proves INST-02
    before = {"numStartups": 7, "projects": {"/other": {"x": 1}, "/p": {"y": 2}}}
    after = json.loads(answered(json.dumps(before).encode(), "/p", "tail-of-the-key"))

    assert after["numStartups"] == 7
    assert after["hasCompletedOnboarding"] is True
    assert after["projects"] == {"/other": {"x": 1}, "/p": {"y": 2, "hasTrustDialogAccepted": True}}
    assert after["customApiKeyResponses"]["approved"] == ["tail-of-the-key"]
    again = answered(json.dumps(after).encode(), "/p", "tail-of-the-key")
    assert json.loads(again) == after


def answered(content: bytes | None, workdir: str, key: str) -> bytes:
    """Return `.claude.json` with the answers for a project and a key."""
    host = hosts.debian()
    host = host.replace(workdir=host.workdir.replace(real=workdir))
    ((path, text, lock),) = agent_plan.find_seeds(
        Policy("client"), host, [Variable("ANTHROPIC_API_KEY", key, "host", "the key")]
    )
    return base_state.answer_questions(content, base_state.Answer(path, "name", text, lock))


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_first_start_has_nothing_to_keep(content):
    # proves INST-02
    assert json.loads(answered(content, "/p", "")) == {
        "hasCompletedOnboarding": True,
        "projects": {"/p": {"hasTrustDialogAccepted": True}},
    }


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"[]", b"null", b"1", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000,
        b'{"projects": []}', b'{"projects": null}', b'{"projects": {"/p": 1}}', b'{"projects": {"/p": []}}',
        b'{"customApiKeyResponses": []}', b'{"customApiKeyResponses": {"approved": {}}}',
        b'{"customApiKeyResponses": {"approved": "x"}}',
    ],
    ids=lambda content: content[:50].decode("utf-8", "replace"),
)  # fmt: skip
def test_state_that_an_agent_has_damaged_is_an_error_and_not_a_crash(content):
    with pytest.raises(ClaudeboxError, match="is damaged"):
        answered(content, "/p", "key")
