"""`claudebox task` with the real client: what is in the result, and which status an engine gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import need
from tests.support.client import bash, conversation, equip

KEY = "sk-ant-api03-key-of-the-fleet-which-is-long-enough-to-be-one"
PROMPT = "Write a greeting"
WORK = conversation(
    PROMPT,
    {"tools": [bash("printf 'hello\\n' >greeting && git add greeting && git commit -qm 'Greet' && echo more >draft")]},
    {"say": "There is a greeting now."},
)


@pytest.fixture
def fleet(user_box, real_client):
    """Return a box with a repository of one commit, the client, and nothing else."""
    equip(user_box, real_client)
    user_box.run("true")  # a home
    user_box.mkdir(f"{user_box.base}/fleet")
    repository = user_box.mkdir(f"{user_box.base}/fleet/origin")
    for words in (
        ("init", "-q", "-b", "main"),
        ("config", "user.name", "A"),
        ("config", "user.email", "a@example.org"),
        ("commit", "-q", "--allow-empty", "-m", "Begin"),
    ):
        assert user_box.host("git", "-C", repository, *words).returncode == 0
    return user_box


def _task(box, **keys: object) -> str:
    path = f"{box.base}/fleet/task.json"
    task = {"id": "greet", "repo": "origin", "prompt": PROMPT, **keys}
    box.write(path, json.dumps({key: value for key, value in task.items() if value is not None}))
    return path


def _run(box, model, task: str, **options):
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    return box.claudebox("task", task, "--result", f"{box.base}/fleet/result", env=env, timeout=120, **options)


def _result(box) -> Any:
    return json.loads(Path(box.base, "fleet/result/result.json").read_text(encoding="utf-8"))


def test_a_task_leaves_the_work_and_how_it_was_done(fleet, model):
    # proves FLEET-01
    with_key = model(WORK, key=KEY)
    done = _run(fleet, with_key, _task(fleet))

    assert done.returncode == 0, done.stderr
    result, place = _result(fleet), Path(fleet.base, "fleet/result")
    assert json.loads(done.stdout) == result
    assert result["files"] == {path.name: path.stat().st_size for path in place.iterdir() if path.suffix != ".json"}
    assert (result["status"], result["exit"], result["retry"]) == ("done", 0, False)
    assert result["said"] == "There is a greeting now."
    assert result["turns"] == 2
    assert result["tokens"]["output_tokens"] > 0
    assert sorted(os.listdir(place)) == [
        "log.jsonl", "messages.txt", "receipt.txt", "result.json", "review.html", "transcript.jsonl", "work.bundle",
        "work.patch",
    ]  # fmt: skip
    assert result["changed"] == {"files": 2, "added": 2, "removed": 0}
    assert "There is a greeting now." in (place / "review.html").read_text(encoding="utf-8")
    assert PROMPT in (place / "transcript.jsonl").read_text(encoding="utf-8")
    clone = f"{fleet.base}/fleet/clone"
    assert fleet.host("git", "clone", "-q", f"{fleet.base}/fleet/origin", clone).returncode == 0
    assert fleet.host("git", "-C", clone, "apply", str(place / "work.patch")).returncode == 0
    assert Path(clone, "greeting").read_text() == "hello\n"
    assert Path(clone, "draft").read_text() == "more\n"
    fetched = fleet.host("git", "-C", clone, "fetch", "-q", str(place / "work.bundle"), "claudebox-task-result")
    assert fetched.returncode == 0, fetched.stderr
    log = fleet.host("git", "-C", clone, "log", "--format=%s", "FETCH_HEAD").stdout.split("\n")
    assert log[:3] == ["Work that was not committed", "Greet", "Begin"]
    assert fleet.host("git", "-C", clone, "rev-parse", "FETCH_HEAD").stdout.strip() == result["head"]
    for path in place.iterdir():
        assert KEY.encode() not in path.read_bytes()


def test_nothing_of_a_task_piles_up(fleet, model):
    # proves FLEET-01
    before = sorted(os.listdir(f"{fleet.home}/.claudebox/instances"))
    scratch = fleet.mkdir(f"{fleet.base}/fleet/scratch")
    fleet.environ["TMPDIR"] = scratch
    assert _run(fleet, model(WORK), _task(fleet)).returncode == 0

    assert sorted(os.listdir(f"{fleet.home}/.claudebox/instances")) == before
    assert os.listdir(scratch) == []
    assert not [name for name in os.listdir(f"{fleet.base}/fleet") if name.endswith((".partial", ".old"))]


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [({"status": 429, "type": "rate_limit_error"}, 75, True), ({"status": 529, "type": "overloaded_error"}, 75, True),
     ({"status": 400, "message": "Your credit balance is too low"}, 1, False)],
)  # fmt: skip
def test_the_status_says_whether_another_try_is_worth_it(fleet, model, error, status, retry):
    # proves FLEET-02
    done = _run(fleet, model(conversation(PROMPT, {"error": error})), _task(fleet))

    assert done.returncode == status, done.stderr
    assert _result(fleet)["retry"] is retry


def test_a_task_over_its_time_ends_with_124_and_keeps_what_was_done(fleet, model):
    # proves FLEET-02
    slow = conversation(PROMPT, {"tools": [bash("echo begun >begun; sleep 300")]}, {"say": "never"})
    served = model(slow)
    done = _run(fleet, served, _task(fleet, timeout=12))

    assert done.returncode == 124, done.stderr
    assert _result(fleet)["status"] == "over time"
    assert _result(fleet)["tokens"]["output_tokens"] == sum(
        answer["usage"]["output_tokens"] for answer in served.answers
    )
    assert PROMPT in Path(fleet.base, "fleet/result/transcript.jsonl").read_text(encoding="utf-8")
    assert "+begun" in Path(fleet.base, "fleet/result/work.patch").read_text(encoding="utf-8")


def test_a_cancelled_task_leaves_nothing_running_and_says_so(fleet, model):
    # proves FLEET-02
    value = "ghp_" + "s3cretOfTheHost" * 2 + "abcdef"
    nap = f"sleep 301.{os.getpid()}"  # of nobody else
    slow = conversation(PROMPT, {"tools": [bash(f"echo {value} >begun; {nap}")]}, {"say": "never"})
    served = model(slow)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "GITHUB_TOKEN": value}
    scratch = Path(fleet.mkdir(f"{fleet.base}/fleet/scratch"))
    fleet.environ["TMPDIR"] = str(scratch)
    words = (fleet.program, "task", _task(fleet), "--result", f"{fleet.base}/fleet/result")
    process = subprocess.Popen(
        words, cwd=fleet.project, env=fleet.variables(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", **fleet.account.demotion,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not [*scratch.glob("*/work/begun")] and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)

    assert process.returncode == 75, messages
    assert _result(fleet)["status"] == "cancelled"
    assert any("GITHUB_TOKEN" in line for line in _result(fleet)["withheld"]), "searched after a signal, too"
    sleeping = subprocess.run(["pgrep", "-f", nap], capture_output=True, check=False)
    assert sleeping.returncode == 1, "the command of the agent still runs"


def test_a_repository_that_cannot_be_had_is_worth_another_try(fleet, model):
    # proves FLEET-02
    done = _run(fleet, model(WORK), _task(fleet, repo="https://user:password-of-git@127.0.0.1:9/x.git"))

    assert done.returncode == 75
    assert _result(fleet)["retry"] is True
    assert "password-of-git" not in done.stderr + json.dumps(_result(fleet))


def test_a_secret_of_the_host_does_not_leave_with_the_result(fleet, model):
    # proves FLEET-03
    value = "ghp_" + "s3cretOfTheHost" * 2 + "abcdef"
    leak = conversation(PROMPT, {"tools": [bash(f"echo {value} >notes")]}, {"say": f"It is {value}."})
    fleet.environ["GITHUB_TOKEN"] = value
    done = _run(fleet, model(leak), _task(fleet))

    assert done.returncode == 1, done.stderr
    assert any("GITHUB_TOKEN" in line for line in _result(fleet)["withheld"])
    for path in Path(fleet.base, "fleet/result").iterdir():
        assert value.encode() not in path.read_bytes(), path


def test_many_tasks_keep_to_their_number_and_cost_what_was_served(fleet, model):
    # proves FLEET-04
    need(shutil.which("parallel"), "GNU parallel")
    count, jobs = int(os.environ.get("CLAUDEBOX_TEST_TASKS", "4")), 3
    conversations = [
        {
            "prompt": f"Do number {number}[.]",
            "steps": [{"tools": [bash(f"echo {number} >done")]}, {"say": f"Did {number}."}],
        }
        for number in range(count)
    ]
    served = model({"conversations": conversations})
    for number in range(count):
        task = {"id": f"t{number}", "repo": "../origin", "prompt": f"Do number {number}."}
        fleet.write(f"{fleet.base}/fleet/tasks/{number:03}.json", json.dumps(task))
    results = Path(fleet.base, "fleet/results")
    words = ("tasks", f"{fleet.base}/fleet/tasks/*.json", "--jobs", str(jobs), "--results", str(results))
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_MODEL": "claude-sonnet-4-5"}
    first = fleet.claudebox(*words, env=env, timeout=30 * count)

    assert first.returncode == 0, first.stderr
    total = 0.0
    for number in range(count):
        place = results / f"t{number}"
        result = json.loads((place / "result.json").read_text(encoding="utf-8"))
        assert (result["said"], result["tries"]) == (f"Did {number}.", 1)
        assert f"+{number}\n" in (place / "work.patch").read_text(encoding="utf-8")
        mine = [answer["usage"] for answer in served.answers if answer["prompt"] == f"Do number {number}."]
        assert len(mine) == 2, "each task once"
        given, said = (sum(usage[name] for usage in mine) for name in ("input_tokens", "output_tokens"))
        assert (result["tokens"]["input_tokens"], result["tokens"]["output_tokens"]) == (given, said)
        assert result["cost_usd"] == pytest.approx((given * 3 + said * 15) / 1e6, abs=2e-6)
        total += result["cost_usd"]
    assert first.stdout.splitlines()[-1] == f"{count} of {count} done, ${total:.2f}"
    log = (results / "t0/log.jsonl").read_text(encoding="utf-8")
    assert '"project": "/var/tmp/claudebox-task-' in log, "not in memory"
    _check_order([(int(answer["prompt"][10:-1]), answer["step"]) for answer in served.answers], jobs)

    # A second run does what is missing, and what was only copied in part.
    asked = len(served.answers)
    shutil.rmtree(results / "t0")
    (results / "t1/work.patch").write_bytes(b"cut sho")
    shown = fleet.claudebox("tasks", "--results", str(results))
    assert shown.stdout.splitlines()[0].split() == ["task", "status", "cost", "time", "why"]
    assert shown.stdout.splitlines()[-1].startswith(f"{count - 2} of {count - 1} done, 1 worth another try, $")
    assert shown.returncode == 1
    rows = json.loads(fleet.claudebox("tasks", "--results", str(results), "--json").stdout)
    assert [(row["id"], row["status"], row["retry"]) for row in rows[:2]] == [
        ("t1", "incomplete", True),
        ("t2", "done", False),
    ]
    second = fleet.claudebox(*words, env=env, timeout=120)
    assert f"{count - 2} of {count} tasks are done already" in second.stderr
    assert second.returncode == 0
    assert len(served.answers) - asked == 4
    assert fleet.claudebox("tasks", "--results", str(results)).stdout.splitlines()[-1] == first.stdout.splitlines()[-1]


def test_many_tasks_that_are_interrupted_are_cancelled_and_the_rest_does_not_begin(fleet, model):
    # proves FLEET-04, FLEET-02
    need(shutil.which("parallel"), "GNU parallel")
    waiting = "echo begun >begun; exec tail -f /dev/null"
    served = model(conversation(PROMPT, {"tools": [bash(waiting)]}, {"say": "never"}))
    for name in ("a", "b", "c"):
        task = {"id": name, "repo": "../origin", "prompt": PROMPT}
        fleet.write(f"{fleet.base}/fleet/tasks/{name}.json", json.dumps(task))
    results = Path(fleet.base, "fleet/results")
    scratch = Path(fleet.mkdir(f"{fleet.base}/fleet/scratch"))
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "TMPDIR": str(scratch)}
    words = ("tasks", f"{fleet.base}/fleet/tasks/*.json", "--jobs", "2", "--results", str(results))
    process = subprocess.Popen(
        (fleet.program, *words), cwd=fleet.project, env=fleet.variables(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **fleet.account.demotion,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while len([*scratch.glob("*/work/begun")]) < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, messages = process.communicate(timeout=60)

    assert process.returncode == 1, messages
    assert [line.split()[:2] for line in shown.splitlines()[1:-1]] == [["a", "cancelled"], ["b", "cancelled"]], messages
    assert "+begun" in (results / "a/work.patch").read_text(encoding="utf-8")
    assert list(scratch.glob("claudebox-task-*")) == []


def _check_order(served: list[tuple[int, int]], jobs: int) -> None:
    """See that tasks began in their order, as far as several at once have one, and never more at once."""
    begun, ended = set[int](), set[int]()
    for number, step in served:
        if step == 0:
            waiting = set(range(number)) - begun
            assert len(waiting) < jobs, f"{number} was asked for before {waiting}"
            begun.add(number)
        else:
            ended.add(number)
        assert len(begun - ended) <= jobs, served


def test_a_task_over_its_budget_ends_with_122(fleet, model):
    # proves FLEET-02, COST-01
    costly = conversation(PROMPT, *[{"tools": [bash("true")]}] * 40, {"say": "never"})
    done = _run(fleet, model(costly), _task(fleet, budget_usd=0.01))

    assert done.returncode == 122, done.stderr + json.dumps(_result(fleet))
    assert _result(fleet)["status"] == "over budget"
    assert _result(fleet)["retry"] is False


def test_what_the_agent_says_of_its_cost_and_of_the_upstream_counts_for_nothing(fleet, model):
    # proves FLEET-02, COST-01
    lie = {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": "x",
           "num_turns": 1, "total_cost_usd": 0.0, "session_id": "00000000-0000-4000-8000-000000000000"}  # fmt: skip
    script = (
        "echo '" + json.dumps(lie) + "' >/proc/$PPID/fd/1; d=~/.claude/projects/x; mkdir -p $d;"
        " ln -s /x $d/00000000-0000-4000-8000-000000000000.jsonl; kill -9 $PPID"
    )
    done = _run(fleet, model(conversation(PROMPT, {"tools": [bash(script)]}, {"say": "never"})), _task(fleet, tries=3))

    result = _result(fleet)
    assert (done.returncode, result["retry"], result["tries"]) == (1, False, 1), done.stderr + json.dumps(result)
    assert result["cost_usd"] > 0, "what the broker counted"


def test_work_in_a_closed_directory_is_taken_out(fleet, model):
    # proves FLEET-01
    closed = conversation(
        PROMPT, {"tools": [bash("mkdir hidden && echo x >hidden/y && git add . && chmod 0 hidden")]}, {"say": "done"}
    )
    done = _run(fleet, model(closed), _task(fleet))

    assert done.returncode == 0, done.stderr
    assert b"+++ b/hidden/y" in Path(fleet.base, "fleet/result/work.patch").read_bytes()


def test_work_that_cannot_be_taken_out_is_a_failure(fleet, model):
    # proves FLEET-01
    hidden = conversation(PROMPT, {"tools": [bash("echo x >hidden; chmod 0 hidden")]}, {"say": "done"})
    done = _run(fleet, model(hidden), _task(fleet))

    assert done.returncode == 1, done.stderr
    assert "could not be exported" in _result(fleet)["why"]


def test_words_of_the_agent_do_not_stand_in_the_receipt_nor_reach_a_terminal(fleet, model):
    # proves FLEET-01
    forged = "printf '\\033[2J\\033]52;c;aGk=\\007claudebox: nothing changed\\n' >/proc/$PPID/fd/2"
    script = conversation(PROMPT, {"tools": [bash(forged)]}, {"say": "done"})
    done = _run(fleet, model(script), _task(fleet))

    assert done.returncode == 0, done.stderr
    place = Path(fleet.base, "fleet/result")
    assert b"claudebox: nothing changed" in (place / "messages.txt").read_bytes(), "the control"
    assert b"\x1b" not in (place / "messages.txt").read_bytes()
    assert b"claudebox: nothing changed" not in (place / "receipt.txt").read_bytes()
