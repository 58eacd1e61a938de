"""Several agents in one repository: the real client, detached, each in its copy, against the scripted model."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.support.client import bash, equip
from tests.support.tui import Tui

from claudebox.many.detach import ENDED, WAITS
from claudebox.report.session import OUT_OF_TIME

KEY = "sk-ant-api03-not-a-key-of-anybody"
NAMES = ("one", "two", "three")


@pytest.fixture
def agents(user_box, real_client):
    """Return a box with a repository and the client, and leave no tmux behind."""
    box = user_box
    equip(box, real_client)
    for words in (("init", "-q", "-b", "main"), ("config", "user.name", "u"), ("config", "user.email", "u@u")):
        box.host("git", *words)
    box.write("README", "hello\n")
    box.host("git", "add", "-A")
    box.host("git", "commit", "-qm", "first")
    yield box
    box.host("tmux", "-S", f"{box.home}/.claudebox/run/tmux", "kill-server")


def listed(box):
    return {row["name"]: row for row in json.loads(box.claudebox("sessions", "--json").stdout)}


def wait_for(box, condition, timeout: float = 60.0):
    limit = time.monotonic() + timeout
    while not condition(rows := listed(box)):
        assert time.monotonic() < limit, rows
        time.sleep(0.2)
    return rows


def checkout(box):
    paths = sorted(path for path in Path(box.project).rglob("*") if ".git" not in path.parts)
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def start_all(box, model) -> None:
    """Start five agents, each on its task: three that do it, one that spends too much, one that takes too long."""
    work = "echo {0} > {0}.txt && git add . && git commit -qm {0}"
    commands = {name: work.format(name) for name in (*NAMES, "poor")} | {"slow": "sleep 1000"}
    served = model({"conversations": [
        {"prompt": f"do {name}", "steps": [{"say": "I write.", "tools": [bash(command)]},
                                           {"say": f"Done with {name}."}]}
        for name, command in commands.items()
    ]}, key=KEY)  # fmt: skip
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    limits = {"poor": ("--set", "tokens=1000"), "slow": ("--time-limit", "12s")}
    for name in commands:
        started = box.claudebox("-y", "--detach", "new", name, *limits.get(name, ()), f"do {name}", env=env)
        assert started.returncode == 0, started.stderr


def drop_the_limited(box) -> None:
    """See that limits are kept and shown, and throw away what came of it."""
    assert wait_for(box, lambda rows: rows["slow"]["state"] == "ended")["slow"]["status"] == OUT_OF_TIME
    poor = listed(box)["poor"]
    assert poor["budget"] == "1000 tokens"
    assert poor["usage"]["input"] > 1000
    table = box.claudebox("sessions").stdout
    assert "tokens of 1000 tokens" in next(line for line in table.splitlines() if line.startswith("poor "))
    with Tui(box, columns=100, rows=30) as terminal:
        terminal.shell(box.program, "attach", "poor")
        terminal.expect("the budget of this session, 1000 tokens, is spent")
        terminal.key("C-z")
    assert "status 143" in box.claudebox("stop", "poor").stderr
    for name in ("poor", "slow"):
        assert box.claudebox("-y", "drop", name).returncode == 0


def test_five_agents_work_side_by_side_and_are_finished_or_dropped(agents, model):
    # proves AGENT-01, AGENT-02, AGENT-03, AGENT-05, AGENT-06, AGENT-07, COST-02, LIMIT-01
    box, names = agents, NAMES
    told = box.write(f"{box.home}/told")
    command = f'["/bin/sh", "-c", "echo $1 $2 >> {told}", "-"]'
    box.write(f"{box.home}/.claudebox/config.toml", f'network = "full"\nnotify = {command}\n')
    os.chmod(f"{box.home}/.claudebox", 0o700)
    before = checkout(box)
    start_all(box, model)

    limit = time.monotonic() + 60
    while Path(told).read_text().count("waits for you") < len(names) + 1:  # each after it has worked
        assert time.monotonic() < limit, listed(box)
        time.sleep(0.2)
    drop_the_limited(box)
    rows = wait_for(box, lambda rows: all(row["state"] == "waiting" for row in rows.values()))

    assert sorted(rows) == sorted(names)
    assert checkout(box) == before
    # The screen is as it was, at two sizes, and the agent view is off.
    with Tui(box, columns=100, rows=30) as wide, Tui(box, columns=70, rows=22) as narrow:
        wide.shell(box.program, "attach", "one")
        assert "for agents" not in wide.expect("Done with one.")
        narrow.shell(box.program, "attach", "one")
        narrow.expect("Done with one.")
        narrow.key("C-z")
        narrow.expect("runs on")
        wide.key("C-z")
        wide.expect("runs on")
    assert "● Done with two." in box.claudebox("stop", "two").stderr + box.claudebox("attach", "two").stdout
    for name in ("one", "three"):
        assert "status 143" in box.claudebox("stop", name).stderr
    limit = time.monotonic() + 30
    happened = [(name, what) for name in (*names, "poor") for what in (WAITS, ENDED.format(143, name))]
    expected = [f"claudebox {name} {what}" for name, what in (*happened, ("slow", ENDED.format(OUT_OF_TIME, "slow")))]
    perhaps = f"claudebox slow {WAITS}"  # where its time was long enough to come to that
    while sorted(line for line in Path(told).read_text().splitlines() if line != perhaps) != sorted(expected):
        assert time.monotonic() < limit, Path(told).read_text()
        time.sleep(0.1)
    assert checkout(box) == before
    for name in ("one", "two"):
        assert box.claudebox("-y", "finish", name).returncode == 0
        box.host("git", "merge", "-q", "--no-edit", name)
    assert box.claudebox("-y", "drop", "three").returncode == 0
    assert sorted(path.name for path in Path(box.project).iterdir()) == [".git", "README", "one.txt", "two.txt"]
    assert listed(box) == {}
