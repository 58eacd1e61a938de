"""Sessions without a terminal: they run on, come back, end with their status, and the list of them is true."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import Account, make_box, need
from tests.support import repositories
from tests.support.terminals import descendants
from tests.support.tui import Tui

from claudebox.many.records import process_start

FOREVER = "echo from-inside; while [ ! -e stop ]; do sleep .1; done; exit 7"
SOON = 2.0  # seconds within which the list is true


def detach(box, script: str, *flags: str, cwd: str = ""):
    return box.claudebox("-y", "--detach", *flags, "--exec", "--", "sh", "-c", script, cwd=cwd or box.project)


def listed(box):
    result = box.claudebox("sessions", "--json", cwd=box.base)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def wait_for(box, condition, timeout: float = 20.0):
    limit = time.monotonic() + timeout
    while not condition(rows := listed(box)):
        assert time.monotonic() < limit, rows
        time.sleep(0.1)
    return rows


def assert_gone(processes: list[tuple[int, int]]) -> None:
    limit = time.monotonic() + 30
    while left := [number for number, start in processes if start and process_start(number) == start]:
        assert time.monotonic() < limit, left
        time.sleep(0.05)


def server(box) -> int:
    """Return the process of tmux that this box started."""
    result = box.host("tmux", "-S", f"{box.home}/.claudebox/run/tmux", "display-message", "-p", "#{pid}")
    return int(result.stdout)


@pytest.fixture(autouse=True)
def no_server_left(request):
    need(os.path.exists("/usr/bin/tmux"), "tmux")
    boxes = [request.getfixturevalue(name) for name in ("box", "user_box") if name in request.fixturenames]
    yield
    for box in boxes:
        box.host("tmux", "-S", f"{box.home}/.claudebox/run/tmux", "kill-server")


def test_a_session_runs_on_without_a_terminal_and_leaves_its_status(box):
    # proves AGENT-01
    result = detach(box, FOREVER)

    assert result.returncode == 0, result.stderr
    assert "claudebox attach project" in result.stderr
    (row,) = wait_for(box, lambda rows: rows[0]["last"] == "from-inside")
    assert (row["name"], row["state"], row["project"]) == ("project", "working", box.project)
    assert row["memory"] > 1 << 20
    box.write("stop")
    (row,) = wait_for(box, lambda rows: rows[0]["state"] == "ended")
    assert row["status"] == 7
    shown = box.claudebox("attach", "project")  # what it left on its screen, and how it ended
    assert "from-inside" in shown.stdout
    assert "ended with status 7" in shown.stderr
    assert box.claudebox("stop", "project").returncode == 0
    assert listed(box) == []


def test_a_report_that_nobody_has_seen_is_mentioned_until_somebody_has(user_box):
    # proves AGENT-01, REPORT-02
    detach(user_box, "echo 'all:' >Makefile")
    wait_for(user_box, lambda rows: rows[0]["state"] == "ended")

    first = user_box.sh("true")
    detach(user_box, "true")  # the other one keeps its name
    names = sorted(row["name"] for row in wait_for(user_box, lambda rows: {"ended"} == {row["state"] for row in rows}))
    shown = user_box.claudebox("attach", "project")
    second = user_box.sh("true")

    assert "`claudebox attach project` shows the report" in first.stderr
    assert names == ["project", "project-2"]
    assert "Makefile" in shown.stdout
    assert "shows the report" not in second.stderr
    repositories.make(user_box)
    for _ in range(2):  # a session has the name of its copy, whatever was there before
        detach(user_box, "echo >>Makefile", "new", "own")
        wait_for(user_box, lambda rows: {"ended"} == {row["state"] for row in rows})
    assert sorted(row["name"] for row in listed(user_box)) == ["own", "project", "project-2"]


def test_the_environment_of_this_terminal_goes_with_it_and_no_other(user_box):
    # proves AGENT-01, A15
    box = user_box
    for number in ("1", "2"):
        project = box.mkdir(f"{box.base}/p{number}")
        result = box.claudebox(
            "-y", "--detach", "--env", "COLOUR", "--exec", "--", "sh", "-c", "echo COLOUR=$COLOUR; cat",
            env={"COLOUR": f"number-{number}", "SECRET_TOKEN": "hush-hush-hush"}, cwd=project,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
    wait_for(box, lambda rows: [row["last"] for row in rows] == ["COLOUR=number-1", "COLOUR=number-2"])
    # What tmux knows, every process of the user could read: it knows nothing.
    assert b"hush-hush" not in Path(f"/proc/{server(box)}/environ").read_bytes()
    assert "hush-hush" not in box.host("tmux", "-S", f"{box.home}/.claudebox/run/tmux", "show-environment", "-g").stdout
    assert "hush-hush" not in "".join(path.read_text(errors="replace") for path in Path(box.home).rglob("*.json"))


def test_what_cannot_start_says_so_at_once_and_is_not_listed(user_box):
    # proves AGENT-01
    result = user_box.claudebox("-y", "--detach", "--exec", "--", "no-such-program")

    assert result.returncode == 0  # it was started, and ended at once
    wait_for(user_box, lambda rows: rows[0]["status"] == 127)
    assert user_box.claudebox("--detach", "--exec", "--", "true").returncode == 125  # nobody to ask
    assert user_box.claudebox("-y", "--detach", "--network", "lan", "--exec", "--", "true").returncode == 125
    assert len(listed(user_box)) == 1


def test_a_session_comes_back_on_terminals_of_other_sizes(user_box):
    # proves AGENT-02
    detach(user_box, "while :; do stty size; sleep .1; done")

    with Tui(user_box, columns=100, rows=30) as one, Tui(user_box, columns=70, rows=20) as other:
        one.shell(user_box.program, "attach")
        one.expect("30 100")
        one.key("C-z")
        one.expect("runs on")
        assert one.status() == 0
        other._env["TERM"] = "a-terminal-that-nobody-knows"
        other.shell("env", "TERM=a-terminal-that-nobody-knows", user_box.program, "attach", "project")
        other.expect("20 70")
        user_box.claudebox("stop", "project")
        other.expect("ended with status 143")


def test_stop_ends_everything(box):
    # proves AGENT-02, SAND-15
    detach(box, "sleep 1000 & setsid sleep 1000 & wait")
    (row,) = wait_for(box, lambda rows: rows[0]["state"] == "working")
    processes = [(number, process_start(number)) for number in descendants(row["process"])]

    result = box.claudebox("stop", "project")

    assert "ended with status 143" in result.stderr
    assert len(processes) > 3
    assert_gone(processes)


@pytest.mark.parametrize("victim", ["launcher", "tmux"])
def test_the_list_is_true_after_a_kill(user_box, victim, numbers):
    # proves AGENT-03, SAND-15
    box = user_box
    projects = [box.mkdir(f"{box.base}/p{number}") for number in range(3)]
    for project in projects:
        assert detach(box, "echo up; sleep 1000", cwd=project).returncode == 0
    rows = wait_for(box, lambda rows: all(row["state"] == "working" for row in rows))
    processes = {
        row["name"]: [(number, process_start(number)) for number in descendants(row["process"])] for row in rows
    }
    chosen = numbers.choice(rows)
    if victim == "tmux":
        os.kill(server(box), signal.SIGKILL)
        struck = [row["name"] for row in rows]
    else:
        os.kill(chosen["process"], signal.SIGKILL)
        struck = [chosen["name"]]
    limit = time.monotonic() + SOON + 1  # the time that asking takes
    while [row["name"] for row in listed(box) if row["state"] == "ended"] != struck:
        assert time.monotonic() < limit, listed(box)
    for name in struck:
        assert_gone(processes[name])
    assert [row["state"] for row in listed(box) if row["name"] not in struck] == ["working"] * (3 - len(struck))
    # And everything can be started again.
    assert detach(box, "echo up; sleep 1000", cwd=f"{box.base}/{struck[0]}").returncode == 0
    for row in listed(box):
        box.claudebox("stop", row["name"], cwd=box.base)


def test_nothing_inside_reaches_the_terminals_of_others(user_box):
    # proves AGENT-04, F15
    box = user_box
    search = "find / -name 'tmux*' -not -path '/proc/*' -not -path '/usr/*' 2>/dev/null | wc -l"
    detach(box, f"echo $(env | grep -c TMUX) $({search}) seen; sleep 99")
    wait_for(box, lambda rows: rows[0]["last"] == "0 0 seen")
    socket = f"{box.home}/.claudebox/run/tmux"

    assert box.host("tmux", "-S", socket, "list-sessions").returncode == 0  # the positive control
    for path in (f"{box.home}/.claudebox/run", socket):
        refused = box.claudebox("-y", "--mount-rw", path, "--exec", "--", "true", cwd=box.mkdir(f"{box.base}/other"))
        assert refused.returncode == 125, refused.stderr


def test_a_project_that_is_gone_does_not_hide_its_session(user_box):
    # proves AGENT-03
    box = user_box
    project = box.mkdir(f"{box.base}/a project with 'odd' ch\u00e4racters=$1")
    assert detach(box, "echo up; sleep 1000", cwd=project).returncode == 0
    (row,) = listed(box)
    os.rename(project, f"{box.base}/moved")

    assert (row["name"], row["state"]) == ("a-project-with--odd--ch-racters--1", "working")
    assert listed(box)[0]["state"] == "working"
    assert "there is no session" in box.claudebox("stop", "\x1b[31m'$x").stderr
    assert box.claudebox("stop", row["name"], cwd=box.base).returncode == 0


def test_a_machine_without_tmux_names_the_package(user_box, altered):
    # proves AGENT-01
    altered(user_box, edits={"build_paths.py": ("TOOLS: dict[str, str] = {}", 'TOOLS: dict[str, str] = {"tmux": ""}')})

    result = detach(user_box, "true")

    assert result.returncode == 125
    assert "install the package `tmux`" in result.stderr
    assert listed(user_box) == []


def test_a_session_in_a_terminal_is_listed_too(user_box, background):
    # proves AGENT-03
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", "echo up; sleep 1000")
    assert process.stdout.readline()
    (row,) = wait_for(user_box, lambda rows: len(rows) == 1)

    assert (row["state"], row["project"], row["process"]) == ("terminal", user_box.project, process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert listed(user_box) == []


@pytest.mark.root
def test_two_users_of_one_machine_have_sessions_of_their_own(user_box, checkout):
    # proves AGENT-03, AGENT-04
    other = make_box(Account("nobody", 65534, 65534), checkout)
    try:
        for box in (user_box, other):
            assert detach(box, "echo up; sleep 1000").returncode == 0
        (row,), (own,) = listed(user_box), listed(other)
        assert (row["directory"], own["directory"]) == (user_box.project, other.project)
        assert "there is no session" in other.claudebox("stop", row["id"]).stderr
        socket = f"{user_box.home}/.claudebox/run/tmux"
        assert user_box.host("tmux", "-S", socket, "list-sessions").returncode == 0  # the positive control
        refused = other.host("tmux", "-S", socket, "list-sessions")
        assert (refused.returncode, "Permission denied" in refused.stderr) == (1, True)
        # A name in /tmp that somebody took is refused in one line; it is only used where the home is too long.
        other.home = other.mkdir(f"{other.base}/{'long' * 25}")
        started = detach(other, "sleep 1000")
        assert started.returncode == 0, started.stderr
        assert other.claudebox("stop", "project").returncode == 0
        (place,) = [path for path in Path("/tmp").glob("claudebox-65534-*") if (path / "tmux").exists()]
        other.host("tmux", "-S", f"{place}/tmux", "kill-server")
        os.chown(place, user_box.account.uid, -1)
        started = detach(other, "sleep 1000")
        assert (started.returncode, started.stderr.count("error:")) == (125, 1)
        assert "is not a directory that only you can enter" in started.stderr
        shutil.rmtree(place)
    finally:
        other.host("tmux", "-S", f"{other.base}/home/.claudebox/run/tmux", "kill-server")
        shutil.rmtree(other.base, ignore_errors=True)
