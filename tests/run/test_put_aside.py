"""What agents of the host obey in a project: read-only where it is there, put aside where a session makes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.conftest import wait_until

from claudebox.tables.paths import PUT_ASIDE

NAMES = [name for name, _ in PUT_ASIDE]
MAKE = "for name in {names}; do mkdir -p $(dirname $name); echo evil >$name && echo made $name; done"


def test_what_any_agent_obeys_is_put_aside_unless_it_was_there_or_is_allowed(user_box):
    # proves ANY-06, SEC-04
    user_box.write(".gemini/settings.json", "{}")
    user_box.mkdir(".codex")
    attempts = f"echo evil >.gemini/settings.json; touch .codex/config.toml; {MAKE.format(names=' '.join(NAMES))}; true"
    result = user_box.sh(attempts, flags=("--allow", "opencode.json"))

    made = {line.removeprefix("made ") for line in result.stdout.splitlines()}
    assert made == {*NAMES} - {".gemini", ".codex"}, result.stderr
    assert Path(user_box.project, ".gemini/settings.json").read_text() == "{}"
    assert os.listdir(f"{user_box.project}/.codex") == []
    there = {name for name in NAMES if os.path.lexists(f"{user_box.project}/{name}")}
    assert there == {".gemini", ".codex", "opencode.json"}
    for name in made - {"opencode.json"}:
        assert os.path.lexists(f"{user_box.project}/{name}.claudebox"), name
        assert name in result.stderr


def test_a_link_that_leads_to_it_is_put_aside_and_so_is_what_stands_in_a_closed_directory(user_box):
    # proves ANY-06, C01
    user_box.write("other/mcp.json", "{}")
    result = user_box.sh("ln -s other .cursor; ln -s /etc .qwen; mkdir .codex; chmod 555 .")

    assert sorted(name for name in os.listdir(user_box.project) if name[0] == ".") == [
        ".codex.claudebox", ".cursor.claudebox", ".qwen.claudebox",
    ], result.stderr  # fmt: skip
    assert os.listdir(f"{user_box.project}/other") == ["mcp.json"]
    os.chmod(user_box.project, 0o755)


def test_what_a_killed_session_made_is_put_aside_by_the_next_launch(user_box, background):
    # proves ANY-06, REPORT-01
    script = "mkdir .codex; echo $PPID >started; sleep 60"
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", script)
    wait_until(lambda: os.path.exists(f"{user_box.project}/started"), "the session runs")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.isdir(f"{user_box.project}/.codex")

    result = user_box.sh("ls -d .codex*")

    assert result.stdout.split() == [".codex.claudebox"], result.stderr
