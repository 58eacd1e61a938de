"""What a task file may hold, and what is said of one that cannot be used."""

from __future__ import annotations

import json

import pytest

from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.many.tasks import batch, run
from claudebox.many.tasks.result import TaskResult, add_usage, read_answer, read_result, take_over
from claudebox.many.tasks.task import OVER_BUDGET, SCHEMA, Task, read_task

GOOD = {"id": "t1", "repo": "https://example.org/x.git", "prompt": "Do it."}


@pytest.fixture
def task(tmp_path):
    def write(content: object) -> str:
        path = tmp_path / "task.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)

    return write


def test_a_task_is_read_with_its_defaults(task):
    # proves FLEET-01
    assert read_task(task(GOOD)) == Task("t1", "https://example.org/x.git", "Do it.")


@pytest.mark.parametrize(("text", "seconds"), [(90, 90), ("90", 90), ("90s", 90), ("2m", 120), ("3h", 10800)])
def test_a_time_is_seconds_or_has_a_unit(task, text, seconds):
    assert read_task(task({**GOOD, "timeout": text})).timeout == seconds


def test_a_path_counts_from_the_task_file(task, tmp_path):
    assert read_task(task({**GOOD, "repo": "../x"})).repo == str(tmp_path.parent / "x")
    assert read_task(task({**GOOD, "repo": "git@example.org:x"})).repo == "git@example.org:x"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"flags": ["--network", "full"]}, "unknown key `flags`"),
        ({"id": None}, "`id` must be a text"),
        ({"id": "../x"}, "`id` must be letters"),
        ({"id": "a" * 101}, "`id` must be letters"),
        ({"repo": "--upload-pack=sh"}, "`repo` must not begin"),
        ({"ref": "-x"}, "`ref` must not begin"),
        ({"prompt": ""}, "`prompt` must be a text"),
        ({"prompt": "a\0b"}, "`prompt` must be a text"),
        ({"timeout": 0}, "`timeout` must be seconds"),
        ({"timeout": "soon"}, "`timeout` must be seconds"),
        ({"timeout": True}, "`timeout` must be seconds"),
        ({"timeout": 10**9}, "`timeout` must be seconds"),
        ({"budget_usd": 0}, "`budget_usd` must be a number"),
        ({"budget_usd": True}, "`budget_usd` must be a number"),
        ({"tries": 0}, "`tries` must be a number"),
        ({"tries": 99}, "`tries` must be a number"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_with_what_is_wrong(task, change, what):
    # proves FLEET-01
    with pytest.raises(ClaudeboxError, match=what.replace("(", r"\(")) as caught:
        read_task(task({**GOOD, **change}))
    assert caught.value.status == 125
    assert "help schema task" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "must be an object"),
        (b'{"id": "x"}', "`repo` is missing"),
        (b'{"budget_usd": NaN, "id": "x", "repo": "x", "prompt": "x"}', "must be a number above 0"),
        (b" " * (5 << 20), "cannot be read"),
    ],
)
def test_a_file_that_is_no_task_gets_one_line(task, content, what):
    with pytest.raises(ClaudeboxError, match=what) as caught:
        read_task(task(content))
    assert "\n" not in str(caught.value)


def test_a_missing_file_gets_one_line(tmp_path):
    with pytest.raises(ClaudeboxError, match="cannot be read"):
        read_task(str(tmp_path / "none.json"))


def test_the_schema_has_every_key_of_a_task():
    assert set(SCHEMA["properties"]) == set(Task.__dataclass_fields__)


def test_no_more_agents_begin_than_memory_holds(capfd):
    # proves FLEET-04
    assert batch._fitting(4, 24 << 30) == 4
    assert batch._fitting(4, 0) == 4  # nobody knows
    assert capfd.readouterr().err == ""
    assert batch._fitting(100, 1 << 30) == 3
    assert "memory holds 3 agents" in capfd.readouterr().err
    assert batch._fitting(2, 1) == 1
    assert batch._free_memory() > 0


def test_a_result_that_was_copied_in_part_counts_as_none(tmp_path):
    # proves FLEET-01
    (tmp_path / "work.patch").write_bytes(b"whole")
    (tmp_path / "result.json").write_text('{"status": "done", "files": {"work.patch": 5}}')
    assert read_result(str(tmp_path))["status"] == "done"
    for cut in (b"who", None):
        (tmp_path / "work.patch").unlink() if cut is None else (tmp_path / "work.patch").write_bytes(cut)
        assert read_result(str(tmp_path)) == {}
    for text in ('{"status": "done"}', "[]", "{", '{"files": {"x": []}}'):
        (tmp_path / "result.json").write_text(text)
        assert read_result(str(tmp_path)) == {}


SAID = "It is done."
PRINTED = {  # by agents for one answer, as real ones do
    "aider": f"Aider v0.86\n\n{SAID}\n",
    "claude": json.dumps({"type": "result", "result": SAID, "session_id": "x"}),
    "codex": '{"type":"turn.started"}\n'
             f'{{"type":"item.completed","item":{{"type":"agent_message","text":"{SAID}"}}}}\n'
             '{"type":"turn.completed","usage":{}}\n',
    "copilot": f'{{"type":"assistant.message","data":{{"content":"{SAID}"}}}}\n{{"type":"result","data":{{}}}}\n',
    "gemini": json.dumps({"session_id": "x", "response": SAID, "stats": {}}, indent=2),
    "opencode": f'{{"type":"text","part":{{"type":"text","text":"{SAID}"}}}}\n{{"type":"step_finish","part":{{}}}}\n',
    "qwen": json.dumps([{"type": "system"}, {"type": "result", "result": SAID}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_a_result_has_the_last_words_of_every_agent(tmp_path, name):
    # proves FLEET-01
    (tmp_path / "answer").write_text(PRINTED[name])
    result, said = TaskResult("one"), kinds.find_kind(name).said

    take_over(result, read_answer(str(tmp_path / "answer"), said), said)
    assert result.said.endswith(SAID)
    for damaged in ("", "[", "[[]]", "{}\n{", "null", '{"item": 5}'):
        (tmp_path / "answer").write_text(damaged)
        take_over(TaskResult("two"), read_answer(str(tmp_path / "answer"), said), said)


@pytest.mark.parametrize(
    ("status", "errors", "wanted"),
    [(0, set(), (0, "")), (0, {OVER_BUDGET}, (OVER_BUDGET, "the budget of the task is spent")),
     (1, {429}, (75, "the model's API answered with 429")), (1, {400}, (1, "the agent ended with 1"))],
)  # fmt: skip
def test_another_agent_is_judged_by_its_status_and_what_the_broker_saw(status, errors, wanted):
    # proves FLEET-02
    assert run._verdict(status, {"api_error_status": 429}, "", errors, answers=False) == wanted


def test_the_table_counts_what_failed_and_what_is_worth_another_try():
    # proves FLEET-04
    rows = [("a", {"status": "done", "exit": 0, "cost_usd": 0.5, "seconds": 3.2, "retry": False}),
            ("b", {"status": "failed", "exit": 1, "cost_usd": 0.25, "retry": False, "why": "no\x1b[2J"}),
            ("c", {"status": "retry", "exit": 75, "retry": True})]  # fmt: skip

    assert list(batch._table(rows)) == [
        "task  status   cost  time  why",
        "a     done    $0.50   3 s",
        "b     failed  $0.25     -  no\\x1b[2J",
        "c     retry       -     -",
        "1 of 3 done, 1 failed, 1 worth another try, $0.75",
    ]
    assert list(batch._table([]))[-1] == "0 of 0 done, $0.00"


@pytest.mark.parametrize(("line", "known"), [
    ({"kind": "broker", "price": 7}, True), ({"kind": "full"}, True), ({"kind": "broker", "silent": 1}, False),
    ({"kind": "broker", "lost": 2}, False),
])  # fmt: skip
def test_a_result_says_when_its_log_does_not_tell_everything(tmp_path, line, known):
    # proves NEW-N3
    (tmp_path / "log").mkdir()
    usage = {"kind": "usage", "model": "claude-opus-4", "input": 30, "price": 2_000_000, "count": 3}
    rows = [{"kind": "start", "program": "client"}, usage, line, {"kind": "end"}]
    (tmp_path / "log/1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = TaskResult("one")

    spent = add_usage(result, str(tmp_path))

    assert (result.cost_usd, result.tokens["input_tokens"]) == (2.0, 30)
    assert (spent == 2.0) == known
    assert bool(result.missing) == (line != {"kind": "broker", "price": 7})
