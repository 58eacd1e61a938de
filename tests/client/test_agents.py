"""Several agents in one repository: the real client, detached, each in its copy, against the scripted model."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.client.conftest import bash, equip, flags, variables
from tests.client.tui import Tui

from claudebox.commands.agents.records import process_start

if TYPE_CHECKING:
    import random


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
    return {row["name"]: row for row in json.loads(box.claudebox("--sessions", "--json").stdout)}


def wait_for(box, condition, timeout: float = 60.0):
    limit = time.monotonic() + timeout
    while not condition(rows := listed(box)):
        assert time.monotonic() < limit, rows
        time.sleep(0.2)
    return rows


def checkout(box):
    paths = sorted(path for path in Path(box.project).rglob("*") if ".git" not in path.parts)
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def test_agents_work_side_by_side_and_are_finished_or_dropped(agents, model):
    # proves AGENT-01, AGENT-02, AGENT-03, AGENT-05, AGENT-06, AGENT-07
    box = agents
    names = ("one", "two", "three")
    work = "echo {0} > {0}.txt && git add . && git commit -qm {0}"
    served = model({"conversations": [
        {"prompt": f"do {name}", "steps": [{"say": "I write.", "tools": [bash(work.format(name))]},
                                           {"say": f"Done with {name}."}]}
        for name in names
    ]})  # fmt: skip
    env = variables(served)
    told = box.write(f"{box.home}/told")
    command = f'["/bin/sh", "-c", "echo $1 $2 >> {told}", "-"]'
    box.write(f"{box.home}/.claudebox/config.toml", f'network = "full"\nnotify = {command}\n')
    os.chmod(f"{box.home}/.claudebox", 0o700)
    before = checkout(box)
    for name in names:
        started = box.claudebox("-y", "--detach", "--new", name, *flags(env), f"do {name}", env=env)
        assert started.returncode == 0, started.stderr

    limit = time.monotonic() + 60
    while Path(told).read_text().count("waits for you") < len(names):  # each after it has worked
        assert time.monotonic() < limit, listed(box)
        time.sleep(0.2)
    rows = wait_for(box, lambda rows: all(row["state"] == "waiting" for row in rows.values()))

    assert sorted(rows) == sorted(names)
    assert checkout(box) == before
    # The screen is as it was, at two sizes, and the agent view is off.
    with Tui(box, columns=100, rows=30) as wide, Tui(box, columns=70, rows=22) as narrow:
        wide.shell(box.program, "--attach", "one")
        assert "for agents" not in wide.expect("Done with one.")
        narrow.shell(box.program, "--attach", "one")
        narrow.expect("Done with one.")
        narrow.key("C-z")
        narrow.expect("runs on")
        wide.key("C-z")
        wide.expect("runs on")
    assert "● Done with two." in box.claudebox("--stop", "two").stderr + box.claudebox("--follow", "two").stdout
    for name in ("one", "three"):
        assert "status 143" in box.claudebox("--stop", name).stderr
    limit = time.monotonic() + 10
    expected = [f"claudebox {name} {what}" for name in names for what in ("waits for you", "has ended with status 143")]
    while sorted(Path(told).read_text().splitlines()) != sorted(expected):
        assert time.monotonic() < limit, Path(told).read_text()
        time.sleep(0.1)
    assert checkout(box) == before
    assert box.claudebox("-y", "--finish", "one", "merge").returncode == 0
    assert box.claudebox("-y", "--finish", "two", "merge").returncode == 0
    assert box.claudebox("-y", "--drop", "three").returncode == 0
    assert sorted(path.name for path in Path(box.project).iterdir()) == [".git", "README", "one.txt", "two.txt"]
    assert listed(box) == {}


def test_agents_that_are_killed_at_random_lose_no_commit(agents, numbers: random.Random):
    # proves AGENT-03, AGENT-06, SAND-15
    box = agents
    names = [f"agent{number}" for number in range(4)]
    before = checkout(box)
    work = (
        "i=0; while :; do i=$((i+1)); echo $i > work.txt; git add work.txt; git commit -qm $i; "
        "git rev-parse HEAD >> .git/made; sleep .05; done"
    )
    for name in names:
        started = box.claudebox("-y", "--detach", "--new", name, "--undo-keep", "0", "--exec", "--", "sh", "-c", work)
        assert started.returncode == 0, started.stderr
    rows = listed(box)
    processes = {
        name: [(number, process_start(number)) for number in descendants(rows[name]["process"])] for name in names
    }
    socket = f"{box.home}/.claudebox/run/tmux"
    tmux = int(box.host("tmux", "-S", socket, "display-message", "-p", "#{pid}").stdout)
    time.sleep(numbers.uniform(0.2, 1.5))
    killed = numbers.sample(names, 2)
    for name in killed:
        os.kill(rows[name]["process"], signal.SIGKILL)
        time.sleep(numbers.uniform(0, 0.2))
    wait_for(box, lambda rows: {name for name in names if rows[name]["state"] == "ended"} == set(killed), 10)
    os.kill(tmux, signal.SIGKILL)
    wait_for(box, lambda rows: all(rows[name]["state"] == "ended" for name in names), 15)

    limit = time.monotonic() + 10
    while left := [pid for name in names for pid, start in processes[name] if start and process_start(pid) == start]:
        assert time.monotonic() < limit, left
    assert checkout(box) == before
    made = {}  # by the branch that HEAD of the sandbox's own repository names
    for path in Path(box.home, ".claudebox/instances").glob("*/git/*/own/made"):
        made[(path.parent / "HEAD").read_text().strip().rpartition("/")[2]] = path.read_text().split()
    assert sorted(made) == names
    for name in names:
        finished = box.claudebox("-y", "--finish", name)
        assert finished.returncode == 0, finished.stderr
        assert set(made[name]) <= set(box.host("git", "rev-list", name).stdout.split())
        assert len(made[name]) > 1
    assert checkout(box) == before


def descendants(process: int) -> list[int]:
    found, waiting = [], [process]
    while waiting:
        found.append(waiting.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            waiting += map(int, task.read_text().split())
    return found
