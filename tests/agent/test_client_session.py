"""Whole sessions of the real client in the sandbox, as a user has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.support import repositories
from tests.support.client import bash, conversation, equip, flags, variables

_SERVER = r"""
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    answer = {"initialize": {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "abacus", "version": "1"}},
              "tools/list": {"tools": [{"name": "add", "description": "adds", "inputSchema": {"type": "object",
                             "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}]},
              }.get(request.get("method"))
    if request.get("method") == "tools/call":
        numbers = request["params"]["arguments"]
        answer = {"content": [{"type": "text", "text": f"the sum is {numbers['a'] + numbers['b']}"}]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer or {}}), flush=True)
"""


@pytest.mark.accounts
def test_the_tui_comes_up_without_a_question_and_does_everything_a_person_wants(box, model, real_client, terminal):
    # proves UX-06, SAND-14, SAND-15, INST-02
    equip(box, real_client)
    served = model(conversation("remember", {"say": "I remember everything"}))
    env = variables(served)
    screen = terminal(box, env)

    screen.shell(box.program, "-y", *flags(env))
    first = screen.expect("bypass permissions on")
    for question in ("trust", "Choose the text style", "login method", "WARNING", "custom API key"):
        assert question not in first
    screen.type("do you remember me")
    screen.expect("I remember everything")
    screen.resize(72, 24)
    narrow = screen.expect("bypass permissions on")
    assert max(len(line) for line in narrow.splitlines()) <= 72
    screen.key("C-z")
    screen.expect("Stopped")
    assert screen.status() == 128 + signal.SIGTSTP
    screen.shell("fg")
    screen.expect_any(lambda shown: "bypass permissions on" in shown.rpartition("host$ fg")[2])
    screen.type("and do you still remember")
    screen.expect("and do you still remember")
    screen.type("/exit")
    farewell = screen.expect("resume: claudebox --resume")
    assert "Resume this session with" not in farewell  # the client's own words, which start it without a sandbox
    assert screen.status() == 0
    assert screen.modes()["alternate_on"] == "0"

    session = "".join(farewell.split("claudebox --resume ")[-1].split())[:36]
    screen.key("C-l")
    screen.shell(box.program, "-y", *flags(env), "--resume", session)
    screen.expect("I remember everything")
    screen.key("C-c")
    screen.key("C-c")
    screen.expect("resume: claudebox --resume")
    assert screen.status() == 0


def test_the_conversation_of_an_agent_in_a_worktree_is_continued_as_the_end_says(
    user_box, model, real_client, terminal
):
    # proves AGENT-01, NEW-D13
    equip(user_box, real_client)
    repositories.make(user_box)
    served = model(conversation("remember", {"say": "I remember everything"}))
    env = variables(served)
    screen = terminal(user_box, env, columns=160)
    screen.shell(user_box.program, "new", "-y", *flags(env), "fix/one")
    screen.expect("bypass permissions on")
    screen.type("do you remember me")
    screen.expect("I remember everything")
    screen.type("/exit")
    farewell = screen.expect("the work is on your branch")
    assert "Resume this session with" not in farewell
    assert screen.status() == 0

    command = farewell.partition("resume: claudebox ")[2].partition("\n")[0]
    assert command.startswith("new fix/one --resume "), farewell
    screen.key("C-l")
    screen.type(f"{user_box.program} {command}")
    screen.expect("Proceed?")
    screen.key("Enter")
    screen.expect("I remember everything")


def test_who_asked_for_one_answer_is_not_told_how_to_continue(user_box, model, real_client, terminal):
    # proves SHOW-01, NEW-D12
    equip(user_box, real_client)
    served = model()
    env = variables(served)
    screen = terminal(user_box, env)
    screen.shell(user_box.program, "-y", *flags(env), "-p", "hello")
    assert screen.status() == 0
    assert "resume" not in screen.screen()


def test_an_api_key_asks_no_question(user_box, model, real_client, terminal):
    # proves INST-02
    equip(user_box, real_client)
    served = model(key="a-key-of-more-than-twenty-characters")
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": "a-key-of-more-than-twenty-characters"}
    screen = terminal(user_box, env)

    screen.shell(user_box.program, "-y", "--env", "ANTHROPIC_BASE_URL")
    shown = screen.expect("bypass permissions on")
    screen.type("hello")
    screen.expect("You said: hello")

    assert "a-key-of-more-than" not in shown


def test_an_mcp_server_of_the_project_answers(box, model, claude):
    box.write("abacus.py", _SERVER)
    box.write(".mcp.json", json.dumps({"mcpServers": {"abacus": {"command": "python3", "args": ["abacus.py"]}}}))
    call = {"name": "mcp__abacus__add", "input": {"a": 19, "b": 23}}
    served = model(conversation("sum", {"tools": [call]}, {"say": "{result}"}))

    result = claude(box, served, "-p", "the sum please")

    assert result.stdout.strip() == "the sum is 42"


def test_the_agent_edits_runs_and_commits(box, model, claude):
    # proves GIT-01, GIT-02
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = A Person\n\temail = person@example.org\n")
    box.host("git", "init", "-q")
    path = f"{box.project}/greet.py"
    served = model(
        conversation(
            "work",
            {"tools": [{"name": "Write", "input": {"file_path": path, "content": "print('hello')\n"}}]},
            {
                "tools": [
                    {"name": "Edit", "input": {"file_path": path, "old_string": "hello", "new_string": "good day"}}
                ]
            },
            {"tools": [bash("python3 greet.py && git add . && git commit -qm 'Greet' && git log --format='%an: %s'")]},
            {"say": "{result}"},
        )
    )

    result = claude(box, served, "-p", "do the work")

    assert result.stdout.split("\n")[:2] == ["good day", "A Person: Greet"]
    assert Path(path).stat().st_uid == box.account.uid
    assert box.host("git", "status", "--porcelain").stdout == ""


@pytest.mark.parametrize("words", [("-p",), ("--no-such-flag",), ("-p", "--resume", "x", "y")])
def test_failures_of_the_client_keep_their_status(user_box, model, claude, words):
    # proves SAND-14
    assert claude(user_box, model(), *words).returncode == 1


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_a_signal_to_claudebox_ends_the_client_as_it_would_without(user_box, model, real_client, number, expected):
    # proves SAND-15
    equip(user_box, real_client)
    nap = f"sleep 60.{os.getpid()}{int(number)}"
    served = model(conversation("wait", {"tools": [bash(f"touch begun; {nap}")]}, {"say": "never"}))
    env = variables(served)
    process = subprocess.Popen(
        [user_box.program, "-y", *flags(env), "-p", "wait for it"],
        cwd=user_box.project, env=user_box.variables(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, **user_box.account.demotion,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{user_box.project}/begun") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=30)

    assert process.returncode == expected
    survivors = subprocess.run(
        ["pgrep", "-u", str(user_box.account.uid), "-f", nap], check=False, stdout=subprocess.PIPE
    )
    assert survivors.stdout == b""


@pytest.mark.slow
def test_the_sandbox_costs_the_client_little_time(user_box, model, claude, bare):
    served = model()
    inside: list[float] = []
    outside: list[float] = []
    for _ in range(3):
        for run, times in ((claude, inside), (bare, outside)):
            begun = time.perf_counter()
            assert run(user_box, served, "-p", "hello").returncode == 0
            times.append(time.perf_counter() - begun)

    # The target is 1.15; a busy machine must not fail the suite.
    assert min(inside) <= 1.35 * min(outside) + 0.5, (inside, outside)
