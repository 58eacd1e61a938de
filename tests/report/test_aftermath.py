"""What is written down and said after a session: the session log, the receipt, withheld secrets that were found."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from claudebox.base import trees

VALUE = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzKEYq"
OUTSIDE = {"AWS_SECRET_ACCESS_KEY": VALUE}


def records(box) -> list[list[dict[str, Any]]]:
    """Return the lines of every record, oldest first."""
    directory = Path(box.home, ".claudebox/log")
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(directory.glob("*.jsonl"))]


def on_a_terminal(box, *argv: str) -> str:
    """Run claudebox with a terminal for everything, and return what it shows."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", box.program, *argv], cwd=box.project, env=box.variables({"NO_COLOR": "1"}),
        stdin=slave, stdout=slave, stderr=slave, **box.account.demotion,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(master, 65536):
            shown += piece
    process.wait(60)
    os.close(master)
    return shown.decode()


def test_every_session_is_recorded_without_a_value(box):
    # proves B13
    result = box.sh("exit 3", env=OUTSIDE, flags=("--network", "none"))
    (lines,) = records(box)

    assert result.returncode == 3
    assert [line["kind"] for line in lines] == ["start", "end"]
    assert (lines[0]["network"], lines[0]["program"], lines[1]["status"]) == ("none", "exec", 3)
    assert "AWS_SECRET_ACCESS_KEY" in lines[0]["withheld_names"]
    assert {"name": "TERM", "origin": "host"} in lines[0]["variables"]
    assert VALUE not in json.dumps(lines)
    directory = Path(box.home, ".claudebox/log")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_no_sandbox_sees_a_record(user_box):
    user_box.run("true")
    result = user_box.sh(f"ls -A {user_box.home}/.claudebox; find / -name '*.jsonl' -path '*log*' 2>/dev/null")

    assert os.listdir(f"{user_box.home}/.claudebox/log")
    assert ".jsonl" not in result.stdout
    assert "log" not in result.stdout


@pytest.mark.parametrize(
    "script",
    [
        "printf 'one\\ntwo %s\\n' {} > notes",
        "echo {} | base64 -w0 > notes",
        "mkdir -p deep/er; printf 'x{}y' > deep/er/notes",
    ],
)
def test_a_value_that_was_kept_out_and_still_stands_in_a_file_is_named(user_box, script):
    result = user_box.sh(script.format(VALUE) + "; exit 7", env=OUTSIDE)
    clean = user_box.sh("echo harmless > other; exit 7", env=OUTSIDE)

    assert result.returncode == 7
    assert "AWS_SECRET_ACCESS_KEY in " in result.stderr
    assert "notes" in result.stderr
    assert VALUE not in result.stderr
    assert clean.returncode == 7
    assert "AWS_SECRET_ACCESS_KEY in " not in clean.stderr
    assert records(user_box)[0][-1]["found"][0]["name"] == "AWS_SECRET_ACCESS_KEY"
    assert records(user_box)[1][-1]["found"] == []


def test_a_line_is_named_and_what_was_there_before_is_not(user_box):
    user_box.write("old", VALUE)
    time.sleep(0.3)
    result = user_box.sh(f"printf 'one\\ntwo\\n%s\\n' {VALUE} > notes", env=OUTSIDE)

    assert "AWS_SECRET_ACCESS_KEY in notes:3" in result.stderr
    assert " in old" not in result.stderr


def test_a_value_in_the_state_of_the_client_is_named(user_box):
    script = f"mkdir -p ~/.claude/projects/x; printf '{{\"text\": \"%s\"}}' '{VALUE}' > ~/.claude/projects/x/1.jsonl"
    result = user_box.sh(script, env=OUTSIDE)

    assert "projects/x/1.jsonl:1" in result.stderr


def test_a_variable_that_was_let_in_may_stand_anywhere(user_box):
    script = "echo $AWS_SECRET_ACCESS_KEY > notes"
    result = user_box.sh(script, env=OUTSIDE, flags=("--env", "AWS_SECRET_ACCESS_KEY"))

    assert Path(user_box.project, "notes").read_text().strip() == VALUE
    assert "AWS_SECRET_ACCESS_KEY in " not in result.stderr


NEST = "import os\nfor _ in range({}): os.mkdir('d'); os.chdir('d')"


def test_directories_nested_without_end_stop_nothing(user_box):
    # proves REPORT-02, R03, OLD-A9
    nest = f'python3 -c "{NEST.format(1100)}"'
    user_box.sh(f"cd ~/.claude; {nest}; mkdir -p projects/x; cd projects/x; {nest}", env=OUTSIDE)
    result = user_box.sh(
        f'echo x >.envrc; (python3 -c "{NEST.format(3000)}"); printf %s {VALUE} >notes; exit 7', env=OUTSIDE
    )
    listed = user_box.claudebox("projects")

    assert result.returncode == 7
    assert "Traceback" not in result.stderr
    (said,) = [line for line in result.stderr.splitlines() if "not everything could be looked at" in line]
    assert "(its path is too long)" in said
    assert "direnv runs it" in result.stderr
    assert "AWS_SECRET_ACCESS_KEY in notes:1" in result.stderr
    assert (listed.returncode, listed.stderr) == (0, "")
    assert user_box.project in listed.stdout
    trees.remove(*os.path.split(user_box.base))  # what tidies up after a test recurses
    os.mkdir(user_box.base)


def test_state_of_a_project_that_is_gone_is_removed_whatever_is_in_it(user_box):
    # proves REPORT-02, R03
    deep = user_box.mkdir(f"{user_box.base}/gone")
    script = f'cd ~/.claude; mkdir -p closed/in; chmod 0 closed/in; chmod 0 closed; python3 -c "{NEST.format(3000)}"'
    user_box.sh(script, cwd=deep)
    os.rmdir(deep)
    listed = user_box.claudebox("projects")
    pruned = user_box.claudebox("projects", "prune", "-y")

    assert f"{deep}  (gone)" in listed.stdout
    assert (pruned.returncode, pruned.stderr) == (0, "")
    assert deep not in user_box.claudebox("projects").stdout


def test_names_as_long_as_they_can_be_leave_the_log_readable(user_box):
    # proves REPORT-02, R11
    script = "import os\nfor i in range(200): open(f'.{i:03}' + '\u00e9' * 120, 'w').close()"
    user_box.sh(f'python3 -c "{script}"; exit 3')
    (lines,) = records(user_box)

    assert lines[-1]["status"] == 3
    assert sum(len(line["names"]) for line in lines if line["kind"] == "changes") == 200
    assert user_box.claudebox("log", "changes").stdout.count("\u00e9" * 120) == 200


def test_the_receipt_comes_when_it_is_asked_for_and_one_line_when_something_was_denied(user_box):
    # proves SHOW-01, NEW-D12
    user_box.environ |= OUTSIDE
    quiet = on_a_terminal(user_box, "-y", "--shell", "-c", "true")
    asked = on_a_terminal(user_box, "-y", "--set", "receipt=always", "--shell", "-c", "echo out")
    words = ("--shell", "-c", "curl -s http://denied.example/")
    denied = on_a_terminal(user_box, "-y", "--network", "allow", "--allow-domain", "other.example", *words)
    never = on_a_terminal(
        user_box, "-y", "--network", "allow", "--allow-domain", "other.example", "--set", "receipt=never", *words
    )

    assert "receipt of 0 s in" in asked
    assert "AWS_SECRET_ACCESS_KEY" in asked
    assert VALUE not in asked
    assert "claudebox: denied: denied.example" in denied.replace("\r\n", "\n")
    assert "receipt of" not in quiet + never + denied


def test_where_nothing_can_be_recorded_the_session_goes_on(user_box):
    user_box.write(f"{user_box.home}/.claudebox/log", "not a directory")
    result = user_box.sh("exit 5", flags=("--set", "receipt=always"))

    assert result.returncode == 5
    assert "this session is not recorded" in result.stderr
    assert "receipt of 0 s" in result.stderr
    assert "kept in" not in result.stderr


def test_the_log_shows_sessions_and_says_what_it_does_not_know(user_box):
    user_box.run("true")
    shown = user_box.claudebox("log")
    machine = user_box.claudebox("log", "--json")
    wrong = user_box.claudebox("log", "--no-such-thing")

    assert f"exec in {user_box.project}, network full" in shown.stdout
    assert "end, status 0" in shown.stdout
    assert [json.loads(line)["kind"] for line in machine.stdout.splitlines()] == ["start", "end"]
    assert wrong.returncode == 125
    assert "has no flag `--no-such-thing`" in wrong.stderr


def test_a_reader_that_leaves_ends_the_log_quietly(user_box):
    user_box.run("true")
    result = user_box.host("sh", "-c", f"{user_box.program} log | head -n 1; echo done")

    assert result.stdout.endswith("done\n")
    assert "Traceback" not in result.stderr
